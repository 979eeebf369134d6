"""`dedup_functions_fully`: a function stays one for all its calls, as with this option of Shardy's pipeline."""

from __future__ import annotations

import pytest

import propagation
from propagation import errors
from propagation.functions import callee_of
from propagation.fuzz import Oracle, compare, generate
from propagation.fuzz.sweep import sweep

from .test_explain import _replay

TYPE = "tensor<8x16xf32>"


def _module(calls: str, callee: str = "stablehlo.sine %p", more: str = "") -> str:
    """Two arguments split differently, what `calls` do with them, and a function that they call."""
    return f"""sdy.mesh @mesh = <["a"=2, "b"=4]>
func.func public @main(%x: {TYPE} {{sdy.sharding = #sdy.sharding<@mesh, [{{"a"}}, {{?}}]>}},
                       %y: {TYPE} {{sdy.sharding = #sdy.sharding<@mesh, [{{?}}, {{"b"}}]>}}, %i: tensor<i32>)
    -> {TYPE} {{
  {calls}
}}
func.func private @f(%p: {TYPE}) -> {TYPE} {{
  %0 = {callee} : {TYPE}
  return %0 : {TYPE}
}}
{more}"""


def _call(name: str, operand: str, callee: str = "f", note: str = "") -> str:
    return f"{name} = func.call @{callee}({operand}){note} : ({TYPE}) -> {TYPE}"


TWICE = _module(f"{_call('%0', '%x')}\n{_call('%1', '%y')}\n%2 = stablehlo.add %0, %1 : {TYPE}\nreturn %2 : {TYPE}")
WANTS = ' {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"b"}, {}]>]>}'
CASES = {
    "two calls": TWICE,
    "calls that want other results": _module(
        f"{_call('%0', '%x')}\n{_call('%1', '%0', note=WANTS)}\nreturn %1 : {TYPE}", "stablehlo.negate %p"
    ),
    "calls in branches are behind those around them": _module(
        f"""%0 = "stablehlo.case"(%i) ({{ {_call("%a", "%x")}
           stablehlo.return %a : {TYPE} }}, {{ {_call("%b", "%y")}
           stablehlo.return %b : {TYPE} }}) : (tensor<i32>) -> {TYPE}
        {_call("%1", "%y", note=WANTS)}
        %2 = stablehlo.add %0, %1 : {TYPE}
        return %2 : {TYPE}"""
    ),
    "callers in other functions": _module(
        f"{_call('%0', '%x', 'g')}\n{_call('%1', '%y', 'h')}\n%2 = stablehlo.add %0, %1 : {TYPE}\nreturn %2 : {TYPE}",
        more="\n".join(
            f"func.func private @{n}(%p: {TYPE}) -> {TYPE} {{\n{_call('%0', '%p')}\nreturn %0 : {TYPE} }}" for n in "gh"
        ),
    ),
    "a constant argument": _module(
        f"%c = stablehlo.constant dense<1.0> : {TYPE}\n{_call('%0', '%c')}\n{_call('%1', '%c')}\n"
        f"%2 = stablehlo.add %0, %x : {TYPE}\n%3 = stablehlo.add %1, %2 : {TYPE}\nreturn %3 : {TYPE}"
    ),
}


@pytest.mark.smoke
@pytest.mark.parametrize("stage", ["import", "propagated", "closed", "pipeline"])
def test_against_the_real_passes(stage):
    with Oracle() as oracle:
        for name, text in CASES.items():
            found = compare(text, oracle(f"dedup-{stage}", text), stage, dedup_functions_fully=True)
            assert found.verdict == "agree", (name, found)


def test_random_modules():
    tally = sweep(range(40000, 40100), dedup_functions_fully=True)
    assert not tally.failures, tally.failures[0]
    assert tally.features["call"][0] > 30 and tally.features["repeated call"][0] >= 3


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["import", "propagated", "closed", "pipeline"])
def test_more_random_modules(stage):
    tally = sweep(range(41000, 42000), stage, dedup_functions_fully=True)
    assert not tally.failures, tally.failures[0]


def test_a_function_has_one_meaning():
    """By default calls with other shardings get functions of their own; with the option they share one."""
    text = _module(
        f"{_call('%0', '%x')}\n{_call('%1', '%y')}\n%2 = sdy.propagation_barrier %1 allowed_direction=NONE : {TYPE}\n"
        f"%3 = stablehlo.add %0, %2 : {TYPE}\nreturn %3 : {TYPE}"
    )
    assert len(propagation.run(text).program.funcs) == 3
    shared = propagation.run(text, dedup_functions_fully=True)
    assert len(shared.program.funcs) == 2
    (f,) = {callee_of(op) for op in shared.program.ops() if op.name == "func.call"}
    (argument,) = shared.program.funcs[f].args
    assert shared.sharding(argument).to_text() == '#sdy.sharding<@mesh, [{"a"}, {"b"}]>'


def test_explanations_are_replayed():
    assert sum(_replay(propagation.run(text, dedup_functions_fully=True)) for text in CASES.values()) > 20
    checked = 0
    for seed in range(40000, 40030):
        try:
            checked += _replay(propagation.run(generate(seed)[0], dedup_functions_fully=True))
        except errors.UnsupportedModuleError:
            continue
    assert checked > 300


MANUAL = _module(
    f"""%0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{{"a", ?}}, {{?}}]>]
      out_shardings=[<@mesh, [{{"a", ?}}, {{?}}]>] manual_axes={{"a"}} (%p: tensor<4x16xf32>) {{
      %q = func.call @g(%p) : (tensor<4x16xf32>) -> tensor<4x16xf32>
      sdy.return %q : tensor<4x16xf32>
    }} : ({TYPE}) -> {TYPE}
    %1 = stablehlo.slice %x [0:4, 0:16] : ({TYPE}) -> tensor<4x16xf32>
    %2 = sdy.sharding_constraint %1 <@mesh, [{{"b"}}, {{"a"}}]> : tensor<4x16xf32>
    %3 = func.call @g(%2) : (tensor<4x16xf32>) -> tensor<4x16xf32>
    %4 = stablehlo.concatenate %3, %3, dim = 0 : (tensor<4x16xf32>, tensor<4x16xf32>) -> {TYPE}
    %5 = stablehlo.add %0, %4 : {TYPE}
    return %5 : {TYPE}""",
    more="""func.func private @g(%p: tensor<4x16xf32>) -> tensor<4x16xf32> {
      %0 = stablehlo.sine %p : tensor<4x16xf32>
      return %0 : tensor<4x16xf32> }""",
)


def test_axes_stay_out_of_where_they_are_manual():
    """The C++ passes carry an axis from one call into a manual computation around another, and are refused then."""
    with Oracle() as oracle:
        assert "already bound" in oracle("dedup-propagated", MANUAL)
    decided = propagation.run(MANUAL, dedup_functions_fully=True)
    decided.module.operation.verify()
    (g,) = [f for f in decided.program.funcs.values() if f.name.startswith("g")]
    assert decided.sharding(g.args[0]).to_text() == '#sdy.sharding<@mesh, [{"b"}, {}]>'
    with pytest.raises(errors.UnsupportedModuleError, match="inside a manual computation"):
        propagation.run(MANUAL, dedup_functions_fully=True, shardy_faults=True)


def test_the_filter_has_it(capsys, tmp_path):
    from propagation.__main__ import main

    file = tmp_path / "f.mlir"
    file.write_text(TWICE)
    assert main([str(file), "--dedup-functions-fully"]) == 0
    assert capsys.readouterr().out.count("func.func private") == 1
    with pytest.raises(errors.BadOptionError):
        propagation.run(TWICE, dedup_functions_fully=1)
