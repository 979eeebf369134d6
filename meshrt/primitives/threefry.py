"""Random bits from counters: the Threefry 2x32 hash, and what a generator makes of it.

The hash is that of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), with 20
rounds. Bit i of an array comes from the key and the 64-bit position i alone, so every element can be computed where it
is needed: the functions are elementwise in the result and partition without communication. Not `by_position` (the
setting `threefry_partitionable` off), bits are cut from one sequence of words, as JAX drew them before. Bits equal
JAX's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.basic.shapes import batch_together, broadcast_in_dim, canonical_shape, reshape
from meshrt.core.dimensions.arithmetic import ceil_div
from meshrt.core.dimensions.expression import DimExpr, guessed
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives import conversion
from meshrt.primitives import elementwise as ew
from meshrt.primitives.concatenate import concatenate
from meshrt.primitives.reshape import broadcasted_iota, full, iota_p
from meshrt.primitives.slice import index_in_dim, slice_in_dim

_U32, _U64 = np.dtype(np.uint32), np.dtype(np.uint64)
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


# ----------------------------------------------------------------------------------------------------------
# The hash


def _hash_infer(*avals: ShapedArray) -> Any:
    if any(a.dtype != _U32 or a.shape != avals[0].shape for a in avals):
        raise errors.ArgumentTypeError(
            f"threefry2x32 needs four uint32 arrays of one shape but got {', '.join(a.short() for a in avals)}"
        )
    return [ShapedArray(avals[0].shape, _U32)] * 2


def _hash_lower(ctx: LoweringContext, eqn: Eqn, k1: Any, k2: Any, x1: Any, x2: Any) -> Any:
    aval = eqn.outvars[0].aval

    def op(name: str, x: Any, y: Any) -> Any:
        return ctx.op(f"stablehlo.{name}", [x, y], aval)

    def constant(value: Any) -> Any:
        return ctx.full(value, aval)

    def rotate(x: Any, by: Any) -> Any:
        return op("or", op("shift_left", x, constant(by)), op("shift_right_logical", x, constant(32 - by)))

    schedule = [k1, k2, op("xor", op("xor", k1, k2), constant(_PARITY))]
    x1, x2 = op("add", x1, k1), op("add", x2, k2)
    for step in range(5):
        for rotation in _ROTATIONS[step % 2]:
            x1 = op("add", x1, x2)
            x2 = op("xor", x1, rotate(x2, rotation))
        x1 = op("add", x1, schedule[(step + 1) % 3])
        x2 = op("add", op("add", x2, schedule[(step + 2) % 3]), constant(step + 1))
    return [x1, x2]


def _hash_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    args, d = batch_together(size, args, dims)
    return threefry2x32_p.bind(*args), [d, d]


def _hash_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    return threefry2x32_p.bind(*primals), [None, None]


threefry2x32_p: Primitive = Primitive(
    "threefry2x32", _hash_infer, lower=_hash_lower, jvp=_hash_jvp, batch=_hash_batch,
    multiple_results=True,
    absent=NOT_LINEAR,
)  # fmt: skip


def threefry_2x32(keypair: tuple[Any, Any], count: Any) -> Any:
    """Hashes uint32 `count` (its halves are the two words of the blocks) under a pair of uint32 scalars."""
    aval = aval_of(count)
    if aval.dtype != _U32 or any(aval_of(k).dtype != _U32 or aval_of(k).ndim for k in keypair):
        raise errors.ArgumentTypeError(
            f"threefry_2x32 needs two uint32 scalars and a uint32 array but got "
            f"{', '.join(aval_of(v).short() for v in (*keypair, count))}"
        )
    flat, half = reshape(count, (aval.size,)), ceil_div(aval.size, 2)
    if aval.size % 2:
        flat = concatenate([flat, full((1,), 0, _U32)], 0)
    blocks = reshape(flat, (2, half))
    k1, k2 = (broadcast_in_dim(k, (half,), ()) for k in keypair)
    words = threefry2x32_p.bind(k1, k2, index_in_dim(blocks, 0, 0, False), index_in_dim(blocks, 1, 0, False))
    out = concatenate(words, 0)
    if aval.size % 2:
        out = slice_in_dim(out, 0, aval.size)
    return reshape(out, aval.shape)


# ----------------------------------------------------------------------------------------------------------
# Counters


def _linear_position(shape: Sequence[int], dtype: np.dtype) -> Any:
    """Row-major positions, as a sum of one iota per dimension (each of which partitions by itself)."""
    total = None
    for i, n in enumerate(shape):
        stride = math.prod(shape[i + 1 :])
        if n == 1 and total is not None:
            continue
        part = broadcasted_iota(dtype, shape, i)
        part = ew.mul(part, _scalar(stride, dtype)) if stride != 1 else part
        total = part if total is None else ew.add_p.bind(total, part)
    return total


def _scalar(size: Any, dtype: Any) -> Any:
    """A size as a scalar."""
    return _convert(size, dtype) if isinstance(size, DimExpr) else dtype.type(size)


def iota_2x32_shape(shape: Sequence[int]) -> tuple[Any, Any]:
    """The row-major position of every element of `shape` as two uint32 arrays: the high and the low 32 bits."""
    shape = canonical_shape(shape)
    if not shape:
        return full((), 0, _U32), full((), 0, _U32)
    if guessed(math.prod(shape)) <= 1 << 32:
        return full(shape, 0, _U32), _linear_position(shape, _U32)
    positions = _wide_position(shape)
    high = ew.shift_right_logical_p.bind(positions, _wide(32))
    return _convert(high, _U32), _convert(positions, _U32)


def _wide(value: int) -> Any:
    """A uint64 scalar, whatever `enable_x64` says about the values that users see."""
    low = _convert(np.uint32(value & 0xFFFFFFFF), _U64)
    if value >> 32 == 0:
        return low
    high = ew.shift_left_p.bind(_convert(np.uint32(value >> 32), _U64), _wide(32))
    return ew.or_p.bind(high, low)


def _wide_position(shape: Sequence[int]) -> Any:
    """`_linear_position` in 64 bits."""
    total = None
    for i in range(len(shape)):
        part = iota_p.bind(dtype=_U64, shape=tuple(shape), dimension=i)
        part = ew.mul_p.bind(part, _wide(math.prod(shape[i + 1 :])))
        total = part if total is None else ew.add_p.bind(total, part)
    return total


# ----------------------------------------------------------------------------------------------------------
# Seeds, keys and bits: of every key of an array `uint32[..., 2]`


def _key_words(keys: Any) -> list[Any]:
    """The two words of every key."""
    last = aval_of(keys).ndim - 1
    return [index_in_dim(keys, i, last, False) for i in range(2)]


def _hash_positions(keys: Any, shape: tuple[int, ...]) -> Sequence[Any]:
    """Both hash words at every position of `shape`, for every key."""
    lead = aval_of(keys).shape[:-1]
    total, rank = (*lead, *shape), len(lead)
    words = [broadcast_in_dim(k, total, range(rank)) for k in _key_words(keys)]
    counts = [broadcast_in_dim(c, total, range(rank, len(total))) for c in iota_2x32_shape(shape)]
    return threefry2x32_p.bind(*words, *counts)


def _join_words(words: Sequence[Any]) -> Any:
    """Two arrays of words as key data: a new last dimension of 2."""
    shape = aval_of(words[0]).shape
    return concatenate([reshape(w, (*shape, 1)) for w in words], len(shape))


def _convert(x: Any, dtype: Any) -> Any:
    return conversion.convert_element_type_p.bind(x, new_dtype=np.dtype(dtype), weak_type=False)


def threefry_seed(seeds: Any) -> Any:
    """Key data whose 64 bits are the (sign-extended) seed; 32-bit seeds have a zero first word."""
    aval = aval_of(seeds)
    if aval.dtype.itemsize == 8:
        high = _convert(ew.shift_right_logical_p.bind(seeds, aval.dtype.type(32)), _U32)
    else:
        high = full(aval.shape, 0, _U32)
    return _join_words([high, seeds if aval.dtype == _U32 else _convert(seeds, _U32)])


def threefry_split(shape: tuple[int, ...], by_position: bool, keys: Any) -> Any:
    """The hash of every position of `shape` is a new key; not `by_position`, words of one sequence are the keys'."""
    if not by_position:
        words = _hash_sequence(keys, 2 * math.prod(shape))
        return reshape(words, (*aval_of(keys).shape[:-1], *shape, 2))
    return _join_words(_hash_positions(keys, shape))


def threefry_fold_in(keys: Any, data: Any) -> Any:
    """The hash of the block (0, data) is the new key; a scalar operand goes with every element of the other."""
    shape = aval_of(keys).shape[:-1] or aval_of(data).shape
    data = conversion.convert_element_type(data, _U32)
    parts = [*_key_words(keys), data]
    k1, k2, data = (broadcast_in_dim(p, shape, ()) if shape and not aval_of(p).ndim else p for p in parts)
    return _join_words(threefry2x32_p.bind(k1, k2, full(shape, 0, _U32), data))


def _hash_sequence(keys: Any, count: int) -> Any:
    """uint32[..., count] for each key: the hash of 0, 1, 2, ..., whose halves are the two words of the blocks."""
    if guessed(count) > 1 << 32:
        raise errors.UnsupportedError(
            f"{count} words of random bits from one key: without threefry_partitionable at most 2**32 are drawn; draw "
            "in parts, each with a key of its own, or set threefry_partitionable"
        )
    lead, half = aval_of(keys).shape[:-1], ceil_div(count, 2)
    rank, total = len(lead), (*lead, half)
    first = iota_p.bind(dtype=_U32, shape=(half,), dimension=0)
    second = ew.add_p.bind(first, _scalar(half, _U32))
    if _is_odd(count):  # the last block is filled up with a zero
        second = concatenate([slice_in_dim(second, 0, half - 1), full((1,), 0, _U32)], 0)
    words = [broadcast_in_dim(k, total, range(rank)) for k in _key_words(keys)]
    blocks = [broadcast_in_dim(c, total, (rank,)) for c in (first, second)]
    return slice_in_dim(concatenate(threefry2x32_p.bind(*words, *blocks), rank), 0, count, axis=rank)


def _is_odd(count: Any) -> bool:
    rest = count % 2
    if not isinstance(rest, DimExpr):
        return bool(rest)
    raise errors.InconclusiveDimensionOperation(
        f"{count} words of random bits from one key: without threefry_partitionable the product of the known "
        "dimensions must be even where others are symbolic; set threefry_partitionable, or draw one more and slice"
    )


def _bits_of_sequence(bit_width: int, shape: tuple[int, ...], keys: Any) -> Any:
    """Words of one sequence: two halves of it joined to 64 bits, or each cut into pieces, the lowest bits first."""
    lead, size = aval_of(keys).shape[:-1], math.prod(shape)
    rank, count = len(lead), ceil_div(bit_width * size, 32)
    words = _hash_sequence(keys, count)
    if bit_width == 64:
        high, low = (_convert(slice_in_dim(words, a, a + size, axis=rank), _U64) for a in (0, size))
        words = ew.or_p.bind(ew.shift_left_p.bind(high, _wide(32)), low)
    elif bit_width < 32:
        pieces = [
            _convert(ew.shift_right_logical_p.bind(words, np.uint32(bit_width * i)), f"uint{bit_width}")
            for i in range(32 // bit_width)
        ]
        pieces = [reshape(p, (*lead, count, 1)) for p in pieces]
        words = reshape(concatenate(pieces, rank + 1), (*lead, count * len(pieces)))
        words = slice_in_dim(words, 0, size, axis=rank)
    return reshape(words, (*lead, *shape))


def threefry_random_bits(bit_width: int, shape: tuple[int, ...], by_position: bool, keys: Any) -> Any:
    """The words of each position joined to 64 bits, or combined by xor to 32 and truncated to fewer.

    Not `by_position`, all are pieces of one sequence.
    """
    if not by_position:
        return _bits_of_sequence(bit_width, shape, keys)
    high, low = _hash_positions(keys, shape)
    if bit_width == 64:
        return ew.or_p.bind(ew.shift_left_p.bind(_convert(high, _U64), _wide(32)), _convert(low, _U64))
    bits = ew.xor_p.bind(high, low)
    return bits if bit_width == 32 else _convert(bits, f"uint{bit_width}")
