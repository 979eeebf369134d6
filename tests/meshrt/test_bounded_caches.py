"""Caches do not grow without bound, and threads that call and clear at once get right results."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import config
from meshrt.core.interning import sweep
from meshrt.core.types import ShapedArray
from meshrt.runtime import compile_cache, events, signature
from meshrt.sharding import AxisType, Mesh, NamedSharding
from meshrt.sharding import PartitionSpec as P

# Seconds of the tests with threads; MESHRT_TEST_SECONDS=60 for a long run.
SECONDS = float(os.environ.get("MESHRT_TEST_SECONDS", "3"))


def sizes(driver):
    caches = ("traces", "lowered", "propagated", "partitioned", "programs", "loaded")
    return {name: len(getattr(driver, name)) for name in caches}


def test_ever_new_shapes_do_not_grow_the_caches():
    mesh = Mesh(np.array(meshrt.devices()[:4]), ("x",), axis_types=(AxisType.Auto,))
    f = meshrt.jit(lambda x: jnp.sum(x * 2))
    gone = []
    with config.override(cached_traces=8):
        for k in range(1, 40):
            x = meshrt.device_put(np.ones((4 * k,), np.float32), NamedSharding(mesh, P("x")))
            assert float(f(x)) == 8 * k
            f(x)
            gone.append(weakref.ref(next(reversed(f._driver.loaded.values())).executable))
            assert all(n <= 8 for n in sizes(f._driver).values()), sizes(f._driver)
            assert len(f._driver.calls) <= 32 and len(f._driver.direct) <= 32
    gc.collect()
    assert sum(r() is not None for r in gone) <= 8


def test_what_is_in_use_stays():
    f = meshrt.jit(lambda x: x + 1)
    hot = jnp.ones(3)
    f(hot), f(hot)
    with config.override(cached_traces=8), events.count("compile", "trace") as n:
        for k in range(4, 40):
            f(np.ones(k, np.float32))
            f(hot)
    assert n.trace == 36, "the hot one was never traced again"


def test_many_sets_of_devices_do_not_grow_the_caches():
    devices = meshrt.devices()
    f = meshrt.jit(lambda x: x * 3)
    with config.override(cached_traces=4):
        for turn in range(12):
            order = np.roll(devices, turn)[np.array([0, 2 if turn < 8 else 3])]
            mesh = Mesh(order, ("x",), axis_types=(AxisType.Auto,))
            f(meshrt.device_put(np.ones(4, np.float32), NamedSharding(mesh, P("x"))))
            assert len(f._driver.loaded) <= 4 and len(f._driver.traces) == 1


def test_types_that_nobody_uses_are_dropped(monkeypatch):
    monkeypatch.setattr(ShapedArray, "_sweep_at", 0)
    held = ShapedArray((97531,), np.dtype("float32"))
    held.strong(), held.physical(), held.to_tangent_aval()
    identity = id(ShapedArray((97532,), np.dtype("float32")).strong())
    ShapedArray((97532,), np.dtype("float32")).to_tangent_aval()
    monkeypatch.setattr(ShapedArray, "_sweep_at", 0)
    ShapedArray((97533,), np.dtype("float32"))
    shapes = {key[0] for key in ShapedArray._interned}
    assert (97531,) in shapes and (97532,) not in shapes and identity
    assert ShapedArray((97531,), np.dtype("float32")) is held


def test_signatures_that_nobody_uses_are_dropped(monkeypatch):
    monkeypatch.setattr(signature, "KEPT_SIGNATURES", 16)
    sharding = NamedSharding(Mesh(np.array(meshrt.devices()[:2]), ("x",), axis_types=(AxisType.Auto,)), P("x"))
    held = meshrt.device_put(np.ones(2, np.float32), sharding)
    for k in range(1, 100):
        meshrt.device_put(np.ones(2 * k, np.float32), sharding)
        assert len(sharding.signatures) <= 32
    again = meshrt.device_put(np.ones(2, np.float32), sharding)
    assert again._sig is held._sig


def test_sweep_keeps_what_is_held_under_several_keys():
    class Value:
        pass

    held, loose = Value(), Value()
    loose.me = loose
    table = {1: held, 2: held, 3: loose, 4: Value(), 5: loose}
    del loose
    sweep(table, ("me",))
    assert table == {1: held, 2: held}


def in_threads(works):
    """Runs the functions in threads until the time is over; raises what one of them raised."""
    end, failures = time.monotonic() + SECONDS, []

    def run(work):
        try:
            while time.monotonic() < end and not failures:
                work()
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    [t.start() for t in threads], [t.join(SECONDS + 120) for t in threads]
    assert not any(t.is_alive() for t in threads)
    if failures:
        raise failures[0]


def test_eight_threads_call_and_clear():
    devices = meshrt.devices()
    shared = meshrt.jit(lambda x, n: jnp.sum(x * n + 1), static_argnums=1)
    clears = [meshrt.clear_caches, shared.clear_cache, compile_cache.clear]

    def caller(number):
        random = np.random.default_rng(number)

        def work():
            size, times = int(random.integers(1, 5)) * 2, int(random.integers(3))
            value = np.arange(size, dtype=np.float32)
            if random.integers(2):
                start = int(random.integers(0, 7))
                mesh = Mesh(np.array(devices[start : start + 2]), ("x",), axis_types=(AxisType.Auto,))
                value = meshrt.device_put(value, NamedSharding(mesh, P("x")))
            assert float(shared(value, times)) == size * (size - 1) / 2 * times + size
            if random.integers(4) == 0:
                own = meshrt.jit(lambda x: x - number)
                assert float(own(jnp.float32(5.0))) == 5 - number
            if random.integers(8) == 0:
                clears[number % 3]()

        return work

    with config.override(cached_traces=4):
        in_threads([caller(i) for i in range(8)])


@pytest.mark.parametrize("context", ["set_mesh", "with mesh"])
def test_b24_two_threads_with_two_meshes(context):
    devices = meshrt.devices()
    meshes = [
        Mesh(np.array(devices[a : a + 4]).reshape(2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2) for a in (0, 4)
    ]
    f = meshrt.jit(lambda x: meshrt.lax.with_sharding_constraint(x * 2, P("x", "y")))
    value = np.arange(16, dtype=np.float32).reshape(4, 4)
    ends = time.monotonic() + min(SECONDS, 1.0)

    def work(mesh):
        with meshrt.set_mesh(mesh) if context == "set_mesh" else mesh:
            while True:
                out = f(value)
                assert out.sharding.mesh is mesh
                np.testing.assert_array_equal(np.asarray(out), value * 2)
                if time.monotonic() > ends:
                    return

    in_threads([lambda: work(meshes[0]), lambda: work(meshes[1])])
