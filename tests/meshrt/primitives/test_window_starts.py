"""Windows whose initial value only the running program knows have the derivatives of those whose value is written."""

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import lax

X = np.random.default_rng(7).normal(size=(4, 5)).astype(np.float32)
DERIVATIVES = {
    "reverse": meshrt.grad,
    "forward": lambda g: lambda x: meshrt.jvp(g, (x,), (jnp.cos(x),))[1],
    "second": lambda g: meshrt.grad(lambda x: jnp.sum(meshrt.grad(g)(x) ** 2)),
    "mapped": lambda g: lambda x: meshrt.vmap(meshrt.grad(g))(jnp.stack([x, -x])),
}


def summed(x, start, operation):
    return jnp.sum(jnp.sin(lax.reduce_window(x, start, operation, (2, 3), (1, 2), "SAME")) ** 2)


@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize(("operation", "start"), [(lax.add, 0.0), (lax.max, -np.inf), (lax.min, np.inf)])
def test_a_start_that_is_traced(operation, start, derivative):
    written, traced = (
        DERIVATIVES[derivative](lambda x, given=given: summed(x, given(x), operation))
        for given in (lambda x: start, lambda x: jnp.asarray(start, x.dtype))
    )
    np.testing.assert_allclose(meshrt.jit(traced)(X), meshrt.jit(written)(X), rtol=1e-5, atol=1e-5)


def test_windows_below_their_start_have_no_derivative():
    found = meshrt.jit(meshrt.grad(lambda x, start: summed(x, start, lax.max)))(X, np.float32(9))
    np.testing.assert_array_equal(found, np.zeros_like(X))
