"""Objects with `__jax_array__` in place of arrays, and results that lie where their operand does, as in JAX."""

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy

V = np.float32([[4, 1], [1, 3]])


class Given:
    """Not an array, but gives one."""

    def __init__(self, value):
        self.value = value

    def __jax_array__(self):
        return meshrt.numpy.asarray(self.value)


def _like(l, value):
    """For JAX the array itself: some of its functions refuse what gives one."""
    return Given(value) if l is meshrt else value


ONE = [
    "shape", "ndim", "size", "matrix_transpose", "zeros_like", "ones_like", "asarray", "array", "nanargmax",
    "nanargmin", "sum", "sin", "transpose", "ravel", "cumsum", "sort", "diff", "trace",
    "linalg.norm",
    "linalg.matrix_transpose", "argmax", "nonzero", "flip", "squeeze", "mean", "max", "diag", "any",
]  # fmt: skip
TWO = ["add", "fmod", "matmul", "maximum", "where", "dot", "hypot", "kron", "equal", "power", "arctan2", "vdot"]


def _get(l, name):
    for part in name.split("."):
        l = getattr(l, part)
    return l


def _same(run):
    ours, theirs = run(meshrt), run(jax)
    for a, b in zip(meshrt.tree_util.tree_leaves(ours), jax.tree_util.tree_leaves(theirs), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5)


@pytest.mark.parametrize("name", ONE)
def test_of_one(name):
    _same(lambda l: _get(l.numpy, name)(_like(l, V)))


@pytest.mark.parametrize("name", TWO)
def test_of_two(name):
    first = (V > 2,) if name == "where" else ()
    _same(lambda l: _get(l.numpy, name)(*first, _like(l, V), V))
    _same(lambda l: _get(l.numpy, name)(*first, V, _like(l, V)))


def test_among_others():
    _same(lambda l: l.numpy.asarray([_like(l, V), V]))
    _same(lambda l: l.numpy.stack([l.numpy.asarray(_like(l, V)), V]))
    _same(lambda l: l.numpy.extract(V > 2, _like(l, V)))
    _same(lambda l: l.numpy.roll(_like(l, V), 1))
    _same(lambda l: l.numpy.full_like(_like(l, V), 3.0))


PLACED = {
    "full_like": lambda l, x, e: l.numpy.full_like(x, 1, shape=()),
    "zeros_like": lambda l, x, e: l.numpy.zeros_like(x, shape=(3,)),
    "lax.full_like": lambda l, x, e: l.lax.full_like(x, 1, shape=(2,)),
    "empty mask": lambda l, x, e: x[np.array([False, False])],
    "mask": lambda l, x, e: x[x > 100],
    "nonzero": lambda l, x, e: l.numpy.nonzero(x)[0],
    "argwhere": lambda l, x, e: l.numpy.argwhere(x > 1),
    "extract": lambda l, x, e: l.numpy.extract(np.zeros((2, 2), bool), x),
    "compress": lambda l, x, e: l.numpy.compress(np.array([False, False]), x, axis=0),
    "take along": lambda l, x, e: l.numpy.take_along_axis(x, np.zeros((2, 0), np.int32), 1),
    "at none": lambda l, x, e: x.at[np.zeros((0,), np.int32)].add(1.0),
    "sum of none": lambda l, x, e: l.numpy.sum(e, 0),
    "matmul of none": lambda l, x, e: e.T @ e,
    "scan of none": lambda l, x, e: l.lax.scan(lambda c, v: (c, v), x[0], e)[0],
    "grad": lambda l, x, e: l.grad(lambda x: l.numpy.sum(x * 2))(x),
    "random": lambda l, x, e: l.random.normal(l.device_put(l.random.key(0), l.devices()[1]), (0,)),
}


@pytest.mark.parametrize("name", PLACED)
def test_results_lie_where_their_operand_does(name):
    def where(l):
        device = l.devices()[1]
        x, e = l.device_put(V, device), l.device_put(np.zeros((0, 2), np.float32), device)
        return [d.id for d in PLACED[name](l, x, e).devices()]

    assert where(meshrt) == where(jax) == [1]


def _flags(l):
    a, b = l.numpy.ones(4), l.numpy.ones(4)
    l.device_put((a, b), l.devices()[1], donate=(True, False))
    c = l.numpy.ones(4)
    kept = l.device_put((c, c), None, may_alias=(True, False))
    return b.is_deleted(), [k.unsafe_buffer_pointer() == c.unsafe_buffer_pointer() for k in kept]


def test_flags_of_device_put_are_of_leaves():
    assert _flags(meshrt) == _flags(jax) == (False, [True, False])
    for l in (meshrt, jax):
        with pytest.raises(ValueError):
            l.device_put(l.numpy.ones(2), l.devices()[1], donate=True, may_alias=True)


def test_values_are_not_printed_where_nothing_is_wrong():
    class Silent(np.ndarray):
        def __repr__(self):
            raise AssertionError("printed")

    x = V.view(Silent)
    for make in (meshrt.numpy.asarray, meshrt.numpy.array, meshrt.numpy.full_like, meshrt.device_put):
        make(x, 1.0) if make is meshrt.numpy.full_like else make(x)
