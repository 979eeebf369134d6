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


def steps(x, w):
    carry, ys = lax.scan(lambda c, y: (jnp.sin(c * y) + w, c * y * w), jnp.float32(1), x)
    return carry + ys.sum()


# Of x[1:], which has no elements where x has one; of mod(n, 2) and of n // 2, which are no longer.
SCANS = {
    "values": lambda x: lax.scan(lambda c, y: (c + y, c * y), jnp.float32(0), x[1:], reverse=True),
    "containers": lambda x: lax.scan(
        lambda c, y: (c, {"a": y["i"] > 0, "b": y["x"].astype("int8")}),
        x,
        {"i": jnp.arange(x.shape[0] - 1), "x": x[1:]},
    ),
    "no slices": lambda x: lax.scan(lambda c, y: (c * 2, None), x, None, length=x.shape[0] - 1)[0],
    "remainders": lambda x: lax.scan(lambda c, i: (c + i, c), 0, jnp.arange(x.shape[0] % 2)),
    "halves": lambda x: lax.map(lambda y: y * 2, x[: x.shape[0] // 2]),
    "rows": lambda x: lax.scan(lambda c, y: (c + y.sum(), y * c), jnp.float32(0), jnp.outer(x, x)[1:, 1:]),
    "vmap": lambda x: meshrt.vmap(lambda a: lax.scan(lambda c, y: (c + y * a, c), a, x[1:]))(x),
    "associative": lambda x: lax.associative_scan(jnp.add, x[1:]),
    "grad": lambda x: meshrt.grad(steps, (0, 1))(x[1:], x[0]),
    "jvp": lambda x: meshrt.jvp(steps, (x[1:], x[0]), (x[1:], x[0])),
    "hessian": lambda x: meshrt.hessian(lambda w: steps(x[1:], w))(x[0]),
    "checkpoint": lambda x: meshrt.grad(
        lambda x: lax.scan(meshrt.checkpoint(lambda c, y: (jnp.sin(c * y), c)), jnp.float32(1), x[1:])[1].sum()
    )(x),
}


@pytest.mark.parametrize("name", SCANS)
def test_scans_of_symbolic_lengths_that_may_be_zero(name):
    (n,) = export.symbolic_shape("n")
    exported = export.export(meshrt.jit(SCANS[name]))(meshrt.ShapeDtypeStruct((n,), np.float32))
    for size in (1, 2, 5):
        x = np.linspace(0.5, 1.5, size, dtype=np.float32)
        found, expected = exported.call(x), SCANS[name](x)
        for a, b in zip(meshrt.tree.leaves(found), meshrt.tree.leaves(expected), strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            np.testing.assert_allclose(a, b, rtol=1e-5)
