"""Block sizes of the kernels that ship, and why.

A block is a window that a core holds at once. Larger ones do more work for each element that they fetch and have fewer
turns; what bounds them is a core's memory, of which a TPU grants a kernel 16 MiB by default (v5e, v5p) and keeps two
buffers of each window. The last two dimensions of a window must be multiples of (8, 128) there, or whole, hence powers
of two, and whole dimensions where these are smaller.
"""

from __future__ import annotations

__all__ = [
    "ATTENTION_KEYS", "ATTENTION_QUERIES", "LOSS_TOKENS", "LOSS_VOCABULARY", "MATMUL_COLUMNS", "MATMUL_DEPTH",
    "MATMUL_ROWS", "NORM_ELEMENTS", "RING_BYTES", "SCAN_CHANNELS", "SCAN_STEPS", "block_of", "columns_beside",
    "rows_of",
]  # fmt: skip

# Rows, columns and summed dimension of a product. Chosen: 512 cubed does 512 operations per element fetched, twice what
# a v5e's memory needs to keep its unit busy (197 TFLOP/s by 819 GB/s is 240 operations a byte, of bfloat16), and holds
# 5 MiB of bfloat16 operands, accumulator and results. Measured on a CPU, f32 of 1024 cubed: blocks of 128 to 512 take
# the time of one product, blocks of 64 twice that.
MATMUL_ROWS = 512
MATMUL_COLUMNS = 512
MATMUL_DEPTH = 512

# Queries and keys of a block of scores. Chosen: scores and weights of 512 x 512 are 1 MiB each in f32, and the backward
# pass has four of them at a time.
ATTENTION_QUERIES = 512
ATTENTION_KEYS = 512

# Elements of a block of rows that are normalised. Chosen: 1 MiB in f32, several buffers of which fit.
NORM_ELEMENTS = 256 * 1024

# Tokens and classes of a block of logits. Chosen: as scores of attention; classes are many, tokens wait for all.
LOSS_TOKENS = 256
LOSS_VOCABULARY = 1024

# Steps and channels of a block of a selective scan. Chosen: the states of a block, which the backward pass keeps, are
# steps x states x channels: 4 MiB in f32 with 16 states.
SCAN_STEPS = 128
SCAN_CHANNELS = 512


# Bytes of a core's memory that the windows of a ring's kernel may take. Chosen: what a v5e grants less a quarter, for
# what the compiler keeps on its stack. Measured on its compiler: 8 MiB of rows beside 8 MiB of columns were refused.
RING_BYTES = 12 << 20


def columns_beside(held: int, column: int) -> int:
    """Columns of a block beside `held` bytes, where one takes `column` bytes: a power of two of at least 128."""
    columns = MATMUL_COLUMNS
    while columns > 128 and held + columns * column > RING_BYTES:
        columns //= 2
    return columns


def block_of(size: int, wanted: int) -> int:
    """The size of a block of a dimension: `wanted`, or the whole dimension where that is not larger."""
    return max(1, min(size, wanted))


def rows_of(rows: int, width: int, elements: int = NORM_ELEMENTS) -> int:
    """How many rows of `width` elements a block has: a power of two of at least 8, with about `elements` elements."""
    wanted = max(8, elements // max(1, width))
    return block_of(rows, 1 << (wanted.bit_length() - 1))
