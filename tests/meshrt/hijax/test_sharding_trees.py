"""Trees of shardings for the arrays of high values, judged by the same arrays as values of their own."""

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import NamedSharding, P, checkpoint, errors, export, lax
from meshrt.experimental.hijax import Box
from meshrt.experimental.hijax.padded import padded
from meshrt.experimental.hijax.quantized import QMapping, quantize, quantized_matmul
from meshrt.experimental.hijax.tuples import box_of, tuple_of
from meshrt.sharding import AxisType

X = np.arange(24, dtype=np.float32).reshape(3, 8)


@pytest.fixture(scope="module")
def mesh():
    return meshrt.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)


@pytest.fixture(scope="module")
def two(mesh):
    return [NamedSharding(mesh, P("a", "b")), NamedSharding(mesh, P("b"))]


@pytest.fixture(scope="module")
def weights():
    return quantize(jnp.arange(32.0).reshape(8, 4), axis=1)


def specs(q):
    return q.values.sharding.spec, q.scales.sharding.spec


SPLIT = (P("a", "b"), P("b"))


@pytest.mark.parametrize("container", [list, tuple])
def test_000_18_each_array_goes_where_its_entry_says(weights, two, container):
    tree = container(two)
    assert specs(meshrt.device_put(weights, tree)) == SPLIT
    assert specs(meshrt.device_put({"w": weights, "b": 1.0}, {"w": tree, "b": None})["w"]) == SPLIT
    assert specs(meshrt.jit(lambda w: w, in_shardings=(tree,))(weights)) == SPLIT
    assert specs(meshrt.jit(lambda w: w, out_shardings=tree)(weights)) == SPLIT
    assert specs(meshrt.jit(lambda w: lax.with_sharding_constraint(w, tree))(weights)) == SPLIT
    assert specs(lax.with_sharding_constraint(weights, tree)) == SPLIT
    assert specs(meshrt.jit(lambda w: meshrt.device_put(w, tree))(weights)) == SPLIT


def test_000_18_a_shard_map_takes_and_gives_a_spec_for_each_array(weights, mesh):
    parts = [P(None, "b"), P("b")]
    f = lambda w: (quantized_matmul(jnp.asarray(X), w), w)
    product, same = meshrt.shard_map(f, mesh=mesh, in_specs=(parts,), out_specs=(P(None, "b"), parts))(weights)
    np.testing.assert_allclose(product, quantized_matmul(X, weights), rtol=1e-6)
    assert specs(same) == tuple(parts)
    with pytest.raises(errors.TreeError, match="list of 1 child, the second one of 2"):
        meshrt.shard_map(f, mesh=mesh, in_specs=(parts[:1],), out_specs=P())(weights)


@pytest.mark.parametrize("put", [lax.with_sharding_constraint, meshrt.device_put])
def test_constraints_leave_derivatives_that_are_no_quantized_matrices_alone(weights, two, put):
    plain = lambda w: quantized_matmul(jnp.asarray(X), w).sum()
    f = lambda w: plain(put(w, two))
    grad = meshrt.jit(meshrt.grad(plain))(weights)
    np.testing.assert_array_equal(meshrt.jit(meshrt.grad(f))(weights), grad)
    np.testing.assert_array_equal(meshrt.jit(meshrt.grad(meshrt.checkpoint(f)))(weights), grad)
    stack = quantize(jnp.arange(64.0).reshape(2, 8, 4), axis=1)
    over = lambda w: meshrt.vmap(f, in_axes=QMapping(), axis_size=2)(w).sum()
    np.testing.assert_array_equal(meshrt.grad(over)(stack), np.stack([grad] * 2))
    looped = lambda w: lax.scan(lambda c, x: (c + f(x), None), 0.0, w, length=2)[0]
    np.testing.assert_array_equal(meshrt.grad(looped)(stack), np.stack([grad] * 2))


def test_constraints_of_tuples_constrain_their_derivatives(mesh):
    split = NamedSharding(mesh, P("b"))
    pair = tuple_of(jnp.arange(8.0), jnp.ones((8, 2)))
    f = lambda t: lax.with_sharding_constraint(t, (split, NamedSharding(mesh, P(None, "a"))))
    pulled = meshrt.jit(lambda t, ct: meshrt.vjp(f, t)[1](ct)[0])(pair, pair)
    assert [e.sharding.spec for e in pulled.elements] == [P("b"), P(None, "a")]


def test_000_18_trees_of_tuples_and_boxes_nest_as_the_values_do(weights, two, mesh):
    whole = NamedSharding(mesh, P())
    pair = tuple_of(weights, jnp.ones(8))
    for tree in ((two, two[1]), [*two, two[1]]):
        put = meshrt.device_put(pair, tree)
        assert specs(put.elements[0]) == SPLIT and put.elements[1].sharding.spec == P("b")
    put = meshrt.jit(lambda t: t, out_shardings=(whole, two[1]))(pair)
    assert specs(put.elements[0]) == (P(), P()) and put.elements[1].sharding.spec == P("b")
    put = meshrt.device_put(box_of({"w": weights, "b": jnp.ones(8)}), {"w": two, "b": two[1]})
    assert specs(put.elements[1]) == SPLIT and put.elements[0].sharding.spec == P("b")
    put = meshrt.device_put(padded(jnp.ones((8, 4)), 3), [two[0], whole])
    assert put.rows.sharding.spec == P("a", "b") and put.length.sharding.spec == P()
    box = Box({"w": jnp.ones((8, 4)), "b": jnp.ones(8)})
    f = meshrt.jit(lambda b: b.get()["w"] * 2, in_shardings=({"w": two[0], "b": two[1]},))
    assert f(box).sharding.spec == P("a", "b")


def test_000_18_checkpoints_are_restored_to_a_sharding_for_each_array(weights, two, tmp_path):
    tree = {"t": tuple_of(weights, jnp.ones(8)), "w": weights, "x": jnp.ones(4)}
    checkpoint.save(tmp_path / "c", tree)
    asked = {"t": (two, two[1]), "w": two, "x": None}
    found = checkpoint.restore(tmp_path / "c", tree, shardings=asked)
    assert specs(found["w"]) == specs(found["t"].elements[0]) == SPLIT
    np.testing.assert_array_equal(found["w"].values, weights.values)
    one = checkpoint.restore(tmp_path / "c", tree, shardings=asked | {"w": two[1].update(spec=P())})
    assert specs(one["w"]) == (P(), P())
    with pytest.raises(errors.TreeError, match=r"(?s)prefix\['w'\].*list of 1 child, the second one of 2"):
        checkpoint.restore(tmp_path / "c", tree, shardings=asked | {"w": two[:1]})
    with pytest.raises(errors.CheckpointMismatchError, match=r"\['w'\] cannot be split"):
        checkpoint.restore(tmp_path / "c", tree, shardings=asked | {"w": two[::-1]})


def test_000_18_exported_functions_keep_the_shardings_of_each_array(weights, two):
    f = meshrt.jit(lambda w: w, in_shardings=(two,), out_shardings=two)
    read = export.deserialize(export.export(f)(weights).serialize())
    assert specs(meshrt.jit(read.call)(meshrt.device_put(weights, two))) == SPLIT


def test_000_18_what_does_not_fit_is_told_as_of_ordinary_trees(weights, two):
    ordinary = (jnp.ones((8, 4)), jnp.ones(4))

    def said(call, value, tree):
        with pytest.raises((errors.TreeError, errors.ShardingError)) as caught:
            call({"w": value}, {"w": tree})
        return str(caught.value)

    calls = (
        lambda x, s: meshrt.device_put(x, s),
        lambda x, s: meshrt.jit(lambda x: x, in_shardings=(s,))(x),
        lambda x, s: meshrt.jit(lambda x: x, out_shardings=s)(x),
        lambda x, s: meshrt.jit(lambda x: lax.with_sharding_constraint(x, s))(x),
    )
    for call in calls:
        for tree in (tuple(two[:1]), (*two, *two), tuple(two[::-1])):
            assert said(call, weights, tree) == said(call, ordinary, tree)
    with pytest.raises(errors.TreeError, match="a dict with the key 'z', the second a list of 2 children"):
        meshrt.device_put(weights, {"z": two[0]})


def test_rules_of_custom_derivatives_take_values_whose_derivatives_are_of_another_type(weights):
    product = lambda x, w: quantized_matmul(x, w)
    forward, backward = meshrt.custom_jvp(product), meshrt.custom_vjp(product)
    forward.defjvp(lambda p, t: (product(*p), t[0] @ jnp.ones((8, 4)) + p[0] @ t[1]))
    backward.defvjp(lambda x, w: (product(x, w), x), lambda x, ct: (ct @ jnp.ones((4, 8)), x.T @ ct))
    stack = quantize(jnp.arange(64.0).reshape(2, 8, 4), axis=1)
    for f in (forward, backward):
        one = lambda x, w: f(x, w).sum()
        over = lambda x, w: meshrt.vmap(one, in_axes=(None, QMapping()), axis_size=2)(x, w).sum()
        by_x, by_w = meshrt.jit(meshrt.grad(over, argnums=(0, 1)))(X, stack)
        np.testing.assert_allclose(by_x, np.full((3, 8), 8.0))
        np.testing.assert_allclose(by_w, np.broadcast_to(X.sum(0)[:, None], (2, 8, 4)))
        mapped = meshrt.vmap(meshrt.grad(one, argnums=1), in_axes=(None, QMapping()), axis_size=2)
        np.testing.assert_allclose(mapped(X, stack), by_w)
