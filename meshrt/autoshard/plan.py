"""Which mesh is best: a program over every way to lay axes over devices, on one topology or on several sizes of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from collectives.errors import TopologyError
from collectives.heuristics import USABLE_MEMORY_SHARE
from collectives.topology import load
from meshrt.autoshard.compiled import CompilerFigures
from meshrt.autoshard.figures import Figures, impossible
from meshrt.autoshard.judges import Judges
from meshrt.autoshard.layouts import decisions_of
from meshrt.autoshard.search import Space, search
from meshrt.autoshard.suggest import laid
from meshrt.autoshard.target import TargetProgram
from meshrt.errors import InspectError, TargetError, counted

__all__ = ["MeshRow", "Plan", "mesh_splits", "plan_meshes", "shape_of", "sized"]


@dataclass(frozen=True, slots=True)
class MeshRow:
    """One mesh on one topology: the figures of the program as it is annotated, and if a search was asked for, of the
    best layout that it found. `fits` says whether a device holds no more than it may; None where no figure is.
    `compiled` is what the hardware's compiler says of the program as it is annotated, where it was asked."""

    mesh: Mapping[str, int]
    topology: str
    figures: Figures
    found: Figures | None
    fits: bool | None
    compiled: CompilerFigures | None = None

    @property
    def best(self) -> Figures:
        """The figures of what was found, else of what is annotated."""
        return self.figures if self.found is None else self.found

    @property
    def devices(self) -> int:
        """How many devices the mesh has."""
        return math.prod(self.mesh.values())


@dataclass(frozen=True, slots=True)
class Plan:
    """All meshes, the best first: those that fit before those that do not, the faster ones before the slower ones."""

    name: str
    memory: float | None
    rows: tuple[MeshRow, ...]

    def best_by_size(self) -> list[MeshRow]:
        """The best mesh of each number of devices, in the order of these."""
        best: dict[int, MeshRow] = {}
        for row in self.rows:
            best.setdefault(row.devices, row)
        return [best[n] for n in sorted(best)]

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON values, what they hold included."""
        return asdict(self)


def mesh_splits(devices: int, axes: Sequence[str]) -> list[dict[str, int]]:
    """Every way to give the axes sizes whose product is `devices`.

    >>> mesh_splits(4, ["x", "y"])
    [{'x': 1, 'y': 4}, {'x': 2, 'y': 2}, {'x': 4, 'y': 1}]
    """
    return [dict(zip(axes, sizes)) for sizes in _factors(devices, len(axes))]


def _factors(n: int, count: int) -> Iterator[tuple[int, ...]]:
    if count == 1:
        yield (n,)
        return
    for first in (d for d in range(1, n + 1) if n % d == 0):
        for rest in _factors(n // first, count - 1):
            yield (first, *rest)


def shape_of(topology: str) -> tuple[int, ...]:
    """The sizes of a topology; none if only the hardware was named. InspectError if there is no such topology."""
    try:
        return load(topology).shape
    except TopologyError as e:
        raise InspectError(str(e)) from None


def sized(topology: str, devices: int) -> str:
    """The topology of that name with as many devices, as nearly square and on as few hosts as it is made: `v5e` and 16
    give `v5e:4x4`, `h100` and 12 `h100:6x2`.

    Raises:
      InspectError: there is no such topology, or it is not made in this size.

    >>> sized("v5e", 16), sized("h100", 12)
    ('v5e:4x4', 'h100:6x2')
    """
    base = topology.partition(":")[0] if not topology.endswith(".toml") else topology
    shape_of(base)
    network = load(base).network
    shape = (devices,) if network is None else network.shape_for(devices)
    if shape is None:
        assert network is not None
        largest = "x".join(map(str, network.limits))
        raise InspectError(f"{base} is not made with {counted(devices, 'device')}, but in shapes up to {largest}")
    return f"{base}:{'x'.join(map(str, shape))}"


def plan_meshes(
    name: str,
    read: Callable[[Mapping[str, int]], TargetProgram],
    meshes: Sequence[tuple[Mapping[str, int], str]],
    *,
    memory: float | None = None,
    budget: float = 0.0,
    count: int | None = None,
    progress: Callable[[int, str], None] | None = None,
    compiled: Callable[[Mapping[str, int], str], CompilerFigures] | None = None,
) -> Plan:
    """The figures of a program over each of `meshes`, (axes, topology) pairs; `read` gives it over a mesh.

    With a `budget` the best shardings of its arguments are searched for as well, for so many seconds each. `compiled`
    asks the hardware's compiler what it makes of the program as it is annotated. A mesh that the program or the
    hardware does not take is a row that says why. `progress` is told the number of meshes done and the next one.

    `memory` is what a device may hold, in bytes, by default 92 % of what the topology says that it has.

    Raises:
      TargetError: `read` finds no program.
    """
    rows = []
    for number, (mesh, topology) in enumerate(meshes):
        if progress is not None:
            progress(number, ",".join(f"{n}={s}" for n, s in mesh.items()))
        row = _row(read, mesh, topology, memory, budget, count)
        if compiled is not None and row.best.why is None:
            row = _with_compiler(row, compiled(mesh, topology), _limit(topology, mesh, memory))
        rows.append(row)
    return Plan(name, memory, tuple(sorted(rows, key=_order)))


def _order(row: MeshRow) -> tuple[int, float]:
    if row.best.why is not None:
        return 2, 0.0
    return (1, row.best.peak) if row.fits is False else (0, row.best.seconds)


def _limit(topology: str, mesh: Mapping[str, int], memory: float | None) -> float | None:
    """Bytes that a device may hold: those that were asked for, else most of what it has. None where that is unknown."""
    machine = laid(topology, mesh)
    if memory is None and machine.memory is not None:
        return machine.memory * USABLE_MEMORY_SHARE
    return memory


def _with_compiler(row: MeshRow, compiled: CompilerFigures, limit: float | None) -> MeshRow:
    """A row with the compiler's figures, which say whether the program as it is annotated fits."""
    if row.found is not None:
        return replace(row, compiled=compiled)
    fits = compiled.why is None and (limit is None or compiled.peak <= limit)
    return replace(row, compiled=compiled, fits=fits)


def _row(
    read: Callable[[Mapping[str, int]], TargetProgram], mesh: Mapping[str, int], topology: str, memory: float | None,
    budget: float, count: int | None,
) -> MeshRow:  # fmt: skip
    try:
        limit = _limit(topology, mesh, memory)
        program = read(mesh)
        with Judges(program.name, program.module, topology, 2 * budget, count if budget else 1) as judges:
            subject = judges.subject
            figures = judges.ask(mesh, [None] * len(subject.arguments)).result()
            found = None
            if budget:
                arguments = subject.arguments if program.names is None else subject.named(program.names)
                space = Space(arguments, tuple(decisions_of(subject.classes, arguments)), mesh, limit)
                found = search(space, judges, budget).best.figures
                if figures.why is None and space.rank(figures) < space.rank(found):
                    found = figures
    except TargetError:  # nor does any other mesh help
        raise
    except InspectError as e:
        return MeshRow(dict(mesh), topology, impossible(str(e)), None, None)
    best = figures if found is None else found
    fits = None if best.why is not None else limit is None or best.peak <= limit
    return MeshRow(dict(mesh), topology, figures, found, fits)
