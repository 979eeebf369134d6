"""Operations on values in kernels for GPUs that Triton has no instruction for: run by the evaluator of its dialect
beside the same operations outside of a kernel, and given to the compiler (`make test-tpu`)."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import meshrt
from meshrt import lax
from meshrt import scipy as jsp
from meshrt.experimental.pallas.ops import heuristics
from tests.meshrt.kernels.programs import OURS
from tests.meshrt.kernels.test_any_size import kind, whole
from tests.meshrt.kernels.test_evaluated import drawn, evaluated
from tests.meshrt.kernels.test_hardware import needs_cuda

pl, jnp, pltpu = OURS.pl, OURS.np, OURS.pltpu

F32, BF16, F64, I32 = (np.dtype(d) for d in (np.float32, ml_dtypes.bfloat16, np.float64, np.int32))
EVEN, ODD, ROW, WORDS = kind(8, 16), kind(5, 3), kind(20), kind(8, 16, dtype=I32)
FOUR, BYTES = kind(4, dtype=I32), kind(8, 16, dtype=np.uint8)
NEIGHBOURS = kind(8, 2, dtype=np.uint16)


def pairs_of_best(x, places):
    best = lambda a, b: (jnp.where(a[0] >= b[0], a[0], b[0]), jnp.where(a[0] >= b[0], a[1], b[1]))
    return lax.reduce((x, places), (np.float32(-np.inf), np.int32(-1)), best, (1,))[1]


def stacked(x):
    last, sums = lax.scan(lambda c, row: (c + row, c * row), x[0], x)
    return jnp.concatenate([last[None], sums])


def until_large(x):
    return lax.while_loop(lambda c: jnp.any(c < 10), lambda c: c * 2 + 1, jnp.abs(x))


def batched(x, y):
    return lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,))))


MOVED = {
    "sort": (jnp.sort, EVEN), "sort columns": (lambda x: jnp.sort(x, 0), ODD), "argsort": (jnp.argsort, EVEN),
    "sort descending": (lambda x: jnp.sort(x, descending=True), ROW), "sort words": (jnp.sort, WORDS),
    "sort ties": (lambda x, y: lax.sort((x, y), num_keys=1)[1], WORDS, EVEN),
    "sort two keys": (lambda x, y: lax.sort((x, y), num_keys=2)[1], WORDS, WORDS),
    "top_k": (lambda x: lax.top_k(x, 3)[0], ROW), "top places": (lambda x: lax.top_k(x, 3)[1], WORDS),
    "roll": (lambda x: jnp.roll(x, 1, 0), ODD), "roll by value": (lambda x: pltpu.roll(x, 3, 1), EVEN),
    "roll by steps": (lambda x: pltpu.roll(x, 1, 1, stride=2, stride_axis=0), EVEN),
    "rev": (lambda x: lax.rev(x, (0, 1)), ODD), "reshape": (lambda x: x.reshape(3, 5), ODD),
    "ravel": (lambda x: x.reshape(15), ODD), "split": (lambda x: x.reshape(5, 2, 2), ROW),
    "concatenate": (lambda x: jnp.concatenate([x, 2 * x, x[:2]], 0), ODD),
    "stack": (lambda x: jnp.stack([x, -x], -1), ODD), "parts": (lambda x: lax.split(x, (1, 2, 2))[1], ODD),
    "pad": (lambda x: lax.pad(x, np.float32(7), ((1, 2, 1), (0, 3, 0))), ODD),
    "pad by less": (lambda x: lax.pad(x, np.float32(7), ((-1, 2, 0), (1, -2, 2))), ODD),
    "tile": (lambda x: jnp.tile(x, (2, 3)), ODD), "repeat": (lambda x: jnp.repeat(x, 3, 0), ODD),
    "every other": (lambda x: x[::2, 1::3], EVEN), "diagonal": (jnp.diagonal, EVEN),
    "rows": (lambda x, i: x[i], EVEN, FOUR), "take columns": (lambda x, i: jnp.take(x, i + 1, axis=1), EVEN, FOUR),
    "take clipped": (lambda x, i: jnp.take(x, i * 9 - 5, axis=0, mode="clip"), ODD, FOUR),
    "take filled": (lambda x, i: jnp.take(x, i * 3, axis=0, mode="fill"), ODD, FOUR),
    "elements": (lambda x, i: x[i, i + 2], EVEN, FOUR), "one element": (lambda x, i: x[i[0], i[1]] + x, EVEN, FOUR),
    "along": (lambda x, i: jnp.take_along_axis(x, i, 1), EVEN, WORDS),
    "set": (lambda x, i: x.at[i].set(1.0), EVEN, FOUR), "add": (lambda x, i: x.at[i, i + 2].add(1.0), EVEN, FOUR),
    "add outside": (lambda x, i: x.at[i * 3].add(1.0), ODD, FOUR),
    "greatest": (lambda x, i: x.at[:, i].max(0.5), EVEN, FOUR), "count": (lambda i: jnp.bincount(i, length=6), FOUR),
    "cummax": (lambda x: lax.cummax(x, axis=0, reverse=True), ODD), "cummin": (lambda x: lax.cummin(x, axis=1), EVEN),
    "cumlogsumexp": (lambda x: lax.cumlogsumexp(x, axis=1), ODD),
    "associative scan": (lambda x: lax.associative_scan(lambda a, b: a * b, x, axis=1), EVEN),
    "windows": (lambda x: lax.reduce_window(x, np.float32(0), lax.add, (2, 2), (1, 2), "SAME"), ODD),
    "largest of windows": (lambda x: lax.reduce_window(x, np.float32(-np.inf), lax.max, (3,), (2,), "VALID"), ROW),
    "reduce pairs": (pairs_of_best, EVEN, WORDS),
    "reduce from 5": (lambda x: lax.reduce(x, np.float32(5), lambda a, b: a + 2 * b - b, (0,)), ODD),
    "reduce all from 5": (lambda x: lax.reduce(x, np.float32(5), lambda a, b: a + 2 * b - b, (0, 1))[None], ODD),
    "scan": (stacked, ODD), "scan back": (lambda x: lax.scan(lambda c, a: (c + a, c), x[0], x, reverse=True)[1], ODD),
    "map": (lambda x: lax.map(lambda r: r.sum(), x), EVEN), "while": (until_large, ODD),
    "median": (lambda x: jnp.median(x, 1), ODD), "searchsorted": (lambda x, y: jnp.searchsorted(x, y), ROW, ROW),
}  # fmt: skip
COMPUTED = {
    "matrix by vector": (lambda x: x @ x[3], EVEN), "vectors": (lambda x: jnp.dot(x, x)[None], ROW),
    "outer": (jnp.outer, ROW, ROW), "two contracted": (lambda x: jnp.tensordot(x, x, 2)[None], ODD),
    "three dimensions": (lambda x, y: jnp.einsum("abc,dc->abd", x.reshape(2, 4, 16), y), EVEN, EVEN),
    "batch": (batched, kind(3, 4, 5), kind(3, 5, 6)), "words": (lambda x: x @ x.T, WORDS),
    "large batch": (batched, kind(3, 32, 16), kind(3, 16, 32)), "mixed": (jnp.dot, EVEN, kind(16, 4, dtype=BF16)),
    "uint8": (lambda x: lax.dot(x, x.T, preferred_element_type=np.int32), BYTES),
    "bits of words": (lambda x: lax.bitcast_convert_type(x, np.int16), EVEN),
    "words of bits": (lambda x: lax.bitcast_convert_type(x, np.uint32), NEIGHBOURS),
    "bits of bytes": (lambda x: lax.population_count(x) + lax.clz(x), BYTES),
    "precision": (lambda x: lax.reduce_precision(x * 1e4, 5, 10), EVEN),
    "coarse": (lambda x: lax.reduce_precision(x, 8, 3), kind(8, 16, dtype=BF16)),
    "mulhi": (lambda x: lax.mulhi(x * 123456789, x * 987654321), WORDS),
    "nextafter": (lambda x: lax.nextafter(x, -x), EVEN),
    "nextafter of bf16": (lambda x, y: lax.nextafter(x, y), *[kind(8, 16, dtype=BF16)] * 2),
    "nextafter of zero": (lambda x: lax.bitcast_convert_type(lax.nextafter(x * 0, x), I32), EVEN),
    "digamma": (lambda x: lax.digamma(x * 3), EVEN), "digamma of f64": (lax.digamma, kind(8, 16, dtype=F64)),
    "digamma of bf16": (lax.digamma, kind(8, 16, dtype=BF16)), "i0e": (lambda x: lax.bessel_i0e(x * 30), EVEN),
    "i1e": (lambda x: lax.bessel_i1e(x * 30), EVEN), "i1e of f64": (lax.bessel_i1e, kind(8, 16, dtype=F64)),
    "igamma": (lambda x, y: lax.igamma(abs(x) + 0.5, abs(y)), EVEN, EVEN),
    "betainc": (lambda x: jsp.special.betainc(abs(x) + 1, np.float32(2.0), lax.logistic(x)), EVEN),
    "erfc": (lax.erfc, EVEN), "erf_inv": (lambda x: lax.erf_inv(lax.tanh(x)), EVEN), "lgamma": (lax.lgamma, EVEN),
}  # fmt: skip
PROGRAMS = {**MOVED, **COMPUTED}


@pytest.mark.parametrize("name", PROGRAMS)
def test_they_compute_what_they_do_outside_of_kernels(name):
    f, *kinds = PROGRAMS[name]
    with meshrt.enable_x64(any(k.dtype == F64 for k in kinds)):
        args = drawn(kinds)
        if kinds[0].dtype.kind == "f":
            args[0].flat[:2] = [0.0, np.nan] if name.startswith("sort") else [0.0, -0.0]
        wanted = np.asarray(meshrt.jit(f)(*args))
        (found,) = evaluated("cuda", whole(f, *kinds), args)
    tolerance = 2e-2 if wanted.dtype == BF16 else 1e-4
    found, wanted = (x.astype(np.float64) for x in (found, wanted))
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=0 if "nextafter" in name else tolerance)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int64], ids=lambda d: d.__name__)
def test_indices_of_any_width(dtype):
    """With wide types enabled indices are words of 64 bits where nobody asks for others."""

    def kernel(x, places, o):
        at = places[1]
        o[...] = x[at, :] + x[:, places[2]][:5] + lax.dynamic_slice(x[...], (at, at * 0), (1, 5))[0] + x[places[:5], 0]

    with meshrt.enable_x64(True):
        x, places = drawn([kind(8, 5)])[0], np.asarray([3, 2, 1, 0, 4, 1], dtype)
        (found,) = evaluated("cuda", pl.pallas_call(kernel, kind(5)), [x, places])
    np.testing.assert_allclose(found, x[2] + x[:5, 1] + x[2] + x[places[:5], 0], rtol=1e-6)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("dtype, last", [(np.uint8, 249), (np.uint16, 40_000)], ids=["uint8", "uint16"])
def test_narrow_indices_without_sign_count_to_their_end(platform, dtype, last):
    """Where their highest bit is set, too: dialects would take it for a sign."""
    x, places = drawn([kind(last + 1, 5)])[0], np.asarray([3, last, last // 2 + 10, 0], np.int32)

    def kernel(x, places, row, o):
        o[...] = x[places[1].astype(dtype), :] + x[pl.ds(places[2].astype(dtype), 1), :][0] + row[0]
        if platform == "cuda":
            o[:4] = o[:4] + x[places[...].astype(dtype), 0]

    whole_of = lambda *shape: pl.BlockSpec(shape, lambda i: (0,) * len(shape))
    numbers = whole_of(4) if platform == "cuda" else pl.BlockSpec(memory_space=pltpu.SMEM)
    row = pl.BlockSpec((None, 1, 5), lambda i: (i.astype(dtype) + dtype(last), 0, 0))
    call = pl.pallas_call(
        kernel, kind(5), grid=(1,), in_specs=[whole_of(*x.shape), numbers, row], out_specs=whole_of(5)
    )
    (found,) = evaluated(platform, call, [x, places, x[:, None]])
    wanted = x[last] + x[last // 2 + 10] + x[last]
    if platform == "cuda":
        wanted[:4] += x[places, 0]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("start", [1, 2**31 - 1, 2**31, 2**32 - 1])
def test_parts_of_values_begin_at_words_without_sign(start):
    """Beyond the end they are moved to it, not to the beginning."""
    x, start = drawn([kind(6, 5)])[0], np.asarray([start], np.uint32)

    def kernel(x, start, o):
        part = lax.dynamic_slice(x[...], (start[0], start[0]), (2, 3))
        o[...] = lax.dynamic_update_slice(x[...], 10 * part, (start[0], np.uint32(0)))

    call = pl.pallas_call(kernel, kind(6, 5))
    (found,) = evaluated("cuda", call, [x, start])
    np.testing.assert_allclose(found, call(x, start), rtol=1e-6)


def eighths(x):
    parts = [x + x, -x, abs(x), jnp.where(x > 1, x, x * 2), jnp.cumsum(x, 1), jnp.sort(x), jnp.maximum(x, 1), x / 3]
    parts += [x - jnp.max(x, 0), x + jnp.argmax(x, 1)[:, None].astype(x.dtype), jnp.min(x) + x]
    return jnp.stack([p.astype(np.float32) for p in parts]) + jnp.isfinite(x) + x.astype(bool)


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2], ids=lambda d: d.__name__)
def test_floats_of_a_byte_are_computed_with_as_words(dtype):
    (kept,) = [kind(8, 16, dtype=dtype)]
    args = drawn([kept])
    (found,) = evaluated("cuda", whole(eighths, kept), args)
    np.testing.assert_allclose(found, np.asarray(meshrt.jit(eighths)(*args)), rtol=0.13, atol=0.13)


@pytest.mark.tpu
@needs_cuda
@pytest.mark.parametrize("name", [*PROGRAMS, "floats of a byte"])
def test_gpus_compile_them(name):
    f, *kinds = {**PROGRAMS, "floats of a byte": (eighths, kind(8, 16, dtype=ml_dtypes.float8_e5m2))}[name]
    with meshrt.enable_x64(any(k.dtype == F64 for k in kinds)):
        program = meshrt.jit(whole(f, *kinds)).trace(*kinds).lower(lowering_platforms=("cuda",))
    assert program.compile(topology="h100:1").memory_analysis().output_size_in_bytes > 0


@pytest.mark.parametrize(
    "precision, wanted",
    [
        (None, "tf32"),
        ("default", "tf32"),
        ("high", "tf32"),
        (("highest", "default"), "tf32"),
        ("highest", None),
        ("F32_F32_F32", None),
        ("TF32_TF32_F32_X3", "tf32x3"),
        (lax.DotAlgorithmPreset.DEFAULT, "tf32"),
        ("TF32_TF32_F32", "tf32"),
        (lax.DotAlgorithm(F32, F32, F32), None),
    ],
)
def test_products_of_float32_are_as_precise_as_asked(precision, wanted):
    """As JAX has them (read from what it makes of this kernel), and by default as XLA multiplies on these platforms."""

    def kernel(x, y, o):
        o[...] = lax.dot(x[...], y[...], precision=precision)

    program = meshrt.jit(pl.pallas_call(kernel, kind(32, 32))).trace(kind(32, 32), kind(32, 32))
    text = program.lower(lowering_platforms=("cuda",)).as_text()
    (line,) = [part for part in text.split("\\0A") if "tt.dot" in part]
    assert re.findall(r"inputPrecision = (\w+)", line) == ([] if wanted is None else [wanted])


def dots(precision, dtype, out=F32, size=32):
    """The products of tensor cores in a kernel that multiplies matrices of `dtype`."""

    def kernel(x, y, o):
        o[...] = lax.dot(x[...], y[...], precision=precision, preferred_element_type=out)

    square = kind(size, size, dtype=dtype)
    f = pl.pallas_call(kernel, kind(size, size, dtype=out))
    text = meshrt.jit(f).trace(square, square).lower(lowering_platforms=("cuda",)).as_text()
    return [part for part in text.split("\\0A") if "tt.dot" in part]


def of_types(operands, out):
    return f"tensor<32x32x{operands}> * tensor<32x32x{operands}> -> tensor<32x32x{out}>"


@pytest.mark.parametrize(
    "precision, dtype, out, wanted",
    [
        ("BF16_BF16_F32", F32, F32, of_types("bf16", "f32")),
        (lax.DotAlgorithm(BF16, BF16, F32), F32, F32, of_types("bf16", "f32")),
        ("F16_F16_F32", F32, F32, of_types("f16", "f32")),
        ("F16_F16_F32", np.float16, np.float16, of_types("f16", "f32")),
        ("F16_F16_F16", np.float16, np.float16, of_types("f16", "f16")),
        ("F32_F32_F32", BF16, F32, of_types("bf16", "f32")),
        ("BF16_BF16_F32_X3", BF16, F32, of_types("bf16", "f32")),
        ("ANY_F8_ANY_F8_F32", ml_dtypes.float8_e5m2, F32, of_types("f8E5M2", "f32")),
    ],
)
def test_algorithms_round_and_add_up_as_they_say(precision, dtype, out, wanted):
    (line,) = dots(precision, dtype, out)
    assert line.endswith(f" : {wanted}")


@pytest.mark.parametrize(
    "precision, fix",
    [
        ("ANY_F8_ANY_F8_F32", "convert them with astype"),
        (lax.DotAlgorithm(F32, F32, F32, 1, 1, 2), "give one of lax.DotAlgorithmPreset"),
    ],
)
def test_algorithms_that_gpus_have_not_are_refused(precision, fix):
    with pytest.raises(meshrt.errors.UnsupportedError, match=fix):
        dots(precision, F32)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize(
    "precision, bits",
    [("BF16_BF16_F32", 7), ("BF16_BF16_F32_X3", 15), ("BF16_BF16_F32_X6", 22), ("BF16_BF16_F32_X9", 22)],
)
@pytest.mark.parametrize("narrow", [F32, BF16], ids=str)
def test_products_of_parts_have_the_bits_of_their_parts(platform, precision, bits, narrow):
    """Sums of products of what bfloat16 holds of operands; of bfloat16 one part is all. Infinities are none of NaN."""

    def kernel(x, y, o):
        o[...] = lax.dot(x[...], y[...], precision=precision, preferred_element_type=np.float32)

    call = pl.pallas_call(kernel, kind(64, 64))
    x, y = drawn([kind(64, 64), kind(64, 64, dtype=narrow)])
    x[0, 0], y[3, 1] = np.inf, -np.inf
    (found,) = evaluated(platform, call, [x, y])
    wide, columns = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(invalid="ignore"):
        expected, size = wide @ columns, np.abs(wide) @ np.abs(columns)
        error = np.abs(found - expected)[1:, 2:] / size[1:, 2:]
    assert error.max() < 2.0**-bits and (bits > 20 or error.max() > 2.0 ** -(bits + 8))
    is_finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(found), is_finite)
    np.testing.assert_array_equal(found[~is_finite], expected[~is_finite])


@pytest.mark.parametrize("asked", ["highest", "F32_F32_F32", "TF32_TF32_F32", "tensorfloat32", "BF16_BF16_F32"])
def test_blocks_are_chosen_by_what_the_kernel_multiplies(asked):
    with meshrt.default_matmul_precision(asked):
        (line,) = dots(None, F32)
        small = heuristics.on_gpus("matmul", [kind(256, 256)] * 2)[:2] == (64, 64)
    assert small == ("xf32> *" in line and "inputPrecision" not in line) == (asked in ("highest", "F32_F32_F32"))
