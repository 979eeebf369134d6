"""`jit(f)` written several times is traced and compiled once, and its caches go with `f`; as JAX."""

import contextlib
import functools
import gc
import threading
import weakref

import jax
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors
from meshrt.experimental.hijax import new_box
from meshrt.heuristics import SHARED_OPTIONS
from meshrt.pipeline import sharing
from meshrt.runtime import events
from meshrt.sharding import Mesh, NamedSharding
from meshrt.sharding import PartitionSpec as P

KINDS = ("trace", "lower", "propagate", "partition", "compile")
X = np.arange(8, dtype=np.float32)


def test_in_a_loop_it_is_traced_once():
    def times(lib):
        traced = []

        def f(x, k=1):
            traced.append(k)
            return x * k

        mesh = lib.sharding.Mesh(np.array(lib.devices()[:2]), ("x",))
        split = lib.sharding.NamedSharding(mesh, lib.sharding.PartitionSpec("x"))
        for _ in range(3):
            lib.jit(f)(X)
            lib.jit(f, out_shardings=split)(X)
            lib.jit(f, static_argnums=1)(X, 3)
            lib.jit(f, static_argnames="k")(X, k=4)
            lib.jit(lambda x: lib.jit(f)(x) + 1)(X)
        lib.jit(f)(X[:4])
        return sorted(set(traced)), len(traced)

    ours, theirs = times(meshrt), times(jax)
    assert ours[0] == theirs[0]
    assert ours[1] <= 3 + len((3, 4)) + 3  # the caller that is new each time traces anew, what it calls does not


def test_nothing_is_made_for_the_second_one():
    f = lambda x: jnp.sin(x) + 1
    mesh = Mesh(np.array(meshrt.devices()[:2]), ("x",))
    first = meshrt.jit(f)(meshrt.device_put(X, NamedSharding(mesh, P("x"))))
    with events.count(*KINDS, "dispatch_miss") as n:
        again = meshrt.jit(f)(meshrt.device_put(X, NamedSharding(mesh, P("x"))))
    assert not any(n.as_dict().values())
    np.testing.assert_array_equal(first, again)


def test_arguments_of_other_structures_do_not_meet():
    f = lambda *args: sum(meshrt.tree.leaves(args), start=0.0) * len(args)
    one, other = meshrt.jit(f), meshrt.jit(f)
    a, b = jnp.asarray(X), jnp.asarray(2 * X)
    for _ in range(4):
        np.testing.assert_array_equal(one(a, b), 6 * X)
        np.testing.assert_array_equal(other((a, b)), 3 * X)
        np.testing.assert_array_equal(one({"a": a, "b": b}, b), 10 * X)


def test_options_are_told_apart():
    f = lambda x: x + 1
    mesh = Mesh(np.array(meshrt.devices()[:2]), ("x",))
    for spec in (P("x"), P("x", None), P(None, "x"), P()):
        asked = NamedSharding(mesh, spec)
        assert str(meshrt.jit(f, out_shardings=asked)(np.ones((4, 4))).sharding) == str(asked)
    x = jnp.asarray(X)
    meshrt.jit(f)(x)
    assert not x.is_deleted()
    meshrt.jit(f, donate_argnums=0)(x)
    assert x.is_deleted()
    f.__name__ = "renamed"
    assert "@renamed" in meshrt.jit(f).lower(X).as_text() or "jit_renamed" in meshrt.jit(f).lower(X).as_text()


def test_a_limit_of_traces_is_that_of_one_jitted_function():
    f = lambda x: x + 1
    meshrt.jit(f)(X), meshrt.jit(f)(X[:4])
    once = meshrt.jit(f, max_traces=1)
    once(X)
    with pytest.raises(errors.RetraceError):
        once(X[:4])
    meshrt.jit(f, max_traces=1)(X[:4])


def test_caches_go_with_the_function():
    big = jnp.ones(1000)

    def made():
        held = jnp.asarray(big) + 1
        f = lambda x: x + held
        meshrt.jit(f)(1.0), meshrt.jit(f).lower(1.0).compile()(1.0), meshrt.grad(lambda x: meshrt.jit(f)(x).sum())(1.0)
        return weakref.ref(f), weakref.ref(held)

    gone = made()
    gc.collect()
    assert [g() for g in gone] == [None, None]
    with pytest.raises(errors.ArgumentTypeError, match="Argument 'number' compiled with"):
        meshrt.jit(lambda number: number + 1).lower(1.0).compile()(X)  # a stage knows names when its function is gone


def test_those_of_names_that_a_function_had_are_dropped():
    f = lambda x: x + 1
    for i in range(3 * SHARED_OPTIONS):
        f.__name__ = f"step{i}"
        assert meshrt.eval_shape(f, X).shape == X.shape
    kept = sharing._shared[f]
    assert list(kept.traces) == [name for name, *_ in kept.drivers] and len(kept.traces) == SHARED_OPTIONS


def test_clearing_clears_for_all():
    traced = []
    f = lambda x: traced.append(x) or x
    one, other = meshrt.jit(f), meshrt.jit(f)
    one(X), other(X)
    assert len(traced) == 1
    one.clear_cache()
    other(X), one(X)
    assert len(traced) == 2


def test_threads_make_one():
    f = lambda x: jnp.cos(x) * 2
    start, found = threading.Barrier(8), []

    def run():
        start.wait()
        for _ in range(20):
            found.append(np.asarray(meshrt.jit(f)(X)))

    threads = [threading.Thread(target=run) for _ in range(8)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert len(found) == 160
    for value in found:
        np.testing.assert_array_equal(value, found[0])


@pytest.mark.parametrize("made", ["a function", "a partial"])
def test_other_options_share_the_traces(made):
    def times(lib):
        traced = []

        def counted(k, x):
            traced.append(k)
            return {"y": x * k}

        f = functools.partial(counted, 2.0) if made == "a partial" else lambda x: counted(2.0, x)
        place = lib.sharding.SingleDeviceSharding(lib.devices()[1])
        lib.eval_shape(f, X)
        lib.jit(f)(X)
        lib.jit(f, donate_argnums=0)(lib.numpy.asarray(X))
        out = lib.jit(f, out_shardings={"y": place})(X)  # options that have no hash
        lib.jit(lambda x: lib.jit(f, inline=True)(x))(X)
        lib.jit(f, keep_unused=True).lower(X)
        lib.eval_shape(f, lib.ShapeDtypeStruct(X.shape, X.dtype))
        np.testing.assert_array_equal(out["y"], X * 2)
        assert out["y"].sharding == place
        return len(traced)

    assert times(meshrt) == times(jax) == 1


def test_mutable_values_that_a_function_closes_over_are_those_of_each_call():
    one, other = new_box(), new_box()
    one.set(jnp.zeros(())), other.set(jnp.zeros(()))

    def f(x, which):
        if "one" in which:
            one.set(x)
        if "other" in which:
            other.set(10 * x)

    for options, found_first in ({}, "one"), ({"keep_unused": True}, "other"):
        write = meshrt.jit(f, static_argnums=1, **options)
        write(0.0, found_first)
        write(0.0, {"one": "other", "other": "one"}[found_first])
        write(2.0, "one, other")
        assert (float(one.get()), float(other.get())) == (2.0, 20.0)
        write(0.0, "one, other")


@pytest.mark.parametrize("around", [False, True])
def test_arguments_that_lie_apart_have_types(around):
    def shapes(lib):
        x, y = (lib.device_put(X, d) for d in lib.devices()[:2])
        mesh = lib.make_mesh((2,), ("x",), axis_types=(lib.sharding.AxisType.Auto,))
        with lib.set_mesh(mesh) if around else contextlib.nullcontext():
            return [lib.eval_shape(*a).shape for a in ((lambda x, y: x + y, x, y), (lambda x: x[1:], y))]

    assert shapes(meshrt) == shapes(jax)


def test_metadata_of_a_result_are_those_that_eval_shape_gave():
    """As states of training have them: functions that are made while the state is."""

    def pattern(lib):
        class State:
            def __init__(self, x, update):
                self.x, self.update = x, update

        lib.tree_util.register_pytree_node(State, lambda s: ((s.x,), s.update), lambda update, xs: State(*xs, update))
        init = lambda x: State(x + 1, lambda g: g)
        place = lib.sharding.SingleDeviceSharding(lib.devices()[1])
        shardings = lib.tree.map(lambda _: place, lib.eval_shape(init, X))
        return lib.jit(init, out_shardings=shardings)(X).x

    np.testing.assert_array_equal(pattern(meshrt), pattern(jax))


def test_shared_traces_go_with_the_function_and_when_they_are_dropped():
    traced = []

    def made():
        f = lambda x: traced.append(1) or x
        return functools.partial(f)

    f = made()
    meshrt.eval_shape(f, X)
    meshrt.jit(f, donate_argnums=0).clear_cache()
    meshrt.eval_shape(f, X)  # its own driver still has the trace
    assert len(traced) == 1
    meshrt.clear_caches()
    meshrt.jit(f)(X)
    assert len(traced) == 2
    gone = weakref.ref(f)
    del f
    gc.collect()
    assert gone() is None
