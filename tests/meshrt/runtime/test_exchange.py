"""Arrays to and from other libraries and processes: DLPack both ways (peers: NumPy, JAX), CUDA's interface, pickles."""

import copy
import pickle
import subprocess
import sys
import warnings

import jax
import jax.numpy as xnp
import ml_dtypes
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors
from meshrt.sharding import AxisType, NamedSharding, SingleDeviceSharding, make_mesh
from meshrt.sharding import PartitionSpec as P
from meshrt.xla.host_memory import aligned_empty

DTYPES = [np.float32, np.int8, np.uint16, np.bool_, np.complex64, np.float16, np.int32, ml_dtypes.bfloat16]


def aligned(value):
    out = aligned_empty(value.shape, value.dtype)
    out[...] = value
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0, 3)])
def test_dlpack_with_jax_both_ways(dtype, shape):
    value = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    ours, theirs = jnp.asarray(value), xnp.asarray(value)
    there = jax.dlpack.from_dlpack(ours)
    back = meshrt.dlpack.from_dlpack(theirs)
    for got in (there, back):
        assert got.dtype == value.dtype and got.shape == shape
        np.testing.assert_array_equal(np.asarray(got), value)
    assert ours.__dlpack_device__() == tuple(theirs.__dlpack_device__())
    assert meshrt.dlpack.is_supported_dtype(dtype) == jax.dlpack.is_supported_dtype(dtype)
    assert back.committed == jax.dlpack.from_dlpack(ours).committed


def test_an_array_on_several_devices_has_no_one_address():
    for lib in (meshrt, jax):
        mesh = lib.make_mesh((8,), ("x",), axis_types=(lib.sharding.AxisType.Auto,))
        x = lib.device_put(np.arange(8.0, dtype=np.float32), lib.NamedSharding(mesh, lib.P("x")))
        with pytest.raises(RuntimeError, match="only for unsharded arrays"):
            x.unsafe_buffer_pointer()
        assert x.addressable_data(3).unsafe_buffer_pointer() > 0


def test_memory_is_shared_where_it_can_be():
    theirs = xnp.arange(1000.0)
    ours = meshrt.dlpack.from_dlpack(theirs, copy=False)
    assert ours.unsafe_buffer_pointer() == theirs.unsafe_buffer_pointer()
    assert np.from_dlpack(ours).ctypes.data == ours.unsafe_buffer_pointer()
    assert jax.dlpack.from_dlpack(ours).unsafe_buffer_pointer() == ours.unsafe_buffer_pointer()
    host = aligned(np.arange(8, dtype=np.float32))
    assert jnp.from_dlpack(host).unsafe_buffer_pointer() == host.ctypes.data
    assert jnp.from_dlpack(host, copy=True).unsafe_buffer_pointer() != host.ctypes.data
    assert np.from_dlpack(ours, copy=True).ctypes.data != ours.unsafe_buffer_pointer()
    # The memory is another's: donating the array does not change it.
    shared = jnp.from_dlpack(host)
    assert np.asarray(meshrt.jit(lambda x: x + 1, donate_argnums=0)(shared))[0] == 1 and host[0] == 0


def test_memory_outlives_its_arrays():
    views = [np.from_dlpack(jnp.full(1 << 19, i, jnp.float32)) for i in range(6)]
    arrays = [meshrt.dlpack.from_dlpack(aligned(np.full(1 << 19, i, np.float32))) for i in range(6)]
    for i, (view, array) in enumerate(zip(views, arrays)):
        assert (view == i).all() and (np.asarray(array) == i).all()


def test_what_cannot_be_shared_is_copied_or_refused():
    for value in (np.arange(8, dtype=np.float32)[::2], np.asfortranarray(np.ones((2, 3), np.float32)),
                  np.arange(3), aligned(np.arange(9, dtype=np.float32))[1:]):  # fmt: skip
        got = meshrt.dlpack.from_dlpack(value)
        np.testing.assert_array_equal(np.asarray(got), value)
        with pytest.raises(errors.ArgumentValueError, match="requires a copy"):
            meshrt.dlpack.from_dlpack(value, copy=False)


def fails_alike(call, match):
    with pytest.raises(Exception) as wanted:
        call(jax, xnp)
    base = next(c for c in type(wanted.value).__mro__ if c.__module__ == "builtins")
    with pytest.raises(base, match=match) as got:
        call(meshrt, jnp)
    assert isinstance(got.value, errors.MeshrtError)


def spread(lib):
    mesh = lib.sharding.Mesh(np.array(lib.devices()[:8]), ("x",))
    return lib.device_put(
        np.arange(8.0, dtype=np.float32), lib.sharding.NamedSharding(mesh, lib.sharding.PartitionSpec("x"))
    )


REFUSED = [
    (lambda lib, np_: spread(lib).__dlpack__(), "on a singular device.*over 8 devices"),
    (lambda lib, np_: spread(lib).__dlpack_device__(), "only supported for unsharded arrays"),
    (lambda lib, np_: lib.dlpack.from_dlpack(3), "must have __dlpack__ and __dlpack_device__ methods"),
    (lambda lib, np_: lib.dlpack.from_dlpack(np.ones(3, np.float32), device=lib.devices()[1], copy=False),
     "which requires a copy since the source device is"),
    (lambda lib, np_: np_.ones(3).__cuda_array_interface__, "only defined for GPU buffers"),
    (lambda lib, np_: spread(lib).addressable_data(9), "list index out of range"),
    (lambda lib, np_: iter(np_.float32(3)), "iteration over a 0-d array"),
    (lambda lib, np_: len(np_.float32(3)), r"len\(\) of unsized object"),
    (lambda lib, np_: hash(np_.ones(3)), None),
    (lambda lib, np_: np_.ones(3).__array_namespace__(api_version="1999.1"), "1999.1"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "match"), [r for r in REFUSED if r[1]])
def test_refusals(call, match):
    fails_alike(call, match)


def test_unsharded_only():
    with pytest.raises(errors.ArgumentValueError, match=r"unsafe_buffer_pointer\(\) is supported only for unsharded"):
        spread(meshrt).unsafe_buffer_pointer()
    with pytest.raises(TypeError):
        hash(jnp.ones(3))
    with pytest.raises(errors.ExchangeError, match="another device"):
        jnp.ones(3).__dlpack__(dl_device=(2, 0))
    with pytest.raises(errors.ExchangeError, match="key_data"):
        meshrt.random.key(0).__dlpack__()
    assert not hasattr(jnp.ones(3), "__cuda_array_interface__")


def test_device_of_from_dlpack():
    x = meshrt.dlpack.from_dlpack(xnp.ones(8), device=meshrt.devices()[3])
    assert x.committed and x.devices() == {meshrt.devices()[3]}
    sharding = NamedSharding(make_mesh((8,), ("x",)), P("x"))
    assert jnp.from_dlpack(np.ones(8, np.float32), device=sharding).sharding is sharding


# ---------------------------------------------------------------------------------------------------------------------
# Pickles


def shardings():
    mesh = make_mesh((4, 2), ("x", "y"), AxisType.Auto)
    yield from (NamedSharding(mesh, spec) for spec in (P(), P("x"), P("y", "x"), P(("x", "y"), None)))
    yield NamedSharding(make_mesh((4, 2), ("x", "y")), P("y", "x"))
    yield NamedSharding(mesh, P("x"), uneven=True)
    yield SingleDeviceSharding(meshrt.devices()[5])


@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_pickles_keep_the_sharding(protocol):
    value = np.arange(64, dtype=np.float32).reshape(8, 8)
    for sharding in shardings():
        x = meshrt.device_put(value[:7] if sharding.uneven else value, sharding)
        y = pickle.loads(pickle.dumps(x, protocol))
        assert y._sig is x._sig
        np.testing.assert_array_equal(np.asarray(y), np.asarray(x))
    z = pickle.loads(pickle.dumps(jnp.asarray(2.0)))
    assert z.weak_type and not z.committed
    tree = pickle.loads(pickle.dumps({"w": x, "b": [x]}))
    assert tree["b"][0].sharding is x.sharding
    assert copy.deepcopy(x).sharding is x.sharding


READ = """
import sys, pickle, warnings
import meshrt
meshrt.config.update("num_cpu_devices", 2)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    x = pickle.load(sys.stdin.buffer)
assert x.devices() == {meshrt.devices()[0]} and not x.committed
assert (meshrt.device_get(x).ravel() == range(64)).all()
print(seen[0].category.__name__, seen[0].message)
"""


def test_pickles_without_their_devices_say_where_they_went():
    x = meshrt.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), next(shardings()))
    done = subprocess.run([sys.executable, "-c", READ], input=pickle.dumps(x), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"PlacementWarning" in done.stdout and b"f32[8,8] comes back on the default device" in done.stdout


def test_pickles_with_their_devices_do_not_warn():
    data = pickle.dumps(spread(meshrt))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pickle.loads(data)


# ---------------------------------------------------------------------------------------------------------------------
# Formats, iteration, protocols


def test_formats_of_arrays():
    x, theirs = jnp.ones((2, 3)), xnp.ones((2, 3))
    assert repr(x.format.layout) == repr(theirs.format.layout) and x.format.sharding is x.sharding
    y = spread(meshrt)
    assert y.layout == y.format.layout and y.layout.major_to_minor == (0,)
    y.delete()
    assert y.format.layout is None
    with pytest.raises(errors.DeletedArrayError):
        _ = y.layout


@pytest.mark.parametrize("length", [0, 1, 99, 100, 101, 250])
def test_iteration_is_cut_in_chunks(length):
    value = np.arange(length * 2, dtype=np.float32).reshape(length, 2)
    from meshrt.runtime import events

    x = jnp.asarray(value)
    with events.count("compile") as counts:
        rows = list(x)
    assert counts.compile <= 2  # one for whole chunks, one for the rest
    assert len(rows) == length and all(r.shape == (2,) for r in rows)
    assert not length or np.array_equal(np.stack(rows), value)
    assert [int(v) for v in jnp.arange(5)] == [0, 1, 2, 3, 4]


def test_iteration_of_spread_arrays():
    for sharding in shardings():
        value = np.arange(56 if sharding.uneven else 64, dtype=np.float32).reshape(-1, 8)
        rows = list(meshrt.device_put(value, sharding))
        assert np.array_equal(np.stack(rows), value)
        assert rows[0].devices() <= sharding.device_set and rows[0].aval.explicit is None


def test_array_api_protocol():
    x = jnp.ones(3)
    assert x.__array_namespace__() is jnp and x.__array_namespace__(api_version="2023.12") is jnp
    assert x.to_device(meshrt.devices()[2]).devices() == {meshrt.devices()[2]}
    assert x.tobytes() == np.ones(3, np.float32).tobytes()
