"""Kernels with the compilers of accelerators, which need no hardware (`make test-tpu`)."""

from __future__ import annotations

import importlib.util

import jax
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors
from meshrt.experimental.kernels.mosaic import references
from meshrt.experimental.pallas import ops
from meshrt.runtime import hardware
from tests.meshrt.kernels.hardware import (
    ANYWHERE,
    ON_TPUS,
    gather_rows,
    matmul,
    over_chips,
    pipelined,
    reductions,
    ring_all_gather,
)
from tests.meshrt.kernels.programs import JAX, OURS
from tests.meshrt.kernels.test_any_size import LIBRARY
from tests.meshrt.kernels.test_simulator import swapping

needs_tpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
needs_cuda = pytest.mark.skipif(
    hardware.cuda_library() is None or importlib.util.find_spec("nvidia") is None,
    reason="needs the CUDA plugin and ptxas",
)
SPECS = ["v5e:1x1", "v5p:1x1x1", "v6e:1x1"]


def tpu_program(f, args):
    return meshrt.jit(f).trace(*args).lower(lowering_platforms=("tpu",))


@pytest.mark.tpu
@needs_tpu
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("program", [*ANYWHERE, *ON_TPUS], ids=lambda p: p.__name__)
def test_tpus_compile_kernels(program, spec):
    f, args = program(OURS)
    compiled = tpu_program(f, args).compile(topology=spec)
    assert "tpu_custom_call" in compiled.as_text()
    assert compiled.cost_analysis()["bytes accessed"] > 0


@pytest.mark.tpu
@needs_tpu
@pytest.mark.parametrize("spec", SPECS)
def test_tpus_compile_what_their_compilers_refuse_as_it_stands(spec):
    """Bools that are compared (in remainders, too), bytes, scalars of half a word, elements by their places."""

    def kernel(x_ref, bytes_ref, half_ref, o_ref, bytes_out, half_out):
        x, half = x_ref[...], half_ref[...]
        moved = jnp.take_along_axis(x, x.astype(np.int32) % 128, axis=1)
        o_ref[...] = jnp.where((x > 0) == (moved > 1), x % 3, moved)
        bytes_out[...] = abs(-bytes_ref[...] * bytes_ref[...] + 1)
        half_out[...] = jnp.where(half[0, 0] > 0, half + jnp.std(half), half)

    types = [meshrt.ShapeDtypeStruct((32, 128), d) for d in (np.float32, np.int8, jnp.bfloat16)]
    compiled = tpu_program(OURS.pl.pallas_call(kernel, types), types).compile(topology=spec)
    assert "tpu_custom_call" in compiled.as_text()


@pytest.mark.tpu
@needs_tpu
@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.int8, np.uint8], ids=lambda d: d.__name__)
@pytest.mark.parametrize("spec", SPECS)
def test_tpus_compile_extremes_of_narrow_whole_numbers(spec, dtype):
    def kernel(x_ref, y_ref, o_ref):
        o_ref[...] = jnp.clip(jnp.minimum(x_ref[...], y_ref[...]), 1, jnp.maximum(x_ref[...], 9))

    kind = meshrt.ShapeDtypeStruct((32, 128), dtype)
    compiled = tpu_program(OURS.pl.pallas_call(kernel, kind), [kind, kind]).compile(topology=spec)
    assert "tpu_custom_call" in compiled.as_text()


@pytest.mark.tpu
@needs_tpu
@pytest.mark.parametrize("spec", SPECS)
def test_tpus_compile_slices_whose_starts_are_known_to_be_aligned(spec):
    """By products, sums (of which some vanish) and hints, by the steps of loops, and by loops that are written out."""
    pl = OURS.pl

    def kernel(at_ref, x_ref, bytes_ref, o_ref, bytes_out):
        i = pl.program_id(0)
        o_ref[pl.ds(at_ref[0], 1), :] = x_ref[pl.ds(i, 1), :]
        o_ref[8:16, pl.ds(128 * i, 128)] = x_ref[8:16, pl.ds(i * 256 - 128 * i, 128)]
        o_ref[16:24, pl.ds(3 + i * 5 - (i * 5 + 3), 128)] = x_ref[16:24, pl.ds(at_ref[0] * (i - i), 128)]
        bytes_out[pl.ds(pl.multiple_of(at_ref[0], 32), 32), :] = bytes_ref[pl.ds(32 * i, 32), :]

        @pl.loop(0, 256, step=128)
        def _(start):
            bytes_out[:, pl.ds(start, 128)] = bytes_ref[:, pl.ds(start, 128)]

        def row(n, carry):
            bytes_out[pl.ds(n, 1), :] = bytes_ref[pl.ds(n + 1, 1), :]
            return carry

        meshrt.lax.fori_loop(0, 4, row, 0, unroll=True)

    types = [meshrt.ShapeDtypeStruct((64, 256), d) for d in (np.float32, np.int8)]
    scalars = meshrt.ShapeDtypeStruct((1,), np.int32)
    in_specs = [pl.BlockSpec(memory_space=OURS.pltpu.SMEM), pl.BlockSpec(), pl.BlockSpec()]
    f = pl.pallas_call(kernel, types, grid=(2,), in_specs=in_specs, out_specs=[pl.BlockSpec()] * 2)
    assert "tpu_custom_call" in tpu_program(f, [scalars, *types]).compile(topology=spec).as_text()


def row_at_a_multiple_of(count, rows, dtype):
    pl = OURS.pl

    def kernel(at_ref, x_ref, o_ref):
        o_ref[0:1, :] = x_ref[pl.ds(pl.multiple_of(at_ref[0], count), 1), :]

    kind, scalars = meshrt.ShapeDtypeStruct((rows, 128), dtype), meshrt.ShapeDtypeStruct((1,), np.int32)
    in_specs = [pl.BlockSpec(memory_space=OURS.pltpu.SMEM), pl.BlockSpec()]
    return tpu_program(pl.pallas_call(kernel, kind, in_specs=in_specs), [scalars, kind])


@pytest.mark.tpu
@needs_tpu
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(
    ("dtype", "rows", "count"),
    [("int8", 64, 32), ("int8", 40, 8), ("int8", 3, 4), ("int4", 64, 64), ("int4", 32, 8), ("bfloat16", 64, 8)],
)
def test_the_rows_of_a_tile_are_those_that_the_compiler_asks_for(spec, dtype, rows, count, monkeypatch):
    dtype = jnp.dtype(dtype)
    assert row_at_a_multiple_of(count, rows, dtype).compile(topology=spec)
    with pytest.raises(errors.UnsupportedError, match=f"nothing says that this is a multiple of {count}, "):
        row_at_a_multiple_of(count // 2, rows, dtype)
    monkeypatch.setattr(references, "check_starts", lambda *_: None)
    with pytest.raises(errors.MeshrtError, match="E2003"):
        row_at_a_multiple_of(count // 2, rows, dtype).compile(topology=spec)


def multiplied(precision):
    def kernel(x_ref, y_ref, o_ref):
        o_ref[...] = meshrt.lax.dot(x_ref[...], y_ref[...], precision=precision)

    kind = meshrt.ShapeDtypeStruct((128, 128), np.float32)
    return OURS.pl.pallas_call(kernel, kind), [kind, kind]


@pytest.mark.tpu
@needs_tpu
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("precision", ["high", "BF16_BF16_F32_X6", "F32_F32_F32"])
def test_tpus_compile_products_by_algorithms(precision, spec):
    assert "tpu_custom_call" in tpu_program(*multiplied(precision)).compile(topology=spec).as_text()


@pytest.mark.tpu
@needs_cuda
@pytest.mark.parametrize("precision", ["BF16_BF16_F32_X3", "BF16_BF16_F32_X6", "BF16_BF16_F32_X9"])
def test_gpus_compile_products_of_parts(precision):
    f, args = multiplied(precision)
    compiled = meshrt.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).compile(topology="h100:1")
    assert compiled.memory_analysis().output_size_in_bytes > 0


@pytest.mark.tpu
@needs_tpu
@pytest.mark.parametrize("spec", ["v5e:2x4", "v5p:2x2x2", "v6e:2x4"])
def test_tpus_compile_kernels_that_talk_to_other_chips(spec):
    f, (block,) = ring_all_gather(OURS)
    compiled = over_chips(f, block).compile(topology=spec)
    assert "tpu_custom_call" in compiled.as_text() and not compiled.collectives()


@pytest.mark.tpu
@needs_tpu
def test_tpus_compile_kernels_whose_cores_send_to_each_other():
    kind = meshrt.ShapeDtypeStruct((8, 256), np.float32)
    assert "tpu_custom_call" in tpu_program(swapping(kind), [kind]).compile(topology="v5p:1x1x1").as_text()


@pytest.mark.tpu
@needs_cuda
@pytest.mark.parametrize("program", [*ANYWHERE, gather_rows, matmul], ids=lambda p: p.__name__)
def test_gpus_compile_kernels(program):
    f, args = program(OURS)
    compiled = meshrt.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).compile(topology="h100:1")
    assert compiled.memory_analysis().output_size_in_bytes > 0


@pytest.mark.tpu
@needs_tpu
@pytest.mark.parametrize(
    "program", [p for p in [*ANYWHERE, *ON_TPUS] if p not in (reductions, pipelined)], ids=lambda p: p.__name__
)
def test_code_is_about_as_large_as_that_of_jax(program):
    """The same compiler is given both. (Of two kernels JAX asks the chip.)"""
    from jax.experimental import topologies

    (f, args), (g, given) = program(OURS), program(JAX)
    ours = tpu_program(f, args).compile(topology="v5e:1x1").memory_analysis().generated_code_size_in_bytes
    devices = topologies.get_topology_desc("v5e:2x2", "tpu").devices
    where = jax.sharding.SingleDeviceSharding(devices[0])
    given = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=where) for a in given]
    theirs = jax.jit(g).lower(*given).compile().memory_analysis().generated_code_size_in_bytes
    assert 0.8 < ours / theirs < 1.25, (ours, theirs)


def gradient(f, count):
    return meshrt.grad(lambda *args: f(*args).astype("float32").sum(), tuple(range(count)))


def shipped(dtype):
    """Kernels of `ops`, with blocks that GPUs have room for, and types of arguments."""
    array = lambda *shape: meshrt.ShapeDtypeStruct(shape, dtype)
    attend = lambda q, k, v: ops.flash_attention(q, k, v, causal=True, block_sizes=(64, 64))
    multiply = lambda x, w: ops.matmul(x, w, activation="silu", block_sizes=(128, 128, 128))
    heads = [array(2, 256, 4, 128), array(2, 256, 2, 128), array(2, 256, 2, 128)]
    return {
        "matmul": (multiply, [array(256, 512), array(512, 256)]),
        "matmul_backward": (gradient(multiply, 2), [array(256, 512), array(512, 256)]),
        "attention": (attend, heads),
        "attention_backward": (gradient(attend, 3), heads),
        "rms_norm": (lambda x, s: ops.rms_norm(x, s, block_rows=8), [array(64, 1024), array(1024)]),
    }


@pytest.mark.tpu
@needs_tpu
@pytest.mark.parametrize("name", list(shipped("float32")))
def test_tpus_compile_kernels_that_ship(name):
    f, args = shipped("bfloat16")[name]
    assert "tpu_custom_call" in tpu_program(f, args).compile(topology="v5e:1x1").as_text()


@pytest.mark.tpu
@needs_cuda
@pytest.mark.parametrize("name", list(shipped("float32")))
def test_gpus_compile_kernels_that_ship(name):
    f, args = shipped("bfloat16")[name]
    program = meshrt.jit(f).trace(*args).lower(lowering_platforms=("cuda",))
    assert "triton" in program.as_text() and program.compile(topology="h100:1").memory_analysis() is not None


@pytest.mark.tpu
@needs_cuda
@pytest.mark.parametrize("backwards", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", list(LIBRARY))
def test_gpus_compile_kernels_of_any_size(name, backwards):
    """Sizes that are no powers of two, few rows, states in scratch memory."""
    f, kinds = LIBRARY[name]
    f = gradient(f, len(kinds)) if backwards else f
    compiled = meshrt.jit(f).trace(*kinds).lower(lowering_platforms=("cuda",)).compile(topology="h100:1")
    assert compiled.memory_analysis() is not None
