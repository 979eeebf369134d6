"""Block sizes of the kernels that ship, and why.

A block is a window that a core holds at once. Larger ones do more work for each element that they fetch and have fewer
turns; what bounds them is the memory beside the unit that computes. A TPU grants a kernel 16 MiB of its core's by
default (v5e, v5p) and keeps two buffers of each window. The last two dimensions of a window must be multiples of
(8, 128) there, or whole, hence powers of two, and whole dimensions where these are smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from meshrt.primitives.precision import canonical_precision, is_in_full

__all__ = [
    "CORES", "GPUS", "RING_BYTES", "STAGES", "Sizes", "block_of", "columns_beside", "on_gpus", "rows_of", "warps_for",
]  # fmt: skip


class Sizes(NamedTuple):
    """The blocks of each kernel.

    matmul     rows, columns and summed dimension of a product
    attention  queries and keys of a block of scores; of the backward pass: attention_gradient
    norm       elements of a block of rows that are normalised, and how many rows it has at least
    loss       tokens and classes of a block of logits
    head       tokens and classes of a block of logits that are computed from a head
    scan       steps and channels of a block of a selective scan
    pages      keys of a page that are held at once; 0 for whole pages
    """

    matmul: tuple[int, int, int]
    attention: tuple[int, int]
    attention_gradient: tuple[int, int]
    norm: tuple[int, int]
    loss: tuple[int, int]
    head: tuple[int, int]
    scan: tuple[int, int]
    pages: tuple[int]


# Cores of TPUs, and CPUs.
#
# matmul: 512 cubed does 512 operations per element fetched, twice what a v5e's memory needs to keep its unit busy (197
# TFLOP/s by 819 GB/s is 240 operations a byte, of bfloat16), and holds 5 MiB of bfloat16 operands, accumulator and
# results. Measured on a CPU, f32 of 1024 cubed: blocks of 128 to 512 take the time of one product, blocks of 64 twice
# that. The others are chosen: scores and weights of 512 x 512 are 1 MiB each in f32, and the backward pass has four of
# them at a time; rows that are normalised take 1 MiB in f32, several buffers of which fit; of logits, classes are many,
# and tokens wait for all; the states of a block of a scan, which the backward pass keeps, are steps x states x
# channels, 4 MiB in f32 with 16 states.
CORES = Sizes(
    matmul=(512, 512, 512),
    attention=(512, 512),
    attention_gradient=(512, 512),
    norm=(256 * 1024, 8),
    loss=(256, 1024),
    head=(256, 1024),
    scan=(128, 512),
    pages=(0,),
)

# GPUs, where a program holds its blocks in the registers and the shared memory of one multiprocessor (64 Ki registers
# and 227 KiB on an H100), by four warps and with three stages. Logits from a head are computed by whole products, of
# all tokens. Measured on an H200, in milliseconds, bfloat16 but for the scan:
#   matmul 4096 cubed: 0.24 (XLA's 0.20); 128 x 256 x 64 0.34, 64 x 128 x 64 0.32
#   attention, causal, 4 x 2048 x 16 heads x 64: 0.34 forward and 1.10 for the gradient (plain: 1.47 and 3.66);
#     128 x 64 0.36 and 1.03, 64 x 32 0.46 and 1.42
#   norm of 8192 x 4096: 0.062 with 2 rows (plain 0.098); 1 row 0.067, 8 rows 0.077
#   loss of 4096 x 32000: 0.19 and 0.35 for the gradient (plain 0.21 and 0.37); 16 x 256 0.36 and 0.52
#   scan of 4 x 1024 x 1024, 16 states: 0.82 and 3.97 for the gradient; 16 x 64 1.05 and 5.4, 64 x 32 0.82 and 37
GPUS = Sizes(
    matmul=(128, 128, 64),
    attention=(64, 64),
    attention_gradient=(64, 64),
    norm=(8 * 1024, 1),
    loss=(4, 1024),
    head=(0, 8192),
    scan=(32, 32),
    pages=(128,),
)

# Float32 is multiplied by the bits of it that tensor cores take. Chosen: the largest blocks that the compiler for an
# H100 keeps in registers (202 of the 255 of each thread; of 128 x 128 x 32 it stores 216 bytes elsewhere, of 64 x 64 it
# takes 122, for a third less work by each element that is fetched).
_TF32_MATMUL = 128, 64, 32
# What bounds the blocks of GPUs by their operands. Chosen from what the compiler for an H100 takes. Products in full of
# floats of 32 bits and more are no instruction of tensor cores, so that each multiplication is written out, 1024 of
# them for a thread (of blocks of 128 x 128 x 64 in float32 8192 took the compiler 30 s, and in float64 they do not
# fit). Attention in float32 has these bounds by tensor cores, too: with twice as many rows its backward pass does not
# stay in registers. Of narrower elements a block has 64 queries where they fit, which four warps at a time multiply by
# the wide instructions of tensor cores (`wgmma`; of 32 they do not): of heads of 256, 64 queries and 64 keys forward,
# and 32 keys backward, where four of them are held (at most 209 KiB of 227, of uneven lengths and heads of 192, too).
_HELD_BYTES = 16 << 10
_HELD_ROWS_BYTES = 32 << 10
_WIDE_TERMS = 1 << 17
# Words of 32 bits, of operands and sums, that attention holds by four warps, by the bytes of an element; of more by
# eight. Chosen from what the compiler for an H100 stores elsewhere, in bytes for a thread by four warps and by eight:
# bfloat16, heads of 128, 64 x 64: forward 0 and 0, of queries 0 and 0, of keys 640 and 0; heads of 256, 64 x 64 forward
# 1068 and 0, 64 x 32 of queries (not measured) and 96, of keys (not measured) and 8; 32 x 32, as it was, of keys 672
# by four. float32, heads of 128, 32 x 32: 144, 376 and 580 by four, 0, 72 and 128 by eight; heads of 256, 16 x 16: 112,
# 500 and 692, and 0, 180 and 248. (By sixteen warps a thread has 128 registers, and all of them store more.)
_WORDS_OF_FOUR_WARPS = {2: 24 << 10, 4: 12 << 10}
# Blocks that are fetched ahead. Chosen: with three, one program has a multiprocessor to itself from heads of 128 on
# (152 KiB), with two 104 KiB.
STAGES = 2
# The backward pass of a scan keeps the states of a block's steps: of 64 x 32 channels with 16 states it took ten times
# as long as of half as many. (With 128 states the compiler was not done with 32 x 32 after three minutes.)
_KEPT_STATES = 1 << 14


def on_gpus(name: str, arrays: Sequence[Any]) -> tuple[int, ...]:
    """The row `name` of the table for GPUs, made smaller where elements, heads or states are wide."""
    blocks: tuple[int, ...] = getattr(GPUS, name)
    first = arrays[0]
    if name == "matmul" and first.dtype.itemsize >= 4:
        in_full = first.dtype.itemsize > 4 or is_in_full(canonical_precision(None))
        return (64, 64, _WIDE_TERMS // 64**2) if in_full else _TF32_MATMUL
    if name in ("attention", "attention_gradient", "pages"):
        return _of_heads(name, blocks, 1 << (first.shape[-1] - 1).bit_length(), first.dtype.itemsize)
    if name == "scan":
        rows, width = blocks
        states = 1 << (arrays[2].shape[1] - 1).bit_length()
        while rows * width * states > _KEPT_STATES and width > 1:
            rows, width = (rows // 2, width) if rows >= width else (rows, width // 2)
        return rows, width
    return blocks


def _of_heads(name: str, blocks: tuple[int, ...], width: int, size: int) -> tuple[int, ...]:
    """Positions of a block of heads of so many elements, of `size` bytes each."""
    if name != "pages" and size < 4:
        most = (_HELD_ROWS_BYTES, _HELD_ROWS_BYTES if name == "attention" else _HELD_BYTES)
        return tuple([max(16, min(n, m // (width * size))) for n, m in zip(blocks, most)])
    rows = blocks[0]
    terms = _WIDE_TERMS if size >= 4 else rows**2 * width
    while rows > 16 and (rows * width * size > _HELD_BYTES or rows * min(rows, 64) * width > terms):
        rows //= 2
    return (rows,) * len(blocks)


def warps_for(operands: int, sums: int, itemsize: int) -> int:
    """How many warps of a GPU share a block of attention that holds so many elements of operands and of sums."""
    words = operands * itemsize // 4 + sums
    return 4 if words <= _WORDS_OF_FOUR_WARPS.get(itemsize, 12 << 10) else 8


# Bytes of a core's memory that the windows of a ring's kernel may take. Chosen: what a v5e grants less a quarter, for
# what the compiler keeps on its stack. Measured on its compiler: 8 MiB of rows beside 8 MiB of columns were refused.
RING_BYTES = 12 << 20


def columns_beside(held: int, column: int) -> int:
    """Columns of a block beside `held` bytes, where one takes `column` bytes: a power of two of at least 128."""
    columns = CORES.matmul[1]
    while columns > 128 and held + columns * column > RING_BYTES:
        columns //= 2
    return columns


def block_of(size: int, wanted: int) -> int:
    """The size of a block of a dimension: `wanted`, or the whole dimension where that is not larger."""
    return max(1, min(size, wanted))


def rows_of(rows: int, width: int, wanted: tuple[int, int]) -> int:
    """How many rows of `width` elements a block has: the largest power of two with at most `wanted[0]` elements, but
    `wanted[1]` rows at least."""
    elements, least = wanted
    fitting = elements // max(1, width)
    return block_of(rows, max(least, (1 << fitting.bit_length()) >> 1))
