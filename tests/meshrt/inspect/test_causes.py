"""What changed between two programs, and because of what."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from meshrt.errors import InspectError
from meshrt.inspect.changes import Comparison
from meshrt.inspect.child import answer
from meshrt.inspect.compared_programs import Side, is_report, side_of
from meshrt.inspect.comparing import compare_sides
from meshrt.inspect.guard import Limits

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import meshrt as jax, meshrt.numpy as jnp
from meshrt.sharding import NamedSharding, PartitionSpec as P

def example_arguments(mesh):
    held = lambda shape, *spec: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))
    return held((ROWS, 64), "data"), held((64, 128)WEIGHTS), held((128, 64))

def step(x, w, v):
    h = jnp.tanh(x @ w)
    CONSTRAINT
    return h @ v
"""
BASE = {"ROWS": "64", "WEIGHTS": "", "CONSTRAINT": "pass"}


def script(folder, **changes):
    text = SCRIPT
    for name, value in {**BASE, **changes}.items():
        text = text.replace(name, value)
    folder.mkdir(exist_ok=True)
    path = folder / "step.py"
    path.write_text(text)
    return f"{path}:step"


def compared(before, after, meshes=("data=4", "data=4")):
    """The comparison of two scripts, made in this process."""
    sides = [side_of(t, mesh, "example_arguments", None, Limits()) for t, mesh in zip((before, after), meshes)]
    options = {"sides": [side.as_options() for side in sides], "topology": None}
    return Comparison.from_json(answer(options, sides[0].module + sides[1].module)["comparison"])


@pytest.mark.parametrize(
    "changes, because",
    [
        ({"WEIGHTS": ', None, "data"'}, 'w is annotated P(None, "data"), was annotated P()'),
        (
            {"CONSTRAINT": "h = jax.lax.with_sharding_constraint(h, P(None, 'data'))"},
            'the constraint P(None, "data") (step.py:11) is new',
        ),
        ({"CONSTRAINT": "h = jnp.sort(h, 0)"}, "sort (step.py:11) is new"),
    ],
    ids=["annotation", "constraint", "operation"],
)
def test_each_change_has_its_cause_in_both_directions(tmp_path, changes, because):
    before, after = script(tmp_path / "before"), script(tmp_path / "after", **changes)
    found = compared(before, after)
    assert found.collectives and not found.is_equal
    reasons = {text.replace(f"{tmp_path}/after/", "") for c in found.collectives for text in c.because}
    assert reasons == {because}
    back = compared(after, before)
    assert [c.bytes for c in back.collectives] == [c.bytes[::-1] for c in found.collectives]
    assert all(c.because for c in back.collectives)


def test_meshes_and_sizes(tmp_path):
    sorting = {"CONSTRAINT": "h = jnp.sort(h, 0)"}
    program = script(tmp_path / "a", **sorting)
    found = compared(program, program, ("data=8", "data=4"))
    assert {t for c in found.collectives for t in c.because} == {"mesh axis 'data' is 4, was 8"}
    larger = compared(program, script(tmp_path / "b", ROWS="128", **sorting))
    assert "takes f32[128,128], took f32[64,128]" in "".join(t for c in larger.collectives for t in c.because)
    assert compared(program, program).is_equal


MODULE = """sdy.mesh @mesh = <["data"=4]>
func.func @main(%x: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>},
                %w: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> tensor<64x64xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
       : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %0 : tensor<64x64xf32> }"""


TRAINED = """
import meshrt as jax, meshrt.numpy as jnp
from meshrt.sharding import NamedSharding, PartitionSpec as P

def example_arguments(mesh):
    held = lambda shape, *spec: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))
    return held((64, 64), None, "data"), held((512, 64), "data")

def step(w, x):
    def loss(w, x):
        h = jnp.tanh(x @ w)
        pass
        return (h * h).mean()
    return jax.grad(loss)(w, x)
"""


def test_a_constraint_is_one_cause_for_values_and_their_gradients(tmp_path):
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(TRAINED)
    after.write_text(TRAINED.replace("pass", "h = jax.lax.with_sharding_constraint(h, P(None, 'data'))"))
    found = compared(f"{before}:step", f"{after}:step")
    assert [c.kind for c in found.collectives].count("all_to_all") == 2  # of the value, and of its gradient
    for change in found.collectives:
        (text,) = change.because
        assert text.startswith('the constraint P(None, "data")') and text.endswith("is new")


def test_what_shrinks_has_a_cause_in_files_of_other_names(tmp_path):
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(TRAINED)
    after.write_text(TRAINED.replace("float32", "bfloat16"))
    found = compared(f"{before}:step", f"{after}:step")
    assert found.collectives and all(c.growth < 0 for c in found.collectives)
    assert all("takes bf16" in text and "took f32" in text for c in found.collectives for text in c.because)
    assert all(c.because for c in found.collectives)


def test_modules_and_what_is_none():
    changed = MODULE.replace('[{"data"}, {}]', '[{}, {"data"}]')
    found = compare_sides(Side("a", MODULE.encode()), Side("b", changed.encode()), None, Limits())
    (change,) = found.collectives
    assert change.because == ('arg0 is annotated P(None, "data"), was annotated P("data")',)
    assert Comparison.from_json(json.loads(json.dumps(asdict(found)))) == found
    with pytest.raises(InspectError, match=r"^b:1:1: "):
        compare_sides(Side("a", MODULE.encode()), Side("b", b"nonsense"), None, Limits())


def inspect(*arguments):
    command = [sys.executable, "-m", "meshrt", "inspect", *arguments]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, timeout=300, text=True)


def test_the_command_line(tmp_path):
    before, after = script(tmp_path / "before"), script(tmp_path / "after", WEIGHTS=', None, "data"')
    shown = inspect(after, "--mesh", "data=4", "--against", before)
    said = " ".join(shown.stdout.split())  # folded where COLUMNS is set
    assert shown.returncode == 0 and 'because w is annotated P(None, "data"), was annotated P()' in said
    for arguments, message in [
        ((after, "--mesh", "data=4", "--against", f"{tmp_path}/none.mlir"), "No such file"),
        ((after, "--mesh", "data=4", "--against", before, "--lint"), "goes with none of"),
        ((after, "--mesh", "data=4", "--against", "a.json", "--against-mesh", "data=2"), "is a report"),
        ((after, "--mesh", "data=4", "--against", "a.json", "--lint"), "goes with none of"),
    ]:
        wrong = inspect(*arguments)
        assert wrong.returncode == 2 and message in wrong.stderr and "Traceback" not in wrong.stderr
    report = tmp_path / "report"
    report.write_text(inspect(before, "--mesh", "data=4", "--json").stdout)
    assert is_report(str(report)) and not is_report(before)
    assert "all_gather" in inspect(after, "--mesh", "data=4", "--against", str(report)).stdout


def test_what_cannot_be_read_is_named_on_either_side():
    whole = Side("whole.mlir", b"func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }")
    broken = Side("broken.mlir", b"func.func @main(")
    for before, after in ((whole, broken), (broken, whole)):
        with pytest.raises(InspectError, match=r"^broken.mlir:1"):
            compare_sides(before, after, None, Limits())
