"""vmap: maps a function of pytrees over dimensions of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors
from meshrt.core.basic.shapes import bring_to_front, move_dim
from meshrt.core.naming import wraps
from meshrt.core.references import AbstractRef
from meshrt.core.tracebacks import boundary
from meshrt.core.types import ShapedArray, aval_of
from meshrt.sharding.spec import PartitionSpec, axes_of
from meshrt.transforms.arguments import argument_paths, as_tuple, fun_name, require_function
from meshrt.transforms.batching import MappedAxis, batch_flat
from meshrt.transforms.high import flatten, leaf_paths, opened
from meshrt.transforms.mapped import (
    LAID_OUT,
    MappingSpec,
    check_in_axes,
    mapped_dims,
    mapped_size,
    refuse_laid_out,
    result_dims,
)
from meshrt.transforms.references import check_distinct
from meshrt.tree_util import keystr, tree_flatten, tree_leaves, tree_unflatten

__all__ = ["vmap"]


def vmap(
    fun: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
    sum_match: bool = False,
) -> Callable[..., Any]:
    """Maps `fun` over a dimension of its arguments: it is written for one member of a batch and runs for all at once.

    >>> vmap(jnp.dot, in_axes=(0, None))(jnp.ones((8, 3)), jnp.ones(3)).shape
    (8,)

    Args:
      in_axes: which dimension of each argument is mapped, None for arguments that all members share: an int, or a
        pytree prefix of the positional arguments. Keyword arguments are mapped over dimension 0.
      out_axes: where the mapped dimension stands in the results, likewise.
      axis_name: the name by which collectives in `fun` call the mapped dimension: `lax.psum(x, axis_name)`.
      axis_size: the size of the mapped dimension, needed only where no argument is mapped.
      spmd_axis_name: the mesh axis, or axes, along which the mapped dimension is split wherever the function
        constrains a sharding, in the shard_maps in it and in operations that their users partition.
      sum_match: results that the members do not share are summed over them where `out_axes` is None.

    Raises:
      ShardingError: `spmd_axis_name`, and a mapped dimension that is split over other, Explicit, axes.
    """
    require_function(fun)
    mesh_axes = as_tuple(spmd_axis_name)
    by_specs = any(isinstance(d, MappingSpec) for d in tree_leaves((in_axes, out_axes)))
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    check_in_axes("vmap", in_axes)

    @boundary
    @wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not by_specs:
            args, kwargs = opened((args, kwargs))
        if LAID_OUT:
            refuse_laid_out(fun, (args, kwargs))
        leaves, tree = tree_flatten((args, kwargs))
        dims = mapped_dims("vmap", fun, in_axes, args, kwargs)
        avals = [_type(x) if d is None else aval_of(x) for x, d in zip(leaves, dims)]
        if AbstractRef in set(map(type, avals)):  # most calls have none, and many leaves
            check_distinct("vmap", fun_name(fun), leaves, (), lambda: argument_paths(fun, tree))
        size = mapped_size("vmap", fun, avals, dims, axis_size, tree)
        dims = [None if d is None or a is None else d if a.is_high else d % a.ndim for d, a in zip(dims, avals)]
        along = _along(avals, dims, fun, tree)
        if mesh_axes and along is not None and axes_of(along.spec.partitions[0]) != mesh_axes:
            raise errors.ShardingError(
                "Only one of spmd_axis_name or arrays sharded on `Explicit` mesh axis type is allowed. Got "
                f"spmd_axis_name={mesh_axes} and arrays sharded on explicit_mesh_axis={along.spec.partitions[0]} for "
                f"{fun_name(fun)}: {_types(avals, fun, tree)}. Drop spmd_axis_name: the types say how the dimension "
                "is split"
            )
        axis, out_tree = MappedAxis(size, mesh_axes if along is None else (), axis_name, along), []

        def flat(*values: Any) -> list[Any]:
            inner_args, inner_kwargs = tree_unflatten(tree, values)
            result = fun(*inner_args, **inner_kwargs)
            if LAID_OUT:
                refuse_laid_out(fun, result)
            out, structure = flatten(result)
            out_tree.append(structure)
            return out

        outs, out_dims = batch_flat(flat, axis, leaves, dims)
        wanted = result_dims("vmap", fun, out_axes, out_tree[-1])
        _refuse_mapped(axis, out_dims, wanted, fun, out_tree[-1], sum_match)
        placed = [_place(axis, o, d, w, fun, sum_match) for o, d, w in zip(outs, out_dims, wanted)]
        return tree_unflatten(out_tree[-1], placed)

    wrapped.__doc__ = (
        f"Vectorized version of {fun_name(fun)}: takes arrays with one more dimension where in_axes={in_axes} says "
        f"so, and returns such arrays as out_axes={out_axes} says."
    )
    if getattr(fun, "__doc__", None):
        wrapped.__doc__ += f"\n\nOriginal documentation:\n\n{fun.__doc__}"
    return wrapped


def _type(x: Any) -> ShapedArray | None:
    """The type of an argument that is not mapped, which may be any Python object: None for what is no array."""
    try:
        return aval_of(x)
    except errors.ArgumentTypeError:
        return None


def _along(avals: Any, dims: Any, fun: Callable[..., Any], tree: Any) -> Any:
    """The sharding of the mapped dimension over Explicit axes, the same for all mapped arguments; None if not split."""
    known = [None if a is None or a.is_high else a.explicit for a in avals]
    if all(s is None for s in known):
        return None
    entries = [None if s is None else s.spec.partitions[d] for s, d in zip(known, dims) if d is not None]
    if any(e != entries[0] for e in entries):
        other = next(e for e in entries if e != entries[0])
        raise errors.ShardingTypeError(
            "Mapped away dimension of inputs passed to vmap should be sharded the same. Got inconsistent axis specs: "
            f"{entries[0]} vs {other} for the arguments of {fun_name(fun)}: "
            f"{_types(avals, fun, tree)}. Reshard one of them with meshrt.sharding.reshard before"
        )
    if not entries or entries[0] is None:
        return None
    axes = entries[0] if isinstance(entries[0], tuple) else (entries[0],)
    for a, s, d in zip(avals, known, dims):
        if d is None and s is not None and {*axes} & {*s.spec.axes}:
            raise errors.ShardingTypeError(
                "Unmapped values passed to vmap cannot be sharded along the mesh axis you are vmapping over. Got type: "
                f"{a.short()}, in_axes: None and vmapped mesh axis: {axes} for {fun_name(fun)}. Reshard "
                "it with meshrt.sharding.reshard before, or map it too"
            )
    one = next(s for s, d in zip(known, dims) if s is not None and d is not None)
    return one.update(spec=PartitionSpec(entries[0]))


def _types(avals: Any, fun: Callable[..., Any], tree: Any) -> str:
    return ", ".join(f"{p}: {a.short()}" for p, a in zip(argument_paths(fun, tree), avals) if a is not None)


def _refuse_mapped(
    axis: MappedAxis, dims: Sequence[int | None], wanted: Sequence[int | None], fun: Callable[..., Any], tree: Any,
    sum_match: bool,
) -> None:  # fmt: skip
    """ArgumentValueError if a result that differs between the members of the batch is to have no axis."""
    if sum_match or all(w is not None or d is None for d, w in zip(dims, wanted)):
        return
    at = next(i for i, (d, w) in enumerate(zip(dims, wanted)) if w is None and d is not None)
    where = f"out_axes{keystr(leaf_paths(tree)[at])}"
    said = f"at vmap {where}, got axis spec None but output was batched on axis {dims[at]}"
    if axis.name is not None:
        said = f"vmap has mapped output (axis_name={axis.name}) but out_axes is None, at {where}"
    raise errors.ArgumentValueError(
        f"{said}: this result of {fun_name(fun)} differs between the members of the batch. Give it an axis at vmap "
        "out_axes"
    )


def _place(
    axis: MappedAxis, out: Any, dim: int | None, wanted: int | None, fun: Callable[..., Any], sum_match: bool
) -> Any:
    if wanted is None:
        return out if dim is None else out.sum(dim)
    if dim is None and _type(out) is None:
        raise errors.ArgumentTypeError(
            f"Output from batched function {out!r} with type {type(out)} is not a valid JAX type: {fun_name(fun)}, "
            "which is mapped, must return pytrees of arrays"
        )
    if aval_of(out).is_high or isinstance(wanted, MappingSpec):
        return _place_high(out, dim, wanted, fun)
    ndim = aval_of(out).ndim + (dim is None)
    if not -ndim <= wanted < ndim:
        raise errors.ArgumentValueError(
            f"axis {wanted} is out of bounds for array of dimension {ndim}: vmap out_axes of {fun_name(fun)}"
        )
    if dim is None:
        out, dim = bring_to_front(axis.extent, out, None), 0
    return move_dim(out, dim, wanted % ndim)


def _place_high(out: Any, dim: Any, wanted: Any, fun: Callable[..., Any]) -> Any:
    """A result of a high type, which has to be laid out as is asked: how is a matter of operations on its type."""
    if dim == wanted:
        return out
    raise errors.ArgumentValueError(
        f"vmap: a result of the non-array type {aval_of(out).short()} of {fun_name(fun)} is laid out as {dim}, and "
        f"out_axes asks for {wanted}: give out_axes={dim}, or lay it out in another way with operations on its type"
    )
