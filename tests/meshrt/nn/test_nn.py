# ruff: noqa: E501  (tables of cases read better unwrapped)
"""Activations, normalisation, attention and initializers against jax.nn: values and derivatives."""

import jax
import jax.nn as jn
import jax.numpy as jj
import jax.random as jr
import ml_dtypes
import numpy as np
import pytest

import meshrt
import meshrt.nn as mn
import meshrt.numpy as mj
import meshrt.random as mr
from tests.meshrt.beside import assert_alike
from tests.meshrt.numpy.judge import Cases, Weak, sample

BF16 = ml_dtypes.bfloat16
X = sample((3, 4), "float32")
EDGES = np.array([-2.0, -1.0, -0.0, 0.0, 1.0, 3.0, 7.0, np.nan], np.float32)
MASK = np.array([[1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1]], bool)
ACTIVATIONS = [
    "relu", "relu6", "sigmoid", "silu", "swish", "softplus", "log_sigmoid", "soft_sign", "tanh", "elu", "selu", "celu", "leaky_relu",
    "hard_tanh", "hard_sigmoid", "hard_silu", "gelu", "mish", "squareplus", "sparse_plus", "sparse_sigmoid", "identity", "glu", "log1mexp",
]  # fmt: skip


def test_activations():
    cases = Cases()
    for name in ACTIVATIONS:
        f, g = getattr(mn, name), getattr(jn, name)
        x = np.abs(X) + 0.1 if name == "log1mexp" else X
        cases.add(f, g, x, tol=1e-5)
        cases.add(f, g, x.astype(BF16), tol=2e-2)
        if name not in ("glu", "log1mexp"):
            cases.add(f, g, EDGES, tol=1e-5)
            cases.add(f, g, Weak(0.5), tol=1e-6)
    cases.add(mn.gelu, jn.gelu, X, approximate=False, tol=1e-5)
    cases.add(mn.gelu, jn.gelu, X.astype(BF16), approximate=False, tol=2e-2)
    cases.add(mn.relu, jn.relu, sample((4,), "int32"))
    cases.add(mn.glu, jn.glu, X, axis=-1, tol=1e-5)
    cases.run()


@pytest.mark.parametrize("part", range(2))
def test_derivatives_of_activations(part):
    """At every point of interest, ties and zeros among them."""
    names = [n for n in ACTIVATIONS if n not in ("glu", "log1mexp")][part::2]

    def total(library, module):
        def f(x):
            return [library.grad(lambda v, name=n: getattr(module, name)(v).sum())(x) for n in names]

        return library.jit(f)(np.concatenate([EDGES[:-1], X.ravel()]))

    for name, a, b in zip(names, total(meshrt, mn), total(jax, jn)):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=2e-5, err_msg=name)


def test_normalisation():
    cases = Cases()
    big = X * 100
    for name in ("softmax", "log_softmax", "standardize"):
        f, g = getattr(mn, name), getattr(jn, name)
        for x in (X, big, X.astype(BF16), sample((3, 4), "int32")):
            cases.add(f, g, x, tol=3e-2 if x.dtype == BF16 else 2e-5)
        cases.add(f, g, X, axis=0, tol=1e-5)
        cases.add(f, g, X, axis=(0, 1), tol=1e-5)
        cases.add(f, g, X, where=MASK, tol=1e-5)
    cases.add(mn.standardize, jn.standardize, X, algorithm="stable", tol=1e-5)
    for kwargs in (
        {},
        {"axis": 0},
        {"axis": (0, 1), "keepdims": True},
        {"axis": 1, "where": MASK},
        {"axis": 1, "return_sign": True},
    ):
        cases.add(mn.logsumexp, jn.logsumexp, big, **kwargs, tol=1e-5)
    cases.add(mn.logsumexp, jn.logsumexp, np.array([-np.inf, -np.inf], np.float32))
    cases.add(mn.logsumexp, jn.logsumexp, np.array([np.inf, 1], np.float32))
    cases.add(
        lambda a, b: mn.logsumexp(a, axis=1, b=b), lambda a, b: jn.logsumexp(a, axis=1, b=b), X, X - 0.5, tol=1e-4
    )
    cases.add(mn.logmeanexp, jn.logmeanexp, X, axis=1, tol=1e-5)
    cases.add(mn.logmeanexp, jn.logmeanexp, X, axis=1, where=MASK, tol=1e-5)
    for kwargs in ({}, {"axis": 0}, {"dtype": "bfloat16"}, {"dtype": int}):
        cases.add(mn.one_hot, jn.one_hot, np.array([[0, 2], [5, -1]]), 4, **kwargs)
    cases.run()


def test_derivatives_of_normalisation():
    def total(library, module, numpy):
        functions = (
            lambda x: (module.softmax(x) ** 2).sum(), lambda x: (module.log_softmax(x, 0) ** 2).sum(),
            lambda x: (module.logsumexp(x, 1) ** 2).sum(), lambda x: (module.standardize(x) ** 3).sum(),
            lambda x: (module.softmax(x, where=MASK) ** 2).sum(), lambda x: numpy.logaddexp(x, 0.5).sum(),
        )  # fmt: skip
        return library.jit(lambda x: [library.grad(f)(x) for f in functions])(X)

    for a, b in zip(total(meshrt, mn, mj), total(jax, jn, jj)):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-5)


def test_attention():
    cases = Cases()
    q, k, v = sample((2, 5, 4, 8), "float32"), sample((2, 6, 2, 8), "float32"), sample((2, 6, 2, 8), "float32")
    f, g = mn.dot_product_attention, jn.dot_product_attention
    cases.add(f, g, q, k, v, tol=1e-5)
    cases.add(f, g, q, k, v, is_causal=True, scale=0.3, tol=1e-5)
    cases.add(f, g, q, k, v, bias=sample((1, 4, 5, 6), "float32"), mask=sample((2, 1, 5, 6), bool), tol=1e-5)
    cases.add(f, g, q, k, v, local_window_size=1, tol=1e-5)
    cases.add(
        f,
        g,
        q,
        k,
        v,
        query_seq_lengths=np.array([2, 5], np.int32),
        key_value_seq_lengths=np.array([6, 3], np.int32),
        tol=1e-5,
    )
    cases.add(f, g, q[0], k[0], v[0], tol=1e-5)
    cases.add(f, g, q, k, v, return_residual=True, tol=1e-5)
    cases.add(f, g, q.astype(BF16), k.astype(BF16), v.astype(BF16), is_causal=True, tol=3e-2)
    cases.add(f, g, q, k, v[:, :3])
    cases.run()


@pytest.mark.parametrize("distribution", ["truncated_normal", "normal", "uniform"])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_initial_values_that_are_complex(distribution, dtype):
    found = []
    for lib in (jax, meshrt):
        with lib.enable_x64(dtype == "complex128"):
            init = lib.nn.initializers.variance_scaling(2.0, "fan_in", distribution)
            found.append(init(lib.random.key(3), (4, 5), dtype))
    assert found[0].dtype == found[1].dtype and found[0].weak_type == found[1].weak_type
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_initializers():
    names = [("zeros", None), ("ones", None), ("constant", (2.5,)), ("uniform", (0.1,)), ("normal", (0.2,)), ("truncated_normal", (0.2,)),
             ("glorot_uniform", ()), ("glorot_normal", ()), ("lecun_normal", ()), ("lecun_uniform", ()), ("he_normal", ()), ("he_uniform", ()),
             ("variance_scaling", (2.0, "fan_out", "normal")), ("variance_scaling", (1.0, "fan_geo_avg", "uniform", 0, 2, 1))]  # fmt: skip

    def program(module, key):
        def run(k):
            out = []
            for name, args in names:
                init = getattr(module, name) if args is None else getattr(module, name)(*args)
                shape = (3, 4, 5) if name == "variance_scaling" else (6, 5)
                out += [init(k, shape), init(k, shape, "bfloat16")]
            return out

        return run, key

    ours, key = program(mn.initializers, mr.key(4))
    theirs, their_key = program(jn.initializers, jr.key(4))
    for i, (a, b) in enumerate(zip(meshrt.jit(ours)(key), jax.jit(theirs)(their_key))):
        assert a.dtype == b.dtype and a.shape == b.shape
        tol = 3e-2 if a.dtype == BF16 else 1e-5
        np.testing.assert_allclose(
            np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=tol, atol=tol, err_msg=str(names[i // 2])
        )


def test_errors():
    with pytest.raises(ValueError, match="Must be at least 2D"):
        mn.initializers.glorot_normal()(mr.key(0), (3,))
    with pytest.raises(AttributeError, match="has no attribute 'skewed'"):
        mn.initializers.skewed


QKV = np.ones((2, 5, 4, 8), np.float32)
BESIDE_JAX = {
    "relu": lambda l: l.nn.relu(np.complex64([1 + 1j, -2, 1j, -1j])),
    "relu6": lambda l: l.nn.relu6(np.complex64([1 + 1j, -2, 7j, 7])),
    "gelu": lambda l: l.nn.gelu(np.complex64([1 + 1j, -2])),
    "gelu by erfc": lambda l: l.nn.gelu(np.complex64([1 + 1j, -2]), approximate=False),
    "halves of 3": lambda l: l.nn.glu(np.ones(3, np.float32)),
    "classes along an axis": lambda l: l.vmap(lambda i: l.nn.one_hot(i, 2, axis="i"), axis_name="i")(np.arange(2)),
    "mask of floats": lambda l: l.nn.dot_product_attention(QKV, QKV, QKV, mask=np.ones((2, 4, 5, 5), np.float32)),
    "bias of 5 dimensions": lambda l: l.nn.dot_product_attention(QKV, QKV, QKV, bias=np.ones((1, 2, 4, 5, 5))),
    "values of float16": lambda l: l.nn.dot_product_attention(QKV, QKV, QKV.astype(np.float16)),
    "lengths by two": lambda l: l.nn.dot_product_attention(QKV, QKV, QKV, query_seq_lengths=np.ones((2, 2), np.int32)),
    "lengths of three": lambda l: l.nn.dot_product_attention(QKV, QKV, QKV, key_value_seq_lengths=np.ones(3, np.int32)),
}


@pytest.mark.parametrize("name", BESIDE_JAX)
def test_operands_as_in_jax(name):
    assert_alike(BESIDE_JAX[name])


def test_scores_that_do_not_broadcast():
    with pytest.raises(ValueError, match=r"bias of shape \(2, 3, 5, 5\) does not broadcast to \(2, 4, 5, 5\)"):
        mn.dot_product_attention(QKV, QKV, QKV, bias=np.ones((2, 3, 5, 5)))


def test_the_derivative_of_log1mexp_at_its_ends():
    x = np.float32([1e-3, 0.5, 1, 3, 100, np.inf, 0])
    ours, theirs = (np.asarray(l.vmap(l.grad(l.nn.log1mexp))(x)) for l in (meshrt, jax))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_one_hot_of_lists_and_of_floats():
    np.testing.assert_array_equal(np.asarray(mn.one_hot([0, 2], 3)), [[1, 0, 0], [0, 0, 1]])
    with pytest.warns(DeprecationWarning, match="input should be integer-typed"):
        mn.one_hot(mj.array([1.0]), 3)
    with pytest.raises(meshrt.errors.ConcretizationError, match=r"in jax.nn.one_hot argument `num_classes`"):
        meshrt.jit(mn.one_hot)(3, 5)


def test_initializers_without_two_dimensions():
    with pytest.raises(ValueError, match="input and output sizes of a 1-dimensional weights tensor"):
        mn.initializers.he_normal()(meshrt.random.key(0), (5,))


def test_the_residual_of_attention_has_no_derivative():
    q, k, v = (np.sin(np.arange(24, dtype=np.float32) + i).reshape(1, 3, 2, 4) for i in range(3))

    def program(l):
        attend = lambda q: l.nn.dot_product_attention(q, k, v, return_residual=True)
        return l.jvp(attend, (q,), (k,)), l.grad(lambda q: l.numpy.sin(attend(q)[1]).sum() + attend(q)[0].sum())(q)

    assert_alike(program, 1e-4)


def test_relu_is_one_operation_where_no_derivative_is_taken():
    x = mj.ones(8)
    for lib in (jax, meshrt):
        assert lib.jit(lib.nn.relu).lower(lib.numpy.ones(8)).cost_analysis()["flops"] == 8
    assert str(meshrt.jit(meshrt.nn.relu).lower(x).as_text()).count("stablehlo.") == 2  # and its constant
