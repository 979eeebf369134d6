"""`QArray`: a matrix of int8 with a scale per row or per column, for weights that are kept small.

    x @ q    q @ x    q + x    x + q    q - x    x - q    q.T    q.mT    q.shape    q.ndim    q.dequantize()

also inside of functions that are compiled or transformed. Sums and differences are quantized as `q` is.

Its value is `values * scales[:, None]`, or `values * scales[None, :]` with `axis` 1: `transposed` moves no data. Stacks
of matrices have leading dimensions in both arrays. Derivatives are those of the matrix that it stands for (straight
through): tangents and cotangents are float32 matrices. Over a mesh scales are split as the dimension that they run
along (`QSpec`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.attributes import unread
from meshrt.core.high import HiType, aval_method, aval_property, register_hitype
from meshrt.core.types import ShapedArray, aval_of, in_program
from meshrt.experimental.hijax.derived import linearize_from_jvp
from meshrt.experimental.hijax.saved import register_hitype_serialization
from meshrt.experimental.hijax.vjp_operations import VJPHiPrimitive
from meshrt.interpreters.ad import instantiate_zeros
from meshrt.numpy import abs as absolute
from meshrt.numpy import asarray, clip, expand_dims, matmul, moveaxis, swapaxes, where
from meshrt.numpy import max as largest
from meshrt.numpy import round as rounded
from meshrt.numpy import sum as total
from meshrt.sharding.high_spec import HiPspec
from meshrt.sharding.spec import PartitionSpec
from meshrt.transforms.mapped import MappingSpec

__all__ = [
    "QArray", "QMapping", "QSpec", "QType", "dequantize", "quantize", "quantized_add", "quantized_matmul", "transposed",
]  # fmt: skip

_FLOAT, _INT = np.dtype(np.float32), np.dtype(np.int8)


def _shape(q: Any) -> tuple[int, ...]:
    kind: Any = aval_of(q)
    shape: tuple[int, ...] = kind.values.shape
    return shape


def _rank(q: Any) -> int:
    return len(_shape(q))


def _flipped(q: Any) -> Any:
    return transposed(q)


def _made_floats(q: Any) -> Any:
    """The float32 matrix that it stands for."""
    return dequantize(q)


def _turned(q: Any) -> Any:
    """What `q.T` is."""
    if len(_shape(q)) != 2:
        raise errors.ArgumentValueError(
            f"T of a stack of quantized matrices of shape {_shape(q)} would reverse all dimensions: the transpose of "
            "each is q.mT"
        )
    return transposed(q)


@dataclass(frozen=True, eq=False)
class QArray:
    """`values: int8[..., rows, columns]` and `scales: float32[..., rows]`, or with `axis` 1 `float32[..., columns]`.
    Made by `quantize`.

    >>> import meshrt.numpy as jnp
    >>> q = quantize(jnp.array([[1.0, 2.0, 4.0], [0.0, 2.0, 0.0]]), axis=1)
    >>> jnp.ones((1, 2)) @ q
    Array([[1., 4., 4.]], dtype=float32)
    >>> (q.T + q.T).shape
    (3, 2)
    """

    values: Any
    scales: Any
    axis: int = 0

    __array_ufunc__ = None  # NumPy's arrays leave operators to these

    shape, ndim, T, mT = property(_shape), property(_rank), property(_turned), property(_flipped)
    dequantize = _made_floats

    def __matmul__(self, other: Any) -> Any:
        return quantized_matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return quantized_matmul(other, self)

    def __add__(self, other: Any) -> Any:
        return quantized_add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return _difference(self, other)

    def __rsub__(self, other: Any) -> Any:
        return _difference(other, self)


@dataclass(frozen=True)
class QMapping(MappingSpec):
    """A batch of quantized matrices: both arrays have it as their first dimension."""


@dataclass(frozen=True)
class QSpec(HiPspec):
    """How a quantized matrix is split over axes of a mesh: its rows and its columns, and with them the scales, one per
    row or with `axis` 1 one per column."""

    rows: Any = None
    columns: Any = None
    axis: int = 0

    def to_lo(self) -> tuple[PartitionSpec, ...]:
        return PartitionSpec(self.rows, self.columns), PartitionSpec((self.rows, self.columns)[self.axis])

    def to_tangent_spec(self) -> PartitionSpec:
        return PartitionSpec(self.rows, self.columns)


@dataclass(frozen=True)
class QType(HiType):
    """The type of a quantized matrix, or of a stack of them."""

    values: ShapedArray
    scales: ShapedArray
    axis: int = 0

    shape = property(lambda self: self.values.shape)
    ndim = property(lambda self: self.values.ndim)
    T, mT, dequantize = aval_property(_turned), aval_property(_flipped), aval_method(_made_floats)

    def declared(self, name: str) -> Any:
        return aval_property(unread) if name in ("values", "scales") else super().declared(name)

    def _matmul(self, q: Any, other: Any) -> Any:
        return quantized_matmul(q, other)

    def _rmatmul(self, q: Any, other: Any) -> Any:
        return quantized_matmul(other, q)

    def _add(self, q: Any, other: Any) -> Any:
        return quantized_add(q, other)

    _radd = _add

    def _sub(self, q: Any, other: Any) -> Any:
        return _difference(q, other)

    def _rsub(self, q: Any, other: Any) -> Any:
        return _difference(other, q)

    @classmethod
    def of(cls, matrix: ShapedArray, axis: int) -> QType:
        """The type of what stands for a float32 matrix."""
        strong = matrix.update(weak_type=False)
        return cls(strong.update(dtype=_INT), strong.without(matrix.ndim - 1 - axis), axis)

    def __str__(self) -> str:
        return f"q8[{','.join(map(str, self.values.shape))}]{'' if self.axis == 0 else 'T'}"

    def lo_ty(self) -> list[ShapedArray]:
        return [self.values, self.scales]

    def lower_val(self, value: QArray) -> list[Any]:
        return [value.values, value.scales]

    def raise_val(self, *arrays: Any) -> QArray:
        values, scales = arrays
        return QArray(values, scales, self.axis)

    def to_tangent_aval(self) -> ShapedArray:
        return self.values.update(dtype=_FLOAT)

    def dec_rank(self, size: int | None, spec: Any) -> QType:
        return QType(self.values.dec_rank(size, 0), self.scales.dec_rank(size, 0), self.axis)

    def inc_rank(self, size: int | None, spec: Any) -> QType:
        return QType(self.values.inc_rank(size, 0), self.scales.inc_rank(size, 0), self.axis)

    def tangent_spec(self, *specs: Any) -> Any:
        return specs[0]

    def leading_axis_spec(self) -> QMapping:
        return QMapping()


register_hitype(QArray, lambda q: QType(aval_of(q.values), aval_of(q.scales), q.axis))
register_hitype_serialization(QType, serialized_name="meshrt.QType")


def _spread(scales: Any, axis: int) -> Any:
    """The scales beside the matrix that they multiply."""
    return expand_dims(scales, (-1, -2)[axis])


def _is_matrix(aval: Any) -> bool:
    return not aval.is_high and aval.ndim >= 2 and aval.dtype == _FLOAT


def _first(x: Any, dim: Any) -> Any:
    """A mapped argument with its mapped dimension in front."""
    return x if dim is None or isinstance(dim, QMapping) else moveaxis(x, dim, 0)


class _StraightThrough(VJPHiPrimitive):
    """An operation of one operand whose derivative is that of the matrices that operand and result stand for: `moved`
    of tangents, and its own inverse of cotangents. A batch is a stack."""

    def moved(self, tangent: Any) -> Any:
        return tangent

    def jvp(self, primals: Any, tangents: Any) -> Any:
        return self(*primals), self.moved(instantiate_zeros(tangents[0]))

    def lin(self, nzs_in: Any, x: Any) -> Any:
        return self(x), None

    def linearized(self, residuals: Any, tangent: Any) -> Any:
        return self.moved(instantiate_zeros(tangent))

    def vjp_fwd(self, nzs_in: Any, /, x: Any) -> Any:
        return self(x), None

    def vjp_bwd_retval(self, res: Any, outgrad: Any, /) -> Any:
        return (self.moved(instantiate_zeros(outgrad)),)


class _Quantize(_StraightThrough):
    axis: int

    def __init__(self, aval: ShapedArray, axis: int):
        if not _is_matrix(aval):
            raise errors.ArgumentTypeError(
                f"quantize takes a float32 matrix, or a stack of them, not {aval.short()}: reshape or astype"
            )
        self.in_avals, self.params = (aval,), {"axis": axis}
        self.out_aval = QType.of(aval, axis)
        super().__init__()

    def expand(self, x: Any) -> QArray:
        scales = largest(absolute(x), axis=(-1, -2)[self.axis]) / 127
        safe = where(scales == 0, np.float32(1), scales)
        return QArray(clip(rounded(x / _spread(safe, self.axis)), -127, 127).astype(_INT), safe, self.axis)

    def batch(self, axis_data: Any, args: Any, dims: Any) -> Any:
        return quantize(_first(args[0], dims[0]), self.axis), QMapping()


class _Dequantize(_StraightThrough):
    def __init__(self, kind: QType):
        self.in_avals, self.out_aval, self.params = (kind,), kind.to_tangent_aval(), {}
        super().__init__()

    def expand(self, q: QArray) -> Any:
        return q.values.astype(_FLOAT) * _spread(q.scales, q.axis)

    def batch(self, axis_data: Any, args: Any, dims: Any) -> Any:
        return dequantize(args[0]), 0


class _Transpose(_StraightThrough):
    def __init__(self, kind: QType):
        *lead, rows, columns = kind.values.shape
        self.in_avals, self.params = (kind,), {}
        self.out_aval = QType(kind.values.update(shape=(*lead, columns, rows)), kind.scales, 1 - kind.axis)
        super().__init__()

    def moved(self, tangent: Any) -> Any:
        return swapaxes(tangent, -1, -2)

    def expand(self, q: QArray) -> QArray:
        return QArray(swapaxes(q.values, -1, -2), q.scales, 1 - q.axis)

    def batch(self, axis_data: Any, args: Any, dims: Any) -> Any:
        return transposed(args[0]), QMapping()


class _Matmul(VJPHiPrimitive):
    """`x @ q`, whose derivative in `q` is that of `x @ dequantize(q)`."""

    def __init__(self, x: ShapedArray, kind: QType):
        if x.ndim < 2 or x.shape[-1] != kind.values.shape[-2]:
            raise errors.ArgumentTypeError(
                f"quantized_matmul multiplies a matrix by a quantized one of as many rows as it has columns, not "
                f"{x.short()} by {kind}"
            )
        lead = np.broadcast_shapes(x.shape[:-2], kind.values.shape[:-2])
        self.in_avals, self.params = (x, kind), {}
        self.out_aval = ShapedArray((*lead, x.shape[-2], kind.values.shape[-1]), x.dtype)
        super().__init__()

    def expand(self, x: Any, q: QArray) -> Any:
        values, scales = q.values.astype(x.dtype), expand_dims(q.scales.astype(x.dtype), -2)
        return matmul(x * scales, values) if q.axis == 0 else matmul(x, values) * scales

    def jvp(self, primals: Any, tangents: Any) -> Any:
        (x, q), (dx, dq) = primals, map(instantiate_zeros, tangents)
        return self(x, q), quantized_matmul(dx, q) + matmul(x, dq.astype(x.dtype))

    lin, linearized = linearize_from_jvp

    def vjp_fwd(self, nzs_in: Any, /, x: Any, q: Any) -> Any:
        return self(x, q), (x, q)

    def vjp_bwd_retval(self, res: Any, outgrad: Any, /) -> Any:
        x, q = res
        ct = instantiate_zeros(outgrad)
        by_x = quantized_matmul(ct, transposed(q))
        by_q = matmul(swapaxes(x, -1, -2), ct).astype(_FLOAT)
        return _summed_to(by_x, x.shape), _summed_to(by_q, _shape(q))

    def batch(self, axis_data: Any, args: Any, dims: Any) -> Any:
        (x, q), (by_x, by_q) = args, dims
        x = _first(x, by_x)
        kind: Any = aval_of(q)
        rank, own = np.ndim(x) - (by_x is not None), len(kind.values.shape) - (by_q is not None)
        if by_x is not None and rank < own:  # the mapped dimension in front of what the product broadcasts
            x = expand_dims(x, tuple(range(1, 1 + own - rank)))
        if by_q is None or rank <= own:
            return quantized_matmul(x, q), 0
        matrix = expand_dims(dequantize(q), tuple(range(1, 1 + rank - own)))  # both have dimensions of their own
        return matmul(x, matrix.astype(x.dtype)), 0


def _summed_to(x: Any, shape: tuple[int, ...]) -> Any:
    """The cotangent of what was broadcast from `shape`."""
    x = total(x, axis=tuple(range(x.ndim - len(shape))))
    return total(x, axis=tuple(i for i, (a, b) in enumerate(zip(x.shape, shape)) if a != b), keepdims=True)


def quantize(x: Any, axis: int = 0) -> Any:
    """A float32 matrix as int8 with a scale per row (`axis` 0) or per column (1), to the nearest representable value.

    Args:
      x: float32[..., rows, columns]; leading dimensions make a stack.
      axis: 0 or 1, the dimension of a matrix that scales run along.

    >>> import meshrt.numpy as jnp
    >>> q = quantize(jnp.eye(3))
    >>> float(dequantize(q)[1, 1])
    1.0

    Raises:
      ArgumentTypeError: no float32 matrix.
      ArgumentValueError: another axis.
    """
    if axis not in (0, 1):
        raise errors.ArgumentValueError(f"quantize: axis is 0 (a scale per row) or 1 (per column), not {axis!r}")
    return _Quantize(in_program(aval_of(x)), axis)(x)


def dequantize(q: Any) -> Any:
    """The float32 matrix that a quantized one stands for."""
    return _Dequantize(_type(q, "dequantize"))(q)


def transposed(q: Any) -> Any:
    """The transpose of a quantized matrix, with the same scales: they run along the other dimension."""
    return _Transpose(_type(q, "transposed"))(q)


def quantized_matmul(x: Any, q: Any) -> Any:
    """`x @ dequantize(q)` without the matrix of floats in memory; or, with the quantized matrix first,
    `dequantize(x) @ q`.

    Scales per row multiply `x`, scales per column the product. Leading dimensions are broadcast as by `jnp.matmul`.

    Args:
      x, q: one array, one quantized matrix: `[..., m, k]` by `[..., k, n]`.

    Returns:
      An array `[..., m, n]` of the array's dtype.

    >>> import meshrt.numpy as jnp
    >>> quantized_matmul(jnp.ones((1, 2)), quantize(jnp.eye(2)))
    Array([[1., 1.]], dtype=float32)

    Raises:
      ArgumentTypeError: shapes that do not fit; two arrays, or two quantized matrices (dequantize one).
    """
    first, second = aval_of(x), aval_of(q)
    if isinstance(first, QType) and not isinstance(second, QType):
        return swapaxes(quantized_matmul(swapaxes(q, -1, -2), transposed(x)), -1, -2)
    if isinstance(first, QType):
        raise errors.ArgumentTypeError("quantized_matmul of two quantized matrices: dequantize one of them")
    kind = _type(q, "quantized_matmul")
    return _Matmul(in_program(first), kind)(x, q)


def quantized_add(q: Any, other: Any) -> Any:
    """The sum of a quantized matrix and an array, or another quantized matrix, quantized as `q` is.

    >>> import meshrt.numpy as jnp
    >>> q = quantize(jnp.eye(2))
    >>> dequantize(quantized_add(q, q))[0]
    Array([2., 0.], dtype=float32)

    Raises:
      ArgumentTypeError: `q` is not quantized, or the shapes do not fit.
    """
    kind = _type(q, "quantized_add")
    addend = dequantize(other) if isinstance(aval_of(other), QType) else other
    result = dequantize(q) + addend
    _need_shape("quantized_add", kind, result, addend)
    return quantize(result.astype(_FLOAT), kind.axis)


def _difference(x: Any, y: Any) -> Any:
    """`x - y`, of which one or both are quantized: quantized as the first that is."""
    first, second = (isinstance(aval_of(a), QType) for a in (x, y))
    if first:
        return quantized_add(x, -(dequantize(y) if second else asarray(y)))
    kind = _type(y, "-")
    result = asarray(x) - dequantize(y)
    _need_shape("-", kind, result, x)
    return quantize(result.astype(_FLOAT), kind.axis)


def _need_shape(name: str, kind: QType, result: Any, other: Any) -> None:
    if result.shape != kind.values.shape:
        raise errors.ArgumentTypeError(
            f"{name}: {kind} and {aval_of(other).short()} have a result of shape {result.shape}, which is not that of "
            "the quantized matrix: reshape the other one"
        )


def _type(q: Any, name: str) -> QType:
    kind = aval_of(q)
    if not isinstance(kind, QType):
        raise errors.ArgumentTypeError(f"{name} takes a quantized matrix, not {kind.short()}: quantize it first")
    return kind
