"""`jax._src.test_util`: what tests written for JAX use, by its names. It needs absl, which such tests need too."""

from __future__ import annotations

from meshrt.compat.layer._src import test_loader
from meshrt.compat.layer._src.test_util import cases, closeness, counts, devices, samples, values
from meshrt.compat.layer._src.test_warning_util import ignore_warning
from meshrt.numpy.names import missing as _missing
from meshrt.test_util import check_grads, check_jvp, check_vjp

_parts = (cases, closeness, counts, devices, samples, values, test_loader)
__all__ = ["check_grads", "check_jvp", "check_vjp", "dtypes", "ignore_warning"]
__all__ += [name for part in _parts for name in part.__all__]
for _part in _parts:
    globals().update({name: getattr(_part, name) for name in _part.__all__})
dtypes = samples.every_dtype
_default_tolerance, _dtype = closeness.default_tolerance(), closeness.dtype_of
_assert_numpy_allclose, _check_dtypes_match = closeness.assert_numpy_allclose, closeness.check_dtypes_match
_cast_to_shape, _dims_of_shape = values.cast_to_shape, values.dims_of_shape
__getattr__ = _missing("jax._src.test_util", __all__)
