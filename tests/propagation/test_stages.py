"""Each stage gives the text that the real passes give, not only the same shardings."""

from __future__ import annotations

import re

import pytest

import propagation
from propagation.fuzz import generator, oracle
from propagation.fuzz.compare import VERSION

from . import rule_cases

RULE = re.compile(r"sdy\.sharding_rule = #sdy\.op_sharding_rule<[^>]*->[^>]*>(, )?")


def normal(text: str) -> str:
    """Without the rules that the passes keep on operations."""
    return RULE.sub("", text).replace(" {}", "").replace(", }", "}").strip()


def check(stage: str, jobs: list[str], normalise) -> int:
    compared = 0
    for text, expected in zip(jobs, oracle.run_batch([(stage, text) for text in jobs])):
        # Meshes written inside an attribute become symbols when we read a module, in Shardy when it is imported.
        if expected is None or expected.startswith("ERROR") or "mesh<[" in expected:
            continue
        ours = propagation.run(text, stage, version=VERSION, chlo=False, shardy_faults=True).as_text()
        assert normalise(ours) == normalise(expected)
        compared += 1
    return compared


@pytest.mark.smoke
@pytest.mark.parametrize("stage", ["import", "propagated", "closed", "user_priority", "aggressive"])
def test_random_modules(stage):
    assert check(stage, [generator.module(s) for s in range(100, 130)], normal) > 20


def test_rules_are_written():
    assert check("rules", rule_cases.all_cases(), str.strip) > 280


def test_an_operation_keeps_the_rule_it_has():
    text = rule_cases.single(
        "stablehlo.tanh",
        ["tensor<8x4xf32>"],
        ["tensor<8x4xf32>"],
        "sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, k]) {i=8, j=4, k=4}, custom>",
    )
    op = propagation.run(text, "rules").program.main.body.ops[0]
    assert "custom" in str(op.attrs["sdy.sharding_rule"])


def test_collectives_follow_when_equal_meshes_are_joined():
    if VERSION != "0.12":
        pytest.skip("replica groups name no mesh before 0.12")
    text = """
    sdy.mesh @first = <["a"=2]>
    sdy.mesh @second = <["a"=2]>
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = "stablehlo.all_reduce"(%x) <{replica_groups = #stablehlo.replica_group_mesh_axes<
             mesh = @second, axes = [#stablehlo.axis_ref<name = "a">]>}> ({
        ^bb0(%p: tensor<f32>, %q: tensor<f32>):
          %s = stablehlo.add %p, %q : tensor<f32>
          stablehlo.return %s : tensor<f32> }) : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32> }"""
    assert "mesh = @first" in propagation.run(text).as_text()


def test_parts_of_an_axis_with_one_of_size_one_between_them_are_one():
    """Shardy's own pass forgets the axis alone, and its verifier refuses what is left."""
    text = """sdy.mesh @mesh = <["a"=2, "b"=1, "c"=6]>
      func.func @main(%x: tensor<24x12xf32>) -> tensor<24x12xf32> {
        %0 = sdy.sharding_constraint %x <@mesh, [{"a"}, {AXES}]> : tensor<24x12xf32>
        %1 = stablehlo.tanh %0 : tensor<24x12xf32>
        return %1 : tensor<24x12xf32> }"""
    apart = propagation.run(text.replace("AXES", '"c":(1)2, "b", "c":(2)3')).as_text()  # MLIR verifies it
    assert apart == propagation.run(text.replace("AXES", '"c"')).as_text()
