"""`Padded`: rows of which only the first `length` count, as in batches of sequences of different lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.attributes import unread
from meshrt.core.basic.parts import in_front
from meshrt.core.basic.shapes import bring_to_front
from meshrt.core.high import HiType, aval_method, aval_property, register_hitype
from meshrt.core.types import ShapedArray, aval_of, in_program
from meshrt.experimental.hijax.derived import linearize_from_jvp
from meshrt.experimental.hijax.saved import register_hitype_serialization
from meshrt.experimental.hijax.vjp_operations import VJPHiPrimitive
from meshrt.interpreters.ad import Zero, instantiate_zeros
from meshrt.numpy import arange, expand_dims, where
from meshrt.transforms.mapped import MappingSpec

__all__ = ["Padded", "PaddedMapping", "PaddedType", "filled", "padded", "padded_sum"]

_LENGTH = ShapedArray((), np.dtype(np.int32))


@dataclass(frozen=True, eq=False)
class Padded:
    """`rows`, of which the first `length` (int32[]) count; what the others hold is never seen."""

    rows: Any
    length: Any

    def filled(self, fill: Any = 0) -> Any:
        """All rows, with `fill` in those that do not count."""
        return filled(self, fill)

    def sum(self) -> Any:
        """The sum of the rows that count."""
        return padded_sum(self)


@dataclass(frozen=True)
class PaddedMapping(MappingSpec):
    """A batch of padded arrays: rows and lengths have it as their first dimension."""


@dataclass(frozen=True)
class PaddedType(HiType):
    """The type of rows with a length. Derivatives are those of all rows, zero where they do not count."""

    rows: ShapedArray
    length: ShapedArray

    filled, sum = aval_method(Padded.filled), aval_method(Padded.sum)

    def declared(self, name: str) -> Any:
        return aval_property(unread) if name in ("rows", "length") else super().declared(name)

    def __str__(self) -> str:
        return f"padded({self.rows.short()})"

    def lo_ty(self) -> list[ShapedArray]:
        return [self.rows, self.length]

    def lower_val(self, value: Padded) -> list[Any]:
        return [value.rows, value.length]

    def raise_val(self, *arrays: Any) -> Padded:
        return Padded(*arrays)

    def normalize(self) -> PaddedType:
        return PaddedType(self.rows.normalize(), self.length.normalize())

    def to_tangent_aval(self) -> ShapedArray:
        return self.rows.to_tangent_aval()

    def dec_rank(self, size: int | None, spec: Any) -> PaddedType:
        return PaddedType(self.rows.dec_rank(size, 0), self.length.dec_rank(size, 0))

    def inc_rank(self, size: int | None, spec: Any) -> PaddedType:
        return PaddedType(self.rows.inc_rank(size, 0), self.length.inc_rank(size, 0))

    def leading_axis_spec(self) -> PaddedMapping:
        return PaddedMapping()


register_hitype(Padded, lambda p: PaddedType(aval_of(p.rows), aval_of(p.length)))
register_hitype_serialization(PaddedType, serialized_name="meshrt.PaddedType")


def _counting(rows: Any, length: Any) -> Any:
    """Which elements count. A batch has its dimensions in front in both."""
    shape, lead = aval_of(rows).shape, aval_of(length).ndim
    counting = arange(shape[lead]) < expand_dims(length, -1)
    return counting.reshape(*shape[: lead + 1], *(1,) * (len(shape) - lead - 1))


class _Pad(VJPHiPrimitive):
    def __init__(self, rows: ShapedArray, length: ShapedArray):
        if rows.ndim <= length.ndim:
            raise errors.ArgumentTypeError(f"padded takes an array with rows, not {rows.short()}")
        self.in_avals, self.out_aval, self.params = (rows, length), PaddedType(rows, length), {}
        super().__init__()

    def expand(self, rows: Any, length: Any) -> Padded:
        return Padded(rows, length)

    def jvp(self, primals: Any, tangents: Any) -> Any:
        rows, length = primals
        return self(rows, length), where(_counting(rows, length), instantiate_zeros(tangents[0]), 0)

    lin, linearized = linearize_from_jvp

    def vjp_fwd(self, nzs_in: Any, /, rows: Any, length: Any) -> Any:
        return self(rows, length), (rows, length)

    def vjp_bwd_retval(self, res: Any, outgrad: Any, /) -> Any:
        return where(_counting(*res), outgrad, 0), None

    def batch(self, axis_data: Any, args: Any, dims: Any) -> Any:
        rows, length = (bring_to_front(axis_data.size, x, d) for x, d in zip(args, dims))
        return _Pad(aval_of(rows), aval_of(length))(rows, length), PaddedMapping()


class _Filled(VJPHiPrimitive):
    fill: Any

    def __init__(self, kind: PaddedType, fill: Any):
        self.in_avals, self.out_aval, self.params = (kind,), kind.rows, {"fill": fill}
        super().__init__()

    def expand(self, value: Padded) -> Any:
        return where(_counting(value.rows, value.length), value.rows, np.asarray(self.fill, self.out_aval.dtype)[()])

    def jvp(self, primals: Any, tangents: Any) -> Any:
        return self(*primals), _masked(primals[0], tangents[0])

    lin, linearized = linearize_from_jvp

    def vjp_fwd(self, nzs_in: Any, /, value: Any) -> Any:
        return self(value), value

    def vjp_bwd_retval(self, res: Any, outgrad: Any, /) -> Any:
        return (_masked(res, outgrad),)

    def batch(self, axis_data: Any, args: Any, dims: Any) -> Any:
        return filled(args[0], self.fill), 0


class _Masked(VJPHiPrimitive):
    """A derivative with zeros in the rows that do not count; linear in it."""

    def __init__(self, kind: PaddedType, derivative: ShapedArray):
        self.in_avals, self.out_aval, self.params = (kind, derivative), derivative, {}
        super().__init__()

    def expand(self, value: Padded, derivative: Any) -> Any:
        return where(_counting(value.rows, value.length), derivative, 0)

    def jvp(self, primals: Any, tangents: Any) -> Any:
        return self(*primals), _masked(primals[0], tangents[1])

    lin, linearized = linearize_from_jvp

    def vjp_fwd(self, nzs_in: Any, /, value: Any, derivative: Any) -> Any:
        return self(value, derivative), value

    def vjp_bwd_retval(self, res: Any, outgrad: Any, /) -> Any:
        return None, _masked(res, outgrad)

    def transpose(self, out_ct: Any, *maybe_accums: Any) -> None:
        value, accum = maybe_accums
        if type(out_ct) is not Zero:
            accum.accum(self(value, out_ct))

    def batch(self, axis_data: Any, args: Any, dims: Any) -> Any:
        value, derivative = (in_front(axis_data.size, x, d) for x, d in zip(args, dims))
        return _masked(value, derivative), 0


def _masked(value: Any, derivative: Any) -> Any:
    if type(derivative) is Zero:
        return derivative
    kind: Any = aval_of(value)
    return _Masked(kind, in_program(aval_of(derivative)))(value, derivative)


def padded(rows: Any, length: Any) -> Any:
    """An array of whose rows only the first `length` count.

    >>> import meshrt.numpy as jnp
    >>> padded_sum(padded(jnp.arange(4.0), 2))
    Array(1., dtype=float32)
    """
    length = np.int32(length) if isinstance(length, int) else length
    if aval_of(length).strong() != _LENGTH:
        raise errors.ArgumentTypeError(f"padded takes a length of type int32[], not {aval_of(length).short()}")
    return _Pad(aval_of(rows), _LENGTH)(rows, length)


def filled(value: Any, fill: Any = 0) -> Any:
    """All rows, with `fill` in those that do not count.

    >>> import meshrt.numpy as jnp
    >>> filled(padded(jnp.arange(1.0, 5.0), 2), -1.0)
    Array([ 1.,  2., -1., -1.], dtype=float32)

    Raises:
      ArgumentTypeError: no padded array.
    """
    kind: Any = aval_of(value)
    if not isinstance(kind, PaddedType):
        raise errors.ArgumentTypeError(f"filled takes an array made by padded, not {kind.short()}")
    return _Filled(kind, fill)(value)


def padded_sum(value: Any) -> Any:
    """The sum of the rows that count."""
    return filled(value).sum(0)
