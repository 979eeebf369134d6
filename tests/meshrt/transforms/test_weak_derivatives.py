"""Derivatives are of the type of what they are taken of: weak where JAX's are, for each rule that brings a constant."""

import numpy as np
import pytest

from ..beside import assert_alike

# Of x, a weakly typed number, or of `wide(x)`, a vector of it; `n` is jax.numpy.
FUNCTIONS = {
    "abs": lambda l, n, x: abs(x),
    "max": lambda l, n, x: n.maximum(x, 0),
    "lax max": lambda l, n, x: l.lax.max(x, 2.0),
    "lax max with an array": lambda l, n, x: l.lax.max(x, n.float32(2)),
    "min": lambda l, n, x: n.minimum(x, 2.0),
    "clip": lambda l, n, x: n.clip(x, 0, 2),
    "clamp": lambda l, n, x: l.lax.clamp(0.0, x, 2.0),
    "where": lambda l, n, x: n.where(x > 0, x, 0),
    "select": lambda l, n, x: l.lax.select(x > 0, x, -x),
    "power": lambda l, n, x: x**2.5,
    "power in the exponent": lambda l, n, x: n.power(2.5, x),
    "remainder": lambda l, n, x: x % 2,
    "hypot": lambda l, n, x: n.hypot(x, 2.0),
    "exp2": lambda l, n, x: n.exp2(x),
    "sinc": lambda l, n, x: n.sinc(x),
    "digamma": lambda l, n, x: l.lax.digamma(x),
    "bessel": lambda l, n, x: l.lax.bessel_i1e(x),
    "copysign": lambda l, n, x: n.copysign(x, 2.0),
    "ldexp": lambda l, n, x: n.ldexp(x, 2),
    "frexp": lambda l, n, x: n.frexp(x)[0],
    "gelu": lambda l, n, x: l.nn.gelu(x),
    "gelu by erfc": lambda l, n, x: l.nn.gelu(x, approximate=False),
    "relu": lambda l, n, x: l.nn.relu(x),
    "elu": lambda l, n, x: l.nn.elu(x),
    "softmax": lambda l, n, x: l.nn.softmax(wide(l, x))[0],
    "log_softmax": lambda l, n, x: l.nn.log_softmax(wide(l, x))[0],
    "logsumexp": lambda l, n, x: l.nn.logsumexp(wide(l, x)),
    "gather": lambda l, n, x: wide(l, x)[n.array([0, 1])].sum(),
    "element": lambda l, n, x: wide(l, x)[1],
    "top_k": lambda l, n, x: l.lax.top_k(wide(l, x), 1)[0][0],
    "set by a constant": lambda l, n, x: n.stack([x, x]).at[0].set(2.0).sum(),
    "set in an array": lambda l, n, x: n.zeros(3).at[0].set(x).sum(),
    "window added to": lambda l, n, x: wide(l, x).at[0:2].add(x).sum(),
    "scatter": lambda l, n, x: wide(l, x).at[n.array([0, 1])].set(x).sum(),
    "sum of windows": lambda l, n, x: l.lax.reduce_window(wide(l, x), 0.0, l.lax.add, (2,), (1,), "VALID")[0],
    "triangle": lambda l, n, x: n.tril(l.lax.broadcast(x, (2, 2))).sum(),
    "whole power": lambda l, n, x: l.lax.pow(x, 2),
    "log_ndtr": lambda l, n, x: l.scipy.special.log_ndtr(x),
    "cholesky": lambda l, n, x: l.lax.linalg.cholesky(l.lax.broadcast(x, (1, 1))).sum(),
    "nansum": lambda l, n, x: n.nansum(wide(l, x)),
}


def wide(library, x):
    return library.lax.broadcast(x, (3,))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_as_weak(name):
    function = FUNCTIONS[name]
    assert_alike(lambda l: l.grad(lambda x: function(l, l.numpy, x))(0.75))


@pytest.mark.parametrize("name", ["abs", "max", "where"])
def test_other_modes_too(name):
    function = FUNCTIONS[name]

    def program(l):
        f = lambda x: function(l, l.numpy, x)
        return l.vjp(f, 0.5)[1](1.0), l.jit(l.grad(f))(0.5), l.linearize(f, 0.5)[1](1.0), l.jacrev(f)(0.5)

    assert_alike(program)


TANGENTS = {
    "power": lambda l, n, a, b: a**b, "lax.pow": lambda l, n, a, b: l.lax.pow(a, b),
    "exponent": lambda l, n, a, b: l.lax.pow(2.0, b),
    "product": lambda l, n, a, b: a * b, "quotient": lambda l, n, a, b: n.divide(a, b),
    "arctan2": lambda l, n, a, b: n.arctan2(a, b), "maximum": lambda l, n, a, b: n.maximum(a, b),
    "sort": lambda l, n, a, b: n.sort(n.stack([a, b])), "dot": lambda l, n, a, b: n.dot(wide(l, a), wide(l, b)),
    "silu": lambda l, n, a, b: l.nn.silu(a), "sqrt": lambda l, n, a, b: n.sqrt(a),
}  # fmt: skip


@pytest.mark.parametrize("name", TANGENTS)
@pytest.mark.parametrize("strong", [False, True])
def test_tangents_are_as_weak(name, strong):
    """Strong ones of weak arguments too: what jitted functions make of them."""

    def program(l):
        tangents = (l.numpy.float32(1), l.numpy.float32(2)) if strong else (1.0, 2.0)
        f = lambda a, b: TANGENTS[name](l, l.numpy, a, b)
        pulled = l.grad(lambda a, b: f(a, b).sum(), (0, 1))(1.0, 2.0)
        return pulled, l.jvp(f, (1.0, 2.0), tangents), l.jit(lambda a, b: l.jvp(f, (a, b), (1.0, 2.0)))(1.0, 2.0)

    assert_alike(program)


@pytest.mark.parametrize("convert", [float, complex])
@pytest.mark.parametrize("way", ["grad", "jvp", "linearize", "vjp"])
def test_a_number_would_have_no_derivative(convert, way):
    """float(x) of a value that is differentiated is refused; int(x) and branches have no derivative anywhere."""
    ways = {
        "grad": lambda l, f: l.grad(f)(1.0),
        "jvp": lambda l, f: l.jvp(f, (1.0,), (1.0,)),
        "linearize": lambda l, f: l.linearize(f, 1.0)[0],
        "vjp": lambda l, f: l.vjp(f, np.float32(1))[0],
    }
    assert_alike(lambda l: ways[way](l, lambda x: (convert(x) * x).real))
    assert_alike(lambda l: l.grad(lambda x: int(x) * x if x > 0 else x)(1.0))
