"""What `meshrt inspect` takes: functions, methods, products of factories, functions of jax, files of GSPMD."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import meshrt
from meshrt.errors import InspectError, TargetError
from meshrt.inspect.guard import inspect_file
from meshrt.inspect.target import lower_target
from meshrt.inspect.written_arguments import WrittenArguments

ROOT = Path(__file__).resolve().parents[3]
STEP = """
import os
import inspect
import meshrt as jax
import meshrt.numpy as jnp
from meshrt import P
from .sizes import WIDTH

print("loading")
os.system("echo from below")


class Model:
    def __init__(self):
        self.scale = 2.0

    def step(self, x, *, w):
        return jnp.tanh(x @ w) * self.scale

    @staticmethod
    def half(x, w):
        return x @ w / 2


def plain(x, w):
    return x @ w


made = (lambda: jax.jit(lambda x, w: x @ w))()


def example_arguments(mesh):
    put = lambda shape, *spec: jax.ShapeDtypeStruct(shape, "float32", sharding=jax.NamedSharding(mesh, P(*spec)))
    return put((16, WIDTH), "data", "model"), put((WIDTH, 64), "model")


def named(mesh):
    x, w = example_arguments(mesh)
    return inspect.signature(Model().step).bind(x, w=w)


def bare(mesh):
    return jax.ShapeDtypeStruct((16, WIDTH), "float32"), jax.ShapeDtypeStruct((WIDTH, 64), "float32")
"""
OF_JAX = """
import functools
import jax
from jax.sharding import NamedSharding, PartitionSpec as P

step = jax.jit(lambda x, w: x @ w)


def plain(x, w):
    return jax.numpy.matmul(x, w)


def calls_back(x, w):
    jax.debug.print("{}", x[0, 0])
    return x @ w


class Model:
    @functools.partial(jax.jit, static_argnums=0)
    def step(self, x, w):
        return x @ w


def example_arguments(mesh):
    put = lambda shape, *spec: jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, P(*spec)))
    return put((16, 32), "data", "model"), put((32, 64), "model")
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package") / "things"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "sizes.py").write_text("WIDTH = 32\n")
    (folder / "steps.py").write_text(STEP)
    (folder.parent / "of_jax.py").write_text(OF_JAX)
    return folder


def inspect(*arguments):
    command = [sys.executable, "-m", "meshrt", "inspect", *map(str, arguments), "--mesh", "data=4,model=2", "--json"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize(
    "name", [["plain"], ["made"], ["Model.half"], ["Model.step", "--arguments", "named"]], ids=lambda words: words[0]
)
def test_functions_of_a_package(package, name):
    """A file with relative imports that prints while it is imported; what it prints is not in the report."""
    report, said = inspect(f"{package / 'steps.py'}:{name[0]}", *name[1:])
    assert [(c["kind"], c["axes"]) for c in report["collectives"]] == [("all_reduce", "model")]
    assert report["bytes"] == 16 // 4 * 64 * 4 and report["mesh"] == {"data": 4, "model": 2}
    assert "loading" in said and "from below" in said


def test_arguments_without_shardings_are_whole_on_the_mesh_that_was_asked_for(package):
    report, _ = inspect(f"{package / 'steps.py'}:plain", "--arguments", "bare")
    assert report["totals"]["devices"] == 8 and {a["sharding"] for a in report["arguments"]} == {"replicated"}


METHODS = """
import %(of)s as jax
import %(of)s.numpy as jnp


class Model:
    def __init__(self, w):
        self.w = w

    @jax.jit
    def step(self, x):
        return x @ self.w


@jax.tree_util.register_pytree_node_class
class Tree(Model):
    def tree_flatten(self):
        return (self.w,), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)


model, tree = (made(jnp.ones((8, 8))) for made in (Model, Tree))
"""


@pytest.mark.parametrize("of", ["meshrt", "jax"])
def test_jitted_methods_of_objects(of, tmp_path):
    """An object that the file makes is an argument of its jitted method if it is a pytree; calling it fails else."""
    path = tmp_path / "methods.py"
    path.write_text(METHODS % {"of": of})

    def lowered(name):
        return lower_target(path, name, {"data": 4}, WrittenArguments("f32[4@data,8]"))

    assert lowered("tree.step") is not None
    with pytest.raises(
        InspectError, match=r"model\.step is jitted, and its argument self is of Model, which is no pytree"
    ):
        lowered("model.step")
    with pytest.raises(InspectError, match=r"Tree\.step needs an object, .* argument: 'w'\); make one in the file"):
        lowered("Tree.step")


@pytest.mark.parametrize("name", ["plain", "Model.step"])
def test_functions_and_methods_that_use_jax(package, name):
    report, _ = inspect(f"{package.parent / 'of_jax.py'}:{name}")
    assert [(c["kind"], c["axes"]) for c in report["collectives"]] == [("all_reduce", "model")]


def test_a_function_of_jax_that_calls_python_back(package):
    """What jax lowers over devices only: their number is told to jax before it looks for any."""
    report, _ = inspect(f"{package.parent / 'of_jax.py'}:calls_back")
    assert report["mesh"] == {"data": 4, "model": 2}
    assert ("all_reduce", "model") in [(c["kind"], c["axes"]) for c in report["collectives"]]


def test_a_script_reads_a_command_line_of_its_own(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        "import argparse, sys\nimport meshrt.numpy as jnp\n\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--width', type=int, default=8)\nWIDTH = parser.parse_args().width\n\n"
        "def step(x):\n    return x * WIDTH\n\ndef leaves(x):\n    sys.exit(3)\n"
    )
    kept = list(sys.argv)
    lowered = lower_target(path, "step", {"data": 4}, WrittenArguments("f32[8@data]"))
    assert "tensor<8xf32>" in lowered.as_text() and sys.argv == kept
    with pytest.raises(TargetError, match=r"script.py:12: the file ends the program in leaves \(exit code 3\)"):
        lower_target(path, "leaves", {"data": 4}, WrittenArguments("f32[8@data]"))
    path.write_text(path.read_text().replace("default=8", "required=True"))
    with pytest.raises(TargetError, match=r"script.py:6: the file ends the program when it is imported"):
        lower_target(path, "step", {"data": 4}, WrittenArguments("f32[8@data]"))


def test_a_function_of_jax_whose_arguments_name_no_mesh(package):
    written = ["--args", "f32[16,32],f32[32,64]"]
    report, _ = inspect(f"{package.parent / 'of_jax.py'}:plain", *written, "--annotate", "x=data")
    assert report["totals"]["devices"] == 8 and report["collectives"] == []
    assert [a["sharding"] for a in report["arguments"]] == ["(data, -)", "replicated"]


def test_a_function_that_jax_jitted(package):
    path = package.parent / "of_jax.py"
    report, _ = inspect(f"{path}:step", "--explain", "arg0:0")
    assert [(c["kind"], c["axes"], c["where"]) for c in report["collectives"]] == [
        ("all_reduce", "model", f"{path}:{OF_JAX.splitlines().index('step = jax.jit(lambda x, w: x @ w)') + 1}")
    ]


def test_paths_below_the_working_directory_are_relative(package):
    command = [sys.executable, "-m", "meshrt", "inspect", "things/steps.py:plain", "--mesh", "data=4,model=2", "--json"]
    done = subprocess.run(
        [*command, "--program", "--explain", "result:0"], cwd=package.parent, check=True, capture_output=True, text=True
    )
    report = json.loads(done.stdout)
    (collective,) = report["collectives"]
    assert collective["where"].startswith("things/steps.py:") and "(things/steps.py:" in "".join(report["explanations"])
    assert [s["path"] for s in report["program"]["sources"]] == ["things/steps.py"]
    assert f"{package}/" not in done.stdout


def test_a_compiled_program_is_no_module(tmp_path):
    path = tmp_path / "step.bin"
    compiled = meshrt.jit(lambda x: x * 2).lower(meshrt.ShapeDtypeStruct((2,), "float32")).compile()
    compiled.save(path)
    with pytest.raises(TargetError, match="there is machine code only"):
        inspect_file(str(path))


GSPMD = """func.func @main(%x: tensor<8x16xf32> {mhlo.sharding = "{devices=[4,2]<=[8]}"}) -> tensor<8xf32> {
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [1]
    : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
  return %0 : tensor<8xf32> }"""


def test_a_file_with_annotations_of_gspmd_is_cited_by_its_path(tmp_path):
    path = tmp_path / "old.mlir"
    path.write_text(GSPMD)
    report = inspect_file(str(path), explain="result0:0")["report"]
    assert report["mesh"] == {"axis_0": 4, "axis_1": 2}
    assert [(c["kind"], c["where"]) for c in report["collectives"]] == [("all_reduce", f"{path}:3")]
    assert f"{path}:3" in report["explanations"][0] and "-:" not in "".join(report["explanations"])


def test_an_annotation_that_does_not_divide_is_a_finding(tmp_path):
    path = tmp_path / "six.mlir"
    path.write_text("""sdy.mesh @mesh = <["data"=4, "model"=2]>
func.func @main(%x: tensor<6x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>}) -> tensor<6x16xf32> {
  %0 = stablehlo.tanh %x : tensor<6x16xf32>
  return %0 : tensor<6x16xf32> }""")
    (finding,) = inspect_file(str(path))["report"]["findings"]
    assert finding["kind"] == "undivided_annotation" and finding["where"] == f"{path}:2"
    assert "dimension 0 of arg0 is annotated with data, but its size 6 does not divide by 4" in finding["message"]
    assert "split into 2; pad it to 8" in finding["message"] and finding["bytes"] == 6 * 16 * 4 / 2 * (1 / 2 - 1 / 4)


def test_a_process_that_may_take_less_than_the_tool_allows(tmp_path):
    """As under `ulimit -v`, and in batch systems."""
    text = "func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }"
    (tmp_path / "m.mlir").write_text(text)
    command = f"ulimit -v 4000000 -t 60; exec {sys.executable} -m meshrt inspect m.mlir"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert "no collectives" in done.stdout or "Arguments" in done.stdout
