"""odeint, beside JAX's, and its derivatives beside those of known solutions."""

import jax.experimental.ode  # noqa: F401
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt.experimental.ode import odeint
from tests.meshrt.beside import assert_alike

TIMES = np.linspace(0, 1.5, 4).astype(np.float32)


def of(lib):
    import importlib

    return importlib.import_module(f"{lib.__name__}.experimental.ode").odeint


def test_solutions_and_gradients_are_jaxs():
    def program(lib):
        def pendulum(y, t, damping, pull):
            angle, speed = y
            return [speed, -damping * speed - pull * lib.numpy.sin(angle)]

        def total(start, times, *args):
            return sum(x.sum() for x in of(lib)(pendulum, list(start), times, *args, rtol=1e-5, atol=1e-5))

        args = np.float32(0.25), np.float32(9.8)
        start, times = (lib.numpy.float32(3.0), lib.numpy.float32(0)), lib.numpy.asarray(TIMES)
        rotating = of(lib)(lambda y, t: 1j * y, lib.numpy.array([1 + 0j]), times)
        return [
            total(start, times, *args),
            lib.grad(total, argnums=(0, 1, 2, 3))(start, times, *args),
            rotating,
        ]

    assert_alike(program, 2e-3)


def test_derivatives_are_those_of_the_solution():
    with meshrt.enable_x64(True):
        rates, times = np.array([0.5, -1.0]), TIMES.astype(np.float64)

        def final(rates):  # closed over, under vmap
            return meshrt.vmap(lambda r: odeint(lambda y, t: r * y * t, jnp.ones(()), times)[-1])(rates)

        end = times[-1] ** 2 / 2
        np.testing.assert_allclose(np.asarray(final(rates)), np.exp(rates * end), 1e-6)
        slope = meshrt.grad(lambda r: final(r).sum())(rates)
        np.testing.assert_allclose(np.asarray(slope), end * np.exp(rates * end), 1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda lib: of(lib)(lambda y, t: y, lib.numpy.ones(2), lib.numpy.arange(3)),
        lambda lib: of(lib)(lambda y, t, a: y, lib.numpy.ones(2), lib.numpy.arange(3.0), "x"),
        lambda lib: lib.jvp(lambda y: of(lib)(lambda y, t: y, y, lib.numpy.arange(2.0)), (1.0,), (1.0,)),
    ],
)
def test_refusals(call):
    assert_alike(call)


def test_steps_have_bounds():
    calls = []

    def field(y, t):
        meshrt.debug.callback(lambda t: calls.append(t), t)
        return jnp.ones_like(y)

    for bound in (0.05, np.inf):
        calls.clear()
        np.testing.assert_allclose(np.asarray(odeint(field, jnp.zeros(1), TIMES[:2], hmax=bound))[-1], TIMES[1], 1e-5)
        assert (len(calls) > 60) == (bound < 1)
