"""Rules of custom_jvp whose work on tangents stands in the Jaxprs of calls, loops and branches, beside JAX's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshrt
from meshrt import errors
from tests.meshrt.beside import assert_alike

Body = Callable[[Any, Any], Any]  # takes the library and a tangent


def with_rule(library: Any, body: Body) -> Any:
    """The function 2x whose derivative is said to be `body`."""

    @library.custom_jvp
    def doubled(x: Any) -> Any:
        return x * 2.0

    @doubled.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        return doubled(primals[0]), body(library, tangents[0])

    return doubled


NONLINEAR: dict[str, Body] = {
    "jit": lambda m, t: m.jit(lambda s: s * s)(t),
    "jit in jit": lambda m, t: m.jit(lambda s: m.jit(m.numpy.sin)(s))(t),
    "select": lambda m, t: m.jit(lambda s: m.numpy.where(s > 0, s, 0.0))(t),
    "branch": lambda m, t: m.lax.cond(True, lambda s: s * s, lambda s: s, t),
    "carry": lambda m, t: m.lax.scan(lambda c, _: (c * c, None), t, None, length=2)[0],
    "stacked": lambda m, t: m.lax.scan(lambda c, _: (c, c * c), t, None, length=2)[1].sum(),
    "checkpoint": lambda m, t: m.checkpoint(lambda s: s * s)(t),
    "custom_jvp in jit": lambda m, t: m.jit(with_rule(m, lambda m, s: s * s))(m.jit(lambda s: s * s)(t)),
    "predicate from a jit": lambda m, t: m.lax.cond(m.jit(lambda s: s > 0)(t), lambda s: s, lambda s: -s, t),
    "a flag that a loop carries": lambda m, t: m.lax.scan(
        lambda c, _: ((c[0] * 2.0, c[0] > 5.0), None), (t, False), None, length=2
    )[0][0],
    "a bound": lambda m, t: m.lax.while_loop(lambda c: c < 5.0, lambda c: c * 2.0, t),
}

LINEAR: dict[str, Body] = {
    "jit": lambda m, t: m.jit(lambda s: 3.0 * s - s / 2.0)(t),
    "constant": lambda m, t: m.jit(m.numpy.ones_like)(t),
    "affine": lambda m, t: m.jit(lambda s: s + 1.0)(t),
    "counter": lambda m, t: m.lax.scan(lambda c, x: ((c[0] * x, c[1] + 1), c[0] * c[1]), (t, 1), np.arange(1.0, 4.0))[
        1
    ],
    "loop": lambda m, t: m.lax.fori_loop(0, 3, lambda i, c: c * (i + 1.0), t),
    "branch": lambda m, t: m.lax.cond(True, lambda s: s * 3.0, lambda s: s, t),
    "checkpoint": lambda m, t: m.checkpoint(lambda s: s * 3.0)(t),
    "a rule that nobody asks": lambda m, t: m.jit(with_rule(m, lambda m, s: 5.0 * s))(t),
    "a flag that nobody uses": lambda m, t: m.jit(lambda s: (2.0 * s, s > 0))(t)[0],
}


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name", NONLINEAR)
def test_what_is_not_linear_in_tangents_is_refused_with_its_line(name: str, jitted: bool) -> None:
    derivative = meshrt.grad(with_rule(meshrt, NONLINEAR[name]))
    if name == "a bound":
        expected: Any = pytest.raises(errors.DifferentiationError, match="while_loop")
    else:
        line = re.escape(__file__.rsplit("/", 1)[-1]) + r":\d+"
        expected = pytest.raises((errors.DifferentiationError, errors.UnsupportedError), match=line)
    with expected:
        (meshrt.jit(derivative) if jitted else derivative)(3.0)


@pytest.mark.parametrize("name", LINEAR)
def test_what_is_linear_in_tangents_is_transposed(name: str) -> None:
    assert_alike(lambda m: m.grad(lambda x: with_rule(m, LINEAR[name])(x).sum())(3.0))


@pytest.mark.parametrize("name", ["jit", "jit in jit", "select", "branch", "carry", "checkpoint"])
def test_tangents_are_pushed_through_what_is_not_linear(name: str) -> None:
    assert_alike(lambda m: m.linearize(with_rule(m, NONLINEAR[name]), 3.0)[1](2.0))


def test_a_backward_rule_that_keeps_tangents_is_refused() -> None:
    @meshrt.custom_vjp
    def squared(t: Any) -> Any:
        return t * t

    squared.defvjp(lambda t: (t * t, t), lambda t, ct: (2.0 * t * ct,))
    with pytest.raises(errors.DifferentiationError, match="keeps them"):
        meshrt.grad(with_rule(meshrt, lambda m, t: m.jit(squared)(t)))(3.0)
