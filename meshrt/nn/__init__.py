"""Building blocks of neural networks. Names, signatures and values are those of ``jax.nn``."""

from meshrt.core.tracebacks import offer as _offer
from meshrt.nn import activations, attention, functions, initializers, scaled  # noqa: F401
from meshrt.nn.activations import *  # noqa: F403
from meshrt.nn.attention import *  # noqa: F403
from meshrt.nn.functions import *  # noqa: F403
from meshrt.nn.scaled import *  # noqa: F403
from meshrt.numpy.names import missing as _missing

__all__ = sorted({*activations.__all__, *attention.__all__, *functions.__all__, *scaled.__all__, "initializers"})  # noqa: PLE0605
_offer(globals(), __all__)
__getattr__ = _missing(__name__, __all__)
