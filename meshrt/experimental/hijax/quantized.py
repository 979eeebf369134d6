"""`QArray`: a matrix of int8 with a scale per row, for weights that are kept small.

Its value is `values * scales[:, None]`. Derivatives are those of that matrix (straight through): the tangent and the
cotangent of a QArray are float32 matrices. Over a mesh its scales are split as its rows are (`QSpec`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.high import HiType, aval_property, register_hitype
from meshrt.core.types import ShapedArray, aval_of, in_program
from meshrt.experimental.hijax.vjp_operations import VJPHiPrimitive
from meshrt.interpreters.ad import instantiate_zeros
from meshrt.numpy import abs as absolute
from meshrt.numpy import clip, matmul, where
from meshrt.numpy import max as largest
from meshrt.numpy import round as rounded
from meshrt.sharding.high_spec import HiPspec
from meshrt.sharding.spec import PartitionSpec
from meshrt.transforms.mapped import MappingSpec

__all__ = ["QArray", "QMapping", "QSpec", "QType", "dequantize", "quantize", "quantized_matmul"]

_FLOAT, _INT = np.dtype(np.float32), np.dtype(np.int8)


@dataclass(frozen=True, eq=False)
class QArray:
    """`values: int8[rows, columns]` and `scales: float32[rows]`; made by `quantize`."""

    values: Any
    scales: Any


@dataclass(frozen=True)
class QMapping(MappingSpec):
    """A batch of quantized matrices: both arrays have it as their first dimension."""


@dataclass(frozen=True)
class QSpec(HiPspec):
    """How a quantized matrix is split: its rows, with their scales, and its columns, over axes of a mesh."""

    rows: Any = None
    columns: Any = None

    def to_lo(self) -> tuple[PartitionSpec, ...]:
        return PartitionSpec(self.rows, self.columns), PartitionSpec(self.rows)


def _shape(q: Any) -> tuple[int, ...]:
    kind: Any = aval_of(q)
    shape: tuple[int, ...] = kind.values.shape
    return shape


@dataclass(frozen=True)
class QType(HiType):
    """The type of a quantized matrix, or of a batch of them."""

    values: ShapedArray
    scales: ShapedArray

    shape = aval_property(_shape)

    def __str__(self) -> str:
        return f"q8[{','.join(map(str, self.values.shape))}]"

    def lo_ty(self) -> list[ShapedArray]:
        return [self.values, self.scales]

    def lower_val(self, value: QArray) -> list[Any]:
        return [value.values, value.scales]

    def raise_val(self, *arrays: Any) -> QArray:
        return QArray(*arrays)

    def to_tangent_aval(self) -> ShapedArray:
        return self.values.update(dtype=_FLOAT)

    def dec_rank(self, size: int | None, spec: Any) -> QType:
        return QType(self.values.dec_rank(size, 0), self.scales.dec_rank(size, 0))

    def inc_rank(self, size: int | None, spec: Any) -> QType:
        return QType(self.values.inc_rank(size, 0), self.scales.inc_rank(size, 0))

    def leading_axis_spec(self) -> QMapping:
        return QMapping()


register_hitype(QArray, lambda q: QType(aval_of(q.values), aval_of(q.scales)))


class _Quantize(VJPHiPrimitive):
    def __init__(self, aval: ShapedArray):
        if aval.ndim != 2 or aval.dtype != _FLOAT:
            raise errors.ArgumentTypeError(
                f"quantize takes a float32 matrix, not {aval.str_short()}: reshape or astype"
            )
        self.in_avals, self.params = (aval,), {}
        self.out_aval = QType(aval.update(dtype=_INT, weak_type=False), ShapedArray(aval.shape[:1], _FLOAT))
        super().__init__()

    def expand(self, x: Any) -> QArray:
        scales = largest(absolute(x), axis=1) / 127
        safe = where(scales == 0, np.float32(1), scales)
        return QArray(clip(rounded(x / safe[:, None]), -127, 127).astype(_INT), safe)

    def jvp(self, primals: Any, tangents: Any) -> Any:
        return self(*primals), instantiate_zeros(tangents[0])

    def lin(self, nzs_in: Any, x: Any) -> Any:
        return self(x), None

    def linearized(self, residuals: Any, tangent: Any) -> Any:
        return instantiate_zeros(tangent)

    def vjp_fwd(self, nzs_in: Any, /, x: Any) -> Any:
        return self(x), None

    def vjp_bwd_retval(self, res: Any, outgrad: Any, /) -> Any:
        return (outgrad,)


class _Dequantize(VJPHiPrimitive):
    def __init__(self, kind: QType):
        self.in_avals, self.out_aval, self.params = (kind,), kind.to_tangent_aval(), {}
        super().__init__()

    def expand(self, q: QArray) -> Any:
        return q.values.astype(_FLOAT) * q.scales[..., None]

    def jvp(self, primals: Any, tangents: Any) -> Any:
        return self(*primals), instantiate_zeros(tangents[0])

    def lin(self, nzs_in: Any, q: Any) -> Any:
        return self(q), None

    def linearized(self, residuals: Any, tangent: Any) -> Any:
        return instantiate_zeros(tangent)

    def vjp_fwd(self, nzs_in: Any, /, q: Any) -> Any:
        return self(q), None

    def vjp_bwd_retval(self, res: Any, outgrad: Any, /) -> Any:
        return (outgrad,)

    def batch(self, axis_data: Any, args: Any, dims: Any) -> Any:
        return dequantize(args[0]), 0


class _Matmul(VJPHiPrimitive):
    """`x @ q`, whose derivative in `q` is that of `x @ dequantize(q)`."""

    def __init__(self, x: ShapedArray, kind: QType):
        if x.ndim != 2 or len(kind.values.shape) != 2 or x.shape[1] != kind.values.shape[0]:
            raise errors.ArgumentTypeError(
                f"quantized_matmul multiplies a matrix by a quantized one of as many rows as it has columns, not "
                f"{x.str_short()} by {kind}"
            )
        self.in_avals, self.params = (x, kind), {}
        self.out_aval = ShapedArray((x.shape[0], kind.values.shape[1]), x.dtype)
        super().__init__()

    def expand(self, x: Any, q: QArray) -> Any:
        return matmul(x * q.scales.astype(x.dtype), q.values.astype(x.dtype))

    def jvp(self, primals: Any, tangents: Any) -> Any:
        (x, q), (dx, dq) = primals, map(instantiate_zeros, tangents)
        return self(x, q), quantized_matmul(dx, q) + matmul(x, dq.astype(x.dtype))

    def vjp_fwd(self, nzs_in: Any, /, x: Any, q: Any) -> Any:
        return self(x, q), (x, q)

    def vjp_bwd_retval(self, res: Any, outgrad: Any, /) -> Any:
        x, q = res
        return matmul(outgrad, dequantize(q).T.astype(x.dtype)), matmul(x.T, outgrad).astype(_FLOAT)


def quantize(x: Any) -> Any:
    """A float32 matrix as int8 with a scale per row, to the nearest representable value.

    >>> import meshrt.numpy as jnp
    >>> q = quantize(jnp.eye(3))
    >>> float(dequantize(q)[1, 1])
    1.0

    Raises:
      ArgumentTypeError: no float32 matrix.
    """
    return _Quantize(in_program(aval_of(x)))(x)


def dequantize(q: Any) -> Any:
    """The float32 matrix that a quantized one stands for."""
    kind: Any = aval_of(q)
    return _Dequantize(kind)(q)


def quantized_matmul(x: Any, q: Any) -> Any:
    """`x @ dequantize(q)` without the matrix of floats in memory: the scales multiply `x`.

    Raises:
      ArgumentTypeError: shapes that do not fit.
    """
    kind: Any = aval_of(q)
    return _Matmul(in_program(aval_of(x)), kind)(x, q)
