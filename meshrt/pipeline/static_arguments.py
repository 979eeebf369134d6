"""Static arguments: the Python values of a call that its trace is made for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

from meshrt import errors
from meshrt.pipeline.options import JitOptions
from meshrt.transforms.arguments import StaticValue, parameters_alone, signature_of

__all__ = ["NO_STATIC", "WEAKLY_HELD", "Static", "bound", "incomparable", "join", "split", "unhashable"]


# Functions, told apart by identity, whose caches go when they do.
WEAKLY_HELD = (FunctionType, functools.partial)


class Static(NamedTuple):
    """Static arguments of one call: positions and values, keyword names and values. Hashable."""

    positions: tuple[tuple[int, StaticValue], ...]
    keywords: tuple[tuple[str, StaticValue], ...]


NO_STATIC = Static((), ())


def split(
    name: str, options: JitOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], Static]:
    """The other arguments, positional and by keyword, and the static ones of the function called `name`.

    Raises:
      ArgumentValueError: a static argument cannot be hashed, or counts further from the end than there are any.
    """
    count = len(args)
    for n in options.static_argnums:
        if n < -count:
            raise errors.ArgumentValueError(
                "Positional argument indices, e.g. for `static_argnums`, must have value greater than or equal to "
                f"-len(args) and less than len(args), but got value {n} for len(args) == {count} in a call of {name}"
            )
    nums = {n % count if n < 0 else n for n in options.static_argnums if n < count}
    static = Static(
        tuple((i, StaticValue(args[i])) for i in sorted(nums)),
        tuple((k, StaticValue(kwargs[k])) for k in sorted(kwargs) if k in options.static_argnames),
    )
    if nums:
        args = tuple(a for i, a in enumerate(args) if i not in nums)
    if static.keywords:
        kwargs = {k: v for k, v in kwargs.items() if k not in options.static_argnames}
    try:
        hash(static)
    except TypeError:
        raise unhashable(name, static) from None
    return args, kwargs, static


def join(args: tuple[Any, ...], kwargs: dict[str, Any], static: Static) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """All arguments again, the static ones in their places."""
    if static is NO_STATIC:
        return args, kwargs
    fixed = dict(static.positions)
    rest = iter(args)
    full = tuple(fixed[i].value if i in fixed else next(rest) for i in range(len(args) + len(fixed)))
    return full, {**kwargs, **{k: v.value for k, v in static.keywords}}


def bound(fun: Callable[..., Any], static: Static, *, held: bool = True) -> Callable[..., Any]:
    """A function with the signature that is left without the static arguments, for the names of the others.

    Unless `held`, it does not refer to a function of WEAKLY_HELD, which may go.
    """
    if static == NO_STATIC:
        return fun if held or type(fun) not in WEAKLY_HELD else parameters_alone(fun)
    signature = signature_of(fun)
    if signature is None:
        return fun
    drop = {i for i, _ in static.positions}
    names = {k for k, _ in static.keywords}
    kept = [p for i, p in enumerate(signature.parameters.values()) if i not in drop and p.name not in names]

    def stand_in(*args: Any, **kwargs: Any) -> None:
        """Has a signature and does nothing."""

    stand_in.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]  # as inspect.signature reads it
    return stand_in


def incomparable(name: str, static: Static, error: BaseException) -> errors.ArgumentValueError:
    """The error for what is static in a call and whose `__eq__` raises, its cause."""
    if static == NO_STATIC:
        return errors.ArgumentValueError(
            f"Exception raised while checking equality of metadata fields of pytree, in the arguments of {name}: they "
            "were compared with those of an earlier call. Metadata must be hashable and compare to one bool, as arrays "
            "do not; make a field that holds arrays a data field"
        )
    kinds = sorted({type(v.value).__name__ for _, v in (*static.positions, *static.keywords)})
    return errors.ArgumentValueError(
        f"static arguments should be comparable using __eq__. The following error was raised when comparing those of "
        f"{name}, of types {', '.join(kinds)}, with those of an earlier call: {type(error).__name__}: {error}"
    )


def unhashable(name: str, static: Static) -> errors.ArgumentValueError:
    """The error for static arguments that no cache can have in its key."""
    places: tuple[tuple[int | str, StaticValue], ...] = (*static.positions, *static.keywords)
    for where, value in places:
        try:
            hash(value)
        except TypeError:
            return errors.ArgumentValueError(
                f"Non-hashable static arguments are not supported: the static argument {where!r} of {name} is of type "
                f"{type(value.value).__name__}. Pass a tuple instead of a list, or define __hash__ and __eq__"
            )
    return errors.ArgumentValueError(f"the arguments of {name} cannot be hashed")
