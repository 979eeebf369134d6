"""`jax.experimental.colocated_python.serialization`: the class that libraries name in annotations."""

from meshrt.numpy.names import missing as _missing
from meshrt.xla import jaxlib_api as _jaxlib

__all__ = ["DeviceList"]

DeviceList = type(_jaxlib.device_list(()))
__getattr__ = _missing("jax.experimental.colocated_python.serialization", __all__)
