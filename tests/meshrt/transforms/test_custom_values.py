"""Functions with custom derivatives that look at values which are known, that close over traced ones, and whose results
or arguments are integers; beside JAX."""

from __future__ import annotations

import numpy as np
import pytest

from tests.meshrt.beside import assert_alike

X = np.float32([1, 2, 3])
TWO = np.float32(2)
FLOAT0 = np.dtype([("float0", np.void, 0)])


def with_jvp(l, fun, rule, **options):
    """`fun` with the rule that `rule(function)` gives."""
    f = l.custom_jvp(fun, **options)
    f.defjvp(rule(f))
    return f


def branching(l, kind):
    """A function that branches on its argument in Python, with a rule that does."""
    fun = lambda x: l.numpy.sin(x) if x > 0 else l.numpy.cos(x)
    if kind == "jvp":
        return with_jvp(l, fun, lambda f: lambda p, t: (f(*p), t[0] * (2.0 if p[0] > 0 else 3.0)))
    f = l.custom_vjp(fun)
    f.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * (2.0 if x > 0 else 3.0),))
    return f


def closing(l):
    """A call in which the function and the rule close over an argument, which is mapped."""

    def outer(y, x):
        f = with_jvp(l, lambda x: x * y, lambda f: lambda p, t: (f(*p), t[0] * y * 3.0))
        return f(x), l.grad(f)(x), l.grad(l.grad(lambda x: f(x) ** 2))(x)

    return outer


def recursive(l):
    def rule(n, p, t):
        return f(n, *p), t[0] if n == 0 else t[0] * f(n - 1, *p) + p[0] * l.jvp(lambda x: f(n - 1, x), p, t)[1]

    f = l.custom_jvp(lambda n, x: x if n == 0 else x * f(n - 1, x), nondiff_argnums=(0,))
    f.defjvp(rule)
    return lambda x: f(3, x)


def gradient_of_both(l):
    """Of a function of a floating and an integer result."""
    f = l.custom_gradient(
        lambda x: ((x * 2.0, l.numpy.argmax(x)), lambda g: g[0] * (7.0 if g[1].dtype == FLOAT0 else 8.0))
    )
    loss = lambda x: f(x)[0].sum()
    return f(X), l.grad(loss)(X), l.jit(l.grad(loss))(X), l.vmap(l.grad(lambda x: f(x)[0]))(X)


PROGRAMS = {
    "jvp, value": lambda l: [branching(l, "jvp")(v) for v in (TWO, -TWO)],
    "jvp, tangent": lambda l: [l.jvp(branching(l, "jvp"), (v,), (TWO,)) for v in (TWO, -TWO)],
    "jvp, gradient": lambda l: [l.grad(branching(l, "jvp"))(v) for v in (TWO, -TWO)],
    "jvp, twice": lambda l: l.grad(l.grad(lambda x: branching(l, "jvp")(x) ** 2))(TWO),
    "jvp, staged": lambda l: l.jit(branching(l, "jvp"))(TWO),
    "vjp, value": lambda l: [branching(l, "vjp")(v) for v in (TWO, -TWO)],
    "vjp, gradient": lambda l: [l.grad(branching(l, "vjp"))(v) for v in (TWO, -TWO)],
    "vjp, tangent": lambda l: l.jvp(branching(l, "vjp"), (TWO,), (TWO,)),
    "Python scalar": lambda l: l.custom_jvp.__call__(branching(l, "jvp"), 2.0),
    "closed over": lambda l: l.vmap(closing(l))(X, X),
    "closed over, one argument": lambda l: l.vmap(closing(l), (0, None))(X, TWO),
    "closed over, twice": lambda l: l.vmap(l.vmap(closing(l), (0, None)), (None, 0))(X, X),
    "closed over, staged": lambda l: l.jit(l.vmap(closing(l)))(X, X),
    "recursive": lambda l: [
        l.grad(recursive(l))(TWO),
        l.grad(l.grad(recursive(l)))(TWO),
        l.jit(l.grad(recursive(l)))(TWO),
    ],
    "integer results": gradient_of_both,
    "structure of the rule": lambda l: l.grad(with_jvp(l, lambda x: x, lambda f: lambda p, t: (p[0], (t[0],))))(TWO),
    "no pair": lambda l: l.grad(with_jvp(l, lambda x: x, lambda f: lambda p, t: p[0]))(TWO),
    "no array": lambda l: with_jvp(l, lambda x: x, lambda f: lambda p, t: (p, t))("a"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_jax(name):
    assert_alike(PROGRAMS[name])


def zeros(*shape):
    return np.zeros(shape, FLOAT0)


NOTHING = {
    "given": lambda l: l.jit(lambda x, z: l.jvp(lambda x, i: x * i, (x, 3), (x, z))[1])(TWO, zeros()),
    "through": lambda l: l.jit(lambda z: z)(zeros(3)),
    "a tangent": lambda l: l.jit(lambda i, z: l.jvp(lambda i: i * 2, (i,), (z,))[1])(np.arange(3), zeros(3)),
    "of argmax": lambda l: l.jit(lambda x: l.jvp(l.numpy.argmax, (x,), (x,))[1])(X),
    "a cotangent": lambda l: l.jit(lambda i: l.vjp(lambda i: i * 2, i)[1](zeros(3))[0])(np.arange(3)),
    "a gradient": lambda l: l.jit(l.grad(lambda i: (i * 2.0).sum(), allow_int=True))(np.arange(3)),
    "among others": lambda l: l.jit(l.grad(lambda t: t["a"] * t["i"], allow_int=True))({"a": TWO, "i": 3}),
    "linearized": lambda l: l.jit(lambda i: l.linearize(lambda i: i * 2, i)[1](zeros(3)))(np.arange(3)),
    "mapped": lambda l: l.vmap(lambda i, z: l.jvp(lambda i: i * 2, (i,), (z,))[1])(np.arange(3), zeros(3)),
    "scanned": lambda l: l.lax.scan(lambda c, z: (c, c), TWO, zeros(3)),
    "added to": lambda l: l.numpy.add(zeros(3), 1),
    "compiled": lambda l: l.jit(lambda z: (z, 1)).lower(zeros(2)).compile()(zeros(2))[0],
}


@pytest.mark.parametrize("name", NOTHING)
def test_tangents_that_hold_nothing_enter_and_leave_programs(name):
    assert_alike(NOTHING[name])
