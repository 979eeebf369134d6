"""Shardings of arguments by patterns of their names: a TOML file for `--annotations`, or texts for `--annotate`.

    mesh = "data=8,model=4"                     # optional: for modules that name none

    [annotations]
    "tokens" = ["data"]
    "state/params/*/w1" = ["", "model"]         # "" or []: whole
    "state/params/**" = [["data", "model"]]     # several axes, the major one first

Names are paths: `state['params'][0].w` is `state/params/0/w`. In a pattern `*` stands for any part of one name between
slashes, and `**` for any number of names. Of several patterns that fit a name the last one counts. Dimensions that a
list does not reach are whole.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from meshrt.errors import InspectError
from meshrt.inspect.files import read_toml
from meshrt.pipeline.names import path_of

__all__ = [
    "Annotations",
    "ArgumentAxes",
    "annotation_of",
    "argument_axes",
    "axes_text",
    "matches",
    "read_annotations",
]

ArgumentAxes = tuple[tuple[str, ...], ...]  # per dimension the axes that split it, the major one first


@dataclass(frozen=True, slots=True)
class Annotations:
    """Axes by pattern, in order; `mesh` is the text of a mesh, `source` the file that they are from, for messages."""

    axes: Mapping[str, ArgumentAxes] = field(default_factory=dict)
    mesh: str | None = None
    source: str = "--annotate"

    def and_(self, other: Annotations) -> Annotations:
        """Both; where they say different things of an argument, `other` counts."""
        rest = {k: v for k, v in self.axes.items() if k not in other.axes}
        return Annotations({**rest, **other.axes}, other.mesh or self.mesh, self.source if self.axes else other.source)


def axes_text(axes: ArgumentAxes | None) -> str:
    """`P("data", None, ("x", "y"))` without trailing Nones; `-` where nothing is said."""
    if axes is None:
        return "-"
    entries = ["None" if not d else f'"{d[0]}"' if len(d) == 1 else f"({', '.join(map(repr, d))})" for d in axes]
    while entries and entries[-1] == "None":
        entries.pop()
    return f"P({', '.join(entries)})".replace("'", '"')


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern fits a path.

    >>> matches("state/**/w", "state/params/0/w"), matches("state/*/w", "state/params/0/w")
    (True, False)
    """
    parts = path.split("/")
    ends = {0}  # how many of the parts what was read of the pattern may stand for
    for each in pattern.split("/"):
        if each == "**":
            ends = set(range(min(ends, default=len(parts) + 1), len(parts) + 1))
        else:  # a name that has brackets fits itself
            ends = {n + 1 for n in ends if n < len(parts) and (parts[n] == each or fnmatchcase(parts[n], each))}
    return len(parts) in ends


def annotation_of(text: str) -> Annotations:
    """`w1=,model` or `x=data+model`: a pattern, and per dimension its axes with `+` between them. InspectError if it is
    not of that form.

    >>> dict(annotation_of("params/*/w1=,data+model").axes)
    {'params/*/w1': ((), ('data', 'model'))}
    """
    pattern, sign, axes = text.partition("=")
    if not sign or not pattern:
        raise InspectError(f"annotation {text!r}: expected a pattern and axes, such as 'params/*/w1=,model'")
    return Annotations({pattern: tuple(tuple(a for a in dim.strip().split("+") if a) for dim in axes.split(","))})


def read_annotations(path: Path) -> Annotations:
    """The annotations of a file. InspectError for what is none."""
    data = read_toml(str(path), "a file of annotations, as docs/inspect.md has one")
    strange = sorted(set(data) - {"mesh", "annotations"})
    table = data.get("annotations", {})
    if strange or not isinstance(table, dict) or not isinstance(data.get("mesh", ""), str):
        what = f"unknown key {strange[0]!r}" if strange else "mesh is a text, annotations a table"
        raise InspectError(
            f'{path}: {what}; expected mesh = "data=8" and [annotations] with patterns and lists of axes'
        )
    return Annotations({name: _axes(path, name, dims) for name, dims in table.items()}, data.get("mesh"), str(path))


def _axes(path: Path, name: str, dims: object) -> ArgumentAxes:
    if isinstance(dims, list):
        listed = [[d] if isinstance(d, str) else d for d in dims]
        if all(isinstance(d, list) and all(isinstance(a, str) for a in d) for d in listed):
            return tuple(tuple(a for a in d if a) for d in listed)
    raise InspectError(f'{path}: {name!r} is a list of axes such as ["data", "", ["x", "y"]], got {dims!r}')


def argument_axes(
    annotations: Annotations, names: Sequence[str], shapes: Sequence[Sequence[int]], mesh: Mapping[str, int]
) -> list[ArgumentAxes | None]:
    """The axes of each argument; None where nothing is said of it.

    Raises:
      InspectError: a pattern that fits no argument, more dimensions than an argument has, an axis that the mesh does
        not have or that stands twice, a dimension that does not divide.
    """
    paths = [path_of(name) for name in names]
    found: list[ArgumentAxes | None] = [None] * len(names)
    for pattern, axes in annotations.axes.items():
        fitting = [i for i, path in enumerate(paths) if matches(pattern, path)]
        if not fitting:
            near = difflib.get_close_matches(pattern, paths, 3, 0.3) or paths[:3]
            raise InspectError(f"{annotations.source}: {pattern!r} fits no argument; there are {', '.join(near)}, ...")
        for i in fitting:
            found[i] = _checked(annotations.source, pattern, names[i], shapes[i], axes, mesh)
    return found


def _checked(
    source: str, pattern: str, name: str, shape: Sequence[int], axes: ArgumentAxes, mesh: Mapping[str, int]
) -> ArgumentAxes:
    where = f"{source}: {pattern!r} for {name} of shape {list(shape)}"
    if len(axes) > len(shape):
        raise InspectError(f"{where} has {len(axes)} dimensions")
    every = [a for dim in axes for a in dim]
    unknown = next((a for a in every if a not in mesh), None)
    if unknown is not None:
        raise InspectError(f"{where} names axis {unknown!r}; the mesh has {', '.join(mesh) or 'none'}")
    if len(set(every)) < len(every):
        raise InspectError(f"{where} names an axis twice")
    for size, dim in zip(shape, axes):
        parts = 1
        for axis in dim:
            parts *= mesh[axis]
        if size % parts:
            raise InspectError(f"{where}: size {size} does not divide by {parts} ({'+'.join(dim)})")
    return (*axes, *[()] * (len(shape) - len(axes)))
