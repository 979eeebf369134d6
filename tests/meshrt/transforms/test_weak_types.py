"""Weak types and Python scalars through the transformations and loops: those of JAX."""

from __future__ import annotations

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy

X = np.linspace(-1, 1, 8, dtype=np.float32)


def _with_a_rule(library):
    """A function whose rule for derivatives takes its cotangent for an array."""
    rule = library.custom_vjp(lambda y: y)
    rule.defvjp(lambda y: (y, None), lambda _, ct: (ct.reshape(1).at[0].mul(2)[0],))
    return rule


PROGRAMS = {
    "power of a Python scalar": lambda l, j: l.grad(lambda x: x**2)(3.0),
    "negative power": lambda l, j: l.value_and_grad(lambda x: x**-2 + x**3)(2.0),
    "grad": lambda l, j: l.value_and_grad(lambda x: j.sin(x) * 2)(3.0),
    "grad of a weak array": lambda l, j: l.grad(lambda x: j.exp(x))(j.asarray(2.0)),
    "grad through an array": lambda l, j: l.grad(lambda x: (x * j.ones(3)).sum())(2.0),
    "grad of identity": lambda l, j: (l.grad(lambda x: x)(2.0), l.grad(lambda x: x + 1)(j.float32(2))),
    "grad of a constant": lambda l, j: l.grad(lambda x, y: x * 1, argnums=(0, 1))(2.0, 3.0),
    "grad of both kinds": lambda l, j: l.value_and_grad(lambda x, y: x * y, argnums=(0, 1))(j.bfloat16(2), 3.0),
    "grad in jit": lambda l, j: l.jit(l.grad(lambda x: j.exp(x) * 2 + x**2))(2.0),
    "grad of identity in jit": lambda l, j: l.jit(lambda x: l.grad(lambda y: y)(x).astype(j.int32))(3.0),
    "value_and_grad of a sum in jit": lambda l, j: l.jit(
        lambda x: [y.reshape(1) for y in l.value_and_grad(lambda y: y + 1)(x)]
    )(3.0),
    "grad of a first power in jit": lambda l, j: l.jit(lambda x: l.grad(lambda y: y**1)(x).at[()].add(1))(3.0),
    "grad of identity in vmap": lambda l, j: l.vmap(lambda x: l.grad(lambda y: y)(3.0).reshape(1) * x)(X),
    "grad of identity in grad": lambda l, j: l.grad(lambda x: l.grad(lambda y: y)(x).reshape(1)[0] * x)(3.0),
    "grad of identity, half in jit": lambda l, j: l.jit(lambda x: l.grad(lambda y: y)(x).at[()].mul(x))(j.bfloat16(3)),
    "complex grad in jit": lambda l, j: l.jit(lambda x: l.grad(lambda y: y, holomorphic=True)(x).conj().real)(3j),
    "rule": lambda l, j: l.grad(_with_a_rule(l))(3.0),
    "rule in jit": lambda l, j: l.jit(l.grad(_with_a_rule(l)))(3.0),
    "rule in vmap": lambda l, j: l.vmap(lambda x: l.grad(_with_a_rule(l))(j.float32(3)) * x)(X),
    "grad of grad": lambda l, j: l.grad(l.grad(lambda x: x**3))(2.0),
    "jvp": lambda l, j: l.jvp(lambda x: x * x, (2.0,), (1.0,)),
    "jvp of both kinds": lambda l, j: l.jvp(lambda x, y: x * y, (j.bfloat16(2), 3.0), (j.bfloat16(2), 3.0)),
    "jvp in jit": lambda l, j: l.jit(lambda x: l.jvp(lambda x: x * x, (x,), (x,)))(2.0),
    "vjp": lambda l, j: l.vjp(lambda x: x * x, 2.0)[1](1.0),
    "linearize": lambda l, j: (lambda out, f: (out, f(1.0)))(*l.linearize(lambda x: x * x * 3, 2.0)),
    "grad of a scan": lambda l, j: l.grad(
        lambda x: l.lax.scan(lambda c, _: (c * c, None), x, None, length=2)[0]
    )(2.0),
    "hessian": lambda l, j: l.hessian(lambda x: x**3)(2.0),
    "fori_loop": lambda l, j: l.lax.fori_loop(0, 3, lambda i, c: c + i, 0),
    "fori_loop, float": lambda l, j: l.lax.fori_loop(0, 3, lambda i, c: c + i, 0.0),
    "fori_loop, index": lambda l, j: l.lax.fori_loop(0, 3, lambda i, c: i, j.int32(0)),
    "fori_loop, small ints": lambda l, j: l.lax.fori_loop(0, 3, lambda i, c: c + i, j.int8(1)),
    "fori_loop, small bounds": lambda l, j: l.lax.fori_loop(np.int8(0), np.int8(3), lambda i, c: c + i, j.int16(1)),
    "fori_loop, traced bound": lambda l, j: l.jit(
        lambda n: l.lax.fori_loop(0, n, lambda i, c: c + i, j.int8(1))
    )(3),
    "fori_loop, strong lower bound": lambda l, j: l.jit(
        lambda n: l.lax.fori_loop(n, 3, lambda i, c: (c[0] + i, i * 2), (j.int32(1), 0))
    )(j.int32(1)),
}  # fmt: skip


def described(library, result):
    leaves = library.tree.leaves(result)
    assert all(isinstance(x, library.Array) for x in leaves)
    return [(np.asarray(x, np.float64).tolist(), str(x.dtype), x.weak_type) for x in leaves]


@pytest.mark.parametrize("name", PROGRAMS)
def test_against_jax(name):
    program = PROGRAMS[name]
    ours = described(meshrt, program(meshrt, meshrt.numpy))
    theirs = described(jax, program(jax, jax.numpy))
    for a, b in zip(ours, theirs, strict=True):
        assert a[1:] == b[1:]
        np.testing.assert_allclose(a[0], b[0], rtol=1e-6)


@pytest.mark.parametrize("bounds", ["int int", "array int", "int array", "numpy int", "array array", "weak weak"])
@pytest.mark.parametrize("jitted", [False, True])
def test_the_index_of_fori_loop_is_as_weak_as_in_jax(bounds, jitted):
    def program(l, j):
        make = {"int": int, "array": j.int32, "numpy": np.int32, "weak": j.asarray}
        low, high = (make[kind](n) for kind, n in zip(bounds.split(), (0, 3)))
        seen = []
        run = lambda low, high: l.lax.fori_loop(
            low, high, lambda i, c: (seen.append((i.dtype, i.weak_type)), c)[1], 0.0
        )
        (l.jit(run) if jitted else run)(low, high)
        return seen[0]

    assert program(meshrt, meshrt.numpy) == program(jax, jax.numpy)
