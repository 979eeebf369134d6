"""Special functions: names and signatures are those of ``jax.scipy.special``.

All are elementwise, take arrays and scalars, and give floating arrays: float32 for integers unless 64 bits are enabled.
"""

from meshrt.core.tracebacks import offer as _offer
from meshrt.numpy.names import missing as _missing
from meshrt.scipy.special import (
    bessel,
    error_functions,
    exponential_integrals,
    gammas,
    hypergeometric,
    information,
    integrals,
    legendre,
    normal,
)
from meshrt.scipy.special.bessel import *  # noqa: F403
from meshrt.scipy.special.error_functions import *  # noqa: F403
from meshrt.scipy.special.exponential_integrals import *  # noqa: F403
from meshrt.scipy.special.gammas import *  # noqa: F403
from meshrt.scipy.special.hypergeometric import *  # noqa: F403
from meshrt.scipy.special.information import *  # noqa: F403
from meshrt.scipy.special.integrals import *  # noqa: F403
from meshrt.scipy.special.legendre import *  # noqa: F403
from meshrt.scipy.special.normal import *  # noqa: F403

_FAMILIES = (
    bessel, error_functions, exponential_integrals, gammas, hypergeometric, information, integrals,
    legendre, normal,
)  # fmt: skip
__all__ = sorted(name for family in _FAMILIES for name in family.__all__)  # noqa: PLE0605
__getattr__ = _missing(__name__, __all__)
_offer(globals(), __all__)
