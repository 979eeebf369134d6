"""Integrals of samples: names and signatures are those of ``jax.scipy.integrate``."""

from meshrt.core.tracebacks import offer as _offer
from meshrt.numpy import trapezoid
from meshrt.numpy.names import missing as _missing

__all__ = ["trapezoid"]
__getattr__ = _missing(__name__, __all__)
_offer(globals(), __all__)
