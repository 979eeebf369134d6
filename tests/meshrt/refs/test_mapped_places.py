"""References that `vmap` maps along another dimension than the first, beside the function applied column by column."""

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import lax

X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def over_elements(r):
    total, _ = lax.scan(lambda c, x: (c + x[...], x.__setitem__(..., c)), 0.0, r)
    r[0] = total


def branches(r):
    lax.cond(r[0] > 0, lambda: r.__setitem__(1, 9.0), lambda: r.__setitem__(2, r[0]))


BODIES = {
    "set": lambda r: r.__setitem__(slice(1, 3), r[0:2]),
    "whole": lambda r: r.__setitem__(..., r[...] * 2),
    "addupdate": lambda r: meshrt.ref.addupdate(r, jnp.array([1, 1]), jnp.ones(2)),
    "swap": lambda r: r.__setitem__(0, meshrt.ref.swap(r, 3, r[1])),
    "loop": lambda r: lax.fori_loop(0, 3, lambda i, _: r.__setitem__(i, r[i] + r[i + 1]), None),
    "xs of a scan": over_elements,
    "branches": branches,
    "jit": lambda r: meshrt.jit(lambda r: r.__setitem__(0, r[1] * 2))(r),
    "vmap": lambda r: meshrt.vmap(lambda e, i: e.__setitem__(..., e[...] * i))(r, jnp.arange(4.0)),
}


@pytest.mark.parametrize("name", BODIES)
def test_references_mapped_along_any_dimension(name):
    body, wanted = BODIES[name], X.copy()
    for k in range(3):
        column = meshrt.new_ref(jnp.asarray(X[:, k]))
        body(column)
        wanted[:, k] = column[...]
    for wrap in (lambda f: f, meshrt.jit):
        for place, given, found in ((1, X, wanted), (0, X.T, wanted.T)):
            ref = meshrt.new_ref(jnp.asarray(given))
            wrap(meshrt.vmap(body, in_axes=place))(ref)
            np.testing.assert_allclose(ref[...], found, rtol=1e-6)


def test_the_derivative_through_them():
    def f(x):
        ref = meshrt.new_ref(x)
        meshrt.vmap(BODIES["loop"], in_axes=1)(ref)
        return (ref[...] ** 2).sum()

    def plain(x):
        for i in range(3):
            x = x.at[i].add(x[i + 1])
        return (x**2).sum()

    np.testing.assert_allclose(meshrt.grad(f)(X), meshrt.grad(plain)(X), rtol=1e-5)
