"""Ordinary differential equations: `odeint`, with its derivatives by the adjoint equation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, errors, lax
from meshrt.api import vjp
from meshrt.contexts import default_matmul_precision
from meshrt.core.types import aval_of
from meshrt.custom_derivatives import closure_convert, custom_vjp
from meshrt.flatten_util import ravel_pytree
from meshrt.jit import jit
from meshrt.numpy.names import missing as _missing
from meshrt.transforms.vmap import vmap
from meshrt.tree_util import tree_leaves, tree_map

__all__ = ["odeint"]
__getattr__ = _missing(__name__, __all__)

# The pair of orders 5 and 4 of Dormand and Prince (Hairer, Nørsett and Wanner, "Solving ordinary differential
# equations I", table II.5.2), and Shampine's weights of the solution in the middle of a step (1986).
_TIMES = (0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1, 1)
_STAGES = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
_ORDER_FOUR = (5179 / 57600, 0, 7571 / 16695, 393 / 640, -92097 / 339200, 187 / 2100, 1 / 40)
_MIDDLE = (
    6025192743 / 30085553152, 0, 51252292925 / 65400821598, -2691868925 / 45128329728, 187940372067 / 1594534317056,
    -1776094331 / 19743644256, 11237099 / 235043384,
)  # fmt: skip
_SAFETY, _GROW, _SHRINK, _ORDER = 0.9, 10.0, 0.2, 5

Field = Callable[..., Any]


class _Control(NamedTuple):
    """How exactly a solution is calculated."""

    rtol: Any
    atol: Any
    mxstep: Any
    hmax: Any


class _State(NamedTuple):
    y: Any
    slope: Any
    time: Any
    step: Any  # the next one
    last_time: Any  # where the last step began
    polynomial: Any  # through it, [5, n], the highest power first


def odeint(
    func: Callable[..., Any],
    y0: Any,
    t: Any,
    *args: Any,
    rtol: float = 1.4e-8,
    atol: float = 1.4e-8,
    mxstep: Any = np.inf,
    hmax: Any = np.inf,
) -> Any:
    """Solves dy/dt = func(y, t, *args) from y(t[0]) = y0 on, by steps of Dormand and Prince of adapted length.

    Args:
      func: returns what has the structure, shapes and dtypes of y0.
      y0: a pytree of arrays.
      t: increasing floating times [n].
      args: pytrees of arrays. Derivatives with respect to them, to y0, to t, and to what `func` closes over are those
        of the
        solution: they come from an equation backwards in time (Chen et al., "Neural ordinary differential equations",
        2018), not through the steps. They exist in reverse mode.
      rtol, atol: the error of a step is kept below atol + rtol |y|.
      mxstep: the greatest number of steps between two times.
      hmax: the longest step.

    Returns:
      y at all times: y0's structure, with arrays [n, ...].

    Raises:
      ArgumentTypeError: t is not floating, or args hold something else than arrays.

    >>> import meshrt.numpy as mnp
    >>> from meshrt.experimental.ode import odeint
    >>> print(round(float(odeint(lambda y, t: -y, mnp.array(1.0), mnp.array([0.0, 1.0]))[-1]), 4))
    0.3679
    """
    for leaf in tree_leaves(args):
        try:
            aval_of(leaf)
        except TypeError:
            raise errors.ArgumentTypeError(
                f"The contents of odeint *args must be arrays or scalars, but got {leaf}."
            ) from None
    if not dtypes.issubdtype(aval_of(t).dtype, np.floating):
        raise errors.ArgumentTypeError(f"t must be an array of floats, but got {t}.")
    t = jnp.asarray(t)
    closed, consts = closure_convert(func, y0, t[0], *args)
    return _solved_tree(closed, _Control(rtol, atol, mxstep, hmax), y0, t, *args, *consts)


@jit(static_argnums=(0, 1))
def _solved_tree(func: Field, control: _Control, y0: Any, times: Any, *args: Any) -> Any:
    flat, unravel = ravel_pytree(y0)

    def field(y: Any, t: Any, *args: Any) -> Any:
        return ravel_pytree(func(unravel(y), t, *args))[0]

    with default_matmul_precision("highest"):
        return vmap(unravel)(_solved(field, control, flat, times, *args))


@functools.partial(custom_vjp, nondiff_argnums=(0, 1))
def _solved(field: Field, control: _Control, y0: Any, times: Any, *args: Any) -> Any:
    """The solution [n, d] of a vector y0 [d]."""

    def slope(y: Any, t: Any) -> Any:
        return field(y, t, *args)

    def until(state: _State, target: Any) -> tuple[_State, Any]:
        def unfinished(counted: tuple[Any, _State]) -> Any:
            count, s = counted
            return (s.time < target) & (count < control.mxstep) & (s.step > 0)

        def step(counted: tuple[Any, _State]) -> tuple[Any, _State]:
            return counted[0] + 1, _stepped(slope, control, counted[1])

        _, state = lax.while_loop(unfinished, step, (0, state))
        share = ((target - state.last_time) / (state.time - state.last_time)).astype(y0.dtype)
        return state, jnp.polyval(state.polynomial, share)

    first = slope(y0, times[0])
    length = jnp.clip(_first_step(slope, control, y0, times[0], first), 0, control.hmax).astype(times.dtype)
    start = _State(y0, first, times[0], length, times[0], jnp.stack([y0] * 5))
    _, ys = lax.scan(until, start, times[1:])
    return jnp.concatenate([y0[None], ys])


def _stepped(slope: Field, control: _Control, state: _State) -> _State:
    """The state after a step, if its error is small enough, and with another length of the next one."""
    y, step = state.y, state.step
    length = step.astype(y.dtype)
    slopes = [state.slope]
    for share, weights in zip(_TIMES[1:], _STAGES[1:]):
        slopes.append(slope(y + length * _combined(weights, slopes), state.time + step * share))
    # The last stage is at the solution.
    new = y + length * _combined(_STAGES[-1], slopes)
    error = length * _combined([a - b for a, b in zip((*_STAGES[-1], 0), _ORDER_FOUR)], slopes)
    allowed = control.atol + control.rtol * jnp.maximum(jnp.abs(y), jnp.abs(new))
    ratio = jnp.sqrt(jnp.mean(jnp.square(jnp.abs(error / allowed.astype(error.dtype)))))
    shrink = jnp.where(ratio < 1, 1.0, _SHRINK)
    exact = ratio == 0
    factor = jnp.clip(jnp.where(exact, 1, ratio) ** (-1 / _ORDER) * _SAFETY, shrink, _GROW)
    following = jnp.clip(step * jnp.where(exact, _GROW, factor), 0, control.hmax).astype(step.dtype)
    after = _State(new, slopes[-1], state.time + step, following, state.time, _interpolated(y, new, slopes, length))
    return tree_map(lambda a, b: jnp.where(ratio <= 1, a, b), after, state._replace(step=following))


def _combined(weights: Any, slopes: list[Any]) -> Any:
    return sum(w * k for w, k in zip(weights, slopes) if w)


def _interpolated(y0: Any, y1: Any, slopes: list[Any], length: Any) -> Any:
    """Coefficients of the polynomial of degree 4 with values at both ends and in the middle, and slopes at both
    ends."""
    middle = y0 + length * _combined(_MIDDLE, slopes) / 2
    d0, d1 = length * slopes[0], length * slopes[-1]
    return jnp.stack([
        2 * (d1 - d0) - 8 * (y1 + y0) + 16 * middle, 5 * d0 - 3 * d1 + 18 * y0 + 14 * y1 - 32 * middle,
        d1 - 4 * d0 - 11 * y0 - 5 * y1 + 16 * middle, d0, y0,
    ])  # fmt: skip


def _first_step(slope: Field, control: _Control, y: Any, t: Any, first: Any) -> Any:
    """A first length by the method of Hairer, Nørsett and Wanner, section II.4."""
    scale = (control.atol + jnp.abs(y) * control.rtol).astype(y.dtype)
    size, speed = jnp.linalg.norm(y / scale), jnp.linalg.norm(first / scale)
    flat = (size < 1e-5) | (speed < 1e-5)
    guess = jnp.where(flat, 1e-6, 0.01 * size / jnp.where(flat, 1, speed))
    second = slope(y + guess.astype(y.dtype) * first, t + guess.astype(t.dtype))
    bend = jnp.linalg.norm((second - first) / scale) / guess
    still = (speed <= 1e-15) & (bend <= 1e-15)
    largest = jnp.where(still, 1, jnp.maximum(speed, bend))
    return jnp.minimum(100 * guess, jnp.where(still, jnp.maximum(1e-6, guess * 1e-3), (0.01 / largest) ** (1 / _ORDER)))


def _solved_forward(field: Field, control: _Control, y0: Any, times: Any, *args: Any) -> tuple[Any, Any]:
    ys = _solved(field, control, y0, times, *args)
    return ys, (ys, times, args)


def _solved_backward(field: Field, control: _Control, saved: Any, cotangent: Any) -> tuple[Any, ...]:
    """From the last time back, the solution, its cotangent and those of the start and of the arguments are one
    solution of a larger equation; at every time the cotangent of y there is added."""
    ys, times, args = saved

    def backwards(state: Any, t: Any, *args: Any) -> Any:
        y, y_bar, *_ = state
        change, pull = vjp(field, y, -t, *args)
        return (-change, *_grouped(pull(y_bar)))

    def one_interval(carry: Any, i: Any) -> tuple[Any, Any]:
        y_bar, start_bar, args_bar = carry
        time_bar = jnp.dot(field(ys[i], times[i], *args), cotangent[i]).real.astype(times.dtype)
        span = jnp.stack([-times[i], -times[i - 1]])
        initial = (ys[i], y_bar, start_bar - time_bar, args_bar)
        solution = odeint(backwards, initial, span, *args, **control._asdict())
        _, y_bar, start_bar, args_bar = tree_map(lambda x: x[1], solution)
        return (y_bar + cotangent[i - 1], start_bar, args_bar), time_bar

    start = (cotangent[-1], jnp.zeros((), times.dtype), tree_map(jnp.zeros_like, args))
    (y_bar, start_bar, args_bar), bars = lax.scan(one_interval, start, jnp.arange(len(times) - 1, 0, -1))
    return (y_bar, jnp.concatenate([start_bar[None], bars[::-1]]), *args_bar)


def _grouped(bars: tuple[Any, ...]) -> tuple[Any, ...]:
    y_bar, time_bar, *args_bar = bars
    return y_bar, time_bar, tuple(args_bar)


_solved.defvjp(_solved_forward, _solved_backward)
