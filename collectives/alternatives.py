"""Whole alternatives: another propagation of the same program, compared with the first one by what it sends.

Propagation gives an axis that two dimensions want to the one that it visited first. Where weights are distributed over
the devices that share a batch, and nothing constrains the activations, that may be the weights' embedding dimension:
activations are then split by features, and every layer exchanges them, where a batch-first layout only gathers
weights. No single choice shows that; so a program with such an axis is propagated a second time, in which each
contested axis goes first to the class of dimensions (`propagation.correspondence`) whose tensors hold most bytes:
all that arguments and results say of it for other classes waits until that one is everywhere. Both are
partitioned, and the one that sends less is taken.

Another one is tried where a reshape cuts a split dimension in two, as a batch into microbatches: part of the axes then
stays on the microbatches, and a loop that takes one after the other needs on all devices what few of them hold. In the
alternative the microbatches stay whole, and their rows are moved once.

And one where several results of a split argument's type are whole, as of an optimiser whose parameters and moments are,
beside a gradient that is not: there the argument is gathered before it is used, instead of each result.

And one where contractions gather over and over what follows from one another: there every device computes all of it
(`computed_whole.py`).

Another propagation and partition cost as much as the first. So what the first plan sends over an axis is the most that
another place of the axis can save, and what is known of the alternative beforehand is held against it: the partial sums
that contractions of its class leave, the gather of an argument.

Arguments and results keep their shardings. Programs in which somebody set priorities keep them: nothing is tried.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from propagation.attributes import symbol
from propagation.contested import meets
from propagation.correspondence import Correspondence, Place, correspondence_of
from propagation.model import DimSharding, FactorType, Mesh, OpRule, TensorSharding
from propagation.ops import SHARDING_ATTRIBUTE
from propagation.program import Block, Op, Program, Value, source
from propagation.rules import RuleCache
from propagation.shardings import Shardings

from .annotations import KnownShardings
from .computed_whole import Whole, computed_whole
from .cost import item_bytes
from .errors import CollectivesError
from .heuristics import ALTERNATIVE_SHARE, CONTESTED_SHARE, MEMORY_GROWTH_BYTES, SCATTERED_AND_GATHERED
from .module import PartitionedProgram, partition_program
from .ops.control import trip_count
from .options import Options
from .plan.communication import Alternative
from .reordered import decided_again
from .topology import Topology

__all__ = ["Preference", "cheapest", "preference", "preferences"]

FIRST = "layouts as they were propagated"


def cheapest(known: KnownShardings, given: Topology | None, options: Options) -> PartitionedProgram:
    """The program of `known`, or of a whole alternative, whichever sends least (takes least time, with a topology)."""
    best = first = partition_program(known.program, known, given, options)
    rows: list[Alternative] = []
    taken = Preference()
    for wanted in preferences(known, first, given) if first.plan.entries else ():
        wanted = wanted.beside(taken)
        again = decided_again(known, wanted.annotate)
        if again is None:
            continue
        again.gathered = wanted.gathers(again.program)
        try:
            other = partition_program(again.program, again, given, options)
        except CollectivesError as e:  # it need not be possible with these layouts, too
            rows.append(Alternative(str(wanted), False, None, None, None, str(e)))
            continue
        weigh = lambda p: p.plan.bytes if given is None else p.plan.seconds
        cheaper = weigh(other) < ALTERNATIVE_SHARE * weigh(best)
        growth = max(MEMORY_GROWTH_BYTES, options.memory_growth * first.memory.peak) if options.memory_growth else 0.0
        takes = cheaper and other.memory.peak <= first.memory.peak + growth
        rows = [replace(row, taken=False) for row in rows] if takes else rows
        rows.append(_row(str(wanted), other, takes, other.memory.peak if cheaper else None))
        if takes:
            best, taken = other, wanted
    if rows:
        compared = any(row.peak is not None for row in rows)
        head = _row(FIRST, first, best is first, first.memory.peak if compared else None)
        best.plan = replace(best.plan, alternatives=(head, *rows))
    return best


def _sent_over(made: PartitionedProgram) -> dict[str, float]:
    """By the name of an axis: bytes that the busiest device sends in collectives over it."""
    out: dict[str, float] = {}
    for entry in made.plan:
        for axis in {name for name, *_ in entry.mesh_axes}:
            out[axis] = out.get(axis, 0.0) + entry.bytes * (entry.times or 1)
    return out


def _row(what: str, made: PartitionedProgram, taken: bool, peak: float | None) -> Alternative:
    return Alternative(what, taken, made.plan.bytes, made.plan.seconds, peak)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A reshape that cuts a split dimension in two, of which a loop walks through the first: that one stays whole, and
    the second has the axes `dim`.

    number   which of the program's reshapes it is
    result   its result's type, `at` the first of the two dimensions, `where` its source line
    """

    number: int
    result: str
    at: int
    dim: DimSharding
    mesh: Mesh
    where: str | None

    def sharding(self, rank: int) -> TensorSharding:
        dims = [DimSharding((), True)] * rank
        dims[self.at], dims[self.at + 1] = DimSharding(()), DimSharding(self.dim.axes, True)
        return TensorSharding(self.mesh, dims)


@dataclass(frozen=True, slots=True)
class _Gathered:
    """An argument that is used whole along the dimensions that `sharding` closes."""

    number: int
    sharding: TensorSharding

    def annotate(self, program: Program, shardings: Shardings) -> None:
        todo, shape = [program.main.args[self.number]], program.main.args[self.number].type.shape
        while todo:
            for use in todo.pop().uses:
                callee = program.funcs.get(symbol(use.op.attrs["callee"])) if use.op.name == "func.call" else None
                if callee is not None:
                    todo.append(callee.args[use.number])
                for r in use.op.results if callee is None else ():
                    if r.type.is_tensor and r.type.shape == shape and shardings.get(r) is None:
                        shardings.set(r, self.sharding)


@dataclass(frozen=True, slots=True)
class Preference:
    """What another propagation is told.

    first   per axis that several classes want, a place at the boundary that the class which gets it first has
    waits   dimensions of arguments, and of results of @main, whose axes come after those: (number, dimension)
    kept    reshapes that leave a dimension whole
    gathered   arguments that are gathered before they are used
    whole   chains of operations that every device computes
    """

    first: tuple[tuple[str, str], ...] = ()
    waits: frozenset[tuple[int, int]] = frozenset()
    results_wait: frozenset[tuple[int, int]] = frozenset()
    kept: tuple[_Kept, ...] = ()
    gathered: tuple[_Gathered, ...] = ()
    whole: tuple[Whole, ...] = ()

    def __str__(self) -> str:
        reshapes = [f"dimension {k.at} of the reshape at {k.where or '?'} whole" for k in self.kept]
        arguments = [f"argument {g.number} gathered before it is used" for g in self.gathered]
        first = [f"{axis} first to {place}" for axis, place in self.first]
        return "; ".join([*first, *reshapes, *arguments, *map(str, self.whole)])

    def beside(self, other: Preference) -> Preference:
        """Both."""
        return Preference(
            (*other.first, *self.first), self.waits | other.waits, self.results_wait | other.results_wait,
            (*other.kept, *self.kept), (*other.gathered, *self.gathered), (*other.whole, *self.whole),
        )  # fmt: skip

    def gathers(self, program: Program) -> dict[Value, TensorSharding]:
        """What is gathered before it is used, in the program as it was propagated again."""
        found = {program.main.args[g.number]: g.sharding for g in self.gathered}
        for whole in self.whole:
            found.update(whole.gathered(program))
        return found

    def annotate(self, program: Program, shardings: Shardings) -> None:
        """Sets priorities and shardings, before anything is propagated."""
        main = program.main
        for i, arg in enumerate(main.args):
            shardings.set(arg, _waiting(shardings.get(arg), {d for number, d in self.waits if number == i}))
        declared = shardings.results[main]
        for i, said in enumerate(declared):
            declared[i] = _waiting(said, {d for number, d in self.results_wait if number == i})
        reshapes = [op.results[0] for op in program.ops() if op.name == "stablehlo.reshape"] if self.kept else []
        for gathered in self.gathered:
            gathered.annotate(program, shardings)
        for whole in self.whole:
            whole.annotate(program, shardings)
        for kept in self.kept:
            result = reshapes[kept.number] if kept.number < len(reshapes) else None
            if result is not None and result.type.text == kept.result and shardings.get(result) is None:
                shardings.set(result, kept.sharding(result.type.rank))


def _waiting(sharding: TensorSharding | None, dims: set[int]) -> TensorSharding | None:
    if sharding is None or not dims:
        return sharding
    return sharding.with_dims(
        [DimSharding(d.axes, d.is_open, 1) if i in dims and d.axes else d for i, d in enumerate(sharding.dims)]
    )


def preferences(known: KnownShardings, made: PartitionedProgram, given: Topology | None) -> Iterator[Preference]:
    """What may be worth trying, one after the other; nothing for most programs. `made` is the program as it is
    partitioned with the layouts of `known`."""
    sent = _sent_over(made)
    kept = _walked_through(known)
    if kept:
        yield Preference(kept=kept)
    gathered = _wanted_whole(known, sent)
    if gathered:
        yield Preference(gathered=gathered)
    whole = computed_whole(known, made, given)
    if whole is not None:
        yield Preference(whole=(whole,))
    found = preference(known, sent)
    if found is not None:
        yield found


def _walked_through(known: KnownShardings) -> tuple[_Kept, ...]:
    """The reshapes that cut a split dimension (a batch) in two and leave some of its axes on the first (microbatches),
    of which loops or slices take one position at a time: each time, all devices need what a few of them hold."""
    if "stablehlo.dynamic_slice" not in known.program.names:
        return ()
    found = []
    number = -1
    for op in known.program.ops():
        if op.name != "stablehlo.reshape":
            continue
        number += 1
        before, after = known.sharding(op.operands[0]), known.sharding(op.results[0])
        at = None if before is None else _cut_dimension(op)
        if at is None or after is None or not after.dims[at].axes:
            continue
        dim = DimSharding((*after.dims[at + 1].axes, *after.dims[at].axes))  # in this order one all-to-all leads there
        if op.results[0].type.shape[at + 1] % dim.factor == 0:
            text = op.results[0].type.text
            found.append((op.results[0], _Kept(number, text, at, dim, after.mesh, source(op))))
    if not found:
        return ()
    joined = correspondence_of(known.program)
    sliced = {
        joined.find((op.operands[0].index, d))
        for op in known.program.ops() if op.name == "stablehlo.dynamic_slice"
        for d, (n, m) in enumerate(zip(op.operands[0].type.shape, op.results[0].type.shape)) if m == 1 < n
    }  # fmt: skip
    return tuple(kept for value, kept in found if joined.find((value.index, kept.at)) in sliced)


def _wanted_whole(known: KnownShardings, sent: Mapping[str, float]) -> tuple[_Gathered, ...]:
    """Split arguments (a gradient) beside several results of their type that are whole (parameters and moments): what
    is computed of them by pieces has to be gathered for each of these results."""
    main = known.program.main
    results = [(v.type.text, s) for v, s in zip(main.returned, known.results(), strict=True)]
    found = []
    for number, arg in enumerate(main.args):
        sharding = known.sharding(arg)
        if sharding is None or sharding.is_fully_replicated or not arg.uses:
            continue
        alike = [s for text, s in results if text == arg.type.text]
        if len(alike) < 2 or not all(s is None or s.is_fully_replicated for s in alike):
            continue
        axes, parts = {a.name for d in sharding.dims for a in d.axes}, math.prod(d.factor for d in sharding.dims)
        if _bytes(arg) * (1 - 1 / parts) >= sum(sent.get(axis, 0.0) for axis in axes):
            continue  # that is what its gather sends
        whole = [DimSharding((), not d.axes) for d in sharding.dims]
        found.append(_Gathered(number, TensorSharding(sharding.mesh, whole)))
    return tuple(found)


def _cut_dimension(op: Op) -> int | None:
    """The dimension of a reshape's operand that it cuts in two, all others being as they were."""
    before, after = op.operands[0].type.shape, op.results[0].type.shape
    if len(after) != len(before) + 1:
        return None
    at = next((d for d, n in enumerate(before) if after[d] != n), len(before))
    return at if at < len(before) and after[at + 2 :] == before[at + 1 :] else None


class _End(NamedTuple):
    """A split dimension of an argument or result of @main."""

    value: Value
    is_result: bool
    number: int
    dim: int
    split: DimSharding

    @property
    def place(self) -> Place:
        return self.value.index, self.dim

    def __str__(self) -> str:
        return f"dimension {self.dim} of {'result' if self.is_result else 'argument'} {self.number}"


def preference(known: KnownShardings, sent: Mapping[str, float]) -> Preference | None:
    """What may be worth trying; None for most programs: where no axis over which bytes are `sent` is contested, where
    the largest class has its axes nearly everywhere already, or sends as much with them, or where somebody set
    priorities."""
    program, shardings = known.program, known.shardings
    main = program.main
    ends = [*_ends(main.args, map(known.sharding, main.args), False), *_ends(main.returned, known.results(), True)]
    places = Counter(axis.name for end in ends for axis in end.split.axes)
    axes = {axis for axis, count in places.items() if count > 1 and sent.get(axis)}
    rules = RuleCache()
    if not axes or any(end.split.priority for end in ends) or not meets(program, shardings, axes, rules):
        return None
    joined = correspondence_of(program, rules)
    classes: dict[str, dict[Place, str]] = {}  # those that have an axis at the boundary, with the first dimension there
    for end in ends:
        for axis in end.split.axes:
            classes.setdefault(axis.name, {}).setdefault(joined.find(end.place), str(end))
    sizes = _sizes(program, joined, {a: set(roots) for a, roots in classes.items() if len(roots) > 1})
    first = {axis: max(found, key=lambda root: found[root]) for axis, found in sizes.items()}
    waiting = [
        end for end in ends if any(first.get(a.name, r) != r for r in [joined.find(end.place)] for a in end.split.axes)
    ]
    lost = _lost(program, shardings, joined, first)
    wanted = [axis for axis, root in first.items() if axis in axes and lost[axis] > CONTESTED_SHARE * sizes[axis][root]]
    if not wanted:
        return None
    left = _left_to_sum(known, joined, {axis: first[axis] for axis in wanted}, rules)
    if all(SCATTERED_AND_GATHERED * left[axis] >= sent[axis] for axis in wanted):
        return None
    waits: tuple[set[tuple[int, int]], set[tuple[int, int]]] = set(), set()
    for end in waiting:
        waits[end.is_result].add((end.number, end.dim))
    told = tuple((a, classes[a][root]) for a, root in first.items())
    return Preference(told, frozenset(waits[0]), frozenset(waits[1]))


def _ends(values: Iterable[Value], shardings: Iterable[TensorSharding | None], is_result: bool) -> Iterator[_End]:
    for number, (value, sharding) in enumerate(zip(values, shardings, strict=True)):
        for d, split in enumerate(() if sharding is None else sharding.dims):
            if split.axes:
                yield _End(value, is_result, number, d, split)


def _bytes(value: Value) -> float:
    return value.type.size * item_bytes(value.type.dtype)


def _sizes(program: Program, joined: Correspondence, contested: dict[str, set[Place]]) -> dict[str, dict[Place, float]]:
    """By axis and class that wants it: bytes of all values that have a dimension of the class."""
    out = {axis: dict.fromkeys(roots, 0.0) for axis, roots in contested.items()}
    for value in program.values if contested else ():
        if value.type.is_tensor and value.type.shape:
            size, roots = _bytes(value), {joined.find((value.index, d)) for d in range(value.type.rank)}
            for found in out.values():
                for root in roots & found.keys():
                    found[root] += size
    return out


def _held(program: Program, shardings: Shardings, joined: Correspondence) -> set[tuple[str, Place]]:
    """Classes to which constraints inside the program give an axis, whatever waits at its boundary."""
    return {
        (axis.name, joined.find((result.index, d)))
        for op in program.ops() if op.name in SHARDING_ATTRIBUTE
        for result in op.results if (said := shardings.get(result)) is not None
        for d, dim in enumerate(said.dims) for axis in dim.axes
    }  # fmt: skip


def _lost(program: Program, shardings: Shardings, joined: Correspondence, first: dict[str, Place]) -> dict[str, float]:
    """By axis: bytes of the values with a dimension of the class that is to have it first, in which it splits another
    one that may have to wait: arguments of @main keep what they have, and constraints what they say."""
    out = dict.fromkeys(first, 0.0)
    held = _held(program, shardings, joined) if first else set()
    kept = {arg.index for arg in program.main.args}
    for value in program.values if first else ():
        sharding = shardings.get(value)
        if sharding is None or value.index in kept:
            continue
        roots = [joined.find((value.index, d)) for d in range(len(sharding.dims))]
        at = {axis.name: roots[d] for d, dim in enumerate(sharding.dims) for axis in dim.axes}
        for axis, root in first.items():
            if root in roots and at.get(axis, root) != root and (axis, at[axis]) not in held:
                out[axis] += _bytes(value)
    return out


def _left_to_sum(
    known: KnownShardings, joined: Correspondence, first: dict[str, Place], rules: RuleCache
) -> dict[str, float]:
    """By axis: bytes that a device sends, at least, to add up what operations leave that sum over dimensions of
    the class that is to have it: each sum is reduced and scattered. Loops of unknown length count once."""
    out = dict.fromkeys(first, 0.0)
    for op, times in _runs(known.program, known.program.main.body):
        rule = rules.rule_for(op)
        if rule is None or FactorType.REDUCTION not in rule.types:
            continue
        for axis, root in first.items():
            if _sums(rule, op, joined, root):
                out[axis] += times * sum(_scattered(r, known.shardings.get(r), axis) for r in op.results)
    return out


def _sums(rule: OpRule, op: Op, joined: Correspondence, root: Place) -> bool:
    return any(
        factors and rule.types[factors[0]] is FactorType.REDUCTION and joined.find((value.index, d)) == root
        for value, dims in zip(op.operands, rule.operands) for d, factors in enumerate(dims)
    )  # fmt: skip


def _scattered(value: Value, sharding: TensorSharding | None, axis: str) -> float:
    """Bytes that a device sends to reduce and scatter a value over an axis, which is split as it is over others."""
    if sharding is None:
        return 0.0
    others = math.prod(a.size for d in sharding.dims for a in d.axes if a.name != axis)
    return _bytes(value) / others * (1 - 1 / sharding.mesh.axis(axis).size)


def _runs(program: Program, block: Block, times: int = 1) -> Iterator[tuple[Op, int]]:
    """The operations of a block and of what it runs, with how often."""
    for op in block.ops:
        yield op, times
        if op.name == "func.call" and (callee := program.funcs.get(symbol(op.attrs["callee"]))) is not None:
            yield from _runs(program, callee.body, times)
        inside = times * (trip_count(op) or 1) if op.name == "stablehlo.while" else times
        for region in op.regions:
            yield from _runs(program, region, inside)
