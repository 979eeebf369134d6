"""Kernels as modules of Mosaic: the dialect's verifier takes them, and they consist of what JAX's consist of."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager
from jaxlib.mosaic.python import tpu

import meshrt
from meshrt import errors
from meshrt.experimental.kernels.facts import kernel_facts
from meshrt.sharding.mesh import AbstractMesh
from propagation.contexts import new_context
from tests.meshrt.kernels.hardware import (
    ANYWHERE,
    ON_TPUS,
    add,
    attention,
    counters,
    double_buffered,
    kind,
    matmul,
    noisy,
    over_chips,
    ring_all_gather,
)
from tests.meshrt.kernels.programs import JAX, OURS

pl, pltpu, jnp = OURS.pl, OURS.pltpu, OURS.np
F32 = np.float32


def configs(text):
    """What the calls of a program carry, as JSON."""
    found = re.findall(r'@tpu_custom_call\(.*?backend_config = "((?:[^"\\]|\\.)*)"', text)
    return [json.loads(re.sub(r"\\(22|5C|0A)", lambda m: chr(int(m[1], 16)), c)) for c in found]


def read_back(body):
    """The kernel in a call, in the dialect itself, as the compiler reads it."""
    context = new_context()
    tpu.register_dialect(context)
    with context:
        module = ir.Module.parse(base64.b64decode(body))
        PassManager.parse("builtin.module(mosaic-serde{serialize=false})").run(module.operation)
        assert module.operation.verify()
        return module.operation.get_asm()


def lowered(program, lib=OURS):
    f, args = program(lib)
    return lib.jax.jit(f).trace(*args).lower(lowering_platforms=("tpu",)).as_text()


def kernel(program, lib=OURS):
    (config,) = configs(lowered(program, lib))
    return read_back(config["custom_call_config"]["body"])


def compile_text(f, *args, **options):
    return meshrt.jit(f).trace(*args).lower(lowering_platforms=("tpu",)).as_text()


def operations(text):
    """The operations of a kernel on floats and memory; numbers of loops and branches are computed in several ways."""
    names = re.findall(r"(?:= |^\s*)((?:math|vector|tpu|memref)\.[a-z_0-9]+|arith\.[a-z]+f)", text, re.MULTILINE)
    quiet = (
        "vector.broadcast",
        "vector.shape_cast",
        "vector.extract",
        "tpu.yield",
        "tpu.region",
        "tpu.assume_multiple",
    )
    return {n for n in names if n not in quiet}


@pytest.mark.parametrize("program", [*ANYWHERE, *ON_TPUS], ids=lambda p: p.__name__)
def test_a_kernel_verifies_and_survives_the_way_to_the_compiler(program):
    text = kernel(program)
    assert "tpu.core_type = #tpu.core_type<tc>" in text and "dimension_semantics" in text


def that_of_jax(program):
    """JAX's kernel, of programs about which it does not ask the chip."""
    try:
        return kernel(program, JAX)
    except ValueError as e:
        if "Unsupported TPU device kind" in str(e):
            pytest.skip("this version of JAX asks the chip")
        raise


# (The inverse error function of `noisy` is another one, which is closer near one.)
@pytest.mark.parametrize("program", [p for p in [*ANYWHERE, *ON_TPUS] if p is not noisy], ids=lambda p: p.__name__)
def test_a_kernel_consists_of_what_that_of_jax_consists_of(program):
    assert operations(kernel(program)) == operations(that_of_jax(program))


def windows(text):
    return re.search(r"window_params = \[(.*?)\]\}? ", text.replace("\n", " "))[1]


@pytest.mark.parametrize("program", [add, matmul, attention], ids=lambda p: p.__name__)
def test_grid_and_windows_are_those_of_jax(program):
    ours, theirs = kernel(program), kernel(program, JAX)
    for what in (r"iteration_bounds = array<[^>]*>", r"scratch_operands = \d+", r"dimension_semantics = \[[^\]]*\]"):
        assert re.search(what, ours)[0] == re.search(what, theirs)[0]
    assert re.findall(r"window_bounds = array<[^>]*>", ours) == re.findall(r"window_bounds = array<[^>]*>", theirs)


def test_the_compiler_is_told_the_cost_and_what_was_asked_for():
    spec = pl.BlockSpec((8, 128), lambda i: (i, 0), pipeline_mode=pl.Buffered(1))

    def double(x_ref, o_ref):
        o_ref[...] = jnp.tanh(x_ref[...]) * 2

    params = pltpu.CompilerParams(vmem_limit_bytes=2**20, disable_bounds_checks=True, flags={"xla_tpu_x": True})
    f = pl.pallas_call(
        double, kind(OURS, (32, 128)), grid=(4,), in_specs=[spec], out_specs=spec, compiler_params=params
    )
    (config,) = configs(compile_text(f, kind(OURS, (32, 128))))
    own = config["custom_call_config"]
    assert own["cost_estimate"] == {
        "flops": 4096, "transcendentals": 4096, "bytes_accessed": 32768, "remote_bytes_transferred": 0,
    }  # fmt: skip
    assert own["disable_bounds_checks"] is True and own["serialization_format"] == 1 and own["needs_layout_passes"]
    assert config["scoped_memory_configs"] == [{"memory_space": 1, "offset": 0, "size": 2**20}]
    assert config["flag_configs"] == [{"flag_type": "xla_tpu_x", "value": {"boolean_value": True}}]
    assert read_back(own["body"]).count("#tpu.pipeline_mode<synchronous>") == 2


def test_bools_are_words_in_memory_and_aliases_are_of_the_call():
    text = lowered(counters)
    assert "output_operand_alias<output_tuple_indices = [], operand_index = 1" in text
    assert "(tensor<32x128xi32>, tensor<32x128xf32>) -> tensor<32x128xf32>" in text


def test_a_batch_is_a_parallel_dimension_of_the_grid():
    f, args = add(OURS)
    batched = [kind(OURS, (3, *a.shape)) for a in args]
    (config,) = configs(compile_text(meshrt.vmap(f), *batched))
    text = read_back(config["custom_call_config"]["body"])
    assert "iteration_bounds = array<i64: 3, 4>" in text
    assert "[#tpu.dimension_semantics<parallel>, #tpu.dimension_semantics<arbitrary>]" in text
    assert config["custom_call_config"]["cost_estimate"]["flops"] == 3 * 256 * 256


def test_kernels_in_programs_over_a_mesh_are_whole_on_every_device():
    mesh = AbstractMesh((4,), ("x",))
    f, args = add(OURS)
    rows = meshrt.NamedSharding(mesh, meshrt.P("x"))
    split = [meshrt.ShapeDtypeStruct(a.shape, a.dtype, sharding=rows) for a in args]
    made = meshrt.jit(lambda x, y: f(x, y).T).trace(*split).lower(lowering_platforms=("tpu",))
    assert {c.kind for c in made.partition().plan} == {"all_gather"}
    local = meshrt.shard_map(
        lambda x, y: pl.pallas_call(lambda a, b, o: o.__setitem__(..., a[...] + b[...]), kind(OURS, (64, 256)))(x, y),
        mesh=mesh, in_specs=meshrt.P("x"), out_specs=meshrt.P("x"), check_vma=False,
    )  # fmt: skip
    made = meshrt.jit(local).trace(*split).lower(lowering_platforms=("tpu",))
    assert not len(made.partition().plan) and "tensor<64x256xf32>" in made.as_text()


# ----------------------------------------------------------------------------------------------------------------------
# Refusals

ARRAY = (16, 128)
FAR = pl.BlockSpec(memory_space=pl.ANY)
FAR_BLOCK = pl.BlockSpec((8, 128), lambda i: (i, 0), memory_space=pl.ANY)
BUFFERS = pl.BlockSpec((8, 128), lambda i: (i, 0), pipeline_mode=pl.Buffered(3))


def run(body, dtype=F32, **options):
    return compile_text(
        pl.pallas_call(body, meshrt.ShapeDtypeStruct(ARRAY, dtype), **options), meshrt.ShapeDtypeStruct(ARRAY, dtype)
    )


def sorts(x_ref, o_ref):
    o_ref[...] = jnp.sort(x_ref[...], axis=1)


def far(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def lower_half(x_ref, o_ref):
    o_ref[0:8, :] = x_ref[...]


def stacks(x_ref, o_ref):
    _, o_ref[...] = meshrt.lax.scan(lambda c, row: (c, row + c), 0.0, x_ref[...])


def rows_anywhere(x_ref, o_ref):
    @pl.loop(0, 16)
    def _(i):
        o_ref[0:1, :] = x_ref[pl.ds(i, 1), :]


def lanes_anywhere(x_ref, o_ref):
    o_ref[:, pl.ds(pl.program_id(0), 8)] = x_ref[:, 0:8]


def beyond(x_ref, o_ref):
    OURS.triton.store(o_ref.at[:, pl.ds(0, 256)], jnp.zeros((16, 256)), mask=jnp.arange(256) < 128)


def bits(x_ref, o_ref):
    o_ref[...] = meshrt.lax.population_count(x_ref[...])


@pytest.mark.parametrize(
    ("body", "options", "said"),
    [
        (sorts, {}, r"'sort' of f32\[16,128\] at .*test_mosaic.py:\d+ \(sorts\): there is no such operation in Mosaic"),
        (far, {"in_specs": [FAR]}, r"'get' of .*test_mosaic.py:\d+.*a load from ANY.*make_async_copy"),
        (stacks, {}, r"'scan'.*test_mosaic.py:\d+ \(stacks\): a loop in a kernel reads and writes no stacks"),
        (rows_anywhere, {"dtype": np.int8}, r"'get' of .*dimension 0 .*a multiple of 8, .* rows of elements of 8 bits"),
        (lanes_anywhere, {"grid": (2,)}, r"'swap' of .*dimension 1 .*a multiple of 128,.*multiple_of\(start, 128\)"),
        (beyond, {}, r"'masked_swap' of .*test_mosaic.py:\d+.*slice of dimension 1 of 128 elements ends 128 behind it"),
        (bits, {"dtype": np.int8}, r"'population_count' of i8\[16,128\].*bits are counted in elements of 32 bits"),
        (far, {"dtype": np.float16}, r"args\[0\] holds float16, and a TPU's core has no elements of that type"),
        (lower_half, {"in_specs": [FAR_BLOCK], "grid": (2,)}, "leave block_shape out"),
        (lower_half, {"in_specs": [BUFFERS], "grid": (2,)}, "one or two buffers"),
    ],
)  # fmt: skip
def test_what_a_core_lacks_is_refused_with_operation_and_line(body, options, said):
    with pytest.raises(errors.UnsupportedError, match=said):
        run(body, **options)


@pytest.mark.parametrize(
    ("dtype", "rows", "count"),
    [("int8", 64, 32), ("int8", 48, 8), ("int8", 2, 4), ("int4", 128, 64), ("bfloat16", 64, 8)],
)
def test_rows_of_narrow_elements_begin_where_tiles_do(dtype, rows, count):
    """Those that fill tiles of whole words have such: see `test_hardware.py`, which asks the compiler."""
    kind = meshrt.ShapeDtypeStruct((rows, 128), jnp.dtype(dtype))

    def compile_at(known):
        def kernel(x_ref, o_ref):
            @pl.loop(0, 2)
            def _(i):
                o_ref[0:1, :] = x_ref[pl.ds(i * known, 1), :]

        return compile_text(pl.pallas_call(kernel, kind), kind)

    assert compile_at(count)
    with pytest.raises(
        errors.UnsupportedError, match=rf"'get' of .*test_mosaic.py:\d+.* is a multiple of {count}, as it has"
    ):
        compile_at(count // 2)


def wide(x_ref, o_ref):
    o_ref[...] = x_ref[...] + jnp.arange(128, dtype=np.int64).astype(F32)


def too_large(x_ref, o_ref):
    n = meshrt.lax.fori_loop(0, 3, lambda i, n: n * 2, 2**40)
    o_ref[...] = x_ref[...] + n.astype(F32)


def test_elements_of_64_bits_are_refused():
    with meshrt.enable_x64(True), pytest.raises(errors.UnsupportedError, match=r"holds float64.*at most 32 bits"):
        run(far, np.float64)
    with (
        meshrt.enable_x64(True),
        pytest.raises(errors.UnsupportedError, match=r"no elements of int64.*at most 32 bits"),
    ):
        run(wide)
    with meshrt.enable_x64(True), pytest.raises(errors.UnsupportedError, match="no elements of int64"):
        run(too_large)


def test_semantics_name_each_dimension_once():
    params = pltpu.CompilerParams(dimension_semantics=("parallel",))
    with pytest.raises(errors.ArgumentValueError, match=r"dimension_semantics.*its grid has 2 dimensions"):
        run(far, grid=(2, 2), compiler_params=params)


@pytest.mark.parametrize(
    ("array", "block", "dtype", "fits"),
    [
        ((70, 300), (7, 100), F32, False), ((70, 300), (8, 128), F32, True), ((70, 300), (70, 128), F32, True),
        ((64, 300), (16, 300), F32, True), ((3, 128), (None, 128), F32, False),
        ((3, 8, 128), (None, 8, 128), F32, True),
        ((4096,), (1024,), F32, True), ((4096,), (128,), F32, True), ((4096,), (128,), np.int8, False),
        ((4096,), (384,), F32, False), ((300,), (300,), F32, True),
    ],
)  # fmt: skip
def test_blocks_are_whole_tiles_as_in_jax(array, block, dtype, fits):
    spec = pl.BlockSpec(block, lambda i: (i,) + (0,) * (len(block) - 1))
    f = pl.pallas_call(
        lambda x, o: o.__setitem__(..., x[...]), kind(OURS, array, dtype), grid=(2,), in_specs=[spec], out_specs=spec
    )
    if fits and block[0] != array[0]:
        assert "tpu_custom_call" in compile_text(f, kind(OURS, array, dtype))
    elif not fits:
        with pytest.raises(errors.ArgumentValueError, match=r"args\[0\] of the kernel .* does not hold in whole tiles"):
            compile_text(f, kind(OURS, array, dtype))


def test_an_id_without_a_barrier_is_refused_as_in_jax():
    params = pltpu.CompilerParams(collective_id=3)
    with pytest.raises(errors.ArgumentValueError, match="collective_id has to be unspecified or None"):
        run(far, compiler_params=params)


# ----------------------------------------------------------------------------------------------------------------------
# Other chips


def test_a_kernel_that_talks_to_other_chips_says_so():
    f, (block,) = ring_all_gather(OURS)
    made = over_chips(f, block)
    (config,) = configs(made.as_text())
    own = config["custom_call_config"]
    assert own["has_communication"] is True and own["collective_id"] == 1 and "has_side_effect = true" in made.as_text()
    found = operations(read_back(own["body"]))
    assert found == {
        "tpu.device_id", "tpu.sem_barrier", "tpu.sem_signal", "tpu.sem_wait", "tpu.memref_slice", "tpu.memref_squeeze",
        "tpu.enqueue_dma", "tpu.wait_dma2",
    }  # fmt: skip
    assert not len(made.partition().plan)


def over_a_barrier(x_ref, o_ref):
    barrier = pltpu.get_barrier_semaphore()
    pl.semaphore_signal(barrier, 1, device_id=(0,))
    pl.semaphore_wait(barrier, 1)


def at_once(x_ref, o_ref):
    def send(sent, received):
        pltpu.async_remote_copy(x_ref, o_ref, sent, received, device_id=(0,)).wait()

    pl.run_scoped(send, pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA)


def adding(x_ref, o_ref):
    pltpu.sync_copy(x_ref, o_ref, add=True)


@pytest.mark.parametrize(
    ("body", "options", "kind_of_error", "said"),
    [
        (
            over_a_barrier,
            {},
            errors.ArgumentValueError,
            "collective_id has to be specified when using a custom barrier",
        ),
        (at_once, {}, errors.ArgumentValueError, "meets them at no barrier.*skip_device_barrier"),
        (at_once, {"skip_device_barrier": True}, None, ""),
        (at_once, {"collective_id": 2, "allow_collective_id_without_custom_barrier": True}, None, ""),
        (adding, {}, errors.UnsupportedError, r"'dma_start'.*\(adding\): a copy replaces what is there"),
    ],
)
def test_what_would_end_the_process_or_race_is_refused(body, options, kind_of_error, said):
    f = pl.pallas_call(
        body, kind(OURS, ARRAY), in_specs=[FAR], out_specs=FAR, compiler_params=pltpu.CompilerParams(**options)
    )
    if kind_of_error is None:
        assert "tpu_custom_call" in over_chips(f, kind(OURS, ARRAY)).as_text()
        return
    with pytest.raises(kind_of_error, match=said):
        over_chips(f, kind(OURS, ARRAY))


# ----------------------------------------------------------------------------------------------------------------------
# Facts


def test_facts_of_a_kernel():
    f, args = matmul(OURS)
    (eqn,) = [e for e in meshrt.make_jaxpr(f)(*args).jaxpr.eqns if e.primitive.name == "pallas_call"]
    facts = kernel_facts(eqn.params)
    assert facts.grid == (4, 4, 4) and facts.steps == 64
    x, y, o, acc = facts.blocks
    assert [(b.copies, b.buffers) for b in (x, y, o, acc)] == [(64, 2), (64, 2), (16, 2), (0, 1)]
    block, words = 128 * 128 * 2, 128 * 128 * 4
    assert facts.memory == {"vmem": 6 * block + words}
    assert facts.moved == facts.cost.bytes_accessed == (128 + 16) * block
    assert facts.cost.flops >= 2 * 512**3


def test_copies_that_kernels_start_are_counted():
    f, args = double_buffered(OURS)
    (eqn,) = [e for e in meshrt.make_jaxpr(f)(*args).jaxpr.eqns if e.primitive.name == "pallas_call"]
    facts = kernel_facts(eqn.params)
    block = 64 * 256 * 4
    assert facts.inside.copies == facts.copies == 1 + 4 + 4 and facts.moved == facts.cost.bytes_accessed == 9 * block
    assert facts.memory == {"vmem": 3 * block}
    f, (block,) = ring_all_gather(OURS)
    (config,) = configs(over_chips(f, block).as_text())
    assert config["custom_call_config"]["cost_estimate"]["remote_bytes_transferred"] == 7 * 64 * 128 * 4


def test_checks_for_debugging_stop_the_chip_where_the_setting_asks_for_them():
    def positive(x_ref, o_ref):
        o_ref[...] = x_ref[...]
        pl.debug_check(pl.program_id(0) < 3, "too far")

    x = kind(OURS, (8, 128))
    program = lambda lib: (pl.pallas_call(positive, x, grid=2), [x])
    assert "cf.assert" not in kernel(program)
    with pl.enable_debug_checks(True):
        assert re.search(r"cf.assert .*too far at .*test_mosaic.py:\d+", kernel(program))
