"""Arguments that are easily taken without a word, beside JAX: refused where it refuses them, and weak where it is."""

from __future__ import annotations

import jax.flatten_util  # noqa: F401  (the programs ask jax for it)
import numpy as np
import pytest

from tests.meshrt.beside import assert_alike

X = np.arange(3, dtype=np.float32)
FLAG, ONE = np.array([True]), np.array([1])
COMPLEX = (X + 1j).astype(np.complex64)

PROGRAMS = {
    **{f"order {o}": lambda l, o=o: (l.numpy.asarray(X, order=o), l.numpy.copy(X, order=o)) for o in "CKAF"},
    **{
        f"{f} along {a!r}": lambda l, f=f, a=a: getattr(l.numpy, f)(X[0] if f == "cumsum" else X, axis=a)
        for f in ("cumsum", "cumprod", "argmax", "unwrap")
        for a in ((), (0,), (0, 1), 1.0, 2, "a")
    },
    "counting in bool": lambda l: l.lax.iota(bool, 3),
    "a range in bool": lambda l: l.numpy.arange(3, dtype=bool),
    "an empty range in bool": lambda l: l.numpy.arange(0, dtype=bool),
    "indices in bool": lambda l: l.numpy.indices((2,), dtype=bool),
    "a range to a truth value": lambda l: l.numpy.arange(True),
    "a range to nowhere": lambda l: l.numpy.arange(None),
    "a range from nowhere": lambda l: l.numpy.arange(None, 3),
    "frequencies of nothing": lambda l: l.numpy.fft.fftfreq(None),
    "no permutation": lambda l: l.numpy.permute_dims(X, None),
    "an unknown kind of dtype": lambda l: l.numpy.isdtype("float32", "foo"),
    "signs of complex numbers": lambda l: l.numpy.signbit(COMPLEX),
    "infinities of complex numbers": lambda l: l.numpy.isposinf(COMPLEX),
    "a transform of halves": lambda l: l.numpy.fft.rfft(X.astype(np.float16)),
    "a transform of another length": lambda l: l.lax.fft(X, "fft", (4,)),
    "an unknown transform": lambda l: l.lax.fft(X, "x", (3,)),
    "more keys than operands": lambda l: l.lax.sort(X, num_keys=2),
    "a mask of another shape": lambda l: l.numpy.mean(X, where=np.ones((2, 1), bool)),
    "a mask of a number": lambda l: l.numpy.var(np.float32(1), where=np.ones(3, bool)),
    "too much to unravel": lambda l: l.flatten_util.ravel_pytree({"a": X})[1](np.ones(4, np.float32)),
    "a float as a dimension": lambda l: l.scipy.special.multigammaln(2.5, 2.0),
    "angles of complex numbers": lambda l: (
        l.numpy.arctan2(X, 1 + 2j), l.grad(lambda z: l.numpy.arctan2(z, 1 + 2j), holomorphic=True)(1 + 0.5j),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_against_jax(name):
    assert_alike(PROGRAMS[name])


@pytest.mark.parametrize("name", ["hypot", "heaviside", "logaddexp2", "gcd", "lcm", "add"])
def test_weakness_of_mixed_operands(name):
    operands = [FLAG, ONE, np.array([1], np.int8), 1]
    operands += [] if name in ("gcd", "lcm") else [X[:1], 1.5]
    for a in operands:
        for b in operands:
            if name in ("gcd", "lcm") and a is b is FLAG:
                continue
            assert_alike(lambda l: l.eval_shape(lambda: getattr(l.numpy, name)(a, b)))


@pytest.mark.parametrize("name", ["hypot", "heaviside", "logaddexp2", "gcd", "lcm", "add"])
def test_weakness_of_weak_arrays(name):
    weak = lambda l: l.numpy.full((2,), 4)
    for operands in (lambda l: (weak(l), weak(l)), lambda l: (2, weak(l)), lambda l: (weak(l), l.numpy.asarray(2))):
        assert_alike(lambda l: l.eval_shape(lambda: getattr(l.numpy, name)(*operands(l))))
