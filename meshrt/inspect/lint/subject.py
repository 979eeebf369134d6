"""The program that lint looks at, and what becomes of it when an annotation is another."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import propagation
from collectives.analysis.constants import is_splat
from collectives.cost import item_bytes
from collectives.errors import CollectivesError
from collectives.module import PartitionedProgram
from collectives.topology import Topology
from meshrt.inspect.foreign import partition_foreign, propagate_foreign
from meshrt.pipeline.explain import Names
from meshrt.pipeline.names import argument_names, names_of, output_names
from propagation.annotation_sites import Edit, Said, annotations_of, origins
from propagation.errors import PropagationError
from propagation.locations import CallSites
from propagation.model import Mesh, TensorSharding
from propagation.ops import having
from propagation.program import Program, Value, read
from propagation.reopening import Reading

if TYPE_CHECKING:
    from meshrt.pipeline.lowered import Lowered

__all__ = ["Figures", "Subject", "Trial", "constants_of", "size_of", "subject_of_module", "subject_of_stage"]

# Seconds of trying changes after which the rest is not tried. Chosen: a 12-layer train step takes 1 s a try, and what
# costs most is tried first.
TRYING = 60.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one device and run: bytes sent by the busiest one, the most bytes held, constants that are written into the
    program among them, predicted seconds."""

    bytes: float
    peak: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Trial:
    """A program with other annotations."""

    partitioned: PartitionedProgram
    figures: Figures

    @property
    def propagated(self) -> propagation.Propagated:
        found = self.partitioned.propagated
        assert found is not None, "programs are partitioned from what was propagated"
        return found


class Subject:
    """A program, decided and partitioned, and what makes it anew.

    make         the program with its annotations edited
    fresh        the program as it was read
    given        the edit that is part of the program itself (annotations from outside)
    captured     how many of the first arguments are arrays that the function captured
    has_topology whether times are of a topology that somebody named
    place        what a source line of the program is shown as
    """

    def __init__(
        self,
        make: Callable[[Edit | None], PartitionedProgram],
        fresh: Callable[[], Program],
        names: tuple[Sequence[str], Sequence[str]],
        *,
        base: PartitionedProgram | None = None,
        given: Edit | None = None,
        has_topology: bool = False,
        captured: int = 0,
        place: Callable[[str | None], str | None] = lambda where: where,
        seconds: float = TRYING,
    ):
        self._make, self._fresh, self._given = make, fresh, given
        self.arg_names, self.result_names = names
        self.has_topology, self.captured, self.place = has_topology, captured, place
        self.base = _trial(make(None) if base is None else base)
        self._known: dict[Any, Trial | None] = {}
        self._until = time.monotonic() + seconds

    @property
    def propagated(self) -> propagation.Propagated:
        return self.base.propagated

    @property
    def program(self) -> Program:
        return self.propagated.program

    @property
    def mesh(self) -> Mesh:
        return self.base.partitioned.mesh

    @cached_property
    def original(self) -> Program:
        """The program as it was read: its values have the numbers that edits name."""
        return self._fresh()

    @cached_property
    def said(self) -> list[Said]:
        """Every annotation of the program, in its order."""
        return annotations_of(self.original, self._given)

    def written_at(self, said: Said) -> str | None:
        """Where an annotation was written; of one that a helper writes for several callers, `train.py:31 through
        helpers.py:5`."""
        where, caller = self.place(said.where), self._sites.caller(said.lines)
        return where if caller is None else f"{self.place(caller)} through {where}"

    @cached_property
    def _sites(self) -> CallSites:
        return CallSites(said.lines for said in self.said)

    @cached_property
    def own_mesh(self) -> Mesh:
        """The mesh that the program's annotations name (that of the partitioned program may be finer)."""
        named = [s.sharding.mesh for s in self.said] + [m for m in self.original.meshes.values() if m.axes]
        return named[0] if named else self.mesh

    @cached_property
    def names(self) -> Names:
        return Names(self.propagated, self.arg_names, self.result_names)

    def origins(self, value: Value, dim: int) -> list[Said]:
        """The annotations from which the axes of a dimension came."""
        return [s for s, _ in origins(self.propagated, value, dim, self.said)]

    def tried(self, key: Any, edit: Edit) -> Trial | None:
        """The program after an edit, made once for each `key`; None if it cannot be made, or the time is up."""
        if key not in self._known:
            if time.monotonic() > self._until:
                return None
            try:
                self._known[key] = _trial(self._make(edit))
            except (PropagationError, CollectivesError):
                self._known[key] = None
        return self._known[key]


def _trial(made: PartitionedProgram) -> Trial:
    assert made.propagated is not None, "programs are partitioned from what was propagated"
    written = sum(size_of(value) for value in constants_of(made.propagated.program))
    return Trial(made, Figures(made.plan.bytes, made.memory.peak + written, made.timing.seconds))


def constants_of(program: Program) -> list[Value]:
    """The arrays that are written into a program element by element; each device holds them whole."""
    ops = (op for op in program.ops() if op.name in _CONSTANTS and op.has_attr("value"))
    return [op.results[0] for op in ops if not is_splat(op.attrs["value"])]


_CONSTANTS = having("constant")


def subject_of_stage(lowered: Lowered, base: PartitionedProgram, topology: Topology | None = None) -> Subject:
    """That of a stage of ours."""
    # Start-up time: whoever inspects a file has no stages.
    from meshrt.pipeline.partitioned import options_for, partition
    from meshrt.pipeline.propagated import propagate

    options = options_for(lowered, {} if topology is None else {"topology": topology})

    def make(edit: Edit | None) -> PartitionedProgram:
        return partition(propagate(lowered.module, lowered.request, "meshrt", edit)[0], options)

    captured = len(lowered.module.consts)
    return Subject(
        make, lowered.module.program, names_of(lowered), base=base, has_topology=topology is not None, captured=captured
    )


def subject_of_module(
    module: Any,
    base: PartitionedProgram | None = None,
    topology: Topology | None = None,
    *,
    given: Edit | None = None,
    file: str | None = None,
    names: tuple[Sequence[str], Sequence[str]] | None = None,
    place: Callable[[str | None], str | None] = lambda where: where,
    how: Mapping[str, Any] = MappingProxyType({}),
) -> Subject:
    """That of a module as text, bytecode or `ir.Module`; `given` is what `propagation.run` takes as `annotate`,
    `names` are those of arguments and results if they are known better than it says them, `how` are options that it is
    partitioned with."""

    if base is None:
        base = partition_foreign(propagate_foreign(module, given, file), topology, **how)
    assert base.propagated is not None, "programs are partitioned from what was propagated"
    reading = Reading.of(base.propagated)

    def make(edit: Edit | None) -> PartitionedProgram:
        return partition_foreign(reading.run(module, edit, file=file), topology, **how)

    if names is None:
        names = argument_names(base.propagated), output_names(base.propagated)
    return Subject(
        make,
        lambda: read(module, file),
        names,
        base=base,
        given=reading.annotate,
        has_topology=topology is not None,
        place=place,
    )


def size_of(value: Value, sharding: TensorSharding | None = None) -> float:
    """Bytes of a tensor, or of a device's part of it; 0 for what has no size."""
    if not value.type.is_tensor or not value.type.is_static:
        return 0.0
    size = item_bytes(value.type.dtype)
    for n in value.type.shape if sharding is None else sharding.shard_shape(value.type.shape):
        size *= n
    return size
