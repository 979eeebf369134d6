"""The search for a reshard's cheapest steps, against all ways that the moves offer; and what it costs at least."""

from __future__ import annotations

import heapq
import itertools
import math

import pytest

from collectives.layout import Atoms
from collectives.reshard.planner import Planner
from collectives.reshard.search import (
    PieceSizes,
    _gather_all,
    even,
    lacking_bytes,
    lower_bound,
    operand_bytes,
    piece_bytes,
    search,
    step_bytes,
)
from collectives.reshard.tiles import summing, tiles
from propagation.model import Mesh

from .test_moves import SIZES, check_step, layouts, successors

ATOMS = Atoms(Mesh("m", tuple((f"a{i}", n) for i, n in enumerate(SIZES))))
SHAPE = (12, 24)


def some(every, step: int):
    return list(every)[::step]


def cheapest(source, target, unreduced, step_cost: float) -> float:
    """Bytes and costs of steps, over all ways whose pieces are no larger than the larger end's."""
    limit = max(piece_bytes(SHAPE, 4.0, d, SIZES) for d in (source, target))
    best, queue = {}, [(0.0, 0, source, unreduced)]
    for number in itertools.count(1):
        cost, _, dims, left = heapq.heappop(queue)
        if (dims, left) == (target, ()):
            return cost
        for step in successors(SHAPE, dims, left, target, SIZES):
            if piece_bytes(SHAPE, 4.0, step.after, SIZES) <= limit:
                total = cost + (0.0 if step.kind == "slice" else step_cost + step_bytes(step, SHAPE, 4.0, dims, SIZES))
                if total < best.get((step.after, step.unreduced), math.inf) - 1e-9:
                    best[step.after, step.unreduced] = total
                    heapq.heappush(queue, (total, number * 1000 + len(queue), step.after, step.unreduced))
    raise AssertionError


@pytest.mark.parametrize("unreduced, step", [((), 3), ((1,), 2), ((0, 2), 1)])
@pytest.mark.parametrize("step_cost", [0.0, 100.0])
def test_no_way_is_cheaper_than_what_is_found(unreduced, step, step_cost):
    for source, target in itertools.product(some(layouts(2, unreduced), step), some(layouts(2), 5)):
        plan = search(SHAPE, 4.0, source, target, unreduced, SIZES, step_cost)
        steps = [s for s in plan.steps if s.kind != "slice"]
        assert plan.bytes + step_cost * len(steps) == pytest.approx(cheapest(source, target, unreduced, step_cost))
        assert plan.bound <= plan.bytes + 1e-9
        dims, left, sent = source, unreduced, 0.0
        for s in plan.steps:
            check_step(s, dims, left, target)
            sent += step_bytes(s, SHAPE, 4.0, dims, SIZES)
            assert piece_bytes(SHAPE, 4.0, s.after, SIZES) <= plan.peak
            dims, left = s.after, s.unreduced
        assert (dims, left, sent) == (target, (), plan.bytes)


def test_the_bound_is_what_the_busiest_device_lacks():
    piece = PieceSizes(SHAPE, 4.0, SIZES)
    for source, target in itertools.product(layouts(2), repeat=2):
        assert lower_bound(piece, source, target, ()) == lacking_bytes(SHAPE, 4.0, source, target, SIZES)
        assert even(SHAPE, source, target, SIZES)
    uneven = PieceSizes((7, 24), 4.0, SIZES)
    assert lower_bound(uneven, ((0,), ()), ((), ()), ()) == 0.0 and not even((7, 24), ((), ()), ((0,), ()), SIZES)


@pytest.mark.parametrize("unreduced", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_the_bound_of_a_sum_is_told_twice(unreduced):
    """By the sizes of pieces, and by all devices' parts together."""
    piece = PieceSizes(SHAPE, 4.0, SIZES)
    for target in layouts(2):
        terms = math.prod(SIZES[a] for a in unreduced)
        expected = 4.0 * summing(tiles(SHAPE, target, (), ATOMS), terms)
        assert lower_bound(piece, ((), ()), target, unreduced) == pytest.approx(expected)


def test_known_bounds_of_sums():
    """Of 12 devices: an all-reduce of all, a reduce-scatter of all, and results that several devices hold."""
    whole = tiles((24,), ((),), (), ATOMS)
    assert summing(whole, 12) == 2 * 11 / 12 * 24  # an all-reduce
    assert summing(tiles((24,), ((0, 1, 2),), (), ATOMS), 12) == 11 * 2  # a reduce-scatter
    assert summing(whole, 2) == 24  # everybody must be told of each element
    assert summing(tiles((24,), ((0,),), (), ATOMS), 6) == (24 * 4 + 12 * 12) / 12


def test_what_is_sent_by_steps_of_each_kind():
    """i8[12, 24] over 2, 3 and 2 devices, from the formulas of rings."""
    steps = successors((12, 24), ((0, 1, 2), ()), (), ((), ()), SIZES)
    (gather,) = [s for s in steps if s.kind == "all_gather" and len(s.atoms) == 3]
    assert step_bytes(gather, (12, 24), 1.0, ((0, 1, 2), ()), SIZES) == 11 * 24
    (exchange,) = [s for s in successors((12, 24), ((0,), ()), (), ((), (0,)), SIZES) if s.kind == "all_to_all"]
    assert step_bytes(exchange, (12, 24), 1.0, ((0,), ()), SIZES) == 1 / 2 * 144
    assert operand_bytes(exchange, (12, 24), 1.0, ((0,), ()), SIZES) == 144
    (scatter,) = successors((12, 24), ((), ()), (1,), ((1,), ()), SIZES)
    assert step_bytes(scatter, (12, 24), 1.0, ((), ()), SIZES) == 2 / 3 * 288
    assert operand_bytes(scatter, (12, 24), 1.0, ((), ()), SIZES) == 288
    padded = scatter._replace(after=((1,), ()))  # 13 elements over 3 devices are given as three pieces of 5
    assert operand_bytes(padded, (13, 24), 1.0, ((), ()), SIZES) == 15 * 24


@pytest.mark.parametrize("shape", [(12, 24), (7, 24), (7, 5)])
@pytest.mark.parametrize("unreduced", [(), (1,)])
def test_the_way_that_always_exists(shape, unreduced):
    """Reduce, gather what differs (all of it where pieces are not nested), slice."""
    for source, target in itertools.product(some(layouts(2, unreduced), 2), some(layouts(2), 5)):
        dims, left, kinds = source, unreduced, []
        for step in _gather_all(shape, source, target, unreduced, SIZES):
            check_step(step, dims, left, target)
            dims, left = step.after, step.unreduced
            kinds.append(step.kind)
            d = step.dim
            if d >= 0 and any(shape[d] % math.prod(SIZES[a] for a in ends[d]) for ends in (source, target)):
                assert source[d] != target[d] and step.after[d] in ((), target[d])  # pieces that are not nested
        assert (dims, left) == (target, ())
        assert kinds == sorted(kinds, key=["all_reduce", "all_gather", "slice"].index)


def test_where_one_is_already_nothing_is_sent():
    planner = Planner(ATOMS)
    for dims in layouts(2):
        plan = planner.plan(SHAPE, 4.0, dims, dims)
        assert (plan.steps, plan.bytes, plan.bound, plan.ratio) == ((), 0.0, 0.0, 1.0)
        assert plan.peak == piece_bytes(SHAPE, 4.0, dims, SIZES)


def test_plans_are_remembered_up_to_a_number(monkeypatch):
    monkeypatch.setattr("collectives.reshard.planner.REMEMBERED_PLANS", 5)
    planner = Planner(Atoms(Mesh("m", (("only here", 14),))))
    for n in range(14, 14 * 20, 14):
        first = planner.plan((n,), 4.0, ((0,),), ((),))
        assert planner.plan((n,), 4.0, ((0,),), ((),)) is first
        assert len(planner._plans) <= 5 and len(planner._abstract) <= 10
