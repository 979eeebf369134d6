"""`meshrt plan --compile`: what the hardware's own compiler says, beside the estimates."""

import importlib.util

import pytest

from meshrt.autoshard.compiled import CompilerFigures, compiled_figures
from meshrt.autoshard.plan import plan_meshes
from meshrt.autoshard.render import render_plan
from meshrt.autoshard.target import TargetProgram
from meshrt.errors import InspectError
from meshrt.inspect.render import console

needs_tpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
MODULE = """func.func @main(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
       : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %0 : tensor<64x64xf32> }"""
SCRIPT = """
import meshrt
import meshrt.numpy as jnp

def example_arguments(mesh):
    split = meshrt.NamedSharding(mesh, meshrt.P("data"))
    return meshrt.ShapeDtypeStruct((64, 256), "float32", sharding=split), meshrt.ShapeDtypeStruct((256, 256), "float32")

def step(x, w):
    return jnp.tanh(x @ w).sum(0)
"""


def test_the_compiler_decides_what_fits(capsys) -> None:
    says = {2: CompilerFigures(1e6, 1e-3), 4: CompilerFigures(1e4), 8: CompilerFigures(0.0, why="it does not like it")}
    meshes = [({"x": n}, f"h100:{n}") for n in says]
    plan = plan_meshes(
        "m", lambda mesh: TargetProgram("m", MODULE), meshes, memory=1e5, compiled=lambda mesh, on: says[mesh["x"]]
    )
    assert {row.devices: row.fits for row in plan.rows} == {2: False, 4: True, 8: False}
    assert {row.devices: row.compiled for row in plan.rows} == says
    render_plan(plan, console())
    shown = capsys.readouterr().out
    assert "compiled: memory" in shown and "refused" in shown and "it does not like it" in shown and "1 ms" in shown
    assert plan.as_json()["rows"][0]["compiled"]["peak"] == 1e4


def test_what_cannot_be_compiled_is_told_in_a_line(tmp_path, monkeypatch) -> None:
    path = tmp_path / "s.py"
    path.write_text(SCRIPT)
    ask = lambda target, on: compiled_figures(target, {"data": 4}, on, "example_arguments")
    with pytest.raises(InspectError, match=r"--compile takes FILE.py:FUNCTION"):
        ask("m.mlir", "v5e:2x2")
    with pytest.raises(InspectError, match="cpu:4 has no compiler of hardware that is elsewhere"):
        ask(f"{path}:step", "cpu:4")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "libtpu" else found(name, *a))
    with pytest.raises(InspectError, match=r"needs the TPU compiler, .*pip install"):
        ask(f"{path}:step", "v5e:2x2")


@needs_tpu
@pytest.mark.slow
def test_the_compiler_of_tpus_is_asked(tmp_path) -> None:
    path = tmp_path / "s.py"
    path.write_text(SCRIPT)
    made = compiled_figures(f"{path}:step", {"data": 4}, "v5e:2x2", "example_arguments")
    assert made.why is None and made.peak > 256 * 256 * 4 and made.seconds is not None and made.seconds > 0
