"""B04: what is said of a call that is not known names exactly what differs, from which earlier call."""

from __future__ import annotations

import builtins
import gc
import logging
import types
import weakref

import jax
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import config, errors
from meshrt.pipeline.misses import History
from meshrt.runtime import events
from meshrt.sharding import AxisType, Mesh, NamedSharding
from meshrt.sharding import PartitionSpec as P

pytestmark = pytest.mark.collects


def mesh_of(order=(0, 1, 2, 3), types=(AxisType.Auto,) * 2, shape=(2, 2), names=("x", "y")):
    devices = meshrt.devices()
    return Mesh(np.array([devices[i] for i in order]).reshape(shape), names, axis_types=types)


def put(x, mesh=None, *spec):
    return meshrt.device_put(x, NamedSharding(mesh or mesh_of(), P(*spec)))


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


EXPLICIT = (AxisType.Explicit,) * 2
# What is called first, what then, the layer and the component that differ.
CASES = {
    "dtype": (lambda: (ones(4),), lambda: (ones(4, dtype=np.int32),), "trace", "dtype"),
    "shape": (lambda: (ones(4),), lambda: (ones(5),), "trace", "shape"),
    "rank": (lambda: (ones(4),), lambda: (ones(4, 1),), "trace", "shape"),
    "weak type": (lambda: (jnp.float32(1.0),), lambda: (1.0,), "trace", "weak type"),
    "structure": (lambda: ({"a": ones(2)},), lambda: ({"b": ones(2)},), "trace", "pytree structure"),
    "number": (lambda: ([ones(2)],), lambda: ([ones(2)] * 2,), "trace", "pytree structure"),
    "spec": (lambda: (put(ones(4, 4), None, "x"),), lambda: (put(ones(4, 4), None, "y"),), "lower", "sharding spec"),
    "axis type": (
        lambda: (put(ones(4), None, "x"),), lambda: (put(ones(4), mesh_of(types=EXPLICIT), "x"),), "trace", "axis type"
    ),
    "mesh shape": (
        lambda: (put(ones(4), None),), lambda: (put(ones(4), mesh_of(shape=(4, 1))),), "lower", "mesh shape"
    ),
    "axes": (lambda: (put(ones(4), None),), lambda: (put(ones(4), mesh_of(names=("x", "z"))),), "lower", "mesh axes"),
    "mesh": (lambda: (ones(4),), lambda: (put(ones(4), None),), "lower", "mesh"),
    "devices": (lambda: (put(ones(4), None),), lambda: (put(ones(4), mesh_of((4, 5, 6, 7))),), "load", "devices"),
    "committed": (
        lambda: (jnp.asarray(ones(4)),), lambda: (meshrt.device_put(ones(4), meshrt.devices()[0]),),
        "dispatch", "committed",
    ),
    "place": (lambda: (ones(4),), lambda: (jnp.asarray(ones(4)),), "dispatch", "place"),
}  # fmt: skip


@pytest.mark.parametrize("first, then, layer, component", CASES.values(), ids=CASES)
def test_b04_exactly_what_differs_is_named(first, then, layer, component):
    f = meshrt.jit(lambda tree: meshrt.tree.map(lambda x: x + x, tree))
    f(*first())
    miss = meshrt.explain_cache_miss(f)(*then())
    assert (miss.layer, miss.components) == (layer, (component,)), str(miss)
    assert __file__ in miss.earlier and component in str(miss)
    kinds = ("trace", "lower", "compile", "rebind", "dispatch_miss")
    with events.count(*kinds) as n:
        assert not meshrt.explain_cache_miss(f)(*first())
    assert not any(n.as_dict().values()), "explaining makes nothing"
    with events.count("trace", "lower") as n:
        f(*then())
    assert (n.trace, n.lower) == {"trace": (1, 1), "lower": (0, 1)}.get(layer, (0, 0))
    assert meshrt.explain_cache_miss(f)(*then()).layer is None


def test_calls_over_references_are_known():
    total = meshrt.new_ref(jnp.zeros(4))

    def add(x):
        total[...] += x

    f = meshrt.jit(add)
    f(ones(4))
    assert not meshrt.explain_cache_miss(f)(ones(4))
    assert meshrt.explain_cache_miss(f)(ones(1)).layer == "trace"


def test_b04_static_arguments():
    f = meshrt.jit(lambda x, n, flag: x * n, static_argnums=1, static_argnames="flag")
    f(ones(2), 2, flag=True)
    explain = meshrt.explain_cache_miss(f)
    assert explain(ones(2), 3, flag=True).components == ("static argument",)
    (difference,) = explain(ones(2), 2.0, flag=True).differences
    assert (difference.before, difference.now) == ("2 (int)", "2.0 (float)")
    (difference,) = explain(ones(2), 2, flag=False).differences
    assert "'flag'" in difference.where
    assert not explain(ones(2), 2, flag=True)


@pytest.mark.parametrize("name, value, layer", [
    ("default_matmul_precision", "highest", "trace"), ("partitioner", "xla", "compile"), ("debug_nans", True, "compile")
])  # fmt: skip
def test_b04_settings(name, value, layer):
    f = meshrt.jit(lambda x: x @ x)
    f(put(ones(4, 4), None, "x"))
    with config.override(**{name: value}):
        miss = meshrt.explain_cache_miss(f)(put(ones(4, 4), None, "x"))
    assert miss.layer == layer and miss.components == ("setting",) and miss.differences[0].where == name


def test_b04_function_identity():
    def call(scale, offset):
        f = meshrt.jit(lambda x: x * scale + offset)
        miss = meshrt.explain_cache_miss(f)(ones(3))
        f(ones(3))
        return miss

    assert "no function of this code was called before" in str(call(1.0, 2.0))
    miss = call(1.0, 3.0)
    assert miss.components == ("function identity",) and "other values of offset:" in str(miss)
    assert "captures" not in str(call(1.0, 3.0)).split("was at")[1].split("now")[0]


def test_b04_other_options_of_one_function():
    def f(x):
        return x + 1

    meshrt.jit(f)(ones(3))
    miss = meshrt.explain_cache_miss(meshrt.jit(f, keep_unused=True))(ones(3))
    assert miss.layer == "lower" and miss.components == ("jit options",)
    assert "was keep_unused=False, now keep_unused=True" in str(miss)
    g, unhashable = (lambda x: [f(x)]), {"out_shardings": [put(ones(4), None).sharding]}
    earlier = meshrt.jit(g, **unhashable)
    earlier(ones(4))
    miss = meshrt.explain_cache_miss(meshrt.jit(g, **unhashable))(ones(4))
    assert miss.layer == "lower" and "was another jit of the function, now a new one: make it once" in str(miss)


def test_b04_the_most_alike_call_is_named():
    f = meshrt.jit(lambda x, y: x + y)
    f(ones(3), ones(3))
    line = test_b04_the_most_alike_call_is_named.__code__.co_firstlineno + 2
    f(ones(4), ones(4, dtype=np.int32))
    miss = meshrt.explain_cache_miss(f)(ones(3), ones(1))
    assert f"{__file__}:{line} " in miss.earlier
    (difference,) = miss.differences
    assert (difference.where, difference.before, difference.now) == ("argument y", "(3,)", "(1,)")
    miss = meshrt.explain_cache_miss(f)(ones(5, 5), ones(4, dtype=np.int32))
    assert f"{__file__}:{line + 2} " in miss.earlier


def test_b04_what_was_dropped():
    f = meshrt.jit(lambda x: x - 1)
    f(ones(3))
    f.clear_cache()
    miss = meshrt.explain_cache_miss(f)(ones(3))
    assert miss.layer == "trace" and miss.differences == () and "was dropped" in str(miss)


def kept(x, y=1.0):
    return x


# What is called first, what then, and the phrases that JAX has for what differs.
LOGGED = {
    "another shape": (lambda f: f(ones(3)), lambda f: f(ones(4)), ["types:", "at x, now f32[4] and before f32[3]"]),
    "another dtype": (
        lambda f: f(ones(3)), lambda f: f(ones(3, dtype=np.int32)), ["at x, now i32[3] and before f32[3]"]
    ),
    "a weak type": (
        lambda f: f(np.float32(1)), lambda f: f(1.0),
        ["now f32[]{weak_type=True} and before f32[]{weak_type=False}", "type_promotion.html#weak-types"],
    ),
    "another structure": (lambda f: f(1.0, 2.0), lambda f: f(1.0, (2.0,)), ["different input pytree:"]),
    "by keyword": (lambda f: f(1.0, 2.0), lambda f: f(y=1.0, x=2.0), ["different input pytree:"]),
}  # fmt: skip


def logs(library, case, caplog):
    f = library.jit(lambda x, y=1.0: kept(x, y))
    first, then, _ = LOGGED[case]
    first(f)
    with library.explain_cache_misses(True), caplog.at_level(logging.WARNING):
        then(f), then(f)
    found = [r.getMessage() for r in caplog.records]
    caplog.clear()
    return found


@pytest.mark.parametrize("case", LOGGED)
def test_b04_misses_are_logged_in_the_phrases_of_jax(case, caplog):
    for library in (meshrt, jax):
        (said,) = logs(library, case, caplog)
        phrases = [*LOGGED[case][2], "TRACING CACHE MISS at ", "for <lambda> defined at", "closest previous key"]
        assert all(phrase in said for phrase in phrases) and __file__ in said


def test_b04_logs_tell_of_settings_static_arguments_and_functions_made_again(caplog):
    f, g = meshrt.jit(lambda x: kept(x)), meshrt.jit(lambda x, n: x * n, static_argnums=1)
    f(1.0), g(1.0, 1)
    with config.override(jax_explain_cache_misses=True), caplog.at_level(logging.WARNING, "meshrt.caches"):
        with config.override(numpy_rank_promotion="raise"):
            f(1.0)
        g(1.0, 2)
        for _ in range(2):
            meshrt.jit(meshrt.grad(lambda x: 3 * x))(1.0)
        jnp.cos(ones(7))  # the library's own functions are no matter of the user's
    setting, static, first, again = (r.getMessage() for r in caplog.records)
    assert "Tracing context doesn't match" in setting and "numpy_rank_promotion differs: now 'raise'" in setting
    assert "different input pytree, by static arguments:" in static and "now 2 (int) and before 1 (int)" in static
    assert "never seen function" in first and "another function" not in first
    assert "but seen another function defined on the same line" in again and "being re-defined repeatedly" in again


def thrown(e):
    raise e


def test_max_traces_raises_on_a_surprise():
    f = meshrt.jit(lambda x: x * 2, max_traces=1)
    f(ones(3)), f(ones(3))
    with pytest.raises(
        errors.RetraceError, match=r"(?s)traced 1 times.*max_traces=1.*dtype of argument x: was float32"
    ):
        f(ones(3, dtype=np.int32))
    with pytest.raises(RuntimeError, match="no more"):
        meshrt.jit(lambda x: f(x))(ones(4))
    f.clear_cache()
    f(ones(3, dtype=np.int32))
    twice = meshrt.jit(lambda x: x * 2, max_traces=2)
    twice(ones(1)), twice(ones(2))
    with pytest.raises(errors.RetraceError):
        twice(ones(3))
    mistakes = iter([ValueError("a mistake")])
    once = meshrt.jit(lambda x: x if (e := next(mistakes, None)) is None else thrown(e), max_traces=1)
    with pytest.raises(ValueError, match="a mistake"):
        once(ones(3))
    once(ones(3))  # a trace that was not finished is none
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="max_traces must be"):
            meshrt.jit(lambda x: x, max_traces=wrong)


def test_what_is_remembered_keeps_no_value_of_a_function_that_is_gone():
    class Large:
        pass

    def call(size):
        f, large = meshrt.jit(lambda x, static: x + 1, static_argnums=1), Large()
        f(ones(size), large)
        return f, weakref.ref(large)

    f, kept = call(2)
    gc.collect()
    assert kept() is not None, "it stands in the keys of f"
    f.clear_cache()
    gc.collect()
    assert kept() is None
    f, kept = call(3)
    del f
    gc.collect()
    assert kept() is None
    f, _ = call(4)
    f.clear_cache()
    assert meshrt.explain_cache_miss(f)(ones(5), 1).components == ("shape",)


def test_what_forgets_needs_no_names_of_its_module():
    """A function may go when the process ends, after the names of modules have."""

    def add(x):
        return x + 1

    f = meshrt.jit(add)
    f(ones(2))
    history = History.of(add)
    assert history.calls[-1].tree is not None
    forget = types.FunctionType(History.forget_values.__code__, {"__builtins__": builtins})
    forget(history, history.calls[-1].function())
    assert history.calls[-1].tree is None


def test_explain_takes_jitted_functions():
    with pytest.raises(TypeError, match="function that jit made"):
        meshrt.explain_cache_miss(lambda x: x)
