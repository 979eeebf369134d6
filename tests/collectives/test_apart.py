"""Branches and loops of manual computations that some devices run and others do not: nothing inside may wait for those.

Programs are judged by NumPy; what hangs would run into the tests' time limit.
"""

from __future__ import annotations

import numpy as np
import pytest

import collectives
from collectives.analysis import divergence
from collectives.ir.program import ModuleBuilder
from collectives.layout import Atoms
from collectives.reshard.realise import Realiser
from propagation.model import Mesh
from propagation.program import read

from . import harness

TYPE = "tensor<4x8xf32>"
REVERSE = """%e = sdy.sharding_constraint %a <@mesh, [{}, {"y"}]> : tensor<4x8xf32>
      %v = stablehlo.reverse %e, dims = [1] : tensor<4x8xf32>"""
# Rows and columns over the same axis: exchanged by a permute, or by exact pieces where they are 2 x 2.
SWAP = """%e = sdy.sharding_constraint %a <@mesh, [{"y":(1)2}, {"y":(2)2}]> : tensor<4x8xf32>
      %f = stablehlo.optimization_barrier
        {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y":(1)2}, {"y":(2)2}]>]>} %e : tensor<4x8xf32>
      %g = sdy.sharding_constraint %f <@mesh, [{"y":(2)2}, {"y":(1)2}]> : tensor<4x8xf32>
      %v = stablehlo.negate %g : tensor<4x8xf32>"""


def manual(body: str) -> str:
    xy = 'sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>'
    return f"""sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%x: tensor<8x8xf32> {{{xy}}}) -> (tensor<8x8xf32> {{{xy}}}) {{
  %m = sdy.manual_computation(%x) in_shardings=[<@mesh, [{{"x"}}, {{}}]>] out_shardings=[<@mesh, [{{"x"}}, {{}}]>]
      manual_axes={{"x"}} (%a: {TYPE}) {{
    {body}
    sdy.return %r : {TYPE}
  }} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %m : tensor<8x8xf32>
}}"""


def branch(predicate: str, first: str = REVERSE) -> str:
    return manual(f"""{predicate}
    %r = "stablehlo.case"(%i) ({{
      {first}
      stablehlo.return %v : {TYPE}
    }}, {{
      %s = stablehlo.abs %a : {TYPE}
      stablehlo.return %s : {TYPE}
    }}) : (tensor<i32>) -> {TYPE}""")


def device(op: str, number: int) -> str:
    """An index that is made of the device's number."""
    return f"""%id = stablehlo.partition_id : tensor<ui32>
    %n = stablehlo.constant dense<{number}> : tensor<ui32>
    %d = stablehlo.{op} %id, %n : tensor<ui32>
    %i = stablehlo.convert %d : (tensor<ui32>) -> tensor<i32>"""


SUM = f"""%z = stablehlo.constant dense<0.0> : tensor<f32>
    %q = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0, 1]
      : ({TYPE}, tensor<f32>) -> tensor<f32>"""
# The first branch where this device's rows sum to more than nothing.
DATA = f"""{SUM}
    %c = stablehlo.compare LT, %q, %z : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %i = stablehlo.convert %c : (tensor<i1>) -> tensor<i32>"""
# The same for the rows of both, which all devices know.
AGREED = f"""{SUM}
    %p = "stablehlo.all_reduce"(%q) <{{replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>}}> ({{
      ^bb0(%u: tensor<f32>, %w: tensor<f32>):
      %t = stablehlo.add %u, %w : tensor<f32>
      stablehlo.return %t : tensor<f32> }}) : (tensor<f32>) -> tensor<f32>
    %c = stablehlo.compare LT, %p, %z : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %i = stablehlo.convert %c : (tensor<i1>) -> tensor<i32>"""

X = np.arange(64, dtype=np.float32).reshape(8, 8) - 24


def run(text: str):
    result = collectives.partition(text)
    (got,), _ = harness.run_partitioned(result, [X], [X.shape])
    return got, result.plan.counts


@pytest.mark.parametrize("first", [REVERSE, SWAP], ids=["reverse", "swap"])
@pytest.mark.parametrize("predicate", [device("divide", 4), DATA, AGREED], ids=["device", "data", "agreed"])
def test_what_only_some_devices_run_stays_within_groups_that_agree(predicate, first):
    got, counts = run(branch(predicate, first))
    parts = [X[:4], X[4:]]
    sums = [p.sum() for p in parts]
    picks = {DATA: [s >= 0 for s in sums], AGREED: [sum(sums) >= 0] * 2}.get(predicate, [True, False])
    one = (lambda p: p[:, ::-1]) if first is REVERSE else np.negative
    want = np.concatenate([one(p) if pick else np.abs(p) for p, pick in zip(parts, picks)])
    np.testing.assert_array_equal(got, want)
    if first is SWAP or predicate is not AGREED:
        assert ("collective_permute" in counts) is (predicate is AGREED)


@pytest.mark.parametrize("op, number", [("remainder", 4), ("divide", 2), ("remainder", 3)])
def test_what_members_of_a_group_would_never_reach_is_refused(op, number):
    with pytest.raises(collectives.errors.UnsupportedOpError, match="in a branch or loop"):
        collectives.partition(branch(device(op, number)))


def test_a_constant_decides_for_all():
    got, counts = run(branch("%i = stablehlo.constant dense<0> : tensor<i32>", SWAP))
    np.testing.assert_array_equal(got, -X)
    assert "collective_permute" in counts


def test_loops_that_devices_leave_at_different_times():
    """Each half of the rows is doubled and reversed until its largest element is large enough."""
    body = f"""%low = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %limit = stablehlo.constant dense<300.0> : tensor<f32>
    %r = stablehlo.while(%b = %a) : {TYPE}
     cond {{
      %q = stablehlo.reduce(%b init: %low) applies stablehlo.maximum across dimensions = [0, 1]
        : ({TYPE}, tensor<f32>) -> tensor<f32>
      %c = stablehlo.compare LT, %q, %limit : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }} do {{
      %e = sdy.sharding_constraint %b <@mesh, [{{}}, {{"y"}}]> : {TYPE}
      %v = stablehlo.reverse %e, dims = [1] : {TYPE}
      %w = stablehlo.add %v, %v : {TYPE}
      stablehlo.return %w : {TYPE}
    }}"""
    got, counts = run(manual(body))
    want = []
    for part in (X[:4], X[4:]):
        while part.max() < 300:
            part = 2 * part[:, ::-1]
        want.append(part)
    np.testing.assert_array_equal(got, np.concatenate(want))
    assert "collective_permute" not in counts


def test_permutes_stay_among_devices_that_hold_parts_of_one_tensor():
    """Axis "a" is in no layout: along it, devices of a manual computation hold different tensors."""
    mesh = Mesh("m", (("p", 3), ("a", 2), ("q", 3)))
    atoms = Atoms(mesh)
    (p, a, q) = (atoms.of_axis(mesh.axis(n)) for n in "paq")
    pairs = Realiser(atoms, ModuleBuilder("m", "")).pairs((p,), (q,), ())
    along = atoms.coordinate(a)
    assert (along[pairs[:, 0]] == along[pairs[:, 1]]).all()
    assert (atoms.coordinate(p)[pairs[:, 0]] == atoms.coordinate(q)[pairs[:, 1]]).all()
    assert sorted(pairs[:, 0].tolist()) == sorted(pairs[:, 1].tolist()) == list(range(18))


@pytest.mark.parametrize(
    ("steps", "digits"),
    [
        ("remainder 6, remainder 2", (1, 2)),
        ("divide 2, remainder 3", (2, 6)),
        ("remainder 3, remainder 2", None),  # of 3 and of 4: they share the digit, not the remainder
        ("test, remainder 2", None),
    ],
)
def test_digits_of_a_device_are_known_only_while_they_are_digits(steps, digits):
    text, last = "%0 = stablehlo.partition_id : tensor<ui32>\n", "%0"
    for i, step in enumerate(steps.split(", "), 1):
        name, *by = step.split()
        if not by:
            text += f"%t = stablehlo.convert {last} : (tensor<ui32>) -> tensor<i1>\n"
            text += f"%{i} = stablehlo.convert %t : (tensor<i1>) -> tensor<ui32>\n"
        else:
            text += f"%c{i} = stablehlo.constant dense<{by[0]}> : tensor<ui32>\n"
            text += f"%{i} = stablehlo.{name} {last}, %c{i} : tensor<ui32>\n"
        last = f"%{i}"
    program = read(f"func.func @main() -> tensor<ui32> {{\n{text}return {last} : tensor<ui32>\n}}")
    assert divergence._digits(program.main.returned[0]) == digits


PERMUTE = f"""%v = "stablehlo.collective_permute"(%a) <{{source_target_pairs = dense<PAIRS> : tensor<COUNTx2xi64>}}>
        : ({TYPE}) -> {TYPE}"""


def permute(pairs) -> str:
    return PERMUTE.replace("PAIRS", str(pairs)).replace("COUNT", str(len(pairs)))


def both(body: str) -> str:
    """A manual computation over both axes: each device has four rows and two columns."""
    text = manual(body).replace('manual_axes={"x"}', 'manual_axes={"x", "y"}').replace("4x8xf32", "4x2xf32")
    return text.replace('shardings=[<@mesh, [{"x"}, {}]>]', 'shardings=[<@mesh, [{"x"}, {"y"}]>]')


def rows_where_first(predicate: str, first: str) -> str:
    """`branch` for `both`."""
    inside = branch(predicate, first)
    return both(inside[inside.index("(%a: ") :].split("{\n", 1)[1].rsplit("sdy.return", 1)[0])


def test_permutes_of_branches_that_others_skip():
    """Columns go round among the devices of the first rows; those of the others are not waited for."""
    ring = [[i, (i + 1) % 4] for i in range(4)] + [[4 + i, 4 + (i + 1) % 4] for i in range(4)]
    got, counts = run(rows_where_first(device("divide", 4), permute(ring)))
    np.testing.assert_array_equal(got, np.concatenate([np.roll(X[:4], 2, 1), np.abs(X[4:])]))
    assert set(counts) == {"all_gather"}


@pytest.mark.parametrize("pairs", [[[0, 0], [2, 2], [5, 5]], [[i, i] for i in range(8)]])
def test_permutes_to_oneself_wait_for_nobody(pairs):
    got, counts = run(rows_where_first(device("remainder", 3), permute(pairs)))
    kept = {target for _, target in pairs}
    want = np.abs(X)
    for i in (0, 3, 6):
        at = (slice(i // 4 * 4, i // 4 * 4 + 4), slice(i % 4 * 2, i % 4 * 2 + 2))
        want[at] = X[at] if i in kept else 0
    assert not counts
    # Indices beyond the last branch take the last.
    np.testing.assert_array_equal(got, want)


def test_what_a_function_returns_varies_with_the_operands_of_that_call():
    """@half is called with a number that tells columns first, with one that tells rows then."""
    body = f"""%id = stablehlo.partition_id : tensor<ui32>
    %n = stablehlo.constant dense<4> : tensor<ui32>
    %columns = stablehlo.remainder %id, %n : tensor<ui32>
    %rows = stablehlo.divide %id, %n : tensor<ui32>
    %c = func.call @half(%columns) : (tensor<ui32>) -> tensor<i32>
    %i = func.call @half(%rows) : (tensor<ui32>) -> tensor<i32>
    %w = stablehlo.convert %c : (tensor<i32>) -> tensor<f32>
    %b = stablehlo.broadcast_in_dim %w, dims = [] : (tensor<f32>) -> {TYPE}"""
    ring = [[i, (i + 1) % 4] for i in range(4)] + [[4 + i, 4 + (i + 1) % 4] for i in range(4)]
    text = rows_where_first(body, permute(ring)).replace("stablehlo.abs %a", "stablehlo.add %a, %b")
    text += """
func.func private @half(%n: tensor<ui32>) -> tensor<i32> {
  %two = stablehlo.constant dense<2> : tensor<i32>
  %m = stablehlo.convert %n : (tensor<ui32>) -> tensor<i32>
  %h = stablehlo.remainder %m, %two : tensor<i32>
  return %h : tensor<i32>
}"""
    got, counts = run(text)
    want = np.concatenate([np.roll(X[:4], 2, 1), X[4:] + np.arange(8) // 2 % 2])
    np.testing.assert_array_equal(got, want)
    assert set(counts) == {"all_gather"}
