"""Random numbers from explicit keys. Names, signatures and bits are those of ``jax.random``.

``keys`` makes, splits and converts keys; ``samplers`` draws from continuous and simple discrete distributions;
``gammas`` from those made of gamma numbers; ``choices`` permutes and chooses. The same key and shape always give the
same numbers, however they are sharded.
"""

from meshrt.numpy.names import missing
from meshrt.random import choices, gammas, keys, samplers
from meshrt.random.choices import *  # noqa: F403
from meshrt.random.gammas import *  # noqa: F403
from meshrt.random.keys import *  # noqa: F403
from meshrt.random.samplers import *  # noqa: F403

__all__ = sorted({*keys.__all__, *samplers.__all__, *gammas.__all__, *choices.__all__})  # noqa: PLE0605
__getattr__ = missing(__name__, __all__)
