"""Arguments and definitions of functions with partition functions: what they take, and what is said of the rest."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import NamedSharding, P, errors
from meshrt.experimental.custom_partitioning import custom_partitioning, sharding_rule
from tests.meshrt.experimental.test_custom_partitioning import W, X, _put, _with, project


def test_static_arguments_and_keywords(mesh):
    @functools.partial(custom_partitioning, static_argnums=(1,))
    def f(x, power, scale=1.0):
        return x**power * scale

    def partition(power, mesh, arg_shapes, result_shape):
        return mesh, lambda x, s: x**power * s, result_shape.sharding, (result_shape.sharding, arg_shapes[1].sharding)

    asked = []

    def rule(power, mesh, operands, results):
        asked.append((power, [(t.shape, t.rank) for t in operands], results[0].dtype))
        return "... , -> ...", {}

    f.def_partition(partition, sharding_rule=rule)
    x = _put(mesh, X, "data", "model")
    np.testing.assert_allclose(meshrt.jit(lambda x: f(x, 3, scale=2.0))(x), X**3 * 2, rtol=1e-5)
    assert asked == [(3, [((8, 16), 2), ((), 0)], np.float32)]
    with pytest.raises(errors.LeakedTracerError, match="position indicated as static"):
        meshrt.jit(lambda x, n: f(x, n))(x, 3)
    assert f.__name__ == "f" and f.fun(2.0, 2) == 4.0


def test_constants_are_captured_and_tracers_are_not(mesh):
    table = np.arange(16, dtype=np.float32)
    f = sharding_rule("b i -> b i", need_replication_factors=("i",))(lambda x: x + table)
    x = _put(mesh, X, "data", "model")
    np.testing.assert_array_equal(meshrt.jit(f)(x), X + table)
    np.testing.assert_array_equal(meshrt.jit(meshrt.vmap(f))(_put(mesh, X[None], None, "data")), X[None] + table)
    with pytest.raises(errors.LeakedTracerError, match="pass it as an argument"):
        meshrt.jit(lambda x, t: sharding_rule("b i -> b i")(lambda x: x + t)(x))(x, table)


def test_trees(mesh):
    f = custom_partitioning(lambda d: {"sum": d["a"] + d["b"], "twice": (2 * d["a"],)})

    def partition(mesh, arg_shapes, result_shape):
        s = result_shape["sum"].sharding
        return (
            mesh,
            lambda d: {"sum": d["a"] + d["b"], "twice": (2 * d["a"],)},
            {"sum": s, "twice": (s,)},
            ({"a": s, "b": s},),
        )

    f.def_partition(partition, sharding_rule="i j, i j -> i j, i j")
    out = meshrt.jit(f)({"a": _put(mesh, X, "data"), "b": _put(mesh, X, None, "model")})
    np.testing.assert_allclose(out["twice"][0], 2 * X)
    assert out["sum"].sharding.spec == P("data", "model")


BAD = [
    (lambda m, a, r: (m, lambda x: x), errors.ShardingTypeError, "must return \\(mesh, lower_fn"),
    (lambda m, a, r: (m, lambda x: x, P("data"), (r.sharding,)), ValueError, "Partitioning rules must return Sharding"),
    (lambda m, a, r: (m, 3, r.sharding, (r.sharding,)), TypeError, "lower_fn, which is no function"),
    (lambda m, a, r: (m, lambda x: x[:1], r.sharding, (r.sharding,)), ValueError, "result shapes.*f32\\[1,16\\]"),
    (lambda m, a, r: (m, lambda x: x, r.sharding, (r.sharding,) * 2), ValueError, "arg_shardings of another structure"),
    (lambda m, a, r: (None, lambda x: x, r.sharding, (r.sharding,)), errors.MeshMismatchError, "return the mesh"),
    (
        lambda m, a, r: (m, lambda x: x, NamedSharding(m, P(None, None, "data")), (r.sharding,)),
        errors.RankMismatchError, "rank 2",
    ),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BAD)))
def test_partition_functions_that_return_what_does_not_fit(number, mesh):
    partition, kind, message = BAD[number]
    with pytest.raises(kind, match=message) as caught:
        meshrt.jit(_with(partition))(_put(mesh, X, "data"))
    assert isinstance(caught.value, errors.MeshrtError) and "test_custom_partitioning_arguments.py" in str(caught.value)


def test_sizes_that_do_not_divide(mesh):
    f = _with(lambda m, a, r: (m, lambda x: x, NamedSharding(m, P("data")), (NamedSharding(m, P("data")),)))
    with pytest.raises(errors.IndivisibleError, match="dimension 0 of operand 0, of size 6, over data \\(4 devices\\)"):
        meshrt.jit(f)(_put(mesh, np.zeros((6, 8), np.float32), None, "model"))
    x = _put(mesh, X[:6], "model")  # the rule lets go of what cannot be split
    kept = meshrt.jit(
        lambda x: sharding_rule("i j -> i j")(lambda x: x * 2)(
            meshrt.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data")))
        )
    )
    np.testing.assert_array_equal(kept(x), X[:6] * 2)


def test_definitions_that_are_refused(mesh):
    x = _put(mesh, X, "data")
    with pytest.raises(NotImplementedError, match="Need to provide sharding_rule to migrate to Shardy"):
        meshrt.jit(_with(lambda *a: None, sharding_rule=None, infer_sharding_from_operands=lambda *a: None))(x)
    with pytest.raises(errors.ArgumentValueError, match="has no partition function"):
        custom_partitioning(lambda x: x)(x)
    with pytest.raises(ValueError, match="Unknown keyword arguments"):
        _with(lambda *a: None, sharding_rule=None, reduction_factors=("i",))
    with pytest.raises(ValueError, match="callable must produce either"):
        meshrt.jit(_with(lambda *a: None, sharding_rule=lambda *a: 3))(x)
    with pytest.raises(errors.ShardingRuleError, match="0th operand has rank 1"):
        meshrt.jit(_with(lambda *a: None, sharding_rule="i -> i"))(x)
    with pytest.raises(NotImplementedError, match="put custom_vjp around the function"):
        meshrt.grad(lambda x: jnp.sum(project(x, W)))(X)
    with pytest.raises(TypeError, match="takes a function"):
        custom_partitioning(3)
    with pytest.raises(errors.ShardingRuleError, match="got None"):
        sharding_rule(None)
