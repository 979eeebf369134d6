"""Traces within traces: each transformation sees its own tracers only, and values that it has not got are constants."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, lax
from tests.meshrt.beside import assert_alike

XS, YS = np.array([1.0, 2.0, 3.0], np.float32), np.array([10.0, 20.0], np.float32)


def check(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, meshrt.jit], ids=["eager", "jit"])
def test_maps_within_maps(wrap):
    inner = lambda f: lambda x: meshrt.vmap(lambda y: f(x, y))(YS)
    run = lambda f: wrap(meshrt.vmap(inner(f)))(XS)
    check(run(lambda x, y: x * y), XS[:, None] * YS)
    check(run(lambda x, y: x), np.repeat(XS[:, None], 2, 1))
    check(run(lambda x, y: y), np.repeat(YS[None], 3, 0))
    check(run(lambda x, y: jnp.sin(x)), np.repeat(np.sin(XS)[:, None], 2, 1))
    check(run(lambda x, y: jnp.float32(7)), np.full((3, 2), 7))
    check(wrap(meshrt.vmap(lambda x: meshrt.vmap(lambda y: x + y, out_axes=0)(YS), out_axes=1))(XS), XS + YS[:, None])


def test_derivatives_within_derivatives():
    """What one differentiates is a constant of the other (no confusion of perturbations)."""
    slope = lambda f, at: meshrt.jvp(f, (at,), (jnp.float32(1),))[1]
    check(slope(lambda x: x * slope(lambda y: x + y, jnp.float32(5)), jnp.float32(3)), 1.0)
    check(slope(lambda x: x * slope(lambda y: x * y, jnp.float32(5)), jnp.float32(3)), 6.0)
    check(slope(lambda x: slope(lambda y: x, jnp.float32(5)), jnp.float32(3)), 0.0)
    check(meshrt.grad(lambda x: x * meshrt.grad(lambda y: x * y * y)(x))(jnp.float32(3)), 3 * 2 * 9.0)
    check(slope(meshrt.grad(lambda x: x**3), jnp.float32(2)), 12.0)
    check(meshrt.grad(lambda x: slope(lambda y: y**3, x))(jnp.float32(2)), 12.0)


def test_results_that_do_not_depend_have_no_derivative():
    primals, tangents = meshrt.jvp(lambda x: (x * 2, 1.5, XS, np.int32(3)), (jnp.float32(4),), (jnp.float32(1),))
    for found, expected in zip(primals, (8.0, 1.5, XS, 3)):
        check(found, expected)
    for found, expected in zip(tangents[:3], (2.0, 0.0, np.zeros(3))):
        check(found, expected)
    value, pull = meshrt.vjp(lambda x, y: (y * 3, 1.5), jnp.float32(4), jnp.float32(5))
    check(value[0], 15.0)
    check(pull((jnp.float32(1), jnp.float32(1))), (0.0, 3.0))


def test_a_derivative_by_a_mapped_value():
    per = meshrt.vmap(meshrt.grad(lambda x, y: x * x * y), in_axes=(0, None))
    check(per(XS, jnp.float32(5)), 10 * XS)
    check(meshrt.grad(lambda s: meshrt.vmap(lambda x: x * s)(XS).sum())(jnp.float32(2)), 6.0)
    check(meshrt.jacfwd(lambda x: x * XS.sum())(jnp.asarray(XS)), np.eye(3) * 6)


def test_a_linear_function_is_run_backwards():
    """Operands that are not linear, two results of one primitive, a value used twice and one not at all."""
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    pull = meshrt.linear_transpose(lambda v: (matrix @ v + 2 * (matrix @ v), v[:1]), XS)
    (found,) = pull((YS, np.ones(1, np.float32)))
    check(found, 3 * matrix.T @ YS + np.array([1, 0, 0]))
    (found,) = meshrt.linear_transpose(lambda v: (v[:2], 0 * v[2:]), XS)((YS, np.ones(1, np.float32)))
    check(found, [10, 20, 0])
    loop = lambda v: lax.fori_loop(0, 3, lambda _, u: 2 * u, v)
    check(meshrt.vjp(loop, jnp.asarray(XS))[1](jnp.asarray(XS))[0], 8 * XS)


def _squares_along(library, x):
    """A window's combination that has forward mode only: it computes value and tangent together."""
    return library.lax.reduce_window(x, np.float32(0), lambda a, b: a + b * b, (2,), (1,), "VALID")


JOINT = {
    "jvp": lambda l: l.jvp(lambda x: _squares_along(l, x), (XS,), (XS,)),
    "linearize": lambda l: l.linearize(lambda x: _squares_along(l, x), XS)[0],
    "vjp": lambda l: l.vjp(lambda x: _squares_along(l, x), XS)[0],
    "grad": lambda l: l.grad(lambda x: _squares_along(l, x).sum())(XS),
    "grad of a compiled function": lambda l: l.grad(lambda x: l.jit(lambda x: _squares_along(l, x))(x).sum())(XS),
    "grad of a branch": lambda l: l.grad(
        lambda x: l.lax.cond(x[0] > 0, lambda x: _squares_along(l, x), lambda x: x[1:], x).sum()
    )(XS),
}


@pytest.mark.parametrize("name", JOINT)
def test_results_that_are_computed_with_their_tangents(name):
    assert_alike(JOINT[name])


def test_such_a_result_is_refused_with_the_operation():
    with pytest.raises(errors.DifferentiationError, match=r"reduce_window at .*test_traces.py.* forward mode only"):
        meshrt.linearize(lambda x: _squares_along(meshrt, x) * 2, XS)
