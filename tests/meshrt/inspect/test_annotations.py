"""Shardings of arguments by patterns, from files and options."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from meshrt.errors import InspectError
from meshrt.inspect.annotations import annotation_of, argument_axes, read_annotations
from meshrt.inspect.guard import inspect_file

NAMES = ("state['params'][0].w", "state['params'][1].w", "x")
SHAPES = ((16, 32), (16, 32), (8, 16))
MODULE = """
func.func @main(%x: tensor<16x32xf32> loc("x"), %w: tensor<32x64xf32> loc("params['w']")) -> tensor<16x64xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<16x32xf32>, tensor<32x64xf32>) -> tensor<16x64xf32>
  return %0 : tensor<16x64xf32>
}
"""
SCRIPT = """
import meshrt, meshrt.numpy as jnp

step = meshrt.jit(lambda params, x: jnp.tanh(x @ params["w"]))


def example_arguments(mesh):
    return {"w": meshrt.ShapeDtypeStruct((32, 64), "float32")}, meshrt.ShapeDtypeStruct((16, 32), "float32")
"""


def axes_of(text: str, tmp_path: Path, mesh=None):
    path = tmp_path / "a.toml"
    path.write_text(text)
    return argument_axes(read_annotations(path), NAMES, SHAPES, {"data": 4, "model": 2} if mesh is None else mesh)


def test_the_last_pattern_that_fits_counts(tmp_path) -> None:
    text = """
    [annotations]
    "state/**" = ["data"]
    "state/params/1/*" = ["", ["model", "data"]]
    """
    assert axes_of(text, tmp_path) == [(("data",), ()), ((), ("model", "data")), None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[annotations]\n'state/params/*' = ['data']", "fits no argument; there are"),
        ("[annotations]\nx = ['data', '', '']", r"x of shape \[8, 16\] has 3 dimensions|has 3 dimensions"),
        ("[annotations]\nx = ['rows']", "names axis 'rows'; the mesh has data, model"),
        ("[annotations]\nx = ['data', 'data']", "names an axis twice"),
        ("[annotations]\nx = [['data', 'model'], '']\n'state/**' = ['', ['data', 'model', 'data']]", "twice"),
        ("[annotations]\nx = 'data'", "is a list of axes"),
        ("[annotations]\nx = [1]", "is a list of axes"),
        ("annotation = 1", "unknown key 'annotation'"),
        ("mesh = 3", "mesh is a text"),
        ("[annotations", "a.toml"),
    ],
)
def test_refusals(text, message, tmp_path) -> None:
    with pytest.raises(InspectError, match=message):
        axes_of(text, tmp_path)


def test_sizes_that_do_not_divide(tmp_path) -> None:
    with pytest.raises(InspectError, match=r"size 8 does not divide by 3 \(data\)"):
        axes_of("[annotations]\nx = ['data']", tmp_path, {"data": 3})


@pytest.mark.parametrize("text", ["w1", "=model"])
def test_texts_that_are_no_annotations(text) -> None:
    with pytest.raises(InspectError, match="expected a pattern and axes"):
        annotation_of(text)


def test_a_file_without_a_mesh_gets_one(tmp_path) -> None:
    path = tmp_path / "m.mlir"
    path.write_text(MODULE)
    given = annotation_of("x=data").and_(annotation_of("params/w=,model"))
    report = inspect_file(str(path), mesh={"data": 4, "model": 2}, annotations=given)["report"]
    assert report["mesh"] == {"data": 4, "model": 2}
    assert {r["name"]: r["sharding"] for r in report["arguments"]} == {"x": "(data, -)", "params['w']": "(-, model)"}
    assert [r["sharding"] for r in report["results"]] == ["(data, model)"]
    with pytest.raises(InspectError, match="fits no argument"):
        inspect_file(str(path), mesh={"data": 4}, annotations=annotation_of("y=data"))


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "meshrt", *args], capture_output=True, text=True, check=False)


def test_a_function_is_annotated_from_a_file(tmp_path) -> None:
    (tmp_path / "s.py").write_text(SCRIPT)
    (tmp_path / "a.toml").write_text(
        'mesh = "data=4,model=2"\n[annotations]\nx = ["data"]\n"params/**" = ["", "model"]\n'
    )
    target = f"{tmp_path / 's.py'}:step"
    done = run("inspect", target, "--annotations", str(tmp_path / "a.toml"), "--annotate", "x=", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {r["name"]: r["sharding"] for r in report["arguments"]} == {"params['w']": "(-, model)", "x": "replicated"}
    assert [r["sharding"] for r in report["results"]] == ["(-, model)"]
    done = run("inspect", target, "--mesh", "data=8", "--annotate", "x=rows")
    assert done.returncode == 2 and "names axis 'rows'" in done.stderr and "Traceback" not in done.stderr
