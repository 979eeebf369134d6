"""`jax._src.dtypes`."""

from meshrt.dtypes import *  # noqa: F403
from meshrt.dtypes import __all__ as _all
from meshrt.numpy.names import missing as _missing

__all__ = list(_all)
__getattr__ = _missing("jax._src.dtypes", __all__)
