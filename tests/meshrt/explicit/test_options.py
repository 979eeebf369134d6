"""Shardings that `jit` is given over Explicit axes say where values lie, not what their types are: JAX is the judge."""

from __future__ import annotations

import jax
import jax.numpy as xnp
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp

X = np.arange(64, dtype=np.float32).reshape(8, 8)


class Program:
    """What programs are written with, and the types that they saw."""

    def __init__(self, lib, numpy):
        self.lib, self.np, self.seen = lib, numpy, []
        kinds = lib.sharding.AxisType
        self.explicit = lib.make_mesh((4, 2), ("x", "y"))
        self.auto = lib.make_mesh((4, 2), ("x", "y"), axis_types=(kinds.Auto,) * 2)
        self.mixed = lib.make_mesh((4, 2), ("x", "y"), axis_types=(kinds.Explicit, kinds.Auto))

    def over(self, *spec, mesh="explicit"):
        return self.lib.NamedSharding(getattr(self, mesh), self.lib.P(*spec))

    def put(self, *spec, mesh="explicit"):
        return self.lib.device_put(X, self.over(*spec, mesh=mesh))

    def saw(self, x):
        self.seen.append(str(self.lib.typeof(x)))
        return x

    def jit(self, f=lambda x: x + 1, **options):
        return self.lib.jit(lambda *xs: self.saw(f(*map(self.saw, xs))), **options)


PROGRAMS = {
    "numpy": lambda o: o.jit(in_shardings=o.over("x"))(X),
    "uncommitted": lambda o: o.jit(in_shardings=o.over("x"))(o.np.asarray(X)),
    "ambiguous": lambda o: o.jit(lambda x: x @ x, in_shardings=o.over("x", "y"))(X),
    "beside a typed one": lambda o: o.jit(lambda x, y: x @ y, in_shardings=(o.over("x", "y"), None))(
        X, o.put(None, "y")
    ),
    "split otherwise": lambda o: o.jit(lambda x, y: x + y, in_shardings=(o.over("x", "y"), None))(X, o.put("y", "x")),
    "committed": lambda o: o.jit(in_shardings=o.over("x"))(o.put("x")),
    "results": lambda o: o.jit(out_shardings=o.over("y"))(X),
    "results, an axis in another dimension": lambda o: o.jit(lambda x: x.T, out_shardings=o.over("x"))(o.put("x")),
    "results, axes changed over": lambda o: o.jit(out_shardings=o.over("y", "x"))(o.put("x", "y")),
    "results, one axis of two in one dimension": lambda o: o.jit(out_shardings=o.over("y"))(o.put(None, ("x", "y"))),
    "results over mixed axes": lambda o: o.jit(out_shardings=o.over(None, "x", mesh="mixed"))(
        o.put("x", "y", mesh="mixed")
    ),
    "results over Auto axes": lambda o: o.jit(out_shardings=o.over("y", mesh="auto"))(o.put("x")),
    "results of Auto axes": lambda o: o.jit(out_shardings=o.over("y"))(o.put("x", mesh="auto")),
    "arguments over Auto axes": lambda o: o.jit(in_shardings=o.over("x", mesh="auto"))(o.put("x")),
    "nested": lambda o: o.jit(o.jit(in_shardings=o.over("x")))(X),
    "nested, other than the type": lambda o: o.jit(o.jit(in_shardings=o.over("y")))(o.put("x")),
    "nested results": lambda o: o.jit(o.jit(out_shardings=o.over("y")))(X),
    "nested results, other than the type": lambda o: o.jit(o.jit(out_shardings=o.over("y")))(o.put("x")),
    "nested over mixed axes": lambda o: o.jit(o.jit(out_shardings=o.over("x", "y", mesh="mixed")))(
        o.put("x", None, mesh="mixed")
    ),
    "resharded inside": lambda o: o.jit(lambda x: o.lib.reshard(x, o.over("y")), in_shardings=o.over("x"))(X),
    "put inside": lambda o: o.jit(lambda x: o.lib.device_put(x, o.over("y")))(o.put("x")),
    "put inside, whole": lambda o: o.jit(lambda x: o.lib.device_put(x, o.over()))(o.put("x")),
    "put inside, where it is": lambda o: o.jit(lambda x: o.lib.device_put(x, o.over("x")))(o.put("x")),
    "gradient": lambda o: o.lib.grad(lambda x: (o.jit(in_shardings=o.over("x"))(x) ** 2).sum())(o.put("x")),
}


WHERE_NOTHING_ELSE_NAMES_DEVICES = {
    "arguments of no mesh": lambda o: o.jit(lambda x: o.lib.device_put(x, o.over("x")) * 2)(X),
    "arguments of this mesh": lambda o: o.jit(lambda x: o.lib.device_put(x, o.over("y")) * 2)(o.put("x")),
    "mapped": lambda o: o.jit(o.lib.vmap(lambda x: o.lib.device_put(x, o.over("x"))))(X),
    "gradient": lambda o: o.jit(o.lib.grad(lambda x: (o.lib.device_put(x, o.over("x")) ** 2).sum()))(X),
}


@pytest.mark.parametrize("program", WHERE_NOTHING_ELSE_NAMES_DEVICES)
def test_device_put_inside_says_where_a_program_runs(program):
    (ours, one), (theirs, other) = (
        (WHERE_NOTHING_ELSE_NAMES_DEVICES[program](o), o) for o in (Program(meshrt, jnp), Program(jax, xnp))
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert [d.id for d in ours.sharding.mesh.devices.flat] == [d.id for d in theirs.sharding.mesh.devices.flat]
    if program == "mapped":  # JAX splits the mapped dimension, which the function does not see
        assert str(meshrt.typeof(ours)) == "float32[8,8@x]"
    elif program != "gradient":
        assert str(one.lib.typeof(ours)) == str(other.lib.typeof(theirs))


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("in_context", [False, True], ids=["alone", "mesh in context"])
def test_they_leave_types_alone(program, in_context):
    def outcome(o):
        context = o.lib.set_mesh(
            o.explicit if in_context and "Auto" not in program and "mixed" not in program else None
        )
        with context:
            y = PROGRAMS[program](o)
        return np.asarray(y), str(o.lib.typeof(y)), y.sharding, o.seen

    if not in_context and program == "gradient":
        pytest.skip("JAX makes the cotangent on one device")
    if in_context and program in ("ambiguous", "uncommitted"):
        pytest.skip("JAX splits the result of a product of whole values, and commits what it makes beside a mesh")
    (ours, kind, sharding, seen), (theirs, its, other, saw) = map(outcome, (Program(meshrt, jnp), Program(jax, xnp)))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert kind == its and seen == saw
    if program != "gradient":
        assert str(sharding.spec) == str(other.spec).replace("PartitionSpec", "P")
    assert str(sharding.mesh) == str(other.mesh)
