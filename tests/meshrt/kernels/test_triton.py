"""Kernels as Triton programs: the dialect's verifier takes them; edges of arrays are masked; launches are whole."""

from __future__ import annotations

import re

import numpy as np
import pytest

import meshrt
from meshrt import errors
from meshrt.experimental.pallas import triton
from tests.meshrt.kernels.hardware import ANYWHERE, double_buffered, gather_rows, kind, matmul
from tests.meshrt.kernels.programs import OURS, normal

pl, jnp = OURS.pl, OURS.np


def lowered(f, *args):
    return meshrt.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def launch(text):
    return [int(re.search(rf"{name} = (\d+) : i32", text)[1]) for name in ("grid_x", "grid_y", "grid_z")]


@pytest.mark.parametrize("program", [*ANYWHERE, gather_rows], ids=lambda p: p.__name__)
def test_a_kernel_verifies(program):
    f, args = program(OURS)
    text = lowered(f, *args)
    assert "tt.func public" in text and "num_stages = 3" in text and "num_warps = 4" in text


def test_products_are_those_of_tensor_cores():
    f, args = ANYWHERE[2](OURS)
    text = lowered(f, *args)
    assert "tt.dot" in text and "scf.for" in text and launch(text) == [2, 2, 1]


def test_blocks_that_reach_over_an_end_are_masked():
    def double(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    block = pl.BlockSpec((64,), lambda i: (i,))
    ragged = pl.pallas_call(double, kind(OURS, (100,)), grid=(2,), in_specs=[block], out_specs=block)
    assert lowered(ragged, kind(OURS, (100,))).count("arith.cmpi slt") == 2
    even = pl.pallas_call(double, kind(OURS, (128,)), grid=(2,), in_specs=[block], out_specs=block)
    assert "arith.cmpi" not in lowered(even, kind(OURS, (128,)))


def test_what_users_say_of_caches_is_told():
    def copy(x_ref, o_ref):
        here = jnp.arange(16) < 13
        x = triton.load(x_ref.at[pl.ds(0, 16)], mask=here, cache_modifier=".cg", eviction_policy="evict_last")
        y = triton.load(x_ref.at[pl.ds(0, 16)], mask=here, volatile=True)
        triton.store(o_ref.at[pl.ds(0, 16)], x + y, mask=here, eviction_policy="evict_first")

    text = lowered(pl.pallas_call(copy, kind(OURS, (13,))), normal(13))
    loads, stores = re.findall(r"tt\.load ([^:]*)", text), re.findall(r"tt\.store ([^:]*)", text)
    assert "cacheModifier = cg evictionPolicy = evict_last" in loads[0] and "isVolatile" not in loads[0]
    assert "isVolatile = true" in loads[1] and "evictionPolicy" not in loads[1]
    assert "evictionPolicy = evict_first" in stores[0]


def test_grids_of_many_dimensions_are_one_launch():
    def copy(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    spec = pl.BlockSpec((None, None, None, None, 16), lambda a, b, c, d: (a, b, c, d, 0))
    f = pl.pallas_call(copy, kind(OURS, (2, 3, 4, 5, 16)), grid=(2, 3, 4, 5), in_specs=[spec], out_specs=spec)
    text = lowered(f, kind(OURS, (2, 3, 4, 5, 16)))
    assert launch(text) == [120, 1, 1] and "arith.remui" in text


def test_large_arrays_have_wide_offsets():
    block = pl.BlockSpec((64, 64), lambda i, j: (i, j))
    f = pl.pallas_call(
        lambda x, o: o.__setitem__(..., x[...]), kind(OURS, (2**16, 2**16)), grid=(1024, 1024), in_specs=[block],
        out_specs=block,
    )  # fmt: skip
    assert "xi64>" in lowered(f, kind(OURS, (2**16, 2**16)))


def test_parameters_are_those_asked_for():
    ask = lambda **params: pl.pallas_call(
        lambda x, o: o.__setitem__(..., x[...]), kind(OURS, (64,)), compiler_params=triton.CompilerParams(**params)
    )
    assert "num_stages = 2 : i32, num_warps = 8 : i32" in lowered(ask(num_warps=8, num_stages=2), kind(OURS, (64,)))
    with pytest.raises(errors.ArgumentValueError, match="num_warps is a power of two up to 32 and num_stages at least"):
        lowered(ask(num_warps=3), kind(OURS, (64,)))


def transforms(x_ref, o_ref):
    o_ref[...] = jnp.fft.rfft(x_ref[...])[0].real + x_ref[...]


def wide_product(x_ref, o_ref):
    x = jnp.broadcast_to(x_ref[...].astype(np.int32), (64, 64))
    o_ref[...] = (x @ x)[0].astype(np.float32)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (transforms, r"'fft' of f32\[64\] at .*\(transforms\): there is no such operation in Triton"),
        (wide_product, r"'dot_general' of i32\[64,64\].*of whole numbers only int8 has products of matrices"),
    ],
)
def test_what_gpus_lack_is_refused_with_operation_and_line(body, said):
    with pytest.raises(errors.UnsupportedError, match=said):
        lowered(pl.pallas_call(body, kind(OURS, (64,))), kind(OURS, (64,)))


def test_scratch_is_carried_through_the_steps_of_a_program():
    f, args = matmul(OURS)
    text = lowered(f, *args)
    assert launch(text) == [4, 4, 1] and text.count("scf.for") == 1 and "iter_args" in text


def test_semaphores_are_refused():
    f, args = double_buffered(OURS)
    with pytest.raises(errors.UnsupportedError, match="have no semaphores and copy nothing"):
        lowered(f, *args)


def test_narrow_floats_are_divided_as_words():
    """XLA's compiler of Triton ends the process at a division of bfloat16."""
    half = meshrt.ShapeDtypeStruct((64,), jnp.bfloat16)
    text = lowered(pl.pallas_call(lambda x, o: o.__setitem__(..., 1 / x[...]), half), half)
    assert re.search(r"arith.divf .* : tensor<64xf32>", text)


def test_products_of_wider_whole_numbers_are_added_up():
    """XLA's compiler of Triton ends the process at such products."""
    words = meshrt.ShapeDtypeStruct((16, 16), np.int16)
    product = pl.pallas_call(lambda x, o: o.__setitem__(..., (x[...] @ x[...].T)), words)
    text = lowered(product, words)
    assert "tt.dot" not in text and "tt.reduce" in text


def test_large_arrays_are_shared_by_more_warps():
    double = lambda x, o: o.__setitem__(..., x[...] * 2)
    for size, warps in ((1 << 14, 4), (1 << 15, 8), (1 << 17, 32), (1 << 19, 32)):
        assert f"num_warps = {warps} : i32" in lowered(pl.pallas_call(double, kind(OURS, (size,))), kind(OURS, (size,)))


def negated(asm="neg.s32 $0, $1;", out=(64,), pack=1):
    result = meshrt.ShapeDtypeStruct(out, np.int32)

    def body(x_ref, o_ref):
        (o_ref[...],) = triton.elementwise_inline_asm(
            asm, args=[x_ref[...]], constraints="=r,r", pack=pack, result_shape_dtypes=[result]
        )

    return pl.pallas_call(body, meshrt.ShapeDtypeStruct((64,), np.int32))


def test_instructions_of_the_users_own():
    words = meshrt.ShapeDtypeStruct((64,), np.int32)
    text = lowered(negated(), words)
    assert "tt.elementwise_inline_asm" in text and "neg.s32 $0, $1;" in text
    with pytest.raises(errors.UnsupportedError, match="of instructions for GPUs: neither CPUs"):
        meshrt.jit(negated()).lower(words)
    with pytest.raises(errors.ArgumentValueError, match="must have the same shape"):
        lowered(negated(out=(32,)), words)
    with pytest.raises(errors.ArgumentValueError, match="how many elements at a time, got 0"):
        lowered(negated(pack=0), words)
