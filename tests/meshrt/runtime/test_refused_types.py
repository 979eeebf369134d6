"""Operations of element types over which a compiler ends the process: refused before it sees them, with their line."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, export
from meshrt.lowering.capabilities import capabilities_of
from meshrt.lowering.legalize import legalize, operations
from meshrt.xla import jaxlib_api
from propagation.ops import OPS

REDUCE = """%c = stablehlo.constant dense<(1.0, 2.0)> : tensor<complex<f32>>
    %0 = "stablehlo.reduce"(%x, %c) <{dimensions = array<i64: 0>}> ({
      ^bb0(%a: tensor<complex<f32>>, %b: tensor<complex<f32>>):
        %r = stablehlo.remainder %a, %b : tensor<complex<f32>>
        stablehlo.return %r : tensor<complex<f32>> })
      : (tensor<4xcomplex<f32>>, tensor<complex<f32>>) -> tensor<complex<f32>>"""
RNG = """%s = stablehlo.constant dense<4> : tensor<1xi64>
    %c = stablehlo.constant dense<1> : tensor<i8>
    %0 = stablehlo.rng %c, %c, %s, distribution = UNIFORM : (tensor<i8>, tensor<i8>, tensor<1xi64>) -> tensor<4xi8>"""
CASES = {
    # what is refused: the types of the argument and the result, and the body
    "stablehlo.remainder.*complex<f32>": ("tensor<4xcomplex<f32>>", "tensor<4xcomplex<f32>>",
                                          "%0 = stablehlo.remainder %x, %x : tensor<4xcomplex<f32>>"),
    "stablehlo.remainder.*complex<f64>": ("tensor<4xcomplex<f64>>", "tensor<4xcomplex<f64>>",
                                          "%0 = stablehlo.remainder %x, %x : tensor<4xcomplex<f64>>"),
    "stablehlo.remainder at .*complex<f32>": ("tensor<4xcomplex<f32>>", "tensor<complex<f32>>", REDUCE),
    "stablehlo.rng.*i8": ("tensor<4xi8>", "tensor<4xi8>", RNG),
    "chlo.broadcast_polygamma.*i32": ("tensor<4xi32>", "tensor<4xi32>",
                                      "%0 = chlo.broadcast_polygamma %x, %x : (tensor<4xi32>, tensor<4xi32>) -> "
                                      "tensor<4xi32>"),
    "element type f6E3M2FN": ("tensor<4xf6E3M2FN>", "tensor<8xf6E3M2FN>",
                              "%0 = stablehlo.concatenate %x, %x, dim = 0 : (tensor<4xf6E3M2FN>, tensor<4xf6E3M2FN>) "
                              "-> tensor<8xf6E3M2FN>"),
}  # fmt: skip


def written(argument, result, body):
    return f"func.func @main(%x: {argument}) -> {result} {{\n    {body}\n    return %0 : {result}\n}}"


@pytest.mark.parametrize("refused", CASES)
def test_an_operation_of_a_type_over_which_the_compiler_ends_the_process(refused):
    text = written(*CASES[refused])
    parsed = jaxlib_api.parse(text)
    for form in (text, parsed.operation.get_asm(print_generic_op_form=True), parsed):
        with pytest.raises(errors.UnsupportedByBackendError, match=refused):
            legalize(form, capabilities_of("cpu"))


@pytest.mark.parametrize("name", ["int2", "uint2"])
def test_what_only_moves_integers_moves_them_as_wider_ones(name):
    """XLA's concatenation of 2-bit integers ends the process."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    x = np.arange(-2, 2).astype(dtype) if name == "int2" else np.arange(4).astype(dtype)
    f = lambda x: meshrt.lax.map(lambda y: jnp.concatenate([y[None], x, x[:1]]), jnp.roll(x, 1))
    want = np.stack([np.concatenate([[y], x, x[:1]]).astype(dtype) for y in np.roll(x, 1)])
    exported = export.deserialize(export.export(meshrt.jit(f))(x).serialize())
    for got in (meshrt.jit(f)(x), f(jnp.asarray(x)), exported.call(x)):
        assert got.dtype == dtype
        np.testing.assert_array_equal(np.asarray(got).astype(np.int8), want.astype(np.int8))
    parsed = jaxlib_api.parse(meshrt.jit(f).lower(x).module.text)
    before = str(parsed)
    crosses = legalize(parsed, capabilities_of("cpu"))
    assert str(parsed) == before  # the caller's stays as it is
    joined = [op for op in operations(crosses) if op.name == "stablehlo.concatenate"]
    assert joined and all(str(op.results[0].type).endswith("i8>") for op in joined)


REDUCED = {
    "max": lambda x: x.max(1),
    "min": lambda x: x.min(),
    "windows": lambda x: meshrt.lax.reduce_window(x, x.dtype.type(-1), meshrt.lax.max, (2, 2), (1, 1), "VALID"),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
@pytest.mark.parametrize("name", REDUCED)
def test_greatest_and_least_ones_of_narrow_floats_are_found_as_float32(name, dtype):
    """XLA for CPUs finds them one by one, in ten times the time."""
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(getattr(jnp, dtype).dtype)
    x[1, 2], x[2, 3] = np.nan, -0.0
    plain = x.astype(np.float32)
    windows = np.maximum(np.lib.stride_tricks.sliding_window_view(plain, (2, 2)).max((2, 3)), -1)
    want = {"max": plain.max(1), "min": plain.min(), "windows": windows}[name]
    got = meshrt.jit(REDUCED[name])(x)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(got).astype(np.float32), want)
    text = meshrt.jit(REDUCED[name]).lower(x).module.text
    for form in (text, jaxlib_api.pretty(text), jaxlib_api.parse(text)):
        crosses = legalize(form, capabilities_of("cpu"))
        module = jaxlib_api.parse(crosses) if isinstance(crosses, bytes) else crosses
        reduced = [op for op in operations(module) if "reduce" in op.name]
        assert [str(op.results[0].type).rpartition("x")[2][-4:] for op in reduced] == ["f32>"]


def test_reductions_that_are_not_exact_on_wider_elements_cross_as_they_are():
    x = np.ones((3, 4), jnp.bfloat16.dtype)
    product = meshrt.jit(lambda x: meshrt.lax.reduce(x, x.dtype.type(1), meshrt.lax.mul, (1,))).lower(x).module.text
    summed = meshrt.jit(lambda x: jnp.maximum(x, 0).sum(1)).lower(x).module.text
    other = meshrt.lax.reduce_precision
    twice = meshrt.jit(
        lambda x: meshrt.lax.reduce(x, x.dtype.type(0), lambda a, b: other(jnp.maximum(a, b), 5, 2), (1,))
    )
    first = """func.func @main(%x: tensor<3x4xbf16>, %c: tensor<bf16>) -> tensor<3xbf16> {
      %0 = stablehlo.reduce(%x init: %c) across dimensions = [1] : (tensor<3x4xbf16>, tensor<bf16>) -> tensor<3xbf16>
       reducer(%a: tensor<bf16>, %b: tensor<bf16>) {
        %unused = stablehlo.maximum %a, %b : tensor<bf16>
        stablehlo.return %a : tensor<bf16> }
      return %0 : tensor<3xbf16> }"""
    for text in (product, summed, twice.lower(x).module.text, first):
        assert legalize(text, capabilities_of("cpu")) is text


def test_bounds_of_dynamic_sizes_stay_where_elements_become_wider():
    bounded, found = (
        f"tensor<{sizes}xbf16, #stablehlo.bounds<{most}>>" for sizes, most in (("4x?", "?, 8"), ("?", "8"))
    )
    body = f"%0 = stablehlo.reduce(%x init: %c) applies stablehlo.maximum across dimensions = [0] : ({bounded}, "
    constant = "%c = stablehlo.constant dense<0.0> : tensor<bf16>\n    "
    text = written(bounded, found, f"{constant}{body}tensor<bf16>) -> {found}")
    crosses = jaxlib_api.parse(legalize(text, capabilities_of("cpu")))
    kinds = [str(op.results[0].type) for op in operations(crosses) if op.name == "stablehlo.reduce"]
    assert kinds == [found.replace("bf16", "f32")]


def test_modules_of_others_that_would_end_the_process_are_refused_when_called():
    read = export.from_stablehlo(written(*CASES["stablehlo.remainder.*complex<f32>"]))
    with pytest.raises(errors.UnsupportedByBackendError, match=r"stablehlo\.remainder"):
        read.call(np.ones(4, np.complex64))


def test_other_types_cross_as_they_were_written():
    body = "%0 = stablehlo.remainder %x, %x : tensor<4xf32>"
    text = written("tensor<4xf32>", "tensor<4xf32>", body)
    assert legalize(text, capabilities_of("cpu")) is text
    cpu = capabilities_of("cpu")
    assert cpu.supports("stablehlo", "remainder") and cpu.supports("stablehlo", "remainder", dtype="f32")
    assert not cpu.supports("stablehlo", "remainder", dtype="complex<f32>")
    assert not cpu.supports("stablehlo", "add", dtype="f6E3M2FN")


SWEEP = """
import sys
from meshrt import errors
from meshrt.lowering.capabilities import capabilities_of
from meshrt.lowering.legalize import legalize, operations
from meshrt.xla import jaxlib_api
from tests.meshrt.runtime.test_refused_types import programs

devices = jaxlib_api.cpu_client(1).local_devices()[:1]
for name, text in programs(sys.argv[1]):
    print(name, flush=True)
    try:
        parsed = jaxlib_api.parse(text)
        crossing = legalize(parsed, capabilities_of("cpu"))
        jaxlib_api.compile_and_load(crossing, devices, jaxlib_api.compile_options(devices))
    except errors.MeshrtError:
        pass
print("all", flush=True)
"""
TYPES = ["i1 i2 i8", "i32 ui4 ui64", "f4E2M1FN f6E3M2FN f8E4M3FN", "f8E5M2FNUZ f8E8M0FNU bf16", "f32 complex<f32>",
         "f64 complex<f64>"]  # fmt: skip


def programs(types):
    """Each operation, of each element type, as a program; those that are none are refused by the parser."""
    for t in types.split():
        v = f"tensor<4x{t}>"
        for name in sorted(n for n in OPS if n.startswith(("stablehlo.", "chlo."))):
            for count in (1, 2):
                operands, kinds = ", ".join(["%x"] * count), ", ".join([v] * count)
                yield f"{name} {t}", written(v, v, f'%0 = "{name}"({operands}) : ({kinds}) -> {v}')
        joined = f'"stablehlo.concatenate"(%x, %x) {{dimension = 0 : i64}} : ({v}, {v}) -> tensor<8x{t}>'
        yield f"concatenate {t}", written(v, f"tensor<8x{t}>", f"%0 = {joined}")
        sizes, one = "%s = stablehlo.constant dense<4> : tensor<1xi64>\n", f"tensor<{t}>"
        for kind in ("UNIFORM", "NORMAL"):
            drawn = f"stablehlo.rng %x, %x, %s, distribution = {kind} : ({one}, {one}, tensor<1xi64>) -> {v}"
            yield f"rng {kind} {t}", written(one, v, f"{sizes}    %0 = {drawn}")


@pytest.mark.slow
@pytest.mark.parametrize("types", TYPES)
def test_no_operation_of_any_type_ends_the_process(types):
    command = [sys.executable, "-c", SWEEP, types]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=230)
    assert run.stdout.splitlines()[-1:] == ["all"], f"after {run.stdout.splitlines()[-1:]}: {run.stderr[-500:]}"
