"""Functions of dense arrays made functions of sparse ones, beside the same functions of dense arrays."""

import operator

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.experimental import sparse
from meshrt.experimental.sparse import BCOO, BCSR, SparseTracer, sparsify, todense
from meshrt.experimental.sparse.transform import SparsifyEnv, sparsify_raw, spvalues_to_arrays

X = np.array([[0.0, 2.0, 0.0, 4.0], [0.5, 0.0, 0.0, 1.0], [0.0, 0.0, 3.0, 0.0]], np.float32)
V = np.arange(4, dtype=np.float32)
ways = pytest.mark.parametrize("use_tracer", [False, True])


def same(got, wanted):
    got = got.todense() if isinstance(got, sparse.JAXSparse) else got
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), 1e-5, 1e-6)


def loop(x, v):
    return lax.fori_loop(0, 2, lambda i, v: (x[:, :3] @ v[:3]).sum() + v, v)


FUNCTIONS = {
    "linear": lambda x, v: -jnp.sin(jnp.float32(np.pi) * x).T @ (v[:3] + 1),
    "matmul": operator.matmul,
    "scaled": lambda x, v: (2 * x / 3, x * v[None]),
    "several": lambda x, v: (x + x, x - 2 * x, x * x, x**2, jnp.abs(x), jnp.tanh(x)),
    "beside dense": lambda x, v: x + jnp.ones((3, 4)),
    "sums": lambda x, v: (x.sum(), x.sum(0), x.sum((0, 1)), x.mean(1)),
    "shapes": lambda x, v: (x.reshape(2, 6), lax.reshape(x, (12,), dimensions=(1, 0)), x[None, 1], jnp.flip(x, 1)),
    "joined": lambda x, v: (jnp.stack([x, x]), jnp.vstack([x, x]), jnp.concatenate([x, x], 1)),
    "gathered": lambda x, v: (x[np.array([2, 0])], x[np.array([True, False, True])], x[:2, np.array([[1], [3]])]),
    "call": lambda x, v: meshrt.jit(lambda x: jnp.sum(2 * x, 1))(x),
    "loop": loop,
    "while": lambda x, v: lax.while_loop(lambda p: p[0] < 3, lambda p: (p[0] + 1, p[2], 2 * p[1]), (0, x, x)),
    "cond": lambda x, v: lax.cond(v[0] > 0, lambda x: x, lambda x: 2 * x, x),
    "dense from there": lambda x, v: todense(x) + 1,
    "kinds": lambda x, v: (x.astype(jnp.float16), x.astype(jnp.complex64).imag, jnp.conj(x.astype(jnp.complex64))),
}


@pytest.mark.sweep(2)
@ways
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name, use_tracer):
    f = FUNCTIONS[name]
    with meshrt.numpy_rank_promotion("raise"):
        got = sparsify(f, use_tracer=use_tracer)(BCOO.fromdense(X), V)
    meshrt.tree.map(same, got, f(jnp.asarray(X), V), is_leaf=lambda x: isinstance(x, BCOO))


@ways
def test_compressed_rows(use_tracer):
    f = lambda x, v: (x @ v, -x, jnp.concatenate([x, x], 0), todense(x) + 1)
    got = sparsify(f, use_tracer=use_tracer)(BCSR.fromdense(X), V)
    assert isinstance(got[2], BCSR)
    meshrt.tree.map(same, got, f(X, V), is_leaf=lambda x: isinstance(x, BCSR))
    same(meshrt.jit(sparsify(todense))(BCSR.fromdense(X)), X)


def test_custom_derivatives_are_kept():
    tripled = meshrt.custom_jvp(lambda x: x * 3)
    tripled.defjvp(lambda p, t: (tripled(*p), 100 * t[0]))
    m = BCOO.fromdense(X)
    slope = sparse.grad(lambda m: sparsify(tripled)(m).sum())(m)
    same(sparsify(tripled)(m), 3 * X)
    same(slope, 100 * (X != 0))


def test_shared_coordinates_stay_shared():
    m = BCOO.fromdense(V)
    for op in (operator.add, operator.sub, operator.mul):
        env = SparsifyEnv([m.indices, m.data, 2 * m.data])
        known = {"indices_ref": 0, "unique_indices": True}
        values = [env.sparse(m.shape, data_ref=i, **known) for i in (1, 2)]
        (out,), _ = sparsify_raw(op)(env, *values)
        assert out.indices_ref == 0
        same(spvalues_to_arrays(env, out), op(V, 2 * V))
    assert sparsify(operator.add)(m, BCOO.fromdense(2 * V)).nse == 6
    with pytest.raises(errors.ArgumentValueError, match="data_ref=7 of"):
        env.sparse(m.shape, data_ref=7, indices_ref=0)


def test_tracers_know_what_they_are():
    seen = []
    sparsify(seen.append, use_tracer=True)(BCOO.fromdense(V))
    sparsify(seen.append)(BCOO.fromdense(V))
    assert [isinstance(x, SparseTracer) for x in seen] == [True, False]


@pytest.mark.parametrize(
    ("f", "error", "words"),
    [
        (lambda x: lax.cos(x), NotImplementedError, "sparse rule for cos is not implemented because it would result"),
        (lambda x: lax.complex(x, todense(x)), NotImplementedError, r"sparse rule for complex is not implemented\.$"),
        (lambda x: x**-1, NotImplementedError, "non-positive exponent -1"),
        (lambda x: 1 / x, NotImplementedError, "Division by a sparse array"),
        (lambda x: x - 1, NotImplementedError, "Subtraction between sparse and dense"),
        (lambda x: x + 1, NotImplementedError, "larger than that of the dense array"),
        (
            lambda x: lax.cond(x.sum() > 0, lambda: x, lambda: todense(x)),
            TypeError,
            "sparsified true_fun and false_fun",
        ),
        (lambda x: lax.scan(lambda c, x: (c, x), 0.0, x), NotImplementedError, "scan with x values"),
    ],
)
@ways
def test_refusals(f, error, words, use_tracer):
    with pytest.raises(error, match=words):
        sparsify(f, use_tracer=use_tracer)(BCOO.fromdense(V))


@pytest.mark.parametrize("op", [operator.eq, operator.ne, operator.lt, operator.ge])
def test_comparisons_would_be_dense(op):
    with pytest.raises(NotImplementedError, match="dense"):
        op(BCOO.fromdense(V), V)


@pytest.mark.parametrize(("n_batch", "axis"), [(1, 0), (2, 0), (2, 1)])
def test_mapped_batch_dimensions_go_from_the_shape(n_batch, axis):
    """`vmap` over a batch dimension takes it from the shape, whichever it is, and puts it where results have it."""
    m = BCOO.fromdense(np.ones((2, 3, 4), np.float32), n_batch=n_batch)
    inner = (2, 3, 4)[:axis] + (2, 3, 4)[axis + 1 :]
    seen = []
    out = meshrt.vmap(lambda m: (seen.append(m.shape), m)[1], in_axes=axis, out_axes=axis)(m)
    assert seen == [inner]
    assert out.shape == m.shape


@pytest.mark.parametrize("padding", ["SAME", "VALID", [(3, 3)]])
@pytest.mark.parametrize("which", ["left", "right", "both"])
def test_convolutions(padding, which):
    x, y = X.reshape(1, 1, 12), V.reshape(1, 1, 4)
    left = BCOO.fromdense(x, n_batch=2) if which != "right" else x
    right = BCOO.fromdense(y, n_batch=2) if which != "left" else y
    got = sparse.bcoo_conv_general_dilated(left, right, window_strides=(1,), padding=padding)
    same(got, lax.conv_general_dilated(x, y, (1,), padding))
    with pytest.raises(NotImplementedError, match="window_strides"):
        sparse.bcoo_conv_general_dilated(left, right, window_strides=(2,), padding=padding)
