"""The method of Broyden, Fletcher, Goldfarb and Shanno (Nocedal and Wright, "Numerical optimization", algorithm
6.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.api import value_and_grad
from meshrt.scipy.optimize.line_search import dot, line_search

__all__ = ["bfgs"]


class _State(NamedTuple):
    x: Any
    fun: Any
    gradient: Any
    inverse_hessian: Any
    last_fun: Any  # of the point before x
    steps: Any
    evaluations: Any
    converged: Any
    failed: Any
    status: Any


def bfgs(
    fun: Callable[[Any], Any],
    x0: Any,
    maxiter: int | None = None,
    norm: Any = np.inf,
    gtol: float = 1e-5,
    line_search_maxiter: int = 10,
) -> _State:
    """The state at the end. Its status is 0 when converged, 1 after `maxiter` steps (by default 200 per entry of x),
    3 when the line search's interval vanished, 5 when it took too many steps."""
    maxiter = x0.size * 200 if maxiter is None else maxiter
    value, gradient = value_and_grad(fun)(x0)
    start = _State(
        x0, value, gradient, jnp.eye(x0.shape[0], dtype=x0.dtype), value + jnp.linalg.norm(gradient) / 2, 0, 1,
        jnp.linalg.norm(gradient, ord=norm) < gtol, jnp.zeros((), bool), 0,
    )  # fmt: skip

    def step(state: _State) -> _State:
        direction = -dot(state.inverse_hessian, state.gradient)
        search = line_search(
            fun, state.x, direction, state.fun, state.gradient, state.last_fun, steps=line_search_maxiter
        )
        moved = search.step * direction
        changed = search.gradient - state.gradient
        return _State(
            state.x + moved, search.value, search.gradient, _updated(state.inverse_hessian, moved, changed), state.fun,
            state.steps + 1, state.evaluations + search.evaluations,
            jnp.linalg.norm(search.gradient, ord=norm) < gtol, search.failed, search.status,
        )  # fmt: skip

    end = lax.while_loop(lambda s: ~s.converged & ~s.failed & (s.steps < maxiter), step, start)
    failure = jnp.where(end.failed, 2 + end.status, -1)
    return end._replace(status=jnp.where(end.converged, 0, jnp.where(end.steps == maxiter, 1, failure)))


def _updated(inverse: Any, moved: Any, changed: Any) -> Any:
    """The estimate of the inverse Hessian, such that it takes the change of the gradient to the step."""
    rho = 1 / dot(changed, moved)
    keep = jnp.eye(moved.shape[0], dtype=inverse.dtype) - rho * jnp.outer(moved, changed)
    new = dot(dot(keep, inverse), keep.T) + rho * jnp.outer(moved, moved)
    return jnp.where(jnp.isfinite(rho), new, inverse)
