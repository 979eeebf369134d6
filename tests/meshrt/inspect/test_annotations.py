"""Shardings of arguments by patterns, from files and options."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from meshrt.errors import InspectError
from meshrt.inspect.annotations import annotation_of, argument_axes, matches, read_annotations
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


def test_names_with_brackets_and_many_stars():
    assert matches("params/w[0]", "params/w[0]") and matches("params/w[01]", "params/w0")
    assert not matches("params/w[0]", "params/w[1]")
    assert matches("**", "a/b") and matches("**/b", "b") and matches("a/**/**", "a") and not matches("a/**/c", "a/b")
    path, pattern = "/".join("ab" * 40), "/".join(["**", "a"] * 20)  # ends in b
    assert not matches(pattern, path) and matches(pattern + "/b", path)


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


def lowered(sizes: tuple[int, ...], names: tuple[str, ...]) -> str:
    """What jax lowers for this mesh; `data` and `model` are named."""
    import jax
    import jax.numpy as jnp

    mesh = jax.sharding.AbstractMesh(sizes, names, axis_types=(jax.sharding.AxisType.Auto,) * len(sizes))
    at = lambda *spec: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
    array = lambda shape, *spec: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=at(*spec))

    def f(w, x):
        h = jax.lax.with_sharding_constraint(jnp.tanh(x @ w), at("data", None))
        return (h @ w.T).sum(0)

    traced = jax.jit(f).trace(array((64, 32), None, "model"), array((16, 64), "data"))
    return traced.lower(lowering_platforms=("cpu",)).as_text()


@pytest.mark.parametrize(
    "sizes, names", [((8, 1), ("data", "model")), ((2, 4), ("model", "data")), ((2, 2, 2), ("data", "model", "pipe"))]
)
def test_a_file_over_a_mesh_is_looked_at_over_another_with_its_axes(sizes, names, tmp_path) -> None:
    """As if it had been lowered for that mesh."""
    reports = []
    path = tmp_path / "m.mlir"
    for text, mesh in (
        (lowered((2, 4), ("data", "model")), dict(zip(names, sizes))),
        (lowered(sizes, names), None),
    ):
        path.write_text(text)
        reports.append(inspect_file(str(path), mesh=mesh)["report"])
    for key in ("mesh", "arguments", "results", "collectives"):
        assert reports[0][key] == reports[1][key]


@pytest.mark.parametrize(
    "text, mesh, message",
    [
        ("plain", "model=8", "model=8 has no axis data"),
        ("manual", "data=8,model=1", "computes on parts of arrays as its own mesh data=2,model=4 cuts them"),
    ],
)
def test_meshes_that_a_file_cannot_have(text, mesh, message, tmp_path) -> None:
    module = lowered((2, 4), ("data", "model"))
    if text == "manual":
        module = """module { sdy.mesh @m = <["data"=2, "model"=4]>
          func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
            %0 = sdy.manual_computation(%x) in_shardings=[<@m, [{"data"}]>] out_shardings=[<@m, [{"data"}]>]
              manual_axes={"data"} (%a: tensor<4xf32>) { sdy.return %a : tensor<4xf32> }
              : (tensor<8xf32>) -> tensor<8xf32>
            return %0 : tensor<8xf32> } }"""
    (tmp_path / "m.mlir").write_text(module)
    done = run("inspect", str(tmp_path / "m.mlir"), "--mesh", mesh)
    assert (done.returncode, done.stdout) == (2, "") and message in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "budget, message", [("2x", "'2x' is no time"), ("-1s", "'-1s' is no time"), ("", "'' is no time")]
)
def test_times_that_are_none(budget, message) -> None:
    done = run("suggest", "m.mlir", "--mesh", "x=2", "--topology", "v5e:1x2", f"--budget={budget}")
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_a_time_with_its_unit_and_no_file_without_a_layout(tmp_path) -> None:
    (tmp_path / "m.mlir").write_text(lowered((2, 4), ("data", "model")))
    out = tmp_path / "layout.toml"
    for mesh, code in (("data=4,model=2", 0), ("rows=8", 1)):
        out.unlink(missing_ok=True)
        how = ("--mesh", mesh, "--topology", "v5e:2x4", "--budget", "1s", "-o", str(out))
        done = run("suggest", str(tmp_path / "m.mlir"), *how)
        assert (done.returncode, out.exists()) == (code, not code), done.stderr
