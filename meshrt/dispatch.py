"""Eager evaluation: a primitive applied to arrays is a jitted function of one equation, cached by its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt import config
from meshrt.core.primitive import Primitive
from meshrt.core.trace import EvalTrace

__all__ = ["evaluate"]

_functions: dict[Any, Any] = {}


def evaluate(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """Runs a primitive on arrays, NumPy values and Python scalars."""
    key = (primitive, tuple(params.items()))
    function = _functions.get(key)
    if function is None:
        from meshrt.jit import jit

        def apply(*operands: Any) -> Any:
            return primitive.bind(*operands, **params)

        apply.__name__ = apply.__qualname__ = primitive.name
        function = _functions[key] = jit(apply)
    if config.settings.disable_jit:  # single operations are compiled all the same
        with config.override(disable_jit=False):
            return function(*args)
    return function(*args)


def clear() -> None:
    """Forgets the compiled primitives."""
    _functions.clear()


EvalTrace.evaluate = staticmethod(evaluate)
