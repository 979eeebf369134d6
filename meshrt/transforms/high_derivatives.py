"""Derivatives of values of high types at the boundary of functions, and of values that have none."""

from __future__ import annotations

from typing import Any

from meshrt import errors
from meshrt.core.basic.shapes import no_derivatives
from meshrt.core.high import unlike

__all__ = ["check_derivative", "no_derivative"]


def no_derivative(aval: Any) -> Any:
    """What stands for the derivative of something of a type that has none."""
    return no_derivatives(() if aval.is_high else aval.shape)


def check_derivative(got: Any, wanted: Any, what: str) -> None:
    """ArgumentShapeError where a derivative is not of the type that those of a value of a high type have."""
    if unlike(got, wanted):
        raise errors.ArgumentShapeError(
            f"{what} has type {got.short()} where {wanted.short()} is needed: what derivatives of a high type "
            "are is said by its to_tangent_aval and to_ct_aval"
        )
