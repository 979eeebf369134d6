"""Auxiliary results under a second transformation: what depends on the arguments has their derivatives, as in JAX."""

import itertools

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy

X = np.float32([1.0, 2.0, -0.5])


def _scalar(l):
    return lambda x: (l.numpy.sum(x**3), {"a": x**4, "b": (l.numpy.sin(x), x[0])})


def _vector(l):
    return lambda x: (x**3, {"a": x**4, "b": (l.numpy.sin(x), x[0])})


def _custom(l):
    @l.custom_vjp
    def cube(x):
        return x**3

    cube.defvjp(lambda x: (x**3, x), lambda x, g: (3 * x**2 * g,))
    return lambda x: (l.numpy.sum(cube(x)), {"a": cube(x) * x, "b": (l.numpy.sin(x), x[0])})


INNER = {
    "grad": lambda l: lambda x: l.grad(_scalar(l), has_aux=True)(x)[1],
    "grad of checkpoint": lambda l: lambda x: l.grad(l.checkpoint(_scalar(l)), has_aux=True)(x)[1],
    "grad of jit": lambda l: lambda x: l.grad(l.jit(_scalar(l)), has_aux=True)(x)[1],
    "grad of custom_vjp": lambda l: lambda x: l.grad(_custom(l), has_aux=True)(x)[1],
    "value_and_grad": lambda l: lambda x: l.value_and_grad(_scalar(l), has_aux=True)(x)[0][1],
    "vjp": lambda l: lambda x: l.vjp(_vector(l), x, has_aux=True)[2],
    "jvp": lambda l: lambda x: l.jvp(_vector(l), (x,), (l.numpy.ones_like(x),), has_aux=True)[2],
    "linearize": lambda l: lambda x: l.linearize(_vector(l), x, has_aux=True)[2],
    "jacfwd": lambda l: lambda x: l.jacfwd(_vector(l), has_aux=True)(x)[1],
    "jacrev": lambda l: lambda x: l.jacrev(_vector(l), has_aux=True)(x)[1],
    "hessian": lambda l: lambda x: l.hessian(_scalar(l), has_aux=True)(x)[1],
    "vmap of grad": lambda l: lambda x: l.vmap(l.grad(lambda y: (y**3, {"a": y**4}), has_aux=True))(x)[1],
    "aux beside": lambda l: lambda x: l.jacfwd(lambda y: (y * x, x * y * y), has_aux=True)(x)[1],
}


def _summed(l, f):
    return lambda x: sum(l.numpy.sum(v * w) for w, v in enumerate(l.tree_util.tree_leaves(f(x)), 1))


OUTER = {
    "grad": lambda l, f: l.grad(_summed(l, f)),
    "grad twice": lambda l, f: l.grad(lambda x: l.numpy.sum(l.grad(_summed(l, f))(x) ** 2)),
    "grad of jit": lambda l, f: l.grad(l.jit(_summed(l, f))),
    "grad of checkpoint": lambda l, f: l.grad(l.checkpoint(_summed(l, f))),
    "jacfwd": lambda l, f: l.jacfwd(f),
    "jacrev": lambda l, f: l.jacrev(f),
    "hessian": lambda l, f: l.hessian(_summed(l, f)),
    "jvp": lambda l, f: lambda x: l.jvp(f, (x,), (l.numpy.ones_like(x),)),
    "linearize": lambda l, f: lambda x: l.linearize(f, x)[1](l.numpy.ones_like(x)),
    "vmap": lambda l, f: lambda x: l.vmap(f)(l.numpy.stack([x, 2 * x])),
    "jit": lambda l, f: l.jit(f),
    "scan": lambda l, f: l.grad(lambda x: l.lax.scan(lambda c, _: (c + _summed(l, f)(x * c), None), 1.0, None, 3)[0]),
}


@pytest.mark.sweep(6)
@pytest.mark.parametrize("inner,outer", [*itertools.product(INNER, OUTER)])
def test_equals_jax(inner, outer):
    ours, theirs = (l.tree_util.tree_leaves(OUTER[outer](l, INNER[inner](l))(X)) for l in (meshrt, jax))
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=1e-5)


def test_the_derivative_of_an_aux_is_not_lost():
    of_aux = lambda x: meshrt.jacfwd(lambda y: (y**3, y**4), has_aux=True)(x)[1]
    assert float(meshrt.jacfwd(of_aux)(2.0)) == float(meshrt.jacrev(of_aux)(2.0)) == 32.0


def test_an_aux_need_not_hold_arrays():
    value, aux = meshrt.grad(lambda x: (x**2, {"name": "loss", "none": None}), has_aux=True)(3.0)
    assert (float(value), aux) == (6.0, {"name": "loss", "none": None})
