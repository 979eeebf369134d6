"""Shardings as Shardy's `sdy.sharding` attributes, in text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from meshrt import errors
from meshrt.sharding.mesh import BaseMesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import UNCONSTRAINED, PartitionSpec, axes_of

__all__ = ["mesh_to_sdy_text", "spec_from_sdy", "spec_from_sdy_text", "to_sdy_text"]


def _quote(axis: Any) -> str:
    if not isinstance(axis, str):
        raise errors.UnsupportedError(f"mesh axes in programs must be named by strings. Got {axis!r}; rename the axis")
    escaped = "".join(
        c if c.isprintable() and c not in '"\\' else "".join(f"\\{b:02X}" for b in c.encode()) for c in axis
    )
    return f'"{escaped}"'


def mesh_to_sdy_text(mesh: BaseMesh) -> str:
    """The body of `sdy.mesh @name = ...`: `<["data"=4, "model"=2]>`."""
    return "<[" + ", ".join(f"{_quote(n)}={s}" for n, s in mesh.shape_tuple) + "]>"


def to_sdy_text(sharding: NamedSharding | PartitionSpec, ndim: int, mesh_name: str = "mesh") -> str:
    """`#sdy.sharding<@mesh, [{"data"}, {}]>` for a value of `ndim` dimensions; UNCONSTRAINED is the open `{?}`.

    Raises:
      RankMismatchError: the spec has more than `ndim` entries.
    """
    spec = sharding.spec if isinstance(sharding, NamedSharding) else sharding
    dims = []
    for entry in spec.padded(ndim):
        dims.append("{?}" if entry is UNCONSTRAINED else "{" + ", ".join(map(_quote, axes_of(entry))) + "}")
    unreduced = ""
    if spec.unreduced:
        unreduced = ", unreduced={" + ", ".join(sorted(map(_quote, spec.unreduced))) + "}"
    return f"#sdy.sharding<@{mesh_name}, [{', '.join(dims)}]{unreduced}>"


def spec_from_sdy(dims: Iterable[tuple[Iterable[str], bool]], unreduced: Iterable[str] = ()) -> PartitionSpec:
    """The spec of dimension shardings `(axes, is_open)`; an open dimension without axes is UNCONSTRAINED."""
    entries = []
    for axes, is_open in dims:
        axes = tuple(axes)
        entries.append(axes if axes else UNCONSTRAINED if is_open else None)
    return PartitionSpec(*entries, unreduced=frozenset(unreduced))


_TEXT = re.compile(
    r"\s*(?:#sdy\.sharding)?<\s*@(?P<mesh>[\w.$-]+|\"[^\"]*\")\s*,\s*\[(?P<dims>[^\]]*)\]"
    r"(?P<rest>(?:\s*,\s*(?:replicated|unreduced)\s*=\s*\{[^}]*\})*)\s*>\s*"
)
_DIM = re.compile(r"\s*\{(?P<axes>[^}]*)\}\s*(?:p\d+)?\s*(?:,|$)")
_AXIS = re.compile(r"\s*\"(?P<name>(?:[^\"\\]|\\[0-9A-Fa-f]{2})*)\"\s*(?P<sub>:\(\d+\)\d+)?\s*(?:,|$)")


def spec_from_sdy_text(text: str) -> tuple[str, PartitionSpec]:
    """Mesh name and spec of `#sdy.sharding<@mesh, [{"x"}, {?}]>`.

    Raises:
      ShardingError: not such a text. UnsupportedError: a dimension is split over a part of an axis.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise errors.ShardingError(f"not an sdy.sharding attribute: {text!r}")
    dims, rest, pos = [], match["dims"], 0
    while pos < len(rest) and rest[pos:].strip():
        dim = _DIM.match(rest, pos)
        if dim is None:
            raise errors.ShardingError(f"not a dimension sharding: {rest[pos:]!r} in {text!r}")
        body = dim["axes"].strip()
        is_open = body.endswith("?")
        dims.append((_axis_names(body.removesuffix("?").rstrip().removesuffix(","), text), is_open))
        pos = dim.end()
    unreduced = re.search(r"unreduced\s*=\s*\{([^}]*)\}", match["rest"])
    return match["mesh"].strip('"'), spec_from_sdy(dims, _axis_names(unreduced[1], text) if unreduced else ())


def _axis_names(body: str, text: str) -> list[str]:
    names, pos = [], 0
    while pos < len(body) and body[pos:].strip():
        axis = _AXIS.match(body, pos)
        if axis is None:
            raise errors.ShardingError(f"not a list of axes: {body!r} in {text!r}")
        if axis["sub"]:
            raise errors.UnsupportedError(
                f"{text} splits over a part of axis {axis['name']!r}, which a PartitionSpec cannot say; make the mesh "
                "with two axes in place of that one"
            )
        names.append(re.sub(rb"\\([0-9A-Fa-f]{2})", lambda m: bytes([int(m[1], 16)]), axis["name"].encode()).decode())
        pos = axis.end()
    return names
