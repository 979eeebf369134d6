"""Collectives that some devices never come to: who warns, of which, and with which chain."""

from __future__ import annotations

import warnings

import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import P, errors, lax

BOTH = P(("x", "y"))


def warned(body, *, check_vma=True, specs=BOTH, out_specs=BOTH, **options):
    """The warnings of two stagings of the body over a mesh of 4x2."""
    mesh = meshrt.make_mesh((4, 2), ("x", "y"), axis_types=(meshrt.sharding.AxisType.Auto,) * 2)
    mapped = meshrt.shard_map(body, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=check_vma, **options)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            meshrt.make_jaxpr(mapped)(jnp.arange(16.0))
    assert all(w.category is errors.DivergenceWarning for w in found)
    return [str(w.message) for w in found]


def chosen(predicate, axis, then=lax.psum):
    return lambda v: lax.cond(predicate(v), lambda v: v * then(v, axis), lambda v: v * 2, v)


def moved(v, axis):
    return lax.ppermute(v, axis, [(0, 1)])


def in_a_scan(predicate):
    def step(c, i):
        return lax.cond(predicate(c, i), lambda c: moved(c, "x"), lambda c: c, c), None

    return lambda v: lax.scan(step, v, jnp.arange(3))[0]


# What waits: the body, and what the warning says.
WAITING = {
    "an index": (
        chosen(lambda v: lax.axis_index("x") > 1, "x"),
        ["psum", "over 'x'", "inside of the cond", "axis_index at", "which differs from device to device"],
    ),
    "an argument": (
        chosen(lambda v: jnp.sin(v).sum() > 1, "y"),
        ["over 'y'", "reduce_sum at", "sin at", "args[0], which enters with P(('x', 'y'),)"],
    ),
    "one of two axes": (
        chosen(lambda v: lax.psum(v.sum(), "y") > 1, ("y", "x")),
        ["differs between devices along 'x'"],
    ),
    "functions of their own": (
        chosen(meshrt.jit(lambda v: (v * 3).sum() > 1), "x", meshrt.jit(lambda v, a: lax.psum(v, a), static_argnums=1)),
        ["mul at", "args[0]"],
    ),
    "a loop": (
        lambda v: lax.while_loop(lambda c: c.sum() < 3, lambda c: c + lax.all_gather(c, "x").sum(0), v),
        ["all_gather over 'x'", "inside of the while", "lt at", "args[0]"],
    ),
    "a branch in a loop": (in_a_scan(lambda c, i: lax.axis_index("x") == 0), ["ppermute over 'x'", "axis_index at"]),
    "what a loop carries": (in_a_scan(lambda c, i: c.sum() > 0), ["ppermute over 'x'", "args[0]"]),
}


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", WAITING)
def test_collectives_that_wait_are_told_once_with_the_chain_of_the_predicate(name, check_vma):
    body, fragments = WAITING[name]
    (message,) = warned(body, check_vma=check_vma)
    for fragment in [*fragments, "may wait for ever", "test_waits.py", "meshrt.numpy.where", "meshrt.lax.pmax"]:
        assert fragment in message


positive = meshrt.jit(lambda v: (v > 0).any())


def decided_by_the_same_function(v):
    """Of what differs too, but not of the value that the branch is chosen by."""
    elsewhere = positive(v[:1])
    chosen = lax.cond(positive(jnp.zeros(1)), lambda v: lax.psum(v, "x") * v, lambda v: v * 2, v)
    return chosen * elsewhere


# What all devices that a collective waits for come to.
MET = {
    "one function twice": decided_by_the_same_function,
    "another axis": chosen(lambda v: lax.axis_index("x") > 1, "y"),
    "a predicate that is one value": chosen(lambda v: lax.pmax(v.sum(), "x") > 1, "x"),
    "a predicate of what was gathered": chosen(lambda v: lax.all_gather(v.sum(), "x").sum() > 1, "x"),
    "a loop with one length": lambda v: lax.while_loop(
        lambda c: lax.pmax(c.sum(), ("x", "y")) < 3, lambda c: c + lax.psum(c, "x"), v
    ),
    "a step": in_a_scan(lambda c, i: i == 2),
    "nothing inside": chosen(lambda v: v.sum() > 1, "x", lambda v, axis: v),
}


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", MET)
def test_collectives_that_all_come_to_are_not_warned_of(name, check_vma):
    assert not warned(MET[name], check_vma=check_vma)


def test_arguments_that_enter_whole_differ_nowhere():
    assert not warned(chosen(lambda v: v.sum() > 1, "x"), check_vma=False, specs=P())


def test_what_a_region_inside_puts_together_is_one_value_behind_it():
    def body(v):
        whole = meshrt.shard_map(lambda t: t * 2, in_specs=P("y"), out_specs=P("y"), axis_names={"y"})(jnp.ones(4))
        add = meshrt.shard_map(
            lambda t, s: lax.cond(s > 0, lambda t: lax.psum(t, "y"), lambda t: t * 2, t),
            in_specs=(P(), P()), out_specs=P(), axis_names={"y"}, check_vma=False,
        )  # fmt: skip
        return v + add(jnp.ones(4), whole.sum()).sum()

    assert not warned(body, specs=P("x"), out_specs=P("x"), axis_names={"x"})
