"""Exchange of arrays with other libraries (`jax.dlpack`).

>>> import meshrt, numpy as np
>>> meshrt.dlpack.from_dlpack(np.arange(3, dtype="float32"))
Array([0., 1., 2.], dtype=float32)
"""

from meshrt.runtime.dlpack import is_supported_dtype
from meshrt.runtime.transfer import from_dlpack

__all__ = ["from_dlpack", "is_supported_dtype"]
