"""`vmap(spmd_axis_name=...)`: the mapped dimension lies along the axis where shardings are constrained, as in JAX."""

import re

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy
from meshrt import errors

X = np.ones((8, 4), np.float32)


def constraints(lib, program, x=X):
    """The constraints in the lowered text of a program of (library, constrain)."""
    mesh = lib.make_mesh((4, 2), ("x", "y"), axis_types=(lib.sharding.AxisType.Auto,) * 2)
    pin = lambda v, *spec: lib.lax.with_sharding_constraint(
        v, lib.sharding.NamedSharding(mesh, lib.sharding.PartitionSpec(*spec))
    )
    lowered = lib.jit(program(lib, pin)).lower(x)
    lowered.compile()
    return sorted(re.findall(r"sdy.sharding_constraint.*?(\[.*?\])>", lowered.as_text()))


def _custom_vjp(l, pin):
    f = l.custom_vjp(lambda r: pin(r, "y"))
    f.defvjp(lambda r: (pin(r, "y"), r), lambda r, g: (pin(g * r, None),))
    return l.grad(lambda x: l.vmap(f, spmd_axis_name="x")(x).sum())


def _custom_jvp(l, pin):
    f = l.custom_jvp(lambda r: pin(r, "y"))
    f.defjvp(lambda p, t: (f(p[0]), pin(t[0] * 2, "y")))
    return l.grad(lambda x: l.vmap(f, spmd_axis_name="x")(x).sum())


def _both(l, pin):
    """The same jitted function, mapped along an axis and along none."""
    inner = l.jit(lambda r: pin(r, "y"))
    return lambda x: (l.vmap(inner, spmd_axis_name="x")(x), l.vmap(inner)(x))


PROGRAMS = {
    "first dimension": lambda l, pin: l.vmap(lambda r: pin(r, "y"), spmd_axis_name="x"),
    "last dimension": lambda l, pin: l.vmap(lambda r: pin(r, "y"), in_axes=1, out_axes=1, spmd_axis_name="x"),
    "two axes": lambda l, pin: l.vmap(lambda r: pin(r, None), spmd_axis_name=("x", "y")),
    "nested": lambda l, pin: lambda x: l.vmap(l.vmap(lambda r: pin(r, None), spmd_axis_name="y"), spmd_axis_name="x")(
        x.reshape(4, 2, 4)),
    "jit": lambda l, pin: l.vmap(l.jit(lambda r: pin(r, "y")), spmd_axis_name="x"),
    "scan": lambda l, pin: l.vmap(
        lambda r: l.lax.scan(lambda c, _: (pin(c * 2, "y"), None), r, None, length=3)[0], spmd_axis_name="x"),
    "while": lambda l, pin: l.vmap(
        lambda r: l.lax.while_loop(lambda c: c.sum() < 9, lambda c: pin(c * 2, "y"), r), spmd_axis_name="x"),
    "cond": lambda l, pin: l.vmap(
        lambda r: l.lax.cond(r[0] > 0, lambda r: pin(r, "y"), lambda r: r, r), spmd_axis_name="x"),
    "checkpoint": lambda l, pin: l.grad(lambda x: l.vmap(
        l.checkpoint(lambda r: l.numpy.sin(pin(l.numpy.sin(r), "y"))), spmd_axis_name="x")(x).sum()),
    "custom_vjp": _custom_vjp, "custom_jvp": _custom_jvp, "both ways": _both,
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_constraints_as_in_jax(name):
    ours = constraints(meshrt, PROGRAMS[name])
    assert ours and ours == constraints(jax, PROGRAMS[name])


def test_an_axis_that_the_constraint_uses_already():
    program = lambda l, pin: l.vmap(lambda r: pin(r, "x"), spmd_axis_name="x")
    with pytest.raises(errors.DuplicateAxisError, match=r"test_spmd_axis.py.*spmd_axis_name \('x',\) cannot appear"):
        constraints(meshrt, program)
    with pytest.raises(ValueError):
        constraints(jax, program)
