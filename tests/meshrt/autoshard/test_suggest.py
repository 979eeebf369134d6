"""The search for layouts: beside trying all of them, and on blocks whose good layouts are known."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tomllib
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import pytest

import propagation
from collectives.topology import load
from meshrt.autoshard.figures import Figures, subject_of
from meshrt.autoshard.judge import described, judge
from meshrt.autoshard.judges import Judges
from meshrt.autoshard.layouts import Argument, Layout, argument_axes, decisions_of
from meshrt.autoshard.plan import mesh_splits, sized
from meshrt.autoshard.search import Space, search
from meshrt.autoshard.suggest import suggest
from meshrt.autoshard.target import bytes_of
from meshrt.cli.main import main
from meshrt.errors import InspectError
from propagation.correspondence import ArgumentDim, DimensionClass
from propagation.reopening import reading_of
from tests.collectives.test_alternatives import case

# Two layers, tanh(tanh(x @ w0) @ w1), and the sum of their squares: f32[B, 64], f32[64, 256], f32[256, 64].
LAYERS = """
func.func @main(%x: tensor<BATCHx64xf32> loc("x"), %w0: tensor<64x256xf32> loc("layers[0]['w']"),
                %w1: tensor<256x64xf32> loc("layers[1]['w']")) -> tensor<BATCHx64xf32> {
  %0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0]
      : (tensor<BATCHx64xf32>, tensor<64x256xf32>) -> tensor<BATCHx256xf32>
  %1 = stablehlo.tanh %0 : tensor<BATCHx256xf32>
  %2 = stablehlo.dot_general %1, %w1, contracting_dims = [1] x [0]
      : (tensor<BATCHx256xf32>, tensor<256x64xf32>) -> tensor<BATCHx64xf32>
  return %2 : tensor<BATCHx64xf32>
}
"""
STEP = """
import meshrt
import meshrt.numpy as jnp


def loss(params, x):
    for layer in params:
        x = x + jnp.tanh(x @ layer["up"]) @ layer["down"]
    return (x * x).mean()


@meshrt.jit
def step(params, x):
    return meshrt.tree.map(lambda p, g: p - 0.1 * g, params, meshrt.grad(loss)(params, x))


def example_arguments(mesh):
    like = lambda *shape: meshrt.ShapeDtypeStruct(shape, "float32")
    return [{"up": like(256, 1024), "down": like(1024, 256)} for _ in range(3)], like(ROWS, 256)
"""


def layers(batch: int) -> str:
    return LAYERS.replace("BATCH", str(batch))


def test_what_repeats_is_one_decision() -> None:
    arguments = [Argument(f"p[{i}]['{n}']", s, "f32") for i in (0, 1) for n, s in (("up", (4, 8)), ("down", (8, 4)))]
    wide = [DimensionClass((ArgumentDim(2 * i, 1, 8), ArgumentDim(2 * i + 1, 0, 8)), True, 3) for i in (0, 1)]
    (decision,) = decisions_of(wide, arguments)
    assert decision.name in ("p/*/up:1", "p/*/down:0") and len(decision.dims) == 4
    layout = Layout().toggled(0, "x").storing("y")
    assert argument_axes(layout, [decision], arguments, {"x": 2, "y": 4})[:2] == [(("y",), ("x",)), (("x",), ("y",))]
    assert layout.toggled(0, "x").storing("y") == Layout()


def test_axes_that_do_not_divide_or_are_taken_are_left_out() -> None:
    argument = Argument("w", (6, 4), "f32")
    classes = [DimensionClass((ArgumentDim(0, d, argument.shape[d]),), False, 1) for d in (0, 1)]
    decisions = decisions_of(classes, [argument])
    both = Layout().toggled(0, "x").toggled(1, "x")
    assert argument_axes(both, decisions, [argument], {"x": 2}) == [(("x",), ())]
    assert argument_axes(both, decisions, [argument], {"x": 4}) == [((), ("x",))]


@pytest.mark.parametrize("batch", [8, 4096])
def test_nothing_is_better_among_all_layouts(batch) -> None:
    """Whatever way the three arguments are split over the axes, the search has found one as good."""
    text, mesh = layers(batch), {"x": 2, "y": 2}
    axes = [(), ("x",), ("y",), ("x", "y")]
    machine = load("v5e:2x2")
    best = min(
        judge(text, mesh, given, machine).seconds
        for given in itertools.product(*[
            [[a, b] for a, b in itertools.product(axes, axes) if not set(a) & set(b)] for _ in range(3)
        ])
    ) if batch == 8 else None  # fmt: skip
    with Judges("layers", text, "v5e:2x2", 60, 1) as judges:
        subject = judges.subject
        space = Space(subject.arguments, tuple(decisions_of(subject.classes, subject.arguments)), mesh, None)
        found = search(space, judges, 60)
    assert found.is_complete and space.fits(found.best.figures)
    if best is not None:
        assert found.best.figures.seconds <= best * 1.02
    else:
        assert all(axes[0] for axes in (found.best.axes[0],)), "a large batch is split"


class Glances:
    """Judges to whom everything looks a third slower at first."""

    count = 1

    def __init__(self) -> None:
        self.asked: list[tuple[object, bool]] = []

    def ask(self, mesh, axes, is_first=False) -> Future[Figures]:
        self.asked.append((axes, is_first))
        seconds = 20.0 - sum(len(a) * (n + 1) for n, dims in enumerate(axes) for a in dims)
        found: Future[Figures] = Future()
        found.set_result(Figures(seconds * (1.5 if is_first else 1.0), seconds, 0.0, 0.0, 1.0, 1.0, {}))
        return found


def test_only_what_looks_best_is_judged_thoroughly() -> None:
    arguments = tuple(Argument(f"w{i}", (8, 8), "f32") for i in range(3))
    classes = [DimensionClass((ArgumentDim(i, d, 8),), False, 1) for i in range(3) for d in (0, 1)]
    space = Space(arguments, tuple(decisions_of(classes, arguments)), {"x": 2, "y": 2}, None)
    judges = Glances()
    found = search(space, judges, 1e6)
    assert found.is_complete
    assert found.best.figures.seconds == 20.0 - 2 * (1 + 2 + 3), "both axes on each argument, judged thoroughly"
    first, thorough = ({axes for axes, is_first in judges.asked if is_first is kind} for kind in (True, False))
    assert len(first) + len(thorough) == len(judges.asked), "nothing is asked twice in one way"
    assert 3 * len(thorough) < len(first)


class Together(Glances):
    """Judges to whom each step towards the batch over "x" and all matrices over "y" takes memory, but for the last."""

    def ask(self, mesh, axes, is_first=False) -> Future[Figures]:
        over = [n for n, dims in enumerate(axes[1:]) if dims == ((), ("y",))]
        is_whole = axes[0][0] == ("x",) and len(over) == 3
        found: Future[Figures] = Future()
        changes = sum(len(a) for dims in axes for a in dims)
        seconds = 20.0 - changes - 4 * len(axes[0][0])
        found.set_result(Figures(seconds, seconds, 0.0, 0.0, 1.0 if is_whole else 5.0 + changes, 1.0, {}))
        return found


def test_what_pays_together_is_looked_at_together() -> None:
    arguments = (Argument("tokens", (8,), "i32"), *(Argument(f"w{i}", (8, 8), "f32") for i in range(3)))
    features = DimensionClass(tuple(ArgumentDim(i, 0, 8) for i in (1, 2, 3)), False, 1)
    classes = [DimensionClass((ArgumentDim(0, 0, 8),), False, 1), features]
    classes += [DimensionClass((ArgumentDim(i, 1, 8),), False, 1) for i in (1, 2, 3)]
    space = Space(arguments, tuple(decisions_of(classes, arguments)), {"x": 2, "y": 2}, 2.0)
    found = search(space, Together(), 1e6)
    assert found.best.axes == ((("x",),), *[((), ("y",))] * 3) and space.fits(found.best.figures)


def test_a_module_is_described() -> None:
    subject = subject_of(described(layers(8)))
    assert [a.name for a in subject.arguments] == ["x", "layers[0]['w']", "layers[1]['w']"]
    assert subject.mesh is None and subject.axes == (None, None, None)
    assert len(subject.classes) == 4


def test_what_propagation_wrote_is_no_annotation_to_a_judge() -> None:
    text = case().text
    closed = propagation.run(text, xla_order=True).as_text()
    sent = lambda module, **given: judge(module, None, None, None, **given).bytes
    assert sent(closed, reading=reading_of(closed, True)) == sent(text) < sent(closed)


def test_what_does_not_fit_is_not_suggested() -> None:
    """With all arguments whole a device holds more than it may, so they are split however slow that is."""
    text = layers(8)
    free = suggest("layers", text, {"x": 4}, "v5e:2x2", budget=20, count=1)
    tight = suggest("layers", text, {"x": 4}, "v5e:2x2", budget=20, count=1, memory=0.5 * free.replicated.peak)
    assert tight.fits and tight.suggested.peak <= 0.5 * free.replicated.peak
    assert tight.suggested.seconds >= free.suggested.seconds
    none = suggest("layers", text, {"x": 4}, "v5e:2x2", budget=20, count=1, memory=10.0)
    assert not none.fits and none.suggested.peak <= tight.suggested.peak


def test_a_judge_that_dies_costs_its_candidate_only() -> None:
    with Judges("layers", layers(8), "v5e:2x2", 60, 1) as judges:
        (process,) = judges._all
        process.kill()
        process.wait()
        axes = [((),) * len(a.shape) for a in judges.subject.arguments]
        first, second = (judges.ask({"x": 4}, axes).result() for _ in range(2))
    assert first.why is not None and "ended with code" in first.why
    assert second.why is None and second.seconds > 0


def test_a_module_that_is_none() -> None:
    with pytest.raises(InspectError, match=r"^foreign: "), Judges("foreign", "func.func @main(", None, 1, 1):
        pass


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(capfd, *args: str) -> Done:
    """What the command prints, run in this process, which starts the judges."""
    with pytest.raises(SystemExit) as ended:
        main(list(args))
    out, err = capfd.readouterr()
    return Done(int(ended.value.code or 0), out, err)


def run_apart(*args: str) -> Done:
    """The same in a process of its own: functions are lowered before any device is used."""
    done = subprocess.run([sys.executable, "-m", "meshrt", *args], capture_output=True, text=True, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(("rows", "split"), [(65536, True), (8, False)])
def test_a_step_gets_its_batch_or_its_parameters_split(rows, split, tmp_path) -> None:
    """With many rows data parallelism wins, with few the parameters stay where they are and activations move."""
    path, output = tmp_path / "s.py", tmp_path / "a.toml"
    path.write_text(STEP.replace("ROWS", str(rows)))
    options = ("--mesh", "x=4", "--topology", "v5e:2x2", "--budget", "20", "--processes", "1")
    done = run_apart("suggest", f"{path}:step", *options, "--json", "-o", str(output))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["suggested"]["seconds"] <= min(found["now"]["seconds"], found["replicated"]["seconds"])
    rows_of = {r["pattern"]: r for r in found["rows"]}
    assert set(rows_of) == {"params/*/up", "params/*/down", "x"} and rows_of["params/*/up"]["count"] == 3
    assert (rows_of["x"]["suggested"][0] == ["x"]) is split
    assert any(rows_of["params/*/up"]["suggested"]) is not split or split
    written = tomllib.loads(output.read_text())
    assert written["mesh"] == "x=4" and set(written["annotations"]) == set(rows_of)
    shown = run_apart("inspect", f"{path}:step", "--annotations", str(output), "--topology", "v5e:2x2", "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["totals"]["bytes_sent_per_device"] == found["suggested"]["bytes"]


def test_meshes_are_compared(tmp_path) -> None:
    path = tmp_path / "s.py"
    path.write_text(STEP.replace("ROWS", "64").replace("like(64, 256)", "split(mesh, 64)") + (
        "\n\ndef split(mesh, rows):\n    spec = meshrt.NamedSharding(mesh, meshrt.P('data'))\n"
        "    return meshrt.ShapeDtypeStruct((rows, 256), 'float32', sharding=spec)\n"
    ))  # fmt: skip
    done = run_apart("plan", f"{path}:step", "--topology", "v5e", "--axes", "data,model", "--devices", "2,4", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert sorted(tuple(r["mesh"].values()) for r in rows) == [(1, 2), (1, 4), (2, 1), (2, 2), (4, 1)]
    seconds = [r["figures"]["seconds"] for r in rows]
    assert seconds == sorted(seconds)
    table = run_apart("plan", f"{path}:step", "--topology", "v5e:2x2", "--mesh", "data=4", "--mesh", "other=4")
    assert table.returncode == 0 and "not possible" in table.stdout and "does not divide" not in table.stderr


def test_splits_and_sizes(tmp_path: Path) -> None:
    assert mesh_splits(12, ["a", "b", "c"])[:3] == [dict(a=1, b=1, c=12), dict(a=1, b=2, c=6), dict(a=1, b=3, c=4)]
    assert len(mesh_splits(12, ["a", "b", "c"])) == 18
    assert sized("v5e", 32) == "v5e:4x8" and sized("h100:8", 4) == "h100:4"
    assert sized("h100", 32) == "h100:8x4" and sized("v5e", 512) == "v5e:16x16x2"
    assert sized("h100", 12) == "h100:6x2"  # hosts need not be full
    alone = tmp_path / "alone.toml"
    alone.write_text('[network]\nkind = "torus"\nlimits = [4, 4]\nlatency = 1e-6\nbandwidth = 1e9\n')
    with pytest.raises(InspectError, match="not made with 17 devices, but in shapes up to 4x4"):
        sized(str(alone), 17)
    assert bytes_of("16GiB") == 16 << 30 and bytes_of("1.5KB") == 1500
    with pytest.raises(InspectError, match="no number of bytes"):
        bytes_of("much")
    for text in ("nan", "-1GiB", "inf", "1e400", "0"):
        with pytest.raises(InspectError, match="no number of bytes"):
            bytes_of(text)


EXAMPLE = """
from meshrt import NamedSharding, P, ShapeDtypeStruct
def example_arguments(mesh):
    return ShapeDtypeStruct((8, 8), "float32", sharding=NamedSharding(mesh, P("x")))
"""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("suggest", "no.mlir", "--mesh", "x=2", "--topology", "v5e:2x2"), "no.mlir: No such file"),
        (("suggest", "s.py", "--mesh", "x=2", "--topology", "v5e:2x2"), "name a function of it"),
        (("suggest", "m.mlir", "--mesh", "x=2", "--topology", "v9:2"), "no topology 'v9:2'"),
        (("suggest", "m.mlir", "--mesh", "x=2", "--topology", "v5e:2x2"), "the mesh (x=2) differ in their"),
        (("suggest", "m.mlir", "--mesh", "x=4", "--topology", "v5e:2x2", "--budget", "0"), "a search takes some time"),
        (("plan", "none.py:step", "--topology", "v5e:2x2", "--axes", "x"), "none.py: no such file"),
        (("plan", "m.py:none", "--topology", "v5e:2x2", "--axes", "x"), "m.py has no none"),
        (("plan", "none.mlir", "--topology", "v5e:2x2", "--axes", "x"), "none.mlir: No such file"),
        (("plan", "m.mlir", "--topology", "v5e:2x2"), "say which meshes"),
        (("plan", "m.mlir", "--topology", "v5e", "--axes", "x"), "v5e has no size"),
        (("plan", "m.mlir", "--topology", "v5e:2x2", "--axes", "x,x"), "expected names that differ"),
        (("plan", "m.mlir", "--topology", "v9:4x4", "--mesh", "x=4"), "no topology 'v9:4x4'"),
        (("plan", "m.mlir", "--topology", "v5e:4x", "--mesh", "x=4"), "no topology 'v5e:4x'"),
        (("plan", "m.mlir", "--topology", "v5e", "--axes", "x", "--devices", "two"), "expected numbers"),
        (("plan", "m.mlir", "--topology", "v5e:2x2", "--mesh", "x=4", "--mesh", "x=3"), "(x=3) differ in their"),
        (("plan", "m.py:split", "--topology", "v5e:2x2", "--mesh", "y=4"), "m.py:split over y=4: "),
    ],
)
def test_mistakes_are_one_line(args, message, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.mlir").write_text(layers(8))
    Path("m.py").write_text("def step(x):\n    return x\ndef split(x):\n    return x + 1\n" + EXAMPLE)
    done = run(capfd, *args)
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_what_the_arguments_have_is_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that had time for nothing suggests nothing worse than what is there."""
    monkeypatch.setattr(
        "meshrt.autoshard.suggest.search", lambda space, judges, _, told: search(space, judges, 0.0, told)
    )
    text = 'sdy.mesh @mesh = <["data"=8]>\n' + layers(8192)
    for name, axes in (("x", '{"data"}, {}'), ("w0", "{}, {}"), ("layers[1]['w']", "{}, {}")):
        shape = {"x": "8192x64xf32", "w0": "64x256xf32", "layers[1]['w']": "256x64xf32"}[name]
        place = {"x": "%x", "w0": "%w0"}.get(name, "%w1")
        text = text.replace(
            f"{place}: tensor<{shape}>",
            f"{place}: tensor<{shape}> {{sdy.sharding = #sdy.sharding<@mesh, [{axes}]>}}",
            1,
        )
    made = suggest("layers", text, {"data": 8}, "v5e:2x4", budget=5, count=1)
    assert made.judged == 1 and made.now.seconds < made.replicated.seconds
    assert made.suggested == made.now
