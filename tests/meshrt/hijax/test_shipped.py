"""The high types that come with meshrt, against the plain functions."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import P, lax
from meshrt.experimental.hijax import HiPrimitive, ShapedArray, VJPHiPrimitive
from meshrt.experimental.hijax.padded import filled, padded, padded_sum
from meshrt.experimental.hijax.quantized import (
    QArray,
    QMapping,
    QSpec,
    dequantize,
    quantize,
    quantized_add,
    quantized_matmul,
    transposed,
)  # fmt: skip
from meshrt.experimental.hijax.tuples import box_of, element, tuple_of, unbox

W = np.random.RandomState(0).randn(4, 4).astype(np.float32)
X = np.random.RandomState(1).randn(2, 4).astype(np.float32)
plain_or_jitted = pytest.mark.parametrize("wrap", [lambda f: f, meshrt.jit], ids=["plain", "jit"])


def close(got, want):
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5, atol=1e-6)


@plain_or_jitted
def test_quantized_weights(wrap):
    q = quantize(W)
    near = np.asarray(dequantize(q))
    assert np.abs(near - W).max() <= np.abs(W).max() / 127 and q.values.dtype == np.int8
    close(wrap(quantized_matmul)(X, q), X @ near)
    ones = np.ones((2, 4), np.float32)
    by_x, by_q = meshrt.grad(wrap(lambda x, q: quantized_matmul(x, q).sum()), (0, 1))(X, q)
    close(by_x, ones @ near.T)
    close(by_q, X.T @ ones)
    close(meshrt.grad(wrap(lambda w: quantized_matmul(X, quantize(w)).sum()))(W), X.T @ ones)
    close(quantize(np.zeros((2, 2), np.float32)).values, np.zeros((2, 2)))
    with pytest.raises(TypeError, match="quantize takes a float32 matrix"):
        quantize(np.ones(3, np.float32))
    with pytest.raises(TypeError, match="as many rows as it has columns"):
        quantized_matmul(np.ones((2, 3), np.float32), q)


@plain_or_jitted
def test_a_scan_over_stacked_quantized_layers(wrap):
    q = quantize(W)
    stack = QArray(jnp.stack([q.values] * 3), jnp.stack([q.scales] * 3))
    near = jnp.stack([dequantize(q)] * 3)
    layers = lambda x, s: lax.scan(lambda c, q: (jnp.tanh(quantized_matmul(c, q)), None), x, s, length=3)[0].sum()
    plain = lambda x, ws: lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0].sum()
    close(wrap(layers)(X, stack), plain(X, near))
    for got, want in zip(meshrt.grad(wrap(layers), (0, 1))(X, stack), meshrt.grad(plain, (0, 1))(X, near)):
        close(got, want)
    many = meshrt.vmap(dequantize, in_axes=QMapping(), axis_size=3)(stack)
    close(many, near)


@plain_or_jitted
@pytest.mark.parametrize("axis", [0, 1])
def test_quantized_weights_add_transpose_and_multiply_from_either_side(wrap, axis):
    w = W[:, :3]
    q = quantize(w, axis)
    near = np.asarray(dequantize(q))
    close(wrap(quantized_matmul)(X, q), X @ near)
    close(wrap(quantized_matmul)(transposed(q), X.T), near.T @ X.T)
    turned = wrap(transposed)(q)
    assert turned.axis == 1 - axis and np.array_equal(turned.scales, q.scales)
    close(dequantize(turned), near.T)
    close(meshrt.grad(wrap(lambda q: (dequantize(transposed(q)) * w.T).sum()))(q), w)
    close(dequantize(wrap(quantized_add)(q, q)), 2 * near)
    assert np.abs(dequantize(wrap(quantized_add)(q, w)) - near - w).max() <= np.abs(near + w).max() / 127
    by_both = meshrt.grad(lambda q, w: dequantize(quantized_add(q, w)).sum(), (0, 1))(q, w)
    assert all(np.array_equal(g, np.ones((4, 3))) for g in by_both)
    square = lambda f: lambda x, w: (f(x, w) ** 2).sum()
    pairs = zip(meshrt.grad(square(quantized_matmul), (0, 1))(X, q), meshrt.grad(square(jnp.matmul), (0, 1))(X, near))
    for got, want in pairs:
        close(got, want)


@plain_or_jitted
@pytest.mark.parametrize("axis", [0, 1])
def test_quantized_products_are_mapped_over_either_operand(wrap, axis):
    xs, ws = np.stack([X, 2 * X, X - 1]), np.stack([W, -W, W + 1])
    stack = quantize(ws, axis)
    near = np.asarray(dequantize(stack))
    mapped = lambda f, *dims: meshrt.vmap(f, in_axes=dims, axis_size=3)
    close(dequantize(wrap(meshrt.vmap(lambda w: quantize(w, axis), out_axes=QMapping()))(ws)), near)
    close(wrap(mapped(quantized_matmul, 0, QMapping()))(xs, stack), xs @ near)
    close(wrap(mapped(quantized_matmul, None, QMapping()))(X, stack), X @ near)
    close(
        wrap(mapped(quantized_matmul, 1, None))(xs.swapaxes(0, 1), quantize(W, axis)),
        xs @ dequantize(quantize(W, axis)),
    )
    products = lambda x: mapped(lambda q: quantized_matmul(x, q), QMapping())(stack)
    close(wrap(meshrt.vmap(products))(xs), xs[:, None] @ near)
    others = lambda q: meshrt.vmap(lambda x: quantized_matmul(x, q))(xs)
    close(wrap(mapped(others, QMapping()))(stack), xs @ near[:, None])
    loss = lambda product: lambda x, w: (product(x, w) ** 2).sum()
    gradients = wrap(mapped(meshrt.grad(loss(quantized_matmul), (0, 1)), 0, QMapping()))(xs, stack)
    for got, want in zip(gradients, meshrt.vmap(meshrt.grad(loss(jnp.matmul), (0, 1)))(xs, near)):
        close(got, want)


def test_quantized_operands_that_do_not_fit():
    q = quantize(W)
    for wrong in (
        lambda: quantized_matmul(q, q),
        lambda: quantized_add(W, W),
        lambda: quantized_add(q, np.ones((2, 4, 4))),
    ):
        with pytest.raises(TypeError, match="quantized"):
            wrong()
    with pytest.raises(ValueError, match="axis is 0"):
        quantize(W, 2)


@pytest.mark.parametrize("axis", [0, 1])
def test_scales_are_split_with_the_dimension_they_run_along(axis):
    mesh = meshrt.make_mesh((2, 2), ("x", "y"), (meshrt.sharding.AxisType.Auto,) * 2)
    spec, flipped = QSpec("x", "y", axis), QSpec("y", "x", 1 - axis)
    q = quantize(W, axis)
    turned = meshrt.jit(meshrt.shard_map(transposed, mesh=mesh, in_specs=spec, out_specs=flipped))(q)
    assert [a.sharding.spec for a in (turned.values, turned.scales)] == [meshrt.P("y", "x"), meshrt.P("xy"[axis])]
    close(dequantize(turned), np.asarray(dequantize(q)).T)


class Scaled(VJPHiPrimitive):
    """`x * w`, or its sum over devices along `axis`, declared by shape and dtype alone."""

    def __init__(self, x, axis=None):
        self.in_avals = (meshrt.typeof(x), ShapedArray((), np.float32))
        self.out_aval, self.params = ShapedArray(x.shape, x.dtype), {"axis": axis}
        super().__init__()

    def expand(self, x, w):
        return x * w if self.axis is None else lax.psum(x * w, self.axis)

    def vjp_fwd(self, nonzeros, x, w):
        return self(x, w), (x, w)

    def vjp_bwd_retval(self, residuals, ct):
        x, w = residuals
        return ct * w, (ct * x).sum()


class Doubled(HiPrimitive):
    def abstract_eval(self, x):
        return ShapedArray(x.shape, x.dtype), set()

    def to_lojax(self, x):
        return 2 * x

    def jvp(self, primals, tangents):
        return doubled_p.bind(*primals), doubled_p.bind(*tangents)

    def transpose(self, ct, x):
        return (doubled_p.bind(ct),)


doubled_p = Doubled("doubled")


@plain_or_jitted
def test_results_differ_between_devices_where_operands_do(wrap):
    """Types of results that say only shape and dtype: cotangents are not added up over devices that have one each."""
    mesh = meshrt.make_mesh((2,), ("d",), (meshrt.sharding.AxisType.Auto,))
    q, x = quantize(W), jnp.arange(16.0).reshape(4, 4) / 16
    near = dequantize(q)
    gradient = lambda f: wrap(
        meshrt.grad(
            meshrt.shard_map(
                lambda x, w: lax.psum((f(x, w) ** 2).sum(), "d"), mesh=mesh, in_specs=(P("d"), P()), out_specs=P()
            ),
            (0, 1),
        )
    )(x, jnp.float32(3))
    for product in (
        lambda x, w: quantized_matmul(x * w, q),
        lambda x, w: quantized_matmul(quantize(jnp.eye(2)), x * w @ near),
    ):
        for got, want in zip(gradient(product), gradient(lambda x, w: (x * w) @ near)):
            np.testing.assert_allclose(got, want, rtol=1e-4)
    expected = 18 * x, 6 * (x * x).sum()
    for product in (lambda x, w: Scaled(x)(x, w), lambda x, w: doubled_p.bind(x) * w / 2):
        for got, want in zip(gradient(product), expected):
            close(got, want)
    total = lambda x, w: Scaled(x, "d")(x, w)
    whole = meshrt.shard_map(total, mesh=mesh, in_specs=(P("d"), P()), out_specs=P())
    close(wrap(whole)(x, jnp.float32(3)), 3 * (x[:2] + x[2:]))  # the same on all devices, as its type says
    close(wrap(meshrt.grad(lambda x: whole(x, jnp.float32(3)).sum()))(x), np.full((4, 4), 3))
    parts = lambda x, w: element(tuple_of(x, w), 1)
    close(wrap(meshrt.shard_map(parts, mesh=mesh, in_specs=(P("d"), P()), out_specs=P()))(x, jnp.float32(3)), 3)


def test_the_derivative_of_a_function_that_was_called_before_is_the_same():
    loss = meshrt.jit(lambda w: quantized_matmul(X, quantize(w)).sum())
    loss(W)
    close(meshrt.grad(loss)(W), X.T @ np.ones((2, 4), np.float32))


@plain_or_jitted
def test_loops_and_branches_over_a_batch_of_quantized_weights(wrap):
    stack = quantize(np.stack([W, 2 * W]))
    near = np.asarray(dequantize(stack))
    steps = lambda q, x: lax.scan(
        lambda c, _: (c + quantized_matmul(x, q).sum(), None), jnp.float32(0), None, length=3
    )[0]
    grown = lambda q, x: lax.fori_loop(0, 2, lambda _, k: quantized_add(k, k), q)
    chosen = lambda q, x: lax.cond(x.sum() > -100, lambda k: quantized_add(k, k), lambda k: k, q)
    mapped = lambda f, out: wrap(meshrt.vmap(f, in_axes=(QMapping(), None), out_axes=out, axis_size=2))(stack, X)
    close(mapped(steps, 0), 3 * (X @ near).sum((1, 2)))
    close(dequantize(mapped(grown, QMapping())), 4 * near)
    close(dequantize(mapped(chosen, QMapping())), 2 * near)
    carried = lambda q, x: lax.scan(
        lambda k, _: (quantized_add(k, k), quantized_matmul(x, k).sum()), q, None, length=2
    )[1]
    close(mapped(carried, 0), np.stack([(X @ near).sum((1, 2)), 2 * (X @ near).sum((1, 2))], 1))
    shared = meshrt.vmap(lambda x, q: dequantize(grown(q, x)).sum() + x.sum(), in_axes=(0, None))
    close(wrap(shared)(np.stack([X, X]), quantize(W)), [4 * near[0].sum() + X.sum()] * 2)


@plain_or_jitted
def test_tuples_and_immutable_boxes(wrap):
    f = wrap(lambda x: element(tuple_of(x, x * x), 1))
    assert f(3.0) == 9.0 and meshrt.grad(f)(3.0) == 6.0 and meshrt.jvp(f, (3.0,), (1.0,)) == (9.0, 6.0)
    assert meshrt.linearize(f, 3.0)[1](1.0) == 6.0
    close(meshrt.vmap(f)(jnp.arange(3.0)), [0, 1, 4])
    held = wrap(lambda x: box_of({"a": x, "b": [2 * x]}))(3.0)
    assert unbox(held) == {"a": 3.0, "b": [6.0]}
    gradient = meshrt.grad(wrap(lambda b: unbox(b)["a"] * unbox(b)["b"][0]))(held)
    assert unbox(gradient) == {"a": 6.0, "b": [3.0]}


@plain_or_jitted
def test_padded_rows(wrap):
    rows = jnp.arange(1.0, 5.0)
    f = wrap(lambda rows, n: padded_sum(padded(rows * rows, n)))
    assert f(rows, np.int32(2)) == 5.0
    close(meshrt.grad(f)(rows, np.int32(2)), [2, 4, 0, 0])
    close(wrap(lambda p: filled(p, -1.0))(padded(rows, 3)), [1, 2, 3, -1])


@plain_or_jitted
def test_derivatives_and_batches_of_padded_rows(wrap):
    """Rows that do not count have no derivative, whatever the tangent or cotangent says of them."""
    x, loss = jnp.arange(1.0, 7.0).reshape(3, 2), lambda p: (padded_sum(p) ** 2).sum()
    p, ones, counting = padded(x, 2), jnp.ones((3, 2)), np.arange(3)[:, None] < 2
    slope = np.where(counting, 2 * np.asarray(x)[:2].sum(0), 0)
    close(wrap(meshrt.grad(loss))(p), slope)
    close(wrap(meshrt.grad(meshrt.checkpoint(loss)))(p), slope)
    close(wrap(lambda p: meshrt.jvp(loss, (p,), (ones,)))(p), [52, slope.sum()])
    close(wrap(lambda p: meshrt.linearize(loss, p)[1](ones))(p), slope.sum())
    close(wrap(meshrt.grad(lambda p: (meshrt.grad(loss)(p) ** 2).sum()))(p), 8 * slope)
    rows, lengths = jnp.stack([x, 2 * x]), np.array([1, 3], np.int32)
    one = lambda x, n: loss(padded(x, n))
    close(wrap(meshrt.vmap(one))(rows, lengths), [one(r, n) for r, n in zip(rows, lengths)])
    slopes = [meshrt.grad(one)(r, n) for r, n in zip(rows, lengths)]
    close(wrap(meshrt.vmap(meshrt.grad(one)))(rows, lengths), slopes)
    close(wrap(meshrt.grad(lambda rows: meshrt.vmap(one)(rows, lengths).sum()))(rows), slopes)
    close(wrap(meshrt.vmap(lambda t: meshrt.jvp(loss, (p,), (t,))[1]))(jnp.stack([ones, x])), [
        slope.sum(), (slope * np.asarray(x)).sum(),
    ])  # fmt: skip


@pytest.mark.parametrize("axis", [0, 1])
def test_products_are_linearized(axis):
    x, q = jnp.ones((3, 4)), quantize(np.random.RandomState(0).randn(4, 2).astype(np.float32), axis)
    pushed = meshrt.linearize(lambda q: jnp.tanh(quantized_matmul(x, q)), q)[1](jnp.ones((4, 2)))
    expected = meshrt.jvp(lambda d: jnp.tanh(x @ d), (dequantize(q),), (jnp.ones((4, 2)),))[1]
    close(pushed, expected)


def test_what_a_compiled_function_tells_of_its_results():
    """Results of high types are told of by their arrays, beside others that are whole."""
    told = meshrt.jit(lambda x, q: {"x": x, "q": q}).lower(X, quantize(W)).compile()
    info, formats = told.out_info, told.output_formats
    assert info["q"].values.shape == (4, 4) and info["q"].scales.dtype == np.float32
    assert info["q"].values.format == formats["q"].values and info["x"].format == formats["x"]
