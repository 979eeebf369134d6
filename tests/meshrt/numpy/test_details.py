"""Details that programs meet, beside JAX: values, dtypes, weak types, kinds of errors. One row, one difference once."""

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy

I8 = np.int8
ROWS = {
    # an integer exponent that is not static: the base's dtype, strong; the derivative at zero
    "decay": lambda l: 0.9 ** l.numpy.arange(3),
    "weak base": lambda l: l.numpy.asarray(0.9) ** l.numpy.arange(3),
    "half base": lambda l: l.numpy.ones((2, 3), "bfloat16") ** l.numpy.arange(3),
    "complex base": lambda l: 1j ** l.numpy.arange(3),
    "static array": lambda l: l.numpy.power(2.0, np.array(2)),
    "x**0 at 0": lambda l: l.jit(l.grad(lambda x, n: x**n))(np.float32(0), 0),
    "x**n at 0": lambda l: l.grad(lambda x: (x ** l.numpy.array([0, 2, -1])).sum())(np.float32(0)),
    "x**n at -2": lambda l: l.grad(lambda x: (x ** l.numpy.array([0, 2, 3])).sum())(np.float32(-2)),
    "x**n at inf": lambda l: l.vmap(l.grad(lambda x, n: x**n), (None, 0))(np.float32(np.inf), np.arange(3)),
    "x**n mapped": lambda l: l.vmap(lambda x, n: x**n)(l.numpy.arange(3.0), l.numpy.arange(3)),
    "x**n twice": lambda l: l.hessian(lambda x: x ** l.numpy.int32(3))(2.0),
    "lax.pow": lambda l: l.lax.pow(l.numpy.arange(3.0), l.numpy.arange(3)),
    "|x| at 0": lambda l: l.grad(l.numpy.abs)(np.float32(0)),
    "|x| twice": lambda l: l.vmap(l.grad(l.grad(lambda x: l.numpy.abs(x) ** 3)))(np.float32([-2, 0, 3])),
    "complex to real": lambda l: l.grad(lambda x: (l.numpy.abs(x) ** 2).sum())(np.complex64([1 + 2j, 3j])),
    "complex to complex": lambda l: l.grad(lambda x: x * x)(np.complex64(1j)),
    "argnums": lambda l: l.grad(lambda x: x, 1)(2.0),
    # captured NumPy arrays of 64 bits
    "float64": lambda l: l.jit(lambda: np.ones(2))(),
    "int64": lambda l: l.jit(lambda: np.arange(3))(),
    "complex128": lambda l: l.jit(lambda: np.ones(2) * 1j)(),
    "float64 operands": lambda l: l.jit(lambda: l.lax.add(np.ones(2), np.ones(2)))(),
    "float64 in a list": lambda l: l.jit(lambda x: l.lax.concatenate([np.ones(2), x], 0))(np.ones(3)),
    "int64 sliced": lambda l: l.jit(lambda i: l.lax.dynamic_index_in_dim(np.arange(5), i, keepdims=False))(3),
    "float64 chosen": lambda l: l.jit(lambda x: l.lax.select(np.array([True, False]), x, np.zeros(2)))(np.ones(2)),
    # a Python scalar beside a NumPy one of a lower kind
    "weak and int8": lambda l: l.numpy.add(2.5, I8(3)),
    "weak and bool": lambda l: l.numpy.add(3, np.bool_(1)),
    "weak and vector": lambda l: l.numpy.asarray(2.5) + np.ones(2, I8),
    "bool % 3": lambda l: l.numpy.ones(2, bool) % 3,
    "int % 0": lambda l: l.numpy.arange(3) % 0,
    # Python's protocols
    "round": lambda l: round(l.numpy.arange(3) / 2.0),
    "round to 2": lambda l: round(l.numpy.arange(3) / 7, 2),
    "equal to a list": lambda l: l.numpy.ones(3) == [1, 2, 3],
    "list times": lambda l: [1, 2, 3] * l.numpy.ones(3),
    "tuple plus": lambda l: l.numpy.ones(3) + (1, 2, 3),
    "equal to None": lambda l: l.numpy.ones(3) is not None and (l.numpy.ones(3) != None),  # noqa: E711
    "format": lambda l: f"{l.numpy.ones(()):.3f}",
    "format of many": lambda l: f"{l.numpy.ones(3):.3f}",
    "format of none": lambda l: f"{l.numpy.ones(3)}",
    "isscalar": lambda l: [l.numpy.isscalar(v) for v in (1, "a", np.array(1.0), l.numpy.ones(()), [1])],
    "iterable": lambda l: [l.numpy.iterable(v) for v in (1, [1])],
    # arguments
    "argmax of axes": lambda l: l.numpy.ones((2, 3)).argmax((0, 1)),
    "argsort method": lambda l: l.numpy.arange(3).argsort(descending=True),
    "argsort dtype": lambda l: l.numpy.ones(3).argsort(dtype=np.float32),
    "indices": lambda l: l.numpy.ones((3, 3))[np.array([0, 1]), np.array([0, 1, 2])],
    "index mode": lambda l: l.numpy.ones(3).at[5].get(mode="wrap"),
    "arange complex": lambda l: l.numpy.arange(1j),
    "arange of many": lambda l: l.numpy.arange(np.ones(2)),
    # derivatives where operands are equal or infinite
    "logaddexp slopes": lambda l: _slopes(l, "logaddexp"),
    "logaddexp2 slopes": lambda l: _slopes(l, "logaddexp2"),
    # keys
    "keys equal": lambda l: l.random.split(l.random.key(1), 2) == l.random.key(1),
    "keys differ": lambda l: l.vmap(lambda k: k != l.random.key(0))(l.random.split(l.random.key(0), 2)),
    "zeros like keys": lambda l: l.random.key_data(l.numpy.zeros_like(l.random.split(l.random.key(3), 2))),
    "one key": lambda l: l.random.normal(l.random.split(l.random.key(0), 2), (2,)),
}


def _slopes(l, name):
    pairs = np.array([[0, 0], [1, 1], [1, 2], [np.inf, 0], [0, np.inf], [np.inf, np.inf], [-np.inf, 0]], np.float32)
    return l.numpy.stack([l.vmap(l.grad(getattr(l.numpy, name), n))(*pairs.T) for n in (0, 1)])


@pytest.mark.parametrize("name", ROWS)
def test_as_in_jax(name):
    try:
        theirs = ROWS[name](jax)
    except Exception as e:
        kinds = tuple(k for k in type(e).__mro__ if k.__module__ == "builtins" and k not in (Exception, BaseException))
        with pytest.raises(kinds[:-1]):
            ROWS[name](meshrt)
        return
    ours = ROWS[name](meshrt)
    if not hasattr(theirs, "dtype"):
        assert (type(ours), ours) == (type(theirs), theirs)
        return
    assert (ours.dtype, ours.weak_type, ours.shape) == (theirs.dtype, theirs.weak_type, theirs.shape)
    np.testing.assert_allclose(np.asarray(ours, np.complex64), np.asarray(theirs, np.complex64), rtol=1e-5)
