"""`jax.api_util`: functions of pytrees as functions of flat arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from meshrt import tree_util
from meshrt.core.naming import DebugInfo
from meshrt.core.told import Told
from meshrt.core.types import aval_of as shaped_abstractify
from meshrt.extend import linear_util
from meshrt.numpy.names import missing as _missing
from meshrt.transforms.arguments import ArgumentNames, fun_name

__all__ = [
    "DebugInfo", "debug_info", "flatten_fun", "flatten_fun_nokwargs", "infer_argnums_and_argnames", "safe_map",
    "shaped_abstractify",
]  # fmt: skip


def debug_info(
    traced_for: str,
    fun: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    static_argnums: Sequence[int] = (),
    static_argnames: Sequence[str] = (),
    result_paths_thunk: Callable[[], tuple[str, ...]] | None = None,
    sourceinfo: str | None = None,
    signature: inspect.Signature | None = None,
) -> DebugInfo:
    """What is known of a function that is going to be traced with these arguments, whose static ones have no names."""
    given = [None if i in static_argnums or i - len(args) in static_argnums else x for i, x in enumerate(args)]
    named = {k: None if k in static_argnames else x for k, x in kwargs.items()}
    names = ArgumentNames(fun, tree_util.tree_structure((given, named)))
    told = Told(fun, fun_name(fun), traced_for, names)
    return DebugInfo(traced_for, sourceinfo or told.placed(), tuple(names()), result_paths_thunk)


@linear_util.transformation_with_aux2
def flatten_fun(f: Callable[..., Any], store: linear_util.Store, in_tree: Any, *leaves: Any) -> list[Any]:
    """A function of (args, kwargs) as one of leaves; the auxiliary value is the structure of its result."""
    args, kwargs = tree_util.tree_unflatten(in_tree, leaves)
    outs, out_tree = tree_util.tree_flatten(f(*args, **kwargs))
    store.store(out_tree)
    return outs


@linear_util.transformation_with_aux2
def flatten_fun_nokwargs(f: Callable[..., Any], store: linear_util.Store, in_tree: Any, *leaves: Any) -> list[Any]:
    """A function of args as one of leaves; the auxiliary value is the structure of its result."""
    outs, out_tree = tree_util.tree_flatten(f(*tree_util.tree_unflatten(in_tree, leaves)))
    store.store(out_tree)
    return outs


def safe_map(f: Callable[..., Any], *args: Any) -> list[Any]:
    """`map` as a list, of arguments of one length. ValueError otherwise."""
    return [f(*items) for items in zip(*args, strict=True)]


def infer_argnums_and_argnames(
    sig: inspect.Signature, argnums: int | Iterable[int] | None, argnames: str | Iterable[str] | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and names of parameters, of which those that are None follow from the others."""
    positions = None if argnums is None else (argnums,) if isinstance(argnums, int) else tuple(argnums)
    names = None if argnames is None else (argnames,) if isinstance(argnames, str) else tuple(argnames)
    both = inspect.Parameter.POSITIONAL_OR_KEYWORD
    named = [(i, name) for i, (name, p) in enumerate(sig.parameters.items()) if p.kind is both]
    if positions is None:
        return tuple(i for i, name in named if names is not None and name in names), names or ()
    return positions, tuple(name for i, name in named if i in positions) if names is None else names


__getattr__ = _missing("jax.api_util", __all__)
