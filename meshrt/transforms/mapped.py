"""Which dimensions of arguments and results are mapped, for `vmap` and `pmap`: prefixes of their trees, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors, tree_util
from meshrt.transforms.arguments import argument_paths, fun_name

__all__ = ["mapped_dims", "mapped_size", "result_dims"]


def mapped_dims(
    called: str, fun: Callable[..., Any], in_axes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[int | None]:
    """The mapped dimension of each leaf of the arguments, None where it is not mapped. `called` is what users wrote."""
    if isinstance(in_axes, tuple) and len(in_axes) != len(args):
        raise errors.ArgumentValueError(
            f"{called} in_axes must be an int, None, or a tuple of entries corresponding to the positional arguments "
            f"passed to the function, but got len(in_axes)={len(in_axes)}, len(args)={len(args)} for {fun_name(fun)}"
        )
    is_none = lambda x: x is None
    try:
        dims = tree_util.broadcast_prefix(in_axes, args, is_leaf=is_none)
    except ValueError as e:
        raise errors.TreeError(f"{called} in_axes of {fun_name(fun)} does not fit its arguments: {e}") from None
    dims = [*dims, *([0] * len(tree_util.tree_leaves(kwargs)))]
    for d in dims:
        _check_axis(called, "in_axes", d, fun)
    return dims


def mapped_size(
    called: str, fun: Callable[..., Any], avals: Sequence[Any], dims: Sequence[int | None], axis_size: int | None,
    tree: Any,
) -> int:  # fmt: skip
    """The one size that all mapped dimensions have, of arguments of these types."""
    sizes: dict[int, int] = {}  # size -> the first leaf that has it (-1: axis_size)
    for i, (x, d) in enumerate(zip(avals, dims)):
        if d is None:
            continue
        shape = x.shape
        if not -len(shape) <= d < len(shape):
            path = argument_paths(fun, tree)[i]
            rank = d + 1 if d >= 0 else -d
            raise errors.ArgumentValueError(
                f"{called} was requested to map its argument along axis {d}, which implies that its rank should be at "
                f"least {rank}, but is only {len(shape)} (its shape is {shape}): argument {path} of {fun_name(fun)}"
            )
        sizes.setdefault(shape[d], i)
    if axis_size is not None:
        sizes.setdefault(axis_size, -1)
    if not sizes:
        raise errors.ArgumentValueError(
            f"{called} must have at least one non-None value in in_axes, or axis_size, for {fun_name(fun)}"
        )
    if len(sizes) > 1:
        paths = argument_paths(fun, tree)
        listing = "; ".join(
            f"{paths[i]} has size {x.shape[d]} along axis {d}"
            for i, (x, d) in enumerate(zip(avals, dims))
            if d is not None
        )
        raise errors.ArgumentValueError(
            f"{called} got inconsistent sizes for array axes to be mapped in {fun_name(fun)}: {listing}"
            + (f"; axis_size={axis_size}" if axis_size is not None else "")
        )
    return next(iter(sizes))


def result_dims(called: str, fun: Callable[..., Any], out_axes: Any, out_tree: Any) -> list[int | None]:
    """Where the mapped dimension is to stand in each result."""
    dummy = tree_util.tree_unflatten(out_tree, [object()] * out_tree.num_leaves)
    try:
        dims = tree_util.broadcast_prefix(out_axes, dummy, is_leaf=lambda x: x is None)
    except ValueError as e:
        raise errors.TreeError(f"{called} out_axes of {fun_name(fun)} does not fit its result: {e}") from None
    for d in dims:
        _check_axis(called, "out_axes", d, fun)
    return dims


def _check_axis(called: str, what: str, axis: Any, fun: Callable[..., Any]) -> None:
    if axis is not None and (not isinstance(axis, int) or isinstance(axis, bool)):
        raise errors.ArgumentTypeError(
            f"{called} {what} must be an int, None, or (nested) container with those types as leaves, but got {axis!r} "
            f"for {fun_name(fun)}"
        )
