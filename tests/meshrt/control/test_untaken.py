"""Derivatives of mapped branches: what a branch that is not taken does at a value must not show, as in JAX."""

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy

X = np.float32([0.0, 1.0, -1.0, 4.0, 100.0, np.inf, -np.inf, np.nan])
W = np.float32([[0.0, 2.0], [3.0, -1.0]])


def _cond(l, p, f, g, *xs):
    return l.lax.cond(p, f, g, *xs)


def _nested(l, x):
    inner = lambda x: _cond(l, x > 2, lambda x: 1 / (x - 1), l.numpy.log, x)
    return _cond(l, x > 0, inner, lambda x: 0.0 * l.numpy.sin(1.0) + 1.0, x)


def _loop(l, x):
    """A while loop with a mapped predicate; forward mode."""
    return l.lax.while_loop(lambda c: (c[0] < 4) & (c[0] > 0), lambda c: (c[0] + 1 / c[1], c[1] - 1.0), (x, x))[0]


def _custom(l):
    @l.custom_jvp
    def log(x):
        return l.numpy.log(x)

    log.defjvp(lambda x, t: (log(x[0]), t[0] / x[0]))
    return log


def _custom_vjp(l):
    @l.custom_vjp
    def log(x):
        return l.numpy.log(x)

    log.defvjp(lambda x: (log(x), x), lambda x, g: (g / x,))
    return log


def _scan(l, x, f):
    return l.lax.scan(lambda c, _: (_cond(l, c > 0.5, f, lambda c: c * 0.5, c), c), x, None, 3)[0]


SCALAR = {
    "log": lambda l: lambda x: _cond(l, x > 0, l.numpy.log, lambda x: 0.0 * x, x),
    "sqrt": lambda l: lambda x: _cond(l, x > 0, l.numpy.sqrt, lambda x: x, x),
    "1/x": lambda l: lambda x: _cond(l, x != 0, lambda x: 1 / x, lambda x: x, x),
    "exp": lambda l: lambda x: _cond(l, x < 80, l.numpy.exp, lambda x: x, x),
    "square overflows": lambda l: lambda x: _cond(l, x < 80, lambda x: x, lambda x: (x * 1e30) * (x * 1e30), x),
    "power": lambda l: lambda x: _cond(l, x > 0, lambda x: x**0.3, lambda x: x, x),
    "constant branch": lambda l: lambda x: _cond(l, x > 0, l.numpy.log, lambda x: 1.0, x),
    "nested": lambda l: lambda x: _nested(l, x),
    "jit": lambda l: l.jit(lambda x: _cond(l, x > 0, l.numpy.log, lambda x: 0.0 * x, x)),
    "jitted branch": lambda l: lambda x: _cond(l, x > 0, l.jit(l.numpy.log), lambda x: 0.0 * x, x),
    "checkpoint": lambda l: l.checkpoint(lambda x: _cond(l, x > 0, l.numpy.log, lambda x: 0.0 * x, x)),
    "custom_jvp": lambda l: lambda x: _cond(l, x > 0, _custom(l), lambda x: 0.0 * x, x),
    "custom_vjp": lambda l: lambda x: _cond(l, x > 0, _custom_vjp(l), lambda x: 0.0 * x, x),
    "scan": lambda l: lambda x: _scan(l, x, l.numpy.log),
    "switch": lambda l: (
        lambda x: l.lax.switch(
            l.numpy.where(x > 0, 1, l.numpy.where(x < 0, 2, 0)),
            [lambda x: x, l.numpy.log, lambda x: l.numpy.sqrt(-x)],
            x,
        )
    ),
    "two operands": lambda l: lambda x: _cond(l, x > 0, lambda x, y: l.numpy.log(x) * y, lambda x, y: x + y, x, x * 2),
    "where": lambda l: lambda x: l.numpy.where(x > 0, l.numpy.log(x), 0.0),
    "double where": lambda l: lambda x: l.numpy.where(x > 0, l.numpy.log(l.numpy.where(x > 0, x, 1.0)), 0.0),
    "clip": lambda l: lambda x: l.numpy.clip(x, 0, 2),
    "clamp": lambda l: lambda x: l.lax.clamp(np.float32(0), x, np.float32(4)),
    "select": lambda l: lambda x: l.lax.select(x > 0, l.numpy.sqrt(x), x),
    "piecewise by sign": lambda l: lambda x: l.lax.select_n((x > 0), 1 / x, x),
}

MODES = {
    "grad of vmap": lambda l, f: lambda x: l.grad(lambda x: l.numpy.sum(l.vmap(f)(x)))(x),
    "vmap of grad": lambda l, f: l.vmap(l.grad(f)),
    "jit": lambda l, f: l.jit(l.grad(lambda x: l.numpy.sum(l.vmap(f)(x)))),
    "jvp": lambda l, f: lambda x: l.jvp(l.vmap(f), (x,), (l.numpy.ones_like(x),))[1],
    "second": lambda l, f: lambda x: l.grad(lambda x: l.numpy.sum(l.grad(lambda x: l.numpy.sum(l.vmap(f)(x)))(x)))(x),
    "grad of vmap of jvp": lambda l, f: l.grad(
        lambda x: l.numpy.sum(l.vmap(lambda x: l.jvp(f, (x,), (l.numpy.ones_like(x),))[1])(x))
    ),
    "two maps": lambda l, f: l.grad(lambda x: l.numpy.sum(l.vmap(l.vmap(f))(x.reshape(2, 4)))),
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", SCALAR)
@pytest.mark.parametrize("mode", MODES)
def test_of_each_member(mode, name):
    if name == "custom_vjp" and "jvp" in mode:
        with pytest.raises(TypeError):
            MODES[mode](meshrt, SCALAR[name](meshrt))(X)
        return
    ours, theirs = (np.asarray(MODES[mode](l, SCALAR[name](l))(X)) for l in (meshrt, jax))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


SHARED = {
    "log of shared": lambda l, w, x: _cond(l, x > 0, lambda x: l.numpy.log(w[0, 0]) * x, lambda x: x, x),
    "shared times log": lambda l, w, x: _cond(l, x > 0, lambda x: w[0, 1] * l.numpy.log(x), lambda x: x, x),
    "matmul of log": lambda l, w, x: _cond(
        l, x > 0, lambda x: l.numpy.sum(l.numpy.log(x * np.float32([1, 2])) @ w), lambda x: x, x
    ),
    "matmul": lambda l, w, x: _cond(l, x > 0, lambda x: l.numpy.sum((x * np.float32([1, 2])) @ w), lambda x: x, x),
    "never taken": lambda l, w, x: _cond(l, x > 1e9, lambda x: l.numpy.log(w[0, 0]) * x, lambda x: x, x),
}


@pytest.mark.parametrize("name", SHARED)
def test_of_what_they_share(name):
    x = np.float32([0.0, 1.0, -1.0, 4.0])

    def both(l):
        return l.grad(lambda w, x: l.numpy.sum(l.vmap(lambda x: SHARED[name](l, w, x))(x)), (0, 1))(W, x)

    for ours, theirs in zip(both(meshrt), both(jax)):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-5, atol=1e-6)


def test_loops_in_forward_mode():
    x = np.float32([0.0, 1.0, -1.0, 3.0])
    ours, theirs = (l.jvp(l.vmap(lambda x: _loop(l, x)), (x,), (np.ones_like(x),))[1] for l in (meshrt, jax))
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-5)


def test_a_branch_that_is_finite_everywhere_shares_its_weights():
    """x @ w in a branch stays one product of [8, 4] and [4, 4]: w is not repeated for each member."""
    layer = lambda w: meshrt.vmap(lambda p, x: meshrt.lax.cond(p, lambda x: meshrt.numpy.tanh(x @ w), lambda x: x, x))(
        np.arange(8) > 3, np.ones((8, 4), np.float32)
    )
    text = meshrt.jit(layer).lower(np.ones((4, 4), np.float32)).as_text()
    assert "8x4x4" not in text
    assert text.count("select") == 1  # of the results; those of the operands are for derivatives and leave nothing
