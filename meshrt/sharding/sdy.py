"""Shardings as Shardy's `sdy.sharding` attributes, in text."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from meshrt import errors
from meshrt.sharding.common import parts_over
from meshrt.sharding.mesh import AxisType, BaseMesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import UNCONSTRAINED, PartitionSpec, axes_of
from propagation.errors import ModuleParseError
from propagation.sdy_text import AxisText, axis_text, dim_text, mesh_text, read_sharding, sharding_text

__all__ = ["mesh_to_sdy_text", "pinned_text", "spec_from_sdy", "spec_from_sdy_text", "to_sdy_text"]

_OPEN = dim_text((), is_open=True)


def _axis(name: Any) -> str:
    if not isinstance(name, str):
        raise errors.UnsupportedError(f"mesh axes in programs must be named by strings. Got {name!r}; rename the axis")
    return axis_text(name)


def mesh_to_sdy_text(mesh: BaseMesh) -> str:
    """The body of `sdy.mesh @name = ...`: `<["data"=4, "model"=2]>`.

    Raises:
      UnsupportedError: an axis is not named by a string.

    >>> meshrt.sharding.mesh_to_sdy_text(meshrt.sharding.AbstractMesh((4, 2), ("data", "model")))
    '<["data"=4, "model"=2]>'
    """
    for name in mesh.axis_names:
        _axis(name)
    return mesh_text((str(name), size) for name, size in mesh.shape_tuple)


def to_sdy_text(
    sharding: NamedSharding | PartitionSpec, ndim: int, mesh_name: str = "mesh", is_open: bool = False,
    mesh: BaseMesh | None = None,
) -> str:  # fmt: skip
    """`#sdy.sharding<@mesh, [{"data"}, {}]>` for a value of `ndim` dimensions; UNCONSTRAINED is the open `{?}`.

    With `is_open` all dimensions are open to more axes: `[{"data", ?}, {?}]`. A `mesh` of the same devices is the one
    that `mesh_name` stands for, if it is not the mesh of the sharding, whose axes then are axes of it or parts of some.

    Raises:
      RankMismatchError: the spec has more than `ndim` entries. UnsupportedError: an axis is not named by a string.

    >>> meshrt.sharding.to_sdy_text(meshrt.sharding.NamedSharding(meshrt.sharding.AbstractMesh((8,), ("x",)),
    ...     meshrt.P("x")), 2)
    '#sdy.sharding<@mesh, [{"x"}, {}]>'
    """
    spec = sharding.spec if isinstance(sharding, NamedSharding) else sharding
    texts: Callable[[Iterable[Any]], Iterable[str]] = lambda axes: map(_axis, axes)
    if mesh is not None and isinstance(sharding, NamedSharding) and mesh is not sharding.mesh.abstract_mesh:
        texts = functools.partial(_part_texts, sharding.mesh, mesh)
    dims = [dim_text(texts(axes_of(e)), is_open) if e is not UNCONSTRAINED else _OPEN for e in spec.padded(ndim)]
    unreduced = sorted(texts(spec.unreduced)) if spec.unreduced else ()
    return f"#sdy.sharding{sharding_text(mesh_name, dims, (), unreduced)}"


def _part_texts(of: BaseMesh, mesh: BaseMesh, axes: Iterable[Any]) -> list[str]:
    """Axes of one mesh as axes, or parts of axes, of another."""
    parts = parts_over(axes, of, mesh)
    return [_axis(name) if n == mesh.shape[name] else axis_text(str(name), pre, n) for name, pre, n in parts]


def pinned_text(aval: Any, mesh: BaseMesh, mesh_name: str, program: BaseMesh | None = None) -> str:
    """`<@mesh, [{"x"}, {}]>`: what the type of a value says of the Explicit axes of `mesh`, without the head.

    Where all axes are Explicit the dimensions are closed. Else they are open for the Auto ones, and Explicit axes that
    do not split the value are replicated. `program` is the mesh that `mesh_name` stands for, where it is another one of
    the same devices: a type over yet another mesh is written over the parts of its axes.
    """
    sharding, ndim = aval.explicit, aval.physical().ndim
    if program is not None and sharding is not None and program.shape_tuple != sharding.mesh.shape_tuple:
        return _pinned_over(sharding, ndim, program, mesh_name)
    spec = sharding.spec if sharding is not None else PartitionSpec()
    is_mixed = AxisType.Auto in mesh.axis_types
    entries = spec.padded(ndim)
    dims = [dim_text(map(_axis, axes_of(e)), is_open=is_mixed or e is UNCONSTRAINED) for e in entries]
    used = {*spec.axes, *spec.unreduced}
    if sharding is not None:  # of a region where other axes are Explicit
        used.update(a for a in mesh.explicit_axes if sharding.mesh._types[a] is not AxisType.Explicit)
    is_open = is_mixed or UNCONSTRAINED in entries
    rest = [_axis(a) for a in mesh.explicit_axes if a not in used] if is_open else ()
    unreduced = [a for a in spec.unreduced if mesh._types[a] is not AxisType.Manual]
    return sharding_text(mesh_name, dims, rest, sorted(map(_axis, unreduced)))


def _pinned_over(sharding: NamedSharding, ndim: int, program: BaseMesh, mesh_name: str) -> str:
    """What a type over one mesh says, over that of the program. Axes of mixed meshes stay open: which parts of the
    program's axes are Explicit there is nothing that a list of whole axes could say."""
    of, spec = sharding.mesh, sharding.spec
    is_open = AxisType.Auto in of.axis_types
    dims = [
        dim_text(_part_texts(of, program, axes_of(e)), is_open=is_open or e is UNCONSTRAINED) for e in spec.padded(ndim)
    ]
    unreduced = [a for a in spec.unreduced if of._types[a] is not AxisType.Manual]
    return sharding_text(mesh_name, dims, (), _part_texts(of, program, sorted(unreduced, key=str)))


def spec_from_sdy(dims: Iterable[tuple[Iterable[str], bool]], unreduced: Iterable[str] = ()) -> PartitionSpec:
    """The spec of dimension shardings `(axes, is_open)`; an open dimension without axes is UNCONSTRAINED.

    Raises:
      DuplicateAxisError: an axis splits a dimension and stands in `unreduced`.

    >>> meshrt.sharding.spec_from_sdy([(("data",), False), ((), True)])
    P('data', UNCONSTRAINED)
    """
    entries = []
    for axes, is_open in dims:
        axes = tuple(axes)
        entries.append(axes if axes else UNCONSTRAINED if is_open else None)
    return PartitionSpec(*entries, unreduced=frozenset(unreduced))


def spec_from_sdy_text(text: str) -> tuple[str, PartitionSpec]:
    """Mesh name and spec of `#sdy.sharding<@mesh, [{"x"}, {?}]>`.

    Raises:
      ShardingError: not such a text. UnsupportedError: a dimension is split over a part of an axis.

    >>> meshrt.sharding.spec_from_sdy_text('#sdy.sharding<@mesh, [{"x"}, {}]>')
    ('mesh', P('x', None))
    """
    try:
        found = read_sharding(text)
    except ModuleParseError as e:
        raise errors.ShardingError(f"not an sdy.sharding attribute: {e}") from None
    if not isinstance(found.mesh, str):
        raise errors.ShardingError(f"not an sdy.sharding attribute with the name of its mesh: {text!r}")
    dims = [(_names(dim.axes, text), dim.is_open) for dim in found.dims]
    return found.mesh, spec_from_sdy(dims, _names(found.unreduced, text))


def _names(axes: Iterable[AxisText], text: str) -> list[str]:
    for axis in axes:
        if axis.size is not None:
            raise errors.UnsupportedError(
                f"{text} splits over a part of axis {axis.name!r}, which a PartitionSpec cannot say; make the mesh "
                "with two axes in place of that one"
            )
    return [axis.name for axis in axes]
