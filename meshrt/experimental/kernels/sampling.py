"""Random numbers of kernels from keys: the same whatever the blocks are, and from keys of a chip's own kind."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors, random
from meshrt import numpy as jnp
from meshrt.core.tracebacks import boundary
from meshrt.core.types import aval_of
from meshrt.experimental.kernels.grid import program_id
from meshrt.primitives.generators import KeyFunctions
from meshrt.primitives.threefry import threefry_fold_in, threefry_random_bits
from meshrt.transforms.vmap import vmap

__all__ = ["sample_block", "to_pallas_key"]

_U32 = np.dtype(np.uint32)


# ----------------------------------------------------------------------------------------------------------------------
# Blocks of one large sample


def sample_block(
    sampler_fn: Callable[..., Any],
    global_key: Any,
    block_size: Sequence[int],
    tile_size: Sequence[int],
    total_size: Sequence[int],
    block_index: Sequence[Any] | None = None,
    **kwargs: Any,
) -> Any:
    """A block of an array of random numbers, which is the same array for all sizes of blocks.

    The array consists of tiles, each drawn from a key of its own, which the tile's number is folded into.

    Args:
      sampler_fn: draws `tile_size` numbers as `sampler_fn(key, shape=tile_size, **kwargs)`, as `random.uniform` does.
      global_key: the key of the whole array.
      block_size, total_size: the shapes of the block and of the array.
      tile_size: the shape of a tile; it divides each size of blocks that is to give the same numbers.
      block_index: which block; by default the step of the grid.

    >>> import meshrt
    >>> key, whole = meshrt.random.key(0), (8, 256)
    >>> wide = sample_block(meshrt.random.uniform, key, (8, 256), (8, 128), whole, (0, 0))
    >>> right = sample_block(meshrt.random.uniform, key, (8, 128), (8, 128), whole, (0, 1))
    >>> bool((wide[:, 128:] == right).all())
    True

    Raises:
      ArgumentValueError: sizes of different ranks, or a tile that does not divide the block.
    """
    if len(block_size) != len(tile_size) or len(total_size) != len(tile_size):
        raise errors.ArgumentValueError(
            f"block_size ({len(block_size)}), tile_size ({len(tile_size)}) and total_size ({len(total_size)}) must "
            "have the same length."
        )
    if any(b % t for b, t in zip(block_size, tile_size)):
        raise errors.ArgumentValueError(
            f"tile_size {tuple(tile_size)} does not divide block_size {tuple(block_size)}: take the greatest common "
            "divisor of the sizes of blocks that are to give the same numbers"
        )
    if block_index is None:
        block_index = [program_id(axis) for axis in range(len(block_size))]
    tiles = [b // t for b, t in zip(block_size, tile_size)]
    all_tiles = [-(-n // t) for n, t in zip(total_size, tile_size)]
    strides = [math.prod(all_tiles[d + 1 :]) for d in range(len(tiles))]

    def drawn(place: tuple[int, ...]) -> Any:
        """The tiles of the block whose first indices, in tiles, are `place`."""
        axis = len(place)
        if axis < len(tiles):
            return jnp.concatenate([drawn((*place, i)) for i in range(tiles[axis])], axis)
        number = sum((b * n + i) * stride for b, n, i, stride in zip(block_index, tiles, place, strides))
        return sampler_fn(random.fold_in(global_key, number), shape=tuple(tile_size), **kwargs)

    return drawn(())


# ----------------------------------------------------------------------------------------------------------------------
# Keys of a chip's own kind: two words that seed its generator. As the numbers then drawn depend on the key alone, they
# are Threefry's of these words everywhere, so that a kernel gives on a chip what the loop of array operations gives.


def _words(key: Any) -> Any:
    return jnp.reshape(key, (2,))


def _seeded(seed: Any) -> Any:
    return jnp.full((1, 2), seed).astype(_U32)


def _split(key: Any, shape: tuple[int, ...]) -> Any:
    raise errors.UnsupportedError(
        "Cannot split a Pallas key. Use fold_in instead to generate new keys: random.fold_in(key, i)"
    )


def _bits(key: Any, bit_width: int, shape: tuple[int, ...]) -> Any:
    if bit_width != 32:
        raise errors.ArgumentValueError(f"Bit width must be 32, got {bit_width}: a chip's generator draws such words")
    return threefry_random_bits(32, shape, True, _words(key))


def _folded(key: Any, data: Any) -> Any:
    return jnp.reshape(threefry_fold_in(_words(key), data), (1, 2))


_PALLAS_TPU = dtypes.KeyImpl("pallas_tpu", "pl", (1, 2), KeyFunctions(_seeded, _split, _bits, _folded))
dtypes.KEY_IMPLS[_PALLAS_TPU.name] = _PALLAS_TPU


@boundary
def to_pallas_key(key: Any) -> Any:
    """Keys of the kind `pallas_tpu`, for kernels, made of random bits of others: same shape.

    >>> import meshrt
    >>> key = to_pallas_key(meshrt.random.key(0))
    >>> key.dtype, meshrt.random.key_data(key).shape
    (key<pl>, (1, 2))

    Args:
      key: typed keys, or raw ones `uint32[..., 2]`.
    """
    make: Callable[..., Any] = functools.partial(random.bits, shape=_PALLAS_TPU.key_shape, dtype=_U32)
    aval = aval_of(key)
    for _ in range(aval.ndim - (0 if dtypes.issubdtype(aval.dtype, dtypes.prng_key) else 1)):
        make = vmap(make)
    return random.wrap_key_data(make(key), impl=_PALLAS_TPU.name)
