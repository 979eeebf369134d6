"""Turning the steps of a reshard plan into operations of the per-device program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from propagation.ops import REDUCTIONS
from propagation.program import Func, Op, source

from ..cost import item_bytes, sent_bytes
from ..errors import UnsupportedOpError
from ..heuristics import CHOSEN_IN_PARTS_BYTES
from ..ir.attributes import NONE, Attribute, Dense, DeviceLists
from ..ir.operations import attributes, communication, splat_constant
from ..ir.program import Collective, LocalValue, ModuleBuilder, Region
from ..kinds import kind_of
from ..layout import Atoms, Dims, local_shape
from .moves import ReshardStep
from .planner import Planner
from .realise_pieces import send_pieces
from .realise_reductions import Group, all_reduce, reduce_scatter, spread
from .words import WORDS, of_word

__all__ = ["APART", "REDUCERS", "Realiser", "zero_literal"]

# Known in regions that devices run or not depending on values which differ between them: the atoms over which they do.
APART = "apart"

# The operation that combines partial results of each kind.
REDUCERS = {row.kind: row.op for row in REDUCTIONS.values()}


class Realiser:
    """Writes slices and collectives into regions. One per module. `platform` is whose compiler makes programs of them,
    if that is known."""

    def __init__(self, atoms: Atoms, builder: ModuleBuilder, platform: str | None = None):
        self.atoms = atoms
        self.sizes = atoms.sizes
        self.builder = builder
        self.platform = platform
        self.grouped = Planner(atoms, permutes=False)
        self._zero_bits: dict[str, str] = {}

    # -- scalars and positions ------------------------------------------------------------------------------

    def index(self, region: Region, value: int) -> LocalValue:
        """An i32 scalar constant."""
        return region.entry("stablehlo.constant", (), (), "i32", splat_constant(str(value), (), "i32"))

    def coordinate(self, region: Region, atoms: Sequence[int]) -> LocalValue:
        """This device's position along `atoms` (i32 scalar), the first most major."""
        device = region.entry("stablehlo.replica_id", (), (), "ui32")
        device = region.entry("stablehlo.convert", (device,), (), "i32")
        out = None
        for stride, size in _digits(atoms, self.sizes, self.atoms.strides):
            digit = device
            if stride > 1:
                digit = region.entry("stablehlo.divide", (digit, self.index(region, stride)), (), "i32")
            if stride * size < self.atoms.count:
                digit = region.entry("stablehlo.remainder", (digit, self.index(region, size)), (), "i32")
            if out is not None:
                out = region.entry("stablehlo.multiply", (out, self.index(region, size)), (), "i32")
                digit = region.entry("stablehlo.add", (out, digit), (), "i32")
            out = digit
        return self.index(region, 0) if out is None else out

    def offset(self, region: Region, atoms: Sequence[int], piece: int) -> LocalValue:
        """Where this device's piece starts in a dimension cut by `atoms` into pieces of `piece` (i32 scalar)."""
        position = self.coordinate(region, atoms)
        if piece == 1 or not atoms:
            return position
        return region.entry("stablehlo.multiply", (position, self.index(region, piece)), (), "i32")

    def constant(self, region: Region, shape: tuple[int, ...], dtype: str, literal: str) -> LocalValue:
        """A splat constant, at the entry of the function."""
        attrs = splat_constant(literal, (), dtype)
        scalar = region.entry("stablehlo.constant", (), (), dtype, attrs)
        return scalar if not shape else self.splat(region, scalar, shape)

    def splat(self, region: Region, scalar: LocalValue, shape: tuple[int, ...]) -> LocalValue:
        """A scalar repeated over `shape`."""
        if not shape:
            return scalar
        attrs = attributes("stablehlo.broadcast_in_dim", ())
        return region.shared("stablehlo.broadcast_in_dim", (scalar,), shape, scalar.dtype, attrs)

    def zero(self, region: Region, shape: tuple[int, ...], dtype: str) -> LocalValue:
        return self.constant(region, shape, dtype, zero_literal(dtype))

    # -- local pieces ---------------------------------------------------------------------------------------

    def pad(
        self,
        region: Region,
        x: LocalValue,
        dim: int,
        low: int,
        high: int,
        fill: LocalValue | None = None,
        loc: str = "",
        inner: int = 0,
    ) -> LocalValue:
        """`x` with `low` and `high` elements of `fill` (zero by default) added to the ends of `dim`, `inner` between
        neighbours; negative amounts at the ends cut."""
        if not low and not high and not inner:
            return x
        fill = self.zero(region, (), x.dtype) if fill is None else fill
        shape = _with(x.shape, dim, x.shape[dim] + max(0, x.shape[dim] - 1) * inner + low + high)
        zeros = [0] * len(shape)
        amounts = [_with(zeros, dim, n) for n in (low, high, inner)]
        attrs = attributes("stablehlo.pad", *amounts)
        return region.shared("stablehlo.pad", (x, fill), shape, x.dtype, attrs, loc)

    def cut(
        self, region: Region, x: LocalValue, dim: int, start: int, stop: int, loc: str = "", stride: int = 1
    ) -> LocalValue:
        """`x[start:stop:stride]` along `dim`, static."""
        if start == 0 and stop == x.shape[dim] and stride == 1:
            return x
        ones = [1] * len(x.shape)
        starts, limits = _with([0] * len(x.shape), dim, start), _with(x.shape, dim, stop)
        shape = _with(x.shape, dim, -(-(stop - start) // stride))
        attrs = attributes("stablehlo.slice", starts, limits, _with(ones, dim, stride))
        return region.shared("stablehlo.slice", (x,), shape, x.dtype, attrs, loc)

    def window(
        self, region: Region, x: LocalValue, dim: int, start: LocalValue, size: int, loc: str = ""
    ) -> LocalValue:
        """`size` elements of `x` along `dim` from the i32 scalar `start`."""
        zero = self.index(region, 0)
        starts = [start if d == dim else zero for d in range(len(x.shape))]
        shape = _with(x.shape, dim, size)
        attrs = attributes("stablehlo.dynamic_slice", shape)
        return region.shared("stablehlo.dynamic_slice", (x, *starts), shape, x.dtype, attrs, loc)

    def repeat(self, region: Region, x: LocalValue, dim: int, times: int, loc: str = "") -> LocalValue:
        """`x` laid `times` times one behind the other along `dim`."""
        wide = (*x.shape[:dim], times, *x.shape[dim:])
        dims = tuple([d + (d >= dim) for d in range(len(x.shape))])
        attrs = attributes("stablehlo.broadcast_in_dim", dims)
        out = region.shared("stablehlo.broadcast_in_dim", (x,), wide, x.dtype, attrs, loc)
        return self.reshape(region, out, _with(x.shape, dim, times * x.shape[dim]), loc)

    def reshape(self, region: Region, x: LocalValue, shape: tuple[int, ...], loc: str = "") -> LocalValue:
        if x.shape == shape:
            return x
        return region.shared("stablehlo.reshape", (x,), shape, x.dtype, NONE, loc)

    def transpose(self, region: Region, x: LocalValue, order: Sequence[int], loc: str = "") -> LocalValue:
        if list(order) == list(range(len(order))):
            return x
        shape = tuple(x.shape[i] for i in order)
        attrs = attributes("stablehlo.transpose", tuple(order))
        return region.shared("stablehlo.transpose", (x,), shape, x.dtype, attrs, loc)

    def inside(
        self, region: Region, x_shape: tuple[int, ...], dim: int, atoms: Sequence[int], size: int
    ) -> LocalValue | None:
        """i1 of shape `x_shape`: which elements of a piece lie inside a dimension of global `size`; None if all."""
        piece = x_shape[dim]
        if piece * self.atoms.product(atoms) == size:
            return None
        where = self.positions(region, x_shape, dim, atoms, piece)
        limit = self.splat(region, self.index(region, size), x_shape)
        attrs = attributes("stablehlo.compare", "LT")
        return region.shared("stablehlo.compare", (where, limit), x_shape, "i1", attrs)

    def positions(
        self, region: Region, x_shape: tuple[int, ...], dim: int, atoms: Sequence[int], piece: int
    ) -> LocalValue:
        """i32 of shape `x_shape`: the global position along `dim` of each element of this device's piece."""
        iota = region.shared("stablehlo.iota", (), x_shape, "i32", attributes("stablehlo.iota", dim))
        if not atoms:
            return iota
        start = self.splat(region, self.offset(region, atoms, piece), x_shape)
        return region.shared("stablehlo.add", (iota, start), x_shape, "i32")

    # -- collectives ----------------------------------------------------------------------------------------

    def groups(self, atoms: Sequence[int]) -> DeviceLists:
        """The groups of devices that differ in `atoms`."""
        key = ("groups", tuple(atoms))
        return self.builder.dense(key, lambda: self.atoms.groups(atoms))

    def group(self, atoms: Sequence[int]) -> Group:
        """The devices that differ in `atoms`."""
        n = self.atoms.product(atoms)
        return Group(self.groups(atoms), tuple(atoms), (self.atoms.count // n, n))

    def collective(
        self,
        region: Region,
        kind: str,
        atoms: Sequence[int] | None,
        x: LocalValue,
        shape: tuple[int, ...],
        groups: Attribute,
        numbers: Sequence[int],
        op: Op | Func | None,
        cause: str,
        loc: str,
        reducer: str | None = None,
        sent: float | None = None,
        count: tuple[int, int] | None = None,
    ) -> LocalValue:
        """One collective over `atoms`, reused if the same one is visible. `groups` says which devices talk, `numbers`
        are the dimensions along which it moves elements (see `ir.operations.communication`). `sent` overrides the
        operand's bytes; `count` is the number of groups and of devices per group, where `atoms` is None.

        An array without elements needs none (and XLA refuses some).
        """
        if reducer == "choose":
            return self._choose(region, kind, atoms, x, shape, groups, numbers, op, cause, loc)
        if 0 in x.shape:
            return x if x.shape == tuple(shape) else self.zero(region, tuple(shape), x.dtype)
        self._check_reached(region, kind, atoms, op, cause)
        attrs = communication(kind_of(kind), groups, *numbers)
        key = ("collective", kind, id(x), attrs, reducer)
        found = region.lookup(key)
        if found is not None:
            return found
        regions = (self.reducer(region, reducer, x.dtype),) if reducer else ()
        (out,) = region.op(f"stablehlo.{kind}", (x,), [(shape, x.dtype)], attrs, regions=regions, loc=loc)
        operand = math.prod(x.shape) * item_bytes(x.dtype) if sent is None else sent
        if count is None:
            assert atoms is not None  # groups that the program gives come with their count
            n = self.atoms.product(atoms)
            count = (self.atoms.count // n, n)
        atoms = None if atoms is None else tuple(atoms)
        out.maker.collective = Collective(kind, atoms, count, sent_bytes(kind, count[1], operand), op, cause)
        region.known[key] = out
        return out

    def _check_reached(
        self, region: Region, kind: str, atoms: Sequence[int] | None, op: Op | Func | None, cause: str
    ) -> None:
        """Raises `UnsupportedOpError` for a collective that some of those who take part in it may never reach. Of the
        program's own groups (`atoms` is None) it must know itself."""
        apart = region.lookup(APART)
        if not apart or atoms is None or (kind != "collective_permute" and apart.isdisjoint(atoms)):
            return
        over, split = self.atoms.axes_text(atoms), self.atoms.axes_text(sorted(apart))
        raise UnsupportedOpError(
            f"{getattr(op, 'name', 'a result')} ({cause}) has to exchange pieces over {over} in a branch or loop of a "
            f"manual computation that devices along {split} may not all run, and would wait for those that do not; "
            "move it out of there, decide by a value that is the same along these axes, or keep what it uses whole "
            "(replicated) along the free axes",
            None if op is None else source(op),
        )

    def _choose(
        self,
        region: Region,
        kind: str,
        atoms: Sequence[int] | None,
        x: LocalValue,
        shape: tuple[int, ...],
        groups: Attribute,
        numbers: Sequence[int],
        op: Op | Func | None,
        cause: str,
        loc: str,
    ) -> LocalValue:
        """A sum of which only one device's summand is an element and all others are zeros.

        Floating-point numbers travel as their bits: sums would lose signs of zeros, subnormal numbers, payloads of NaNs
        and bits that are no numbers."""
        if x.dtype.startswith("complex"):
            parts = self._parts(region, x, loc)
            parts = self._choose(region, kind, atoms, parts, (*shape, 2), groups, numbers, op, cause, loc)
            return self._of_parts(region, parts, x.dtype, loc)
        word = WORDS.get(x.dtype)
        if word is None or 0 in x.shape:
            return self.collective(region, kind, atoms, x, shape, groups, numbers, op, cause, loc, "add")
        # 16 bits are summed in few places, some of which take 32 for them: they go in pairs.
        paired = word == "i16" and bool(shape) and shape[-1] % 2 == 0
        dtype, unit = ("i32", (2,)) if paired else (word, ())
        half = lambda of: (*of[:-1], of[-1] // 2) if paired else tuple(of)
        bits = self.reshape(region, x, (*half(x.shape), *unit), loc)
        bits = region.shared("stablehlo.bitcast_convert", (bits,), half(x.shape), dtype, NONE, loc)
        if kind == "all_reduce" and math.prod(bits.shape) * item_bytes(dtype) >= CHOSEN_IN_PARTS_BYTES:
            assert atoms is not None  # groups that the program gives are none of chosen elements
            n = self.atoms.product(atoms)
            dim = next((d for d, size in enumerate(bits.shape) if size % n == 0 and size > n), None)
            if dim is not None and not paired:
                part = _with(bits.shape, dim, bits.shape[dim] // n)
                args = (part, groups, (dim,), op, cause, loc)
                bits = self.collective(region, "reduce_scatter", atoms, bits, *args, "add")
                out = of_word(region, bits, x.dtype, loc)
                return self.collective(region, "all_gather", atoms, out, shape, groups, (dim,), op, cause, loc)
        bits = self.collective(region, kind, atoms, bits, half(shape), groups, numbers, op, cause, loc, "add")
        out = region.shared("stablehlo.bitcast_convert", (bits,), (*half(shape), *unit), x.dtype, NONE, loc)
        return self.reshape(region, out, tuple(shape), loc)

    def _parts(self, region: Region, x: LocalValue, loc: str) -> LocalValue:
        """Real and imaginary parts along a new last dimension."""
        real = x.dtype[len("complex<") : -1]
        parts = [region.shared(f"stablehlo.{name}", (x,), x.shape, real, NONE, loc) for name in ("real", "imag")]
        parts = [self.reshape(region, part, (*x.shape, 1), loc) for part in parts]
        attrs = attributes("stablehlo.concatenate", len(x.shape))
        return region.shared("stablehlo.concatenate", parts, (*x.shape, 2), real, attrs, loc)

    def _of_parts(self, region: Region, parts: LocalValue, dtype: str, loc: str) -> LocalValue:
        """The complex tensor of real and imaginary parts along the last dimension."""
        last, shape = len(parts.shape) - 1, parts.shape[:-1]
        real, imag = [self.reshape(region, self.cut(region, parts, last, i, i + 1, loc), shape, loc) for i in (0, 1)]
        return region.shared("stablehlo.complex", (real, imag), shape, dtype, NONE, loc)

    def reducer(self, region: Region, kind: str, dtype: str) -> Region:
        """The two-argument scalar body of a reduction."""
        body = Region("body", region, [((), dtype), ((), dtype)])
        out = body.op(REDUCERS[kind], body.args, [((), dtype)])
        body.op("stablehlo.return", out, ())
        return body

    def step(
        self,
        region: Region,
        x: LocalValue,
        shape: tuple[int, ...],
        before: Dims,
        step: ReshardStep,
        reduction: str,
        op: Op | Func | None,
        cause: str,
        loc: str,
    ) -> LocalValue:
        """Realises one step of a plan on `x`, the piece of a tensor of global `shape` laid out as `before`."""
        after = local_shape(shape, step.after, self.sizes)
        kind, atoms, d = step.kind, step.atoms, step.dim
        n = self.atoms.product(atoms)
        if kind == "slice":
            x = self.pad(region, x, d, 0, after[d] * n - x.shape[d], loc=loc)
            return self.window(region, x, d, self.offset(region, atoms, after[d]), after[d], loc)
        if kind == "all_gather":
            whole = _with(x.shape, d, x.shape[d] * n)
            x = self.collective(region, kind, atoms, x, whole, self.groups(atoms), (d,), op, cause, loc)
            return self.cut(region, x, d, 0, after[d], loc)
        if kind == "all_reduce":
            if d >= 0:
                x, reduction = spread(self, region, x, d, atoms, after[d], loc), "or" if x.dtype == "i1" else "choose"
            return all_reduce(self, region, x, self.group(atoms), reduction, op, cause, loc)
        if kind == "reduce_scatter":
            x = self._cut_between(region, x, d, after[d], step.after[d][len(before[d]) :], atoms, loc)
            return reduce_scatter(self, region, x, d, self.group(atoms), reduction, op, cause, loc)
        if kind in ("collective_permute", "pieces"):
            apart = region.lookup(APART)
            if apart and apart.isdisjoint(atoms):
                return self._in_groups(region, x, shape, before, step, op, cause, loc)
            if kind == "pieces":
                return send_pieces(self, region, x, shape, before, step, op, cause, loc)
            return self.permute(region, x, before, step, op, cause, loc)
        return self.exchange(region, x, after, before, step, op, cause, loc)

    def _cut_between(
        self, region: Region, x: LocalValue, d: int, length: int, added: Any, kept: Any, loc: str
    ) -> LocalValue:
        """Dimension `d` in as many pieces of `length` as the atoms `added` have positions, major to minor; of each atom
        that is not among `kept` only what belongs to a device's position."""
        digits = tuple(self.sizes[a] for a in added)
        x = self.pad(region, x, d, 0, length * math.prod(digits) - x.shape[d], loc=loc)
        if len(added) == len(kept):
            return x
        rest = (*x.shape[:d], self.atoms.product(kept) * length, *x.shape[d + 1 :])
        x = self.reshape(region, x, (*x.shape[:d], *digits, length, *x.shape[d + 1 :]), loc)
        for i, a in enumerate(added):
            if a not in kept:
                x = self.window(region, x, d + i, self.offset(region, (a,), 1), 1, loc)
        return self.reshape(region, x, rest, loc)

    def _in_groups(
        self,
        region: Region,
        x: LocalValue,
        shape: tuple[int, ...],
        before: Dims,
        step: ReshardStep,
        op: Op | Func | None,
        cause: str,
        loc: str,
    ) -> LocalValue:
        """A step as collectives of groups, where not everybody runs it: for a permute all devices would have to."""
        plan = self.grouped.plan(tuple(shape), item_bytes(x.dtype), before, step.after)
        for s in plan.steps:
            x = self.step(region, x, shape, before, s, "add", op, cause, loc)
            before = s.after
        return x

    def permute(
        self, region: Region, x: LocalValue, before: Dims, step: ReshardStep, op: Op | Func | None, cause: str, loc: str
    ) -> LocalValue:
        pairs = self.pairs(before, step.after, step.unreduced)
        return self.send(region, x, pairs, step.atoms, op, cause, loc)

    def send(
        self,
        region: Region,
        x: LocalValue,
        pairs: np.ndarray,
        atoms: Sequence[int],
        op: Op | Func | None,
        cause: str,
        loc: str,
    ) -> LocalValue:
        """A collective permute with the given (source, target) device pairs; others receive zeros."""
        apart = region.lookup(APART)
        if apart and apart.isdisjoint(atoms) and 0 not in x.shape:
            return self._send_in_groups(region, x, pairs, atoms, op, cause, loc)
        key = ("pairs", pairs.tobytes())
        lists = self.builder.dense(key, lambda: pairs)
        moving = bool((pairs[:, 0] != pairs[:, 1]).any())
        sent = math.prod(x.shape) * item_bytes(x.dtype) if moving else 0.0
        kind = "collective_permute"
        out = self.collective(region, kind, tuple(atoms), x, x.shape, lists, (), op, cause, loc, sent=sent)
        senders = pairs[pairs[:, 0] != pairs[:, 1], 0]
        if len(senders) < self.atoms.count and 0 not in x.shape:
            out.maker.collective = out.maker.communication._replace(senders=senders)
        return out

    def _send_in_groups(
        self,
        region: Region,
        x: LocalValue,
        pairs: np.ndarray,
        atoms: Sequence[int],
        op: Op | Func | None,
        cause: str,
        loc: str,
    ) -> LocalValue:
        """What `send` does, where not everybody runs it: all of a group is gathered, each device takes its sender's."""
        groups = self.atoms.groups(atoms)
        member = np.empty(self.atoms.count, np.int64)
        member[groups] = np.arange(groups.shape[1])
        sender = np.full(self.atoms.count, groups.shape[1], np.int64)  # the row of zeros
        sender[pairs[:, 1]] = member[pairs[:, 0]]
        lists = self.groups(atoms)
        row = self.reshape(region, x, (1, *x.shape), loc)
        whole = (groups.shape[1], *x.shape)
        rows = self.collective(region, "all_gather", atoms, row, whole, lists, (0,), op, cause, loc)
        rows = self.pad(region, rows, 0, 0, 1, loc=loc)
        me = self.coordinate(region, range(len(self.sizes)))
        row = self.window(region, rows, 0, self.table(region, sender, me), 1, loc)
        return self.reshape(region, row, x.shape, loc)

    def table(self, region: Region, values: np.ndarray, me: LocalValue) -> LocalValue:
        """The entry of `values` at the position `me`, both i32."""
        if (values == values[0]).all():
            return self.index(region, int(values[0]))
        attrs = attributes("stablehlo.constant", Dense.of(values, "i32"))
        table = region.entry("stablehlo.constant", (), values.shape, "i32", attrs)
        one = attributes("stablehlo.dynamic_slice", (1,))
        entry = region.entry("stablehlo.dynamic_slice", (table, me), (1,), "i32", one)
        return region.entry("stablehlo.reshape", (entry,), (), "i32")

    def pairs(self, before: Dims, after: Dims, unreduced: tuple[int, ...]) -> np.ndarray:
        """i64[devices, 2]: from whom each device gets its piece when equal-sized pieces change hands. A device that
        already holds its piece keeps it.

        Pairs are of devices that differ in these atoms only: others may hold other tensors, as in manual computations.
        """
        groups = self.atoms.groups(sorted({a for atoms in (*before, *after, unreduced) for a in atoms}))
        have = self.atoms.coordinate(unreduced)
        want = have.copy()
        for s, t in zip(before, after):
            p = self.atoms.product(s)
            have = have * p + self.atoms.coordinate(s)
            want = want * p + self.atoms.coordinate(t)
        have, want = have[groups[0]], want[groups[0]]
        sender = np.arange(groups.shape[1], dtype=np.int64)
        moving = np.nonzero(have != want)[0]
        givers = moving[np.argsort(have[moving], kind="stable")]
        takers = moving[np.argsort(want[moving], kind="stable")]
        sender[takers] = givers
        return np.stack([groups[:, sender].reshape(-1), groups.reshape(-1)], axis=1)

    def exchange(
        self,
        region: Region,
        x: LocalValue,
        after: tuple[int, ...],
        before: Dims,
        step: ReshardStep,
        op: Op | Func | None,
        cause: str,
        loc: str,
    ) -> LocalValue:
        """An all-to-all: each move's atoms leave the minor end of one dimension and join another."""
        moves, n = step.moves, self.atoms.product(step.atoms)
        joined: dict[int, int] = {}
        for m in moves:
            joined[m.target] = joined.get(m.target, 1) * self.atoms.product(m.atoms)
        for e, k in joined.items():
            x = self.pad(region, x, e, 0, after[e] * k - x.shape[e], loc=loc)
        groups = self.groups(step.atoms)
        if len(moves) == 1 and before[moves[0].source][-len(moves[0].atoms) :] == moves[0].atoms:
            d, e = moves[0].source, moves[0].target
            if e == len(x.shape) - 1:
                x = self._exchange_innermost(region, x, d, n, step, groups, op, cause, loc)
                return self.cut(region, x, d, 0, after[d], loc)
            shape = _with(_with(x.shape, e, x.shape[e] // n), d, x.shape[d] * n)
            x = self.collective(region, step.kind, step.atoms, x, shape, groups, (e, d, n), op, cause, loc)
        else:
            x = self._exchange_many(region, x, before, step, groups, op, cause, loc)
        for m in moves:
            x = self.cut(region, x, m.source, 0, after[m.source], loc)
        return x

    def _exchange_innermost(
        self,
        region: Any,
        x: LocalValue,
        d: int,
        n: int,
        step: ReshardStep,
        groups: DeviceLists,
        op: Op | Func | None,
        cause: str,
        loc: str,
    ) -> LocalValue:
        """Splits the innermost dimension and joins dimension `d`. The parts get a dimension of their own first: what
        arrives is put together along the dimension that was split, which takes a copy if that is the innermost one."""
        e = len(x.shape) - 1
        x = self.reshape(region, x, (*x.shape[:e], n, x.shape[e] // n), loc)
        x = self.collective(region, step.kind, step.atoms, x, x.shape, groups, (e, e, n), op, cause, loc)
        x = self.transpose(region, x, [*range(d), e, *range(d, e), e + 1], loc)
        return self.reshape(region, x, (*x.shape[:d], n * x.shape[d + 1], *x.shape[d + 2 :]), loc)

    def _exchange_many(
        self,
        region: Any,
        x: LocalValue,
        before: Dims,
        step: ReshardStep,
        groups: DeviceLists,
        op: Op | Func | None,
        cause: str,
        loc: str,
    ) -> LocalValue:
        moves, sizes = step.moves, self.sizes
        # Split every receiving dimension and bring the new parts to the front, in the order of the group.
        split: list[int] = []
        front: dict[int, int] = {}  # move -> position of its part in `split`
        rest = []
        for e, length in enumerate(x.shape):
            for k, m in enumerate(moves):
                if m.target == e:
                    part = self.atoms.product(m.atoms)
                    front[k] = len(split)
                    split.append(part)
                    length //= part
            rest.append(len(split))
            split.append(length)
        x = self.reshape(region, x, tuple(split), loc)
        x = self.transpose(region, x, [front[k] for k in range(len(moves))] + rest, loc)
        tail = x.shape[len(moves) :]
        n = self.atoms.product(step.atoms)
        x = self.reshape(region, x, (n, *tail), loc)
        x = self.collective(region, step.kind, step.atoms, x, x.shape, groups, (0, 0, n), op, cause, loc)
        # What came from the members of the group belongs in front of the dimensions that gave their atoms away.
        atoms = list(step.atoms)
        x = self.reshape(region, x, (*[sizes[a] for a in atoms], *tail), loc)
        order, shape = [], []
        for d, length in enumerate(tail):
            given = [a for a in before[d] if a in atoms]
            order += [atoms.index(a) for a in given] + [len(atoms) + d]
            shape.append(math.prod(sizes[a] for a in given) * length)
        x = self.transpose(region, x, order, loc)
        return self.reshape(region, x, tuple(shape), loc)


def _digits(atoms: Sequence[int], sizes: Sequence[int], strides: Any) -> Any:
    """(stride, size) of the digits of a position, atoms that are neighbours in the mesh taken together."""
    out: list[list[int]] = []
    for a in atoms:
        if out and out[-1][0] == strides[a] * sizes[a]:
            out[-1] = [strides[a], out[-1][1] * sizes[a]]
        else:
            out.append([strides[a], sizes[a]])
    return out


def _with(shape: Sequence[int], dim: int, n: int) -> tuple[int, ...]:
    return (*shape[:dim], n, *shape[dim + 1 :])


def zero_literal(dtype: str) -> str:
    """Zero of an element type as MLIR writes it."""
    if dtype.startswith("complex"):
        return "(0.0, 0.0)"
    if dtype == "i1":
        return "false"
    return "0" if dtype.startswith(("i", "ui")) else "0.0"
