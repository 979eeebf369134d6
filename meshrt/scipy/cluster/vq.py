"""Vector quantisation: names and signatures are those of ``jax.scipy.cluster.vq``."""

from __future__ import annotations

from typing import Any

import meshrt.numpy as jnp
from meshrt import errors
from meshrt.core.tracebacks import offer as _offer
from meshrt.jit import jit
from meshrt.numpy.names import missing as _missing
from meshrt.scipy.operands import separate

__all__ = ["vq"]
__getattr__ = _missing(__name__, __all__)


def vq(obs: Any, code_book: Any, check_finite: bool = True) -> tuple[Any, Any]:
    """Of each observation the nearest row of a code book.

    Args:
      obs: [m, n], or [m] for n = 1.
      code_book: [k, n], or [k].
      check_finite: has no effect.

    Returns:
      The index of the nearest code, int32 [m], and the distance to it, [m].

    Raises:
      ArgumentValueError: arrays of different or other ranks.

    >>> import meshrt.numpy as mnp, meshrt.scipy as msp
    >>> msp.cluster.vq.vq(mnp.array([[0.0, 1.0], [5.0, 5.0]]), mnp.array([[0.0, 0.0], [5.0, 4.0]]))[0]
    Array([0, 1], dtype=int32)
    """
    obs, code_book = separate("scipy.cluster.vq.vq", obs, code_book)
    if obs.ndim != code_book.ndim:
        raise errors.ArgumentValueError(
            f"Observation and code_book should have the same rank, got shapes {obs.shape} and {code_book.shape}"
        )
    if obs.ndim == 1:
        obs, code_book = obs[:, None], code_book[:, None]
    if obs.ndim != 2:
        raise errors.ArgumentValueError(f"ndim different than 1 or 2 are not supported, got shape {obs.shape}")
    return _nearest(obs, code_book)


@jit
def _nearest(obs: Any, code_book: Any) -> tuple[Any, Any]:
    distances = jnp.linalg.norm(obs[:, None, :] - code_book[None, :, :], axis=-1)
    code = jnp.argmin(distances, axis=-1)
    return code, jnp.take_along_axis(distances, code[:, None], axis=-1)[:, 0]


_offer(globals(), __all__)
