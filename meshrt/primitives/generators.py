"""Generators: what seeds, keys and bits are to each implementation of random numbers.

A generator's functions take arrays of keys as physical arrays `uint32[..., *key_shape]`. That of `threefry2x32` hashes
counters, as do `philox2x32`, `philox4x32` and `threefry4x32` (`counter_generators`); `rbg` and `unsafe_rbg` draw bits
with the compiler's own generator, which of an array of keys looks at the first only, as JAX's do; one that a user
defines maps the user's functions, which are of one key, over all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.shapes import broadcast_in_dim, move_dim, reshape
from meshrt.core.types import aval_of
from meshrt.primitives import counter_generators as counters
from meshrt.primitives import elementwise as ew
from meshrt.primitives.concatenate import concatenate
from meshrt.primitives.reshape import full
from meshrt.primitives.rng_bits import RandomAlgorithm, rng_bit_generator_p
from meshrt.primitives.slice import index_in_dim, slice_in_dim
from meshrt.primitives.threefry import threefry_fold_in, threefry_random_bits, threefry_seed, threefry_split
from meshrt.transforms.vmap import vmap

_U32 = np.dtype(np.uint32)


class Generator(NamedTuple):
    """`seed(seeds)`, `split(shape, by_position, keys)`, `fold_in(keys, data)` and
    `random_bits(bit_width, shape, by_position, keys)`; `by_position` is the setting `threefry_partitionable`."""

    seed: Callable[..., Any]
    split: Callable[..., Any]
    fold_in: Callable[..., Any]
    random_bits: Callable[..., Any]


def generator(impl: dtypes.KeyImpl) -> Generator:
    """The functions of a key implementation."""
    return _BUILT_IN[impl.name] if impl.functions is None else _of_user(impl)


# ----------------------------------------------------------------------------------------------------------
# rbg: keys are two keys of threefry, bits are the compiler's


def _draw(keys: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Bits of `shape` for each key, all from the first."""
    lead = aval_of(keys).shape[:-1]
    if 0 in lead:
        return full((*lead, *shape), 0, dtype)
    for _ in lead:
        keys = index_in_dim(keys, 0, 0, False)
    parameters = {"shape": (*lead, *shape), "dtype": np.dtype(dtype), "algorithm": RandomAlgorithm.RNG_DEFAULT}
    return rng_bit_generator_p.bind(keys, **parameters)[1]


def _halves(keys: Any) -> Any:
    return reshape(keys, (*aval_of(keys).shape[:-1], 2, 2))


def rbg_seed(seeds: Any) -> Any:
    """Twice the key of threefry."""
    half = threefry_seed(seeds)
    return concatenate([half, half], aval_of(half).ndim - 1)


def rbg_split(shape: tuple[int, ...], by_position: bool, keys: Any) -> Any:
    """New keys of threefry, of each half."""
    lead = aval_of(keys).shape[:-1]
    drawn = threefry_split(shape, by_position, _halves(keys))
    return reshape(move_dim(drawn, len(lead), len(lead) + len(shape)), (*lead, *shape, 4))


def rbg_fold_in(keys: Any, data: Any) -> Any:
    """Data folded into each half."""
    shape = aval_of(keys).shape[:-1] or aval_of(data).shape
    keys, data = _spread(keys, (*shape, 4)), _spread(data, shape)
    folded = threefry_fold_in(_halves(keys), broadcast_in_dim(data, (*shape, 2), range(len(shape))))
    return reshape(folded, (*shape, 4))


def _spread(x: Any, shape: tuple[int, ...]) -> Any:
    """A single value for each element of a larger shape."""
    own = aval_of(x).shape
    return x if own == shape else broadcast_in_dim(x, shape, range(len(shape) - len(own), len(shape)))


def rbg_random_bits(bit_width: int, shape: tuple[int, ...], by_position: bool, keys: Any) -> Any:
    """The compiler's bits."""
    return _draw(keys, shape, f"uint{bit_width}")


def unsafe_rbg_split(shape: tuple[int, ...], by_position: bool, keys: Any) -> Any:
    """Every tenth of the compiler's blocks is a key."""
    lead, count = aval_of(keys).shape[:-1], math.prod(shape)
    blocks = _draw(keys, (10 * count, 4), _U32)
    return reshape(slice_in_dim(blocks, None, None, 10, len(lead)), (*lead, *shape, 4))


def unsafe_rbg_fold_in(keys: Any, data: Any) -> Any:
    """The key, combined by xor with the tenth block of the compiler's bits for the data."""
    shape = aval_of(keys).shape[:-1] or aval_of(data).shape
    drawn = index_in_dim(_draw(rbg_seed(data), (10, 4), _U32), 9, aval_of(data).ndim, False)
    return ew.xor_p.bind(_spread(keys, (*shape, 4)), _spread(drawn, (*shape, 4)))


# ----------------------------------------------------------------------------------------------------------
# Users' generators


class KeyFunctions(NamedTuple):
    """What a user defines a generator by, of one key: `seed(seed)`, `split(key, shape)`, `random_bits(key, bit_width,
    shape)` and `fold_in(key, data)`."""

    seed: Callable[..., Any]
    split: Callable[..., Any]
    random_bits: Callable[..., Any]
    fold_in: Callable[..., Any]


def _mapped(fun: Callable[..., Any], rank: int, in_axes: Any = 0) -> Callable[..., Any]:
    """`fun` for each element of the first `rank` dimensions of its mapped arguments."""
    for _ in range(rank):
        fun = vmap(fun, in_axes=in_axes)
    return fun


@functools.lru_cache(maxsize=256)
def _of_user(impl: dtypes.KeyImpl) -> Generator:
    functions: KeyFunctions = impl.functions
    suffix = len(impl.key_shape)

    def checked(what: str, x: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        aval = aval_of(x)
        if aval.shape != shape or aval.dtype != dtype:
            raise errors.ArgumentTypeError(
                f"the function {what!r} of the random number generator {impl.name!r} must give "
                f"{dtype}{list(shape)} but gave {aval.short()}"
            )
        return x

    def custom_seed(seeds: Any) -> Any:
        one = lambda seed: checked("seed", functions.seed(seed), impl.key_shape, _U32)
        return _mapped(one, aval_of(seeds).ndim)(seeds)

    def custom_split(shape: tuple[int, ...], by_position: bool, keys: Any) -> Any:
        one = lambda key: checked("split", functions.split(key, shape), (*shape, *impl.key_shape), _U32)
        return _mapped(one, aval_of(keys).ndim - suffix)(keys)

    def custom_fold_in(keys: Any, data: Any) -> Any:
        rank, own = aval_of(data).ndim, aval_of(keys).ndim - suffix
        one = lambda key, item: checked("fold_in", functions.fold_in(key, item), impl.key_shape, _U32)
        axes = (0 if own else None, 0 if rank else None)
        return _mapped(one, max(rank, own), axes)(keys, data)

    def custom_random_bits(bit_width: int, shape: tuple[int, ...], by_position: bool, keys: Any) -> Any:
        dtype = np.dtype(f"uint{bit_width}")
        one = lambda key: checked("random_bits", functions.random_bits(key, bit_width, shape), shape, dtype)
        return _mapped(one, aval_of(keys).ndim - suffix)(keys)

    return Generator(custom_seed, custom_split, custom_fold_in, custom_random_bits)


def _of_counters(hashed: counters.Hash) -> Generator:
    def bound(fun: Callable[..., Any]) -> Callable[..., Any]:
        return functools.wraps(fun)(lambda *args: fun(hashed, *args))

    return Generator(
        bound(counters.counter_seed), bound(counters.counter_split), bound(counters.counter_fold_in),
        bound(counters.counter_random_bits),
    )  # fmt: skip


_BUILT_IN = {
    "threefry2x32": Generator(threefry_seed, threefry_split, threefry_fold_in, threefry_random_bits),
    "rbg": Generator(rbg_seed, rbg_split, rbg_fold_in, rbg_random_bits),
    "unsafe_rbg": Generator(rbg_seed, unsafe_rbg_split, unsafe_rbg_fold_in, rbg_random_bits),
    "philox2x32": _of_counters(counters.PHILOX_2X32),
    "philox4x32": _of_counters(counters.PHILOX_4X32),
    "threefry4x32": _of_counters(counters.THREEFRY_4X32),
}
