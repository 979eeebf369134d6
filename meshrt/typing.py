"""Types for annotations: what functions of arrays take."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from meshrt.core.operators import ArrayOperators

__all__ = ["ArrayLike", "DTypeLike"]

# Arrays, tracers and scalars: no lists, which functions refuse.
ArrayLike: TypeAlias = ArrayOperators | np.ndarray | np.bool_ | np.number | bool | int | float | complex
# Names of dtypes, scalar types, and objects with an attribute `dtype`.
DTypeLike: TypeAlias = str | type[Any] | np.dtype | Any
