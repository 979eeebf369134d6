"""The partitioner's face: text, plan, findings, donation, errors, command line, size of the output."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import collectives
import propagation
from collectives import errors
from collectives.topology import load

from . import harness

MLP = """
sdy.mesh @mesh = <["x"={n}]>
func.func public @main(%x: tensor<{n}x4xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}},
    %w: tensor<4x{n}xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>, tf.aliasing_output = 1 : i32}},
    %v: tensor<{n}x4xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>, jax.buffer_donor = true}})
    -> (tensor<{n}x4xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}},
        tensor<4x{n}xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}}) {{
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{}}, {{"x"}}]>]>}}
    : (tensor<{n}x4xf32>, tensor<4x{n}xf32>) -> tensor<{n}x{n}xf32> loc("model.py":7:3)
  %y = stablehlo.dot_general %h, %v, contracting_dims = [1] x [0]
    {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{}}, {{}}]>]>}}
    : (tensor<{n}x{n}xf32>, tensor<{n}x4xf32>) -> tensor<{n}x4xf32> loc("model.py":8:3)
  %u = stablehlo.add %w, %w {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{}}, {{"x"}}]>]>}}
    : tensor<4x{n}xf32>
  return %y, %u : tensor<{n}x4xf32>, tensor<4x{n}xf32>
}}
"""


@pytest.mark.smoke
def test_plan_names_kind_axes_bytes_and_line():
    result = collectives.partition(MLP.format(n=8))
    (entry,) = result.plan
    assert (entry.kind, entry.axes, entry.groups, entry.group_size) == ("all_reduce", "x", 1, 8)
    assert entry.bytes == result.plan.bytes == 2 * 7 / 8 * 8 * 4 * 4
    assert (entry.where, entry.times) == ("model.py:8", 1)
    assert entry.seconds > 0
    assert "all_reduce" in result.plan.as_text() and "model.py:8" in result.plan.as_text()
    plan = "<CommunicationPlan: 1 all_reduce, 224 B per device>"
    assert repr(result) == f"<PartitionedProgram over x=8: {plan}, 0 findings>"


def test_locations_and_donation_survive():
    result = collectives.partition(MLP.format(n=8))
    text = result.as_text()
    assert '"model.py":7:3' in text and '"model.py":8:3' in text
    head = next(line for line in text.splitlines() if "func.func" in line)
    assert "tf.aliasing_output = 1 : i32" in head and "jax.buffer_donor = true" in head
    assert result.module.operation.verify()
    assert result.fingerprint == collectives.partition(MLP.format(n=8)).fingerprint


def test_donation_is_kept_as_an_offer_when_local_shapes_differ():
    text = MLP.format(n=8).replace("tf.aliasing_output = 1", "tf.aliasing_output = 0")
    head = next(line for line in collectives.partition(text).as_text().splitlines() if "func.func" in line)
    assert "tf.aliasing_output" not in head and head.count("jax.buffer_donor") == 2


@pytest.mark.parametrize("n", [8, 64, 4096])
def test_the_program_does_not_grow_with_the_mesh(n):
    result = collectives.partition(MLP.format(n=n))
    program = [line for line in result.as_text().splitlines() if not line.startswith("#groups")]
    assert len(program) == len([x for x in collectives.partition(MLP.format(n=8)).as_text().splitlines()
                                if not x.startswith("#groups")])  # fmt: skip
    assert result.module.operation.verify()


def test_a_constant_of_one_element_takes_no_memory_whatever_its_shape():
    text = """
    sdy.mesh @mesh = <["x"=8]>
    func.func @main(%x: tensor<16777216x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
        -> tensor<16777216x4096xf32> {
      %c = stablehlo.constant dense<2.5> : tensor<16777216x4096xf32>
      %0 = stablehlo.multiply %c, %x : tensor<16777216x4096xf32>
      return %0 : tensor<16777216x4096xf32>
    }"""
    tracemalloc.start()
    try:
        made = collectives.partition(propagation.run(text))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "dense<2.500000e+00> : tensor<2097152x4096xf32>" in made.as_text() and most < 1 << 25


def test_results_are_pieces():
    result = collectives.partition(MLP.format(n=8))
    rng = np.random.default_rng(0)
    x, w, v = (rng.standard_normal(s).astype(np.float32) for s in ((8, 4), (4, 8), (8, 4)))
    (y, u), _ = harness.run_partitioned(result, [x, w, v], [(8, 4), (4, 8)])
    np.testing.assert_allclose(y, x @ w @ v, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(u, w + w)


SORT = """
sdy.mesh @mesh = <["x"=8]>
func.func @main(%x: tensor<64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
    -> (tensor<64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
  %0 = "stablehlo.sort"(%x) <{dimension = 0 : i64}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>} : (tensor<64xf32>) -> tensor<64xf32> loc("s.py":3:1)
  return %0 : tensor<64xf32>
}
"""


def test_what_cannot_stay_sharded_is_a_finding_or_an_error():
    (finding,) = collectives.partition(SORT).findings
    assert (finding.kind, finding.where, finding.bytes) == ("full-gather", "s.py:3", 7 / 8 * 256)
    assert "f32[64@x]" in str(finding)
    with pytest.raises(errors.FullGatherError, match=r"s\.py:3: stablehlo\.sort: f32\[64@x\].*allow_full_gather"):
        collectives.partition(SORT, allow_full_gather=False)


ONE = """
sdy.mesh @mesh = <["x"=8]>
func.func @main(%x: {type} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}]>}}) -> {type} {{
  {body}
}}
"""


def test_unknown_operation():
    body = '%0 = "stablehlo.rng"(%x) {a} : (tensor<8xf32>) -> tensor<8xf32> loc("u.py":5:1)\n return %0 : tensor<8xf32>'
    body = body.replace('"stablehlo.rng"', '"mystery.op"')
    with pytest.raises(errors.UnsupportedOpError, match=r"u\.py:5: mystery\.op .*config\.update\(") as e:
        collectives.partition(ONE.format(type="tensor<8xf32>", body=body))
    assert isinstance(e.value, NotImplementedError)


def test_indivisible_boundary():
    wanted = (
        r"argument 0 of @main is f32\[9@x\]: dimension 0 has size 9, which x \(8 devices\) does not divide; make it 16"
    )
    with pytest.raises(errors.UnsupportedShardingError, match=wanted):
        collectives.partition(ONE.format(type="tensor<9xf32>", body="return %x : tensor<9xf32>"))


def test_two_meshes():
    other = 'sdy.mesh @other = <["y"=2]>\n'
    kept = collectives.partition(other + ONE.format(type="tensor<8xf32>", body="return %x : tensor<8xf32>"))
    assert kept.mesh.axes == (("x", 8),)  # nothing is over the other one
    body = '%0 = stablehlo.negate %x {sdy.sharding = #sdy.sharding_per_value<[<@other, [{"y"}]>]>} : tensor<8xf32>\n'
    text = other + ONE.format(type="tensor<8xf32>", body=body + "return %0 : tensor<8xf32>")
    with pytest.raises(
        errors.MeshMismatchError, match=r"different shapes .*@other .* of a result of stablehlo\.negate"
    ):
        collectives.partition(text)


def test_program_without_a_mesh_runs_on_one_device():
    result = collectives.partition("func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }")
    assert result.mesh.size == 1 and len(result.plan) == 0


def run_cli(*args, text):
    return subprocess.run(
        [sys.executable, "-m", "collectives", *args], input=text, capture_output=True, text=True, check=False
    )


def test_command_line(tmp_path):
    done = run_cli("--json", text=SORT)
    data = json.loads(done.stdout)
    assert done.returncode == 0 and data["bytes"] == 224 and data["collectives"][0]["kind"] == "all_gather"
    assert data["findings"][0]["where"] == "s.py:3"
    path = tmp_path / "m.mlir"
    path.write_text(SORT)
    assert "1 all_gather" in run_cli(str(path), "--plan", text="").stdout
    bad = run_cli("-", text="module { nonsense")
    assert bad.returncode == 2 and len(bad.stderr.strip().splitlines()) == 1


def test_topology_file(tmp_path):
    path = tmp_path / "t.toml"
    path.write_text('name = "two"\nflops = 1e14\n[default]\nlatency = 2e-6\n[axes.x]\nbandwidth = 1e9\n')
    topology = load(path)
    assert topology.link(["x"]).bandwidth == 1e9 and topology.link(["y"]).latency == 2e-6
    (slow,) = collectives.partition(MLP.format(n=8), topology).plan
    (fast,) = collectives.partition(MLP.format(n=8)).plan
    assert slow.seconds > fast.seconds
    path.write_text("speed = 3")
    with pytest.raises(errors.TopologyError, match="unknown keys speed"):
        load(path)
