"""The minimum of a function of a vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import meshrt.numpy as jnp
from meshrt import errors
from meshrt.scipy.optimize.bfgs import bfgs
from meshrt.scipy.optimize.lbfgs import lbfgs
from meshrt.tree_files import register_namedtuple_serialization

__all__ = ["OptimizeResults", "minimize"]


class OptimizeResults(NamedTuple):
    """What a minimisation found.

    Attributes:
      x: the last point.
      success: whether the gradient there is below the tolerance.
      status: 0 if it is, 1 after the greatest number of steps, for others see the method.
      fun, jac: the function's value and gradient at x.
      hess_inv: the estimate of the inverse Hessian, or None for methods that keep none.
      nfev, njev: how often the function and its gradient were calculated.
      nit: how many steps were made.
    """

    x: Any
    success: Any
    status: Any
    fun: Any
    jac: Any
    hess_inv: Any
    nfev: Any
    njev: Any
    nit: Any


register_namedtuple_serialization(OptimizeResults, serialized_name="meshrt.scipy.optimize.OptimizeResults")


_METHODS: dict[str, Callable[..., Any]] = {"bfgs": bfgs, "l-bfgs-experimental-do-not-rely-on-this": lbfgs}


def minimize(
    fun: Callable[..., Any],
    x0: Any,
    args: tuple[Any, ...] = (),
    *,
    method: str,
    tol: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> OptimizeResults:
    """A local minimum of `fun(x, *args)`, a real scalar, from x0 on.

    Args:
      x0: a floating array [n].
      method: "BFGS", or "l-bfgs-experimental-do-not-rely-on-this" with limited memory.
      tol: has no effect; tolerances are among the options.
      options: of either method `maxiter`, `norm` (the order of the gradient's norm, by default the largest entry) and
        `gtol` (the norm below which it has converged); of BFGS `line_search_maxiter`; of the other `maxcor` (how many
        steps are remembered), `ftol`, `maxfun`, `maxgrad` and `maxls`.

    Raises:
      ArgumentTypeError: `args` is no tuple.
      ArgumentValueError: another method.

    >>> import meshrt.numpy as mnp, meshrt.scipy as msp
    >>> found = msp.optimize.minimize(lambda x: mnp.sum((x - 3) ** 2), mnp.zeros(2), method="BFGS")
    >>> print(round(float(found.x[0]), 3), found.success)
    3.0 True
    """
    if not isinstance(args, tuple):
        raise errors.ArgumentTypeError(f"args argument to jax.scipy.optimize.minimize must be a tuple, got {args}")
    run = _METHODS.get(method.lower())
    if run is None:
        raise errors.ArgumentValueError(f"Method {method} not recognized; methods are {', '.join(_METHODS)}")
    found = run(lambda x: fun(x, *args), jnp.asarray(x0), **(options or {}))
    return OptimizeResults(
        x=found.x, success=found.converged & ~found.failed, status=found.status, fun=found.fun, jac=found.gradient,
        hess_inv=getattr(found, "inverse_hessian", None), nfev=found.evaluations, njev=found.evaluations,
        nit=found.steps,
    )  # fmt: skip
