"""ops, flatten_util, typing, monitoring, profiler and test_util, beside JAX's."""

import functools
import gzip
import json

import jax
import jax.flatten_util
import jax.ops
import jax.test_util
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors
from meshrt.runtime import events

KINDS = ("segment_sum", "segment_prod", "segment_max", "segment_min")
IDS = np.array([0, 2, 2, -1, 5, 0, 1])


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, np.bool_])
@pytest.mark.parametrize("options", [{}, {"bucket_size": 3}, {"num_segments": 3}, {"num_segments": 8}])
def test_segments(kind, dtype, options):
    data = np.random.default_rng(0).integers(0, 4, (7, 2)).astype(dtype)
    if dtype == np.bool_ and kind in ("segment_prod", "segment_sum"):
        pytest.skip("JAX adds booleans as such")
    got, wanted = (getattr(lib.ops, kind)(data, IDS, **options) for lib in (meshrt, jax))
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "segment_prod"])  # products: of unique ids only
def test_segments_differentiate_and_batch(kind):
    data = np.random.default_rng(1).normal(size=(7, 2)).astype(np.float32)
    f = [lambda d, i, lib=lib: getattr(lib.ops, kind)(d, i, num_segments=3) for lib in (meshrt, jax)]
    grads = [lib.grad(lambda d, f=f: lib.numpy.where(lib.numpy.isfinite(f(d, IDS)), f(d, IDS), 0).sum())(data)
             for lib, f in zip((meshrt, jax), f)]  # fmt: skip
    np.testing.assert_allclose(*map(np.asarray, grads), 1e-6)
    rows = [lib.jit(lib.vmap(f, in_axes=(1, None)))(data, IDS) for lib, f in zip((meshrt, jax), f)]
    np.testing.assert_allclose(*map(np.asarray, rows), 1e-6)


@pytest.mark.parametrize(
    ("data", "ids"), [((2, 2), (2, 2)), ((1, 3), (2,)), ((3, 3), (1, 3)), ((3,), (2, 3)), ((), (3,))]
)
def test_ids_of_several_dimensions_pick_rows(data, ids):
    x, rows = np.arange(np.prod(data), dtype=np.float32).reshape(data), np.arange(np.prod(ids)).reshape(ids) % 4
    got, wanted = (lib.ops.segment_sum(x, rows, 5) for lib in (meshrt, jax))
    np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))


def test_segments_that_are_refused():
    x, ids = np.ones(3, np.float32), np.array([0, 1, 1])
    with pytest.raises(ValueError, match="non-negative"):
        meshrt.ops.segment_sum(x, ids, num_segments=-1)
    with pytest.raises(TypeError, match="num_segments"):
        meshrt.jit(meshrt.ops.segment_sum)(x, ids)
    with pytest.raises(TypeError):
        meshrt.ops.segment_sum([1.0], ids)
    with pytest.raises(errors.ArgumentValueError, match="shape"):
        meshrt.ops.segment_sum(np.ones(4), ids)


@pytest.mark.parametrize(
    "tree",
    [
        {"a": np.ones((2, 3), np.float32), "b": [np.float32(2.0), np.zeros(0, np.float32)]},
        (np.arange(3), np.ones(2, np.float16), 1.5), [np.ones(2, np.complex64), np.ones(1, np.float32)], {}, 3,
    ],
)  # fmt: skip
def test_ravel_pytree(tree):
    flat, back = meshrt.flatten_util.ravel_pytree(tree)
    wanted, _ = jax.flatten_util.ravel_pytree(tree)
    assert flat.dtype == wanted.dtype and back == meshrt.flatten_util.ravel_pytree(tree)[1]
    np.testing.assert_array_equal(np.asarray(flat), np.asarray(wanted))
    for a, b in zip(meshrt.tree.leaves(back(flat)), meshrt.tree.leaves(tree)):
        assert a.dtype == meshrt.typeof(b).dtype and a.shape == np.shape(b)
        np.testing.assert_array_equal(np.asarray(a), b)
    assert hash(back) == hash(meshrt.flatten_util.ravel_pytree(tree)[1])
    with pytest.raises(TypeError, match="unravel function"):
        back(np.ones(99, np.float32))


@pytest.mark.parametrize("size, error", [(1, 1e-3), (1, 1e-2), (20, 1e-2), (20, 1e-1)])
@pytest.mark.parametrize("tolerance", [None, 5e-2])
def test_check_grads_takes_for_near_what_jax_does(size, error, tolerance):
    def passes(l):
        f = l.custom_jvp(l.numpy.sin)
        f.defjvps(lambda t, out, x: l.numpy.cos(x) * t * (1 + error))
        x = np.linspace(0.1, 1, size, dtype=np.float32)
        try:
            l.test_util.check_grads(f, (x,), 1, rtol=tolerance, modes=("fwd",))
        except AssertionError:
            return False
        return True

    assert passes(meshrt) == passes(jax) == (error < (tolerance or 2e-3) * size)


def test_check_grads_finds_what_is_wrong():
    x = np.array([0.3, 0.7], np.float32)
    meshrt.test_util.check_grads(lambda a: jnp.sin(a) * a, (x,), order=2, modes=("fwd", "rev", "lin"))
    meshrt.test_util.check_grads(lambda a, n: {"y": a * n}, (x, np.array([2, 3])), order=1)
    meshrt.test_util.check_grads(lambda a: a * a * 1j, (x + 1j,), order=2)
    for f in (jnp.conj, lambda a: a * jnp.conj(a), lambda a: jnp.abs(a) * a):  # not holomorphic
        meshrt.test_util.check_grads(f, (x + 1j,), order=2, eps=1e-2, rtol=0.01)

    meshrt.test_util.check_grads(lambda a: jnp.stack([a[0], jnp.float32(-jnp.inf)]), (x,), order=2)  # no change there

    @meshrt.custom_jvp
    def wrong(a):
        return a * a

    wrong.defjvp(lambda primals, tangents: (wrong(*primals), tangents[0] * 3))
    for modes in (("fwd",), ("rev",), ("lin",)):
        with pytest.raises(AssertionError):
            meshrt.test_util.check_grads(wrong, (x,), order=1, modes=modes)
    with pytest.raises(AssertionError):
        meshrt.test_util.check_jvp(jnp.sin, functools.partial(meshrt.jvp, jnp.cos), (x,))
    with pytest.raises(ValueError, match="unknown modes"):
        meshrt.test_util.check_grads(jnp.sin, (x,), order=1, modes=("back",))


def test_monitoring():
    seen = []
    register = meshrt.monitoring.register_event_listener

    def listener(*args, **details):
        seen.append((*args, details))

    register(listener)
    try:
        meshrt.monitoring.record_event("/mine", n=1)
        meshrt.jit(lambda x: x * 3)(np.ones(5))
        assert seen[0] == ("/mine", {"n": 1}) and "/meshrt/trace" in [s[0] for s in seen]
        meshrt.monitoring.unregister_event_listener(listener)
        with pytest.raises(AssertionError, match="does not listen"):
            meshrt.monitoring.unregister_event_listener(listener)
        for sort, values in (("event_duration_secs", (0.5,)), ("event_time_span", (1.0, 2.0)), ("scalar", (3,))):
            getattr(meshrt.monitoring, f"register_{sort}_listener")(listener)
            getattr(meshrt.monitoring, f"record_{sort}")("/x", *values, k=2)
            assert seen[-1] == ("/x", *values, {"k": 2})
    finally:
        meshrt.monitoring.clear_event_listeners()
    count = len(seen)
    meshrt.monitoring.record_event("/mine")
    assert len(seen) == count


def test_nothing_is_told_after_the_last_listener_went():
    monitoring, before = meshrt.monitoring, list(events.timers)
    listeners = [lambda *args, **details: None for _ in range(2)]
    for sort, end in (("event", "event"), ("event_duration_secs", "event_duration"), ("event_time_span",) * 2):
        start, stop = (getattr(monitoring, f"{k}_listener") for k in (f"register_{sort}", f"unregister_{end}"))
        for listener in listeners:
            start(listener)
        stop(listeners[0])
        assert len(events.timers) == len(before) + 1
        stop(listeners[1])
        assert events.timers == before and monitoring._unsubscribe is None


def test_durations_under_the_names_that_tools_look_for():
    stages = []
    for library in (jax, meshrt):
        seen = []
        listener = lambda event, seconds, seen=seen, **details: seen.append((event, seconds >= 0, details["fun_name"]))
        library.monitoring.register_event_duration_secs_listener(listener)
        try:
            library.jit(lambda x: x * 5)(np.float32(1))
        finally:
            library.monitoring.unregister_event_duration_listener(listener)
        stages.append(seen)
    assert stages[0] == stages[1] and len(stages[0]) == 3


def test_profiles(tmp_path):
    named = meshrt.profiler.annotate_function(lambda x: jnp.sin(x), name="mine")
    with meshrt.profiler.trace(tmp_path, create_perfetto_trace=True):
        with pytest.raises(RuntimeError, match=r"Profile has already been started\. Only one profile"):
            meshrt.profiler.start_trace(tmp_path)
        with meshrt.profiler.StepTraceAnnotation("train", step_num=1):
            named(np.ones(4)).block_until_ready()
    (found,) = tmp_path.rglob("perfetto_trace.json.gz")
    names = {e.get("name") for e in json.loads(gzip.decompress(found.read_bytes()))["traceEvents"]}
    assert {"mine", "train"} <= names
    assert list(tmp_path.rglob("*.xplane.pb"))
    with pytest.raises(RuntimeError, match="No profile started"):
        meshrt.profiler.stop_trace()
    with pytest.raises(ValueError, match="No active profiler server"):
        meshrt.profiler.stop_server()
    meshrt.profiler.save_device_memory_profile(tmp_path / "memory")
    assert gzip.decompress((tmp_path / "memory").read_bytes())


def test_types_for_annotations():
    assert isinstance(jnp.ones(2), meshrt.typing.ArrayLike) and not isinstance([1], meshrt.typing.ArrayLike)
