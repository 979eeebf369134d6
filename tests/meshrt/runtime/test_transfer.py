"""Transfers and reshards: any pair of shardings keeps the value; JAX's semantics of arguments and errors."""

import importlib

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshrt
from meshrt import errors, tree_util
from meshrt.core import high
from meshrt.runtime import events
from meshrt.runtime.reshard import _by_program
from meshrt.sharding import Mesh, NamedSharding, SingleDeviceSharding, make_mesh, set_mesh
from meshrt.sharding import PartitionSpec as P

VALUE = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)
SHAPES = {8: [(4, 2), (2, 4), (8, 1)], 4: [(2, 2), (4, 1), (1, 4)], 2: [(2, 1)]}
SPECS = [P(), P("x"), P("y"), P(None, "x"), P("x", "y"), P("y", "x"), P(("x", "y")), P(("y", "x")), P(None, ("x", "y"))]


@st.composite
def shardings(draw):
    if draw(st.integers(0, 9)) == 0:
        return SingleDeviceSharding(draw(st.sampled_from(meshrt.devices())))
    count = draw(st.sampled_from([2, 4, 8]))
    devices = draw(st.permutations(meshrt.devices()))[:count]
    mesh = Mesh(np.array(devices).reshape(draw(st.sampled_from(SHAPES[count]))), ("x", "y"))
    return NamedSharding(mesh, draw(st.sampled_from(SPECS)))


def check(x, value=VALUE):
    np.testing.assert_array_equal(np.asarray(x), value)
    for shard in x.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), value[shard.index])


@settings(max_examples=60, deadline=None)
@given(shardings(), shardings(), st.booleans())
def test_any_pair_of_shardings(source, target, donate):
    x = meshrt.device_put(VALUE, source)
    check(x)
    y = meshrt.device_put(x, target, donate=donate)
    assert y.sharding is target
    check(y)


@pytest.mark.parametrize("target", [P("y"), P(None, "x"), P(("y", "x")), P()])
@pytest.mark.parametrize("permuted", [False, True])
def test_reshard_by_program(target, permuted):
    """The way that arrays of several processes and accelerators take."""
    devices = meshrt.devices()
    mesh = make_mesh((4, 2), ("x", "y"))
    other = Mesh(np.array(devices[::-1]).reshape(2, 4), ("y", "x")) if permuted else mesh
    x = meshrt.device_put(VALUE, NamedSharding(mesh, P("x", "y")))
    from meshrt.runtime.array import Array, signature

    sig = signature(x.aval, NamedSharding(other, target))
    check(Array(_by_program(x, sig), sig))


@pytest.mark.smoke
def test_cheap_ways_are_taken():
    mesh = make_mesh((4, 2), ("x", "y"))
    x = meshrt.device_put(VALUE, NamedSharding(mesh, P("x")))
    swapped = Mesh(mesh.devices.T, ("y", "x"))
    other = make_mesh((4, 2), ("x", "y"), devices=meshrt.devices()[::-1])
    with events.count() as n:
        assert meshrt.device_put(x, x.sharding) is x
        check(meshrt.device_put(x, NamedSharding(mesh, P("x", None))))
        check(meshrt.device_put(x, NamedSharding(swapped, P("x"))))
        check(meshrt.device_put(x, NamedSharding(other, P("x"))))
    assert n.reshard == n.host_reshard == n.compile == 0


@pytest.mark.smoke
def test_targets():
    mesh = make_mesh((4, 2), ("x", "y"))
    tree = {"w": VALUE, "b": [np.ones(8, np.float32), 2.0]}
    placed = meshrt.device_put(tree, {"w": NamedSharding(mesh, P("x")), "b": NamedSharding(mesh, P())})
    assert placed["w"].sharding.spec is P("x") and placed["b"][1].sharding.spec is P() and placed["b"][1].weak_type
    assert not meshrt.device_put(3.0).committed and meshrt.device_put(3.0, meshrt.devices()[2]).committed
    with set_mesh(mesh):
        assert meshrt.device_put(VALUE, P("y")).sharding is NamedSharding(mesh, P("y"))
        assert meshrt.device_put(VALUE, NamedSharding(mesh.abstract_mesh, P("y"))).sharding.mesh is mesh
    assert meshrt.device_put(placed["w"]) is placed["w"]
    got = meshrt.device_get(placed)
    assert isinstance(got["b"][1], np.ndarray) and got["w"].shape == (16, 8)
    assert meshrt.block_until_ready(placed) is placed
    assert repr(meshrt.device_put(np.int64(3))) == repr(jax.device_put(np.int64(3)))


@pytest.mark.parametrize(
    ("x", "target", "kind", "text"),
    [
        (
            {"w": [np.ones((7, 2))]},
            P("x"),
            errors.IndivisibleError,
            r"x\['w'\]\[0\].*size is 7.*Make the dimension 4 or 8",
        ),
        ({"w": np.ones(8)}, P("x", "y"), errors.RankMismatchError, r"x\['w'\].*rank at least 2"),
        ([np.ones(3), "text"], P(), errors.ArgumentTypeError, r"device_put of x\[1\].*str"),
        (np.ones(8), 3, ValueError, "only accepts `None`"),
    ],
)
def test_errors_name_the_path(x, target, kind, text):
    mesh = make_mesh((4, 2), ("x", "y"))
    with pytest.raises(kind, match=text) as e:
        meshrt.device_put(x, NamedSharding(mesh, target) if isinstance(target, P) else target)
    assert isinstance(e.value, errors.MeshrtError)


def test_overflow():
    with pytest.raises(OverflowError, match="1099511627776 does not fit into int32") as e:
        meshrt.device_put(1 << 40)
    assert isinstance(e.value, errors.MeshrtError)


def test_spec_without_a_mesh():
    with pytest.raises(errors.MeshContextError, match=r"Please set a mesh via `meshrt.set_mesh`"):
        meshrt.device_put(VALUE, P("x"))
    mesh = make_mesh((4, 2), ("x", "y"))
    with pytest.raises(errors.ShardingError, match="AbstractMesh, which has no devices"):
        meshrt.device_put(VALUE, NamedSharding(mesh.abstract_mesh, P("x")))


def test_from_callback_and_parts():
    sharding = NamedSharding(make_mesh((4, 2), ("x", "y")), P("y"))
    asked = []
    x = meshrt.make_array_from_callback((16, 8), sharding, lambda i: asked.append(i) or VALUE[i])
    check(x)
    assert len(asked) == 2  # once per distinct part
    check(meshrt.make_array_from_process_local_data(sharding, VALUE))
    check(meshrt.make_array_from_process_local_data(sharding, VALUE, (16, None)))
    parts = [s.data for s in x.addressable_shards]
    check(meshrt.make_array_from_single_device_arrays((16, 8), sharding, parts[::-1]))
    with pytest.raises(ValueError, match=r"array shape \(1, 1\)"):
        meshrt.make_array_from_callback((16, 8), sharding, lambda i: np.ones((1, 1)))
    with pytest.raises(ValueError, match="Expected 8 per-device arrays"):
        meshrt.make_array_from_single_device_arrays((16, 8), sharding, parts[:3])
    with pytest.raises(ValueError, match="Expected shard shape"):
        meshrt.make_array_from_single_device_arrays((32, 8), sharding, parts)
    with pytest.raises(ValueError, match="global_shape should be None or equal"):
        meshrt.make_array_from_process_local_data(sharding, VALUE, (20, 8))


@pytest.mark.parametrize("may_alias", [None, False])
def test_donation_of_a_moved_array(may_alias):
    mesh = make_mesh((4, 2), ("x", "y"))
    x = meshrt.device_put(VALUE, NamedSharding(mesh, P("x")))
    y = meshrt.device_put(x, NamedSharding(mesh, P("y")), donate=True, may_alias=may_alias)
    check(y)
    with pytest.raises(errors.DeletedArrayError, match="donated to device_put"):
        np.asarray(x)


def test_donation_never_writes_to_shared_memory():
    """Replicated parts share one host copy, and pieces share their array's memory."""
    from meshrt.xla.host_memory import aligned_empty

    mesh = make_mesh((8,), ("x",))
    replicated, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("x"))
    add = meshrt.jit(lambda a: a + 1, donate_argnums=0)
    owned = aligned_empty((256, 256), np.dtype("float32"))
    owned[:] = 1
    source = meshrt.device_put(owned, split)
    for x in (
        meshrt.device_put(owned, replicated),
        meshrt.device_put(owned, replicated, may_alias=True),
        meshrt.device_put(source, replicated),
        source.addressable_data(3),
    ):
        check(add(x), np.full(x.shape, 2, np.float32))
    assert owned.max() == 1 and np.asarray(source).max() == 1


def test_a_tree_of_arrays_is_walked_once(monkeypatch):
    """What few trees hold, references and values of high types, is not looked for leaf by leaf."""
    walks, flatten = [], tree_util.tree_flatten
    monkeypatch.setattr(high, "_classes", set())  # none are registered
    monkeypatch.setattr(tree_util, "tree_flatten", lambda *a, **k: (walks.append("flatten"), flatten(*a, **k))[1])
    monkeypatch.setattr(tree_util, "tree_leaves", lambda *a, **k: (walks.append("leaves"), flatten(*a, **k)[0])[1])
    monkeypatch.setattr(
        importlib.import_module("meshrt.transforms.vmap"), "check_distinct", lambda *a: walks.append("references")
    )
    arrays = [np.ones(2, np.float32), {"b": np.zeros(2, np.float32)}]
    meshrt.device_put(arrays)
    assert walks == ["flatten"]
    meshrt.vmap(lambda tree: tree[0])(arrays)
    assert "references" not in walks
