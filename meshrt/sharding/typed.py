"""Shardings in types: the part of a sharding that Explicit axes have, in the one form that types are interned by.

A type's sharding is a NamedSharding over an AbstractMesh whose spec has one entry per dimension and names Explicit
axes only (and Manual ones, inside of their regions, among those that the value is unreduced or reduced over). It is
`aval.explicit`, None where no such axis splits the value: a replicated value's type is the bare one, and so is every
type on meshes of Auto axes. Users are told of `aval.sharding`, which is never None.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, cast

from meshrt import config, dtypes, errors
from meshrt.core import source
from meshrt.core.basic.sums import restated
from meshrt.core.completion import Completion
from meshrt.core.explicit import reduced_of, unreduced_of
from meshrt.core.manual import ManualAxisType
from meshrt.core.references import AbstractRef
from meshrt.core.spaces import space_of_kind
from meshrt.core.types import ShapedArray, aval_of
from meshrt.sharding.base import fitting_sizes
from meshrt.sharding.context import context_source, get_abstract_mesh
from meshrt.sharding.mesh import AbstractMesh, AxisType, BaseMesh, Mesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import UNCONSTRAINED, PartitionSpec, axes_of

__all__ = [
    "abstract", "asked", "check_divides", "check_mesh", "check_out_sharding", "described", "entries_of", "fitted",
    "mesh_of", "on", "sharding_of", "told_sharding", "type_sharding", "typed", "without_sums",
]  # fmt: skip

Entry = Any


def type_sharding(
    mesh: BaseMesh,
    entries: Sequence[Entry],
    unreduced: Iterable[Hashable] = (),
    reduced: Iterable[Hashable] = (),
) -> NamedSharding | None:
    """What a type says of a value split over `mesh` as `entries` (one per dimension) have it.

    DuplicateAxisError if an axis stands twice.
    """
    types, sizes = mesh._types, mesh._sizes
    whole = config.settings.remove_size_one_mesh_axis_from_type

    def kept(axes: Iterable[Hashable]) -> tuple[Hashable, ...]:
        return tuple(a for a in axes if types[a] is AxisType.Explicit and not (whole and sizes[a] == 1))

    dims = [kept(axes_of(e)) or None for e in entries]
    open_sums, replicas = (
        frozenset(a for a in axes if types[a] is AxisType.Manual).union(kept(axes))
        for axes in (frozenset(unreduced), frozenset(reduced))
    )
    if not open_sums and not replicas and not any(dims):
        return None
    return NamedSharding(_abstract(mesh), PartitionSpec(*dims, unreduced=open_sums, reduced=replicas))


def _abstract(mesh: BaseMesh) -> AbstractMesh:
    return cast(Mesh | AbstractMesh, mesh).abstract_mesh


def on(sharding: NamedSharding, ndim: int) -> NamedSharding | None:
    """The sharding of the type of a value of `ndim` dimensions that is laid out by `sharding`."""
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    spec = sharding.spec
    dims = [None if e is UNCONSTRAINED else e for e in spec.padded(ndim)]
    return type_sharding(sharding.mesh, dims, spec.unreduced, spec.reduced)


def typed(aval: ShapedArray, sharding: Any) -> ShapedArray:
    """The type of a value of type `aval` laid out by a concrete or abstract sharding of any kind, in its memory."""
    known = on(sharding, aval.ndim) if isinstance(sharding, NamedSharding) else None
    space = space_of_kind(getattr(sharding, "memory_kind", None))
    if known is aval.explicit and space is aval.memory_space:
        return aval
    return aval.update(sharding=known, memory_space=space)


def entries_of(aval: Any) -> tuple[Entry, ...]:
    """One entry per dimension of a type: None, an axis or a tuple of axes."""
    if aval.explicit is None:
        return (None,) * int(aval.ndim)
    known: tuple[Entry, ...] = aval.explicit.spec.partitions
    return known


def mesh_of(avals: Iterable[Any]) -> Any:
    """The mesh of the first type that has a sharding, else None."""
    return next((a.explicit.mesh for a in avals if a.explicit is not None), None)


def sharding_of(aval: Any, mesh: BaseMesh) -> NamedSharding:
    """The sharding of a type in full, as `typeof` shows it: replicated where the type has none."""
    if aval.explicit is not None:
        known: NamedSharding = aval.explicit
        return known
    return NamedSharding(_abstract(mesh), PartitionSpec(*((None,) * aval.ndim)))


def told_sharding(aval: Any, mesh: BaseMesh | None) -> NamedSharding | None:
    """What a ShapeDtypeStruct of a value over `mesh` says: the sharding of its type in full where every axis is
    Explicit (or Manual), None where propagation decides along some.
    """
    mesh = mesh if aval.explicit is None else aval.explicit.mesh
    if mesh is None or AxisType.Explicit not in mesh.axis_types or AxisType.Auto in mesh.axis_types:
        return None
    return sharding_of(aval, mesh)


def check_out_sharding(out_sharding: Any, function: str) -> None:
    """Checks that `out_sharding` is a NamedSharding, or a PartitionSpec where a mesh is in context, and that all axes
    that it names are Explicit; see `asked`.

    Raises:
      ShardingTypeError: neither of these. MeshContextError: a PartitionSpec where no mesh is in context.
      ShardingError: an axis that is not Explicit.
    """
    mesh: BaseMesh = get_abstract_mesh()
    if isinstance(out_sharding, PartitionSpec):
        spec = out_sharding
        if mesh.empty:
            raise errors.MeshContextError(
                "Using PartitionSpec when you are not under a mesh context is not allowed. Please pass a NamedSharding "
                f"instance or enter into a mesh context via `meshrt.set_mesh`. Got {out_sharding} for {function} at "
                f"{source.capture()}"
            )
    elif not isinstance(out_sharding, NamedSharding):
        raise errors.ShardingTypeError(
            f"`out_sharding` argument of {function} only supports instances of `NamedSharding` or `PartitionSpec`. Got "
            f"{out_sharding} of type: {type(out_sharding)}"
        )
    else:
        mesh, spec = out_sharding.mesh, out_sharding.spec
    for axis in (*spec.axes, *spec.unreduced, *spec.reduced):
        kind = mesh._types.get(axis)  # NamedSharding has something to say of axes that the mesh does not have
        if kind is AxisType.Auto or kind is AxisType.Manual:
            raise errors.ShardingError(
                f"PartitionSpec passed to {function} cannot contain axis names that are of type Auto or Manual. Got "
                f"PartitionSpec: {spec} with axis name: {axis} of type: {kind!r}. This error occurs at source: "
                f"{source.capture()}. Use meshrt.lax.with_sharding_constraint for Auto axes"
            )


def fitted(out_sharding: Any, ndim: int) -> Any:
    """`out_sharding`, a NamedSharding or a PartitionSpec, without entries of None for dimensions that there are not."""
    if isinstance(out_sharding, PartitionSpec):
        return out_sharding.fitted(ndim)
    spec = out_sharding.spec.fitted(ndim)
    return out_sharding if spec is out_sharding.spec else out_sharding.update(spec=spec)


def asked(out_sharding: Any, ndim: int, function: str, is_consistent: bool = True) -> NamedSharding | None:
    """`out_sharding` as `function` was given it, for a result of `ndim` dimensions, with one entry for each.

    Where it `is_consistent` it must be over the mesh in context.

    Raises:
      ShardingTypeError: neither a NamedSharding nor a PartitionSpec.
      MeshContextError: a PartitionSpec where no mesh is in context. MeshMismatchError: another mesh than that.
      ShardingError: an axis that is not Explicit. RankMismatchError: too many entries.
    """
    if out_sharding is None or (isinstance(out_sharding, NamedSharding) and out_sharding.mesh.empty):
        return None
    check_out_sharding(out_sharding, function)
    around = get_abstract_mesh()
    if isinstance(out_sharding, PartitionSpec):
        out_sharding = NamedSharding(around, out_sharding)
    mesh, spec = out_sharding.mesh.abstract_mesh, out_sharding.spec
    if is_consistent:
        check_mesh(mesh, function)
    entries = [None if e is UNCONSTRAINED else e for e in spec.fitted(ndim).padded(ndim)]
    return NamedSharding(mesh, spec.update(partitions=entries))


def check_mesh(mesh: AbstractMesh, function: str) -> None:
    """MeshMismatchError if there is a mesh in context, and the one that `function` was given a sharding over is
    another."""
    around = get_abstract_mesh()
    if not around.empty and mesh is not around.abstract_mesh:
        raise errors.MeshMismatchError(
            f"Context mesh {around} (set at {context_source()}) should match the mesh of sharding {mesh} passed to "
            f"{function}. This error occurs at source: {source.capture()}. Build the sharding over the mesh in "
            "context, or give a PartitionSpec"
        )


def check_divides(sharding: NamedSharding, shape: Sequence[Any], function: str) -> None:
    """IndivisibleError unless the parts that `function` is asked for, of a result of this shape, are of one size.

    Types have no other parts; sizes that are not known before the program runs are not looked at.
    """
    sizes = sharding.mesh._sizes
    for dim, (size, entry) in enumerate(zip(shape, sharding.spec.partitions)):
        parts = math.prod(sizes[a] for a in axes_of(entry))
        if isinstance(size, int) and size % parts:
            raise errors.IndivisibleError(
                f"{function} at {source.capture()} cannot split its result as {sharding.spec}, which implies that "
                f"array axis {dim} is partitioned {parts} times, but the dimension size is {size} (full shape: "
                f"{tuple(shape)}){sharding._split_over(dim)}. Make the dimension {fitting_sizes(size, parts)}, or do "
                f"not shard axis {dim}; types over Explicit axes have parts of one size only, `uneven=True` is for "
                "device_put and for results of jit"
            )


def _sums(mesh: Any, ndim: int, unreduced: frozenset[Any], reduced: frozenset[Any]) -> NamedSharding | None:
    return type_sharding(mesh, (None,) * ndim, unreduced, reduced)


ShapedArray.in_full = staticmethod(lambda aval: sharding_of(aval, get_abstract_mesh()))
Completion.asked = staticmethod(asked)
Completion.sums = staticmethod(_sums)


def abstract(x: Any) -> Any:
    """The type of an array, or of anything with `.shape` and `.dtype` (ShapeDtypeStruct)."""
    try:
        return aval_of(x)
    except TypeError:
        if hasattr(x, "shape") and hasattr(x, "dtype"):
            return described(x)
        raise


def described(x: Any) -> Any:
    """The type that `.shape` and `.dtype` say, with `.weak_type`, `.sharding`, `.manual_axis_type` if it has them;
    that of a reference to such a value where `.is_ref` is True."""
    dtype = x.dtype
    if not isinstance(dtype, dtypes.ExtendedDType):
        dtype = dtypes.canonicalize_dtype(dtypes.named_dtype(dtype))
    aval = ShapedArray(tuple(x.shape), dtype, bool(getattr(x, "weak_type", False)))
    aval = typed(aval, getattr(x, "sharding", None))
    mat = getattr(x, "manual_axis_type", None)
    aval = aval if mat is None or mat.empty else _inside(aval, mat)
    return AbstractRef(aval) if getattr(x, "is_ref", False) is True else aval


def _inside(aval: ShapedArray, mat: ManualAxisType) -> ShapedArray:
    """The type of a value of a manual region that `mat` describes."""
    mesh = get_abstract_mesh()
    wrong = [a for a in mat.vur if mesh._types.get(a) is not AxisType.Manual]
    if wrong:
        kind = f"of type {mesh._types[wrong[0]]}" if wrong[0] in mesh._types else f"that {mesh} does not have"
        raise errors.ShardingError(
            f"Axes mentioned in `manual_axis_type` should be of type `Manual`. Got manual_axis_type={mat} with axis "
            f"{wrong[0]!r} {kind}; use it inside of the shard_map that makes the axis Manual"
        )
    return restated(aval, mesh, mat.varying, unreduced_of(aval) | mat.unreduced, reduced_of(aval) | mat.reduced)


def without_sums(sharding: Any) -> Any:
    """The same, of values that are neither unreduced nor reduced."""
    if not isinstance(sharding, NamedSharding) or not (sharding.spec.unreduced or sharding.spec.reduced):
        return sharding
    return sharding.update(spec=sharding.spec.update(unreduced=frozenset(), reduced=frozenset()))
