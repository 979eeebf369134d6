"""Associative scans along a split dimension: equal to one device, and only the totals of pieces travel."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from .jax_side import Case, check


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def linear(a, b):
    return a[0] * b[0], b[0] * a[1] + b[1]


def swapped(a, b):
    """The same with the drive first."""
    return b[1] * a[0] + b[0], a[1] * b[1]


def logaddexp(a, b):
    top = jnp.maximum(a, b)
    return top + jnp.log1p(jnp.exp(-jnp.abs(a - b)))


def latest(a, b):
    """The last value whose flag is set."""
    return jnp.where(b[1] > 0, b[0], a[0]), jnp.maximum(a[1], b[1])


def welford(a, b):
    """Counts, means and sums of squares of stretches put together."""
    n = a[0] + b[0]
    delta = b[1] - a[1]
    return n, a[1] + delta * b[0] / n, a[2] + b[2] + delta * delta * a[0] * b[0] / n


def run(fn, elements, axes, spec, axis=0, reverse=False, out=lambda x: x, **options):
    build = lambda constrain: lambda *xs: out(lax.associative_scan(fn, xs, reverse=reverse, axis=axis))
    case = Case(axes, build, tuple(elements), (spec,) * len(elements))
    return check(case, **options)


@pytest.mark.smoke
@pytest.mark.parametrize("reverse", [False, True])
def test_a_linear_recurrence_sends_totals_only(reverse):
    elements = [1 / (1 + np.exp(-normal(2, 64, 4))), normal(2, 64, 4, seed=1)]
    result, sent = run(linear, elements, {"x": 8}, P(None, "x", None), 1, reverse, lambda r: r[1])
    assert sent == 5 * 2 * 4 * 4  # in the last of three rounds nobody needs the decay
    assert result.plan.counts.keys() == {"collective_permute"}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("n", [8, 9, 13, 16, 24, 40, 63])
@pytest.mark.parametrize("axes", [{"x": 8}, {"a": 3, "b": 2}, {"x": 5}], ids=["8", "3x2", "5"])
def test_lengths_that_do_not_divide(n, axes):
    names = tuple(axes)

    def build(constrain):
        def f(x):
            x = jnp.concatenate([x, x * 0.5], 0)[:n]
            x = constrain(x, names if len(names) > 1 else names[0], None)
            return lax.associative_scan(linear, (jnp.tanh(x), x), axis=0)[1]

        return f

    check(Case(axes, build, (normal(64, 3),), (P(),)), above_xla=True)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("fn,count", [(jnp.maximum, 1), (jnp.multiply, 1), (logaddexp, 1), (swapped, 2), (welford, 3)])
@pytest.mark.parametrize("reverse", [False, True])
def test_combining_functions(fn, count, reverse):
    elements = [np.abs(normal(32, 6, seed=i)) + 0.5 for i in range(count)]
    if fn is welford:
        elements = [np.ones((32, 6), np.float32), elements[0], np.zeros((32, 6), np.float32)]
    combine = fn if count > 1 else lambda a, b: (fn(a[0], b[0]),)
    _, sent = run(combine, elements, {"a": 4, "b": 2}, P("a", "b"), 0, reverse)
    assert sent <= 2 * count * 3 * 4


def test_a_scan_with_a_called_function_is_still_right():
    elements = [normal(32, 6), (normal(32, 6, seed=1) > 0.5).astype(np.float32)]
    run(latest, elements, {"x": 8}, P("x", None), above_xla=True)


def test_integers_and_truth_values():
    flags = np.random.default_rng(0).integers(0, 2, (64, 3)).astype(bool)
    run(lambda a, b: (a[0] | b[0],), [flags], {"x": 8}, P("x", None))
    numbers = np.random.default_rng(0).integers(-50, 50, (64, 3)).astype(np.int32)
    run(lambda a, b: (jnp.minimum(a[0], b[0]),), [numbers], {"x": 8}, P("x", None))


def test_infinities_stay_where_they_are():
    x = normal(32, 4)
    x[5, 0], x[20, 1], x[9, 2] = np.inf, -np.inf, np.nan
    run(lambda a, b: (jnp.maximum(a[0], b[0]),), [x], {"x": 8}, P("x", None))
    run(lambda a, b: (a[0] + b[0],), [x], {"x": 8}, P("x", None))


def test_several_scans_one_of_another_in_a_loop():
    def build(constrain):
        def f(x):
            def layer(h, w):
                a, h = lax.associative_scan(linear, (jax.nn.sigmoid(h + w), h), axis=0)
                return jnp.tanh(lax.associative_scan(linear, (a, h), axis=0, reverse=True)[1]), jnp.sum(a)

            return lax.scan(layer, x, jnp.arange(3.0))

        return f

    check(Case({"x": 8}, build, (normal(64, 4),), (P("x", None),)), rtol=1e-4)


def test_the_gradient_of_a_scan():
    def build(constrain):
        def f(decay, drive):
            loss = lambda a, b: jnp.sum(jnp.sin(lax.associative_scan(linear, (jax.nn.sigmoid(a), b), axis=1)[1]))
            return jax.value_and_grad(loss, argnums=(0, 1))(decay, drive)

        return f

    args = (normal(2, 64, 4), normal(2, 64, 4, seed=1))
    check(Case({"a": 4, "b": 2}, build, args, (P("b", "a", None),) * 2), rtol=1e-4)


def test_what_only_looks_like_a_scan_is_left_alone():
    def build(constrain):
        def f(x):  # the first level of a scan, then something else
            half = x[0:-1:2] * x[1::2]
            quarter = half[0:-1:2] - half[1::2]
            return half, quarter, jnp.concatenate([x[:1], half[:-1] * x[2::2]])

        return f

    check(Case({"x": 8}, build, (normal(32, 4),), (P("x", None),)))


def test_short_pieces_are_exchanged_for_another_dimension():
    def build(constrain):
        return lambda a, b: constrain(lax.associative_scan(linear, (jax.nn.sigmoid(a), b), axis=0)[1], None, "x", None)

    args = (normal(16, 32, 8), normal(16, 32, 8, seed=1))
    check(Case({"x": 8}, build, args, (P("x", None, None),) * 2, P(None, "x", None)))
