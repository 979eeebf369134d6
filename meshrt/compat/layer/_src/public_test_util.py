"""`jax._src.public_test_util`: derivatives against differences, and how near numbers have to be."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import test_util, tree_util
from meshrt.compat.layer._src.test_util import closeness
from meshrt.numpy.names import missing as _missing
from meshrt.test_util import EPS, check_grads, check_jvp, check_vjp

__all__ = [
    "EPS", "ToleranceDict", "add", "check_close", "check_grads", "check_jvp", "check_vjp", "conj",
    "default_gradient_tolerance", "default_tolerance", "inner_prod", "is_python_scalar", "numerical_jvp", "rand_like",
    "safe_sub", "scalar_mul", "sub", "tolerance",
]  # fmt: skip

ToleranceDict, tolerance, rand_like = closeness.ToleranceDict, closeness.tolerance, closeness.rand_like
check_close, default_tolerance = closeness.check_close, closeness.default_tolerance
default_gradient_tolerance = closeness.default_gradient_tolerance
_default_tolerance, _dtype = default_tolerance(), closeness.dtype_of
_assert_numpy_allclose, _check_dtypes_match = closeness.assert_numpy_allclose, closeness.check_dtypes_match
_assert_numpy_close = check_close
inner_prod, conj = test_util.inner, test_util.conjugate


def is_python_scalar(val: Any) -> bool:
    """Whether a value is a number of Python's, and none of NumPy's."""
    return type(val) in (bool, int, float, complex)


def _each(of: Any) -> Any:
    """A function of trees that is one of NumPy's at every leaf, and gives what the first tree's leaves are."""

    def at_leaf(x: Any, *others: Any) -> Any:
        out = np.asarray(of(x, *others)).astype(closeness.dtype_of(x))
        return out.item() if all(map(is_python_scalar, (x, *others))) else out

    return lambda *trees: tree_util.tree_map(at_leaf, *trees)


def _difference(x: Any, y: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return np.where(np.equal(x, y), 0, np.subtract(x, y))


add, sub = _each(np.add), _each(np.subtract)
# Of equal infinities it is zero.
safe_sub = _each(_difference)


def scalar_mul(xs: Any, a: Any) -> Any:
    """A tree with every leaf multiplied by a number."""
    return _each(lambda x: np.multiply(x, np.asarray(a, closeness.dtype_of(x))))(xs)


def numerical_jvp(f: Any, primals: Any, tangents: Any, eps: float = EPS) -> Any:
    """The derivative of `f` along `tangents` as central differences with the step `eps`."""
    return test_util.numeric_jvp(f, primals, tangents, eps)


__getattr__ = _missing("jax._src.public_test_util", __all__)
