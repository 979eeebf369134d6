"""scaled_dot_general: quantisation beside JAX's, whose own product needs a GPU; and what kernels of attention give."""

import jax
import numpy as np
import pytest
from jax._src.cudnn import scaled_matmul_stablehlo as judge

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, nn
from meshrt.core.jaxpr import subjaxprs
from tests.meshrt.beside import assert_alike


def _draw(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


X, Y = _draw(2, 3, 64), _draw(2, 5, 64)
DIMS = (((2,), (2,)), ((0,), (0,)))
SCALE = np.float32([0.5])


def _plain(x, y, mode, dtype=np.float32):
    """The product of what JAX quantises."""
    wide = []
    for v in (x, y):
        config = jax.nn.get_scaled_dot_general_config(mode, SCALE if mode == "nvfp4" else None)
        elements, scales = judge.quantize(jax.numpy.asarray(v), config)
        shared = np.repeat(np.asarray(scales, np.float32), config.block_size, -1)
        wide.append(np.asarray(elements, np.float32) * shared * (SCALE if mode == "nvfp4" else 1))
    return np.einsum("bmk,bnk->bmn", *wide).astype(dtype)


def _configs(mode):
    return [nn.get_scaled_dot_general_config(mode, SCALE if mode == "nvfp4" else None)] * 3


@pytest.mark.parametrize("mode", ["mxfp8", "nvfp4"])
def test_operands_are_quantised_as_jax_does(mode):
    x = X * np.float32(2.0) ** np.arange(-3, 3).reshape(2, 3, 1)
    x[0, 0, :32] = 0
    got = nn.scaled_dot_general(x, Y, DIMS, configs=_configs(mode))
    x[0, 0, :32] = 1e-30  # JAX divides zeros by a scale of zero
    np.testing.assert_allclose(got, _plain(x, Y, mode), rtol=1e-5, atol=1e-5)


def test_dimensions_and_dtypes():
    half = nn.scaled_dot_general(X, Y, DIMS, jnp.bfloat16, _configs("mxfp8"))
    assert half.dtype == jnp.bfloat16 and half.shape == (2, 3, 5)
    turned = nn.scaled_dot_general(X.transpose(2, 0, 1), Y, (((0,), (2,)), ((1,), (0,))), configs=_configs("mxfp8"))
    np.testing.assert_allclose(turned, _plain(X, Y, "mxfp8"), rtol=1e-5, atol=1e-5)
    flat = nn.scaled_dot_general(X[0], Y[0], (((1,), (1,)), ((), ())), configs=_configs("mxfp8"))
    np.testing.assert_allclose(flat, _plain(X, Y, "mxfp8")[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(nn.scaled_dot_general(X, Y, DIMS), np.einsum("bmk,bnk->bmn", X, Y), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["mxfp8", "nvfp4"])
def test_its_derivative_multiplies_by_the_other_operand(mode):
    x, y, g = _draw(2, 32, 64), _draw(2, 64, 64, seed=1), _draw(2, 32, 64, seed=2)
    _, pull = meshrt.vjp(lambda x, y: nn.scaled_dot_general(x, y, DIMS, configs=_configs(mode)), x, y)
    dx, dy = pull(jnp.asarray(g))
    if mode == "mxfp8":
        wanted = _plain(g, y.swapaxes(1, 2), mode), _plain(g.swapaxes(1, 2)[..., :32], x.swapaxes(1, 2), mode)
    else:
        wanted = np.einsum("bmn,bnk->bmk", g, y), np.einsum("bmn,bmk->bnk", g, x)
    for got, want in zip((dx, dy), wanted):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_derivatives_vanish_where_elements_were_cut_off():
    x = X.copy()
    x[0, 0, 0] = 1e6
    configs = _configs("nvfp4")
    dx = meshrt.grad(lambda x: nn.scaled_dot_general(x, Y, DIMS, configs=configs).sum())(x)
    assert dx[0, 0, 0] == 0 and (dx[1] != 0).all()


def test_what_it_refuses():
    assert_alike(lambda lib: lib.nn.get_scaled_dot_general_config("int4"))
    with pytest.raises(TypeError, match="Only support preferred_element_type"):
        nn.scaled_dot_general(X, Y, DIMS, np.int32, _configs("mxfp8"))
    with pytest.raises(errors.ArgumentValueError, match="32 elements, which do not divide the 48"):
        nn.scaled_dot_general(X[..., :48], Y[..., :48], DIMS, configs=_configs("mxfp8"))
    with pytest.warns(DeprecationWarning, match="ignored"):
        nn.scaled_dot_general(X, Y, DIMS, implementation="cudnn")


Q, K, V = _draw(2, 7, 4, 8), _draw(2, 9, 2, 8), _draw(2, 9, 2, 8, seed=1)
KERNEL = {
    "plain": {},
    "causal": {"is_causal": True},
    "bias and mask": {"bias": _draw(1, 4, 7, 9), "mask": np.tril(np.ones((2, 1, 7, 9), bool), 1)},
    "lengths": {"query_seq_lengths": np.int32([7, 5]), "key_value_seq_lengths": np.int32([4, 9])},
    "window": {"local_window_size": (3, 2), "scale": 0.3},
    "an array as scale": {"scale": jnp.float32(0.3)},
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", KERNEL)
def test_attention_by_the_kernel_is_that_of_arrays(name):
    def attend(lib, **more):
        out, log = lib.nn.dot_product_attention(Q, K, V, **KERNEL[name], return_residual=True, **more)
        return out, log

    (out, log), (want, of_want) = attend(meshrt, implementation="flash"), attend(meshrt)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
    valid = np.arange(7)[None] < KERNEL[name].get("query_seq_lengths", np.int32([7, 7]))[:, None]
    np.testing.assert_allclose(np.asarray(log)[valid], np.asarray(of_want)[valid], rtol=1e-5, atol=1e-5)
    pulled = [
        meshrt.grad(lambda q: (nn.dot_product_attention(q, K, V, **KERNEL[name], implementation=i) ** 2).sum())(Q)
        for i in ("flash", None)
    ]
    np.testing.assert_allclose(*pulled, rtol=1e-4, atol=1e-4)


def test_attention_of_three_dimensions_and_unknown_kernels():
    one = nn.dot_product_attention(Q[0], K[0], V[0], implementation="flash")
    np.testing.assert_allclose(one, nn.dot_product_attention(Q[0], K[0], V[0]), rtol=1e-5, atol=1e-5)
    assert_alike(lambda lib: lib.nn.dot_product_attention(Q, K, V, implementation="quick"))


@pytest.mark.parametrize("mode", [None, "nvfp4"])
def test_products_by_a_kernel_on_request(mode):
    """Forward and backward: three kernels, and no other product."""
    x, y = _draw(1, 32, 32), _draw(1, 32, 32, seed=1)
    configs = None if mode is None else _configs(mode)

    def loss(implementation):
        product = lambda x, y: nn.scaled_dot_general(x, y, DIMS, configs=configs, implementation=implementation)
        return meshrt.value_and_grad(lambda x, y: (product(x, y) ** 2).sum(), (0, 1))

    def primitives(jaxpr):
        for e in jaxpr.eqns:
            yield e.primitive.name
            if e.primitive.name != "pallas_call":
                branches = list(subjaxprs(e.params))
                for inner in branches[-1:] if "platforms" in e.params else branches:  # one platform's
                    yield from primitives(inner)

    found = list(primitives(meshrt.make_jaxpr(loss("pallas"))(x, y).jaxpr))
    assert found.count("pallas_call") == 3 and "dot_general" not in found
    for got, want in zip(meshrt.tree.leaves(loss("pallas")(x, y)), meshrt.tree.leaves(loss(None)(x, y))):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    with pytest.warns(DeprecationWarning, match="implementation='cudnn' is ignored"):
        nn.scaled_dot_general(x, y, DIMS, implementation="cudnn")


@pytest.mark.parametrize("rows, summed", [(0, 4), (3, 0)])
def test_a_kernel_has_no_part_in_products_without_elements(rows, summed):
    x, y = np.ones((1, rows, summed), np.float32), np.ones((1, 5, summed), np.float32)
    product = nn.scaled_dot_general(x, y, DIMS, implementation="pallas")
    np.testing.assert_array_equal(product, np.zeros((1, rows, 5), np.float32))
