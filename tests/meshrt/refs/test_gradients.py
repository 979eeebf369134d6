"""Cotangents that go to references, and derivatives of functions of references."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt.ad import DidntWant, DontWant, GradRef, GradValue
from tests.meshrt.beside import assert_alike


def quadratic(w, x):
    return ((w @ x) ** 2).sum()


W, XS = np.arange(4.0, dtype=np.float32).reshape(2, 2), np.arange(6.0, dtype=np.float32).reshape(3, 2)


def test_gradients_accumulate_in_a_loop():
    def program(jax):
        total = jax.new_ref(np.zeros((2, 2), np.float32))

        @jax.jit
        def run(total, w, xs):
            def body(_, x):
                _, pull = jax.vjp(lambda w: quadratic(w, x), w)
                pull.with_refs(total)(np.float32(1))
                return None, None

            jax.lax.scan(body, None, xs)

        run(total, W, XS)
        return total[...], sum(jax.grad(quadratic)(W, x) for x in XS)

    assert_alike(program)


def test_each_cotangent_goes_where_it_is_wanted():
    total = meshrt.new_ref(jnp.ones((2, 2)))
    _, pull = meshrt.vjp(quadratic, W, XS[1])
    w, x = meshrt.grad(quadratic, (0, 1))(W, XS[1])
    assert pull.with_refs(total, DontWant())(1.0) == (GradRef(), DidntWant())
    np.testing.assert_allclose(total[...], 1 + w, rtol=1e-6)
    none, value = pull.with_refs(DontWant(), GradValue())(1.0)
    assert none == DidntWant()
    np.testing.assert_allclose(value, x, rtol=1e-6)


@pytest.mark.parametrize("wanted, dots", [((1, 1), 2), ((1, 0), 1), ((0, 1), 1), ((0, 0), 0)])
def test_nothing_is_computed_for_a_cotangent_that_nobody_wants(wanted, dots):
    def program(jax):
        targets = [jax.ad.GradValue() if w else jax.ad.DontWant() for w in wanted]
        _, pull = jax.vjp(lambda w, x: (w * 2) @ x, jax.numpy.ones((4, 4)), jax.numpy.ones(4))
        return str(jax.make_jaxpr(lambda: pull.with_refs(*targets)(jax.numpy.ones(4)))()).count("dot_general")

    assert program(meshrt) == dots <= program(jax)


def test_a_pullback_that_left_a_jitted_function():
    forward = meshrt.jit(lambda w: meshrt.vjp(quadratic, w, XS[1])[1])
    total = meshrt.new_ref(jnp.zeros((2, 2)))
    meshrt.jit(lambda pull, total: pull.with_refs(total, DontWant())(1.0))(forward(W), total)
    np.testing.assert_allclose(total[...], meshrt.grad(quadratic)(W, XS[1]), rtol=1e-6)


def test_functions_of_references():
    """Reverse mode: the cotangent of what a reference holds in the end becomes that of what it held at first."""

    def f(r, x):
        r[...] = r[...] * x * x
        return r[...] * x

    r, ct = meshrt.new_ref(2.0), meshrt.new_ref(10.0)
    out, pull = meshrt.vjp(f, r, 3.0)
    assert (out, r[...]) == (54.0, 18.0)
    assert pull.with_refs(ct, GradValue())(1.0) == (GradRef(), 3 * 2 * 9.0 + 10 * 2 * 2 * 3.0)
    assert ct[...] == 27 + 10 * 9
    assert meshrt.vjp(f, meshrt.new_ref(2.0), 3.0)[1](1.0) == (27.0, 54.0)


def test_forward_mode_of_functions_of_references():
    def program(jax):
        def f(r, x):
            r[...] = r[...] * x
            return r[...] + x

        r, t = jax.new_ref(2.0), jax.new_ref(1.0)
        return jax.jvp(f, (r, 3.0), (t, 1.0)), r[...], t[...]

    assert_alike(program)


def test_captured_references_are_constants():
    def program(jax):
        r = jax.new_ref(2.0)
        f = lambda x: r[...] * x
        kept = jax.new_ref(0.0)

        def g(x):
            kept[...] = jax.lax.stop_gradient(x * x)
            return x * r[...]

        return jax.grad(f)(3.0), jax.vmap(f)(np.arange(3.0, dtype=np.float32)), jax.grad(jax.jit(g))(3.0), kept[...]

    assert_alike(program)


@pytest.mark.parametrize("jit", [False, True])
def test_what_is_captured_takes_no_tangents(jit):
    def program(jax):
        r = jax.new_ref(0.0)
        write = lambda x: r.__setitem__(..., x)
        write = jax.jit(write) if jit else write
        jax.grad(lambda x: (write(x), x)[1])(1.0)

    with pytest.raises(ValueError, match=r"non-differentiated array reference .*Move the array reference"):
        program(meshrt)


def test_a_reference_whose_writes_have_no_derivative():
    def program(jax):
        r = jax.ref.new_ref(0.0, kind="no_grad_no_remat")
        return jax.grad(lambda x: (r.__setitem__(..., x * x), x * x)[1])(3.0), r[...]

    assert_alike(program)


def test_checkpoint_writes_once():
    """JAX repeats the write in the backward pass, and derives at what is read then."""
    r = meshrt.new_ref(2.0)

    @meshrt.checkpoint
    def f(x):
        r[...] += 1.0
        return jnp.sin(r[...] * x)

    np.testing.assert_allclose(meshrt.grad(f)(3.0), 3 * np.cos(9.0), rtol=1e-5)
    assert r[...] == 3


def test_wrong_targets_are_refused():
    _, pull = meshrt.vjp(quadratic, W, XS[0])
    with pytest.raises(meshrt.errors.TreeError, match="a target for each argument"):
        pull.with_refs(GradValue())(1.0)
    with pytest.raises(TypeError, match="target 1 of quadratic"):
        pull.with_refs(GradValue(), 1.0)(1.0)
    with pytest.raises(ValueError, match="cannot be added"):
        pull.with_refs(GradValue(), meshrt.new_ref(jnp.zeros(3)))(1.0)
    with pytest.raises(ValueError, match="with_refs"):
        meshrt.grad(lambda r: r[...] ** 2)(meshrt.new_ref(3.0))
