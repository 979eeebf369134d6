"""Random numbers from explicit keys. Names, signatures and bits are those of ``jax.random``.

``keys`` makes, splits and converts keys; ``uniforms`` draws bits, uniform numbers and integers; ``samplers`` draws from
continuous and simple discrete distributions; ``extremes`` from the Gumbel distribution and with its help; ``gammas``
from those made of gamma numbers; ``counts`` draws numbers of events; ``matrices`` orthogonal matrices and normal
vectors; ``choices`` permutes and chooses. The same key and shape always give the same numbers, however they are
sharded.
"""

from meshrt.core.tracebacks import offer as _offer
from meshrt.numpy.names import missing as _missing
from meshrt.random import choices, counts, extremes, gammas, keys, matrices, samplers, uniforms
from meshrt.random.choices import *  # noqa: F403
from meshrt.random.counts import *  # noqa: F403
from meshrt.random.extremes import *  # noqa: F403
from meshrt.random.gammas import *  # noqa: F403
from meshrt.random.keys import *  # noqa: F403
from meshrt.random.matrices import *  # noqa: F403
from meshrt.random.samplers import *  # noqa: F403
from meshrt.random.uniforms import *  # noqa: F403

_ROOMS = (choices, counts, extremes, gammas, keys, matrices, samplers, uniforms)
__all__ = sorted({name for room in _ROOMS for name in room.__all__})  # noqa: PLE0605
_offer(globals(), __all__)
__getattr__ = _missing(__name__, __all__)
