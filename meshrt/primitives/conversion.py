"""Conversions between element types: convert_element_type, those to and from extended dtypes, reduce_precision."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.pointwise import nary
from meshrt.core.basic.shapes import move_dim
from meshrt.core.explicit import moved
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.source import user_stacklevel
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.traced_scalars import as_constant, literal_of


def _convert_infer(x: ShapedArray, *, new_dtype: Any, weak_type: bool) -> ShapedArray:
    return ShapedArray(x.shape, new_dtype, weak_type)


def _convert_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, new_dtype: Any, weak_type: bool
) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    out = convert_element_type_p.bind(x, new_dtype=new_dtype, weak_type=weak_type)
    if t is None or not dtypes.issubdtype(new_dtype, np.inexact):
        return out, None
    return out, convert_element_type_p.bind(t, new_dtype=new_dtype, weak_type=weak_type)


def _convert_transpose(ct: Any, x: Any, *, new_dtype: Any, weak_type: bool) -> list[Any]:
    if dtypes.issubdtype(x.aval.dtype, np.inexact) and not dtypes.issubdtype(new_dtype, np.inexact):
        return [None]  # as its derivative: integers have none
    return [cotangent_of(ct, x.aval)]


def _convert_lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    source, out = eqn.invars[0].aval, eqn.outvars[0].aval
    if source.dtype == out.dtype:
        return x
    if source.dtype.kind == "c" and out.dtype.kind != "c":
        source = ShapedArray(source.shape, np.empty((), source.dtype).real.dtype)
        x = ctx.op("stablehlo.real", [x], source)
        if source.dtype == out.dtype:
            return x
    if out.dtype == np.bool_ and source.dtype != np.bool_:
        kind = "FLOAT" if dtypes.issubdtype(source.dtype, np.inexact) else "SIGNED"
        kind = "UNSIGNED" if dtypes.issubdtype(source.dtype, np.unsignedinteger) else kind
        attrs = (
            "comparison_direction = #stablehlo<comparison_direction NE>, "
            f"compare_type = #stablehlo<comparison_type {kind}>"
        )
        return ctx.op("stablehlo.compare", [x, ctx.full(0, source.strong())], out, attrs)
    return ctx.op("stablehlo.convert", [x], out)


def _same_dim(primitive: Callable[[], Primitive]) -> Callable[..., Any]:
    return lambda size, args, dims, params: (primitive().bind(*args, **params), dims[0])


convert_element_type_p: Primitive = Primitive(
    "convert_element_type", _convert_infer, lower=_convert_lower, jvp=_convert_jvp, transpose=_convert_transpose,
    batch=_same_dim(lambda: convert_element_type_p), sums=moved, cheap=True, finite=True, optional=("sharding",),
)  # fmt: skip


def convert_element_type(x: Any, new_dtype: Any, weak_type: bool = False) -> Any:
    """`x` with elements of `new_dtype` (canonicalized)."""
    new_dtype = dtypes.canonicalize_dtype(dtypes.dtype(new_dtype))
    aval = aval_of(x)
    if isinstance(aval.dtype, dtypes.ExtendedDType) or isinstance(new_dtype, dtypes.ExtendedDType):
        if aval.dtype == new_dtype:
            return x
        return _convert_extended(x, aval, new_dtype)
    if type(x) is complex and new_dtype.kind not in "bc":  # (all numbers have a truth)
        raise errors.ArgumentTypeError(f"a complex number such as {x} cannot become {new_dtype}: take its real part")
    if aval.dtype == new_dtype and aval.weak_type == weak_type and type(x) not in (bool, int, float):
        return x
    if isinstance(x, bool | int | float | np.generic) or (type(x) is complex and new_dtype.kind == "b"):
        if not weak_type:
            return np.asarray(x).astype(new_dtype)[()]
    return bind_conversion(x, new_dtype, weak_type)


# ---------------------------------------------------------------------------------------------------------------------
# Extended dtypes: the physical array and what it stands for


class ExtendedConversionError(errors.ArgumentTypeError, errors.ArgumentValueError):
    """An array that is not the physical array of the extended dtype that it is converted to, or the other way round."""


def _convert_extended(x: Any, aval: ShapedArray, new_dtype: Any) -> Any:
    to, back = isinstance(new_dtype, dtypes.ExtendedDType), isinstance(aval.dtype, dtypes.ExtendedDType)
    extended, number = (new_dtype, aval.dtype) if to else (aval.dtype, new_dtype)
    if (to and back) or not extended.is_converted(number, back):
        raise no_key_bits("convert_element_type", aval, new_dtype)
    if number != extended.physical_dtype:
        raise ExtendedConversionError(
            f"can only convert {'to' if to else 'from'} an extended dtype {'from' if to else 'to'} its representation "
            f"dtype, but tried to convert from {aval.dtype} to {new_dtype}, whose representation type is "
            f"{extended.physical_dtype}: convert {'the array' if to else 'to that'} first"
        )
    return to_edtype_p.bind(x, edtype=extended) if to else from_edtype_p.bind(x, dtype=number)


def elements_of(x: Any) -> Any:
    """The physical array of one of an extended dtype, whatever that says of conversions."""
    return from_edtype_p.bind(x, dtype=aval_of(x).dtype.physical_dtype)


def _to_edtype_infer(x: ShapedArray, *, edtype: Any) -> ShapedArray:
    suffix = edtype.physical_suffix
    rank = x.ndim - len(suffix)
    if rank < 0 or x.shape[rank:] != suffix:
        raise ExtendedConversionError(
            f"can only convert to extended dtype from an array of its representation type, but the extended dtype "
            f"{edtype} has a representation shape {suffix} (rank {len(suffix)}) while the given representation array "
            f"has shape {x.shape}: its last dimensions must be those"
        )
    return ShapedArray(x.shape[:rank], edtype)


def _to_edtype_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, int]:
    return to_edtype_p.bind(move_dim(args[0], dims[0], 0), **params), 0


def _edtype_jvp(get: Callable[[], Primitive]) -> Callable[..., Any]:
    """The derivative of a conversion: the tangent becomes what derivatives of the result are elements of."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out, (t,) = get().bind(*primals, **params), tangents
        kind = aval_of(out).to_tangent_aval().dtype
        return out, None if t is None or kind == dtypes.float0 else convert_element_type(t, kind)

    return jvp


to_edtype_p: Primitive = Primitive(
    "to_edtype", _to_edtype_infer, lower=lambda ctx, eqn, x: x, batch=_to_edtype_batch,
    jvp=_edtype_jvp(lambda: to_edtype_p), transpose=lambda ct, x, edtype: [convert_element_type(ct, x.aval.dtype)],
)  # fmt: skip
from_edtype_p: Primitive = Primitive(
    "from_edtype", lambda x, *, dtype: ShapedArray(x.physical().shape, dtype), lower=lambda ctx, eqn, x: x,
    batch=_same_dim(lambda: from_edtype_p), jvp=_edtype_jvp(lambda: from_edtype_p),
    transpose=lambda ct, x, dtype: [convert_element_type(ct, x.aval.dtype)],
)  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------


def as_weak(tangent: Any, aval: ShapedArray) -> Any:
    """The tangent of an argument (None for zero), as weak as that is: what follows is as weak as the rules say then."""
    if tangent is None or not aval.weak_type or not aval.is_differentiable or aval_of(tangent).weak_type:
        return tangent
    return convert_element_type(tangent, aval.dtype, weak_type=True)


def cotangent_of(ct: Any, aval: ShapedArray) -> Any:
    """A cotangent in the dtype of its operand; that imaginary parts go is no loss here, and nothing to warn of."""
    if aval.dtype.kind != "c" and aval_of(ct).dtype.kind == "c":
        return convert_element_type_p.bind(ct, new_dtype=aval.dtype, weak_type=aval.weak_type)
    return convert_element_type(ct, aval.dtype, aval.weak_type)


def bind_conversion(x: Any, new_dtype: Any, weak_type: bool) -> Any:
    """The equation that converts `x`; of a constant another constant."""
    literal = literal_of(x)
    if literal is not None:
        value = np.asarray(literal).astype(new_dtype)[()]
        value = dtypes.scalar_type_of(new_dtype)(value) if weak_type else value
        if aval_of(value).dtype == new_dtype:
            return as_constant(value)
    if new_dtype.kind != "c" and aval_of(x).dtype.kind == "c":
        warnings.warn(
            f"Casting complex values to real discards the imaginary part: {aval_of(x).short()} to {new_dtype}",
            np.exceptions.ComplexWarning,
            stacklevel=user_stacklevel(),
        )
    return convert_element_type_p.bind(x, new_dtype=new_dtype, weak_type=weak_type)


class KeyConversionError(errors.ArgumentTypeError, errors.ArgumentValueError, NotImplementedError):
    """Random keys are no numbers, and numbers no keys; nor are elements of other extended dtypes that say so."""


def no_key_bits(function: str, x: ShapedArray, new_dtype: Any) -> KeyConversionError:
    """The error for keys of which the words are asked in passing, and for numbers that are to be keys."""
    fix = "meshrt.random.key_data(key) gives the words of keys"
    if not x.is_key and not isinstance(new_dtype, dtypes.KeyType):
        fix = "the rules of the extended dtype say what may be converted (allow_conversion)"
    elif not isinstance(x.dtype, dtypes.ExtendedDType):
        fix = "meshrt.random.wrap_key_data(words, impl=...) makes keys of words"
    return KeyConversionError(f"Cannot {function} from {x.dtype} to {new_dtype}: {fix}")


reduce_precision_p: Primitive = nary(
    "reduce_precision", "stablehlo.reduce_precision", 1, kinds="f",
    attrs=lambda a, exponent_bits, mantissa_bits: (
        f"exponent_bits = {exponent_bits} : i32, mantissa_bits = {mantissa_bits} : i32"
    ),
    derivatives=[lambda t, o, x, **p: reduce_precision_p.bind(t, **p)],
    transpose=lambda ct, x, **p: [reduce_precision_p.bind(ct, **p)],
)  # fmt: skip
