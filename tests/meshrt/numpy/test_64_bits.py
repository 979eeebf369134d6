"""Positions, counts and ends of ranges where 64 bits are enabled."""

import warnings

import jax
import jax.numpy as theirs
import numpy as np
import pytest

import meshrt
import meshrt.numpy as ours

F, J = np.eye(3), np.array([1, 2, 2, 0])
CASES = {
    "nonzero": lambda m: m.nonzero(J), "nonzero sized": lambda m: m.nonzero(F, size=5, fill_value=-1),
    "nonzero of none": lambda m: m.nonzero(F[:0], size=2), "flatnonzero": lambda m: m.flatnonzero(J),
    "tril_indices": lambda m: m.tril_indices_from(F), "mask_indices": lambda m: m.mask_indices(3, np.triu),
    "unique": lambda m: m.unique(J, size=5, return_counts=True, return_index=True, return_inverse=True),
    "unique_counts": lambda m: m.unique_counts(J, size=4), "argwhere": lambda m: m.argwhere(F),
    "geomspace": lambda m: m.geomspace(1, 1000, 4, dtype=int), "geomspace floats": lambda m: m.geomspace(2, 7, 5),
    "geomspace open": lambda m: m.geomspace(2, 7, 5, endpoint=False), "geomspace one": lambda m: m.geomspace(2, 7, 1),
    "where": lambda m: m.where(J), "det": lambda m: m.linalg.det(F * 3), "solve": lambda m: m.linalg.solve(F * 3, F),
}  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_as_in_jax(name):
    with meshrt.enable_x64(True):
        got = meshrt.tree.leaves(CASES[name](ours))
    with jax.enable_x64(True):
        wanted = jax.tree.leaves(CASES[name](theirs))
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), 1e-12)


MIXED = {
    "operators": lambda m, x: [x + 1, 2.0 * x, x - x, x * np.float32(2), -x, x // 2 if x.dtype.kind != "c" else x],
    "a maximum": lambda m, x: m.maximum(x, 0),
    "a choice": lambda m, x: m.where(x > 1, x, 0),
    "updates": lambda m, x: [x.at[0].set(5), x.at[0].add(1), x.at[m.array([0, 0])].add(x[1:]), x.at[:].set(1)],
    "updates by narrow ones": lambda m, x: [x.at[0].set(np.float32(2)), x.at[m.array([2])].mul(np.int8(2))],
    "sums": lambda m, x: [m.sum(x), m.prod(x), x.mean(), m.nansum(x), m.cumsum(x), m.count_nonzero(x)],
    "extremes": lambda m, x: [m.max(x), x.min(), m.ptp(x)],
    "a norm": lambda m, x: m.linalg.norm(x.astype("float64") if x.dtype.kind in "iu" else x),
    "arrays like it": lambda m, x: [m.zeros_like(x), m.full_like(x, 2), m.ones_like(x, shape=(2,))],
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "complex128"])
@pytest.mark.parametrize("name", MIXED)
def test_wide_arrays_where_64_bits_are_off_again(name, dtype, compiled):
    found = []
    for lib in (meshrt, jax):
        with lib.enable_x64(True):
            x = lib.numpy.asarray(np.array([1, 2, 3], dtype))
        program = lambda x, lib=lib: MIXED[name](lib.numpy, x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # both say that wide types become narrow
            found.append(lib.tree.leaves((lib.jit(program) if compiled else program)(x)))
    for a, b in zip(*found, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a), np.asarray(b))
