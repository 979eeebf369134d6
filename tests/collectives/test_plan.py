"""The plan: where collectives come from, and that it says what the program and the compiler's own text say."""

from __future__ import annotations

import re

import pytest

import collectives
import propagation
from collectives.findings import human, human_time
from collectives.plan.communication import CommunicationPlan, Origin, PlanEntry

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


TRIPS = f"""  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end = stablehlo.constant dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, {X}
   cond {{ %c = stablehlo.compare LT, %i, LIMIT : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %c : tensor<i1> }}
   do {{ %j = stablehlo.add %i, %one : tensor<i32>
        %t = stablehlo.transpose %v, dims = [1, 0] : ({X}) -> tensor<8x16xf32>
        %d = stablehlo.dot_general %t, %v, contracting_dims = [1] x [0] : (tensor<8x16xf32>, {X}) -> tensor<8x8xf32>
        %e = stablehlo.cosine %d : tensor<8x8xf32>
        %w = stablehlo.dot_general %v, %e, contracting_dims = [1] x [0] : ({X}, tensor<8x8xf32>) -> {X}
        stablehlo.return %j, %w : tensor<i32>, {X} }}
  return %r#1 : {X}"""


@pytest.mark.parametrize("limit, times", [("%end", 3), ("%j0", None)])
def test_collectives_in_loops_count_as_often_as_these_run(limit, times):
    body = TRIPS.replace("LIMIT", limit)
    if times is None:  # a number that depends on the data
        body = f"""  %f = stablehlo.reduce(%x init: %m) applies stablehlo.maximum across dimensions = [0, 1]
             : ({X}, tensor<f32>) -> tensor<f32>
  %j0 = stablehlo.convert %f : (tensor<f32>) -> tensor<i32>
{body}"""
        body = f"  %m = stablehlo.constant dense<0.0> : tensor<f32>\n{body}"
    plan = partition(ROWS, ROWS, body, reorder=False).plan  # else the rows are gathered once
    (entry,) = [e for e in plan if e.bytes > 100]  # the sum of products, 8x8 elements
    once = [e for e in plan if e is not entry]
    assert entry.times == times and all(e.times == 1 for e in once)
    runs = times or 1
    assert plan.bytes == runs * entry.bytes + sum(e.bytes for e in once)
    assert plan.seconds == pytest.approx(runs * entry.seconds + sum(e.seconds for e in once))
    assert plan.counts["all_reduce"] == runs + len(once)
    row = next(line for line in plan.as_text().splitlines() if "x4  " in line and entry.cause in line)
    assert ("?" if times is None else "3") in row.split()


def test_the_table_of_a_plan():
    entry = PlanEntry("all_gather", "a", 2, 4, 2048.0, 3, "f.py:7", "add: operand 0", 1e-3)
    bare = PlanEntry("all_reduce", "", 1, 8, 10.0, None, None, "2 combined", 2e-6, (Origin("g.py:1", "dot", 6.0),
                     Origin(None, "sum", 4.0)))  # fmt: skip
    plan = CommunicationPlan((entry, bare), 6154.0)
    rows = [re.split(r" {2,}", line.strip()) for line in plan.as_text().splitlines()]
    assert rows == [
        ["kind", "axes", "groups", "bytes", "time", "times", "source", "cause"],
        ["all_gather", "a", "2x4", "2 KiB", "1 ms", "3", "f.py:7", "add: operand 0"],
        ["all_reduce", "-", "1x8", "10 B", "2 us", "?", "-", "2 combined"],
        ["for", "6 B", "g.py:1", "dot"],
        ["for", "4 B", "-", "sum"],
        ["3 all_gather, 1 all_reduce; 6.01 KiB sent per device, 3 ms"],
    ]
    assert plan.seconds == pytest.approx(3.002e-3) and plan.counts == {"all_gather": 3, "all_reduce": 1}
    assert len(plan) == 2 and list(plan) == [entry, bare]
    shown = CommunicationPlan((entry,), 2048.0, 5e-7).as_text().splitlines()[-1]
    assert shown == "3 all_gather; 2 KiB sent per device, 3 ms, 500 ns of it not hidden behind computing"
    assert CommunicationPlan((), 0.0).as_text().splitlines()[-1] == "no collectives; 0 B sent per device, 0 us"


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2**20 - 1024, "1023 KiB"), (2**20, "1 MiB"),
     (5 * 2**30, "5 GiB"), (2**42, "4096 GiB")],
)  # fmt: skip
def test_sizes_for_people(n, text):
    assert human(n) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 us"), (1.25e-6, "1.25 us"), (9.99e-4, "999 us"), (1e-3, "1 ms"), (0.25, "250 ms"), (1.0, "1 s"),
     (90.0, "90 s")],
)  # fmt: skip
def test_times_for_people(seconds, text):
    assert human_time(seconds) == text


BRANCHES = f"""  %one = stablehlo.constant dense<0.0> : tensor<f32>
  %f = stablehlo.reduce(%x init: %one) applies stablehlo.maximum across dimensions = [0, 1]
    : ({X}, tensor<f32>) -> tensor<f32>
  %p = stablehlo.compare GT, %f, %one : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %r = "stablehlo.if"(%p) ({{
    %t = stablehlo.transpose %x, dims = [1, 0] : ({X}) -> tensor<8x16xf32>
    %d = stablehlo.dot_general %t, %x, contracting_dims = [1] x [0] : (tensor<8x16xf32>, {X}) -> tensor<8x8xf32>
    %e = stablehlo.cosine %d : tensor<8x8xf32>
    %w = stablehlo.dot_general %x, %e, contracting_dims = [1] x [0] : ({X}, tensor<8x8xf32>) -> {X}
    stablehlo.return %w : {X} }}, {{
    %s = stablehlo.reduce(%x init: %one) applies stablehlo.add across dimensions = [0]
      : ({X}, tensor<f32>) -> tensor<8xf32>
    %b = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<8xf32>) -> {X}
    stablehlo.return %b : {X} }}) : (tensor<i1>) -> {X}
  return %r : {X}"""


def test_of_branches_the_one_counts_for_which_most_is_sent():
    found = partition(ROWS, ROWS, BRANCHES)
    product, total = sorted((e.bytes for e in found.plan if e.bytes > 20), reverse=True)
    once = sum(e.bytes for e in found.plan if e.bytes <= 20)
    assert (found.plan.bytes, found.plan.least_bytes) == (once + product, once + total)
    assert " to " in found.plan.sent_text() and found.plan.sent_text() in found.plan.as_text()
    assert harness.hlo_bytes(harness.Compiled(found.as_text(), 8).hlo(), 8)[0] == found.plan.bytes


@pytest.mark.parametrize(("back", "sent"), [("[[7, 0]]", 64), ("[[6, 0]]", 128)])
def test_permutes_of_the_program_count_for_those_that_send(back, sent):
    """All but the last device send onward, then one sends back: twice as much only if that one has sent before."""
    onward = [[i, i + 1] for i in range(7)]
    types = "(tensor<2x8xf32>) -> tensor<2x8xf32>"
    layout = '[{"a", "b"}, {}]'
    body = f"""  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, {layout}>] out_shardings=[<@mesh, {layout}>]
      manual_axes={{"a", "b"}} (%z: tensor<2x8xf32>) {{
      %1 = "stablehlo.collective_permute"(%z) {{source_target_pairs = dense<{onward}> : tensor<7x2xi64>}} : {types}
      %2 = "stablehlo.collective_permute"(%1) {{source_target_pairs = dense<{back}> : tensor<1x2xi64>}} : {types}
      sdy.return %2 : tensor<2x8xf32> }} : ({X}) -> {X}
  return %0 : {X}"""
    found = partition(layout, layout, body)
    last = ("a,b", 1, 8) if back == "[[7, 0]]" else ("a", 2, 4)
    assert [(e.axes, e.groups, e.group_size) for e in found.plan] == [("a,b", 1, 8), last]
    assert [e.bytes for e in found.plan] == [64, 64] and found.plan.bytes == found.plan.least_bytes == sent
    assert harness.hlo_bytes(harness.Compiled(found.as_text(), 8).hlo(), 8)[0] == sent


@pytest.mark.parametrize(
    ("pairs", "across"),
    [([[7, 0]], ("a,b", 1, 8)), ([[i, i // 4 * 4 + (i + 1) % 4] for i in range(8)], ("a:(2)2,b", 2, 4))],
)
def test_the_plan_and_the_timing_predict_one_time_for_a_permute(pairs, across):
    layout = '[{"a", "b"}, {}]'
    body = f"""  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, {layout}>] out_shardings=[<@mesh, {layout}>]
      manual_axes={{"a", "b"}} (%z: tensor<2x8xf32>) {{
      %1 = "stablehlo.collective_permute"(%z) {{source_target_pairs = dense<{pairs}> : tensor<{len(pairs)}x2xi64>}}
         : (tensor<2x8xf32>) -> tensor<2x8xf32>
      sdy.return %1 : tensor<2x8xf32> }} : ({X}) -> {X}
  return %0 : {X}"""
    slow = collectives.Link(latency=1e-3)
    found = partition(layout, layout, body, topology=collectives.Topology(axes={"a": slow, "b": slow}))
    (entry,) = found.plan
    assert (entry.axes, entry.groups, entry.group_size) == across
    assert entry.seconds == found.timing.sending > 1e-3
