"""Linear algebra: names and signatures are those of ``jax.scipy.linalg``.

Functions of matrices take batches in leading dimensions. `overwrite_a`, `check_finite` and the like have no effect:
arrays are never changed, and whether values are finite is not known before a program runs.
"""

from meshrt.core.tracebacks import offer as _offer
from meshrt.numpy.names import missing as _missing
from meshrt.scipy.linalg import exponential, factors, forms, matrices, sylvester, systems, tridiagonal
from meshrt.scipy.linalg.exponential import *  # noqa: F403
from meshrt.scipy.linalg.factors import *  # noqa: F403
from meshrt.scipy.linalg.forms import *  # noqa: F403
from meshrt.scipy.linalg.matrices import *  # noqa: F403
from meshrt.scipy.linalg.sylvester import *  # noqa: F403
from meshrt.scipy.linalg.systems import *  # noqa: F403
from meshrt.scipy.linalg.tridiagonal import *  # noqa: F403

_FAMILIES = (exponential, factors, forms, matrices, sylvester, systems, tridiagonal)
__all__ = sorted(name for family in _FAMILIES for name in family.__all__)  # noqa: PLE0605
__getattr__ = _missing(__name__, __all__)
_offer(globals(), __all__)
