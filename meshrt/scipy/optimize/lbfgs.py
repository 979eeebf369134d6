"""BFGS with limited memory (Nocedal and Wright, "Numerical optimization", algorithm 7.5), also of complex vectors
(Sorber, van Barel and de Lathauwer, SIAM Journal on Optimization 22, 2012)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.api import value_and_grad
from meshrt.scipy.optimize.line_search import dot, line_search

__all__ = ["lbfgs"]


class _State(NamedTuple):
    x: Any
    fun: Any
    gradient: Any
    moves: Any  # the last steps, [maxcor, n], the newest last
    changes: Any  # of the gradient in these steps
    inverses: Any  # 1 / (change . move)
    scale: Any  # of the Hessian that the recursion starts with
    steps: Any
    evaluations: Any
    converged: Any
    failed: Any
    status: Any


def lbfgs(
    fun: Callable[[Any], Any],
    x0: Any,
    maxiter: float | None = None,
    norm: Any = np.inf,
    maxcor: int = 10,
    ftol: float = 2.220446049250313e-09,
    gtol: float = 1e-05,
    maxfun: float | None = None,
    maxgrad: float | None = None,
    maxls: int = 20,
) -> _State:
    """The state at the end. Its status is 0 when converged, 1, 2 or 3 after `maxiter` steps, `maxfun` values or
    `maxgrad` gradients, 4 when a step gained less than `ftol`, 5 when a line search failed."""
    size = x0.shape[0]
    if maxiter is None and maxfun is None and maxgrad is None:
        maxiter = size * 200
    most_steps, most_values, most_gradients = (np.inf if m is None else m for m in (maxiter, maxfun, maxgrad))
    value, gradient = value_and_grad(fun)(x0)
    history, no = jnp.zeros((maxcor, size), x0.dtype), jnp.zeros((), bool)
    start = _State(x0, value, gradient, history, history, history[:, 0], jnp.ones((), gradient.dtype), 0, 1, no, no, 0)

    def step(state: _State) -> _State:
        direction = _direction(state)
        search = line_search(fun, state.x, direction, state.fun, state.gradient, None, steps=maxls)
        move = search.step.astype(direction.dtype) * direction
        change = search.gradient - state.gradient
        curvature = jnp.real(dot(change, move))
        converged = jnp.linalg.norm(search.gradient, ord=norm) < gtol
        status = jnp.select(
            [
                converged, search.failed, state.steps >= most_steps, state.evaluations >= most_values,
                state.evaluations >= most_gradients, state.fun - search.value < ftol,
            ],
            [0, 5, 1, 2, 3, 4],
        )  # fmt: skip
        return _State(
            (state.x + move).astype(state.x.dtype), search.value.astype(state.fun.dtype),
            search.gradient.astype(state.gradient.dtype), _pushed(state.moves, move), _pushed(state.changes, change),
            _pushed(state.inverses, 1 / curvature),
            (curvature / jnp.real(dot(change.conj(), change))).astype(state.gradient.dtype), state.steps + 1,
            state.evaluations + search.evaluations, converged, status > 0, status,
        )  # fmt: skip

    return lax.while_loop(lambda s: ~s.converged & ~s.failed, step, start)


def _pushed(history: Any, new: Any) -> Any:
    return jnp.concatenate([history[1:], new.astype(history.dtype)[None]])


def _direction(state: _State) -> Any:
    """The estimate of the inverse Hessian, times the gradient downwards: two walks over the steps that are
    remembered."""
    kept = len(state.inverses)
    known = jnp.minimum(state.steps, kept)

    def back(j: Any, carry: Any) -> Any:
        q, shares = carry
        i = kept - 1 - j
        share = state.inverses[i] * jnp.real(dot(state.moves[i].conj(), q)).astype(shares.dtype)
        return q - share * state.changes[i].conj(), shares.at[i].set(share)

    def forth(j: Any, q: Any) -> Any:
        i = kept - known + j
        share = state.inverses[i] * jnp.real(dot(state.changes[i], q)).astype(state.inverses.dtype)
        return q + (shares[i] - share) * state.moves[i]

    q, shares = lax.fori_loop(0, known, back, (-state.gradient.conj(), jnp.zeros_like(state.inverses)))
    return lax.fori_loop(0, known, forth, state.scale * q)
