"""Functions that stand for others take over their names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

__all__ = ["STATIONS", "DebugInfo", "body_name", "take_names", "wraps"]

W = TypeVar("W")

# What functions take only from objects that have it of this class: any object may be called and have such attributes.
_CLASSES = {"__name__": str, "__qualname__": str, "__annotations__": dict, "__type_params__": tuple}

# What functions of the library have, besides jitted ones, as attributes (`meshrt.dispatch.at_once`).
STATIONS = ("trace", "lower", "eval_shape")


def take_names(wrapper: W, wrapped: Any) -> W:
    """As `functools.update_wrapper`, but what lowers the function wrapped does not lower the one around it, and an
    object whose name is no text gives none."""
    fits = lambda name: name not in _CLASSES or isinstance(getattr(wrapped, name, None), _CLASSES[name])
    functools.update_wrapper(cast(Any, wrapper), wrapped, filter(fits, functools.WRAPPER_ASSIGNMENTS))
    for name in STATIONS:
        vars(wrapper).pop(name, None)
    return wrapper


def wraps(wrapped: Any) -> Callable[[W], W]:
    """As `functools.wraps`, with `take_names`.

    >>> import meshrt.numpy as jnp
    >>> hasattr(wraps(jnp.sin)(lambda x: 2 * x), "lower")
    False
    """
    return lambda wrapper: take_names(wrapper, wrapped)


class DebugInfo(NamedTuple):
    """What messages call a traced function: the transformation, the function and its line, arguments, results."""

    traced_for: str
    func_src_info: str
    arg_names: tuple[str, ...] | None = None
    result_paths: Any = None

    @property
    def func_name(self) -> str:
        """The function's name, without its line."""
        return self.func_src_info.partition(" at ")[0]


def body_name(params: Mapping[str, Any]) -> str:
    """Which of its parameters is the Jaxpr that a call runs: it has JAX's name, which is not the same for all calls."""
    return "call_jaxpr" if "call_jaxpr" in params else "jaxpr"
