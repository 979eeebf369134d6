"""Arrays made like others lie where those lie, as in JAX: optimiser states are sharded like their parameters."""

import jax
import numpy as np
import pytest

import meshrt
from meshrt import errors


def made(J):
    P, NS, auto = J.sharding.PartitionSpec, J.sharding.NamedSharding, J.sharding.AxisType.Auto
    jnp, mesh = J.numpy, J.make_mesh((2, 4), ("a", "b"), axis_types=(auto, auto))
    sharding = NS(mesh, P("a", "b"))
    x = J.device_put(np.ones((8, 8), np.float32), sharding)
    on_one = J.device_put(np.ones(3, np.float32), J.devices()[5])
    return {
        "zeros_like": jnp.zeros_like(x),
        "ones_like, dtype": jnp.ones_like(x, dtype=np.int32),
        "empty_like": jnp.empty_like(x),
        "the same shape": jnp.full_like(x, 3.0, shape=[8, 8]),
        "lax.full_like": J.lax.full_like(x, 2),
        "of a struct": jnp.ones_like(J.ShapeDtypeStruct((8, 8), np.float32, sharding=sharding)),
        "on a device": jnp.zeros_like(on_one),
        "not placed": jnp.zeros_like(jnp.ones(3)),
        "zeros": jnp.zeros((8, 8), device=sharding),
        "full": jnp.full((8, 8), 7, device=sharding),
        "zeros on a device": jnp.zeros(3, device=J.devices()[2]),
        "lax.full": J.lax.full((8, 8), 1.5, sharding=sharding),
        "in a tree": J.tree.map(jnp.zeros_like, {"w": x})["w"],
    }


@pytest.fixture(scope="module")
def arrays():
    return made(jax), made(meshrt)


@pytest.mark.parametrize(
    "name",
    ["zeros_like", "ones_like, dtype", "empty_like", "the same shape", "lax.full_like", "of a struct", "on a device",
     "not placed", "zeros", "full", "zeros on a device", "lax.full", "in a tree"],
)  # fmt: skip
def test_they_lie_where_jax_puts_them(arrays, name):
    def described(x):
        places = {s.device.id: tuple((i.start or 0, i.stop) for i in s.index) for s in x.addressable_shards}
        return x.committed, str(x.dtype), x.weak_type, places

    theirs, ours = arrays[0][name], arrays[1][name]
    assert described(ours)[:3] == described(theirs)[:3]
    if len(theirs.addressable_shards) > 1:
        assert described(ours) == described(theirs)
    else:
        assert set(described(ours)[3]) == set(described(theirs)[3])
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_a_shape_that_does_not_divide():
    auto = meshrt.sharding.AxisType.Auto
    mesh = meshrt.make_mesh((2, 4), ("a", "b"), axis_types=(auto, auto))
    with pytest.raises(errors.IndivisibleError, match=r"the dimension size is 7"):
        meshrt.numpy.zeros((7, 8), device=meshrt.NamedSharding(mesh, meshrt.P("a", "b")))
    with pytest.raises(errors.ArgumentTypeError, match="either device or out_sharding"):
        meshrt.numpy.zeros(3, device=meshrt.devices()[0], out_sharding=meshrt.P())


@pytest.mark.parametrize("l", [meshrt, jax])
def test_arrays_that_were_committed_stay_where_they_are(l):
    one, two = l.devices()[1:3]
    there, free = l.device_put(np.ones(8), one), l.numpy.ones(8)
    assert l.numpy.array(free, device=two).devices() == l.numpy.asarray(np.ones(8), device=two).devices() == {two}
    assert l.numpy.asarray(there, np.int32, device=one).devices() == {one}
    for name, dtype in (("array", None), ("asarray", np.int32)):
        with pytest.raises(ValueError, match="Received incompatible devices for jitted computation"):
            getattr(l.numpy, name)(there, dtype, device=two)


def test_inside_a_trace_it_is_a_constraint():
    auto = meshrt.sharding.AxisType.Auto
    mesh = meshrt.make_mesh((2, 4), ("a", "b"), axis_types=(auto, auto))
    sharding = meshrt.NamedSharding(mesh, meshrt.P("a", "b"))
    x = meshrt.jit(lambda: meshrt.lax.full((8, 8), 2.0, sharding=sharding))()
    assert x.sharding.is_equivalent_to(sharding, 2) and float(x.sum()) == 128
