"""Minima of functions: names and signatures are those of ``jax.scipy.optimize``."""

from meshrt.core.tracebacks import offer as _offer
from meshrt.numpy.names import missing as _missing
from meshrt.scipy.optimize.minimize import OptimizeResults, minimize

__all__ = ["OptimizeResults", "minimize"]
__getattr__ = _missing(__name__, __all__)
_offer(globals(), __all__)
