"""Everything that an array has, a traced one has too: no attribute of a tracer hides a method."""

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt.core.operators import ArrayOperators

X = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)
TRANSFORMS = {
    "jit": meshrt.jit,
    "vmap": meshrt.vmap,
    "jvp": lambda f: lambda x: meshrt.jvp(f, (x,), (x,))[1],
    "grad": lambda f: meshrt.grad(lambda x: jnp.sum(f(x))),
    "scan": lambda f: lambda x: meshrt.lax.scan(lambda c, v: (c, f(v)), 0.0, x)[1],
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_no_slot_hides_a_method(name):
    methods = {n: v for n, v in vars(ArrayOperators).items() if not n.startswith("__")}
    seen = []

    def look(x):
        for kind in type(x).__mro__[: type(x).__mro__.index(ArrayOperators)]:
            seen.append(kind)
            assert not methods.keys() & set(getattr(kind, "__slots__", ())), kind
        return x

    TRANSFORMS[name](look)(jnp.asarray(X))
    assert seen


@pytest.mark.parametrize("method", ["var", "std", "mean", "sum", "ptp", "trace", "round", "cumsum", "argsort"])
def test_methods_inside_jit(method):
    call = lambda x: getattr(x, method)()
    np.testing.assert_allclose(meshrt.jit(call)(X), jax.jit(call)(X), rtol=1e-5, atol=1e-6)
