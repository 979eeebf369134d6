"""Cotangents of arrays and references of which loops read parts: added up in place, and what JAX says."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import meshrt

N = 1040


def in_calls(lib, x, i, n):
    return lib.jit(lambda i: lib.numpy.sin(x[i]) * x[(i + 3) % n])(i)


def in_branches(lib, x, i, n):
    return lib.lax.cond(i % 2 == 0, lambda: lib.numpy.sin(x[i]), lambda: x[i] * x[(5 * i) % n])


def in_a_choice(lib, x, i, n):
    return lib.lax.switch(i % 3, [lambda: x[i], lambda: lib.numpy.float32(2.0), lambda: x[i - 1] ** 2])


def in_loops(lib, x, i, n):
    return lib.lax.fori_loop(0, 2, lambda j, c: c * lib.numpy.cos(x[(i + j) % n]) + x[j], x[i])


def in_loops_of_branches(lib, x, i, n):
    turn = lambda c, j: (c + lib.lax.cond(j > 0, lambda: x[i] * c, lambda: x[(i + j) % n]), None)
    return lib.lax.scan(turn, lib.numpy.float32(0.1), lib.numpy.arange(3))[0]


def by_slices(lib, x, i, n):
    part = x[(i + lib.numpy.arange(2)) % n]
    return part[0] * lib.numpy.sin(part[1]) + x[i]


BODIES = [in_calls, in_branches, in_a_choice, in_loops, in_loops_of_branches, by_slices]


def over_parts(lib, body, n, of_ref=False):
    def f(x):
        read = lib.new_ref(x) if of_ref else x
        turn = lambda c, i: (c * 0.5 + body(lib, read, i, n), None)
        return lib.lax.scan(turn, lib.numpy.float32(0), lib.numpy.arange(n))[0]

    return f


def values(n):
    return np.random.RandomState(n).rand(n).astype(np.float32)


@pytest.mark.parametrize("body", BODIES)
def test_gradients_are_those_of_jax(body):
    x = values(7)
    wanted = jax.jit(jax.grad(over_parts(jax, body, 7)))(x)
    np.testing.assert_allclose(meshrt.jit(meshrt.grad(over_parts(meshrt, body, 7)))(x), wanted, rtol=1e-5)
    np.testing.assert_allclose(meshrt.jit(meshrt.grad(over_parts(meshrt, body, 7, of_ref=True)))(x), wanted, rtol=1e-5)


@pytest.mark.parametrize("body", [in_calls, in_loops_of_branches])
def test_second_derivatives_and_members(body):
    x = values(5)
    again = lambda lib: lib.jit(lib.grad(lambda x: lib.grad(over_parts(lib, body, 5))(x)[1]))
    np.testing.assert_allclose(again(meshrt)(x), again(jax)(x), rtol=1e-4, atol=1e-5)
    batch = np.stack([x, 2 * x, -x])
    each = lambda lib: lib.jit(lib.vmap(lib.grad(over_parts(lib, body, 5))))
    np.testing.assert_allclose(each(meshrt)(batch), each(jax)(batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("of_ref", [False, True], ids=["array", "ref"])
@pytest.mark.parametrize("body", BODIES)
def test_no_turn_adds_whole_arrays(body, of_ref):
    f = over_parts(meshrt, body, N, of_ref)
    text = meshrt.jit(meshrt.grad(f)).lower(values(N)).compile().as_text()
    assert not [line for line in text.splitlines() if f" = f32[{N}]" in line and " add(" in line]


def test_what_is_read_whole_too():
    """Summands of all elements beside those of parts, and several arrays, of which one is carried already."""

    def f(lib, x, w):
        def turn(carry, i):
            c, y = carry
            got = lib.lax.cond(i > 2, lambda: w[i] * x[0], lambda: (w * y).sum())
            return (c + got + (w @ w) * x[i], y + w[i]), y[0] + x[i]

        (c, y), ys = lib.lax.scan(turn, (lib.numpy.float32(0), x), lib.numpy.arange(5))
        return c + (ys * y).sum()

    x, w = values(5), values(5) + 1
    found = meshrt.jit(meshrt.grad(lambda x, w: f(meshrt, x, w), (0, 1)))(x, w)
    for ours, wanted in zip(found, jax.grad(lambda x, w: f(jax, x, w), (0, 1))(x, w)):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5)


def test_arrays_of_numpys_among_the_operands_of_what_reads_parts():
    """They are compared element by element, which says nothing of where an operand stands."""
    c, x = np.ones((3, 3), np.float32), values(5)

    def pulled(lib):
        of_parts = lib.jit(lambda c, x: x[1] * c[0] * x[2] + (x[3] * c).sum())
        return lib.vjp(lambda x: (x, of_parts(c, x)), x)[1]((x, np.ones(3, np.float32)))[0]

    np.testing.assert_allclose(pulled(meshrt), pulled(jax), rtol=1e-5)
