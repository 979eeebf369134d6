"""Which dimensions of arguments and results are mapped, for `vmap` and `pmap`: prefixes of their trees, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors, tree_util
from meshrt._tree_paths import spread_over, structure_mismatch
from meshrt.transforms.arguments import argument_paths, fun_name

__all__ = ["LAID_OUT", "MappingSpec", "check_in_axes", "mapped_dims", "mapped_size", "refuse_laid_out", "result_dims"]


class MappingSpec:
    """How a batch of values of a high type is laid out, in `in_axes` and `out_axes` of vmap: what `dec_rank` and
    `inc_rank` of the type take. Subclasses are hashable, and equal where they mean the same.
    """


# Classes of values that libraries have given functions by which one member is taken out of a batch, and a batch made of
# members. Programs may hold such values; vmap would have to ask these functions, and refuses them.
LAID_OUT: set[type] = set()


def refuse_laid_out(fun: Callable[..., Any], tree: Any) -> None:
    """UnsupportedError for a value of such a class among the arguments or results of a mapped function."""
    is_one = lambda x: type(x) in LAID_OUT
    for leaf in tree_util.tree_leaves(tree, is_leaf=is_one):
        if is_one(leaf):
            raise errors.UnsupportedError(
                f"vmap of {fun_name(fun)} over a value of the class {type(leaf).__name__}, which was given to "
                "register_vmappable: its functions are not asked. Map over a pytree of arrays"
            )


def check_in_axes(called: str, in_axes: Any) -> None:
    """ArgumentTypeError for what says of no arguments which of their dimensions are mapped."""
    if (
        in_axes is None
        or isinstance(in_axes, tuple | list | MappingSpec)
        or (isinstance(in_axes, int) and type(in_axes) is not bool)
    ):
        return
    raise errors.ArgumentTypeError(
        f"{called} in_axes must be an int, None, or a tuple of entries corresponding to the positional arguments "
        f"passed to the function, but got {in_axes}."
    )


def mapped_dims(
    called: str, fun: Callable[..., Any], in_axes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[int | None]:
    """The mapped dimension of each leaf of the arguments, None where it is not mapped. `called` is what users wrote."""
    check_in_axes(called, in_axes)
    if isinstance(in_axes, tuple) and len(in_axes) != len(args):
        raise errors.ArgumentValueError(
            f"{called} in_axes must be an int, None, or a tuple of entries corresponding to the positional arguments "
            f"passed to the function, but got len(in_axes)={len(in_axes)}, len(args)={len(args)} for {fun_name(fun)}"
        )
    for d in tree_util.tree_leaves(in_axes):
        _check_axis(called, "in_axes", d, fun)
    structure = tree_util.tree_structure(args)
    dims = _broadcast(called, "in_axes", in_axes, structure, f"the arguments of {fun_name(fun)}")
    dims = [*dims, *([0] * len(tree_util.tree_leaves(kwargs)))]
    return dims


def _broadcast(called: str, what: str, axes: Any, structure: Any, whose: str) -> list[int | None]:
    """The entry of the prefix `axes` for each leaf of a tree of this structure."""
    is_none = lambda x: x is None
    try:
        return spread_over(axes, structure, is_none)
    except errors.TreeError:
        found = structure_mismatch(what, axes, structure, is_none)
        raise errors.TreeError(
            f"{called} {what} specification must be a tree prefix of the corresponding value; got {axes}, which does "
            f"not fit {whose}. {found}"
        ) from None


def mapped_size(
    called: str, fun: Callable[..., Any], avals: Sequence[Any], dims: Sequence[int | None], axis_size: int | None,
    tree: Any,
) -> int:  # fmt: skip
    """The one size that all mapped dimensions have, of arguments of these types."""
    sizes: dict[int, int] = {}  # size -> the first leaf that has it (-1: axis_size)
    for i, (x, d) in enumerate(zip(avals, dims)):
        if d is None or isinstance(d, MappingSpec):
            continue
        if x.is_high:
            raise errors.ArgumentValueError(
                f"{called} over a value of the non-array type {x.short()}, argument {argument_paths(fun, tree)[i]} "
                f"of {fun_name(fun)}, needs to be told how it is laid out: give a MappingSpec of that type in in_axes, "
                f"and axis_size. Got the dimension {d}"
            )
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
        raise errors.ArgumentValueError(_nothing_mapped(called, fun, tree))
    if len(sizes) > 1:
        raise errors.ArgumentValueError(_unlike_sizes(called, fun, avals, dims, axis_size, tree))
    return next(iter(sizes))


def _nothing_mapped(called: str, fun: Callable[..., Any], tree: Any) -> str:
    if tree.num_leaves:
        return (
            f"{called} must have at least one non-None value in in_axes or axis_size must be specified (for "
            f"{fun_name(fun)})"
        )
    if called == "pmap":
        return f"pmap requires at least one argument with a mapped axis. {fun_name(fun)} was given no arrays"
    args, kwargs = tree.unflatten(())
    return (
        f"{called} wrapped function must be passed at least one argument containing an array or axis_size must be "
        f"specified, got empty *args={args} and **kwargs={kwargs} for {fun_name(fun)}"
    )


def _unlike_sizes(
    called: str, fun: Callable[..., Any], avals: Sequence[Any], dims: Sequence[int | None], axis_size: int | None,
    tree: Any,
) -> str:  # fmt: skip
    """Lists the sizes with one argument of each, the most frequent first."""
    by_size: dict[int, list[str]] = {}
    for path, x, d in zip(argument_paths(fun, tree, keywords="kwargs[{!r}]"), avals, dims):
        if d is not None:
            what = path if path.startswith("kwargs[") else f"argument {path}"
            by_size.setdefault(x.shape[d], []).append(f"axis {d} of {what} of type {x}")
    lines = [] if axis_size is None else [f"  * the `axis_size` argument was {axis_size}"]
    for i, (size, places) in enumerate(sorted(by_size.items(), key=lambda item: -len(item[1]))):
        if len(places) == 1:
            lines.append(f"  * one axis had size {size}: {places[0]}")
        else:
            which = "most" if i == 0 else "some"
            lines.append(f"  * {which} axes ({len(places)} of them) had size {size}, e.g. {places[0]}")
    listing = ";\n".join(lines)
    return f"{called} got inconsistent sizes for array axes to be mapped:\n{listing}\nin a call of {fun_name(fun)}"


def result_dims(called: str, fun: Callable[..., Any], out_axes: Any, out_tree: Any) -> list[int | None]:
    """Where the mapped dimension is to stand in each result."""
    for d in tree_util.tree_leaves(out_axes):
        _check_axis(called, "out_axes", d, fun)
    return _broadcast(called, "out_axes", out_axes, out_tree, f"the result of {fun_name(fun)}")


def _check_axis(called: str, what: str, axis: Any, fun: Callable[..., Any]) -> None:
    if axis is not None and (not isinstance(axis, int | MappingSpec) or isinstance(axis, bool)):
        raise errors.ArgumentTypeError(
            f"{called} {what} must be an int, None, or (nested) container with those types as leaves, but got {axis!r} "
            f"for {fun_name(fun)}"
        )
