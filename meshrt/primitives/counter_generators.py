"""Generators that hash counters of their own: Philox 2x32 and 4x32, and Threefry 4x32.

The hashes are those of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), with 10
rounds (Philox) and 20 (Threefry). As with threefry2x32 every element follows from the key and its position alone, so
devices draw their parts. Bits equal JAX's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshrt.core.basic.shapes import broadcast_in_dim, reshape
from meshrt.core.types import aval_of
from meshrt.primitives import conversion
from meshrt.primitives import elementwise as ew
from meshrt.primitives.concatenate import concatenate
from meshrt.primitives.reshape import full
from meshrt.primitives.slice import index_in_dim
from meshrt.primitives.threefry import iota_2x32_shape, threefry_seed

_U32, _U64 = np.dtype(np.uint32), np.dtype(np.uint64)
_Words = list[Any]
# The golden ratio and the square root of three, by which the keys of Philox move on.
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROTATIONS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))
_PARITY = 0x1BD11BDA


def _convert(x: Any, dtype: Any) -> Any:
    return conversion.convert_element_type_p.bind(x, new_dtype=np.dtype(dtype), weak_type=False)


def _wide(x: Any) -> Any:
    return _convert(x, _U64)


def _product(x: Any, factor: int) -> tuple[Any, Any]:
    """(upper, lower) 32 bits of the product with a constant."""
    whole = ew.mul_p.bind(_wide(x), _wide(np.uint32(factor)))
    return _convert(ew.shift_right_logical_p.bind(whole, _wide(np.uint32(32))), _U32), _convert(whole, _U32)


def _xor(first: Any, *others: Any) -> Any:
    for other in others:
        first = ew.xor_p.bind(first, other)
    return first


def _philox2x32(key: _Words, block: _Words) -> _Words:
    (k,), (a, b) = key, block
    for step in range(10):
        k = ew.add_p.bind(k, np.uint32(_WEYL[0])) if step else k
        high, low = _product(a, 0xD256D193)
        a, b = _xor(high, b, k), low
    return [a, b]


def _philox4x32(key: _Words, block: _Words) -> _Words:
    (k, m), (a, b, c, d) = key, block
    for step in range(10):
        if step:
            k, m = ew.add_p.bind(k, np.uint32(_WEYL[0])), ew.add_p.bind(m, np.uint32(_WEYL[1]))
        (high, low), (other_high, other_low) = _product(a, 0xD2511F53), _product(c, 0xCD9E8D57)
        a, b, c, d = _xor(other_high, b, k), other_low, _xor(high, d, m), low
    return [a, b, c, d]


def _rotated(x: Any, by: int) -> Any:
    left = ew.shift_left_p.bind(x, np.uint32(by))
    return ew.or_p.bind(left, ew.shift_right_logical_p.bind(x, np.uint32(32 - by)))


def _threefry4x32(key: _Words, block: _Words) -> _Words:
    schedule = [*key, _xor(*key, np.uint32(_PARITY))]
    words = [ew.add_p.bind(x, k) for x, k in zip(block, key)]
    for step in range(20):
        # Words 0 and 2 are mixed with 1 and 3, then with 3 and 1, in turn.
        for even, rotation in zip((0, 2), _ROTATIONS[step % 8]):
            odd = even ^ 1 if step % 2 == 0 else 3 - even
            words[even] = ew.add_p.bind(words[even], words[odd])
            words[odd] = _xor(_rotated(words[odd], rotation), words[even])
        if step % 4 == 3:
            turn = step // 4 + 1
            words = [ew.add_p.bind(x, schedule[(turn + i) % 5]) for i, x in enumerate(words)]
            words[3] = ew.add_p.bind(words[3], np.uint32(turn))
    return words


class Hash(NamedTuple):
    """`mix(key words, block words)`; how many of each there are; and which words are joined to 64 bits."""

    mix: Callable[[_Words, _Words], _Words]
    keys: int
    words: int
    seeds_key: bool  # whether a seed is hashed as the key, not as the block
    folds_halves: bool  # whether the upper half of the block is combined with the lower one before it is joined


PHILOX_2X32 = Hash(_philox2x32, 1, 2, seeds_key=False, folds_halves=False)
PHILOX_4X32 = Hash(_philox4x32, 2, 4, seeds_key=False, folds_halves=False)
THREEFRY_4X32 = Hash(_threefry4x32, 4, 4, seeds_key=True, folds_halves=True)


def _zeros(shape: tuple[int, ...], count: int) -> _Words:
    return [full(shape, 0, _U32)] * count


def _split_words(x: Any, count: int) -> _Words:
    last = aval_of(x).ndim - 1
    return [index_in_dim(x, i, last, False) for i in range(count)]


def _join_words(words: Sequence[Any]) -> Any:
    shape = aval_of(words[0]).shape
    return concatenate([reshape(w, (*shape, 1)) for w in words], len(shape))


def counter_seed(hashed: Hash, seeds: Any) -> Any:
    """The hash of the seed's 64 bits."""
    shape = aval_of(seeds).shape
    halves = _split_words(threefry_seed(seeds), 2)
    key = (halves if hashed.seeds_key else []) + _zeros(shape, hashed.keys)
    block = ([] if hashed.seeds_key else halves) + _zeros(shape, hashed.words)
    return _join_words(hashed.mix(key[: hashed.keys], block[: hashed.words])[: hashed.keys])


def _at_positions(hashed: Hash, shape: tuple[int, ...], keys: Any, last: bool) -> _Words:
    """The hash for every key and position of `shape`, which stands in the last (or first) two words of the block."""
    lead = aval_of(keys).shape[:-1]
    total, rank = (*lead, *shape), len(lead)
    key = [broadcast_in_dim(k, total, range(rank)) for k in _split_words(keys, hashed.keys)]
    counts = [broadcast_in_dim(c, total, range(rank, len(total))) for c in iota_2x32_shape(shape)]
    rest = _zeros(total, hashed.words - 2)
    return hashed.mix(key, [*rest, *counts] if last else [*counts, *rest])


def counter_split(hashed: Hash, shape: tuple[int, ...], by_position: bool, keys: Any) -> Any:
    """The hash of every position of `shape` is a new key."""
    return _join_words(_at_positions(hashed, shape, keys, last=True)[: hashed.keys])


def counter_fold_in(hashed: Hash, keys: Any, data: Any) -> Any:
    """The hash of the data is the new key; a scalar operand goes with every element of the other."""
    shape = aval_of(keys).shape[:-1] or aval_of(data).shape
    parts = [*_split_words(keys, hashed.keys), conversion.convert_element_type(data, _U32)]
    *key, data = (broadcast_in_dim(p, shape, ()) if shape and not aval_of(p).ndim else p for p in parts)
    return _join_words(hashed.mix(key, [*_zeros(shape, hashed.words - 1), data])[: hashed.keys])


def counter_random_bits(hashed: Hash, bit_width: int, shape: tuple[int, ...], by_position: bool, keys: Any) -> Any:
    """The words of each position combined by xor, truncated to fewer than 32 bits; two of them joined to 64."""
    words = _at_positions(hashed, shape, keys, last=False)
    if bit_width == 64:
        high, low = (_xor(words[i], words[i + 2]) if hashed.folds_halves else words[i] for i in range(2))
        return ew.or_p.bind(ew.shift_left_p.bind(_wide(high), _wide(np.uint32(32))), _wide(low))
    bits = _xor(*words)
    return bits if bit_width == 32 else _convert(bits, f"uint{bit_width}")
