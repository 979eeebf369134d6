"""Every program's values and derivatives, plain and batched, against JAX's; Jaxprs checked; finite differences."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshrt
import meshrt.numpy as mnp
from meshrt.core.checking import check

from .programs import FORWARD_ONLY, PROGRAMS, W, X

VJP_ONLY = {"custom_vjp_in_loop"}
NAMES = sorted(PROGRAMS)
# Those whose second derivatives and all batch positions the quick tests look at; the slow ones look at all.
DEEP = {"scan_layers", "scan_constants", "switch_three", "custom_vjp_in_loop", "checkpointed_layers"}
QUICK_TO_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def jit(jx, f):
    return jx.jit(f, compiler_options=QUICK_TO_COMPILE)


def names():
    """Every program, first to the depth that suits it, then (slow) the rest of the way."""
    for n in NAMES:
        yield pytest.param(n, n in DEEP, id=n)
    for n in NAMES:
        if n not in DEEP:
            yield pytest.param(n, True, id=f"{n}-deep", marks=pytest.mark.slow)


def total(tree, np_, leaves):
    return sum(np_.sum(leaf * np_.cos(leaf)) for leaf in leaves(tree))


def derivatives(jx, np_, name, deep):
    """A function that returns all that can be computed from a program: values, jvp, gradient, second derivatives."""
    f = PROGRAMS[name](jx, np_)
    leaves = jx.tree.leaves

    def everything(w, x):
        loss = lambda w, x: total(f(w, x), np_, leaves)
        tw, tx = np_.cos(w), np_.sin(x)
        out = {"value": f(w, x)}
        if name not in VJP_ONLY:
            out["jvp"] = jx.jvp(f, (w, x), (tw, tx))
        if deep and name not in VJP_ONLY:
            out["jvp of jvp"] = jx.jvp(lambda w: jx.jvp(lambda w: f(w, x), (w,), (tw,))[1], (w,), (tw,))[1]
        if name not in FORWARD_ONLY:
            out["grad"] = jx.value_and_grad(loss, (0, 1))(w, x)
        if name not in FORWARD_ONLY and deep:
            gradient = lambda w: total(jx.grad(loss, (0, 1))(w, x), np_, leaves)
            out["grad of grad"] = jx.grad(gradient)(w)
            out["linearize"] = jx.linearize(f, w, x)[1](tw, tx) if name not in VJP_ONLY else 0.0
            if name not in VJP_ONLY:
                out["jvp of grad"] = jx.jvp(jx.grad(loss), (w, x), (tw, tx))[1]
                out["grad of jvp"] = jx.grad(lambda x: total(jx.jvp(lambda w: f(w, x), (w,), (tw,))[1], np_, leaves))(x)
        return out

    return everything


def batched(jx, np_, name, deep):
    """The program and its gradient mapped over every choice of batched arguments and positions."""
    f = PROGRAMS[name](jx, np_)

    def everything(w, x):
        out = []
        for wd, xd, od in [(2, 0, -1), (0, None, 0), (None, 1, 0)][: 3 if deep else 1]:
            ws = w if wd is None else np_.stack([w, w * 0.5, -w], wd)
            xs = x if xd is None else np_.stack([x, x * 0.5, -x], xd)
            out.append(jx.vmap(f, (wd, xd), od if name not in SCALARS else 0)(ws, xs))
            if name not in FORWARD_ONLY:
                loss = lambda w, x: total(f(w, x), np_, jx.tree.leaves)
                out.append(jx.vmap(jx.grad(loss, (0, 1)), (wd, xd))(ws, xs))
                out.append(jx.grad(lambda w, x: np_.sum(jx.vmap(loss, (wd, xd))(w, x)), (0, 1))(ws, xs))
        return out

    return everything


# Programs with scalar results, which have no last dimension to put the batch behind.
SCALARS = {"cond_true", "scan_without_inputs"}


def same(mine, theirs, tolerance=3e-4):
    a, b = meshrt.tree.leaves(mine), jax.tree.leaves(theirs)
    assert len(a) == len(b)
    assert [str(k) for k, _ in jax.tree_util.tree_leaves_with_path(theirs)] == [
        str(k) for k, _ in meshrt.tree_util.tree_leaves_with_path(mine)
    ]
    for x, y in zip(a, b):
        assert x.dtype == y.dtype and x.shape == y.shape
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=tolerance, atol=tolerance)


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("name", "deep"), list(names()))
def test_derivatives(name, deep):
    mine, theirs = derivatives(meshrt, mnp, name, deep), derivatives(jax, jnp, name, deep)
    check(meshrt.make_jaxpr(mine)(W, X))
    same(jit(meshrt, mine)(W, X), jit(jax, theirs)(W, X))


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("name", "deep"), list(names()))
def test_batching(name, deep):
    mine, theirs = batched(meshrt, mnp, name, deep), batched(jax, jnp, name, deep)
    check(meshrt.make_jaxpr(mine)(W, X))
    same(jit(meshrt, mine)(W, X), jit(jax, theirs)(W, X))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", NAMES)
def test_finite_differences(name):
    f = PROGRAMS[name](meshrt, mnp)
    plain = lambda w, x: total(f(w, x), mnp, meshrt.tree.leaves)
    loss = jit(meshrt, plain)
    tw, tx = np.cos(W) * 0.3, np.sin(X)
    eps = 2e-3
    slope = (float(loss(W + eps * tw, X + eps * tx)) - float(loss(W - eps * tw, X - eps * tx))) / (2 * eps)
    if name not in VJP_ONLY:
        _, forward = jit(meshrt, lambda w, x: meshrt.jvp(plain, (w, x), (tw, tx)))(W, X)
        np.testing.assert_allclose(float(forward), slope, rtol=2e-2, atol=2e-2)
    if name not in FORWARD_ONLY:
        gw, gx = jit(meshrt, meshrt.grad(plain, (0, 1)))(W, X)
        np.testing.assert_allclose(np.vdot(gw, tw) + np.vdot(gx, tx), slope, rtol=2e-2, atol=2e-2)


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["scan_layers", "switch_three", "while_loop"])
def test_eager(name):
    same(PROGRAMS[name](meshrt, mnp)(W, X), PROGRAMS[name](jax, jnp)(W, X))


def test_batched_predicates():
    """Each member of the batch takes its own branch and its own number of iterations."""

    def programs(jx, np_):
        def choose(i, x):
            return jx.lax.switch(i, [lambda x: np_.sin(x) * 2, lambda x: x * x, lambda x: np_.exp(x)], x)

        def count(n, x):
            return jx.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * x), (0, x))

        def flip(p, x):
            return jx.lax.cond(p, lambda x: (np_.sin(x), 1), lambda x: (x * 2, 2), x)

        i, n, p = np.array([2, 0, 1]), np.array([3, 0, 5]), np.array([True, False, True])
        xs = np.arange(6, dtype=np.float32).reshape(3, 2)
        out = []
        for xd in (0, None):
            arg = xs if xd == 0 else xs[1]
            out.append(jx.vmap(choose, (0, xd))(i, arg))
            out.append(jx.vmap(count, (0, xd))(n, arg))
            out.append(jx.vmap(flip, (0, xd))(p, arg))
            out.append(jx.vmap(jx.grad(lambda x, i: np_.sum(choose(i, x))), (xd, 0))(arg, i))
            out.append(jx.vmap(lambda n, x: jx.jvp(lambda x: count(n, x)[1], (x,), (x,)), (0, xd))(n, arg))
        return out

    same(programs(meshrt, mnp), programs(jax, jnp))


def test_unroll_gives_the_same_loop():
    f = lambda unroll, reverse: jit(
        meshrt, lambda w, x: meshrt.lax.scan(lambda h, w: (mnp.sin(h @ w), h), x, w, unroll=unroll, reverse=reverse)
    )
    for reverse in (False, True):
        want = jax.lax.scan(lambda h, w: (jnp.sin(h @ w), h), X, W, reverse=reverse)
        for unroll in (1, 2, 3, 4, 9, False, True):
            same(f(unroll, reverse)(W, X), want)


def test_random_keys_are_carried_and_stacked():
    def f(jx, np_):
        def step(key, k):
            key, sub = jx.random.split(key)
            return key, (jx.random.uniform(sub, (2,)), sub, jx.random.uniform(k))

        keys = jx.random.split(jx.random.key(3), 4)
        key, (u, subs, v) = jx.lax.scan(step, jx.random.key(0), keys, unroll=2)
        chosen = jx.lax.cond(np_.sum(u) > 0, lambda: key, lambda: subs[0])
        looped = jx.lax.while_loop(lambda c: c[1] < 3, lambda c: (jx.random.split(c[0])[0], c[1] + 1), (chosen, 0))
        return u, v, jx.random.key_data(subs), jx.random.key_data(looped[0])

    same(meshrt.jit(lambda: f(meshrt, mnp))(), f(jax, jnp))


def test_every_pair_of_batched_arguments():
    def programs(jx, np_):
        f = PROGRAMS["scan_constants"](jx, np_)
        out = []
        for wd, xd in itertools.product((None, 0, 1, 2, 3), (None, 0, 1)):
            if wd is None and xd is None:
                continue
            ws = W if wd is None else np.stack([W, W * 0.5], wd)
            xs = X if xd is None else np.stack([X, X * 0.5], xd)
            out.append(jx.vmap(f, (wd, xd))(ws, xs))
        return out

    same(jit(meshrt, lambda: programs(meshrt, mnp))(), jit(jax, lambda: programs(jax, jnp))())
