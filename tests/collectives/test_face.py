"""The face of the package: what `partition` and `python -m collectives` take, refuse and say."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import collectives
import propagation
from collectives import errors
from collectives.__main__ import main
from collectives.topology import load
from propagation.errors import UnsupportedModuleError

MESH = 'sdy.mesh @mesh = <["a"=4, "b"=2]>\n'


def on(*dims: str) -> str:
    return f"{{sdy.sharding = #sdy.sharding<@mesh, [{', '.join(dims)}]>}}"


MLP = f"""{MESH}func.func @main(%x: tensor<8x16xf32> {on('{"a"}', "{}")}, %w: tensor<16x32xf32> {on("{}", '{"b"}')})
    -> tensor<8x32xf32> {{
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
       : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %1 = stablehlo.tanh %0 : tensor<8x32xf32>
  return %1 : tensor<8x32xf32>
}}"""


def custom(target: str, constrained: bool = False) -> str:
    keep = "%k = sdy.sharding_constraint %x <@mesh, [{}, {}]> : tensor<8x16xf32>"
    return f"""{MESH}func.func @main(%x: tensor<8x16xf32> {on('{"a"}', "{}")}) -> tensor<8x16xf32> {{
  {keep if constrained else ""}
  %0 = stablehlo.custom_call @{target}(%{"k" if constrained else "x"}) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}}"""


@pytest.mark.parametrize("what", [None, 3, [], object(), {}])
def test_what_is_no_program(what):
    with pytest.raises(errors.InputError, match="is no program") as found:
        collectives.partition(what)
    assert isinstance(found.value, TypeError)


@pytest.mark.parametrize("topology", [3, ["v5e"], b"v5e"])
def test_what_is_no_topology(topology):
    with pytest.raises(errors.TopologyError, match="is no topology"):
        collectives.partition(MLP, topology)


def test_options_that_do_not_exist():
    with pytest.raises(errors.OptionError, match="no option foo; known are allow_full_gather"):
        collectives.partition(MLP, foo=1)
    with pytest.raises(errors.OptionError, match="did you mean allow_full_gather"):
        collectives.partition(MLP, allow_full_gathers=False)
    with pytest.raises(errors.OptionError, match="gather_custom_calls"):
        collectives.partition(MLP, gather_custom_calls=1)
    with pytest.raises(errors.OptionError, match="option compiler is one of cpu, cuda, rocm, tpu, other, or None: ''"):
        collectives.partition(MLP, compiler="")
    with pytest.raises(errors.OptionError, match="did you mean cuda"):
        collectives.partition(MLP, compiler="cuda12")


def test_a_custom_call_that_nothing_is_known_of_takes_no_sharded_operand():
    program = propagation.run(custom("mystery"))
    with pytest.raises(errors.UnsupportedOpError, match=r"@mystery has no sharding rule.*f32\[8@a,16\].*register") as e:
        collectives.partition(program)
    assert e.value.where
    found = collectives.partition(propagation.run(custom("mystery")), gather_custom_calls=True)
    assert found.plan.counts == {"all_gather": 1} and [f.kind for f in found.findings] == ["full-gather"]
    with pytest.raises(errors.FullGatherError):
        collectives.partition(propagation.run(custom("mystery")), gather_custom_calls=True, allow_full_gather=False)
    said = collectives.partition(propagation.run(custom("mystery", constrained=True)))
    assert said.plan.counts == {"all_gather": 1} and not said.findings


@pytest.mark.parametrize("target", ["tpu_custom_call", "xla_ffi_python_cpu_callback"])
def test_kernels_and_callbacks_are_gathered_for(target):
    found = collectives.partition(propagation.run(custom(target)))
    assert [f.kind for f in found.findings] == ["full-gather"]


def test_a_module_through_which_nothing_was_propagated_says_so():
    (finding,) = collectives.partition(MLP).findings
    assert finding.kind == "unpropagated" and "stablehlo.dot_general has a sharded operand" in finding.message
    assert "python -m propagation closed" in str(finding)
    closed = propagation.run(MLP)
    assert not collectives.partition(closed).findings
    assert not collectives.partition(closed.as_text()).findings


def test_a_module_that_propagation_leaves_as_it_is_was_propagated():
    """The only operation's result is whole: nothing tells the module from one that was not propagated yet."""
    text = f"""{MESH}func.func @main(%x: tensor<8x16xf32> {on('{"a"}', "{}")}) -> tensor<16xf32> {{
      %z = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0]
           : (tensor<8x16xf32>, tensor<f32>) -> tensor<16xf32>
      return %0 : tensor<16xf32> }}"""
    assert not collectives.partition(propagation.run(text).as_text()).findings
    assert not collectives.partition(text).findings


def test_sizes_that_are_not_known():
    text = f"""{MESH}func.func @main(%x: tensor<?x16xf32> {on('{"a"}', "{}")}) -> tensor<?x16xf32> {{
      return %x : tensor<?x16xf32> }}"""
    with pytest.raises(UnsupportedModuleError, match=r"static shapes, found tensor<\?x16xf32>; refine"):
        collectives.partition(text)
    with pytest.raises(UnsupportedModuleError, match=r"static shapes, found tensor<\?x16xf32>; refine"):
        collectives.partition(propagation.run(text))


def test_a_gather_that_no_device_has_room_for():
    text = f"""{MESH}func.func @main(%x: tensor<4194304x16384xf32> {on('{"a"}', '{"b"}')})
        -> (tensor<4194304xf32> {on('{"a"}')}) {{
      %k = sdy.sharding_constraint %x <@mesh, [{{}}, {{}}]> : tensor<4194304x16384xf32>
      %s = stablehlo.custom_call @tpu_custom_call(%k) : (tensor<4194304x16384xf32>) -> tensor<4194304xf32>
      return %s : tensor<4194304xf32> }}"""
    program = propagation.run(text)
    with pytest.raises(errors.DeviceMemoryError, match=r"the all_gather for .* makes tensor<4194304x16384xf32>") as e:
        collectives.partition(program, memory=64 << 30)
    assert e.value.where and "has 64 GiB" in str(e.value)
    assert collectives.partition(propagation.run(text)).plan.counts == {"all_gather": 2}


def test_topology_files_that_say_nothing_or_speak_of_other_axes(tmp_path):
    empty, strange = tmp_path / "t.toml", tmp_path / "s.toml"
    empty.write_text("")
    strange.write_text("[axes.zzz]\nbandwidth = 1e9\n")
    for what in (str(empty), f"{empty}:4x2"):
        with pytest.raises(errors.TopologyError, match="says nothing"):
            load(what)
    with pytest.raises(errors.TopologyError, match="axis 'zzz', the mesh has a, b"):
        collectives.partition(propagation.run(MLP), str(strange))


@pytest.fixture
def closed(tmp_path):
    path = tmp_path / "closed.mlir"
    path.write_text(propagation.run(MLP).as_text())
    return str(path)


def test_options_stand_before_and_after_the_file(closed, capsys):
    for words in (["--plan", closed], [closed, "--plan"], ["--no-combine", closed, "--plan"]):
        assert main(words) == 0
        assert "0 B sent per device" in capsys.readouterr().out


def test_a_plan_as_json(closed, capsys):
    assert main(["--plan", "--json", closed]) == 0
    both = json.loads(capsys.readouterr().out)
    assert main(["--json", closed]) == 0
    assert json.loads(capsys.readouterr().out) == both and set(both) >= {"bytes", "collectives", "findings"}


def test_json_has_axes_apart(capsys, tmp_path):
    path = tmp_path / "x.mlir"
    path.write_text(propagation.run(custom("tpu_custom_call")).as_text())
    assert main([str(path), "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["collectives"]
    assert (entry["axes"], entry["mesh_axes"]) == ("a", [["a", 1, 4]])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_cannot_be_written(closed):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "collectives", closed], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2 and done.stderr.startswith("standard output: No space left")
    assert len(done.stderr.splitlines()) == 1


def test_the_help_explains_each_option(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "option " not in told and "whether collectives whose operands no iteration changes leave their loops" in told
