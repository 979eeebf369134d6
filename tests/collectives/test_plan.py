"""The plan: where collectives come from, and that it says what the program and the compiler's own text say."""

from __future__ import annotations

import re

import pytest

import collectives
import propagation

from . import harness

HEAD = 'sdy.mesh @mesh = <["a"=4, "b"=2]>\n'
X = "tensor<16x8xf32>"
ROWS, COLUMNS, NONE = '[{"a"}, {}]', '[{}, {"b"}]', "[{}, {}]"


def on(dims: str) -> str:
    return f"{{sdy.sharding = #sdy.sharding<@mesh, {dims}>}}"


def partition(argument: str, result: str, body: str, more: str = "", **options):
    lines = f"func.func @main(%x: {X} {on(argument)}) -> ({X} {on(result)}) {{\n{body}\n}}"
    return collectives.partition(propagation.run(f"{HEAD}{lines}\n{more}"), **options)


DOT = f"""  %t = stablehlo.transpose %x, dims = [1, 0] : ({X}) -> tensor<8x16xf32>
  %d = stablehlo.dot_general %t, %x, contracting_dims = [1] x [0] : (tensor<8x16xf32>, {X}) -> tensor<8x8xf32>
  %n = stablehlo.negate %d : tensor<8x8xf32>
  %e = stablehlo.exponential %n : tensor<8x8xf32>
  %r = stablehlo.dot_general %x, %e, contracting_dims = [1] x [0] : ({X}, tensor<8x8xf32>) -> {X}
  return %r : {X}"""
LOOP = f"""  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, {X}
   cond {{ %c = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %c : tensor<i1> }}
   do {{ %j = stablehlo.add %i, %one : tensor<i32>
        %k = sdy.sharding_constraint %v <@mesh, [{{}}, {{"b"}}]> : {X}
        %w = stablehlo.cosine %k : {X}
        stablehlo.return %j, %w : tensor<i32>, {X} }}
  return %r#1 : {X}"""
CONSTRAINT = f"""  %k = sdy.sharding_constraint %x <@mesh, [{{}}, {{"b"}}]> : {X}
  return %k : {X}"""
BIG = "\n".join(f"  %{i} = stablehlo.cosine %{i - 1 if i else 'y'} : {X}" for i in range(45))
CALLED = f"""func.func private @big(%y: {X} {on(ROWS)}) -> ({X} {on(ROWS)}) {{
{BIG}
  return %44 : {X}
}}"""
CALLS = f"""  %0 = func.call @big(%x) : ({X}) -> {X}
  %1 = func.call @big(%0) : ({X}) -> {X}
  return %1 : {X}"""
EDGES = ["in_shardings, operand 0", "result 0 of @main"]
MANUAL = f"""  %0 = sdy.manual_computation(%x)
    in_shardings=[<@mesh, [{{"a"}}, {{}}]>] out_shardings=[<@mesh, [{{"a"}}, {{}}]>]
    manual_axes={{"a"}} (%z: tensor<4x8xf32>) {{
      %1 = stablehlo.negate %z : tensor<4x8xf32>
      sdy.return %1 : tensor<4x8xf32> }} : ({X}) -> {X}
  return %0 : {X}"""


def causes(result) -> list[str]:
    return [re.sub(r"\d+ combined: ", "", m.cause) for e in result.plan for m in e.members or (e,)]


@pytest.mark.parametrize(
    "argument, result, body, more, wanted",
    [
        (ROWS, ROWS, DOT, "", ["stablehlo.dot_general: partial sum"]),
        (ROWS, NONE, f"return %x : {X}", "", ["func.return: result 0 of @main"]),
        (ROWS, COLUMNS, CONSTRAINT, "", ["sdy.reshard: annotation"]),
        (NONE, NONE, CALLS, CALLED, ["func.call: result 0 of @main"]),
        (COLUMNS, COLUMNS, MANUAL, "", [f"sdy.manual_computation: {w}" for w in EDGES]),
        (ROWS, ROWS, LOOP, "", ["stablehlo.while: result 0 of @main"]),
    ],
    ids=["sum", "result", "annotation", "call", "manual", "loop"],
)
def test_what_collectives_come_from(argument, result, body, more, wanted):
    """A sum is taken for the operation that left it, not for whoever wanted it first; and it costs what is compiled."""
    found = partition(argument, result, body, more)
    said = causes(found)
    assert sorted(set(said)) == wanted
    assert all(e.where and re.search(r":\d+$", e.where) for e in found.plan)
    assert all(e.seconds > 0 and e.groups * e.group_size >= 2 for e in found.plan)
    sent, counts = harness.hlo_bytes(harness.Compiled(found.as_text(), 8).hlo(), 8)
    assert sent == found.plan.bytes
    assert sum(counts.values()) == sum(found.plan.counts.values())
