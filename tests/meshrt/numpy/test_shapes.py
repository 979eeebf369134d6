# ruff: noqa: E501  (tables of cases read better unwrapped)
"""Creation, shapes, selection and sorting against jax.numpy."""

import jax.numpy as jj
import ml_dtypes
import numpy as np
import pytest

import meshrt
import meshrt.numpy as mj

from .judge import Cases, Weak, check, sample

BF16 = ml_dtypes.bfloat16
X = sample((2, 3, 4), "float32")
V = sample((5,), "int32")


def both(expression):
    """The same lambda over both libraries: `np` in the expression is the library."""
    return eval(f"lambda *a: {expression}", {"np": mj}), eval(f"lambda *a: {expression}", {"np": jj})


CREATION = [
    "np.zeros(3)", "np.zeros((2, 3), np.int8)", "np.ones((), 'bfloat16')", "np.full((2, 2), 3)", "np.full((2,), 2.5)",
    "np.full(3, True)", "np.full((2, 3), np.arange(3.))", "np.empty((2,), int)", "np.arange(5)", "np.arange(2, 9)", "np.arange(1, 2, 0.25)",
    "np.arange(5.)", "np.arange(9, 0, -2)", "np.arange(3, dtype=np.bfloat16)", "np.arange(0, 3, 0.5, dtype='bfloat16')", "np.arange(4, 2)",
    "np.linspace(0, 1, 5)", "np.linspace(0, 1, 5, endpoint=False)", "np.linspace(2, 8, 4, dtype=int)", "np.linspace(1., 2., 1)",
    "np.linspace(0, 1, 0)", "np.linspace(0., 1., 3, retstep=True)", "np.linspace(np.zeros(2), np.ones(2), 4, axis=1)", "np.logspace(0, 2, 5)",
    "np.eye(3)", "np.eye(2, 4, 1)", "np.eye(3, k=-1, dtype=int)", "np.identity(2)", "np.tri(3)", "np.tri(2, 4, 1, int)",
    "np.meshgrid(np.arange(2), np.arange(3.))", "np.meshgrid(np.arange(2), np.arange(3), indexing='ij', sparse=True)",
    "np.indices((2, 3))", "np.asarray([1, 2.5])", "np.asarray([[1, 2], [3, 4]])", "np.asarray(1)", "np.asarray(1.5)", "np.asarray(True)",
    "np.asarray([])", "np.array([1, 2], dtype=np.bfloat16)", "np.array([np.arange(2), np.arange(2.)])", "np.array(3, ndmin=2)",
    "np.array([np.float32(1), 2])", "np.zeros_like(np.ones(2, int))", "np.ones_like(np.zeros(2), dtype=int)", "np.full_like(np.zeros(2), 7)",
    "np.zeros_like(np.zeros(2), shape=(3,))", "np.float32(3)", "np.int32([1, 2])", "np.bfloat16(1.5)", "np.tril_indices(3)", "np.triu_indices(3, 1)",
    "np.vander(np.arange(3.))", "np.asarray(2 ** 40)",
]  # fmt: skip


def test_creation():
    cases = Cases()
    for e in CREATION:
        cases.add(*both(e), tol=1e-6)
    for f in (
        lambda np: lambda x: np.zeros_like(x),
        lambda np: lambda x: np.full_like(x, 2),
        lambda np: lambda x: np.ones_like(x),
    ):
        for x in (X, Weak(1.5), Weak(2), np.float32(1), 3, 2.0):
            cases.add(f(mj), f(jj), x)
    cases.run()


SHAPES = [
    "np.reshape(a[0], (4, 6))", "np.reshape(a[0], (-1, 2))", "np.reshape(a[0], -1, order='F')", "a[0].reshape(3, -1)", "a[0].reshape((8, 3), order='F')",
    "np.ravel(a[0])", "a[0].flatten()", "np.squeeze(a[0][:1])", "np.squeeze(a[0], 1)", "np.expand_dims(a[0], (0, -1))", "np.transpose(a[0])", "a[0].T",
    "a[0].mT", "np.transpose(a[0], (1, 0, 2))", "a[0].transpose(1, 2, 0)", "np.swapaxes(a[0], 0, 2)", "np.moveaxis(a[0], 0, -1)",
    "np.moveaxis(a[0], (0, 1), (-1, 0))", "np.rollaxis(a[0], 2)", "np.broadcast_to(a[0][:1], (2, 3, 4))", "np.broadcast_to(a[0], (3, 4))",
    "np.broadcast_arrays(a[0], a[0][0, 0])", "np.concatenate([a[0], a[0]], 1)", "np.concatenate([a[0], a[0].astype(int)], axis=None)",
    "np.concatenate(a[0])", "np.stack([a[0], a[0]], -1)", "np.stack([a[1], a[1] * 2.0])", "np.vstack([a[1], a[1]])", "np.hstack([a[1], a[1]])",
    "np.hstack([a[0], a[0]])", "np.dstack([a[1], a[1]])", "np.column_stack([a[1], a[1]])", "np.split(a[0], 2, axis=2)", "np.split(a[0], [1, 3], axis=2)",
    "np.split(a[0], 3, axis=2)", "np.array_split(a[1], 3)", "np.unstack(a[0], axis=1)", "np.tile(a[0], 2)", "np.tile(a[1], (2, 3))",
    "np.repeat(a[0], 2, axis=1)", "np.repeat(a[1], 3)", "np.repeat(a[0], np.array([1, 0, 2]), axis=1, total_repeat_length=3)",
    "np.roll(a[0], 1)", "np.roll(a[0], -5, axis=1)", "np.roll(a[0], (1, 2), axis=(0, 2))", "np.flip(a[0])", "np.flip(a[0], 1)", "np.flipud(a[0])",
    "np.fliplr(a[0])", "np.rot90(a[0])", "np.rot90(a[0], 3, (1, 2))", "np.atleast_2d(a[1])", "np.atleast_3d(a[1])", "np.append(a[1], 3)",
    "np.pad(a[0], 1)", "np.pad(a[0], ((0, 1), (2, 0), (1, 1)), constant_values=3)", "np.pad(a[1], (2, 3), mode='edge')", "np.pad(a[1], 4, mode='reflect')",
    "np.pad(a[1], 7, mode='symmetric')", "np.pad(a[1], 12, mode='wrap')", "np.pad(a[0], 1, constant_values=((1, 2), (3, 4), (5, 6)))",
    "np.pad(a[0], 2, mode='maximum')", "np.pad(a[0], 2, mode='mean')", "np.resize(a[1], (2, 7))", "np.tril(a[0])", "np.triu(a[0], 1)", "np.tril(a[0], -1)",
    "np.diag(a[1])", "np.diag(a[1], 2)", "np.diag(a[0][0], -1)", "np.diagonal(a[0], 1, 1, 2)", "np.diagonal(a[0], -1)", "np.trace(a[0], 0, 1, 2)",
    "np.diagflat(a[1], 1)", "a[0].astype(int)", "a[0].astype('bfloat16')", "a[1].astype(bool)", "a[0].view(np.int32)", "a[1].view(np.uint8)",
    "a[0].clip(-1, 1)", "np.clip(a[1], 0)", "np.clip(a[0], None, 0.5)", "np.where(a[0] > 0, a[0], 0)", "np.where(a[0] > 0, 1, a[0])",
    "np.where(a[0][0] > 0, a[0], a[0][:, :1])", "np.where(a[1], 1, 2)", "np.where(True, a[1], 2.5)", "np.select([a[1] > 1, a[1] < 0], [a[1], -a[1]], 7)",
    "np.nan_to_num(a[0] / 0)", "np.round(a[0], 1)", "a[0].round()", "np.isclose(a[0], a[0] + 1e-6)", "np.allclose(a[0], a[0])", "np.array_equal(a[1], a[1])",
    "np.sort(a[0], 1)", "np.sort(a[0], None)", "np.sort(a[1], descending=True)", "np.argsort(a[0])", "np.argsort(a[1], descending=True)", "a[1].argsort()",
    "np.lexsort((a[1], a[1] // 2))", "np.searchsorted(np.sort(a[1]), a[1])", "np.searchsorted(np.sort(a[1]), np.arange(-4, 5), side='right')",
    "np.searchsorted(np.arange(4.), a[0])", "np.squeeze(a[0], 0)", "np.concatenate([])", "np.reshape(a[0], (5, 5))", "np.delete(a[1], 1)", "np.kron(a[1], a[1])",
]  # fmt: skip


@pytest.mark.parametrize("part", range(3))
def test_shapes(part):
    cases = Cases()
    for e in SHAPES[part::3]:
        cases.add(*both(e), X, V, tol=1e-6)
    cases.run()


def test_dynamic_shifts_and_repeats():
    f = lambda np: lambda x, s: np.roll(x, s, 1)
    check(f(mj), f(jj), X, np.array(5))
    g = lambda np: lambda x, r: np.repeat(x, r, axis=1, total_repeat_length=7)
    check(g(mj), g(jj), X, np.array([2, 0, 3]))


@pytest.mark.smoke
def test_values_of_other_origin():
    x = mj.asarray(X)
    assert mj.asarray(x) is x
    np.testing.assert_array_equal(np.asarray(mj.array(x)), X)
    np.testing.assert_array_equal(np.asarray(mj.asarray(X.T)), X.T)
    assert mj.float32 == np.float32 == mj.dtype("float32") and mj.float32 != np.int32
    assert mj.zeros(2, mj.float32).dtype == mj.float32 and isinstance(mj.float32(1), mj.float32)
    assert {mj.float32: 1}[mj.float32] == 1 and mj.issubdtype(mj.bfloat16, mj.floating)
    assert mj.shape([[1, 2]]) == (1, 2) and mj.ndim(X) == 3 and mj.size(X, 1) == 3
    assert mj.isscalar(1) and mj.isscalar(mj.asarray(1)) and not mj.isscalar(x)
    assert mj.iscomplexobj(mj.zeros(1, "complex64")) and not mj.iscomplexobj(x)
    assert mj.result_type(np.int32, 1.0) == np.float32 and mj.finfo(mj.bfloat16).bits == 16
    assert x.tolist() == X.tolist() and x[0, 0, 0].item() == X[0, 0, 0] and len(x) == 2
    assert [r.shape for r in x] == [(3, 4)] * 2


def test_nested_lists_of_traced_values():
    f = lambda np: lambda x: np.array([[x[0], 1.0], [x[1], x[2]]])
    cases = Cases()
    cases.add(f(mj), f(jj), V)
    cases.run()


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda x: x.reshape(5, 5), ValueError, r"cannot reshape array of shape \(2, 3, 4\) \(size 24\) into shape \(5, 5\) \(size 25\)"),
        (lambda x: mj.concatenate([x, x[:, 0]]), TypeError, "arrays with different numbers of dimensions"),
        (lambda x: mj.squeeze(x, 0), ValueError, "cannot select an axis to squeeze out"),
        (lambda x: mj.split(x, 3), ValueError, "array split does not result in an equal division: rest is 2; use array_split"),
        (lambda x: mj.zeros(x), TypeError, "1D sequences of concrete values of integer type, got .Array"),
        (lambda x: mj.zeros(3, "float33"), TypeError, "zeros: dtype='float33' is not a dtype"),
        (lambda x: mj.transpose(x, (0, 1)), ValueError, "isn't a permutation of operand dimensions"),
        (lambda x: mj.matrix, AttributeError, "module 'meshrt.numpy' has no attribute 'matrix': it is not implemented"),
        (lambda x: mj.transpos, AttributeError, "did you mean transpose"),
    ],
)  # fmt: skip
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call(mj.asarray(X))


def test_traced_sizes_are_refused():
    with pytest.raises(TypeError, match="static"):
        meshrt.jit(lambda n: mj.zeros((n, 2)))(3)
    with pytest.raises(TypeError, match=r"not known here|static"):
        meshrt.jit(lambda n: mj.arange(n))(3)


def test_missing_names_look_like_attribute_errors():
    assert not hasattr(mj, "matrix") and getattr(mj, "matrix", None) is None
