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

Arguments and results keep their shardings. Programs in which somebody set priorities keep them: nothing is tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from propagation.attributes import symbol
from propagation.contested import meets
from propagation.correspondence import Correspondence, Place, correspondence_of
from propagation.model import DimSharding, Mesh, TensorSharding
from propagation.program import Op, Program, Value, source
from propagation.shardings import Shardings

from .annotations import KnownShardings
from .cost import item_bytes
from .errors import CollectivesError
from .heuristics import ALTERNATIVE_SHARE, CONTESTED_SHARE
from .module import PartitionedProgram, partition_program
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
    for wanted in preferences(known) if first.plan.entries else ():
        wanted = wanted.beside(taken)
        again = decided_again(known, wanted.annotate)
        if again is None:
            continue
        again.gathered = {g.number: g.sharding for g in wanted.gathered}
        try:
            other = partition_program(again.program, again, given, options)
        except CollectivesError as e:  # it need not be possible with these layouts, too
            rows.append(Alternative(str(wanted), False, None, None, None, str(e)))
            continue
        weigh = lambda p: p.plan.bytes if given is None else p.plan.seconds
        cheaper = weigh(other) < ALTERNATIVE_SHARE * weigh(best)
        takes = cheaper and other.memory.peak <= (1 + options.memory_growth) * first.memory.peak
        rows = [replace(row, taken=False) for row in rows] if takes else rows
        rows.append(_row(str(wanted), other, takes, other.memory.peak if cheaper else None))
        if takes:
            best, taken = other, wanted
    if rows:
        compared = any(row.peak is not None for row in rows)
        head = _row(FIRST, first, best is first, first.memory.peak if compared else None)
        best.plan = replace(best.plan, alternatives=(head, *rows))
    return best


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
    """

    first: tuple[tuple[str, str], ...] = ()
    waits: frozenset[tuple[int, int]] = frozenset()
    results_wait: frozenset[tuple[int, int]] = frozenset()
    kept: tuple[_Kept, ...] = ()
    gathered: tuple[_Gathered, ...] = ()

    def __str__(self) -> str:
        reshapes = [f"dimension {k.at} of the reshape at {k.where or '?'} whole" for k in self.kept]
        arguments = [f"argument {g.number} gathered before it is used" for g in self.gathered]
        return "; ".join([*(f"{axis} first to {place}" for axis, place in self.first), *reshapes, *arguments])

    def beside(self, other: Preference) -> Preference:
        """Both."""
        return Preference(
            (*other.first, *self.first), self.waits | other.waits, self.results_wait | other.results_wait,
            (*other.kept, *self.kept), (*other.gathered, *self.gathered),
        )  # fmt: skip

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


def preferences(known: KnownShardings) -> Iterator[Preference]:
    """What may be worth trying, one after the other; nothing for most programs."""
    kept = _walked_through(known)
    if kept:
        yield Preference(kept=kept)
    gathered = _wanted_whole(known)
    if gathered:
        yield Preference(gathered=gathered)
    found = preference(known)
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


def _wanted_whole(known: KnownShardings) -> tuple[_Gathered, ...]:
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


def preference(known: KnownShardings) -> Preference | None:
    """What may be worth trying; None for most programs: where no axis is contested, where the largest class has its
    axes nearly everywhere already, or where somebody set priorities."""
    program, shardings = known.program, known.shardings
    main = program.main
    ends = [*_ends(main.args, map(known.sharding, main.args), False), *_ends(main.returned, known.results(), True)]
    axes = {axis.name for end in ends for axis in end.split.axes}
    if not axes or any(end.split.priority for end in ends) or not meets(program, shardings, axes):
        return None
    joined = correspondence_of(program)
    classes: dict[str, dict[Place, str]] = {}  # those that have an axis at the boundary, with the first dimension there
    for end in ends:
        for axis in end.split.axes:
            classes.setdefault(axis.name, {}).setdefault(joined.find(end.place), str(end))
    sizes = _sizes(program, shardings, joined, {a: set(roots) for a, roots in classes.items() if len(roots) > 1})
    first = {axis: max(found, key=lambda root: found[root].bytes) for axis, found in sizes.items()}
    if not any(sizes[a][root].lost > CONTESTED_SHARE * sizes[a][root].bytes for a, root in first.items()):
        return None
    waits: tuple[set[tuple[int, int]], set[tuple[int, int]]] = set(), set()
    for end in ends:
        if any(first.get(axis.name, root) != root for root in [joined.find(end.place)] for axis in end.split.axes):
            waits[end.is_result].add((end.number, end.dim))
    places = tuple((a, classes[a][root]) for a, root in first.items())
    return Preference(places, frozenset(waits[0]), frozenset(waits[1]))


def _ends(values: Iterable[Value], shardings: Iterable[TensorSharding | None], is_result: bool) -> Iterator[_End]:
    for number, (value, sharding) in enumerate(zip(values, shardings, strict=True)):
        for d, split in enumerate(() if sharding is None else sharding.dims):
            if split.axes:
                yield _End(value, is_result, number, d, split)


@dataclass(slots=True)
class _Size:
    """Of a class that wants an axis: bytes of all values that have a dimension of it, and of those among them in which
    the axis splits another dimension."""

    bytes: float = 0.0
    lost: float = 0.0


def _sizes(
    program: Program, shardings: Shardings, joined: Correspondence, contested: dict[str, set[Place]]
) -> dict[str, dict[Place, _Size]]:
    """By axis and class."""
    out = {axis: {root: _Size() for root in roots} for axis, roots in contested.items()}
    for value in program.values if contested else ():
        if not value.type.is_tensor or not value.type.shape:
            continue
        size = value.type.size * item_bytes(value.type.dtype)
        roots = [joined.find((value.index, d)) for d in range(value.type.rank)]
        sharding = shardings.get(value)
        at = {} if sharding is None else {axis.name: d for d, dim in enumerate(sharding.dims) for axis in dim.axes}
        for axis, found in out.items():
            for d, root in enumerate(roots):
                if root in found:
                    found[root].bytes += size
                    found[root].lost += size if at.get(axis, d) != d else 0.0
    return out
