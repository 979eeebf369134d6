"""`jax._src.state.types`."""

from meshrt.core.references import AbstractRef
from meshrt.numpy.names import missing as _missing

__all__ = ["AbstractRef"]

__getattr__ = _missing("jax._src.state.types", __all__)
