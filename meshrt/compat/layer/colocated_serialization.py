"""`jax.experimental.colocated_python.serialization`: the class that libraries name in annotations."""

from meshrt.numpy.names import missing as _missing
from meshrt.runtime.jaxlib_api import _jax

__all__ = ["DeviceList"]

DeviceList = _jax.DeviceList
__getattr__ = _missing("jax.experimental.colocated_python.serialization", __all__)
