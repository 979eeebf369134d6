"""Complex sums over devices, whose addends XLA may find to be one constant: it would end the process."""

import numpy as np
import pytest

import meshrt
from meshrt import P, export, lax
from meshrt import numpy as jnp
from meshrt.pipeline.for_xla import annotated_for_xla
from meshrt.xla import jaxlib_api

N = 4
ONES = np.ones(N, np.complex64)


def _mesh():
    return meshrt.make_mesh((N,), ("x",), axis_types=(meshrt.sharding.AxisType.Auto,))


def _mapped(body, out=None):
    return meshrt.shard_map(body, mesh=_mesh(), in_specs=P("x"), out_specs=out or P())


# The program of an array over the devices, and what it gives.
PROGRAMS = {
    "psum": (_mapped(lambda x: lax.psum(jnp.ones(2, jnp.complex64), "x")), [N, N]),
    "pmean": (_mapped(lambda x: lax.pmean(jnp.full((2,), 2j), "x")), [2j, 2j]),
    "psum_scatter": (_mapped(lambda x: lax.psum_scatter(jnp.ones(N, jnp.complex64), "x", tiled=True), P("x")), [N] * N),
    "sum": (lambda x: jnp.ones_like(x).sum(), N),
    "gradient": (lambda x: meshrt.grad(lambda b: (x + b).real.sum())(jnp.complex64(1)), N),
    "gradient in a region": (
        lambda x: meshrt.grad(
            lambda b: meshrt.shard_map(
                lambda x, b: lax.psum((x + b).real.sum(), "x"), mesh=_mesh(), in_specs=(P("x"), P()), out_specs=P()
            )(x, b)
        )(jnp.complex64(1)),
        N,
    ),
}


# XLA's partitioner runs the sums that programs write themselves as they stand.
WITH_XLA = [(name, "xla") for name in ("psum", "psum_scatter")]


@pytest.mark.parametrize(("name", "partitioner"), [*((name, "meshrt") for name in PROGRAMS), *WITH_XLA])
def test_a_constant_addend(name, partitioner):
    program, want = PROGRAMS[name]
    x = meshrt.device_put(ONES, meshrt.NamedSharding(_mesh(), P("x")))
    with meshrt.config.override(partitioner=partitioner):
        np.testing.assert_array_equal(meshrt.jit(program)(x), np.complex64(want))


SEVERAL = """
sdy.mesh @mesh = <["x"=4]>
func.func public @main(%arg: tensor<4xcomplex<f32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
    -> (tensor<complex<f32>>, tensor<1xcomplex<f32>>) {
  %0:2 = sdy.manual_computation(%arg) in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, []>, <@mesh, [{}]>]
      manual_axes={"x"} (%a: tensor<1xcomplex<f32>>) {
    %c = stablehlo.constant dense<(1.0, 2.0)> : tensor<complex<f32>>
    %1:2 = "stablehlo.all_reduce"(%c, %a) <{replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>,
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> ({
    ^bb0(%p: tensor<complex<f32>>, %q: tensor<complex<f32>>):
      %2 = stablehlo.add %p, %q : tensor<complex<f32>>
      stablehlo.return %2 : tensor<complex<f32>>
    }) : (tensor<complex<f32>>, tensor<1xcomplex<f32>>) -> (tensor<complex<f32>>, tensor<1xcomplex<f32>>)
    sdy.return %1#0, %1#1 : tensor<complex<f32>>, tensor<1xcomplex<f32>>
  } : (tensor<4xcomplex<f32>>) -> (tensor<complex<f32>>, tensor<1xcomplex<f32>>)
  return %0#0, %0#1 : tensor<complex<f32>>, tensor<1xcomplex<f32>>
}
"""


def test_several_addends_of_one_sum():
    """Each is behind a barrier in what XLA's partitioner gets."""
    program = meshrt.jit(export.from_stablehlo(SEVERAL).call)
    x = meshrt.device_put(np.arange(4, dtype=np.complex64), meshrt.NamedSharding(_mesh(), P("x")))
    total, rest = program(x)
    assert (total, rest[0]) == (4 + 8j, 6)
    text = annotated_for_xla(program.lower(x).propagate().result, uneven=False)
    assert jaxlib_api.pretty(text).count("optimization_barrier") == 2


def test_real_sums_are_left_alone():
    x = meshrt.device_put(ONES.real, meshrt.NamedSharding(_mesh(), P("x")))
    for dtype, barriers in ((jnp.float32, 0), (jnp.complex64, 1)):
        program = meshrt.jit(_mapped(lambda x, dtype=dtype: lax.psum(x.astype(dtype), "x")))
        text = program.lower(x).partition().as_text()
        assert text.count("all_reduce") and text.count("optimization_barrier") == barriers
