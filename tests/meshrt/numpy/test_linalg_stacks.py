"""`linalg` is over the last two dimensions, where `numpy` itself is over the first two."""

import itertools

import jax.numpy as jj
import numpy as np
import pytest

import meshrt.numpy as mj
from tests.meshrt.numpy.judge import check

X = np.arange(48, dtype=np.float32).reshape(2, 4, 3, 2) - 20
V = np.arange(24, dtype=np.float32).reshape(2, 4, 3) - 10
ROWS = {
    "diagonal": ((X,), [{}, {"offset": 1}, {"offset": -1}, {"offset": 5}, {"offset": -5}]),
    "trace": ((X,), [{}, {"offset": 1}, {"offset": -2}, {"dtype": np.int32}]),
    "matrix_transpose": ((X,), [{}]),
    "matrix_norm": ((X,), [{}, {"keepdims": True}, {"ord": 1}, {"ord": np.inf}, {"ord": -1}]),
    "vector_norm": ((X,), [{}, {"axis": 1}, {"axis": (0, 2), "keepdims": True}, {"ord": 1}, {"ord": np.inf}]),
    "norm": ((X,), [{"axis": (0, 2)}, {"axis": -1}, {"axis": 1, "ord": 3}, {"axis": (2, 1), "ord": 1}]),
    "matrix_power": ((X[..., :2, :],), [{"n": 0}, {"n": 1}, {"n": 3}]),
    "matmul": ((X, X.swapaxes(-1, -2)), [{}]),
    "vecdot": ((V, V), [{}, {"axis": 0}, {"axis": 1}]),
    "cross": ((V, V[::-1]), [{}, {"axis": -1}, {"axis": 0}]),
    "outer": ((V[0, 0], V[0, 1]), [{}]),
    "tensordot": ((X, X), [{"axes": 4}, {"axes": ((0, 1), (0, 1))}]),
}


@pytest.mark.parametrize("name,kwargs", [(n, k) for n, (_, options) in ROWS.items() for k in options])
def test_as_in_jax(name, kwargs):
    kwargs = dict(kwargs)
    check(getattr(mj.linalg, name), getattr(jj.linalg, name), *ROWS[name][0], tol=1e-5, **kwargs)


@pytest.mark.parametrize(
    "name,shape", [*itertools.product(["diagonal", "trace"], [(2, 3, 4), (0, 3, 3), (2, 0, 3), (3,)])]
)
def test_other_shapes(name, shape):
    check(getattr(mj.linalg, name), getattr(jj.linalg, name), np.ones(shape, np.float32))


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.int32, np.complex64])
def test_dtypes(dtype):
    for name in ("diagonal", "trace"):
        check(getattr(mj.linalg, name), getattr(jj.linalg, name), np.ones((2, 3, 3), dtype))


def test_outer_and_cross_take_vectors_only():
    check(mj.linalg.outer, jj.linalg.outer, V, V)
    check(mj.linalg.cross, jj.linalg.cross, X, X)
