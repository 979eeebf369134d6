"""Which device calls back: one that `sharding=` names; which may not."""

import jax
import numpy as np
import pytest

import meshrt
from meshrt import errors
from meshrt.experimental import io_callback
from meshrt.runtime import events
from tests.meshrt.callbacks.programs import mesh_of, put

X = np.arange(8, dtype=np.float32)


def one_device(j, i):
    return j.sharding.SingleDeviceSharding(j.devices()[i])


def called_on(j, sharding, ordered=None):
    """`x + 1` by a callback that `sharding` says the device of; an io_callback if `ordered` is no None."""
    io = io_callback if j is meshrt else jax.experimental.io_callback
    plus_one, like = lambda v: np.asarray(v) + 1, j.ShapeDtypeStruct((8,), np.float32)
    if ordered is None:
        return lambda x: j.pure_callback(plus_one, like, x, sharding=sharding)
    return lambda x: io(plus_one, like, x, sharding=sharding, ordered=ordered)


@pytest.mark.parametrize("partitioner", ["meshrt", "xla"])
@pytest.mark.parametrize("ordered", [None, False, True])
def test_the_device_that_calls_may_be_named(ordered, partitioner):
    with meshrt.config.override(partitioner=partitioner):
        f = meshrt.jit(called_on(meshrt, one_device(meshrt, 2), ordered))
        x = put(X, mesh_of(4), "x")
        assert all(np.array_equal(s.data, X + 1) for s in f(x).addressable_shards)
        assert "device_ids=[2]" in f.lower(x).as_text()
        turned = put(X, mesh_of(4, devices=meshrt.devices()[3::-1]), "x")
        assert "device_ids=[1]" in f.lower(turned).as_text()
        np.testing.assert_array_equal(f(turned), X + 1)
        np.testing.assert_array_equal(meshrt.jit(called_on(meshrt, one_device(meshrt, 0), ordered))(X), X + 1)


def test_places_of_callers_are_keys_and_devices_are_not():
    f = meshrt.jit(called_on(meshrt, one_device(meshrt, 2)))
    with events.count("trace", "lower", "compile") as made:
        f(put(X, mesh_of(4), "x"))
        f(put(X, mesh_of(4, devices=[meshrt.devices()[i] for i in (5, 4, 2, 1)]), "x"))
        assert (made["trace"], made["lower"], made["compile"]) == (1, 1, 1)
        f(put(X, mesh_of(4, devices=meshrt.devices()[1:5]), "x"))
        assert (made["trace"], made["lower"]) == (1, 2)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda j, x: j.jit(called_on(j, one_device(j, 3)))(X), ValueError, "not in"),
        (lambda j, x: j.jit(called_on(j, one_device(j, 5)))(x), ValueError, "not in"),
        (lambda j, x: j.jit(called_on(j, x.sharding))(x), NotImplementedError, "only supports SingleDeviceSharding"),
        (
            lambda j, x: j.jit(
                j.shard_map(called_on(j, one_device(j, 0)), mesh=x.sharding.mesh, in_specs=j.P(), out_specs=j.P("x"))
            )(x),
            NotImplementedError,
            "do not support specifying sharding inside spmd",
        ),
    ],
)
def test_devices_that_cannot_call_are_refused_as_by_jax(call, kind, text):
    theirs = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("x",))
    with pytest.raises(kind, match=text):
        call(jax, jax.device_put(X, jax.NamedSharding(theirs, jax.P("x"))))
    with pytest.raises(kind, match=text) as e:
        call(meshrt, put(X, mesh_of(4), "x"))
    assert isinstance(e.value, errors.MeshrtError)


def test_hardware_that_is_not_here_cannot_call_back():
    traced = meshrt.jit(lambda x: (meshrt.debug.print("{}", x), x)[1]).trace(X)
    with pytest.raises(NotImplementedError, match=r"callback|call Python"):
        traced.lower().compile(topology="h100:1")
    with pytest.raises(NotImplementedError, match="a program for tpu cannot call Python functions"):
        traced.lower(lowering_platforms=("tpu",))
