"""Memories within programs: types, placements that are written for compilers, derivatives; JAX judges."""

import re
import warnings

import jax
import jax.numpy as xnp
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import config, errors
from meshrt.sharding import AxisType, NamedSharding, make_mesh
from meshrt.sharding import PartitionSpec as P

VALUE = np.arange(16, dtype=np.float32).reshape(8, 2)
HOST, DEVICE = meshrt.memory.Space.Host, meshrt.memory.Space.Device


class Ours:
    """What a case needs, from meshrt; `Theirs` from JAX."""

    lib, np, Space = meshrt, jnp, meshrt.memory.Space

    @staticmethod
    def rows(kind=None, axis_type="Auto"):
        mesh = make_mesh((8,), ("x",), axis_types=(getattr(AxisType, axis_type),))
        return NamedSharding(mesh, P("x"), memory_kind=kind)


class Theirs:
    lib, np, Space = jax, xnp, jax.memory.Space

    @staticmethod
    def rows(kind=None, axis_type="Auto"):
        mesh = jax.make_mesh((8,), ("x",), axis_types=(getattr(jax.sharding.AxisType, axis_type),))
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"), memory_kind=kind)


def outcome(case, side, *args):
    """The printed types, memories and values of the results; or the built-in class of the error."""
    try:
        found = case(side, *args)
    except Exception as e:
        return next(c.__name__ for c in type(e).__mro__ if c.__module__ == "builtins"), str(e)
    found = found if isinstance(found, tuple) else (found,)
    return [(str(side.lib.typeof(r)), r.sharding.memory_kind, np.asarray(r).tolist()) for r in found]


def put(side, kind=None):
    return side.lib.device_put(VALUE, side.rows(kind))


CASES = {
    "returned": lambda s, x: s.lib.jit(lambda a: a)(x),
    "computed with": lambda s, x: s.lib.jit(lambda a: a * 2)(x),
    "one by one": lambda s, x: x * 2,
    "reduced": lambda s, x: (s.np.sum(x), s.np.sin(s.np.sum(x))),
    "to the host": lambda s, x: s.lib.jit(lambda a: s.lib.device_put(a, s.Space.Host) * 2)(x),
    "to the device": lambda s, x: s.lib.jit(lambda a: s.lib.device_put(a, s.Space.Device) * 2)(x),
    "to a kind": lambda s, x: s.lib.jit(lambda a: s.lib.device_put(a, s.rows("pinned_host")) + 1)(x),
    "to another kind": lambda s, x: s.lib.jit(lambda a: s.lib.device_put(a, s.rows("unpinned_host")) + 1)(x),
    "to the default": lambda s, x: s.lib.jit(lambda a: s.lib.device_put(a, s.rows()) + 1)(x),
    "asked of a result": lambda s, x: s.lib.jit(lambda a: a + 1, out_shardings=s.rows("pinned_host"))(x),
    "asked back": lambda s, x: s.lib.jit(lambda a: a + 1, out_shardings=s.rows())(x),
    "asked of an argument": lambda s, x: s.lib.jit(lambda a: a + 1, in_shardings=s.rows("pinned_host"))(VALUE),
    "of two memories": lambda s, x: s.lib.jit(lambda a, b: a + b)(x, VALUE),
    "joined": lambda s, x: s.np.concatenate([x, x]),
    "updated": lambda s, x: x.at[s.np.array([0, 1])].set(s.np.array([1.0, 2.0])),
    "updated at one place": lambda s, x: x.at[0].set(3.0),
    "filled": lambda s, x: (s.np.zeros_like(x), s.lib.lax.full_like(x, 2.0)),
    "mapped": lambda s, x: s.lib.jit(s.lib.vmap(lambda a: s.lib.device_put(a, s.Space.Host) * 2))(x),
    "stacked": lambda s, x: s.lib.jit(
        lambda a: s.lib.lax.scan(lambda c, v: (c + 1, s.lib.device_put(v * c, s.Space.Host)), 0.0, a)[1]
    )(x),
    "carried": lambda s, x: s.lib.jit(
        lambda a: s.lib.lax.scan(lambda c, v: (s.lib.device_put(c, s.Space.Host), v), a, None, length=2)[0]
    )(put(s)),
    "chosen": lambda s, x: s.lib.jit(
        lambda a: s.lib.lax.cond(a[0, 0] > 0, lambda a: s.lib.device_put(a, s.Space.Host), lambda a: a, a)
    )(put(s)),
    "in a manual region": lambda s, x: s.lib.jit(
        s.lib.shard_map(lambda a: a * 2, mesh=s.rows().mesh, in_specs=s.rows().spec, out_specs=s.rows().spec)
    )(x),
    "moved in a manual region": lambda s, x: s.lib.jit(
        s.lib.shard_map(
            lambda a: s.lib.device_put(a * 2, s.Space.Host),
            mesh=s.rows().mesh,
            in_specs=s.rows().spec,
            out_specs=s.rows().spec,
        )
    )(x),
    "pulled back": lambda s, x: s.lib.jit(s.lib.grad(lambda a: (s.lib.device_put(a, s.Space.Device) ** 2).sum()))(x),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("partitioner", ["meshrt", "xla"])
@pytest.mark.parametrize("kind", ["device", "pinned_host", "unpinned_host"])
def test_values_lie_where_theirs_do(kind, partitioner):
    wrong = {}
    with config.override(partitioner=partitioner):
        for name, case in CASES.items():
            got, want = (outcome(case, s, put(s, kind)) for s in (Ours, Theirs))
            if isinstance(want, tuple):
                fits = got[0] == want[0] and ("memory_space of all inputs" in got[1]) == (
                    "memory_space of all inputs" in want[1]
                )
            else:
                fits = got == want
            if not fits:
                wrong[name] = (got, want)
    assert not wrong


def test_explicit_axes_and_memories_stand_in_one_type():
    seen = []
    for side in (Ours, Theirs):
        x = side.lib.device_put(VALUE, side.rows("pinned_host", "Explicit"))
        with side.lib.set_mesh(x.sharding.mesh):
            y = side.lib.jit(lambda a: side.lib.device_put(side.np.sin(a), side.Space.Device))(x)
            z = side.lib.jit(lambda a: side.lib.device_put(a, side.Space.Host).T)(y)
            seen.append([str(side.lib.typeof(v)) for v in (x, y, z)])
    assert seen[0] == seen[1] == ["float32<host>[8@x,2]", "float32[8@x,2]", "float32<host>[2,8@x]"]


def test_derivatives_lie_where_their_values_do():
    x = put(Ours)
    with_host = lambda a: (meshrt.device_put(jnp.sin(a), HOST) ** 2).sum()
    for f in (
        with_host,
        meshrt.checkpoint(with_host),
        lambda a: with_host(meshrt.device_put(a, Ours.rows("pinned_host"))),
    ):
        for g in (
            meshrt.grad(f),
            meshrt.jit(meshrt.grad(f)),
            meshrt.jit(lambda a, f=f: meshrt.vjp(f, a)[1](meshrt.device_put(jnp.float32(1), HOST))[0]),
        ):
            got = g(x)
            assert str(meshrt.typeof(got)) == "float32[8,2]" and got.sharding.memory_kind == "device"
            np.testing.assert_allclose(np.asarray(got), np.sin(2 * VALUE), rtol=1e-5, atol=1e-5)
    out, tangent = meshrt.jvp(lambda a: meshrt.device_put(a * 2, HOST), (x,), (x,))
    assert str(meshrt.typeof(out)) == str(meshrt.typeof(tangent)) == "float32<host>[8,2]"


def calls(text):
    """The placements that a module has written, and the memories of its arguments and results, in order."""
    return re.findall(r'_xla_buffer_placement = "(\w+)"|mhlo.memory_kind = "(\w+)"', text)


PROGRAMS = {
    "nothing": lambda s: (lambda a: s.lib.device_put(a, s.Space.Device) + 1, {}, None),
    "there and back": lambda s: (
        lambda a: s.lib.device_put(s.lib.device_put(a, s.Space.Host) * 2, s.Space.Device), {}, None
    ),
    "asked": lambda s: (lambda a: (a * 2, a + 1), {"out_shardings": (s.rows("pinned_host"), None)}, None),
    "asked back": lambda s: (lambda a: a * 2, {"out_shardings": s.rows()}, "pinned_host"),
    "taken": lambda s: (lambda a: a * 2, {}, "pinned_host"),
    "sharded": lambda s: (lambda a: s.lib.device_put(a, s.rows("pinned_host")) * 2, {}, None),
    "unpinned": lambda s: (lambda a: s.lib.device_put(a, s.rows("unpinned_host")) * 2, {}, None),
    "stacked": lambda s: (
        lambda a: s.lib.lax.scan(lambda c, v: (c, s.lib.device_put(v, s.Space.Host)), 0.0, a)[1], {}, None
    ),
}  # fmt: skip


@pytest.mark.parametrize("platform", ["cpu", "tpu", "cuda"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_placements_are_written_for_compilers(name, platform):
    written = []
    for side in (Ours, Theirs):
        f, options, kind = PROGRAMS[name](side)
        traced = side.lib.jit(f, **options).trace(put(side, kind))
        written.append(traced.lower(lowering_platforms=(platform,)).as_text())
    assert calls(written[0]) == calls(written[1])


def test_partitioned_programs_keep_placements():
    f = lambda a, w: meshrt.device_put(meshrt.device_put(a @ w, HOST), DEVICE).sum()
    lowered = meshrt.jit(f).trace(put(Ours), VALUE[:2]).lower(lowering_platforms=("tpu",))
    kinds = [placed for placed, _ in calls(lowered.partition().as_text()) if placed]
    assert kinds == ["pinned_host", "device"]


def test_donation_needs_room_in_the_same_memory():
    for kind, asked, taken in (
        (None, "pinned_host", False),
        ("pinned_host", None, False),
        ("pinned_host", "pinned_host", True),
        (None, None, True),
    ):
        x = put(Ours, kind).copy()
        f = meshrt.jit(lambda a: a * 2, donate_argnums=0, out_shardings=Ours.rows(asked))
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            f(x)
        assert x.is_deleted() == taken and bool(found) != taken
        if found:
            assert "lies in the memory" in str(found[0].message)


def test_operands_of_several_memories_are_refused_with_a_fix():
    with pytest.raises(
        errors.MemorySpaceError, match=r"`add` must be the same.*test_memory_spaces.*device_put\(x, mesh"
    ):
        put(Ours) + put(Ours, "pinned_host")


def test_the_default_memory_has_its_name():
    for side in (Ours, Theirs):
        sharding = side.rows()
        single = side.lib.sharding.SingleDeviceSharding(side.lib.devices()[0])
        assert sharding.memory_kind == single.memory_kind == sharding.with_memory_kind(None).memory_kind == "device"
        assert sharding == side.rows("device") and hash(sharding) == hash(side.rows("device"))
        abstract = side.lib.sharding.NamedSharding(sharding.mesh.abstract_mesh, sharding.spec)
        assert abstract.memory_kind is None and "memory_kind" not in repr(abstract)
    assert repr(Ours.rows()) == repr(Theirs.rows()) and Ours.rows() is Ours.rows("device")
    with pytest.raises(errors.ShardingError, match="can address the following memory kinds"):
        Ours.rows("vmem")


def test_programs_in_files_keep_their_memories(tmp_path):
    compiled = meshrt.jit(lambda a: meshrt.device_put(a * 2, HOST)).lower(put(Ours, "pinned_host")).compile()
    compiled.save(tmp_path / "program")
    loaded = meshrt.stages.load(tmp_path / "program")
    y = loaded(put(Ours, "pinned_host"))
    assert str(meshrt.typeof(y)) == "float32<host>[8,2]" and y.sharding is Ours.rows("pinned_host")
    np.testing.assert_array_equal(np.asarray(y), VALUE * 2)
