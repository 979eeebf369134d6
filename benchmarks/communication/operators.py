"""Single operations whose sharded dimension is the one they work on: windows, sorts, reshapes, slices, scans, moves."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from .base import Array, Out, all_gather, all_reduce, all_to_all, eight, integers, program, two_by_four

F32 = 4
MILLION = 2**20
SHARD = MILLION * F32 // 8

# --- Convolution and pooling, height sharded.

PHOTO = Array((2, 128, 128, 32), (None, "x", None, None))
KERNEL = Array((3, 3, 32, 32), (), 0.06)
TALL = Out(None, "x", None, None)
IMAGE_ROW = 2 * 128 * 32 * F32


def convolve(x, w, stride=1, groups=1):
    dims = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (stride,) * 2, "SAME", dimension_numbers=dims, feature_group_count=groups)


@program("convolution", eight, [PHOTO, KERNEL], TALL, 2 * IMAGE_ROW, "one row to each neighbour")
def convolution(x, w):
    return convolve(x, w)


@program("convolution, stride 2", eight, [PHOTO, KERNEL], TALL, IMAGE_ROW, "one row from one neighbour")
def convolution_stride(x, w):
    return convolve(x, w, 2)


@program(
    "convolution gradient", eight, [PHOTO, KERNEL, PHOTO], (TALL, Out()), 2 * IMAGE_ROW + all_reduce(9 * 32 * 32 * F32),
    "one halo of ct serves both gradients; all-reduce of dw",
)  # fmt: skip
def convolution_gradient(x, w, ct):
    return jax.vjp(convolve, x, w)[1](ct)


@program(
    "max pooling gradient", eight, [PHOTO, Array((2, 64, 64, 32), (None, "x", None, None))], (TALL, TALL),
    2 * IMAGE_ROW,
    "one halo row forward, one row of contributions back",
)  # fmt: skip
def pooling(x, ct):
    pool = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    y, back = jax.vjp(pool, x)
    return y, back(ct)[0]


BATCHED = Array((16, 32, 32, 32), ("x", None, None, None))


@program(
    "convolution gradient, batch", eight, [BATCHED, KERNEL, BATCHED],
    (Out("x", None, None, None), (Out("x", None, None, None), Out())), all_reduce(9 * 32 * 32 * F32),
    "all-reduce of dw",
)  # fmt: skip
def convolution_batch(x, w, ct):
    y, back = jax.vjp(convolve, x, w)
    return y, back(ct)


CHANNELS = Array((4, 64, 64, 64), (None, None, None, "x"))
LAST = Out(None, None, None, "x")


@program(
    "depthwise convolution gradient", eight, [CHANNELS, Array((3, 3, 1, 64), (None, None, None, "x")), CHANNELS],
    (LAST, (LAST, LAST)), 0, "nothing",
)  # fmt: skip
def depthwise(x, w, ct):
    y, back = jax.vjp(lambda x, w: convolve(x, w, groups=64), x, w)
    return y, back(ct)


@program(
    "convolution, features contracted", eight,
    [Array((4, 32, 32, 64), (None, None, None, "x")), Array((3, 3, 64, 64), (None, None, "x", None), 0.05)], Out(),
    all_reduce(4 * 32 * 32 * 64 * F32), "all-reduce of the output",
)  # fmt: skip
def convolution_features(x, w):
    return convolve(x, w)


# --- Order.


@program(
    "top-k", eight, [Array((64, 65536), (None, "x"))], (Out(), Out()),
    all_to_all(64 * 16 * 8) + all_gather(64 * 16 * 8),
    "local top-k, candidates by rows, merge, gather",
)  # fmt: skip
def top_k(x):
    return tuple(lax.top_k(x, 16))


@program(
    "sort a vector", eight, [Array((MILLION,), ("x",))], Out("x"), 2 * all_to_all(SHARD) + SHARD,
    "columnsort: two all-to-alls and two shifts of half a shard", all_to_all(SHARD) + all_gather(8 * 8 * 4),
)  # fmt: skip
def sort_vector(x):
    return jnp.sort(x)


@program(
    "sort rows", eight, [Array((64, 16384), (None, "x"))], Out(None, "x"), 2 * all_to_all(SHARD),
    "to whole rows and back", all_to_all(SHARD),
)  # fmt: skip
def sort_rows(x):
    return jnp.sort(x, axis=-1)


# --- Reshapes and reshards.


@program("merge into the minor", eight, [Array((64, 16384), (None, "x"))], Out("x"), all_to_all(SHARD), "all-to-all")
def merge_minor(x):
    return x.reshape(-1)


@program("merge into the major", eight, [Array((64, 16384), ("x", None))], Out("x"), 0, "nothing")
def merge_major(x):
    return x.reshape(-1)


@program("split to the minor", eight, [Array((MILLION,), ("x",))], Out(None, "x"), all_to_all(SHARD), "one all-to-all")
def split_minor(x):
    return x.reshape(64, 16384)


@program("split over two axes", two_by_four, [Array((MILLION,), (("x", "y"),))], Out("x", "y", None), 0, "nothing")
def split_axes(x):
    return x.reshape(2, 4, -1)


@program(
    "fewer heads than devices", eight, [Array((4, 256, 1024), (None, None, "x"))], Out(None, None, "x"),
    all_reduce(4 * 256 * F32, 2), "keep half heads; all-reduce a scalar per row over two devices",
)  # fmt: skip
def heads(x):
    h = x.reshape(4, 256, 4, 256)
    return (h / jnp.sqrt(jnp.sum(h * h, -1, keepdims=True) + 1.0)).reshape(4, 256, 1024)


@program("swap two axes", two_by_four, [Array((2048, 2048), ("x", "y"))], Out("y", "x"), 2 * MILLION, "exact pieces")
def swap_axes(x):
    return x


@program("move an axis", eight, [Array((2048, 2048), ("x", None))], Out(None, "x"), all_to_all(2 * MILLION), "one")
def move_axis(x):
    return x


# --- Positions on a sharded dimension.

ROWS = Out("x", None)


@program(
    "concatenate", eight, [Array((1024, 512), ("x", None))] * 2, ROWS, 2 * 1024 * 512 * F32 // 8, "the blocks that lack"
)
def concatenate(a, b):
    return jnp.concatenate([a, b], axis=0)


@program(
    "slice the middle", eight, [Array((2048, 512), ("x", None))], ROWS, 256 * 512 * F32, "holders send their rows",
    128 * 512 * F32,
)  # fmt: skip
def slice_middle(x):
    return x[512:1536]


@program("shift by one row", eight, [Array((4096, 1024), ("x", None))], ROWS, 4096, "one row")
def shift(x):
    return jnp.concatenate([jnp.zeros((1, x.shape[1]), x.dtype), x[:-1]], axis=0)


@program("flip", eight, [Array((4096, 512), ("x", None))], ROWS, 4096 * 512 * F32 // 8, "one permute")
def flip(x):
    return jnp.flip(x, 0)


@program("every second row", eight, [Array((4096, 512), ("x", None))], ROWS, 0, "nothing")
def stride(x):
    return x[::2]


@program("roll", eight, [Array((4096, 1024), ("x", None))], ROWS, 4096, "one row")
def roll(x):
    return jnp.roll(x, 1, axis=0)


@program(
    "stencil", two_by_four, [Array((1024, 1024), ("x", "y"))], Out("x", "y"), 10 * (2 * 256 + 2 * 512) * F32,
    "four halo lines a step",
)  # fmt: skip
def stencil(x):
    def step(_, u):
        near = jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1)
        return 0.5 * u + 0.125 * near

    return lax.fori_loop(0, 10, step, x)


@program("running sum", eight, [Array((2048, 128), ("x", None))], ROWS, 3 * 128 * F32, "a scan of totals in 3 permutes")
def running_sum(x):
    return jnp.cumsum(x, axis=0)


@program("trace and triangle", eight, [Array((2048, 2048), ("x", None))], (Out(), Out()), 2 * all_reduce(F32), "")
def trace(x):
    return jnp.trace(x), jnp.sum(jnp.tril(x))


# --- Gathers and scatters.


@program(
    "rows of a table", two_by_four, [Array((16384, 256), ("y", None)), integers((2048,), 16384, ("x",))], ROWS,
    all_reduce(1024 * 256 * F32, 4), "masked local rows, all-reduce", all_gather(1024 * 256 * F32, 4),
)  # fmt: skip
def table_rows(table, ids):
    return table[ids]


@program(
    "window at a traced start", eight, [Array((16384, 256), ("x", None)), integers((), 16000)], Out(),
    all_reduce(128 * 256 * F32), "masked local rows, all-reduce", all_gather(128 * 256 * F32),
)  # fmt: skip
def traced_window(x, start):
    return lax.dynamic_slice(x, (start, 0), (128, 256))


@program(
    "segment sum", eight, [Array((8192, 256), ("x", None)), integers((8192,), 1024, ("x",))], ROWS,
    7 / 8 * 1024 * 256 * F32, "local sums, reduce-scatter",
)  # fmt: skip
def segment_sum(rows, ids):
    return jnp.zeros((1024, 256), rows.dtype).at[ids].add(rows)


# --- Contractions.


@program(
    "contract, scatter", eight, [Array((1024, 4096), (None, "x"), 0.1), Array((4096, 1024), ("x", None), 0.1)], ROWS,
    7 / 8 * 1024 * 1024 * F32, "local product, reduce-scatter",
)  # fmt: skip
def contract_scatter(a, b):
    return a @ b


@program(
    "contract, other axis", two_by_four, [Array((1024, 4096), (None, "y"), 0.1), Array((4096, 1024), ("y", None), 0.1)],
    ROWS, all_reduce(512 * 1024 * F32, 4), "rows cut first, all-reduce of half the output",
)  # fmt: skip
def contract_other(a, b):
    return a @ b


@program(
    "matrix product in two dimensions", two_by_four, [Array((1024, 1024), ("x", "y"), 0.1)] * 2, Out("x", "y"),
    all_gather(512 * 1024 * F32, 4) + all_gather(1024 * 256 * F32, 2), "gather a along y and b along x",
)  # fmt: skip
def product_2d(a, b):
    return a @ b


@program(
    "rows times columns", eight, [Array((2048, 512), ("x", None), 0.1), Array((512, 512), (None, "x"), 0.1)], ROWS,
    all_gather(512 * 512 * F32), "gather the smaller operand",
)  # fmt: skip
def rows_columns(a, b):
    return a @ b


# --- Work that a sharded batch leaves local.


def _positive(rng, shape):
    m = rng.standard_normal(shape)
    return m @ m.swapaxes(-1, -2) / shape[-1] + 2 * jnp.eye(shape[-1])


SPD = Array((64, 64, 64), ("x", None, None), 1.0, "float32", _positive)
BATCH = Array((64, 1024), ("x", None))
WHOLE = Out("x", None, None)


@program("fft of a batch", eight, [Array((64, 4096), ("x", None))], ROWS, 0, "nothing")
def fft(x):
    return jnp.abs(jnp.fft.fft(x, axis=1))


@program("cholesky of a batch", eight, [SPD], WHOLE, 0, "nothing")
def cholesky(a):
    return jnp.linalg.cholesky(a)


@program("eigh, qr, solve of a batch", eight, [SPD], WHOLE, 0, "nothing")
def linear_algebra(a):
    values, _ = jnp.linalg.eigh(a)
    q, r = jnp.linalg.qr(a)
    return jnp.abs(jnp.linalg.solve(a, q)) + jnp.sum(jnp.abs(r), (1, 2), keepdims=True) + values[:, None, :]


@program("take along rows, gradient", eight,
         [BATCH, integers((64, 16), 1024, ("x", None)), Array((64, 16), ("x", None))],
         (ROWS, ROWS), 0, "nothing")  # fmt: skip
def take_along(x, ids, ct):
    y, back = jax.vjp(lambda x: jnp.take_along_axis(x, ids, axis=1), x)
    return y, back(ct)[0]


@program("sort and top-k of a batch", eight, [BATCH], (ROWS,) * 3, 0, "nothing")
def order_batch(x):
    return jnp.sort(x, 1), jnp.argsort(x, 1), lax.top_k(x, 8)[0]


@program("running sums of a batch", eight, [BATCH], (ROWS,) * 2, 0, "nothing")
def scans_batch(x):
    return jnp.cumsum(x, 1), lax.cummax(x, axis=1)


@program("update each row somewhere", eight,
         [Array((64, 512, 64), ("x", None, None)), Array((64, 1, 64), ("x", None, None)), integers((64,), 512, ("x",))],
         WHOLE, 0, "nothing")  # fmt: skip
def update_rows(cache, new, at_row):
    return jax.vmap(lambda c, n, p: lax.dynamic_update_slice(c, n, (p, 0)))(cache, new, at_row)


# --- Random numbers.

KEY = integers((2,), 1000, (), "uint32")


@program("dropout", two_by_four, [Array((2048, 2048), ("x", "y")), KEY], Out("x", "y"), 0, "counters are positions")
def dropout(x, key):
    keep = jax.random.bernoulli(jax.random.wrap_key_data(key, impl="threefry2x32"), 0.9, x.shape)
    return jnp.where(keep, x / 0.9, 0.0)


@program("permutation", eight, [Array((2**18,), ("x",)), KEY], Out("x"), all_gather(2**18 * F32),
         "gather x; everybody computes the permutation", all_to_all(2**18 * F32 // 8))  # fmt: skip
def permutation(x, key):
    return jax.random.permutation(jax.random.wrap_key_data(key, impl="threefry2x32"), x)
