"""Sharding rules that users write, in the module or by registration: what does not fit is refused, and says where."""

from __future__ import annotations

import pytest

import propagation
from propagation.errors import BadRuleError
from propagation.model import OpRule
from propagation.rules import register_sharding_rule, unregister_sharding_rule

CALL = """sdy.mesh @mesh = <["a"=4]>
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}) -> tensor<8x16xf32> {
  %0 = stablehlo.custom_call @of_test(%x) ATTRS : (tensor<8x16xf32>) -> tensor<8x16xf32> loc("f.py":3:1)
  return %0 : tensor<8x16xf32>
}
"""
STAGES = ("rules", "basic", "closed", "pipeline")


@pytest.fixture
def registered():
    yield lambda rule: register_sharding_rule("of_test", rule)
    unregister_sharding_rule("of_test")


@pytest.mark.parametrize("stage", ["basic", "closed", "pipeline", "insert_reshards"])
@pytest.mark.parametrize("custom", ["", ", custom"])
def test_sizes_that_fit_no_dimension_are_refused(stage, custom):
    rule = "{sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j]) {i=SIZE, j=16}" + custom + ">}"
    with pytest.raises(BadRuleError, match=r"f\.py:3: .* factor i the size 9, which fits no dimension .*\(one has 8\)"):
        propagation.run(CALL.replace("ATTRS", rule.replace("SIZE", "9")), stage)
    propagation.run(CALL.replace("ATTRS", rule.replace("SIZE", "8")), stage)


def test_rules_that_are_written_are_read_again():
    for name in ("slice", "pad"):
        op = {"slice": "slice %x [0:4, 0:16]", "pad": "pad %x, %c, low = [1, 0], high = [0, 0], interior = [0, 0]"}[
            name
        ]
        size = {"slice": 4, "pad": 9}[name]
        types = "(tensor<8x16xf32>, tensor<f32>)" if name == "pad" else "(tensor<8x16xf32>)"
        text = f"""sdy.mesh @mesh = <["a"=4]>
        func.func @main(%x: tensor<8x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"a"}}]>}})
            -> tensor<{size}x16xf32> {{
          %c = stablehlo.constant dense<0.0> : tensor<f32>
          %0 = stablehlo.{op} : {types} -> tensor<{size}x16xf32>
          return %0 : tensor<{size}x16xf32> }}"""
        ruled = propagation.run(text, "rules").as_text()
        assert propagation.run(ruled).result_shardings == propagation.run(text).result_shardings


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("i j -> i j, reduction={i}", "summed, so no result has it"),
        ("i j -> i j, reduction={k}", "names factor 'k', which no dimension has"),
        ("i j -> i j, k=4", "size names factor 'k'"),
        ("i i -> i j", "twice in one tensor"),
        ("i j -> i j, need_replication={i}, permutation={i}", "two kinds"),
        ("i j - i j", "write operands"),
        (3, "got int"),
        (None, "got NoneType"),
        (b"i -> i", "got bytes"),
    ],
)
def test_registration_validates_at_once(rule, said):
    with pytest.raises(BadRuleError, match=said):
        register_sharding_rule("of_test", rule)
    assert (
        propagation.run(CALL.replace("ATTRS", "")).missing()[0].reasons[0].startswith("the operation has no sharding")
    )


@pytest.mark.parametrize("target", [None, 3, ""])
def test_a_rule_is_for_a_name(target):
    with pytest.raises(BadRuleError, match="name of a custom call"):
        register_sharding_rule(target, "i -> i")


@pytest.mark.parametrize("stage", STAGES)
def test_functions_return_rules_or_text(registered, stage):
    expected = None
    for rule in ("i j -> i j", OpRule((8, 16), (((0,), (1,)),), (((0,), (1,)),), custom=True)):
        registered(lambda op, rule=rule: rule)
        text = propagation.run(CALL.replace("ATTRS", ""), stage).as_text()
        assert expected in (None, text)
        expected = text
    for wrong, said in (
        (3, "returned int"),
        ("i -> i", "has 1 dimensions in the rule"),
        (OpRule((8,), (((0,),),), (((0,),),)), "gives operand 0 1 dimensions, which has 2"),
        (OpRule((8, 16), (), (((0,), (1,)),)), "has 0 operands and 1 results"),
        (OpRule((9, 16), (((0,), (1,)),), (((0,), (1,)),)), "factor i the size 9"),
    ):
        registered(lambda op, wrong=wrong: wrong)
        with pytest.raises(BadRuleError, match=rf"f\.py:3: .*{said}"):
            propagation.run(CALL.replace("ATTRS", ""), stage)
