"""Turning the steps of a reshard plan into operations of the per-device program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from propagation.program import Func, Op, source

from ..cost import item_bytes, sent_bytes
from ..errors import UnsupportedOpError
from ..heuristics import CHOSEN_IN_PARTS_BYTES
from ..ir.attributes import NONE, Attribute, DeviceLists
from ..ir.builder import Builder
from ..ir.operations import attributes, communication
from ..ir.program import Collective, LocalValue, ModuleBuilder, Region
from ..kinds import kind_of
from ..layout import Atoms, Dims, local_shape
from .moves import ReshardStep
from .planner import Planner
from .realise_pieces import send_pieces
from .realise_reductions import Group, all_reduce, reduce_scatter, spread
from .words import WORDS, of_word

__all__ = ["APART", "Realiser"]

# Known in regions that devices run or not depending on values which differ between them: the atoms over which they do.
APART = "apart"


class Realiser(Builder):
    """Writes reshards and collectives into regions. One per module."""

    def __init__(self, atoms: Atoms, module: ModuleBuilder, platform: str | None = None):
        super().__init__(atoms, module, platform)
        self.grouped = Planner(atoms, permutes=False)

    # -- collectives ----------------------------------------------------------------------------------------

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
        found: LocalValue | None = region.lookup(key)
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


def _with(shape: Sequence[int], dim: int, n: int) -> tuple[int, ...]:
    return (*shape[:dim], n, *shape[dim + 1 :])
