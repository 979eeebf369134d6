"""`jax._src.dtypes`."""

from typing import Any

import numpy as np

from meshrt.dtypes import *  # noqa: F403
from meshrt.dtypes import DType
from meshrt.dtypes import __all__ as _all
from meshrt.numpy.names import missing as _missing

__all__ = [*_all, "DType", "supports_inf"]  # noqa: PLE0604


def supports_inf(dtype: Any) -> bool:
    """Whether a floating-point type has infinities."""
    return bool(np.isinf(np.array(np.inf).astype(dtype)))


__getattr__ = _missing("jax._src.dtypes", __all__)
