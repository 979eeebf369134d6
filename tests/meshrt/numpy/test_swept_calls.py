"""Calls that seeded sweeps over the library found to differ from JAX's, one for each mechanism."""

import numpy as np
import pytest

from ..beside import assert_alike

X = np.arange(12, dtype=np.float32).reshape(3, 4)
EQUAL_REAL_PARTS = np.array([1 - 2j, 1 + 2j, 1 + 1j, -2j], np.complex64)

CALLS = {
    # Numbers.
    "roll by a float": lambda l, n: (n.roll(X, -1.5), n.roll(X, True), n.roll(X, (1.0,))),
    "vander of bools": lambda l, n: n.vander(n.array([True, False])),
    "a grid of a size": lambda l, n: n.indices(2),
    "triangles of floats": lambda l, n: n.tril_indices(1.0),
    "triangles, columns": lambda l, n: n.triu_indices(2, 0, 3.0),
    "negative triangles": lambda l, n: n.tril_indices(-1),
    "repeat by a float": lambda l, n: n.repeat(X, 1.5, axis=0),
    "partition of bools": lambda l, n: n.argpartition(n.array([True, False]), 0),
    "unlike shapes of a rank": lambda l, n: n.array_equiv(n.ones(3), n.ones(2)),
    "unlike ranks": lambda l, n: n.array_equiv(n.ones(3), n.ones((2, 2))),
    "clip of nothing": lambda l, n: n.clip(),
    "dtype that is an array": lambda l, n: n.array(X, n.ones(2)),
    "dtype that is an array of NumPy": lambda l, n: n.array(X, X),
    "lists in a chain": lambda l, n: n.linalg.multi_dot([X, [1.0, 2.0, 3.0, 4.0]]),
    "weights for interpolation": lambda l, n: n.quantile(X, 0.5, weights=X),
    "complex quantile": lambda l, n: n.quantile(X + 1j, 1),
    "a mask of more dimensions": lambda l, n: n.var(n.float32(1), where=n.ones(3, bool)),
    "order of an array": lambda l, n: n.asarray(n.ones(3), order="C"),
    "flat": lambda l, n: n.ones(3).flat,
    "flat in vmap": lambda l, n: l.vmap(lambda x: x.flat)(n.ones(3)),
    # Membership.
    "in": lambda l, n: (1 in n.arange(3), 5.0 in n.arange(3), np.int8(2) in n.arange(3), 1 in n.zeros(0)),
    "in a matrix": lambda l, n: 3.0 in n.ones((2, 2)),
    "in a number": lambda l, n: 1 in n.float32(1),
    "an array in a vector": lambda l, n: n.array([1]) in n.arange(3),
    "text in a vector": lambda l, n: "a" in n.arange(3),
    "in a traced vector": lambda l, n: l.jit(lambda x: 1 in x)(n.arange(3)),
    # Updates.
    "an unknown mode for a window": lambda l, n: n.ones(3).at[0].set(1, mode="bogus"),
    "ufunc at, weak": lambda l, n: (
        n.bitwise_and.at(n.arange(3, dtype=n.uint8), 0, 1, inplace=False),
        n.maximum.at(n.arange(3, dtype=n.uint8), n.array([0, 1]), 1, inplace=False),
    ),
    "an unknown mode for nothing": lambda l, n: n.ones((0, 3)).at[:].set(1, mode="wrap"),
    "products of bools": lambda l, n: l.lax.mul(n.array([True]), n.array([True])),
    "a bool multiplied": lambda l, n: n.ones(3, bool).at[0].multiply(True),
    "bools multiplied": lambda l, n: n.ones(3, bool).at[n.array([0])].multiply(True),
    "a bool to a power": lambda l, n: n.ones(3, bool).at[0].power(True),
    "bools added": lambda l, n: n.zeros(3, bool).at[n.array([0, 0])].add(True),
    "bools added in segments": lambda l, n: l.ops.segment_sum(n.array([True, True]), n.array([0, 0]), 2),
    "bools counted": lambda l, n: n.bincount(n.array([0, 0]), weights=n.array([True, True])),
    "bools subtracted": lambda l, n: l.lax.scatter_sub(
        n.ones(3, bool), n.zeros((1, 1), int), n.ones(1, bool), l.lax.ScatterDimensionNumbers((), (0,), (0,))
    ),
    "complex maxima in segments": lambda l, n: (
        l.ops.segment_max(n.array(EQUAL_REAL_PARTS), n.array([0, 0, 0, 1]), 3),
        l.ops.segment_min(n.array(EQUAL_REAL_PARTS), n.array([0, 0, 0, 1]), 3),
        n.array(EQUAL_REAL_PARTS).at[n.array([0, 0, 5])].max(EQUAL_REAL_PARTS[2:0:-1].repeat(2)[:3]),
        l.vmap(lambda x: n.zeros(2, x.dtype).at[0].min(-x))(n.array(EQUAL_REAL_PARTS)),
    ),
    "complex extremes of windows": lambda l, n: [
        l.lax.reduce_window(n.array(EQUAL_REAL_PARTS), n.complex64(init), function, (2,), (1,), padding)
        for init, function in ((-n.inf, l.lax.max), (-n.inf * (1 + 1j), l.lax.max), (n.inf * (1 + 1j), l.lax.min))
        for padding in ("SAME", "VALID")
    ],
    "slopes of complex maxima": lambda l, n: l.grad(
        lambda x: n.abs(l.ops.segment_max(x, n.array([0, 0, 0, 1]), 2)).sum()
    )(n.array(EQUAL_REAL_PARTS)),
    # lax.
    "reduce from another dtype": lambda l, n: l.lax.reduce(n.arange(3), 0.0, lambda x, y: x + y, (0,)),
    "reduce by add from another dtype": lambda l, n: l.lax.reduce(n.arange(3), 0.0, l.lax.add, (0,)),
    "windows from another dtype": lambda l, n: l.lax.reduce_window(
        n.arange(3), 0.0, lambda x, y: x + y, (2,), (1,), "VALID"
    ),
    "maxima of windows from infinity": lambda l, n: l.lax.reduce_window(
        n.arange(3), -n.inf, l.lax.max, (2,), (1,), "VALID"
    ),
    "whole powers": lambda l, n: (l.lax.pow(X - 3, 3), l.lax.pow(X, 0), l.lax.pow(n.zeros(2), -2)),
    "signs as bools": lambda l, n: l.random.rademacher(l.random.key(7), (2,), bool),
    "a list as logits": lambda l, n: l.random.categorical(l.random.key(7), [0.0, 1.0]),
    "unsigned counts": lambda l, n: l.random.poisson(l.random.key(7), 3.0, (2,), n.uint32),
    "curvature of eigenvalues": lambda l, n: l.hessian(lambda x: l.lax.linalg.eigh(x, symmetrize_input=False)[1][0])(
        n.array([[4.0, 1.0], [1.0, 3.0]])
    ),
    "choice of a float": lambda l, n: l.random.choice(l.random.key(0), 3.7, (5,)),
    "choice of less than one": lambda l, n: l.random.choice(l.random.key(0), 0.5),
    "whole nanvar of integers": lambda l, n: (
        n.nanvar(n.arange(3), dtype=n.uint8),
        n.nanstd(n.arange(3), dtype=n.uint8),
        n.nanvar(X, dtype=n.uint8),
    ),
    "a key as a number": lambda l, n: l.random.key(0).astype(n.float32),
    "the bits of a key": lambda l, n: l.random.key(0).view(n.uint32),
    "negative dimensions of a product": lambda l, n: l.lax.dot_general(X, X.T, (((-1,), (0,)), ((), ()))),
    "disjunction of floats along nothing": lambda l, n: l.lax.reduce_or(X, ()),
    "a power that is an array": lambda l, n: l.lax.integer_pow(X, X),
    "transform along nothing": lambda l, n: l.lax.fft(n.ones(3), "fft", ()),
    "transform of a length": lambda l, n: l.lax.fft(n.ones(3), "fft", 3),
    "ranks of what is joined": lambda l, n: l.lax.concatenate([n.float32(0), n.ones(3)], -1),
    "collapse from the start": lambda l, n: l.lax.collapse(X, None),
    "unknown padding of windows": lambda l, n: l.lax.reduce_window(X, 0.0, l.lax.add, (2, 2), (1, 1), "x"),
    "unknown padding of convolutions": lambda l, n: l.lax.conv(X[None, None], X[None, None], (1, 1), "x"),
    "unknown padding backwards": lambda l, n: l.lax.conv_transpose(n.ones((1, 3, 1)), n.ones((2, 1, 1)), (1,), "x"),
    "largest of integers": lambda l, n: (
        l.lax.reduce_window(n.arange(3, dtype=n.uint8), n.inf, l.lax.min, (2,), (1,), "SAME"),
        l.lax.reduce_window(n.arange(-3, 0, dtype=n.int8), -n.inf, l.lax.max, (2,), (1,), "SAME"),
    ),
    "half as start of integers": lambda l, n: l.lax.reduce_window(n.arange(3), 0.5, l.lax.add, (2,), (1,), "SAME"),
    "start of another dtype": lambda l, n: l.lax.reduce_window(
        n.ones(3, n.float16), np.float32(1), lambda a, b: a + 2 * b, (2,), (1,), "SAME"
    ),
    # linalg, special functions, distributions.
    "symmetric, of integers": lambda l, n: (
        l.lax.linalg.cholesky(n.array([[4, 2], [2, 5]])),
        l.lax.linalg.eigh(n.array([[4, 0], [0, 5]]))[1],
    ),
    "schur of integers": lambda l, n: l.scipy.linalg.schur(n.eye(2, dtype=int)),
    "hessenberg of integers": lambda l, n: l.scipy.linalg.hessenberg(n.eye(3, dtype=int)),
    "stack of roots": lambda l, n: l.scipy.linalg.sqrtm(n.ones((2, 2, 2))),
    "complex boxcox": lambda l, n: (l.scipy.special.boxcox(n.array([1 + 2j]), 2), l.scipy.special.boxcox1p(1j, 2)),
    "expn of a list": lambda l, n: l.scipy.special.expn([1, 2], n.array([1.0, 2.0])),
    "below the support": lambda l, n: (
        l.scipy.stats.gamma.sf(n.array([-1.0, 1.0, -1.0]), n.array([2.0, 2.0, -2.0])),
        l.vmap(l.grad(lambda x: l.scipy.stats.chi2.sf(x, 2.0)))(n.array([-1.0, 1.0, 0.0])),
    ),
    "curvature of an entropy": lambda l, n: l.vmap(l.grad(l.grad(l.scipy.stats.poisson.entropy)))(n.array([0.5, 2.0])),
    "no derivative in the order": lambda l, n: l.grad(l.grad(lambda a: l.lax.igamma(a, 2.0)))(1.0),
    "segments of a number": lambda l, n: l.ops.segment_sum(n.uint32(4), n.array([0, 1, 1]), 3),
    # Random numbers.
    "counts in floats": lambda l, n: l.random.poisson(l.random.key(0), 3.0, dtype=float),
    "integers in floats": lambda l, n: l.random.randint(l.random.key(0), (2,), 0, 5, dtype=float),
    # Trees.
    "reduction of no leaves": lambda l, n: l.tree_util.tree_reduce_associative(lambda a, b: a + b, []),
    "one level": lambda l, n: str(l.tree_util.flatten_one_level_with_keys({"b": 1, "a": 2})),
}


@pytest.mark.parametrize("name", CALLS)
def test_as_in_jax(name):
    import jax.ops
    import jax.scipy.linalg
    import jax.scipy.special
    import jax.scipy.stats  # noqa: F401

    rounding = 2e-5 if name in ("expn of a list", "curvature of an entropy", "below the support") else None
    assert_alike(lambda l: CALLS[name](l, l.numpy), rtol=rounding)


@pytest.mark.parametrize("count", [12, 13, 14, 15, 16, 18])
def test_printed_as_in_jax(count):
    assert_alike(lambda l: repr(l.numpy.ones(count)))
    assert_alike(lambda l: repr(l.numpy.broadcast_to(1.0, (count,))))
    assert_alike(lambda l: repr(l.numpy.ones((2, count))))
