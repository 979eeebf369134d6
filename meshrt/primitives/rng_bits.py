"""Random numbers by the compiler's own generators, which differ between platforms and versions."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.shapes import canonical_shape, move_dim
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.types import ShapedArray
from meshrt.lowering.context import LoweringContext
from meshrt.lowering.types import mlir_type
from meshrt.primitives.axis_types import in_auto_mode
from meshrt.primitives.dynamic_slice import dynamic_update_index_in_dim
from meshrt.primitives.sharding import with_sharding_constraint
from meshrt.primitives.slice import index_in_dim
from propagation.asm import Ref

__all__ = ["RandomAlgorithm", "rng_bit_generator", "rng_uniform"]

_U32, _U64 = np.dtype(np.uint32), np.dtype(np.uint64)
_PAIRS, _WIDE = ShapedArray((2, 2), _U32), ShapedArray((2,), _U64)
_STATES = (((4,), _U32), ((2,), _U64))
_DRAWN = tuple(np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64))


class RandomAlgorithm(enum.IntEnum):
    """The algorithms of `rng_bit_generator`; which one is the default differs between platforms."""

    RNG_DEFAULT = 0
    RNG_THREE_FRY = 1
    RNG_PHILOX = 2

    def __str__(self) -> str:
        return self.name


def _bits_infer(key: ShapedArray, *, shape: Any, dtype: Any, algorithm: Any) -> list[ShapedArray]:
    if key.is_key or (key.shape, key.dtype) not in _STATES:
        raise errors.ArgumentTypeError(f"rng_bit_generator needs a state uint32[4] or uint64[2] but got {key.short()}")
    return [ShapedArray(key.shape, key.dtype), ShapedArray(shape, dtype)]


def _bits_lower(ctx: LoweringContext, eqn: Eqn, key: Ref) -> Sequence[Ref]:
    state, bits = (v.aval for v in eqn.outvars)
    if state.dtype == _U32:
        key = ctx.op("stablehlo.reshape", [key], _PAIRS)
        key = ctx.op("stablehlo.bitcast_convert", [key], _WIDE)
    name = RandomAlgorithm(eqn.params["algorithm"]).name.removeprefix("RNG_")
    attrs = f"rng_algorithm = #stablehlo<rng_algorithm {name}>"
    types = [mlir_type(_WIDE), mlir_type(bits)]
    after, drawn = ctx.body.ops("stablehlo.rng_bit_generator", [key], types, attrs, (), ctx.loc)
    if state.dtype == _U32:
        after = ctx.op("stablehlo.bitcast_convert", [after], _PAIRS)
        after = ctx.op("stablehlo.reshape", [after], state)
    return [after, drawn]


def _bits_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    """All bits come from the first state, which alone is advanced: as in JAX."""
    keys = move_dim(args[0], dims[0], 0)
    after, bits = rng_bit_generator_p.bind(
        index_in_dim(keys, 0, 0, False), **{**params, "shape": (size, *params["shape"])}
    )
    return (dynamic_update_index_in_dim(keys, after, 0, 0), bits), (0, 0)


rng_bit_generator_p: Primitive = Primitive(
    "rng_bit_generator", _bits_infer, lower=_bits_lower, batch=_bits_batch,
    jvp=lambda primals, tangents, **params: (rng_bit_generator_p.bind(*primals, **params), [None, None]),
    multiple_results=True,
    absent=NOT_LINEAR,
)  # fmt: skip


@in_auto_mode
def _placed_bits(*state: Any, out_sharding: Any = None, **params: Any) -> Any:
    bits = rng_bit_generator_p.bind(*state, **params)[1]
    return bits if out_sharding is None else with_sharding_constraint(bits, out_sharding)


def rng_bit_generator(
    key: Any, shape: Sequence[int], dtype: Any = np.uint32, algorithm: Any = RandomAlgorithm.RNG_DEFAULT, *,
    out_sharding: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """`(the state afterwards, random bits)` by the compiler's generator; prefer `meshrt.random.bits`.

    Args:
      key: the state, `uint32[4]` or `uint64[2]`.
      dtype: of the bits: uint8, uint16, uint32 or uint64.
      algorithm: a `RandomAlgorithm`.

    Raises:
      ArgumentTypeError: another dtype, or no state.

    >>> state, bits = lax.rng_bit_generator(jnp.zeros(4, jnp.uint32), (2, 3))  # doctest: +SKIP
    """
    dtype = dtypes.check_user_dtype(dtype, "rng_bit_generator")
    if dtype not in _DRAWN:
        raise errors.ArgumentTypeError(
            f"rng_bit_generator: unsupported dtype {dtype}; it draws uint8, uint16, uint32 or uint64"
        )
    params = {"shape": canonical_shape(shape), "dtype": dtype, "algorithm": algorithm}
    state, bits = rng_bit_generator_p.bind(key, **params)
    return state, bits if out_sharding is None else _placed_bits(key, out_sharding=out_sharding, **params)


def _uniform_infer(a: ShapedArray, b: ShapedArray, *, shape: Any) -> ShapedArray:
    if a.dtype != b.dtype:
        raise errors.ArgumentValueError(
            f"Arguments to rng_uniform must have identical dtypes, got {a.dtype} and {b.dtype}; convert one of them"
        )
    if a.shape or b.shape:
        raise errors.ArgumentValueError(f"Arguments to rng_uniform must be scalars; got shapes {a.shape} and {b.shape}")
    return ShapedArray(shape, a.dtype, a.weak_type and b.weak_type)


def _uniform_lower(ctx: LoweringContext, eqn: Eqn, a: Ref, b: Ref) -> Ref:
    out = eqn.outvars[0].aval
    shape = ctx.array(np.asarray(out.shape, np.int64))
    return ctx.op("stablehlo.rng", [a, b, shape], out, "rng_distribution = #stablehlo<rng_distribution UNIFORM>")


_STATEFUL = "its numbers come from a state of the device; use meshrt.random.uniform, which has keys"
rng_uniform_p: Primitive = Primitive(
    "rng_uniform", _uniform_infer, lower=_uniform_lower,
    absent={**NOT_LINEAR, "jvp": _STATEFUL, "batch": _STATEFUL},
)  # fmt: skip


def rng_uniform(a: Any, b: Any, shape: Sequence[int]) -> Any:
    """Numbers from [a, b) by the device's own generator, others at each call; prefer `meshrt.random.uniform`.

    Raises:
      ArgumentValueError: bounds of different dtypes, or bounds that are no scalars.

    Args:
      a: the least value.
      b: the end of the range.
      shape: sizes of the result.

    >>> lax.rng_uniform(0.0, 1.0, (2,)).shape
    (2,)
    """
    return rng_uniform_p.bind(a, b, shape=canonical_shape(shape))
