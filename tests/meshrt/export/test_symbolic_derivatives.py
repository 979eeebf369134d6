"""Derivatives in exported functions of symbolic sizes, beside those of known sizes."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import export


@meshrt.custom_vjp
def counted(x, i):
    return x * i[:, None], i + 1


counted.defvjp(lambda x, i: (counted(x, i), i), lambda i, ct: (ct[0] * i[:, None], None))

# Each has integers, which have no derivatives, among its arguments and results.
OF_INTEGERS = {
    "arguments": lambda x, i: meshrt.vjp(lambda y, i: y * i[:, None], x, i)[1](x)[0],
    "gradients": lambda x, i: meshrt.grad(lambda y, i: (y * i[:, None]).sum(), (0, 1), allow_int=True)(x, i)[0],
    "results": lambda x, i: meshrt.jvp(lambda y: (y * i[:, None], i), (x,), (x,))[1][0],
    "rules": lambda x, i: meshrt.grad(lambda y: counted(y, i)[0].sum())(x),
    "the library's rules": lambda x, i: meshrt.grad(lambda y: jnp.ldexp(y, i[:, None]).sum())(x),
}


@pytest.mark.parametrize("name", OF_INTEGERS)
def test_integers_of_symbolic_sizes_beside_what_is_differentiated(name):
    n, m = export.symbolic_shape("n, m")
    specs = meshrt.ShapeDtypeStruct((n, m), np.float32), meshrt.ShapeDtypeStruct((n,), np.int32)
    args = np.ones((4, 3), np.float32), np.arange(4, dtype=np.int32)
    loaded = export.deserialize(export.export(meshrt.jit(OF_INTEGERS[name]))(*specs).serialize())
    np.testing.assert_allclose(loaded.call(*args), OF_INTEGERS[name](*args))


def test_derivatives_of_a_function_of_and_to_integers_of_symbolic_sizes():
    n, k = export.symbolic_shape("n, 2*k")
    specs = meshrt.ShapeDtypeStruct((n, 3), np.float32), meshrt.ShapeDtypeStruct((n,), np.int32)
    f = lambda x, i: (jnp.sin(x) * i[:, None], i + 1, x > 0)
    loaded = export.deserialize(export.export(meshrt.jit(f))(*specs).serialize(vjp_order=2))
    gradient = lambda x, i: meshrt.grad(lambda y: loaded.call(y, i)[0].sum())(x)
    pushed = lambda x, i: meshrt.jvp(lambda y: loaded.call(y, i)[0], (x,), (x,))[1]
    x, i = np.ones((4, 3), np.float32), np.arange(4, dtype=np.int32)
    wider = meshrt.ShapeDtypeStruct((k, 3), np.float32), meshrt.ShapeDtypeStruct((k,), np.int32)
    for form in (gradient, pushed):
        again = export.export(meshrt.jit(form))(*wider)
        for call in (form, meshrt.jit(form), again.call):
            np.testing.assert_allclose(call(x, i), np.cos(x) * i[:, None], rtol=1e-6)
