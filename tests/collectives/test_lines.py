"""The plan names the user's lines, whether a module comes from a file or through a pipe."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULE = """sdy.mesh @mesh = <["a"=4, "b"=2]>
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>},
                %w: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}) -> tensor<8x16xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
       : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
"""


def _run(*words: str, given: str = "") -> str:
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("stage", ["closed", "pipeline"])
def test_a_plan_names_the_lines_of_the_file(tmp_path, stage):
    path = tmp_path / "hand.mlir"
    path.write_text(MODULE)
    propagated = _run("propagation", stage, str(path))
    rows = _run("collectives", "--plan", given=propagated).splitlines()[1:-1]
    assert rows and all(f"{path}:4" in row for row in rows)
    bare = tmp_path / "bare.mlir"
    bare.write_text(_run("propagation", stage, str(path), "--no-locations"))
    rows = _run("collectives", str(bare), "--plan").splitlines()[1:-1]
    assert rows and all(f"{bare}:4" in row or f"{bare}:5" in row for row in rows)
