"""Drafts of loops: nothing of one that is dropped is left, and one that is adopted is part of the program."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives
import propagation
from collectives.ir.overlay import Overlay
from collectives.ir.program import Region
from collectives.ir.walker import walk
from collectives.layouts import loop_carries
from collectives.ops import control

from .jax_side import Case


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def recurrent(constrain):
    """Its state is carried in another layout than propagation's, and its kernel is gathered before the loop."""

    def run(x, w):
        step = lambda h, row: (jnp.tanh(h @ w + row), jnp.sum(h))
        return jax.lax.scan(step, jnp.zeros(x[0].shape), x)

    return run


def sums(constrain):
    """Sums of products, carried through two loops, of a kernel from outside whose halves are used."""

    def run(a, b, w):
        inner = lambda t, ab: (t + ab[0] @ (ab[1] * jnp.sum(w[:4] + w[4:])), None)
        outer = lambda t, ab: (jax.lax.scan(inner, t, ab)[0], None)
        return jax.lax.scan(outer, jnp.zeros((6, 5)), (a, b))[0]

    return run


def calls(constrain):
    """A function that is too long to be written in place, called twice in every turn."""

    @jax.jit
    def long(h, w):
        for _ in range(45):
            h = jnp.sin(h) @ w
        return h

    return lambda h, w: jax.lax.fori_loop(0, 3, lambda i, h: long(long(h, w), w), h)


def calls_in_loops(constrain):
    """The same in a loop in a loop."""
    inner = calls(constrain)
    return lambda h, w: jax.lax.fori_loop(0, 2, lambda i, h: jnp.tanh(inner(inner(h, w), w)), h)


CASES = {
    "recurrent": Case({"x": 8}, recurrent, (normal(16, 8, 24), normal(24, 24)), (P(), P(None, "x"))),
    "sums": Case(
        {"x": 8}, sums, (normal(3, 2, 6, 16), normal(3, 2, 16, 5), normal(8, 16)),
        (P(None, None, None, "x"), P(None, None, "x"), P("x")),
    ),
    "calls": Case({"x": 8}, calls, (normal(8, 24), normal(24, 24)), (P("x"), P(None, "x"))),
    "calls in loops": Case({"x": 8}, calls_in_loops, (normal(8, 24), normal(24, 24)), (P("x"), P(None, "x"))),
}  # fmt: skip


def standing(ctx):
    """All that writing changes of a context."""
    regions, at = [], ctx.region
    while at is not None:
        regions.append((at, tuple(at.items), tuple(at.prologue), dict(at.known)))
        at = at.parent
    tables = ctx.env, ctx.callees, ctx.ends, ctx.left_partial, ctx.returned_as, ctx.siblings._owners
    lists = ctx.findings, ctx.chosen, ctx.builder.functions
    held = {s: s.held for s in {*ctx.env.values(), *(s for s, _ in ctx.siblings._owners.values())}}
    return regions, [(t, dict(t)) for t in tables], [(x, tuple(x)) for x in lists], held, ctx.changed.draft


@pytest.mark.parametrize("case", CASES)
def test_who_drops_a_draft_has_nothing_to_undo(monkeypatch, case):
    drafted, drafts = control.drafted, []

    def checked(ctx, wanted, write):
        before = standing(ctx)
        found = drafted(ctx, wanted, write)
        assert standing(ctx) == before
        drafts.append(found[1])
        return found

    adopted = []
    adopt = loop_carries.adopt
    monkeypatch.setattr(control, "drafted", checked)
    monkeypatch.setattr(loop_carries, "adopt", lambda ctx, d, regions: (adopted.append(d), adopt(ctx, d, regions)))
    collectives.partition(propagation.run(CASES[case].text))
    assert len(drafts) >= len(adopted) > 0
    assert len(drafts) > len(adopted) or case == "calls"  # some were dropped; of that one nothing moves inside
    assert all(d in drafts for d in adopted)


def test_the_plan_says_what_a_loop_would_have_sent_in_other_layouts():
    plan = collectives.partition(propagation.run(CASES["calls in loops"].text)).plan
    (loop,) = [row for row in plan.decisions if row.op.name == "stablehlo.while"]
    assert len(loop.ways) > 1 and loop.ways[loop.taken].cost == min(way.cost for way in loop.ways)
    assert plan.explain(loop.op.results[3]).rows == (loop,)


@pytest.mark.parametrize("case", CASES)
def test_all_of_a_program_lies_in_its_own_regions(case):
    result = collectives.partition(propagation.run(CASES[case].text), optimize=False)
    for function in result._builder.functions:
        for region in walk(function.region):
            assert region.origin is region
            for item in region.items:
                assert item.region is region
                assert all(inner.parent is region for inner in item.regions)
    called = {item.callee for f in result._builder.functions for r in walk(f.region) for item in r.items
              if item.name == "func.call"}  # fmt: skip
    assert {f.name for f in result._builder.functions} == {"main", *called}


def test_a_draft_of_a_region_knows_what_the_region_knows():
    outer = Region("function", None)
    (x,) = outer.op("stablehlo.constant", (), [((), "f32")])
    loop = Region("loop", outer, trips=3)
    outer.known["x"] = x
    draft = loop.draft()
    assert draft.lookup("x") is x and draft.trips == 3 and draft.around(outer).origin is outer
    (y,) = draft.around(outer).op("stablehlo.negate", (x,), [((), "f32")])
    draft.known["y"] = y
    deeper = draft.draft()
    assert deeper.lookup("y") is y and deeper.origin is loop
    assert len(outer.items) == 1 and loop.lookup("y") is None
    loop.adopt(draft)
    assert outer.items[1:] == [y.item] and y.item.region is outer and loop.lookup("y") is y


def test_an_overlay_leaves_what_it_lies_on():
    base = {"a": 1}
    over = Overlay(Overlay(base))
    assert over["a"] == over.get("a") == over.setdefault("a", 5) == 1 and "a" in over and "b" not in over
    assert over.get("b") is None and over.get("b", 3) == 3
    over["a"] = 2
    assert (over["a"], base["a"], list(over)) == (2, 1, ["a"])
    with pytest.raises(KeyError):
        over["b"]
