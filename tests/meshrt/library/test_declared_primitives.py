"""Primitives that libraries declare rule by rule: the same declaration in JAX and in meshrt gives the same answers."""

import importlib

import jax
import jax.extend.core
import jax.interpreters.ad
import jax.interpreters.batching
import jax.interpreters.mlir
import numpy as np
import pytest

import meshrt
from meshrt import errors

BOTH = pytest.mark.parametrize("lib", [jax, meshrt], ids=["jax", "meshrt"])


def interpreters(lib):
    return [importlib.import_module(f"{lib.__name__}.interpreters.{name}") for name in ("ad", "batching", "mlir")]


def declare(lib, name="scaled_product"):
    """x * y * factor, and where asked for x + y beside it."""
    jnp = lib.numpy
    ad, batching, mlir = interpreters(lib)
    p = importlib.import_module(f"{lib.__name__}.extend.core").Primitive(name)

    @p.def_impl
    def impl(x, y, *, factor):
        return jnp.multiply(x, y) * factor

    p.def_abstract_eval(lambda x, y, *, factor: x.update(shape=np.broadcast_shapes(x.shape, y.shape)))
    ad.defjvp(
        p,
        lambda t, x, y, *, factor: p.bind(t, y, factor=factor),
        lambda t, x, y, *, factor: p.bind(x, t, factor=factor),
    )

    def transpose(ct, x, y, *, factor):
        if ad.is_undefined_primal(x):
            return [p.bind(ct, y, factor=factor), None]
        return [None, p.bind(x, ct, factor=factor)]

    ad.primitive_transposes[p] = transpose
    batching.defbroadcasting(p)
    mlir.register_lowering(p, mlir.lower_fun(impl, multiple_results=False))
    return p


def several(lib):
    """(x + y, x * c) with an array that the program captures; rules see zeros as `Zero`."""
    jnp = lib.numpy
    ad, batching, mlir = interpreters(lib)
    p = importlib.import_module(f"{lib.__name__}.extend.core").Primitive("sum_and_scaled")
    p.multiple_results = True
    scale = np.arange(1.0, 4.0, dtype=np.float32)

    @p.def_impl
    def impl(x, y):
        return [x + y, x * jnp.asarray(scale)]

    p.def_abstract_eval(lambda x, y: [x, x])

    def jvp(primals, tangents):
        tx, ty = tangents
        assert type(ty) is ad.Zero and ty.aval.shape == (3,)
        zero = ad.instantiate_zeros(ty)
        return p.bind(*primals), [ad.add_tangents(tx, ty), p.bind(tx, zero)[1]]

    def transpose(cts, x, y):
        first, second = cts
        assert type(first) is ad.Zero
        return [ad.instantiate_zeros(second) * scale, None]

    def batch(args, dims):
        (x, y), (dx, dy) = args, dims
        assert dx == 1 and dy is None
        return p.bind(x.T, jnp.broadcast_to(y, x.T.shape)), [0, 0]

    ad.primitive_jvps[p], ad.primitive_transposes[p] = jvp, transpose
    batching.primitive_batchers[p] = batch
    mlir.register_lowering(p, mlir.lower_fun(impl, multiple_results=True))
    return p


X, Y = np.arange(6.0, dtype=np.float32).reshape(2, 3), np.linspace(1, 2, 6, dtype=np.float32).reshape(2, 3)


@BOTH
def test_evaluated_compiled_differentiated_and_mapped(lib):
    p = declare(lib)
    f = lambda x, y: p.bind(x, y, factor=3.0)
    for g in (f, lib.jit(f)):
        np.testing.assert_allclose(g(X, Y), 3 * X * Y, rtol=1e-6)
    total = lambda x, y: f(x, y).sum()
    for gradient in (lib.grad(total, (0, 1)), lib.jit(lib.grad(total, (0, 1)))):
        gx, gy = gradient(X, Y)
        np.testing.assert_allclose(gx, 3 * Y, rtol=1e-6)
        np.testing.assert_allclose(gy, 3 * X, rtol=1e-6)
    _, tangent = lib.jvp(lambda x: f(x, Y), (X,), (X,))
    np.testing.assert_allclose(tangent, 3 * X * Y, rtol=1e-6)
    np.testing.assert_allclose(lib.vmap(f, (0, None))(X, Y[0]), 3 * X * Y[0], rtol=1e-6)
    np.testing.assert_allclose(lib.jit(lib.vmap(lib.grad(total), (1, 1)))(X, Y), 3 * Y.T, rtol=1e-6)
    assert "scaled_product[" in str(lib.make_jaxpr(f)(X, Y))


@BOTH
def test_several_results_zero_tangents_and_captured_arrays(lib):
    p = several(lib)
    x, y = X[0], Y[0]
    second = lambda x: p.bind(x, y)[1].sum()
    np.testing.assert_allclose(lib.grad(second)(x), [1, 2, 3], rtol=1e-6)
    np.testing.assert_allclose(lib.jit(lib.grad(second))(x), [1, 2, 3], rtol=1e-6)
    outs = lib.vmap(lambda x: p.bind(x, y), 1)(X.T)
    np.testing.assert_allclose(outs[0], X + y, rtol=1e-6)
    np.testing.assert_allclose(lib.jit(lambda x: p.bind(x, y))(x)[1], x * [1, 2, 3], rtol=1e-6)


@BOTH
def test_linear_primitives(lib):
    ad, batching, mlir = interpreters(lib)
    p = importlib.import_module(f"{lib.__name__}.extend.core").Primitive("thrice")
    p.def_impl(lambda x: x * 3)
    p.def_abstract_eval(lambda x: x)
    ad.deflinear(p, lambda ct: [p.bind(ct)])
    batching.defvectorized(p)
    mlir.register_lowering(p, mlir.lower_fun(lambda x: x * 3, multiple_results=False))
    assert lib.grad(p.bind)(2.0) == 3
    np.testing.assert_allclose(lib.vmap(lib.grad(lambda x: p.bind(x) ** 2))(X[0]), 18 * X[0], rtol=1e-6)


@BOTH
def test_rules_that_know_the_mapped_axis(lib):
    _, batching, _ = interpreters(lib)
    p = importlib.import_module(f"{lib.__name__}.extend.core").Primitive("members")
    p.def_impl(lambda x: x)
    p.def_abstract_eval(lambda x: x)
    seen = []

    def rule(size, name, main, args, dims):
        seen.append((size, name))
        return args[0] * size, dims[0]

    batching.axis_primitive_batchers[p] = rule
    np.testing.assert_allclose(lib.vmap(p.bind, axis_name="i")(X[0]), 3 * X[0])
    assert seen == [(3, "i")]


def test_rules_that_are_absent_say_so():
    p = meshrt.extend.core.Primitive("bare")
    p.def_impl(lambda x: x)
    p.def_abstract_eval(lambda x: x)
    assert p.bind(2.0) == 2.0
    for f in (meshrt.jit(p.bind), meshrt.grad(p.bind), lambda x: meshrt.vmap(p.bind)(np.ones(3))):
        with pytest.raises(NotImplementedError, match="'bare'"):
            f(2.0)


def test_own_rules_of_meshrt_can_be_read_and_not_replaced():
    ad, batching, _ = interpreters(meshrt)
    sin_p = meshrt.lax.sin_p
    out, tangent = ad.primitive_jvps[sin_p]((0.0,), (1.0,))
    assert (out, tangent) == (0.0, 1.0)
    assert type(ad.primitive_jvps[sin_p]((0.0,), (ad.Zero.from_primal_value(0.0),))[1]) is ad.Zero
    assert batching.primitive_batchers[sin_p]((X,), (1,))[1] == 1
    for table in (ad.primitive_jvps, batching.primitive_batchers):  # those that it has
        with pytest.raises(errors.UnsupportedError, match="'sin' is meshrt's own"):
            table[sin_p] = lambda *args: args
    assert isinstance(sin_p, meshrt.extend.core.Primitive)


def test_rules_that_write_no_values_are_refused():
    _, _, mlir = interpreters(meshrt)
    p = meshrt.extend.core.Primitive("odd")
    p.def_abstract_eval(lambda x: x)
    mlir.register_lowering(p, lambda ctx, x: [object()])
    with pytest.raises(TypeError, match=r"'odd'.*lower_fun"):
        meshrt.jit(p.bind)(2.0)
    q = meshrt.extend.core.Primitive("elsewhere")
    q.def_abstract_eval(lambda x: x)
    mlir.register_lowering(q, mlir.lower_fun(lambda x: x, multiple_results=False), platform="tpu")
    with pytest.raises(errors.UnsupportedError, match=r"'elsewhere' not found for platform cpu.*tpu"):
        meshrt.jit(q.bind)(2.0)
