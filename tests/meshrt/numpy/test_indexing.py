# ruff: noqa: E501  (tables of cases read better unwrapped)
"""Indexing and functional updates against jax.numpy."""

import jax
import jax.numpy as jj
import numpy as np
import pytest

import meshrt
import meshrt.numpy as mj
from meshrt import errors
from meshrt.numpy.index_plan import plan_take, tokenize
from tests.meshrt.beside import assert_alike

from .judge import Cases, check, sample

X = sample((4, 5, 6), "float32")
I = np.array([0, -1, 2, 9, -9], np.int32)
J = np.array([[0, 1], [2, -1]], np.int32)
MASK = sample((4, 5), bool)

STATIC = [
    np.s_[0], np.s_[-1], np.s_[1:3], np.s_[::2], np.s_[::-1], np.s_[3:0:-2], np.s_[:, 1], np.s_[..., 0], np.s_[None], np.s_[:, None],
    np.s_[1, ..., None, 2], np.s_[..., None], np.s_[0, 1, 2], np.s_[:, ::-1, 1:4:2], np.s_[2:2], np.s_[None, ..., None, 0], np.s_[()],
    np.s_[...], np.s_[-100:100, 1], np.s_[np.int64(1)], np.s_[7], np.s_[-9], np.s_[:, 2, 1:, None], np.s_[-3:-1, ..., -2:],
]  # fmt: skip
ARRAYS = [
    (I,), (slice(None), I), (I[:3], I[:3]), (J,), (J, slice(None), J), (I[:3], slice(1, 3), I[:3]), (slice(None), I[:3], J[:1, :1]),
    (0, slice(None), I[:3]), (slice(None), 1, I), (I[:3], None, slice(None), 2), (Ellipsis, I), (None, I, None), (J, 0), (0, J),
    (slice(None, None, -1), I[:3]), (I[:3], slice(None, None, 2)), (slice(1, 3), I[:3], slice(None, None, -2)), (MASK,), (slice(None), MASK[0]),
    (MASK[:, 0], 0), (True,), (False,), (True, I[:2]), (np.array([], np.int32),), (I.astype(np.uint8),), (I[:2].astype(np.int8), I[:2]),
    (np.array(2), slice(None)), (np.zeros((2, 0), np.int32),), ([0, 1], slice(None)), (slice(None), [True, False, True, False, True]),
    (99, I[:2]), (I[:2], -77, I[:2]), (slice(None), slice(None), I, None), (I[:3], I[:3], I[:3]), (J[:, :, None], I[:3]),
]  # fmt: skip


def test_static_indices():
    cases = Cases()
    for index in STATIC:
        f = lambda x, index=index: x[index]
        cases.add(f, f, X)
    cases.run()


def test_index_arrays_traced_and_static():
    cases = Cases()
    for index in ARRAYS:
        traced = [i for i in index if isinstance(i, np.ndarray) and i.dtype.kind in "iu"]

        def f(x, *arrays, index=index):
            it = iter(arrays)
            return x[tuple(next(it) if isinstance(i, np.ndarray) and i.dtype.kind in "iu" else i for i in index)]

        cases.add(f, f, X, *traced)
        g = lambda x, index=index: x[index]
        cases.add(g, g, X)
    cases.run()


def test_scalars_that_are_traced():
    cases = Cases()
    for i, j in [(1, 2), (-1, 3), (7, -2), (-9, 0)]:
        for f in (lambda x, i, j: x[i], lambda x, i, j: x[i, j], lambda x, i, j: x[:, i], lambda x, i, j: x[i, None, 1:3, j],
                  lambda x, i, j: x[..., i], lambda x, i, j: x[i, ::-1], lambda x, i, j: x[i, ::2], lambda x, i, j: x[j, 1]):  # fmt: skip
            cases.add(f, f, X, np.array(i), np.array(j))
    cases.run()


@pytest.mark.parametrize("mode", ["fill", "clip", "promise_in_bounds"])
def test_get_modes(mode):
    cases = Cases()
    inside = np.array([0, -1, 2], np.int32)
    for x in (X, sample((4, 5, 6), "int32"), sample((4, 5, 6), "uint8"), sample((4, 5, 6), bool)):
        for index in [(I,), (1,), (slice(1, 3), I), (9,), (-9,), (np.int32(3), I)]:
            if mode == "promise_in_bounds":
                index = tuple(inside if i is I else 1 if i in (9, -9) else i for i in index)
            f = lambda x, index=index: x.at[index].get(mode=mode)
            cases.add(f, f, x)
    f = lambda x: x.at[I].get(mode="fill", fill_value=7)
    cases.add(f, f, X)
    f = lambda x: x.at[I].get(mode="clip", wrap_negative_indices=False)
    cases.add(f, f, X)
    cases.run()


def test_one_hot_is_a_mode_that_gathers_are_not_compiled_in():
    modes = [(m.name, m.value) for m in meshrt.lax.GatherScatterMode]
    assert modes == [(m.name, m.value) for m in jax.lax.GatherScatterMode]
    assert meshrt.lax.GatherScatterMode.from_any("one_hot") is meshrt.lax.GatherScatterMode.ONE_HOT
    staged = meshrt.make_jaxpr(lambda x: x.at[I].get(mode="one_hot"))(X)
    assert staged.eqns[-1].params["mode"] is meshrt.lax.GatherScatterMode.ONE_HOT
    with pytest.raises(errors.UnsupportedError, match="take_along_axis"):
        mj.asarray(X).at[I].get(mode="one_hot")


UPDATES = [np.s_[0], np.s_[1:3], np.s_[::2], np.s_[::-1], np.s_[:, 1], np.s_[..., 0], np.s_[None, 1], np.s_[:, None, 2], np.s_[()],
           np.s_[1, 2, 3], np.s_[2:2], np.s_[:, 1:3, ::-1], np.s_[7], (I,), (slice(None), I[:3]), (J, 0), (0, slice(None), J[0]),
           (MASK,), (I[:3], None), (True,), (np.array([0, 0, 1]),), (slice(None, None, -2), I[:2])]  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["set", "add", "subtract", "multiply", "divide", "power", "min", "max"])
def test_updates(name):
    cases = Cases()
    updates = UPDATES if name in ("set", "add") else UPDATES[::3]
    for index in updates:
        parts = index if isinstance(index, tuple) else (index,)
        repeated = any(isinstance(i, np.ndarray) and i.dtype != bool for i in parts)
        shape = jax.eval_shape(lambda x, index=index: x[index], X).shape
        values = [2.5, 3] if name == "set" and repeated else [2.5, 3, sample(shape, "float32", 1, 2)]
        for value in values:  # of repeated indices in set, which one wins is not defined
            f = lambda x, v, index=index: getattr(x.at[index], name)(v)
            cases.add(f, f, np.abs(X) + 1, value, tol=1e-5)
    cases.run()


def test_updates_of_other_kinds():
    cases = Cases()
    f = lambda x: x.at[1:3, 0].apply(abs)
    cases.add(f, f, X)
    f = lambda x: x.at[J].apply(abs, unique_indices=True)
    cases.add(f, lambda x: x.at[J].apply(abs), X)
    ints = sample((4, 3), "int32")
    for v in (2, 2.0, True):
        f = lambda x, v=v: x.at[0].set(v)
        cases.add(f, f, ints)
        f = lambda x, v=v: x.at[I[:3]].add(v)
        cases.add(f, f, ints)
    for mode in ("drop", "clip", "one_hot", None):
        f = lambda x, mode=mode: x.at[I].add(1.0, mode=mode)
        cases.add(f, f, X)
    f = lambda x, i: x.at[i].set(9.0)
    cases.add(f, f, X, np.array(-2))
    cases.add(f, f, X, np.array(17))
    f = lambda x: x.at[0].set(np.arange(6.0, dtype=np.float32))
    cases.add(f, f, X)
    cases.run()


def test_take_and_along_axis():
    cases = Cases()
    for axis in (None, 0, 1, -1):
        for mode in (None, "fill", "clip", "wrap"):
            f, g = mj.take, jj.take
            cases.add(f, g, X, J, axis=axis, mode=mode)
            cases.add(f, g, X, I, axis=axis, mode=mode)
    cases.add(mj.take, jj.take, X, np.array(1), axis=1)
    for axis, shape in [
        (0, (3, 5, 6)),
        (1, (4, 2, 6)),
        (2, (4, 5, 7)),
        (-1, (1, 5, 2)),
        (0, (2, 1, 6)),
        (1, (4, 3, 1)),
    ]:
        for mode in (None, "clip"):
            cases.add(mj.take_along_axis, jj.take_along_axis, X, sample(shape, "int32", -6, 6), axis=axis, mode=mode)
    cases.add(mj.take_along_axis, jj.take_along_axis, X[:, :1], sample((4, 5, 2), "int32", 0, 5), axis=-1)
    cases.add(mj.take_along_axis, jj.take_along_axis, X, I, axis=None)
    cases.run()


def test_nonzero():
    check(mj.nonzero, jj.nonzero, MASK)
    check(lambda x: mj.where(x), jj.where, MASK)
    cases = Cases()
    for size in (3, 10, 30):
        cases.add(mj.nonzero, jj.nonzero, MASK, size=size)
        cases.add(mj.nonzero, jj.nonzero, MASK, size=size, fill_value=-1)
        cases.add(mj.flatnonzero, jj.flatnonzero, MASK, size=size, fill_value=7)
        cases.add(mj.argwhere, jj.argwhere, MASK, size=size)
    cases.run()


def test_gradients_of_indexing():
    for f in (lambda x: (x[J] ** 2).sum(), lambda x: (x[1:3, :, ::2] ** 2).sum(), lambda x: (x.at[I[:3]].add(x[:3]) ** 3).sum(),
              lambda x: (x.at[1].set(2.0) ** 2).sum(), lambda x: (x.at[0, 1:3].multiply(x[0, :2]) ** 2).sum()):  # fmt: skip
        got = meshrt.grad(f)(mj.asarray(X))
        np.testing.assert_allclose(np.asarray(got), np.asarray(jax.grad(f)(jj.asarray(X))), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "index, error, text",
    [
        (
            np.s_[0, 0, 0, 0],
            IndexError,
            r"Too many indices: array is 3-dimensional, but 4 were .* shape is \(4, 5, 6\)",
        ),
        (np.s_[..., ...], IndexError, "single ellipsis"),
        (1.5, TypeError, "Indexer must have integer or boolean type"),
        (np.array([1.0]), TypeError, "Indexer must have integer or boolean type, got indexer with type float32"),
        ([0, 1], TypeError, "Using a non-tuple sequence"),
        (np.ones(3, bool), IndexError, r"boolean index did not match shape of indexed array in index 0: got \(3,\)"),
        ("a", TypeError, "JAX does not support string indexing"),
        (np.s_[1.5:], TypeError, "Slice entries must be static integers"),
        ((np.zeros(2, int), np.zeros(3, int)), IndexError, "cannot be broadcast together"),
    ],
)
def test_errors(index, error, text):
    x = mj.asarray(X)
    index = mj.asarray(index) if isinstance(index, np.ndarray) and index.dtype.kind == "f" else index
    with pytest.raises(error, match=text):
        x[index]


WINDOWS = {
    "of a vector": lambda l, x, i: x[0, 0][l.ds(i, 3)],
    "with a stride": lambda l, x, i: x[0, 0][l.ds(i, 3, 2)],
    "beside slices and new axes": lambda l, x, i: x[1:3, l.ds(i, 2), None, ::-1],
    "beside an index array": lambda l, x, i: x[l.ds(i, 2), I[:3]],
    "two with strides": lambda l, x, i: x[l.ds(i, 2, 2), l.ds(1, 2, 3), 0],
    "filled outside": lambda l, x, i: x.at[l.ds(i, 2)].get(mode="fill"),
    "set": lambda l, x, i: x.at[:, l.ds(i, 2)].set(x[:, :2]),
    "added, clipped": lambda l, x, i: x.at[0, 0, l.ds(i, 2, 2)].add(5.0, mode="clip"),
    "empty": lambda l, x, i: x[l.ds(i, 0)],
    "all": lambda l, x, i: x[l.ds(None), l.ds(2)],
    "differentiated": lambda l, x, i: l.grad(lambda x: (x[l.ds(i, 2), 0, l.ds(0, 2, 2)] ** 2).sum())(x),
    "mapped": lambda l, x, i: l.vmap(lambda i: x[l.ds(i, 2)])(l.numpy.arange(3)),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_whose_start_is_traced(name):
    program = WINDOWS[name]
    assert_alike(lambda l: program(l, l.numpy.asarray(X), 3))
    assert_alike(lambda l: [l.jit(lambda x, i: program(l, x, i))(X, i) for i in (1, -1)])


@pytest.mark.parametrize("window", [(0, 9), (1.5, 2), (np.array([1, 2]), 2)], ids=str)
def test_no_windows(window):
    assert_alike(lambda l: l.numpy.asarray(X[0, 0])[l.ds(*window)])


def test_traced_values_that_must_be_static():
    with pytest.raises(TypeError, match=r"lax.dynamic_slice"):
        meshrt.jit(lambda x, i: x[i:])(mj.asarray(X), 1)
    with pytest.raises(IndexError, match=r"boolean indices must be concrete"):
        meshrt.jit(lambda x, m: x[m])(mj.asarray(X), MASK)
    with pytest.raises(TypeError, match=r"x = x.at\[index\].set\(value\)"):
        mj.zeros(3)[0] = 1
    with pytest.raises(TypeError, match=r"size argument of jnp\.nonzero must be statically specified"):
        meshrt.jit(mj.nonzero)(MASK)


def test_plans_are_shared():
    tokens, _ = tokenize(np.s_[1:3, None, -1])
    assert plan_take(tokens, (4, 5), True, True) is plan_take(tokens, (4, 5), True, True)
    # Static slices around index arrays are taken first, so the gather moves whole dimensions.
    tokens, _ = tokenize((slice(1, 3), np.array([0, 1])))
    plan = plan_take(tokens, (4, 5), True, True)
    assert plan.static is not None and plan.gather.slice_sizes == (2, 1)


@pytest.mark.parametrize(("dtype", "at"), [(np.uint8, 200), (np.uint16, 40_000)])
def test_constant_starts_that_signed_numbers_of_their_width_do_not_hold(dtype, at):
    # XLA folds them as signed ones, so in JAX a compiled slice begins at 0.
    x, start = np.arange(at + 5, dtype=np.float32), dtype(at)
    lax, here = meshrt.lax, lambda: mj.asarray(start)

    def read(x):
        return lax.dynamic_slice(x, (here(),), (3,)), lax.dynamic_index_in_dim(x, here(), keepdims=False), x[here()]

    for got, wanted in zip(meshrt.jit(read)(x), (x[at : at + 3], x[at], x[at]), strict=True):
        np.testing.assert_array_equal(got, wanted)
    for got in (meshrt.jit(lambda x: lax.dynamic_update_slice(x, np.zeros(1, x.dtype), (here(),)))(x),
                meshrt.jit(lambda x: x.at[here()].set(0))(x)):  # fmt: skip
        np.testing.assert_array_equal(got, np.where(np.arange(at + 5) == at, 0, x))
    windows = lax.GatherDimensionNumbers((0,), (), (0,)), lax.ScatterDimensionNumbers((0,), (), (0,))
    for mode in ("clip", "fill", "promise_in_bounds"):
        found = meshrt.jit(lambda x: lax.gather(x, here()[None], windows[0], (3,), mode=mode))(x)
        np.testing.assert_array_equal(found, x[at : at + 3])
        put = meshrt.jit(lambda x: lax.scatter_mul(x, here()[None], np.zeros(1, x.dtype), windows[1], mode=mode))(x)
        np.testing.assert_array_equal(put, np.where(np.arange(at + 5) == at, 0, x))
    keys = meshrt.random.split(meshrt.random.key(0), at + 5)
    one = meshrt.jit(lambda k: lax.dynamic_index_in_dim(k, here(), keepdims=False))(keys)
    np.testing.assert_array_equal(meshrt.random.key_data(one), meshrt.random.key_data(keys)[at])


NONE_THERE = {
    "an integer beside an array": lambda n, x: x[0, n.array([1])],
    "an integer behind an array": lambda n, x: x.T[n.array([1]), 0],
    "an array": lambda n, x: x[n.array([0])],
    "an integer": lambda n, x: x[0],
    "a computed integer beside a slice": lambda n, x: x[n.array(0), :2],
    "no position of it": lambda n, x: x[n.array([], "int32"), 0],
}


@pytest.mark.parametrize("name", NONE_THERE)
def test_positions_in_an_axis_of_size_0(name):
    assert_alike(lambda l: NONE_THERE[name](l.numpy, l.numpy.zeros((0, 3), "int32")))
