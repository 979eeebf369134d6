"""Programs built from functions made on the fly are forgotten with them."""

import gc
import weakref

import numpy as np

import meshrt
import meshrt.numpy as jnp
from meshrt import dispatch, heuristics
from meshrt.core.jaxpr import Jaxpr

W, X = np.ones((4, 3, 3), np.float32), np.ones(3, np.float32)


def alive():
    gc.collect()
    return sum(isinstance(o, Jaxpr) for o in gc.get_objects())


def train_step():
    @meshrt.custom_vjp
    def g(x):
        return jnp.sin(x)

    g.defvjp(lambda x: (g(x), x), lambda saved, ct: (ct * jnp.cos(saved),))

    def layer(h, w):
        h = meshrt.lax.cond(jnp.sum(h) > 0, lambda h: g(h @ w), lambda h: h, h)
        return h, meshrt.lax.while_loop(lambda s: s < 3, lambda s: s + 1, 0)

    def loss(w, x):
        return jnp.sum(meshrt.lax.scan(meshrt.checkpoint(layer), x, w)[0])

    step = meshrt.jit(meshrt.vmap(meshrt.grad(loss), (None, 0)))
    step.trace(W, np.ones((2, 3), np.float32)).lower()
    return weakref.ref(layer)


def test_staged_programs_die_with_their_functions():
    train_step()
    before = alive()
    refs = [train_step() for _ in range(3)]
    assert alive() <= before
    assert all(r() is None for r in refs)


def test_eager_loops_over_new_functions_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(heuristics, "KEPT_OVER_JAXPRS", 2)
    dispatch.clear()
    for k in range(4):
        out, _ = meshrt.lax.scan(lambda c, x: (c + k * x, None), jnp.zeros(()), X)
        assert float(out) == 3.0 * k
    assert len(dispatch._over_jaxprs) <= 2
