"""Signals: names and signatures are those of ``jax.scipy.signal``."""

from meshrt.core.tracebacks import offer as _offer
from meshrt.numpy.names import missing as _missing
from meshrt.scipy.signal import convolution, spectra
from meshrt.scipy.signal.convolution import *  # noqa: F403
from meshrt.scipy.signal.spectra import *  # noqa: F403
from meshrt.scipy.signal.synthesis import istft
from meshrt.scipy.signal.trends import detrend

__all__ = ["detrend", "istft", *convolution.__all__, *spectra.__all__]  # noqa: PLE0604
__getattr__ = _missing(__name__, __all__)
_offer(globals(), __all__)
