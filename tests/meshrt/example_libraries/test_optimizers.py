"""Optimizers of meshrt.example_libraries: states and parameters are JAX's, step by step."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.example_libraries import optimizers as jax_optimizers

import meshrt
from meshrt.example_libraries import optimizers

LIBRARIES = ((jax, jax_optimizers), (meshrt, optimizers))
PARAMS = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), "b": np.array([0.5, -2], np.float32)}


@pytest.mark.parametrize("rate", [0.1, lambda i: 0.1 / (i + 1)])
@pytest.mark.parametrize(
    "make",
    [
        lambda o, r: o.sgd(r),
        lambda o, r: o.momentum(r, mass=0.9),
        lambda o, r: o.nesterov(r, mass=0.9),
        lambda o, r: o.adagrad(r),
        lambda o, r: o.rmsprop(r),
        lambda o, r: o.rmsprop_momentum(r),
        lambda o, r: o.adam(r),
        lambda o, r: o.adamax(r),
        lambda o, r: o.sm3(r),
    ],
)
def test_steps(make, rate):
    results = []
    for library, module in LIBRARIES:
        init, update, get_params = make(module, rate)
        state = init(PARAMS)
        for i in range(3):
            state = update(i, library.grad(lambda p: sum((x**3).sum() for x in p.values()))(get_params(state)), state)
        again = module.pack_optimizer_state(module.unpack_optimizer_state(state))
        assert library.tree.structure(again) == library.tree.structure(state)
        results.append((library.tree.leaves(state), get_params(again)))
    theirs, ours = results
    for a, b in zip(theirs[0], ours[0], strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)
    for name, value in theirs[1].items():
        np.testing.assert_allclose(ours[1][name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: o.constant(0.5),
        lambda o: o.exponential_decay(0.5, 3, 0.9),
        lambda o: o.inverse_time_decay(0.5, 3, 0.9),
        lambda o: o.inverse_time_decay(0.5, 3, 0.9, staircase=True),
        lambda o: o.polynomial_decay(0.5, 3, 0.01, power=2.0),
        lambda o: o.piecewise_constant([2, 4], [0.5, 0.25, 0.125]),
        lambda o: o.make_schedule(0.5),
    ],
)
def test_schedules(make):
    theirs, ours = (make(module) for _, module in LIBRARIES)
    for i in range(6):
        np.testing.assert_allclose(ours(i), theirs(i), rtol=1e-6)


def test_norms():
    for max_norm in (0.1, 100.0):
        theirs, ours = (module.clip_grads(PARAMS, max_norm) for _, module in LIBRARIES)
        np.testing.assert_allclose(ours["w"], theirs["w"], rtol=1e-6)


def test_a_state_is_a_pytree_that_loops_carry():
    init, update, get_params = optimizers.adam(0.1)
    step = lambda i, s: update(i, meshrt.grad(lambda p: (p["w"] ** 2).sum() + p["b"].sum())(get_params(s)), s)
    looped = get_params(meshrt.jit(lambda s: meshrt.lax.fori_loop(0, 3, step, s))(init(PARAMS)))
    state = init(PARAMS)
    for i in range(3):
        state = step(i, state)
    np.testing.assert_allclose(looped["w"], get_params(state)["w"], rtol=1e-4)


def test_refusals():
    init, update, _ = optimizers.sgd(0.1)
    with pytest.raises(TypeError, match="did not match the parameter tree"):
        update(0, {"w": PARAMS["w"]}, init(PARAMS))
    with pytest.raises(TypeError, match="did not match its input structure"):
        growing = optimizers.optimizer(lambda: (lambda x: x, lambda i, g, s: (s, s), lambda s: s))()
        growing.update_fn(0, PARAMS, growing.init_fn(PARAMS))
    with pytest.raises(TypeError):
        optimizers.make_schedule([0.1, 0.2])
    with pytest.raises(ValueError, match="boundaries length must be one shorter"):
        optimizers.piecewise_constant([1], [0.5])
