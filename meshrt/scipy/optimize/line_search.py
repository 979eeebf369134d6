"""A step along a line that meets Wolfe's strong conditions (Nocedal and Wright, "Numerical optimization", algorithms
3.5 and 3.6)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import meshrt.numpy as jnp
from meshrt import dtypes, lax
from meshrt.api import value_and_grad
from meshrt.scipy.operands import separate
from meshrt.tree_util import tree_map

__all__ = ["dot", "line_search"]

dot = functools.partial(jnp.dot, precision=lax.Precision.HIGHEST)

# How far a guess must stay from the ends of an interval, in parts of it, for the two interpolations.
_CUBIC_MARGIN, _QUADRATIC_MARGIN = 0.2, 0.1
_ZOOM_STEPS = 30
_FARTHER = 2.0  # how the step grows while the minimum is not bracketed


class Search(NamedTuple):
    """The step found, with the value and gradient there; status: 0, 1 if an interval vanished, 3 after too many
    steps."""

    step: Any
    value: Any
    gradient: Any
    failed: Any
    status: Any
    evaluations: Any


class _Place(NamedTuple):
    """A place on the line: step, value, slope."""

    step: Any
    value: Any
    slope: Any


class _Found(NamedTuple):
    place: _Place
    gradient: Any


class _Zoom(NamedTuple):
    done: Any
    failed: Any
    count: Any
    low: _Place  # the best place known, one end of the interval
    high: _Place
    recent: _Place  # the end that was given up last
    found: _Found


class _Bracket(NamedTuple):
    done: Any
    failed: Any
    count: Any
    last: _Place
    found: _Found
    evaluations: Any


def line_search(
    f: Callable[[Any], Any],
    x: Any,
    direction: Any,
    value: Any,
    gradient: Any,
    last_value: Any,
    c1: float = 1e-4,
    c2: float = 0.9,
    steps: int = 20,
) -> Search:
    """A step from x along a direction that lowers f enough (c1) and flattens it (c2).

    Args:
      value, gradient: of f at x.
      last_value: of f at the point before x, which makes a first guess of the step, or None for 1.
      steps: how often the step is made longer, at most.
    """
    x, direction = separate("line_search", x, direction)
    origin = _Place(jnp.zeros((), value.dtype), value, jnp.real(dot(gradient, direction)).astype(value.dtype))
    begin = _Found(origin, gradient)

    def look(step: Any) -> _Found:
        there, g = value_and_grad(f)(x + step.astype(direction.dtype) * direction)
        slope = jnp.real(dot(g, direction))
        return _Found(_Place(step, there.astype(value.dtype), slope.astype(value.dtype)), g.astype(gradient.dtype))

    def too_high(p: _Place) -> Any:
        return p.value > origin.value + c1 * p.step * origin.slope

    def flat(p: _Place) -> Any:
        return jnp.abs(p.slope) <= -c2 * origin.slope

    zoom = functools.partial(_zoom, look, too_high, flat, begin)
    first = jnp.ones((), value.dtype)
    if last_value is not None:
        guess = 1.01 * 2 * (value - last_value) / origin.slope
        first = jnp.where(guess > 1, 1, guess).astype(value.dtype)

    def step(state: _Bracket) -> _Bracket:
        new = look(jnp.where(state.count == 1, first, state.last.step * _FARTHER))
        place = new.place
        above = too_high(place) | ((place.value >= state.last.value) & (state.count > 1))
        good = flat(place) & ~above
        uphill = (place.slope >= 0) & ~above & ~good
        # A minimum lies between the last place and this one, and the lower end has to be known.
        low, high = _choose(above, state.last, place), _choose(above, place, state.last)
        inside = zoom(low, high, above | uphill)
        found = _choose(above | uphill, inside.found, _choose(good, new, state.found))
        failed = state.failed | ((above | uphill) & inside.failed)
        return _Bracket(
            state.done | above | good | uphill, failed, state.count + 1, place, found,
            state.evaluations + 1 + inside.count,
        )  # fmt: skip

    no = jnp.zeros((), bool)
    end = lax.while_loop(
        lambda s: ~s.done & (s.count <= steps) & ~s.failed, step, _Bracket(no, no, 1, origin, begin, 0)
    )
    length = end.found.place.step
    if dtypes.finfo(length.dtype).bits < 64:  # where rounding would leave no step at all
        length = jnp.where(jnp.abs(length) < 1e-8, jnp.sign(length) * 1e-8, length).astype(length.dtype)
    status = jnp.where(end.failed, 1, jnp.where(end.count > steps, 3, 0))
    return Search(length, end.found.place.value, end.found.gradient, end.failed | ~end.done, status, end.evaluations)


def _choose(which: Any, a: Any, b: Any) -> Any:
    return tree_map(lambda x, y: jnp.where(which, x, y), a, b)


def _zoom(
    look: Callable[[Any], _Found],
    too_high: Callable[[_Place], Any],
    flat: Callable[[_Place], Any],
    begin: _Found,
    low: _Place,
    high: _Place,
    wanted: Any,
) -> _Zoom:
    """Narrows an interval that has a good step inside; makes no step unless `wanted`."""
    least = 1e-10 if dtypes.finfo(low.step.dtype).bits >= 64 else 1e-5
    middle = tree_map(lambda a, b: (a + b) / 2, low, high)
    nowhere = begin._replace(place=low._replace(step=jnp.ones_like(low.step)))

    def step(state: _Zoom) -> _Zoom:
        low, high = state.low, state.high
        vanished = jnp.abs(high.step - low.step) <= least
        new = look(_guess(state))
        place = new.place
        to_high = too_high(place) | (place.value >= low.value)
        good = flat(place) & ~to_high
        to_low = ~to_high & ~good
        # Beyond the minimum as seen from the new place, the interval is the one to the old low end.
        turned = to_low & (place.slope * (high.step - low.step) >= 0)
        recent = _choose(to_high | turned, high, _choose(to_low, low, state.recent))
        return _Zoom(
            state.done | good, state.failed | vanished | (state.count + 1 >= _ZOOM_STEPS), state.count + 1,
            _choose(to_low, place, low), _choose(to_high, place, _choose(turned, low, high)), recent,
            _choose(good, new, state.found),
        )  # fmt: skip

    no = jnp.zeros((), bool)
    return lax.while_loop(lambda s: ~s.done & wanted & ~s.failed, step, _Zoom(no, no, 0, low, high, middle, nowhere))


def _guess(state: _Zoom) -> Any:
    """The minimum of a cubic through three places, or of a parabola through two, or the middle of the interval."""
    low, high = state.low, state.high
    width = high.step - low.step
    left, right = jnp.minimum(low.step, high.step), jnp.maximum(low.step, high.step)

    def inside(a: Any, margin: float) -> Any:  # false for NaN
        return (a > left + margin * width) & (a < right - margin * width)

    cubic, quadratic = _cubic(low, high, state.recent), _quadratic(low, high)
    middle = jnp.where(inside(quadratic, _QUADRATIC_MARGIN), quadratic, (low.step + high.step) / 2)
    return jnp.where((state.count > 0) & inside(cubic, _CUBIC_MARGIN), cubic, middle)


def _quadratic(p: _Place, q: _Place) -> Any:
    width = q.step - p.step
    bend = (q.value - p.value - p.slope * width) / width**2
    return p.step - p.slope / (2 * bend)


def _cubic(p: _Place, q: _Place, r: _Place) -> Any:
    """The minimum of a t^3 + b t^2 + slope t + value, t from p on, that passes through q and r."""
    s, t = q.step - p.step, r.step - p.step
    at_s, at_t = q.value - p.value - p.slope * s, r.value - p.value - p.slope * t
    scale = (s * t) ** 2 * (s - t)
    a = (t**2 * at_s - s**2 * at_t) / scale
    b = (s**3 * at_t - t**3 * at_s) / scale
    return p.step + (-b + jnp.sqrt(b * b - 3 * a * p.slope)) / (3 * a)
