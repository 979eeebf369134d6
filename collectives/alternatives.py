"""Whole alternatives: another propagation of the same program, compared with the first one by what it sends.

Propagation gives an axis that two dimensions want to the one that it visited first. Where weights are distributed over
the devices that share a batch, and nothing constrains the activations, that may be the weights' embedding dimension:
activations are then split by features, and every layer exchanges them, where a batch-first layout only gathers
weights. No single choice shows that; so a program with such an axis is propagated a second time, in which each
contested axis goes first to the class of dimensions (`propagation.correspondence`) whose tensors hold most bytes:
all that arguments and results say of it for other classes waits until that one is everywhere. Both are
partitioned, and the one that sends less is taken.

Arguments and results keep their shardings. Programs in which somebody set priorities keep them: nothing is tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from propagation.contested import meets
from propagation.correspondence import Correspondence, Place, correspondence_of
from propagation.model import DimSharding, TensorSharding
from propagation.program import Program, Value
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

__all__ = ["Preference", "cheapest", "preference"]

FIRST = "layouts as they were propagated"


def cheapest(known: KnownShardings, given: Topology | None, options: Options) -> PartitionedProgram:
    """The program of `known`, or of its whole alternative, whichever sends less (takes less time, with a topology)."""
    first = partition_program(known.program, known, given, options)
    wanted = preference(known) if first.plan.entries else None
    again = None if wanted is None else decided_again(known, wanted.annotate)
    if wanted is None or again is None:
        return first
    try:
        other = partition_program(again.program, again, given, options)
    except CollectivesError as e:  # it need not be possible with these layouts, too
        first.plan = replace(
            first.plan,
            alternatives=(_row(FIRST, first, True), Alternative(str(wanted), False, None, None, None, str(e))),
        )
        return first
    weigh = lambda p: p.plan.bytes if given is None else p.plan.seconds
    cheaper = weigh(other) < ALTERNATIVE_SHARE * weigh(first)
    peaks = (first.memory.peak, other.memory.peak) if cheaper else (None, None)
    takes = cheaper and other.memory.peak <= (1 + options.memory_growth) * first.memory.peak
    taken = other if takes else first
    rows = _row(FIRST, first, not takes, peaks[0]), _row(str(wanted), other, takes, peaks[1])
    taken.plan = replace(taken.plan, alternatives=rows)
    return taken


def _row(what: str, made: PartitionedProgram, taken: bool, peak: float | None = None) -> Alternative:
    return Alternative(what, taken, made.plan.bytes, made.plan.seconds, peak)


@dataclass(frozen=True, slots=True)
class Preference:
    """Which dimensions get contested axes first.

    first   per axis, a place that they have at the boundary: `x: dimension 0 of argument 3`
    waits   dimensions of arguments, and of results of @main, whose axes come after those: (number, dimension)
    """

    first: dict[str, str]
    waits: frozenset[tuple[int, int]]
    results_wait: frozenset[tuple[int, int]]

    def __str__(self) -> str:
        return "; ".join(f"{axis} first to {place}" for axis, place in self.first.items())

    def annotate(self, program: Program, shardings: Shardings) -> None:
        """Sets the priorities, before anything is propagated."""
        main = program.main
        for i, arg in enumerate(main.args):
            shardings.set(arg, _waiting(shardings.get(arg), {d for number, d in self.waits if number == i}))
        declared = shardings.results[main]
        for i, said in enumerate(declared):
            declared[i] = _waiting(said, {d for number, d in self.results_wait if number == i})


def _waiting(sharding: TensorSharding | None, dims: set[int]) -> TensorSharding | None:
    if sharding is None or not dims:
        return sharding
    return sharding.with_dims(
        [DimSharding(d.axes, d.is_open, 1) if i in dims and d.axes else d for i, d in enumerate(sharding.dims)]
    )


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
    return Preference({a: classes[a][root] for a, root in first.items()}, frozenset(waits[0]), frozenset(waits[1]))


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
