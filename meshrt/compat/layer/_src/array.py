"""`jax._src.array`: arrays, and what makes them of parts."""

from meshrt import (
    Array,
    make_array_from_callback,
    make_array_from_process_local_data,
    make_array_from_single_device_arrays,
)
from meshrt.numpy.names import missing as _missing

ArrayImpl = Array
__all__ = [
    "ArrayImpl", "make_array_from_callback", "make_array_from_process_local_data",
    "make_array_from_single_device_arrays",
]  # fmt: skip
__getattr__ = _missing("jax._src.array", __all__)
