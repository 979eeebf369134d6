"""Donated buffers that nothing can take over: what we say against what XLA did with them, and against JAX."""

from __future__ import annotations

import re
import warnings

import jax
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors
from meshrt.sharding import NamedSharding
from meshrt.sharding import PartitionSpec as P


def warned(f, *args):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        f(*args)
    return [w for w in seen if "donated" in str(w.message)]


CASES = {
    "a result of its type": (lambda x: x + 1, [(8, 8)]),
    "the argument itself": (lambda x: x, [(8, 8)]),
    "another shape": (lambda x: (x * 2).reshape(4, 16), [(8, 8)]),
    "another dtype of its size": (lambda x: x.astype(np.int32), [(8, 8)]),
    "a smaller dtype": (lambda x: x.astype(np.int8), [(8, 8)]),
    "reduced": (lambda x: x.sum(), [(8, 8)]),
    "two for one": (lambda x, y: x + y, [(8, 8), (8, 8)]),
    "two for two": (lambda x, y: (x + y, x - y), [(8, 8), (8, 8)]),
    "three sizes": (lambda x, y, z: (x.sum(0), z @ z + y), [(8, 8), (4,), (4, 4)]),
    "unused": (lambda x, y: y.sum(), [(8, 8), (8, 8)]),
}


@pytest.mark.parametrize("where", ["one device", "mesh", "mesh replicated"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_named_is_what_stays(case, where, mesh):
    fun, shapes = CASES[case]
    args = [jnp.ones(s) for s in shapes]
    if where != "one device":
        spec = P("data") if where == "mesh" else P()
        args = [meshrt.device_put(a, NamedSharding(mesh, spec)) for a in args]
    f = meshrt.jit(fun, donate_argnums=tuple(range(len(args))))
    seen = warned(f, *args)
    names = re.findall(r"argument (\w) \(", str(seen[0].message)) if seen else []
    used = "xyz"[: len(args)] if case != "unused" else "y"
    stays = {n for n, a in zip("xyz", args) if n in used and not a.is_deleted()}
    assert set(names) == stays


def test_the_warning():
    f = meshrt.jit(lambda state: state["w"].sum(), donate_argnums=0)
    (w,) = warned(f, {"w": jnp.ones(3), "b": jnp.ones(4)})
    assert w.category is errors.DonationWarning and issubclass(w.category, UserWarning)
    text = str(w.message)
    assert text.startswith("Some donated buffers were not usable, in <lambda>: argument state['w'] (f32[3], 12 bytes:")
    assert "no result has that size" in text and "donate_argnums" in text and "['b']" not in text
    assert w.filename == __file__
    assert warned(f, {"w": jnp.ones(3), "b": jnp.ones(4)}) == []  # once per compilation
    assert len(warned(f, {"w": jnp.ones(5), "b": jnp.ones(4)})) == 1


@pytest.mark.parametrize("donated", [(0,), (1,), (0, 1)])
def test_each_of_several_arguments_is_looked_at(donated):
    (w,) = warned(meshrt.jit(lambda x, y: x.sum() + y.sum(), donate_argnums=donated), jnp.ones(3), jnp.ones(5))
    assert re.findall(r"argument (\w) \(", str(w.message)) == ["xy"[i] for i in donated]


def test_sizes_are_those_on_one_device(mesh):
    x = meshrt.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P("data")))
    f = meshrt.jit(lambda x: x + 1, donate_argnums=0, out_shardings=NamedSharding(mesh, P()))
    (w,) = warned(f, x)
    assert "argument x (f32[8,8], 64 bytes per device, f32[2,8]: no result has that size)" in str(w.message)
    assert not x.is_deleted()
    g = meshrt.jit(lambda x: x + 1, donate_argnums=0, out_shardings=NamedSharding(mesh, P(None, "data")))
    assert warned(g, x) == [] and x.is_deleted()


@pytest.mark.parametrize(
    "case", ["a result of its type", "another shape", "reduced", "two for one", "two for two", "unused"]
)
def test_jax_warns_of_the_same(case):
    fun, shapes = CASES[case]
    donated = tuple(range(len(shapes)))
    meshrt.clear_caches()  # the warning comes with the compilation, which tests before this one have seen
    ours = warned(meshrt.jit(fun, donate_argnums=donated), *[jnp.ones(s) for s in shapes])
    theirs = warned(jax.jit(fun, donate_argnums=donated), *[jax.numpy.ones(s) for s in shapes])
    assert len(ours) == len(theirs)


def test_ahead_of_time_warns_when_compiled():
    lowered = meshrt.jit(lambda x: x.sum(), donate_argnums=0).lower(np.ones(3, np.float32))
    assert len(warned(lowered.compile)) == 1 and warned(lowered.compile) == []


DONATED = {
    "by position": ({"donate_argnums": 1}, "y"),
    "from the end": ({"donate_argnums": -1}, "y"),
    "the first from the end": ({"donate_argnums": (-2,)}, "x"),
    "beside a static argument": ({"donate_argnums": 2, "static_argnums": 0}, "y"),
    "before one": ({"donate_argnums": 0, "static_argnums": 1}, "x"),
    "from the end, beside one": ({"donate_argnums": -2, "static_argnums": 0}, "x"),
    "beyond the arguments": ({"donate_argnums": (5, 1)}, "y"),
    "by name": ({"donate_argnames": "y"}, "y"),
    "nothing": ({}, ""),
}


@pytest.mark.parametrize("case", DONATED)
def test_which_arguments_are_donated(case):
    options, names = DONATED[case]
    named = "donate_argnames" in options
    static = options.get("static_argnums")
    fun = lambda *args, **kwargs: [a + 1 for a in [*args, *kwargs.values()] if not isinstance(a, str)]
    jitted = meshrt.jit(fun if not named else lambda x, y: (x + 1, y + 1), **options)
    x, y = np.ones(3, np.float32), np.ones(5, np.float32)
    args = [x] if named else [x, y]
    if static is not None:
        args.insert(static, "static")
    flags = jitted.trace(*args, **({"y": y} if named else {})).lower().request.donated
    assert "".join(n for n, donated in zip("xy", flags) if donated) == names


@pytest.mark.parametrize("spec", [P(), P("x")])
def test_a_moved_argument_goes_with_the_copy_that_holds_it_whole(spec):
    """As in JAX: laid out over several devices, a donated array stays unless its own device keeps all of it."""
    gone = []
    for lib, sharding, split in (
        (meshrt, NamedSharding, spec),
        (jax, jax.sharding.NamedSharding, jax.sharding.PartitionSpec(*spec)),
    ):
        mesh = lib.make_mesh((8,), ("x",), axis_types=(lib.sharding.AxisType.Auto,))
        f = lib.jit(lambda x: x * 2, in_shardings=sharding(mesh, split), donate_argnums=0)
        for _ in range(2):  # by the known call, too
            x = lib.numpy.arange(16.0)
            np.testing.assert_array_equal(f(x), np.arange(16.0) * 2)
        gone.append(x.is_deleted())
        if not x.is_deleted():
            np.testing.assert_array_equal(x, np.arange(16.0))
    assert gone[0] == gone[1] == (spec == P())


def test_a_moved_argument_stays_where_no_result_takes_its_memory(mesh):
    f = meshrt.jit(lambda x: x.sum(), in_shardings=NamedSharding(mesh, P()), donate_argnums=0)
    x = jnp.arange(16.0)
    assert warned(f, x) and not x.is_deleted()
