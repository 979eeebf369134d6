"""Derivatives in exported functions of symbolic sizes, beside those of known sizes."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import export, lax


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


@pytest.mark.parametrize("name", ["cumprod", "cummax", "cummin", "cumlogsumexp"])
@pytest.mark.parametrize(("axis", "reverse"), [(0, False), (1, True)])
def test_cumulative_reductions_along_symbolic_sizes(name, axis, reverse):
    cumulated = lambda x: getattr(lax, name)(x, axis=axis, reverse=reverse)
    twice = lambda x: meshrt.jvp(meshrt.grad(lambda x: jnp.sin(cumulated(x)).sum()), (x,), (x * x,))
    loaded = export.export(meshrt.jit(twice))(meshrt.ShapeDtypeStruct(export.symbolic_shape("n, m"), np.float32))
    for shape in ((3, 5), (1, 1), (6, 2)):
        x = np.random.default_rng(1).random(shape, np.float32)
        for found, wanted in zip(loaded.call(x), twice(x), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_an_associative_scan_along_a_symbolic_size():
    affine = lambda left, right: (left[0] * right[0], left[1] * right[0] + right[1])
    scanned = lambda x: lax.associative_scan(affine, (x, x + 1), axis=1, reverse=True)
    (n,) = export.symbolic_shape("n")
    loaded = export.export(meshrt.jit(scanned))(meshrt.ShapeDtypeStruct((2, n), np.float32))
    for size in (1, 2, 5):
        x = np.random.default_rng(2).random((2, size), np.float32)
        for found, wanted in zip(loaded.call(x), scanned(x), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
