"""Positions and names of arguments, for `jax._src.api_util`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from meshrt import errors, tree_util
from meshrt._tree_paths import spread_over
from meshrt.core.told import Told
from meshrt.extend.linear_util import transformation2
from meshrt.transforms.arguments import fun_name, signature_of
from meshrt.transforms.arguments import resolve_argnums as _resolve

__all__ = [
    "argnums_partial", "donation_vector", "flatten_axes", "fun_signature", "fun_sourceinfo", "is_hashable",
    "rebase_donate_argnums", "resolve_argnums",
]  # fmt: skip


def fun_signature(fun: Callable[..., Any]) -> inspect.Signature | None:
    """The parameters of a function; None where nobody knows them."""
    return signature_of(fun)


def fun_sourceinfo(fun: Callable[..., Any]) -> str:
    """The name of a function and where it is written: `f at train.py:3`."""
    return str(Told(fun, fun_name(fun), "", tuple).placed())


def is_hashable(arg: Any) -> bool:
    """Whether a value may be a static argument."""
    try:
        hash(arg)
    except TypeError:
        return False
    return True


def donation_vector(
    donate_argnums: Sequence[int], donate_argnames: Sequence[str], in_tree: Any, kws: bool = True
) -> Any:
    """For each leaf of (args, kwargs), whether it is donated."""
    args, kwargs = tree_util.treedef_children(in_tree) if kws else (in_tree, tree_util.tree_structure({}))
    parts = list(tree_util.treedef_children(args))
    given = {n % len(parts) if n < 0 and parts else n for n in donate_argnums}
    flags = [i in given for i, part in enumerate(parts) for _ in range(part.num_leaves)]
    names = (kwargs.node_data() or (dict, ()))[1]  # of a dict: its keys in the order of its children
    for name, part in zip(names, tree_util.treedef_children(kwargs), strict=True):
        flags += [name in donate_argnames] * part.num_leaves
    return tuple(flags)


def rebase_donate_argnums(donate_argnums: Iterable[int], static_argnums: Iterable[int]) -> tuple[int, ...]:
    """Positions among the arguments that are left where static ones are taken out. ValueError for one in both."""
    static, donated = sorted(set(static_argnums)), sorted(set(donate_argnums))
    if set(static) & set(donated):
        raise errors.ArgumentValueError(f"`static_argnums` {static} and `donate_argnums` {donated} cannot intersect.")
    return tuple(d - sum(s < d for s in static) for d in donated)


def resolve_argnums(
    fun: Callable[..., Any], signature: inspect.Signature | None, donate_argnums: Any, donate_argnames: Any,
    static_argnums: Any, static_argnames: Any,
) -> tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...], tuple[str, ...]]:  # fmt: skip
    """Positions and names of donated and of static arguments. ValueError for one in both."""
    static = _resolve(fun, static_argnums, static_argnames)
    donated = _resolve(fun, donate_argnums, donate_argnames, "donate")
    both = set(static[1]) & set(donated[1])
    if both:
        raise errors.ArgumentValueError(
            f"static_argnames and donate_argnames cannot intersect. Argument names {both} appear in both "
            "static_argnames and donate_argnames"
        )
    rebase_donate_argnums(donated[0], static[0])  # which refuses positions in both
    return (*donated, *static)


@transformation2
def _with_fixed(
    f: Callable[..., Any], places: tuple[int, ...], fixed: tuple[Any, ...], *args: Any, **kwargs: Any
) -> Any:
    given, rest = dict(zip(places, args)), iter(fixed)
    whole = [given[i] if i in given else next(rest) for i in range(len(places) + len(fixed))]
    return f(*whole, **kwargs)


def argnums_partial(
    f: Any, dyn_argnums: int | Sequence[int], args: Sequence[Any], require_static_args_hashable: bool = True
) -> tuple[Any, tuple[Any, ...]]:
    """(a WrappedFun of the arguments at some positions only, these arguments); the others are what `args` has.

    Raises ValueError for one of the others without a hash, unless `require_static_args_hashable` is False.
    """
    chosen = (dyn_argnums,) if isinstance(dyn_argnums, int) else dyn_argnums
    places = tuple(sorted(n % len(args) for n in chosen))
    fixed = tuple(a for i, a in enumerate(args) if i not in places)
    refused = next((a for a in fixed if not is_hashable(a)), None) if require_static_args_hashable else None
    if refused is not None:
        raise errors.ArgumentValueError(f"Non-hashable static arguments are not supported: {type(refused)}, {refused}")
    return _with_fixed(f, places, fixed), tuple(args[i] for i in places)


def flatten_axes(name: str, treedef: Any, axis_tree: Any, *, kws: bool = False, tupled_args: bool = False) -> list[Any]:
    """The leaves of a prefix of a structure, each for all leaves below it. ValueError for what is no prefix."""
    try:
        return spread_over(axis_tree, treedef, is_leaf=lambda x: x is None)
    except ValueError:
        raise errors.ArgumentValueError(
            f"{name} specification must be a tree prefix of the corresponding value, got specification {axis_tree} "
            f"for value tree {treedef}."
        ) from None
