"""`jax._src.public_test_util`: derivatives against differences, and how near numbers have to be."""

from meshrt.compat.layer._src.test_util import closeness
from meshrt.test_util import EPS, check_grads, check_jvp, check_vjp

ToleranceDict, tolerance, rand_like = closeness.ToleranceDict, closeness.tolerance, closeness.rand_like
check_close, default_tolerance = closeness.check_close, closeness.default_tolerance
default_gradient_tolerance = closeness.default_gradient_tolerance
_default_tolerance, _dtype = default_tolerance(), closeness.dtype_of
_assert_numpy_allclose, _check_dtypes_match = closeness.assert_numpy_allclose, closeness.check_dtypes_match
__all__ = [
    "EPS", "ToleranceDict", "check_close", "check_grads", "check_jvp", "check_vjp", "default_gradient_tolerance",
    "default_tolerance", "rand_like", "tolerance",
]  # fmt: skip
