"""Rules that propagation has looked up serve whoever asks about the program afterwards."""

from __future__ import annotations

import pytest

import propagation
from propagation.fuzz.generator import module
from propagation.rules import RuleCache

CONSTRAINED = """
sdy.mesh @mesh = <["a"=2, "b"=2]>
func.func @main(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}) -> tensor<8x8xf32> {
  %0 = stablehlo.tanh %x : tensor<8x8xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"b"}]> : tensor<8x8xf32>
  %2 = chlo.asin %1 : tensor<8x8xf32> -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}"""


@pytest.mark.parametrize("text", [CONSTRAINED, *map(module, range(24))], ids=["constrained", *map(str, range(24))])
def test_rules_that_propagation_looked_up_are_those_of_the_finished_program(text):
    decided = propagation.run(text)
    learnt, anew = decided.rules, RuleCache()
    for op in decided.program.ops():
        assert learnt.rule_for(op) is anew.rule_for(op), op
    ops = decided.program.ops()
    assert RuleCache().rules_for(ops) == anew.rules_for(ops) == [anew.rule_for(op) for op in ops]


def test_rules_by_other_options_are_not_taken_over():
    decided = propagation.run(CONSTRAINED, conservative=True)
    assert decided.rules.options == RuleCache().options
    for op in decided.program.ops():
        assert decided.rules.rule_for(op) is RuleCache().rule_for(op), op
