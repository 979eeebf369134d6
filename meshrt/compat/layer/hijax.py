"""`jax.experimental.hijax`: high types and primitives, as far as libraries declare them when they are imported.

High types of values that do not change are meshrt's (`meshrt.core.high`). Primitives over high types that are written
as JAX's `HiPrimitive`s can be declared, and are refused where they are used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from meshrt import errors
from meshrt.core.high import HiType, register_hitype
from meshrt.core.types import AbstractValue, ShapedArray
from meshrt.interpreters.ad import Zero, instantiate_zeros, is_undefined_primal
from meshrt.numpy.names import missing as _missing

__all__ = [
    "AbstractValue", "AvalMutableQDD", "AvalQDD", "HiPrimitive", "HiType", "MutableHiType", "ShapedArray", "Zero",
    "aval_method", "aval_property", "control_flow_allowed_effects", "instantiate_zeros", "is_undefined_primal",
    "register_hitype",
]  # fmt: skip


class MutableHiType(HiType):
    """The type of values that programs write to. It can be declared; no value has it."""


class HiPrimitive:
    """An operation over high types, declared by its methods. Its application raises UnsupportedError."""

    multiple_results = False

    def __init__(self, name: str):
        self.name = name

    def bind(self, *args: Any, **params: Any) -> NoReturn:
        """Refuses."""
        raise errors.UnsupportedError(
            f"the operation '{self.name}' is a HiPrimitive, and meshrt has none: keep the arrays of such a value in a "
            "pytree (in flax.nnx, Variables without `use_hijax`)"
        )

    def __repr__(self) -> str:
        return self.name


class AvalQDD:
    """A type, and what else is known of a value now (its quasi-dynamic data)."""

    def __init__(self, aval: Any, qdd: Any):
        self.aval, self.qdd = aval, qdd


class AvalMutableQDD(AvalQDD):
    """A type, and what is known of a value that is being written to."""


class aval_method:
    """A method that tracers of a high type have: a function that a type declares for its values."""

    def __init__(self, fun: Callable[..., Any]):
        self.fun = fun


class aval_property:
    """A property that tracers of a high type have."""

    def __init__(self, fget: Callable[..., Any]):
        self.fget = fget


class _EffectTypes:
    """Classes of effects that bodies of loops and branches may have."""

    def __init__(self) -> None:
        self._types: set[type] = set()

    def add_type(self, effect: type) -> None:
        """Allows effects of a class."""
        self._types.add(effect)

    def contains(self, effect: Any) -> bool:
        """Whether an effect is allowed."""
        return isinstance(effect, tuple(self._types))


control_flow_allowed_effects = _EffectTypes()
__getattr__ = _missing("jax.experimental.hijax", __all__)
