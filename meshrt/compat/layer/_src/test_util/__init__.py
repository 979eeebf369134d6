"""`jax._src.test_util`: what tests written for JAX use, by its names. It needs absl, which such tests need too."""

from __future__ import annotations

from typing import Any

from meshrt import errors as _errors
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

_MPMATH = "it computes with mpmath, which no test of meshrt needs; compare with NumPy's functions of a wider dtype"
_EVENTS = "events are kept by meshrt.runtime.events: subscribe to them, or use the functions that count"
# What JAX has and there is not here, with why.
_ABSENT = {
    "EventThreadLocalState": _EVENTS, "NotPresent": "assert_global_configs_unchanged writes None for it",
    "event_listener": _EVENTS, "numpy_with_mpmath": _MPMATH, "thread_local_state": _EVENTS,
    "vectorize_with_mpmath": _MPMATH,
}  # fmt: skip
_unknown = _missing("jax._src.test_util", __all__)


def __getattr__(name: str) -> Any:
    if name in _ABSENT:
        raise _errors.MissingFunctionError(f"jax._src.test_util.{name} is not implemented: {_ABSENT[name]}")
    return _unknown(name)
