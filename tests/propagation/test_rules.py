"""Derived sharding rules against `sdy-populate-op-sharding-rules`."""

from __future__ import annotations

import re

import jaxlib.version
import pytest

from propagation import errors, program
from propagation.fuzz import operations
from propagation.fuzz.operations import DRAWS, operation
from propagation.rules import RuleCache, RuleOptions, parse_rule, register_sharding_rule, unregister_sharding_rule
from propagation.rules.parse import parse_printed

from . import oracle, rule_cases, rule_cases_rest

VERSION = tuple(map(int, jaxlib.version.__version__.split(".")[:3]))


def _compare(cases: list[str], conservative: bool) -> int:
    """Checks our rule for every operation of every case, and returns how many have one."""
    stage = "rules-conservative" if conservative else "rules"
    checked = 0
    for case, out in zip(cases, oracle.run_batch([(stage, c) for c in cases]), strict=True):
        assert out is not None and not out.startswith("ERROR"), (out, case)
        prog = program.read(out)
        rules = RuleCache(RuleOptions(conservative, VERSION, faults=True))
        for op in prog.ops():
            parent = op.parent_op
            if isinstance(parent, program.Op) and parent.name == "stablehlo.reduce":
                continue  # printed in a short form that drops the rule
            want = op.attr("sdy.sharding_rule")
            got = rules.rule_for(op)
            assert (got and got.to_text()) == (want and str(want).removeprefix("#sdy.op_sharding_rule<")[:-1]), case
            if want is not None:
                assert parse_printed(str(want)).to_text() == got.to_text()
                checked += 1
    return checked


@pytest.mark.parametrize("conservative", [False, True])
def test_rules_equal_shardys(conservative):
    assert _compare(rule_cases.all_cases() + rule_cases_rest.all_cases(), conservative) > 300


@pytest.mark.sweep(2)
@pytest.mark.parametrize("conservative", [False, True])
@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: draw.__name__)
def test_rules_of_drawn_attributes(draw, conservative):
    """Every attribute in all its values: strides, dilations, paddings, groups, numbers of dimensions, operands."""
    count = 0 if draw is operations.iota else 25 if draw is operations.custom_call else 40
    assert _compare([operation(seed, draw) for seed in range(40)], conservative) >= count


@pytest.mark.slow
@pytest.mark.parametrize("conservative", [False, True])
@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: draw.__name__)
def test_rules_of_more_drawn_attributes(draw, conservative):
    assert _compare([operation(seed, draw) for seed in range(40, 840)], conservative) >= (
        0 if draw is operations.iota else 500
    )


SORTED_FROM_THE_END = rule_cases.single(
    "stablehlo.sort",
    ["tensor<8x4xf32>"],
    ["tensor<8x4xf32>"],
    "dimension = -1 : i64",
    "{ ^bb0(%p: tensor<f32>, %q: tensor<f32>): %c = stablehlo.compare LT, %p, %q : (tensor<f32>, tensor<f32>) -> "
    "tensor<i1>\n stablehlo.return %c : tensor<i1> }",
)
WHOLE_ROW = rule_cases.single(
    "stablehlo.custom_call",
    ["tensor<8x4xf32>"],
    ["tensor<8x4xf32>", "tensor<8x4xi32>"],
    'call_target_name = "mhlo.topk"',
)


@pytest.mark.parametrize("text", [SORTED_FROM_THE_END, WHOLE_ROW])
def test_sorted_dimensions_are_whole(text):
    """Shardy splits them in these two forms; a device would then sort its own part only."""
    op = program.read(text).main.body.ops[0]
    assert "need_replication={j}" in RuleCache().rule_for(op).to_text()
    assert "need_replication" not in RuleCache(RuleOptions(faults=True)).rule_for(op).to_text()


def test_drawn_operations_are_deterministic():
    assert len({operation(seed) for seed in range(30)}) == 30
    assert operation(7) == operation(7)


@pytest.mark.smoke
def test_every_operation_of_the_dialects_has_a_case():
    text = "\n".join(rule_cases.all_cases() + rule_cases_rest.all_cases())
    found = set(re.findall(r"\b((?:stablehlo|chlo)\.[\w\-]+)", text))
    assert rule_cases_rest.registered() - found == rule_cases_rest.LEFT_OUT & rule_cases_rest.registered()


def test_registered_rule_binds_to_shapes():
    text = rule_cases.single(
        "stablehlo.custom_call",
        ["tensor<8x16xf32>", "tensor<16x4xf32>"],
        ["tensor<8x4xf32>"],
        'call_target_name = "mm"',
    )
    op = program.read(text).main.body.ops[0]
    assert RuleCache().rule_for(op) is None
    register_sharding_rule("mm", "i j, j k -> i k, reduction={j}")
    try:
        assert RuleCache().rule_for(op).to_text() == "([i, j], [j, k])->([i, k]) {i=8, j=16, k=4} reduction={j}, custom"
        register_sharding_rule("mm", "i j -> i")
        with pytest.raises(errors.BadRuleError, match="1 operands, the operation has 2"):
            RuleCache().rule_for(op)
    finally:
        unregister_sharding_rule("mm")


@pytest.mark.parametrize("text", ["i j", "i -> j, reduktion={i}", "1 -> 1", "i -> i, size=x"])
def test_malformed_rules_are_refused(text):
    with pytest.raises(errors.BadRuleError, match="sharding rule"):
        parse_rule(text)


def test_compound_dimensions():
    rule = parse_rule("(a b) c -> a b c, a=4").bind([(8, 3)], [(4, 2, 3)])
    assert rule.to_text() == "([ij, k])->([i, j, k]) {i=4, j=2, k=3}, custom"
