"""What a user may write for a mesh, a sharding, a shape or an element type, as the values that the planner works with.

>>> mesh = as_mesh("a=4,b=2")
>>> as_sharding('[{"a"}, {}]', mesh) is as_sharding(("a", None), mesh)
True
>>> as_element_type("float32"), as_element_type("bf16")
('f32', 'bf16')
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from propagation.annotations import sharding_on
from propagation.errors import ModuleParseError, PropagationError
from propagation.model import AxisRef, DimSharding, Mesh, TensorSharding
from propagation.sdy_text import read_mesh, read_sharding

from .cost import ITEM_BITS
from .errors import ReshardError, UnsupportedShardingError

__all__ = ["as_element_type", "as_mesh", "as_shape", "as_sharding"]

_WAYS = 'write a=4,b=2 or <["a"=4, "b"=2]>, or give a mapping of axis names to sizes'


def as_mesh(mesh: Mesh | str | Mapping[str, int] | Iterable[tuple[str, int]]) -> Mesh:
    """A mesh from text, or from names and sizes of its axes, major to minor.

    Text is `a=4,b=2`, or MLIR's `<["a"=4, "b"=2]>`, where `, device_ids=[...]` may follow the axes. Raises
    `UnsupportedShardingError` for what is no mesh.

    >>> import collectives
    >>> collectives.as_mesh("a=4,b=2")
    Mesh(name='mesh', axes=(('a', 4), ('b', 2)), device_ids=None)
    """
    if isinstance(mesh, Mesh):
        return mesh
    try:
        if isinstance(mesh, str):
            return _mesh_of_text(mesh)
        pairs = list(mesh.items() if isinstance(mesh, Mapping) else mesh)
        if all(isinstance(p, Sequence) and len(p) == 2 and isinstance(p[0], str) for p in pairs):
            return Mesh("mesh", [(name, _index(size)) for name, size in pairs])
    except PropagationError as e:
        raise UnsupportedShardingError(str(e)) from None
    except TypeError:
        pass
    raise UnsupportedShardingError(f"{mesh!r} is no mesh; {_WAYS}")


def _mesh_of_text(text: str) -> Mesh:
    """`a=4,b=2` is the inside of what the dialect writes."""
    inside = text.strip()
    if not inside.endswith(">"):
        inside = f"<{inside}>" if "[" in inside else f"<[{inside}]>"
    try:
        return Mesh("mesh", *read_mesh(inside))
    except ModuleParseError:
        raise UnsupportedShardingError(f"{text!r} is no mesh; {_WAYS}") from None


def as_sharding(sharding: TensorSharding | str | Iterable[Any], mesh: Mesh) -> TensorSharding:
    """A sharding over `mesh` from text, or from one entry per dimension.

    Text is that of the `sdy` dialect, with the mesh (`#sdy.sharding<@mesh, [{"a"}, {}]>`) or without it
    (`[{"a", "b":(1)2}, {}], unreduced={"c"}`). An entry is None, the name of an axis or a tuple of names, as in a
    `PartitionSpec`, which may itself be given. A `TensorSharding` keeps its own mesh, which must have the axes of
    `mesh` and may have its devices in another order. Raises `UnsupportedShardingError` for what is no sharding, and for
    axes that the mesh lacks or that are used twice.

    >>> import collectives
    >>> mesh = collectives.as_mesh("a=4,b=2")
    >>> collectives.as_sharding((("a",), None), mesh).to_text()
    '#sdy.sharding<@mesh, [{"a"}, {}]>'
    """
    try:
        if isinstance(sharding, TensorSharding):
            found = _on(sharding, mesh)
        elif isinstance(sharding, str):
            found = _sharding_of_text(sharding, mesh)
        else:
            found = _sharding_of_entries(sharding, mesh)
        return found.check()
    except PropagationError as e:
        raise UnsupportedShardingError(str(e)) from None


def _on(sharding: TensorSharding, mesh: Mesh) -> TensorSharding:
    if sharding.mesh.is_empty:
        return TensorSharding(mesh, sharding.dims, sharding.replicated, sharding.unreduced, sharding.reduction)
    if sharding.mesh.axes != mesh.axes:
        raise UnsupportedShardingError(
            f"the sharding {sharding.to_text()} is over mesh {sharding.mesh.to_text()}, the tensor over "
            f"{mesh.to_text()}; both need the same axes in the same order (the devices may be in another)"
        )
    return sharding


def _sharding_of_text(text: str, mesh: Mesh) -> TensorSharding:
    try:
        found = read_sharding(text)
    except ModuleParseError:
        raise UnsupportedShardingError(
            f'{text!r} is no sharding; write one {{...}} of quoted axis names per dimension, as in [{{"a"}}, {{}}]'
        ) from None
    return sharding_on(found, mesh)


def _sharding_of_entries(entries: Iterable[Any], mesh: Mesh) -> TensorSharding:
    what = f"{entries!r} is no sharding"
    if isinstance(entries, bytes | Mapping) or not isinstance(entries, Iterable):
        raise UnsupportedShardingError(f"{what}; give text as [{{...}}, ...], or a tuple with an entry per dimension")
    unreduced = getattr(entries, "unreduced", ())
    dims = []
    for entry in entries:
        names = () if entry is None else (entry,) if isinstance(entry, str) else entry
        if not isinstance(names, tuple | list) or not all(isinstance(n, str) for n in names):
            raise UnsupportedShardingError(
                f"{what}: its entry {entry!r} is neither None, nor the name of an axis, nor a tuple of names"
            )
        dims.append(DimSharding(_axes(names, mesh)))
    return TensorSharding(mesh, dims, (), _axes(sorted(unreduced, key=mesh.axis_index), mesh))


def _axes(names: Iterable[str], mesh: Mesh) -> list[AxisRef]:
    return [mesh.axis(name) for name in names]


def as_shape(shape: Iterable[int]) -> tuple[int, ...]:
    """The sizes of a tensor. Raises `ReshardError` for what is no size."""
    try:
        sizes = tuple(_index(n) for n in shape)
    except TypeError:
        sizes = (-1,)
    if any(n < 0 for n in sizes) or isinstance(shape, str | bytes):
        raise ReshardError(f"{shape!r} is no shape; give one whole number, 0 or more, per dimension")
    return sizes


def _index(n: Any) -> int:
    if isinstance(n, bool):
        raise TypeError("a size is no truth value")
    return operator.index(n)


_NUMPY = {"bool": "i1", "complex64": "complex<f32>", "complex128": "complex<f64>", "bfloat16": "bf16"}


def as_element_type(dtype: Any) -> str:
    """MLIR's name (`f32`, `ui8`, `complex<f32>`) of an element type given by that name, by NumPy's (`float32`, `uint8`,
    `bool`, `float8_e4m3fn`), or as a NumPy dtype or scalar type. Raises `ReshardError` for others."""
    if isinstance(dtype, str):
        name = dtype
    else:
        try:
            if dtype is None:
                raise TypeError
            name = np.dtype(dtype).name
        except TypeError:
            raise ReshardError(f"{dtype!r} is no element type; give a name as f32 or float32") from None
    short = _NUMPY.get(name) or re.sub(r"^float(?=\d)", "f", re.sub(r"^uint(?=\d)", "ui", re.sub(r"^int", "i", name)))
    short = re.sub(r"^(f[468])_(\w+)$", lambda m: m[1] + m[2].upper(), short)
    if short not in ITEM_BITS:
        raise ReshardError(f"{dtype!r} is no element type; known are {', '.join(ITEM_BITS)}, and NumPy's names of them")
    return short
