"""Arrays: attributes, conversions and texts equal JAX's; shards, deletion, pickling."""

import copy
import pickle
import re

import jax
import jax.numpy as xnp
import ml_dtypes
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors
from meshrt.runtime.array import signature
from meshrt.sharding import AxisType, NamedSharding, SingleDeviceSharding, make_mesh
from meshrt.sharding import PartitionSpec as P

VALUES = [
    np.float32(3), np.int32(7), True, 2, 1.5, 2j, np.arange(3.0, dtype=np.float32), np.zeros((0, 3), np.float32),
    np.zeros((3, 0), np.int8), np.arange(17), np.arange(18), np.arange(40).reshape(2, 20), np.ones((2, 2), bool),
    np.arange(3000), np.arange(4).astype(ml_dtypes.bfloat16), np.arange(4).astype(ml_dtypes.float8_e4m3fn),
    np.array([1, -2, 3], ml_dtypes.int4), np.full((2, 3), 1 + 2j, np.complex64), np.float64(1.25), np.float16(0.5),
    np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda v: f"{type(v).__name__}{np.shape(v)}{np.asarray(v).dtype}")
def test_value_equals_jax(value):
    ours, theirs = meshrt.device_put(value), jax.device_put(value)
    # JAX forgets the line break in front of a dtype that does not fit the line.
    assert repr(ours).split() == repr(theirs).split() and str(ours) == str(theirs)
    for name in ("shape", "dtype", "ndim", "size", "nbytes", "itemsize", "weak_type", "is_fully_replicated",
                 "is_fully_addressable"):  # fmt: skip
        assert getattr(ours, name) == getattr(theirs, name), name
    assert np.asarray(ours).dtype == np.asarray(theirs).dtype
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    assert not np.asarray(ours).flags.writeable
    assert ours.tolist() == theirs.tolist()
    back = pickle.loads(pickle.dumps(ours))
    assert repr(back) == repr(ours)


@pytest.mark.parametrize("value", [3, 2.5, True, np.int32(4), np.float32(1.5), np.ones((1, 1)), np.ones(2), 1 + 2j])
@pytest.mark.parametrize("convert", [int, float, complex, bool, len, list, hash, lambda x: [0, 1, 2, 3, 4, 5][x]])
def test_conversions_fail_where_jax_fails(value, convert):
    ours, theirs = meshrt.device_put(value), jax.device_put(value)
    try:
        wanted = convert(theirs)
    except (TypeError, ValueError) as e:
        said = re.escape(" ".join(str(e).split()[:4])) if "scalar" in str(e) else None  # a fix stands behind the words
        with pytest.raises(type(e).__mro__[-3] if isinstance(e, ValueError) else TypeError, match=said):
            convert(ours)
    else:
        assert np.array_equal(convert(ours), wanted)


def test_format_and_numpy_interplay():
    x = meshrt.device_put(np.float32(3.14159))
    assert f"{x:.2f}" == "3.14" and f"{x}" == f"{jax.device_put(np.float32(3.14159))}"
    assert np.float32(2) == np.sqrt(np.asarray(meshrt.device_put(4.0)))
    y = np.ones(3, np.float32) + meshrt.device_put(np.ones(3, np.float32))
    assert isinstance(y, meshrt.Array)


@pytest.mark.parametrize("spec", [P(), P("x"), P(None, "x"), P(("x", "y")), P("y", "x")])
def test_shards_equal_jax(spec):
    value = np.arange(64, dtype=np.float32).reshape(8, 8)
    ours = meshrt.device_put(value, NamedSharding(make_mesh((4, 2), ("x", "y")), spec))
    jmesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    theirs = jax.device_put(value, jax.sharding.NamedSharding(jmesh, jax.sharding.PartitionSpec(*spec)))
    assert len(ours.addressable_shards) == len(theirs.addressable_shards) == len(ours.global_shards)
    for a, b in zip(ours.addressable_shards, theirs.addressable_shards):
        assert (a.device.id, a.index, a.replica_id) == (b.device.id, b.index, b.replica_id)
        np.testing.assert_array_equal(np.asarray(a.data), np.asarray(b.data))
        assert a.data.devices() == {a.device} and a.data.committed
    assert ours.on_device_size_in_bytes() == theirs.on_device_size_in_bytes()
    assert np.array_equal(np.asarray(ours.addressable_data(5)), np.asarray(theirs.addressable_data(5)))


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.bfloat16, bool, ml_dtypes.float8_e5m2])
def test_sharded_values_of_narrow_types(dtype):
    value = np.arange(64).reshape(8, 8).astype(dtype)
    x = meshrt.device_put(value, NamedSharding(make_mesh((4, 2), ("x", "y")), P("y", "x")))
    np.testing.assert_array_equal(np.asarray(x), value)
    np.testing.assert_array_equal(np.asarray(x.addressable_data(3)), value[x.addressable_shards[3].index])


def test_keys():
    key = meshrt.random.split(meshrt.random.key(0), 8)
    theirs = jax.random.split(jax.random.key(0), 8)
    assert repr(key) == repr(theirs) and key.shape == (8,)
    placed = meshrt.device_put(key, NamedSharding(make_mesh((4, 2), ("x", "y")), P("x")))
    np.testing.assert_array_equal(meshrt.random.key_data(placed), jax.random.key_data(theirs))
    assert repr(pickle.loads(pickle.dumps(placed))) == repr(theirs)
    with pytest.raises(TypeError, match="key_data"):
        np.asarray(key)


def test_copies_are_independent():
    x = meshrt.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(make_mesh((8,), ("x",)), P("x")))
    y = copy.deepcopy(x)
    x.delete()
    assert x.is_deleted() and not y.is_deleted() and np.asarray(y)[3] == 3
    assert y.sharding is x.sharding


def test_deleted_arrays_say_so():
    x = meshrt.device_put(np.ones((2, 3), np.float32))
    x._fate = "donated as argument params['w'] of step"
    x.delete()
    text = r"Array has been deleted with shape=float32\[2,3\]. It was donated as argument params\['w'\] of step"
    move = lambda a: meshrt.device_put(a, meshrt.devices()[1])
    dlpack = lambda a: a.__dlpack__()
    shards = lambda a: a.addressable_shards
    for use in (np.asarray, meshrt.Array.block_until_ready, shards, move, copy.copy, dlpack, repr):
        with pytest.raises(errors.DeletedArrayError, match=text):
            use(x)


def test_views_outlive_deletion_and_donation():
    """jaxlib aborts the process when a buffer is deleted while a view of it is alive."""
    sharding = NamedSharding(make_mesh((4,), ("x",)), P("x"))
    x, y, z = (meshrt.device_put(np.full((8, 8), i, np.float32), sharding) for i in range(3))
    views = [np.asarray(a.addressable_data(1)) for a in (x, y, z)]
    x.delete()
    meshrt.device_put(y, sharding.update(spec=P()), donate=True)
    total = meshrt.jit(lambda a: a + 1, donate_argnums=0)(z)
    assert np.asarray(total).max() == 3
    del x, y, z, total
    assert [v.max() for v in views] == [0, 1, 2]


def test_dlpack():
    x = meshrt.device_put(np.arange(6, dtype=np.float32).reshape(2, 3))
    np.testing.assert_array_equal(np.from_dlpack(x), np.asarray(x))
    assert x.__dlpack_device__() == (1, 0) and x.unsafe_buffer_pointer() % 4 == 0
    with pytest.raises(BufferError, match="singular device"):
        meshrt.device_put(np.ones(8), NamedSharding(make_mesh((8,), ("x",)), P())).__dlpack__()


def test_signatures_are_interned():
    mesh = make_mesh((4, 2), ("x", "y"))
    a, b = (meshrt.device_put(np.ones((8, i)), NamedSharding(mesh, P("x"))) for i in (4, 4))
    assert a._sig is b._sig is signature(a.aval, a.sharding)
    assert meshrt.device_put(np.ones(2))._sig is meshrt.device_put(np.zeros(2))._sig
    one = SingleDeviceSharding(meshrt.devices()[0])
    assert signature(a.aval, one, False) is not signature(a.aval, one, True)


def test_host_values_are_not_aliased():
    value = np.ones((64, 64), np.float32)
    x = meshrt.device_put(value)
    y = meshrt.device_put(value, NamedSharding(make_mesh((4, 2), ("x", "y")), P("x")))
    value[:] = 5
    assert np.asarray(x).max() == 1 and np.asarray(y).max() == 1
    fixed = np.ones((64, 64), np.float32)
    assert np.asarray(meshrt.device_put(fixed, may_alias=True)).max() == 1
    assert xnp.asarray(np.asarray(x)).shape == (64, 64)


SLICES = {
    "one row": lambda a: a[3], "rows of one part": lambda a: a[8:12], "rows of several": lambda a: a[5:21],
    "a row picked at run time": lambda a: a[jnp.asarray(5)], "the last": lambda a: a[-1],
    "every other": lambda a: a[::2], "a column": lambda a: a[:, 3],
}  # fmt: skip


@pytest.mark.parametrize("name", SLICES)
def test_slices_send_what_they_take_and_no_more(name):
    """Reference 5.18: nothing is gathered for a slice; a device sends about what the result has."""
    value = np.arange(64 * 16, dtype=np.float32).reshape(64, 16)
    x = meshrt.device_put(value, NamedSharding(make_mesh((8,), ("x",), AxisType.Auto), P("x")))
    plan = meshrt.jit(SLICES[name]).lower(x).partition().plan
    got = SLICES[name](x)
    assert plan.bytes <= 2.5 * got.nbytes
    np.testing.assert_array_equal(np.asarray(got), SLICES[name](value))


def test_what_is_not_copied_to_the_host():
    """Of a replicated array one part is fetched, of others every different part once."""
    mesh = make_mesh((4, 2), ("x", "y"))
    value = np.arange(64, dtype=np.float32).reshape(8, 8)
    for spec, parts in ((P(), 1), (P("x"), 4), (P("y"), 2), (P("x", "y"), 8)):
        x = meshrt.device_put(value, NamedSharding(mesh, spec))
        fetched = []
        with pytest.MonkeyPatch.context() as patch:
            one = meshrt.Array._shard_numpy
            patch.setattr(meshrt.Array, "_shard_numpy", lambda self, i: fetched.append(i) or one(self, i))
            np.testing.assert_array_equal(np.asarray(x), value)
        assert len(fetched) == parts


def test_arrays_have_no_flat():
    x = meshrt.numpy.arange(4.0)
    assert not hasattr(x, "flat")
    with pytest.raises(NotImplementedError, match=r"x\.flatten\(\)"):
        _ = x.flat


def test_numpy_gets_copies_where_it_may():
    """`copy=False` shares memory, or says that the elements are of another type."""
    x = meshrt.numpy.arange(4.0)
    assert np.shares_memory(x.__array__(copy=False), x.__array__())
    assert not np.shares_memory(x.__array__(copy=True), x.__array__())
    np.testing.assert_array_equal(x.__array__(np.int32), [0, 1, 2, 3])
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        with pytest.raises(ValueError, match="avoid copy"):
            x.__array__(np.int32, copy=False)
