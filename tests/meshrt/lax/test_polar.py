"""The polar decomposition by iteration, beside JAX's: factors, and how many steps they take."""

import jax
import numpy as np
import pytest

import meshrt

OPTIONS = {"plain": {}, "few": {"max_iterations": 2}, "coarse": {"eps": 1e-3}}


def matrix(shape, dtype):
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape) + (1j * rng.normal(size=shape) if np.dtype(dtype).kind == "c" else 0)
    return x.astype(dtype)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
@pytest.mark.parametrize("shape", [(5, 3), (1, 1)])
@pytest.mark.parametrize("name", [*OPTIONS, "smaller"])
def test_factors_and_steps_are_those_of_jax(dtype, shape, name):
    options = OPTIONS.get(name, {"dynamic_shape": (max(shape[0] - 1, 1), max(shape[1] - 1, 1))})
    with jax.enable_x64(True), meshrt.enable_x64(True):
        x = matrix(shape, dtype)
        theirs, ours = (library.lax.linalg.qdwh(x, **options) for library in (jax, meshrt))
        for a, b in zip(ours, theirs):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, atol=1e-5 if dtype == np.float32 else 1e-12)


def test_wide_matrices_are_refused():
    for library in (jax, meshrt):
        with pytest.raises(ValueError, match="M >= N"):
            library.lax.linalg.qdwh(np.ones((2, 3), np.float32))
