"""What stopped axes, who competed for them, and what values are called."""

from __future__ import annotations

import pytest

import propagation
from propagation import errors
from propagation.fuzz import module

TWO = """sdy.mesh @mesh = <["a"=4, "b"=2]>
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>},
                %w: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"b"}, {}]>}) -> tensor<8x16xf32> {
  %0 = stablehlo.add %x, %w : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}"""
UNEVEN = """sdy.mesh @mesh = <["a"=4, "b"=2]>
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}) -> tensor<3x16xf32> {
  %0 = stablehlo.slice %x [0:3, 0:16] : (tensor<8x16xf32>) -> tensor<3x16xf32>
  return %0 : tensor<3x16xf32>
}"""
SAME_AXIS = """sdy.mesh @mesh = <["a"=4, "b"=2]>
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>},
                %w: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"a"}]>}) -> tensor<8x16xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
       : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}"""


@pytest.mark.parametrize("stage", ["basic", "closed", "pipeline"])
def test_operands_that_disagree_are_named_with_their_annotations(stage):
    (found,) = propagation.run(TWO, stage).missing()
    assert (found.value.op.name, found.dim, found.other_dim) == ("stablehlo.add", 0, 0)
    (reason,) = found.reasons
    assert "operand 0" in reason and "'a', from the annotation of" in reason and "(-:2)" in reason
    assert "operand 1" in reason and "'b', from the annotation of" in reason and "(-:3)" in reason


def test_results_that_the_boundary_makes_whole_are_missing():
    result = propagation.run(UNEVEN)
    (found,) = result.missing()
    assert (found.result, found.dim) == (0, 0)
    assert "size 3 does not divide by 4, the size of axis 'a'" in str(found)
    assert result.explain("result[0]:0") == []
    assert len(result.explain("%0:0")) == 1


def test_operands_that_stay_whole_are_missing_backward():
    text = TWO.replace('[{"b"}, {}]', "[{}, {}]")
    (found,) = propagation.run(text).missing()
    assert found.value.is_argument and found.value.number == 1
    assert "operand 1" in str(found) and "the dimension is closed by its annotation (-:3)" in str(found)


def test_the_holder_of_an_axis_is_named():
    (found,) = propagation.run(SAME_AXIS).missing()
    assert "result 0" in str(found) and "did not take axis 'a' on dimension 0" in str(found)
    assert "dimension 1 is split over 'a', from the annotation of <%1 tensor<16x16xf32>, argument 1> (-:3)" in str(
        found
    )
    result = propagation.run(SAME_AXIS)
    (chain,) = result.explain("result[0]:1")
    assert "there result 0" in str(chain[0]) and str(found.reasons[0]) in str(chain[0])


@pytest.mark.parametrize("stage", ["closed", "basic"])
def test_nothing_that_stayed_whole_is_left_out(stage):
    """Judged anew from the operations' rules: a whole dimension beside a split one of the same factor is listed."""
    checked = 0
    for seed in range(60):
        try:
            result = propagation.run(module(seed), stage, chlo=False)
        except errors.UnsupportedModuleError:
            continue
        listed = {(result.log.slot_of(m.value), m.dim) for m in result.log.missing() if _decided(result, m.value)}
        for op, values, slots, shardings, rule, *_ in result.log.last_visits:
            if rule is None or any(s is not None and s.mesh.is_maximal for s in shardings):
                continue
            sides = (*rule.operands, *rule.results)
            split = {
                (f, slots[t]) for t, s in enumerate(shardings) for d, fs in enumerate(sides[t]) for f in fs
                if len(fs) == 1 and s is not None and s.dims[d].axes
            }  # fmt: skip
            for t, value in enumerate(values):
                for d, fs in enumerate(sides[t]):
                    whole = shardings[t] is None or not shardings[t].dims[d].axes
                    if whole and _decided(result, value) and any(f in fs and s != slots[t] for f, s in split):
                        assert (slots[t], d) in listed, (seed, op, t, d)
                        checked += 1
    assert checked > 20


def _decided(result, value) -> bool:
    return value.index < len(result.log._slot)


def test_addresses():
    result = propagation.run(SAME_AXIS)
    main = result.program.main
    for text, value, d in (
        ("arg[0]", main.args[0], 0),
        ("arg0", main.args[0], 0),
        ("result[0]", main.returned[0], 1),
        ("%0", main.returned[0], 1),
    ):
        assert result.explain(f"{text}:{d}") == result.explain(text, d) == result.explain(value, d) != []
    assert result.explain("-:4:1") == result.explain(main.returned[0], 1)
    assert result.explain("arg[1]") == result.explain(main.args[1])
    for wrong in ("nonsense", "arg[5]:0", "result[0]:9", "%0:x", 7, None, "x:0"):
        with pytest.raises(errors.BadOptionError):
            result.explain(wrong)
    for wrong in (-1, "0", 1.5, True):
        with pytest.raises(errors.BadOptionError, match="a dimension is a number"):
            result.explain(main.args[0], wrong)


def test_the_log_iterates_and_prints():
    log = propagation.run(SAME_AXIS).log
    assert list(log) == log.events and len(log) == len(log.events) == len(str(log).splitlines()) > 0
    assert "stablehlo.dot_general (-:4) [round " in str(log)


EDGES = """sdy.mesh @mesh = <["a"=2, "b"=4]>
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>},
                %y: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"b"}, {}]>},
                %i: tensor<i1>, %n: tensor<i32>) -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  REST
  return %0 : tensor<8x16xf32>
}
func.func private @f(%p: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.tanh %p {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>} : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}"""
LOOPS = {
    "stablehlo.while": """%0 = stablehlo.while(%p = %x) : tensor<8x16xf32>
      cond { stablehlo.return %i : tensor<i1> }
      do { stablehlo.return %y : tensor<8x16xf32> }""",
    "stablehlo.case": """%0 = "stablehlo.case"(%n) ({ stablehlo.return %x : tensor<8x16xf32> },
      { stablehlo.return %y : tensor<8x16xf32> }) : (tensor<i32>) -> tensor<8x16xf32>""",
    "stablehlo.optimization_barrier": """%0 = stablehlo.optimization_barrier
      {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>} %x : tensor<8x16xf32>""",
    "sdy.manual_computation": """%0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{}, {}]>]
      out_shardings=[<@mesh, [{}, {}]>] manual_axes={"b"} (%p: tensor<8x16xf32>) {
        sdy.return %p : tensor<8x16xf32> } : (tensor<8x16xf32>) -> tensor<8x16xf32>""",
    "func.call": """%0 = func.call @f(%x) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>}
      : (tensor<8x16xf32>) -> tensor<8x16xf32>""",
}


@pytest.mark.parametrize("dedup", [False, True])
@pytest.mark.parametrize("name", LOOPS)
def test_values_of_loops_branches_and_computations_are_listed(name, dedup):
    text = EDGES.replace("REST", LOOPS[name])
    if name in ("stablehlo.while", "stablehlo.case"):
        text = text.replace("{sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})", "{})")
    result = propagation.run(text, dedup_functions_fully=dedup)
    found = [m for m in result.missing() if m.dim == 0 and m.result is None]
    assert found, name
    reasons = " ".join(r for m in found for r in m.reasons)
    if name in ("stablehlo.while", "stablehlo.case"):
        (only,) = found
        assert only.op.name == name and only.value is only.op.results[0] and "neither gives way" in reasons
        assert "(-:2)" in reasons and "(-:3)" in reasons
    else:
        assert "the dimension is closed by its annotation" in reasons
    assert "data_flow_edge" not in " ".join(map(str, found))
