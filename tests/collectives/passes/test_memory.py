"""Estimates of memory: regions that run others, and functions that many calls name."""

from __future__ import annotations

import random

from collectives.ir.attributes import NONE
from collectives.ir.operations import attributes
from collectives.ir.program import LocalFunction, LocalOp, LocalValue, ModuleBuilder, Region
from collectives.passes.memory import Lives, need_of

DEPTH = 64


def _twice(builder: ModuleBuilder, name: str, callee: str | None) -> LocalFunction:
    """A function that makes two arrays, each by a call of `callee` if there is one, and adds them."""
    function = builder.function(name, [((4,), "f32")], False, "")
    (x,) = function.region.args
    call = ("func.call", attributes("func.call", callee)) if callee else ("stablehlo.sort", NONE)
    made = [function.region.op(call[0], (v,), [((4,), "f32")], call[1])[0] for v in (x, x)]
    function.results = function.region.op("stablehlo.add", made, [((4,), "f32")])
    return function


def test_what_lives_in_a_callee_is_found_once_however_many_calls_name_it():
    builder = ModuleBuilder("main", "")
    names = [f"f{i}" for i in range(DEPTH)]
    for name, callee in zip(names, [*names[1:], None]):
        _twice(builder, name, callee)
    functions = {f.name: f for f in builder.functions}
    # At the second call its result lives beside the first one's and all that the callee makes: two arrays a level.
    assert need_of(functions["f0"], functions) == 2 * 16 + 16 * 2 * DEPTH


def test_another_order_of_items_is_estimated_as_if_it_was_seen_first():
    region = Region("function", None, [((8,), "f32")])
    (x,) = region.args
    sort = lambda v: region.op("stablehlo.sort", (v,), [((8,), "f32")])[0]
    rows = [sort(x) for _ in range(3)]
    ends = [region.op("stablehlo.reduce", (r,), [((), "f32")])[0] for r in rows]
    lives = Lives(None)
    late = lives.crest(region, ends)[0]
    first, second, third, *reduced = region.items
    region.items = [first, reduced[0], second, reduced[1], third, reduced[2]]
    assert (late, lives.crest(region, ends)[0]) == (3 * 32.0, 32.0)
    assert Lives(None).crest(region, ends) == lives.crest(region, ends)


def test_no_other_order_needs_more_than_what_waits_for_others():
    grown = 0
    for seed in range(60):
        draw = random.Random(seed)
        region = Region("function", None, [((4,), "f32")])
        values = list(region.args)
        for _ in range(12):
            name = draw.choice(
                ["stablehlo.sort", "stablehlo.add", "stablehlo.reshape", "stablehlo.optimization_barrier"]
            )
            operands = draw.sample(values, min(len(values), 1 if name == "stablehlo.reshape" else 2))
            shape = (draw.choice([1, 4, 32]),) if name in ("stablehlo.sort", "stablehlo.add") else operands[0].shape
            values += region.op(name, operands, [(shape, "f32")])
        items, ends = list(region.items), values[-1:]
        order, left = [], list(items)
        while left:
            ready = [i for i in left if all(r.item is None or r.item in order for r in i.operands)]
            order.append(draw.choice(ready))
            left.remove(order[-1])
        lives = Lives(None)
        before, bound = lives.crest(region, ends)[0], lives.most_growth(items, order)
        region.items = order
        after = lives.crest(region, ends)[0]
        assert after <= before + bound
        assert lives.most_growth(items, items) == 0.0
        grown += after > before
    assert grown


def test_items_that_run_others_are_looked_at_again():
    region = Region("function", None, [((8,), "f32")])
    body = Region("loop", region, [((8,), "f32")])
    (a,) = body.args
    body.op("stablehlo.sort", (a,), [((8,), "f32")])
    loop = region.add(LocalOp("stablehlo.while", region.args, [LocalValue((8,), "f32")], regions=[body]))
    lives = Lives(None)
    before = lives.crest(region, loop.results)[0]
    wide = body.op("stablehlo.sort", (a,), [((64,), "f32")])[0]
    lives.forget_regions()
    assert (before, lives.crest(region, loop.results)[0]) == (32.0, 64 * 4.0)
    assert wide.item is body.items[-1]
