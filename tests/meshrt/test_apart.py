"""Arguments that a program does not need may lie on other devices than those that it does: beside JAX."""

from __future__ import annotations

import gc
import weakref

import jax
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors

X = np.arange(8, dtype=np.float32)


class Places:
    """Arrays of a library, by where they lie."""

    def __init__(self, lib):
        self.lib = lib

    def mesh(self, kind, first):
        types = (getattr(self.lib.sharding.AxisType, kind),)
        return self.lib.make_mesh((4,), ("x",), axis_types=types, devices=self.lib.devices()[first : first + 4])

    def on(self, place):
        if place is None:
            return self.lib.numpy.asarray(X)
        if isinstance(place, int):
            return self.lib.device_put(X, self.lib.devices()[place])
        return self.lib.device_put(X, self.lib.NamedSharding(self.mesh(*place), self.lib.P("x")))


def constrained(p, a):
    return p.lib.lax.with_sharding_constraint(a + 1, p.lib.NamedSharding(p.mesh("Auto", 0), p.lib.P("x")))


CASES = {
    "devices": (lambda p: lambda a, b: a + 1, 0, 1),
    "a mesh beside a device": (lambda p: lambda a, b: a + 1, 0, ("Auto", 0)),
    "an Explicit mesh beside a device": (lambda p: lambda a, b: a + 1, 2, ("Explicit", 0)),
    "a device beside an Explicit mesh": (lambda p: lambda a, b: a * 2, ("Explicit", 0), 7),
    "meshes": (lambda p: lambda a, b: a * 2, ("Auto", 0), ("Auto", 4)),
    "Explicit meshes": (lambda p: lambda a, b: a * 2, ("Explicit", 4), ("Explicit", 0)),
    "a device beside a constraint": (lambda p: lambda a, b: constrained(p, a), None, 7),
    "a gradient": (lambda p: p.lib.grad(lambda a, b: (a * a + b).sum()), 0, 1),
    "its type alone": (lambda p: lambda a, b: a + b.shape[0], 3, ("Auto", 4)),
    "constants beside a device": (lambda p: lambda a, b: p.lib.numpy.zeros(3), 1, 3),
    "a device alone": (lambda p: lambda a, b: a * 2, None, 3),
    "a mesh alone": (lambda p: lambda a, b: a * 2, None, ("Auto", 0)),
    "an Explicit mesh alone": (lambda p: lambda a, b: a * 2, None, ("Explicit", 4)),
    "constants beside a device alone": (lambda p: lambda a, b: p.lib.numpy.zeros(3), None, 3),
    "constants beside one device": (lambda p: lambda a, b: p.lib.numpy.zeros(3), 3, 3),
    "an Auto mesh beside an Explicit one of its names": (lambda p: lambda a, b: a * 2, ("Explicit", 4), ("Auto", 0)),
    "a type beside an Auto mesh of its names": (lambda p: lambda a, b: a + b.shape[0], ("Auto", 4), ("Explicit", 0)),
    "constants beside a mesh": (lambda p: lambda a, b: p.lib.numpy.arange(3), ("Auto", 4), None),
    "constants of a type": (lambda p: lambda a, b: p.lib.numpy.full(a.shape, 2.0), 1, ("Auto", 0)),
    "like one of a device": (lambda p: lambda a, b: p.lib.numpy.zeros_like(a), 3, None),
    "all elements replaced": (lambda p: lambda a, b: a.at[:].set(2.0), 3, None),
    "all elements of a mesh replaced": (lambda p: lambda a, b: a.at[...].set(2.0), ("Auto", 4), 1),
}


def place_of(x):
    sharding = x.sharding
    return type(sharding).__name__, sorted(d.id for d in sharding.device_set), x.committed


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_needed_may_lie_anywhere(name):
    fun, first, second = CASES[name]
    found = []
    for lib in (meshrt, jax):
        p = Places(lib)
        runs: list[int] = []
        step = fun(p)

        def counted_step(a, b, step=step, runs=runs):
            runs.append(0)
            return step(a, b)

        counted = lib.jit(counted_step)
        args = p.on(first), p.on(second)
        outs = [counted(*args), counted(*args), counted.lower(*args).compile()(*args)]
        found.append(([(place_of(x), np.asarray(x).tolist()) for x in outs], len(runs)))
    assert found[0] == found[1]


@pytest.mark.parametrize("options", [{}, {"keep_unused": True}], ids=str)
def test_what_is_needed_may_not(options):
    step = (lambda a, b: a + 1) if options else (lambda a, b: a + b)
    for lib in (meshrt, jax):
        p = Places(lib)
        with pytest.raises(ValueError, match=r"incompatible devices.*argument a .*argument b "):
            lib.jit(step, **options)(p.on(0), p.on(1))
    with pytest.raises(errors.DeviceAssignmentMismatchError):
        meshrt.jit(step, **options)(Places(meshrt).on(0), Places(meshrt).on(("Auto", 0)))


@pytest.mark.parametrize("step", [lambda a, b: a + 1, lambda a, b: a + b], ids=["runs", "refused"])
@pytest.mark.parametrize("way", ["call", "trace"])
def test_arguments_that_lie_apart_are_not_kept(step, way):
    """No circle keeps the memory of large arrays until the garbage collector looks."""
    for lib in (meshrt, jax):
        gc.collect()
        gc.disable()
        try:
            p = Places(lib)
            a, b = p.on(0), p.on(1)
            gone = weakref.ref(b)
            jitted = lib.jit(lambda a, b, step=step: step(a, b))
            try:
                made = jitted(a, b) if way == "call" else jitted.trace(a, b)
            except ValueError:
                made = None
            del a, b
            assert gone() is None, (lib.__name__, made)
        finally:
            gc.enable()


@pytest.mark.parametrize(("first", "second"), [(0, 1), (None, 3), (None, ("Auto", 0)), (None, ("Explicit", 4))])
def test_why_such_a_call_is_not_known(first, second):
    p = Places(meshrt)
    step = meshrt.jit(lambda a, b: a + 1)
    args = p.on(first), p.on(second)
    assert meshrt.explain_cache_miss(step)(*args).layer == "trace"
    step(*args)
    assert meshrt.explain_cache_miss(step)(*args).layer is None


# A mesh that the function asks for, or that its program names, is that of an argument, whose values nobody reads.
MESHES = {
    "a type's": ("Explicit", jnp.zeros_like, 0 * X),
    "asked for": ("Explicit", lambda a: jnp.ones(a.shape, out_sharding=meshrt.P("x")), X**0),
    "a constraint's": ("Auto", lambda a: meshrt.lax.with_sharding_constraint(a.shape[0] * X, meshrt.P("x")), 8 * X),
}


@pytest.mark.parametrize("name", MESHES)
def test_the_mesh_of_an_argument_is_needed_where_the_program_is_over_it(name):
    """JAX refuses these."""
    kind, fun, wanted = MESHES[name]
    runs: list[int] = []
    step = meshrt.jit(lambda a: runs.append(0) or fun(a))
    a = Places(meshrt).on((kind, 4))
    for out in (step(a), step(a), step.lower(a).compile()(a)):
        assert out.sharding.is_equivalent_to(a.sharding, 1) and out.committed
        np.testing.assert_array_equal(out, wanted)
    assert len(runs) == 1


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("second", [5, ("Auto", 4), ("Auto", 2), ("Explicit", 4)], ids=str)
@pytest.mark.parametrize("fun", [lambda lib, a, b: a + 1, lambda lib, a, b: lib.numpy.ones(3)], ids=["one", "none"])
def test_what_is_not_needed_may_lie_off_the_mesh_in_context(fun, second, kind):
    found = []
    for lib in (meshrt, jax):
        p = Places(lib)
        args = p.on(None), p.on(second)
        with lib.set_mesh(p.mesh(kind, 0)):
            step = lib.jit(lambda a, b, lib=lib: fun(lib, a, b))
            outs = [step(*args), step(*args), step.lower(*args).compile()(*args)]
        found.append([(place_of(x), np.asarray(x).tolist()) for x in outs])
    assert found[0] == found[1]


# What gives an array where another one is, or where it is told.
ELSEWHERE = {
    "zeros": lambda lib, x: lib.numpy.zeros(8, device=x.sharding),
    "zeros_like": lambda lib, x: lib.numpy.zeros_like(x),
    "full_like": lambda lib, x: lib.lax.full_like(x, 2),
    "empty": lambda lib, x: lib.numpy.empty(8, device=x.sharding),
    "arange": lambda lib, x: lib.numpy.arange(8, device=x.sharding),
}


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("place", [5, ("Auto", 4), ("Explicit", 2)], ids=str)
@pytest.mark.parametrize("name", ELSEWHERE)
def test_arrays_are_made_off_the_mesh_in_context(name, place, kind):
    found = []
    for lib in (meshrt, jax):
        p = Places(lib)
        x = p.on(place)
        with lib.set_mesh(p.mesh(kind, 0)):
            out = ELSEWHERE[name](lib, x)
            found.append((place_of(out), np.asarray(out).tolist()))
            assert lib.sharding.get_mesh() == p.mesh(kind, 0)
    assert found[0] == found[1]


@pytest.mark.parametrize("place", [5, ("Auto", 4)], ids=str)
@pytest.mark.parametrize("index", [slice(None), ..., slice(0, 8)], ids=str)
def test_what_replaces_all_elements_lies_where_they_did(index, place):
    found = []
    for lib in (meshrt, jax):
        x = Places(lib).on(place)
        outs = [x.at[index].set(2.0), x.at[index].set(lib.numpy.ones(8)), x[0].at[()].set(1.0)]
        found.append([(place_of(out), str(getattr(out.sharding, "spec", "")), out.tolist()) for out in outs])
    assert found[0] == found[1]


@pytest.mark.parametrize("place", [5, ("Auto", 4), ("Explicit", 2)], ids=str)
def test_rows_lie_where_their_array_does(place):
    p = Places(meshrt)
    x = p.on(place)
    with meshrt.set_mesh(p.mesh("Auto", 0)):
        rows = list(x)
    assert [float(row) for row in rows] == X.tolist()
    assert all(row.devices() == x.devices() for row in rows)


def test_what_differs_between_calls_whose_arguments_lie_apart_is_named():
    p = Places(meshrt)
    step = meshrt.jit(lambda a, b: a + 1)
    step(p.on(1), p.on(3))
    assert not meshrt.explain_cache_miss(step)(p.on(1), p.on(3))
    for place, said in ((5, "was cpu [3], now cpu [5]"), (("Auto", 4), "now cpu [4, 5, 6, 7] by P('x',)")):
        miss = meshrt.explain_cache_miss(step)(p.on(1), p.on(place))
        assert (miss.layer, miss.components) == ("dispatch", ("place",))
        assert "place of argument b: " in str(miss) and said in str(miss)
    miss = meshrt.explain_cache_miss(step)(p.on(2), p.on(3))
    assert (miss.layer, miss.components) == ("load", ("devices",)), str(miss)
