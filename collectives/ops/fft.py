"""Fourier transforms along split dimensions: pencil decomposition of several dimensions, six-step FFT of one.

A transform over several dimensions is one along each of them, in any order (a real one begins, or ends if it is an
inverse, with the last). So devices transform along the dimensions that they hold whole, swap dimensions by an
all-to-all, and go on with the others. A single long dimension of n = n1 n2 elements is transformed as a matrix (Bailey,
"FFTs in external or hierarchical memory", 1990): with t = t1 n2 + t2 and k = k1 + k2 n1,

    X[k] = sum over t2 of  w(n)^(t2 k1)  w(n2)^(t2 k2)  sum over t1 of  w(n1)^(t1 k1) x[t]:

transforms along t1, a multiplication by twiddle factors w(n)^(t2 k1), and transforms along t2, with an all-to-all
(a distributed transpose) before, between and after. Of a real tensor only k1 up to n1 / 2 is computed; the other half
of the result is the conjugate of what is there (`hermitian.py`).

Between the transforms along several dimensions only what counts travels: along a dimension that was transformed the
positions that somebody uses, along one that is still to be transformed those that are not zero (`used_ranges.py`).
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from propagation.attributes import integers
from propagation.program import Op, Value

from ..analysis.used_ranges import Box, Ranges, whole
from ..decide.candidate import Candidate, Sent, as_propagated
from ..decide.factors import Splits
from ..ir.operations import attributes
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context
from .batch import by_rule, in_row_major
from .hermitian import half_of, whole_of

__all__: list[str] = []

CAUSE = "transform"


class _Leg(NamedTuple):
    """Transforms along `dims`, done in the layout `layout`."""

    layout: Dims
    dims: tuple[int, ...]


def fft(ctx: Context, op: Op) -> Iterator[Candidate | Splits]:
    """Gathering what is transformed, one dimension after the other (`route`), or the six-step transform of a single
    dimension (`_SixStep`)."""
    have = ctx.state(op.operands[0]).dims
    transform = _Transform(ctx, op)
    yield by_rule(ctx, op, row_major=ctx.atoms.count > 1)
    if have is None or not any(have) or not (transform.is_cut or any(have[d] for d in transform.dims)):
        return
    pass_over = ctx.elements(transform.shape, have) * ctx.itemsize(op.results[0]) * ctx.redundancy
    atoms = tuple([a for d in have for a in d])
    legs, sent, layout = transform.route(have)
    if legs:
        write = functools.partial(transform.follow, have, legs)
        moved = (Sent("all_to_all", atoms, sent, messages=0),)
        yield Candidate((have,), (layout,), write, sent=moved, work=len(legs) * pass_over)
    two = _SixStep.of(transform, have)
    if two is not None:
        moved = (Sent("all_to_all", have[-1], two.moved(), messages=0),)
        yield Candidate((have,), (have,), two.write, sent=moved, work=2 * pass_over)


def ahead(ctx: Context, op: Op, value: Value, dims: Dims) -> Iterator[Candidate]:
    """For the look-ahead: a transform whose operand and result are both laid out as `dims`, if there is one, and one of
    whole dimensions. What propagation decided says nothing where it leaves these split: moves have to follow."""
    transform = _Transform(ctx, op)
    work = functools.partial(_work, ctx, transform)
    if not any(ctx.want(value)[d] for d in transform.dims):
        yield as_propagated(ctx, op, value)._replace(work=work(ctx.want(value)))
    elif any(dims[d] for d in transform.dims):
        gathered = tuple([() if d in transform.dims else atoms for d, atoms in enumerate(dims)])
        yield Candidate((gathered,), (gathered,), work=work(gathered))
    if transform.is_cut or any(dims[d] for d in transform.dims):
        legs, sent, layout = transform.route(dims)
        moved = Sent("all_to_all", tuple([a for d in dims for a in d]), sent, messages=0)
        if legs:
            yield Candidate((None,), (layout,), sent=(moved,), work=work(dims))
    if not any(dims[d] for d in transform.dims):
        yield Candidate((None,), (dims,), work=work(dims))
        return
    two = _SixStep.of(transform, dims)
    if two is not None:
        atoms = tuple([a for d in transform.dims for a in dims[d]])
        moved = Sent("all_to_all", atoms, two.moved(), messages=0)
        yield Candidate((None,), (dims,), sent=(moved,), work=work(dims))


def _work(ctx: Context, transform: _Transform, dims: Dims) -> float:
    """What transforming a piece in layout `dims` counts as: each dimension is read and written once."""
    passes = 2 * len(transform.dims)
    return passes * ctx.elements(transform.shape, dims) * ctx.itemsize(transform.op.results[0]) * ctx.redundancy


class _Transform:
    """One transform operation: `kind` is FFT, IFFT, RFFT or IRFFT, `length` has those along its last dimensions `dims`.
    `used` and `nonzero` are the ranges that count along those of several dimensions for which they are not all."""

    def __init__(self, ctx: Context, op: Op):
        self.ctx, self.op = ctx, op
        self.shape, self.out = op.operands[0].type.shape, op.results[0].type.shape
        lengths = tuple(integers(op.attrs["fft_length"]))
        rank = len(self.shape)
        self.kind = next(k for k in ("IRFFT", "RFFT", "IFFT", "FFT") if k in str(op.attrs["fft_type"]))
        self.dims = tuple(range(rank - len(lengths), rank))
        self.length = dict(zip(self.dims, lengths))
        self.inverse = self.kind.startswith("I")
        types = [op.operands[0].type.dtype, op.results[0].type.dtype]
        self.complex = next(t for t in types if t.startswith("complex"))
        self.real = self.complex[len("complex<") : -1]
        used, nonzero = _ranges(ctx, op) if len(self.dims) > 1 else (whole(op.results[0]), whole(op.operands[0]))
        self.used = {d: used[d] for d in self.dims if used[d] != (0, self.out[d])}
        self.nonzero = {d: nonzero[d] for d in self.dims if nonzero[d] != (0, self.shape[d])}

    @property
    def is_cut(self) -> bool:
        """Whether less than everything travels."""
        return bool(self.used or self.nonzero)

    def begin(self, have: Dims) -> tuple[int, ...]:
        """The shape of what counts of the operand: cut along dimensions that devices hold whole."""
        size = lambda d: self.shape[d] if have[d] else self.nonzero[d][1] - self.nonzero[d][0]
        return tuple([size(d) if d in self.nonzero else n for d, n in enumerate(self.shape)])

    def local(self, x: LocalValue, dims: Sequence[int], kind: str, lengths: Sequence[int]) -> LocalValue:
        """`x` transformed along some of its dimensions, all of which are whole."""
        ctx, rank = self.ctx, len(x.shape)
        order = [*(d for d in range(rank) if d not in dims), *dims]
        x = in_row_major(ctx, ctx.realiser.transpose(ctx.region, x, order, ctx.loc))
        last = {"RFFT": lengths[-1] // 2 + 1, "IRFFT": lengths[-1]}.get(kind, x.shape[-1])
        dtype = {"RFFT": self.complex, "IRFFT": self.real}.get(kind, x.dtype)
        attrs = attributes("stablehlo.fft", kind, tuple(lengths))
        x = in_row_major(ctx, ctx.emit("stablehlo.fft", (x,), (*x.shape[:-1], last), dtype, attrs))
        return ctx.realiser.transpose(ctx.region, x, [order.index(d) for d in range(rank)], ctx.loc)

    def stage(self, shape: tuple[int, ...], dims: Sequence[int]) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        """(kind, lengths, shape of what counts afterwards) of the transforms along `dims` of a tensor of this shape."""
        last = len(shape) - 1
        lengths = tuple(self.length[d] for d in dims)
        size = lambda d: self.used[d][1] - self.used[d][0] if d in self.used else self.out[d]
        after = tuple([size(d) if d in dims else n for d, n in enumerate(shape)])
        if last in dims and self.kind in ("RFFT", "IRFFT"):
            return self.kind, lengths, after
        return ("IFFT" if self.inverse else "FFT"), lengths, after

    def itemsize(self, shape: tuple[int, ...], rest: frozenset[int]) -> float:
        """Bytes per element when the dimensions `rest` are still to be transformed."""
        last = len(shape) - 1
        is_real = (self.kind == "RFFT" and last in rest) or (self.kind == "IRFFT" and last not in rest)
        whole = self.ctx.itemsize(self.op.results[0] if self.kind != "IRFFT" else self.op.operands[0])
        return whole / 2 if is_real else whole

    def now(self, layout: Dims, rest: frozenset[int]) -> tuple[int, ...]:
        """Those of the dimensions `rest` that can be transformed in a layout: its whole ones, as far as the real
        transform's turn allows, which is first of all (RFFT) or last (IRFFT)."""
        last = len(layout) - 1
        whole = tuple(d for d in sorted(rest) if not layout[d])
        if self.kind == "RFFT" and last in rest and last not in whole:
            return ()
        if self.kind == "IRFFT" and last in whole and len(whole) < len(rest):
            return whole[:-1]
        return whole

    def route(self, have: Dims) -> tuple[list[_Leg], float, Dims]:
        """The cheapest sequence of transforms and all-to-alls from layout `have` on, its bytes, and the layout in which
        it ends: Dijkstra's search over (layout, dimensions still to be transformed), which takes the bytes of bringing
        the result to its wanted layout into account. Where only a part travels between transforms, some that could
        be done wait for others."""
        ctx, result = self.ctx, self.op.results[0]
        ties = itertools.count()
        heap: list[tuple[Any, ...]] = [(0.0, next(ties), have, frozenset(self.dims), self.begin(have), (), 0.0)]
        settled: set[tuple[Any, ...]] = set()
        while heap:
            cost, _, layout, rest, shape, legs, sent = heapq.heappop(heap)
            if rest is None:
                return list(legs), sent, layout
            if (layout, rest) in settled:
                continue
            settled.add((layout, rest))
            dims = self.now(layout, rest)
            for some in self.orders(dims, rest):
                done = (rest - set(some), self.stage(shape, some)[2], (*legs, _Leg(layout, some)))
                heapq.heappush(heap, (cost, next(ties), layout, *done, sent))
            if not rest:
                cost += ctx.later_cost(result, layout)
                heapq.heappush(heap, (cost, next(ties), layout, None, shape, legs, sent))
                continue
            if dims and not self.is_cut:
                continue
            for after in self.moved(layout, rest):
                step = ctx.planner.cost(shape, self.itemsize(shape, rest), layout, after)
                heapq.heappush(heap, (cost + step, next(ties), after, rest, shape, legs, sent + step))
        return [], math.inf, have

    def orders(self, dims: tuple[int, ...], rest: frozenset[int]) -> list[tuple[int, ...]]:
        """Which of `dims`, the dimensions that can be transformed now, are: all, or where something is cut also some
        before the others."""
        if not dims or not self.is_cut:
            return [dims] if dims else []
        some = [s for k in range(1, len(dims) + 1) for s in itertools.combinations(dims, k)]
        first = (s for s in some if self.kind != "RFFT" or max(rest) in s or max(rest) < max(self.dims))
        return [s for s in first if self.kind != "IRFFT" or max(self.dims) not in s or set(s) == rest]

    def moved(self, layout: Dims, rest: frozenset[int]) -> Iterator[Dims]:
        """The layouts after an all-to-all that moves the axes of one dimension to another: of one still to be
        transformed, or where something is cut of any. What is cut stays whole, as it is filled up again."""
        for d in range(len(layout)) if self.is_cut else sorted(rest):
            if layout[d]:
                without = (*layout[:d], (), *layout[d + 1 :])
                for e, atoms in enumerate(without):
                    if e != d and (e in rest or e not in self.used):
                        yield (*without[:e], (*atoms, *layout[d]), *without[e + 1 :])

    def follow(self, have: Dims, legs: Sequence[_Leg]) -> None:
        """Writes the legs and binds the result."""
        ctx, real, shape, layout = self.ctx, self.ctx.realiser, self.begin(have), have
        x = ctx.get(self.op.operands[0], have)
        cut = [d for d in self.nonzero if not have[d]]
        for d in cut:
            x = real.cut(ctx.region, x, d, *self.nonzero[d], ctx.loc)
        for leg in legs:
            x = ctx.reshard(shape, x, layout, leg.layout, cause=CAUSE)
            for d in (d for d in leg.dims if d in cut):
                x = _filled(ctx, x, d, self.nonzero[d], self.shape[d])
            kind, lengths, shape = self.stage(shape, leg.dims)
            x, layout = self.local(x, leg.dims, kind, lengths), leg.layout
            for d in (d for d in leg.dims if d in self.used):
                x = real.cut(ctx.region, x, d, *self.used[d], ctx.loc)
        for d in self.used:
            x = _filled(ctx, x, d, self.used[d], self.out[d])
        ctx.bind(self.op.results[0], layout, x)


def _filled(ctx: Context, x: LocalValue, d: int, ends: tuple[int, int], size: int) -> LocalValue:
    """`x`, which holds the positions `ends` along a whole dimension of `size`, with zeros at the others."""
    return ctx.realiser.pad(ctx.region, x, d, ends[0], size - ends[1])


def _ranges(ctx: Context, op: Op) -> tuple[Box, Box]:
    """(positions of the result that somebody uses, those of the operand that are not zero). Of all transforms that are
    alike, since two of the same operand are written once."""
    key = ("transform", op.attrs["fft_type"], op.operands[0].type, tuple(integers(op.attrs["fft_length"])))
    found = ctx.decisions.get(key)
    if found is None:
        ranges = ctx.decisions.setdefault("ranges", Ranges(ctx.program))
        alike = [o for o in ctx.program.ops() if o.name == op.name and str(o.attrs["fft_type"]) == str(key[1])
                 and o.operands[0].type == key[2] and tuple(integers(o.attrs["fft_length"])) == key[3]]  # fmt: skip
        every = [op, *alike]
        found = ctx.decisions[key] = (
            _around([ranges.used(o.results[0]) for o in every], op.results[0]),
            _around([ranges.nonzero(o.operands[0]) for o in every], op.operands[0]),
        )
    return found


def _around(boxes: Sequence[Box | None], value: Value) -> Box:
    """The smallest box around all of them; everything if there is no position in it."""
    found = [box for box in boxes if box is not None]
    if not found or any(low >= high for box in found for low, high in box):
        return whole(value)
    return tuple([(min(low for low, _ in ends), max(high for _, high in ends)) for ends in zip(*found)])


class _SixStep:
    """The six-step transform along a last dimension of n1 n2 elements, split by `atoms` over `p` devices: as a matrix
    [n1, n2] whose columns, then rows, are transformed."""

    def __init__(self, transform: _Transform, have: Dims, n1: int, n2: int):
        self.transform, self.ctx, self.op = transform, transform.ctx, transform.op
        self.have, self.n1, self.n2 = have, n1, n2
        self.batch, self.atoms = transform.out[:-1], have[-1]
        self.rows, self.columns = (*have[:-1], self.atoms, ()), (*have[:-1], (), self.atoms)
        self.lead = len(self.batch)

    @staticmethod
    def of(transform: _Transform, have: Dims) -> _SixStep | None:
        """None if the transform has several dimensions, or its length has no two factors that p divides."""
        p = transform.ctx.atoms.product(have[-1])
        n = transform.length[len(have) - 1]
        if len(transform.dims) > 1 or p == 1:
            return None
        if transform.kind in ("RFFT", "IRFFT"):  # n2 as small as possible: the rows, n1 / 2 + 1, are padded
            return _SixStep(transform, have, n // (2 * p), 2 * p) if n % (4 * p * p) == 0 else None
        if n % (p * p):
            return None
        rest = n // (p * p)
        middle = next(q for q in range(math.isqrt(rest), 0, -1) if rest % q == 0)
        return _SixStep(transform, have, p * middle, n // (p * middle))

    def moved(self) -> float:
        """Bytes of the all-to-alls."""
        ctx, t = self.ctx, self.transform
        itemsize = ctx.itemsize(self.op.results[0] if t.kind != "IRFFT" else self.op.operands[0])
        whole = (*self.batch, self.n1, self.n2)
        if t.kind in ("FFT", "IFFT"):
            moves = [(whole, itemsize, 3)]
        else:
            moves = [(whole, itemsize / 2, 1), ((*self.batch, self.n1 // 2 + 1, self.n2), itemsize, 2)]
        return sum(k * ctx.planner.cost(shape, b, self.rows, self.columns) for shape, b, k in moves)

    def write(self) -> None:
        x = self.ctx.get(self.op.operands[0], self.have)
        out = {"RFFT": self.forward_real, "IRFFT": self.inverse_real}.get(self.transform.kind, self.plain)(x)
        self.ctx.bind(self.op.results[0], self.have, out)

    def plain(self, x: LocalValue) -> LocalValue:
        """Complex to complex."""
        t, kind = self.transform, self.transform.kind
        x = self.move(self.reshape(x, self.n1 // self.p, self.n2), self.n1, False)
        x = self.twiddled(t.local(x, (self.lead,), kind, (self.n1,)), self.columns)
        x = t.local(self.move(x, self.n1, True), (self.lead + 1,), kind, (self.n2,))
        return self.flat(self.turned(self.move(x, self.n1, False)))

    def forward_real(self, x: LocalValue) -> LocalValue:
        t, half = self.transform, self.n1 // 2 + 1
        x = self.move(self.reshape(x, self.n1 // self.p, self.n2), self.n1, False)
        x = self.twiddled(t.local(x, (self.lead,), "RFFT", (self.n1,)), self.columns)
        x = t.local(self.move(x, half, True), (self.lead + 1,), "FFT", (self.n2,))
        return half_of(self, x, half)

    def inverse_real(self, x: LocalValue) -> LocalValue:
        t, half = self.transform, self.n1 // 2 + 1
        x = t.local(whole_of(self, x, half), (self.lead + 1,), "IFFT", (self.n2,))
        x = self.move(self.twiddled(x, self.rows, half), half, False)
        x = self.move(t.local(x, (self.lead,), "IRFFT", (self.n1,)), self.n1, True)
        return self.flat(x)

    @property
    def p(self) -> int:
        return self.ctx.atoms.product(self.atoms)

    def reshape(self, x: LocalValue, *last: int) -> LocalValue:
        """`x` with the dimensions after its batch dimensions reshaped to `last`."""
        return self.ctx.realiser.reshape(self.ctx.region, x, (*x.shape[: self.lead], *last), self.ctx.loc)

    def flat(self, x: LocalValue) -> LocalValue:
        return self.reshape(x, x.shape[self.lead] * x.shape[self.lead + 1])

    def turned(self, x: LocalValue) -> LocalValue:
        """`x` with its last two dimensions transposed."""
        order = [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2]
        return self.ctx.realiser.transpose(self.ctx.region, x, order, self.ctx.loc)

    def move(self, x: LocalValue, size: int, to_rows: bool) -> LocalValue:
        """A matrix of `size` rows brought from split columns to split rows, or back, by an all-to-all."""
        before, after = (self.columns, self.rows) if to_rows else (self.rows, self.columns)
        return self.ctx.reshard((*self.batch, size, self.n2), x, before, after, cause=CAUSE)

    def twiddled(self, x: LocalValue, layout: Dims, rows: int = 0) -> LocalValue:
        """`x`, a matrix of k1 and t2 (of `rows` rows if these are split), times w(n)^(t2 k1)."""
        ctx, real, t = self.ctx, self.ctx.realiser, self.transform
        shape, n = x.shape[self.lead :], self.n1 * self.n2
        whole = "i64" if n >= 1 << 31 else "i32"
        along = []
        for d, size in enumerate((rows or self.n1, self.n2)):
            atoms = layout[self.lead + d]
            place = real.positions(ctx.region, shape, d, atoms, -(-size // ctx.atoms.product(atoms)))
            along.append(place if whole == "i32" else ctx.region.shared("stablehlo.convert", (place,), shape, whole))
        # The product is below n. Angles are taken in (-pi, pi], since floats are denser around zero.
        turn = ctx.emit("stablehlo.multiply", along, shape, whole)
        full, middle = (real.constant(ctx.region, shape, whole, str(k)) for k in (n, n // 2))
        above = attributes("stablehlo.compare", "GT")
        late = ctx.emit("stablehlo.compare", (turn, middle), shape, "i1", above)
        turn = ctx.emit("stablehlo.select", (late, ctx.emit("stablehlo.subtract", (turn, full), shape, whole), turn),
                        shape, whole)  # fmt: skip
        angle = ctx.emit("stablehlo.convert", (turn,), shape, t.real)
        unit = real.constant(ctx.region, shape, t.real, repr((1 if t.inverse else -1) * 2 * math.pi / n))
        angle = ctx.emit("stablehlo.multiply", (angle, unit), shape, t.real)
        parts = [ctx.emit(f"stablehlo.{f}", (angle,), shape, t.real) for f in ("cosine", "sine")]
        factor = ctx.emit("stablehlo.complex", parts, shape, t.complex)
        attrs = attributes("stablehlo.broadcast_in_dim", tuple(range(self.lead, self.lead + 2)))
        factor = ctx.emit("stablehlo.broadcast_in_dim", (factor,), x.shape, t.complex, attrs)
        return ctx.emit("stablehlo.multiply", (x, factor), x.shape, t.complex)


AHEAD = {"stablehlo.fft": ahead}

CANDIDATES = {"stablehlo.fft": fft}
