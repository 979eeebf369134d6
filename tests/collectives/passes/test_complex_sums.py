"""Complex sums over devices, whose addends XLA may find to be one constant: it would end the process."""

import numpy as np
import pytest

import meshrt
from meshrt import P, lax
from meshrt import numpy as jnp

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


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_constant_addend(name):
    program, want = PROGRAMS[name]
    x = meshrt.device_put(ONES, meshrt.NamedSharding(_mesh(), P("x")))
    np.testing.assert_array_equal(meshrt.jit(program)(x), np.complex64(want))


def test_real_sums_are_left_alone():
    x = meshrt.device_put(ONES.real, meshrt.NamedSharding(_mesh(), P("x")))
    for dtype, barriers in ((jnp.float32, 0), (jnp.complex64, 1)):
        program = meshrt.jit(_mapped(lambda x, dtype=dtype: lax.psum(x.astype(dtype), "x")))
        text = program.lower(x).partition().as_text()
        assert text.count("all_reduce") and text.count("optimization_barrier") == barriers
