"""What is computed again and what is not: every cache is keyed by mesh shape, devices appear at load only."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt.pipeline.driver import Driver
from meshrt.pipeline.traced import LoweringRequest, TraceRecord
from meshrt.runtime import events
from meshrt.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from meshrt.sharding import PartitionSpec as P

KINDS = ("trace", "lower", "propagate", "partition", "compile", "rebind")


def device_mesh(order, shape=(2, 2), names=("x", "y")):
    devices = meshrt.devices()
    return Mesh(np.array([devices[i] for i in order]).reshape(shape), names, axis_types=(AxisType.Auto,) * len(names))


def step(w, x):
    wanted = NamedSharding(AbstractMesh((2, 2), ("x", "y")), P("x", "y"))
    y = meshrt.lax.with_sharding_constraint(jnp.tanh(x @ w), wanted)
    return w - 0.1 * jnp.mean(y), jnp.sum(y * y)


def arguments(mesh):
    w = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    x = np.linspace(0, 2, 32, dtype=np.float32).reshape(4, 8)
    put = lambda a, *spec: meshrt.device_put(a, NamedSharding(mesh, P(*spec)))
    return put(w, None, "y"), put(x, "x", None)


@pytest.mark.smoke
@pytest.mark.parametrize("order", [(4, 5, 6, 7), (3, 2, 1, 0), (0, 2, 4, 6)], ids=["disjoint", "reversed", "strided"])
@pytest.mark.parametrize("how", ["arguments", "set_mesh", "with mesh"])
def test_moving_to_other_devices_costs_a_load(order, how):
    # Equal programs are compiled once per process, so each case runs a program of its own.
    salt = ord(how[0]) + sum(i * 10**k for k, i in enumerate(order, 2))
    f = meshrt.jit(lambda w, x: (*step(w, x), jnp.float32(salt)))
    first = device_mesh((0, 1, 2, 3))
    expected = [np.asarray(r) for r in f(*arguments(first))]
    other = device_mesh(order)
    args = arguments(other)
    with events.count(*KINDS) as n:
        if how == "arguments":
            results = f(*args)
        else:
            with meshrt.set_mesh(other) if how == "set_mesh" else other:
                results = f(*args)
    assert {k: n[k] for k in KINDS} == {**dict.fromkeys(KINDS, 0), "rebind": 1}
    for r, e in zip(results, expected):
        assert r.sharding.mesh is other
        np.testing.assert_array_equal(np.asarray(r), e)


def test_second_call_with_the_same_types_does_nothing():
    f = meshrt.jit(step)
    args = arguments(device_mesh((0, 1, 2, 3)))
    f(*args)
    with events.count(*KINDS, "dispatch_miss") as n:
        f(*args)
    assert n.dispatch_miss == 0 and sum(n[k] for k in KINDS) == 0


def test_a_hand_built_abstract_mesh_shares_the_trace():
    f = meshrt.jit(lambda x: x * 2)
    mesh = device_mesh((0, 1, 2, 3))
    by_hand = AbstractMesh((2, 2), ("x", "y"))
    assert by_hand is mesh.abstract_mesh
    with events.count("trace", "lower") as n:
        f.lower(meshrt.ShapeDtypeStruct((4,), np.float32, sharding=NamedSharding(by_hand, P("x"))))
        f.lower(meshrt.ShapeDtypeStruct((4,), np.float32, sharding=NamedSharding(mesh, P("x"))))
        f(meshrt.device_put(np.ones(4, np.float32), NamedSharding(mesh, P("x"))))
    assert (n.trace, n.lower) == (1, 1)


@pytest.mark.parametrize(
    "change, counts",
    [
        (lambda x: x.astype(jnp.bfloat16), (1, 1)),
        (lambda x: x[:4], (1, 1)),
        (lambda x: meshrt.device_put(x, NamedSharding(x.sharding.mesh, P("y"))), (0, 1)),
        (lambda x: meshrt.device_put(x, NamedSharding(x.sharding.mesh, P("x", None))), (0, 0)),
    ],
    ids=["dtype", "shape", "sharding", "equal sharding spelled otherwise"],
)
def test_what_a_changed_argument_costs(change, counts):
    f = meshrt.jit(lambda x: x + 1)
    x = meshrt.device_put(np.ones((8, 2), np.float32), NamedSharding(device_mesh((0, 1, 2, 3)), P("x")))
    f(x)
    y = meshrt.device_put(change(x), x.sharding) if counts == (1, 1) else change(x)
    with events.count("trace", "lower") as n:
        f(y)
    assert (n.trace, n.lower) == counts


def test_settings_and_static_arguments_enter_the_keys():
    f = meshrt.jit(lambda x, n: x * n, static_argnums=1)
    with events.count("trace") as n:
        f(1.0, 2), f(1.0, 2), f(1.0, 3), f(1.0, 2.0), f(1.0, True)
    assert n.trace == 4
    with events.count("trace") as n, meshrt.config.override(default_matmul_precision="highest"):
        f(1.0, 2)
    assert n.trace == 1


def walk(value, seen, depth=0):
    """Every object reachable through containers and the values of the pipeline."""
    if id(value) in seen or depth > 12:
        return
    seen[id(value)] = value
    if isinstance(value, dict):
        children = [*value.keys(), *value.values()]
    elif isinstance(value, tuple | list | set | frozenset):
        children = list(value)
    elif isinstance(value, TraceRecord | NamedSharding | AbstractMesh):
        children = [
            getattr(value, name) for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())
            if hasattr(value, name) and name not in ("__weakref__", "meshes", "fun")
        ] + list(getattr(value, "__dict__", {}).values())  # fmt: skip
    else:
        return
    for child in children:
        walk(child, seen, depth + 1)


def test_no_cache_key_before_load_mentions_a_device():
    f = meshrt.jit(step, donate_argnums=0)
    for order in ((0, 1, 2, 3), (4, 5, 6, 7)):
        f(*arguments(device_mesh(order)))
    driver = f._driver
    before_load = (driver.traces, driver.lowered, driver.propagated, driver.partitioned, driver.programs)
    assert all(len(cache) == 1 for cache in before_load)
    seen: dict = {}
    for cache in before_load:
        for key in cache:
            walk(key, seen)
    assert any(isinstance(v, LoweringRequest) for v in seen.values())
    device_type = type(meshrt.devices()[0])
    for v in seen.values():
        assert not isinstance(v, device_type | Mesh), f"{v!r} stands in a cache key"
    assert len(driver.loaded) == len(driver.calls) == 2


def test_every_cache_of_the_driver_is_walked():
    """A new cache has to be said to be keyed by devices, or to be walked in the test above."""
    caches = {name for name in Driver.__slots__ if isinstance(getattr(meshrt.jit(step)._driver, name, None), dict)}
    walked = {"traces", "lowered", "propagated", "partitioned", "programs"}
    know_devices = {"calls", "direct", "loaded"}
    assert caches == walked | {"nested", "stateful"} | know_devices


def test_clear_cache_forgets():
    f = meshrt.jit(lambda x: x + 1)
    f(1.0)
    f.clear_cache()
    gc.collect()
    with events.count("trace") as n:
        f(1.0)
    assert n.trace == 1


CLEARED = """
import numpy as np, meshrt
from meshrt.runtime import events
f = meshrt.jit(lambda x: x * 3)
f(np.arange(4, dtype=np.float32))
meshrt.clear_backends()
with events.count("trace") as n:
    assert np.asarray(f(np.arange(4, dtype=np.float32)))[1] == 3.0
assert n.trace == 0
"""


def test_clear_backends_unbinds_programs():
    """In a process of its own: arrays and meshes of other tests lie on devices of the cleared back ends."""
    done = subprocess.run([sys.executable, "-c", CLEARED], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_function_staged_before_still_names_its_mesh():
    mesh = device_mesh((0, 1, 2, 3))
    wanted = NamedSharding(mesh, P("x"))
    inner = meshrt.jit(lambda x: meshrt.lax.with_sharding_constraint(x * 2, wanted))
    x = np.ones((4, 4), np.float32)
    for k in (1, 2):
        out = meshrt.jit(lambda x, k=k: inner(x) + k)(x)
        assert out.sharding.device_assignment == mesh.flat_devices and out.sharding.spec == P("x")


def test_calls_follow_the_default_device_of_an_override():
    f = meshrt.jit(lambda x: x * 2)
    for device in meshrt.devices()[:3]:
        with meshrt.config.override(default_device=device):
            assert f(np.ones(3, np.float32)).devices() == {device}
            assert jnp.ones(3).devices() == {device}


def test_eager_loops_in_threads(monkeypatch):
    from concurrent.futures import ThreadPoolExecutor

    from meshrt import heuristics

    monkeypatch.setattr(heuristics, "KEPT_OVER_JAXPRS", 1)
    bodies = [lambda i, c, k=k: c + k for k in range(3)]
    run = lambda k: float(meshrt.lax.fori_loop(0, 3, bodies[k % 3], jnp.float32(0)))
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(run, range(60))) == [3.0 * (k % 3) for k in range(60)]


def test_compile_goes_through_the_compiler_at_once():
    f = meshrt.jit(lambda x: jnp.sin(x) * 41.5)
    lowered = f.lower(jnp.ones(7))
    with events.count("compile") as n:
        compiled = lowered.compile()
    assert n["compile"] == 1
    with events.count("compile") as n:
        compiled(jnp.ones(7))
    assert n["compile"] == 0


def test_clear_caches_forgets_every_function():
    f = meshrt.jit(lambda x: x * 17)
    for _ in range(3):
        f(jnp.ones(2))
    meshrt.clear_caches()
    x = jnp.ones(2)
    with events.count("trace", "compile") as n:
        f(x)
    assert (n["trace"], n["compile"]) == (1, 1)


def test_calls_known_under_former_settings_are_dropped():
    f, x = meshrt.jit(lambda x: x + 1), jnp.ones(3)
    before = meshrt.config.debug_nans
    try:
        for i in range(12):
            meshrt.config.update("debug_nans", not i % 2)
            for _ in range(3):
                f(x)
            assert len(f._driver.calls) == len(f._driver.direct) == 1
    finally:
        meshrt.config.update("debug_nans", before)


def test_programs_compiled_again_and_again_are_known_calls_once():
    f, x = meshrt.jit(lambda x: x * 13), jnp.ones(5)
    for _ in range(4):
        f.lower(x).compile()(x)
    assert len(f._driver.calls) == 1


_twice = jnp.frompyfunc(lambda a, b: a * b + a, 2, 1, identity=1)


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: jnp.gcd(x.astype("int32"), 3), lambda x: jnp.lcm(x.astype("int32"), 3),
        lambda x: jnp.polyval(x[0], x), lambda x: _twice.reduce(x, axis=1, where=x > 0, initial=1.0),
        lambda x: _twice.accumulate(x), lambda x: _twice.reduceat(x, np.array([0, 2]), axis=1),
        lambda x: _twice.at(x, (np.array([0, 0]), slice(1, 3)), x[:1, 1:3], inplace=False),
        lambda x: meshrt.random.multinomial(meshrt.random.key(0), 9.0, x),
    ],
)  # fmt: skip
def test_loops_of_the_library_are_compiled_once(call, make):
    x = make(np.arange(12, dtype=np.float32).reshape(3, 4))
    first = call(x)
    with events.count("trace", "compile") as n:
        np.testing.assert_array_equal(call(x), first)
    assert (n["trace"], n["compile"]) == (0, 0)
