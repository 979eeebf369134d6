"""The primitives over typed PRNG keys.

Keys are elements of `dtypes.KeyType`, held as `uint32[..., n]`; what seeds, keys and bits become is their generator's
business (`meshrt.primitives.generators`). Each primitive lowers to a call of one private function per type, because
hashes are long. On CPUs XLA keeps the calls of all but the largest (`_is_apart`): inlined, the hash that makes a key is
fused into the one that uses it, once for each user, and LLVM takes minutes over programs with dozens of samplers; kept
apart, equal functions are compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from meshrt import config, dtypes, errors, heuristics
from meshrt.core import source
from meshrt.core.basic.shapes import batch_together, broadcast_in_dim, canonical_shape, move_dim
from meshrt.core.dimensions.expression import guessed
from meshrt.core.jaxpr import Eqn, Jaxpr
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.generators import generator

_U32 = np.dtype(np.uint32)


def _zero_jvp(get: Callable[[], Primitive]) -> Callable[..., Any]:
    """The jvp of a function of integers and keys."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = get().bind(*primals, **params)
        return out, [None] * len(out) if get().multiple_results else None

    return jvp


def _leading_batch(get: Callable[[], Primitive]) -> Callable[..., Any]:
    """Batching of a primitive that maps over all dimensions of its only operand and adds dimensions behind them."""
    return lambda size, args, dims, params: (get().bind(*args, **params), dims[0])


# ----------------------------------------------------------------------------------------------------------
# Staging: what each primitive computes on the physical arrays


@lru_cache(maxsize=4096)
def _staged(fun: Callable[..., Any], in_avals: tuple[ShapedArray, ...], static: tuple[Any, ...]) -> Jaxpr:
    """The program of `fun(*static, *arrays)` on physical arrays; it belongs to no line of the user's."""
    previous = source.set_replay(source.UNKNOWN)
    try:
        closed = trace_to_jaxpr(lambda *xs: [fun(*static, *xs)], in_avals, fun.__name__)
    finally:
        source.set_replay(previous)
    if closed.consts:
        raise errors.UnsupportedError(
            f"{fun.__name__}: a random number generator's functions may not capture arrays; make them inside"
        )
    return closed.jaxpr


def _lower_by(part: str, static: Callable[[dict[str, Any]], tuple[Any, ...]]) -> Callable[..., Any]:
    """Lowering by a call of a private function that computes `fun(*static(params), *physical operands)`, `fun` being
    that `part` of the keys' generator."""

    def lower(ctx: LoweringContext, eqn: Eqn, *operands: Any) -> Any:
        impl = eqn.params["impl"] if part == "seed" else eqn.invars[0].aval.dtype.impl
        fun = getattr(generator(impl), part)
        avals = tuple([v.aval.physical() for v in eqn.invars])
        jaxpr = _staged(fun, avals, static(eqn.params))
        return ctx.call(jaxpr, operands, fun.__name__, _is_apart(ctx, eqn))[0]

    return lower


def _is_apart(ctx: LoweringContext, eqn: Eqn) -> bool:
    """Whether XLA keeps the call. Other platforms' compilers expect to inline, and take less long over a fusion."""
    on_cpu = ctx.module.platform == "cpu" and not eqn.source.compute
    return on_cpu and guessed(eqn.outvars[0].aval.physical().size) <= heuristics.CALLED_RANDOM_ELEMENTS


def _by_position() -> bool:
    """Whether each element follows from its position alone; a setting that is read when a program is lowered."""
    return config.settings.threefry_partitionable


# ----------------------------------------------------------------------------------------------------------
# The primitives over typed keys


def _check_keys(name: str, keys: ShapedArray) -> None:
    if not keys.is_key:
        raise errors.ArgumentTypeError(
            f"{name} needs an array of PRNG keys but got {keys.short()}; make keys with meshrt.random.key, or "
            "meshrt.random.wrap_key_data for raw uint32 data"
        )


def _seed_infer(seeds: ShapedArray, *, impl: Any) -> ShapedArray:
    if seeds.is_key or not dtypes.issubdtype(seeds.dtype, np.integer):
        raise errors.ArgumentTypeError(f"a PRNG key seed must be an integer but is {seeds.short()}")
    return ShapedArray(seeds.shape, dtypes.KeyType(impl))


def _split_infer(keys: ShapedArray, *, shape: Any) -> ShapedArray:
    _check_keys("random_split", keys)
    return ShapedArray((*keys.shape, *shape), keys.dtype)


def _fold_in_infer(keys: ShapedArray, data: ShapedArray) -> ShapedArray:
    _check_keys("random_fold_in", keys)
    if data.is_key or not dtypes.issubdtype(data.dtype, np.integer):
        raise errors.ArgumentTypeError(f"random_fold_in needs integers to fold in but got {data.short()}")
    if keys.shape and data.shape and keys.shape != data.shape:
        raise errors.ArgumentTypeError(
            f"random_fold_in needs keys and data of equal shapes (or a scalar) but got {keys.short()} and "
            f"{data.short()}"
        )
    return ShapedArray(keys.shape or data.shape, keys.dtype)


def _fold_in_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    for scalar, other in ((0, 1), (1, 0)):
        if dims[scalar] is None and aval_of(args[scalar]).ndim == 0:
            return random_fold_in_p.bind(*args), dims[other]
    shapes = [
        aval_of(a).shape if d is None else aval_of(a).shape[:d] + aval_of(a).shape[d + 1 :] for a, d in zip(args, dims)
    ]
    # A scalar per element of the batch goes with a whole array: spread it.
    full_shape = shapes[0] or shapes[1]
    spread = [
        (a, d) if s == full_shape else (broadcast_in_dim(a, (size, *full_shape), (0,)), 0)
        for a, d, s in zip(args, dims, shapes)
    ]
    args, d = batch_together(size, [a for a, _ in spread], [d for _, d in spread])
    return random_fold_in_p.bind(*args), d


def _bits_infer(keys: ShapedArray, *, bit_width: Any, shape: Any) -> ShapedArray:
    _check_keys("random_bits", keys)
    if bit_width not in (8, 16, 32, 64):
        raise errors.ArgumentTypeError(f"random_bits gives 8, 16, 32 or 64 bits per element, not {bit_width!r}")
    return ShapedArray((*keys.shape, *shape), np.dtype(f"uint{bit_width}"))


def check_key_data(impl: dtypes.KeyImpl, data: ShapedArray) -> None:
    """Raises ArgumentTypeError unless `data` can be the data of keys of a generator."""
    rank = len(impl.key_shape)
    if data.ndim < rank:
        problem = f"expected key_data.ndim >= {rank}; got ndim={data.ndim}"
    elif data.shape[data.ndim - rank :] != impl.key_shape:
        problem = f"expected key_data.shape to end with {impl.key_shape}; got shape={data.shape}"
    elif data.dtype != _U32:
        problem = f"expected key_data.dtype = uint32; got dtype={data.dtype}"
    else:
        return
    raise errors.ArgumentTypeError(
        f"JAX encountered invalid PRNG key data: {problem} for impl={impl.name}; make keys with random.key(seed)"
    )


def _wrap_infer(data: ShapedArray, *, impl: Any) -> ShapedArray:
    check_key_data(impl, data)
    return ShapedArray(data.shape[: -len(impl.key_shape)], dtypes.KeyType(impl))


def _wrap_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    return random_wrap_p.bind(move_dim(args[0], dims[0], 0), **params), 0


def _unwrap_infer(keys: ShapedArray) -> Any:
    _check_keys("random_unwrap", keys)
    return keys.physical()


random_seed_p: Primitive = Primitive(
    "random_seed", _seed_infer, jvp=_zero_jvp(lambda: random_seed_p), batch=_leading_batch(lambda: random_seed_p),
    lower=_lower_by("seed", lambda p: ()),
    absent=NOT_LINEAR,
)  # fmt: skip
random_split_p: Primitive = Primitive(
    "random_split", _split_infer, jvp=_zero_jvp(lambda: random_split_p), batch=_leading_batch(lambda: random_split_p),
    lower=_lower_by("split", lambda p: (p["shape"], _by_position())),
    absent=NOT_LINEAR,
)  # fmt: skip
random_fold_in_p: Primitive = Primitive(
    "random_fold_in", _fold_in_infer, jvp=_zero_jvp(lambda: random_fold_in_p), batch=_fold_in_batch,
    lower=_lower_by("fold_in", lambda p: ()),
    absent=NOT_LINEAR,
)  # fmt: skip
random_bits_p: Primitive = Primitive(
    "random_bits", _bits_infer, jvp=_zero_jvp(lambda: random_bits_p), batch=_leading_batch(lambda: random_bits_p),
    lower=_lower_by("random_bits", lambda p: (p["bit_width"], p["shape"], _by_position())),
    absent=NOT_LINEAR,
)  # fmt: skip
random_wrap_p: Primitive = Primitive(
    "random_wrap",
    _wrap_infer,
    jvp=_zero_jvp(lambda: random_wrap_p),
    batch=_wrap_batch,
    lower=lambda ctx, eqn, x: x,
    absent=NOT_LINEAR,
)
random_unwrap_p: Primitive = Primitive(
    "random_unwrap", _unwrap_infer, jvp=_zero_jvp(lambda: random_unwrap_p),
    batch=_leading_batch(lambda: random_unwrap_p), lower=lambda ctx, eqn, x: x,
    absent=NOT_LINEAR,
)  # fmt: skip


def random_seed(seeds: Any, impl: dtypes.KeyImpl) -> Any:
    """Keys from integer seeds, elementwise. Python ints may have 64 bits; with x64 off the low 32 bits count."""
    if isinstance(seeds, int):
        seeds = np.asarray(np.int64(seeds)).astype(dtypes.default_int_dtype())[()]
    if config.settings.random_seed_offset:
        seeds = seeds + config.settings.random_seed_offset
    return random_seed_p.bind(seeds, impl=impl)


def random_split(keys: Any, shape: Sequence[int]) -> Any:
    """`shape` new keys from every key: the result has shape `keys.shape + shape`."""
    return random_split_p.bind(keys, shape=canonical_shape(shape))


def random_fold_in(keys: Any, data: Any) -> Any:
    """New keys from keys and integers (taken modulo 2**32), elementwise; either may be a scalar."""
    return random_fold_in_p.bind(keys, data)


def random_bits(keys: Any, bit_width: int, shape: Sequence[int]) -> Any:
    """Uniform bits `uint{bit_width}[keys.shape + shape]` from every key; `bit_width` is 8, 16, 32 or 64."""
    return random_bits_p.bind(keys, bit_width=bit_width, shape=canonical_shape(shape))


def random_wrap(data: Any, impl: dtypes.KeyImpl) -> Any:
    """Raw key data `uint32[..., 2]` as typed keys."""
    return random_wrap_p.bind(data, impl=impl)


def random_unwrap(keys: Any) -> Any:
    """The raw data `uint32[..., 2]` of typed keys."""
    return random_unwrap_p.bind(keys)
