"""Operations on values that chips have instructions for: rotations, other readings of bits, packing, prints.

Each means a program of array operations, which is what runs where a back end has no instruction of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import debug, dtypes, errors, lax, tree_util
from meshrt import numpy as jnp
from meshrt.core.effects import DEBUG
from meshrt.core.primitive import Primitive
from meshrt.core.references import READ, WRITE
from meshrt.core.tracebacks import boundary
from meshrt.core.types import aval_of
from meshrt.experimental.kernels.semaphores import KERNEL_ONLY, ref_and_view
from meshrt.lowering.composed import write_composed
from meshrt.primitives.compositions import composition

__all__ = [
    "approx_tanh", "bitcast", "debug_barrier", "debug_print", "delay", "dot", "pack_elementwise", "reciprocal",
    "repeat", "roll", "stochastic_round", "touch", "trace_value", "unpack_elementwise", "with_memory_space_constraint",
]  # fmt: skip


def _bits(dtype: Any) -> int:
    name = dtypes.dtype(dtype).name
    return {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}.get(name, np.dtype(dtype).itemsize * 8)


# ----------------------------------------------------------------------------------------------------------------------
# Moving elements


def _rolled(x: Any, shift: Any, *, axis: int, stride: int | None, stride_axis: int | None) -> Any:
    if stride is None:
        return jnp.roll(x, shift, axis)
    parts = jnp.split(x, x.shape[stride_axis], stride_axis)
    return jnp.concatenate([jnp.roll(p, shift + i * stride, axis) for i, p in enumerate(parts)], stride_axis)


roll_p = composition("roll", _rolled)


@boundary
def roll(x: Any, shift: Any, axis: int, *, stride: int | None = None, stride_axis: int | None = None) -> Any:
    """`x` with elements moved `shift` places on along `axis`, those at the end to the front; with `stride` by so many
    places more for each step along `stride_axis`.

    >>> roll(jnp.arange(4)[None], 1, 1)
    Array([[3, 0, 1, 2]], dtype=int32)
    """
    ndim = aval_of(x).ndim
    if isinstance(shift, int) and shift < 0:
        raise errors.ArgumentValueError(f"shift must be non-negative, got {shift}: roll by size + shift instead.")
    if not 0 <= axis < ndim:
        raise errors.ArgumentValueError(f"axis is out of range: {axis} of an array with {ndim} dimensions.")
    if (stride is None) != (stride_axis is None):
        raise errors.ArgumentValueError("stride and stride_axis must be both specified or not.")
    if stride is not None and stride_axis is not None:
        if stride < 0:
            raise errors.ArgumentValueError(f"stride must be non-negative, got {stride}.")
        if not 0 <= stride_axis < ndim:
            raise errors.ArgumentValueError(
                f"stride_axis is out of range: {stride_axis} of an array with {ndim} dimensions"
            )
        if axis == stride_axis:
            raise errors.ArgumentValueError(f"expected axis and stride_axis are different, both are {axis}.")
    places = np.int32(shift) if isinstance(shift, int) else shift
    return roll_p.bind(x, places, axis=axis, stride=stride, stride_axis=stride_axis)


def repeat(x: Any, repeats: int, axis: int) -> Any:
    """`x` so many times, one copy behind the other along `axis`.

    >>> repeat(jnp.arange(2), 2, 0)
    Array([0, 1, 0, 1], dtype=int32)
    """
    ndim = aval_of(x).ndim
    return jnp.tile(x, [repeats if d == axis % ndim else 1 for d in range(ndim)])


def _other_type(x: Any, *, ty: Any) -> Any:
    old, new = _bits(x.dtype), _bits(ty)
    *lead, rows, columns = x.shape
    if old < new:
        ratio = new // old
        packed = jnp.swapaxes(x.reshape(*lead, rows // ratio, ratio, columns), -1, -2)
        return lax.bitcast_convert_type(packed, ty)
    if old > new:
        parts = lax.bitcast_convert_type(x, ty)
        return jnp.swapaxes(parts, -1, -2).reshape(*lead, rows * old // new, columns)
    return lax.bitcast_convert_type(x, ty)


bitcast_p = composition("bitcast", _other_type)


@boundary
def bitcast(x: Any, ty: Any) -> Any:
    """The same bits as elements of type `ty`: the second-last dimension grows or shrinks where these are narrower or
    wider."""
    kind, aval = dtypes.canonicalize_dtype(dtypes.dtype(ty)), aval_of(x)
    if aval.ndim < 2:
        raise errors.ArgumentValueError(f"Not implemented: bitcast 1D, of {aval.short()}; reshape it to 2D")
    if aval.shape[-2] * _bits(aval.dtype) % _bits(kind):
        raise errors.ArgumentValueError(
            f"Not implemented: the 2nd minor dim can not be perfectly packed or unpacked: {aval.short()} as {kind}"
        )
    return bitcast_p.bind(x, ty=kind)


# ----------------------------------------------------------------------------------------------------------------------
# Several narrow elements in a wide one


def _factor(wide: Any, narrow: Any) -> int:
    if _bits(wide) % _bits(narrow):
        raise errors.ArgumentValueError(
            f"Unpacked bitwidth must be a multiple of packed bitwidth, got {_bits(wide)} and {_bits(narrow)}"
        )
    return _bits(wide) // _bits(narrow)


def _packed(*xs: Any, packed_dtype: Any) -> Any:
    width = _bits(packed_dtype)
    whole = np.dtype(f"uint{_bits(xs[0].dtype)}")
    mask = np.asarray((1 << width) - 1, whole)
    out = jnp.zeros(xs[0].shape, whole)
    for i, x in enumerate(xs):
        if dtypes.issubdtype(x.dtype, np.floating):
            narrow = np.dtype(f"uint{width}")
            part = lax.bitcast_convert_type(x.astype(packed_dtype), narrow).astype(whole)
        else:
            part = lax.bitcast_convert_type(x, whole) & mask
        out = out | (part << np.asarray(i * width, whole))
    return out


pack_elementwise_p = composition("pack_elementwise", _packed)


@boundary
def pack_elementwise(xs: Sequence[Any], *, packed_dtype: Any) -> Any:
    """Arrays as one array of as wide unsigned integers: an element's lowest bits are that of the first, narrowed to
    `packed_dtype`."""
    kinds = [aval_of(x) for x in xs]
    if not kinds:
        raise errors.ArgumentValueError("At least one source is required")
    for what in ("shape", "dtype"):
        if len({getattr(k, what) for k in kinds}) > 1:
            raise errors.ArgumentValueError(f"All sources must have the same {what}, got {kinds}")
    first, narrow = kinds[0].dtype, dtypes.dtype(packed_dtype)
    is_integer = all(dtypes.issubdtype(d, np.integer) for d in (first, narrow))
    if not is_integer and not (first == np.float32 and narrow == dtypes.bfloat16):
        raise errors.ArgumentValueError(f"Only f32 -> bf16 and int -> int are supported. Got {first} and {narrow}")
    if len(kinds) != _factor(first, narrow):
        raise errors.ArgumentValueError(
            f"The number of sources must match the packing factor ({_factor(first, narrow)}), got {len(kinds)}"
        )
    return pack_elementwise_p.bind(*xs, packed_dtype=narrow)


def _unpacked(x: Any, *, index: int, packed_dtype: Any, unpacked_dtype: Any) -> Any:
    width, whole = _bits(packed_dtype), np.dtype(f"uint{_bits(unpacked_dtype)}")
    bits = lax.bitcast_convert_type(x, whole)
    if dtypes.issubdtype(packed_dtype, np.floating):
        narrow = np.dtype(f"uint{width}")
        part = (bits >> np.asarray(index * width, whole)).astype(narrow)
        return lax.bitcast_convert_type(part, packed_dtype).astype(unpacked_dtype)
    high = bits << np.asarray(_bits(unpacked_dtype) - (index + 1) * width, whole)
    signed = dtypes.issubdtype(packed_dtype, np.signedinteger)
    as_kind = np.dtype(f"{'int' if signed else 'uint'}{_bits(unpacked_dtype)}")
    moved = lax.bitcast_convert_type(high, as_kind) >> np.asarray(_bits(unpacked_dtype) - width, as_kind)
    return moved.astype(unpacked_dtype)


unpack_elementwise_p = composition("unpack_elementwise", _unpacked)


@boundary
def unpack_elementwise(x: Any, *, index: int, packed_dtype: Any, unpacked_dtype: Any) -> Any:
    """The array that `pack_elementwise` put at `index`, as elements of `unpacked_dtype`."""
    narrow, wide = dtypes.dtype(packed_dtype), dtypes.dtype(unpacked_dtype)
    if _bits(aval_of(x).dtype) != _bits(wide):
        raise errors.ArgumentValueError(
            "The bitwidth of `x` must match the bitwidth of `unpacked_dtype` for unpack_elementwise, but got "
            f"{aval_of(x).dtype} and {wide}"
        )
    if not 0 <= index < _factor(wide, narrow):
        raise errors.ArgumentValueError(f"Index {index} is out of bounds for packing factor {_factor(wide, narrow)}")
    return unpack_elementwise_p.bind(x, index=index, packed_dtype=narrow, unpacked_dtype=wide)


def _rounded(x: Any, random_bits: Any, *, target_dtype: Any) -> Any:
    info = dtypes.finfo(target_dtype)
    dropped = 23 - int(info.nmant)
    bits = lax.bitcast_convert_type(x.astype(np.float32), np.uint32)
    noise = random_bits & np.uint32((1 << dropped) - 1)
    kept = (bits + noise) & np.uint32(0xFFFFFFFF ^ ((1 << dropped) - 1))
    value = lax.bitcast_convert_type(kept, np.float32)
    return jnp.where(jnp.isfinite(x), value, x).astype(target_dtype)


stochastic_round_p = composition("stochastic_round", _rounded)


@boundary
def stochastic_round(x: Any, random_bits: Any, *, target_dtype: Any) -> Any:
    """`x`, of float32, rounded up or down to `target_dtype`, the more likely the nearer; `random_bits` are uint32."""
    kind, bits = aval_of(x), aval_of(random_bits)
    if bits.shape != kind.shape:
        raise errors.ArgumentValueError(
            f"The shape of `random_bits` must match the shape of `x` for stochastic_round, but got {bits.shape} and "
            f"{kind.shape}"
        )
    if bits.dtype != np.uint32:
        raise errors.ArgumentValueError(
            f"The dtype of `random_bits` must be uint32 for stochastic_round, but got {bits.dtype}"
        )
    return stochastic_round_p.bind(x, random_bits, target_dtype=dtypes.dtype(target_dtype))


# ----------------------------------------------------------------------------------------------------------------------
# Arithmetic


def _inverse(x: Any, *, approx: bool, full_range: bool) -> Any:
    return (1 / x.astype(dtypes.bfloat16)).astype(np.float32) if approx else 1 / x


reciprocal_p = composition("reciprocal", _inverse)


def reciprocal(x: Any, *, approx: bool = False, full_range: bool = True) -> Any:
    """1 / x. With `approx` hardware may be less exact, and faster; without `full_range` so for infinities and zeros."""
    return reciprocal_p.bind(x, approx=approx, full_range=full_range)


def approx_tanh(x: Any) -> Any:
    """The hyperbolic tangent, for which GPUs have a less exact instruction."""
    return approx_tanh_p.bind(x)


approx_tanh_p = composition("approx_tanh", jnp.tanh)


def dot(
    a: Any, b: Any, trans_a: bool = False, trans_b: bool = False, allow_tf32: bool | None = None, precision: Any = None
) -> Any:
    """The product of two matrices, of which each may be transposed first, accumulated in float32 (int32)."""
    kinds = [aval_of(x) for x in (a, b)]
    if any(k.ndim != 2 for k in kinds):
        raise errors.ArgumentValueError(f"`a` and `b` must be 2D arrays, got shapes {[k.shape for k in kinds]}.")
    if allow_tf32 is not None:
        if precision is not None:
            raise errors.ArgumentValueError("Only one of allow_tf32 and precision can be specified")
        precision = lax.Precision.HIGH if allow_tf32 else lax.Precision.HIGHEST
    wide = np.int32 if dtypes.issubdtype(kinds[0].dtype, np.integer) else np.float32
    dims = (((0 if trans_a else 1,), (1 if trans_b else 0,)), ((), ()))
    out_type = np.float64 if kinds[0].dtype == np.float64 else wide
    return lax.dot_general(a, b, dims, precision=precision, preferred_element_type=out_type)


# ----------------------------------------------------------------------------------------------------------------------
# What is done beside computing


def _print_lower(ctx: Any, eqn: Any, *operands: Any) -> list[Any]:
    def show(*values: Any) -> list[Any]:
        debug.print(eqn.params["fmt"], *values, skip_format_check=True)
        return []

    return write_composed(ctx, eqn, operands, [v.aval for v in eqn.invars], show)


debug_print_p: Primitive = Primitive(
    "debug_print", lambda *avals, fmt: [], multiple_results=True, typed=True, lower=_print_lower,
    jvp=lambda primals, tangents, *, fmt: (debug_print_p.bind(*primals, fmt=fmt), []),
    batch=lambda size, args, dims, params: (debug_print_p.bind(*args, **params), []),
    effects=lambda *avals, fmt: frozenset([DEBUG]), absent={"transpose": "it has no results"},
)  # fmt: skip


@boundary
def debug_print(fmt: str, *args: Any) -> None:
    """Prints `fmt.format(*args)` each time that a step of a kernel gets there."""
    debug_print_p.bind(*[jnp.asarray(a) for a in args], fmt=fmt)


def _nothing(name: str, infer: Any, effects: Any) -> Primitive:
    """An operation that only a chip does something for."""
    return Primitive(
        name, infer, multiple_results=True, typed=True, discharge=lambda args, params: [], effects=effects,
        lower=lambda ctx, eqn, *operands: [], absent=KERNEL_ONLY,
    )  # fmt: skip


def _traced_infer(value: Any, *, label: str) -> list[Any]:
    if value.shape:
        raise errors.ArgumentValueError(f"trace_value requires a scalar value, got shape {value.shape}")
    if value.dtype not in (np.int32, np.float32):
        raise errors.ArgumentValueError(f"trace_value requires i32 or f32, got {value.dtype}")
    return []


touch_p = _nothing("touch", lambda ref: [], lambda ref: frozenset([READ, WRITE]))
delay_p = _nothing("delay", lambda nanos: [], lambda nanos: frozenset([DEBUG]))
trace_value_p = _nothing("trace_value", _traced_infer, lambda value, *, label: frozenset([DEBUG]))
debug_barrier_p = _nothing("debug_barrier", lambda: [], lambda: frozenset([DEBUG]))


def touch(ref: Any) -> None:
    """Counts as reading and writing references, so that what stands before is not moved behind it."""
    for leaf in tree_util.tree_leaves(ref):
        touch_p.bind(ref_and_view(leaf)[0])


def delay(nanos: Any) -> None:
    """Waits so many nanoseconds on a chip; elsewhere it is nothing."""
    delay_p.bind(jnp.asarray(nanos, np.int32))


def trace_value(label: str, value: Any) -> None:
    """Notes a scalar in the profiler's trace of a chip; elsewhere it is nothing."""
    trace_value_p.bind(jnp.asarray(value), label=label)


def debug_barrier() -> None:
    """Lets the threads of a GPU's program wait for each other; elsewhere it is nothing."""
    debug_barrier_p.bind()


def with_memory_space_constraint(x: Any, memory_space: Any) -> Any:
    """`x`, which a kernel is to find in `memory_space`; the back end of TPUs reads that where `x` is an operand."""
    from_spaces = ("any", "hbm", "vmem", "smem")
    if getattr(memory_space, "value", None) not in from_spaces:
        raise errors.UnsupportedError(
            f"with_memory_space_constraint only supports HBM, VMEM and SMEM, got {memory_space}."
        )
    if memory_space.value == "any":
        return x
    return memory_space_p.bind(x, memory_space=memory_space)


memory_space_p = composition("with_memory_space_constraint", lambda x, *, memory_space: x)
