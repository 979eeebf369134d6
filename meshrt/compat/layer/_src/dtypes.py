"""`jax._src.dtypes`."""

import dataclasses
import types
from typing import Any

import numpy as np

from meshrt import dtypes as _dtypes
from meshrt.dtypes import *  # noqa: F403
from meshrt.dtypes import DType
from meshrt.dtypes import __all__ as _all
from meshrt.numpy.names import missing as _missing

__all__ = [*_all, "DType", "primal_tangent_dtype", "supports_inf"]  # noqa: PLE0604


class _Scalar(_dtypes.extended):
    """The scalar type of dtypes that differ from that of their derivatives."""


@dataclasses.dataclass(frozen=True)
class _PrimalTangent(_dtypes.ExtendedDType):
    """Elements of one dtype whose derivatives are of another."""

    primal: Any
    tangent: Any
    name: str
    type = _Scalar

    def __repr__(self) -> str:
        return self.name

    @property
    def _rules(self) -> Any:
        return types.SimpleNamespace(
            physical_element_aval=lambda dtype: types.SimpleNamespace(shape=(), dtype=self.primal),
            tangent_dtype=lambda dtype: self.tangent,
            allow_conversion=True,
        )


def primal_tangent_dtype(primal_dtype: Any, tangent_dtype: Any, name: str | None = None) -> Any:
    """The extended dtype of elements of `primal_dtype` whose derivatives have `tangent_dtype`."""
    primal, tangent = _dtypes.dtype(primal_dtype), _dtypes.dtype(tangent_dtype)
    short = f"{_dtypes.short_dtype_name(primal)}/{_dtypes.short_dtype_name(tangent)}"
    return _PrimalTangent(primal, tangent, name or f"PrimalTangentDType{{{short}}}")


def supports_inf(dtype: Any) -> bool:
    """Whether a floating-point type has infinities."""
    return bool(np.isinf(np.array(np.inf).astype(dtype)))


__getattr__ = _missing("jax._src.dtypes", __all__)
