"""The multinomial distribution of n trials."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, errors, lax
from meshrt.core.types import aval_of
from meshrt.jit import jit
from meshrt.scipy.operands import separate
from meshrt.scipy.special.gammas import gammaln
from meshrt.scipy.special.information import xlogy

__all__ = ["logpmf", "pmf"]


@jit
def logpmf(x: Any, n: Any, p: Any) -> Any:
    """Logarithm of the probability of the counts x, integers along the last dimension, of events of probabilities p.

    Raises:
      ArgumentValueError: x or n are no integers.
    """
    for name, value in (("x", x), ("n", n)):
        if not dtypes.issubdtype(aval_of(value).dtype, np.integer):
            raise errors.ArgumentValueError(
                f"multinomial: x and n must be of integer type; got {name}.dtype={aval_of(value).dtype}"
            )
    (p,) = separate("multinomial.logpmf", p)
    x, n = jnp.asarray(x).astype(p.dtype), jnp.asarray(n).astype(p.dtype)
    value = gammaln(n + 1) + jnp.sum(xlogy(x, p) - gammaln(x + 1), axis=-1)
    return jnp.where(jnp.sum(x) == n, value, -np.inf)


@jit
def pmf(x: Any, n: Any, p: Any) -> Any:
    """Probability of the counts x; see `logpmf`."""
    return lax.exp(logpmf(x, n, p))
