"""The operation `check`, and the functions by which users write it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors, tree_util
from meshrt.core.effects import Effect
from meshrt.core.operators import ArrayOperators
from meshrt.core.primitive import Primitive
from meshrt.core.types import aval_of
from meshrt.experimental.checkify.failures import Error, FailedCheckError, JaxRuntimeError
from meshrt.numpy import argmax, argmin, broadcast_to, isin, logical_not, moveaxis, stack, take, where

__all__ = ["CHECK", "check", "check_error", "check_p", "debug_check"]

# Transformations may do with it as with debugging effects: checks compute nothing.
CHECK = Effect("Check", is_debug=True)


def _impl(*leaves: Any, structure: Any, debug: bool) -> list[Any]:
    if debug:
        return []
    found = tree_util.tree_unflatten(structure, leaves).get_exception()
    if found is not None:
        raise JaxRuntimeError(str(found)) from found
    return []


def _lower(ctx: Any, eqn: Any, *leaves: Any) -> list[Any]:
    if eqn.params["debug"]:
        return []
    raise errors.ArgumentValueError(
        f"Cannot abstractly evaluate a checkify.check which was not functionalized: that at {eqn.source} is compiled "
        "(jit, scan, cond, pmap, ...), and programs raise nothing. Make the error a value around it: "
        "error, out = jit(checkify.checkify(f))(...); error.throw()"
    )


def _batch(size: int, leaves: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    """The check of a batch is that of its last member in which something went wrong."""
    front = [
        broadcast_to(x, (size, *aval_of(x).shape)) if d is None else moveaxis(x, d, 0) for x, d in zip(leaves, dims)
    ]
    which = _last(front[0])  # the code is the first leaf
    check_p.bind(*[take(x, which, axis=0) for x in front], **params)
    return [], []


check_p: Primitive = Primitive(
    "check", lambda *avals, structure, debug: [], impl=_impl, lower=_lower, batch=_batch,
    jvp=lambda primals, tangents, **params: (check_p.bind(*primals, **params), []),
    effects=lambda *avals, structure, debug: frozenset([CHECK]), multiple_results=True, cache_types=False,
    absent={"transpose": "it has no results"},
)  # fmt: skip


def _is_predicate(pred: Any) -> bool:
    if isinstance(pred, bool):
        return True
    return isinstance(pred, ArrayOperators) and pred.shape == () and pred.dtype == np.bool_


def _check(name: str, pred: Any, msg: str, debug: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not _is_predicate(pred):
        raise errors.ArgumentTypeError(f"{name} takes a scalar pred as argument, got {pred}; reduce it with all()")
    for leaf in tree_util.tree_leaves((args, kwargs)):
        if not isinstance(leaf, ArrayOperators | np.ndarray):
            raise errors.ArgumentTypeError(
                f"Formatting arguments to checkify.{name} need to be PyTrees of arrays, but got {leaf!r} of type "
                f"{type(leaf)}; write what is known before into the message"
            )
    _bind(Error.of(logical_not(pred), FailedCheckError(msg, *args, **kwargs)), debug)


def _bind(error: Error, debug: bool) -> None:
    if aval_of(error.code).shape:  # of a batch: one check for each member would be as many operations
        error = _of_last(error)
    leaves, structure = tree_util.tree_flatten(error)
    check_p.bind(*leaves, structure=structure, debug=debug)


def _last(codes: Any) -> Any:
    """The last position of a member in which something went wrong."""
    return codes.size - 1 - argmax(codes[::-1] >= 0)


def _of_last(error: Error) -> Error:
    """The error of one member of a batch: of the last ones with errors of a kind, that whose check stands first."""
    rank, codes = aval_of(error.code).ndim, error.code.ravel()
    kinds: dict[Any, list[int]] = {}
    for number, site in error.sites.items():
        kinds.setdefault((site.structure.node_data()[0], site.types), []).append(number)
    which = _last(codes)
    if len(kinds) > 1:
        sites = [np.array(numbers, np.int32) for numbers in kinds.values()]
        places = stack([_last(where(isin(codes, numbers), codes, -1)) for numbers in sites])
        found = codes[places]
        which = places[argmin(where(found < 0, np.iinfo(np.int32).max, found))]
    pick = lambda x: x.reshape(-1, *x.shape[rank:])[which]
    picked: Error = tree_util.tree_map(pick, error)
    return picked


def check(pred: Any, msg: str, *fmt_args: Any, debug: bool = False, **fmt_kwargs: Any) -> None:
    """Notes an error where `pred` is False.

    Args:
      pred: a boolean, or an array of one, shape ().
      msg: what is said of it, a template for `str.format` of `fmt_args` and `fmt_kwargs`, pytrees of arrays.
      debug: as `debug_check`.

    Outside of compiled programs it raises JaxRuntimeError at once. A function that is to be compiled has to be
    transformed by `checkify`.

    Raises ArgumentTypeError for a `pred` of another kind and for arguments of the template that are no arrays.

    >>> from meshrt.experimental import checkify
    >>> f = lambda x: (checkify.check(x > 0, "{x} is not positive", x=x), jnp.log(x))[1]
    >>> error, value = checkify.checkify(f)(jnp.float32(-1))
    >>> print(error.get().splitlines()[0])
    -1.0 is not positive (`check` failed)
    """
    _check("debug_check" if debug else "check", pred, msg, debug, fmt_args, fmt_kwargs)


def debug_check(pred: Any, msg: str, *fmt_args: Any, **fmt_kwargs: Any) -> None:
    """As `check` in functions that `checkify` transforms; nothing in others.

    >>> from meshrt.experimental import checkify
    >>> f = lambda x: (checkify.debug_check(x > 0, "{x} is not positive", x=x), x)[1]
    >>> float(f(jnp.float32(-1)))
    -1.0
    """
    _check("debug_check", pred, msg, True, fmt_args, fmt_kwargs)


def check_error(error: Error) -> None:
    """Raises JaxRuntimeError if `error` says that something went wrong: the inverse of `checkify`.

    In a function that `checkify` transforms it is one of its checks. Raises ArgumentTypeError for what is no Error.

    >>> from meshrt.experimental import checkify
    >>> error, value = checkify.checkify(jnp.log)(1.0)
    >>> checkify.check_error(error)
    """
    if not isinstance(error, Error):
        raise errors.ArgumentTypeError(f"check_error takes an Error as argument, got type {type(error)} instead.")
    _bind(error, False)


Error.throws = staticmethod(check_error)
