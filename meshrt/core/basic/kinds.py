"""Which dtypes an operation takes, told by the kinds of these, and what is said of others."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import dtypes

__all__ = ["has_kind", "not_accepted"]


def has_kind(dtype: Any, kinds: str) -> bool:
    """`kinds`: b bool, i signed, u unsigned, f floating, c complex, x extended."""
    if isinstance(dtype, dtypes.ExtendedDType):
        return "x" in kinds
    if dtype == np.bool_:
        return "b" in kinds
    if dtypes.issubdtype(dtype, np.complexfloating):
        return "c" in kinds
    if dtypes.issubdtype(dtype, np.floating):
        return "f" in kinds
    if dtypes.issubdtype(dtype, np.unsignedinteger):
        return "u" in kinds
    return "i" in kinds


def not_accepted(name: str, dtype: Any, kinds: str, position: int | None = None) -> str:
    """What is said of an operand whose dtype is not among the `kinds` that `name` takes; of several, at which place."""
    at = "" if position is None else f" at position {position}"
    signed = [] if "u" in kinds or "i" not in kinds else ["signedinteger"]
    words = {"u": "integer", "f": "floating", "c": "complexfloating", "b": "bool"}
    accepted = ", ".join([word for kind, word in words.items() if kind in kinds] + signed)
    return (
        f"{name} does not accept dtype {dtype}{at}. Accepted dtypes{at} are subtypes of {accepted}. Convert with astype"
    )
