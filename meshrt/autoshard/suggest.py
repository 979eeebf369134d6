"""Shardings for the arguments of a program, found from what it computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from collectives.errors import TopologyError
from collectives.heuristics import USABLE_MEMORY_SHARE
from collectives.topology import Topology, load
from meshrt.autoshard.figures import Figures
from meshrt.autoshard.judges import Judges
from meshrt.autoshard.layouts import Argument, decisions_of, pattern_of
from meshrt.autoshard.search import Found, Progress, Space, search
from meshrt.errors import InspectError
from meshrt.inspect.annotations import ArgumentAxes
from meshrt.inspect.files import toml_text
from meshrt.pipeline.names import path_of
from propagation.model import Mesh

__all__ = ["Row", "Suggestion", "suggest"]


@dataclass(frozen=True, slots=True)
class Row:
    """Arguments of one pattern that get the same axes: how many, shape and element type of each, the axes that they
    have (None: nothing is said) and those that are suggested."""

    pattern: str
    count: int
    type: str
    now: ArgumentAxes | None
    suggested: ArgumentAxes


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What a search found. `now` are the figures of the program with the axes that its arguments have, `replicated`
    those of one in which each device has everything, `suggested` those of the best layout; `fits` says whether that one
    holds no more than `memory` bytes (None: no limit). `judged` layouts were looked at in `seconds`; the search ended
    by itself if it `is_complete`."""

    name: str
    mesh: Mapping[str, int]
    topology: str
    memory: float | None
    rows: tuple[Row, ...]
    now: Figures
    replicated: Figures
    suggested: Figures
    fits: bool
    judged: int
    seconds: float
    is_complete: bool

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON values, what they hold included."""
        return asdict(self)

    def as_toml(self) -> str:
        """The file that `meshrt inspect --annotations` reads."""
        lines = [f"# found by meshrt suggest for {self.topology}", "mesh = " + toml_text(mesh_text(self.mesh)), ""]
        lines.append("[annotations]")
        for row in {r.pattern: r for r in self.rows}.values():  # rows of one pattern differ in types only
            dims = [d[0] if len(d) == 1 else list(d) or "" for d in row.suggested]
            lines.append(f"{toml_text(row.pattern)} = {toml_text(dims)}")
        return "\n".join(lines) + "\n"


def laid(topology: str, mesh: Mapping[str, int]) -> Topology:
    """The topology with a mesh laid over it. InspectError if there is none, or if it has not as many
    devices."""
    try:
        return load(topology).on(Mesh("mesh", mesh.items()))
    except TopologyError as e:
        raise InspectError(str(e)) from None


def mesh_text(mesh: Mapping[str, int]) -> str:
    """`data=8,model=4`"""
    return ",".join(f"{name}={size}" for name, size in mesh.items())


def suggest(
    name: str,
    module: str | bytes,
    mesh: Mapping[str, int],
    topology: str,
    *,
    names: Sequence[str] | None = None,
    memory: float | None = None,
    budget: float = 60.0,
    count: int | None = None,
    progress: Progress | None = None,
) -> Suggestion:
    """The layout of a module's arguments over `mesh` that is found within `budget` seconds.

    Args:
      name: what the result calls the program.
      module: StableHLO, as text or bytecode.
      mesh: axis name -> size.
      topology: a name (`v5e:4x4`) or a file, with as many devices as the mesh.
      names: those of the arguments (default: the module's own).
      memory: bytes that a device may hold, by default 92 % of what the topology says that it has.
      count: how many processes judge layouts; by default one for each core, up to a limit.
      progress: is told how far the search is.

    Raises:
      InspectError: the module cannot be read; no such topology, or one that does not have the devices of the mesh.

    >>> mesh, text = {"x": 4}, meshrt.jit(jnp.sin).lower(jnp.ones(8)).as_text()
    >>> suggest("sin", text, mesh, "v5e:2x2", budget=10.0).as_toml()  # doctest: +SKIP
    """
    machine = laid(topology, mesh)
    if memory is None and machine.memory is not None:
        memory = machine.memory * USABLE_MEMORY_SHARE
    with Judges(name, module, topology, budget * 2, count) as judges:
        subject = judges.subject
        arguments = subject.arguments if names is None else subject.named(names)
        space = Space(arguments, tuple(decisions_of(subject.classes, arguments)), mesh, memory)
        is_said = subject.mesh is not None and dict(subject.mesh) == dict(mesh)
        nothing: tuple[ArgumentAxes, ...] = tuple(((),) * len(a.shape) for a in arguments)
        asked = judges.ask(mesh, [None] * len(arguments) if is_said else nothing)
        whole = judges.ask(mesh, nothing)
        found = search(space, judges, budget, progress)
        now = asked.result()
        said = subject.axes if is_said else (None,) * len(arguments)
        return _made(name, topology, space, found, now, whole.result(), said)


def _made(
    name: str, topology: str, space: Space, found: Found, now: Figures, whole: Figures,
    said: Sequence[ArgumentAxes | None],
) -> Suggestion:  # fmt: skip
    axes, figures = found.best.axes, found.best.figures
    present = tuple(a for a in said if a is not None)
    if len(present) == len(said) and space.rank(now) < space.rank(figures):
        axes, figures = present, now  # what the arguments have is a candidate too: no search may end with worse
    return Suggestion(
        name, dict(space.mesh), topology, space.memory, tuple(_rows(space.arguments, said, axes)), now, whole,
        figures, space.fits(figures), len(found.judged), found.seconds, found.is_complete,
    )  # fmt: skip


def _rows(
    arguments: Sequence[Argument], now: Sequence[ArgumentAxes | None], suggested: Sequence[ArgumentAxes]
) -> list[Row]:
    """Arguments of equal patterns in one row if the same is said of them; patterns by which others would be meant too
    are written out."""
    together: dict[tuple[Any, ...], list[int]] = {}
    for i, argument in enumerate(arguments):
        key = (pattern_of(argument.name), argument.shape, argument.dtype, now[i], suggested[i])
        together.setdefault(key, []).append(i)
    clear: dict[str, set[ArgumentAxes]] = {}
    for pattern, *_, axes in together:
        clear.setdefault(pattern, set()).add(axes)
    rows = []
    for (pattern, shape, dtype, before, after), members in together.items():
        kind = f"{dtype}[{','.join(map(str, shape))}]"
        if len(clear[pattern]) == 1:
            rows.append(Row(pattern, len(members), kind, before, after))
        else:
            rows += [Row(path_of(arguments[i].name), 1, kind, before, after) for i in members]
    return rows
