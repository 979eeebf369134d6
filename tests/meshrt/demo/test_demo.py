"""`meshrt demo`: its settings, its pictures, and a short run."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from meshrt.demo import settings as demo_settings
from meshrt.demo.curve import draw
from meshrt.demo.text import standard_library, windows
from meshrt.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]


def demo(*arguments: str) -> subprocess.CompletedProcess:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MESHRT_", "JAX_"))}
    env["TF_CPP_MIN_LOG_LEVEL"] = "2"
    command = [sys.executable, "-m", "meshrt", "demo", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, check=False, capture_output=True, text=True, timeout=400)


@pytest.mark.smoke
def test_a_short_run_shows_everything():
    done = demo("--config", "tiny", "--steps", "4")
    assert done.returncode == 0, done.stderr[-3000:]
    out = done.stdout
    assert "step    4/4  loss" in out and "tokens/s" in out
    assert "Mesh data=2, model=2" in out and "layers.qkv" in out and "(-, data, -, model, -)" in out
    assert "all_reduce" in out and "meshrt/demo/model.py:" in out and "Loss (nats per byte)" in out
    assert "trace 0, lower 0, propagate 0, partition 0, compile 0, rebind 1" in out
    assert "\x1b[" not in out  # not a terminal: no colours, no cursor movements


def test_other_half_of_the_devices_and_other_partitioner_train_the_same():
    first = demo("--config", "tiny", "--steps", "2", "--devices", "8")
    second = demo("--config", "tiny", "--steps", "2", "--partitioner", "xla")
    assert first.returncode == second.returncode == 0, first.stderr[-2000:] + second.stderr[-2000:]
    assert "other devices (ids 4 ... 7)" in first.stdout and "rebind 1" in first.stdout
    assert "XLA's partitioner, read from the compiled program" in second.stdout
    loss = [
        [line.split("loss ")[1].split()[0] for line in d.stdout.splitlines() if "loss " in line]
        for d in (first, second)
    ]
    np.testing.assert_allclose(np.float64(loss[0]), np.float64(loss[1]), rtol=2e-5)


@pytest.mark.parametrize(
    "text, message",
    [
        ("[train]\nstep = 3\n", "unknown key train.step"),
        ("[trian]\n", "unknown key trian"),
        ("[model]\nwidth = 64\ndepth = 3\nsize = 1\n", "unknown keys model.depth, model.size"),
        ("[train]\nsteps = 0\n", "steps = 0: expected a whole number, at least 1"),
        ("[train]\nsteps = true\n", "steps = True"),
        ("[train]\ndtype = 'float8'\n", "expected one of float32, bfloat16"),
        ("[train]\nmesh = { data = 4 }\n", "uses? the axes data and model"),
        ("[train]\ndevices = 4\n", "needs 8 devices, but devices = 4"),
        ("[model]\nbatch = 6\n", "model.batch = 6 does not divide over the mesh axis data = 4"),
        ("[model]\nheads = 3\n", "does not divide into model.heads = 3"),
        ("[model]\nlearning_rate = 'fast'\n", "expected a number"),
        ("train = 3\n", r"\[train\] must be a table"),
        ("[train\n", "cannot be read as TOML"),
    ],
)
def test_bad_configurations_name_the_key(tmp_path, text, message):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        demo_settings.read(path)
    assert str(path) in str(error.value)


def test_missing_configuration_and_code_2(tmp_path):
    done = demo("--config", str(tmp_path / "none.toml"))
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
    assert "No such file" in done.stderr
    with pytest.raises(ConfigError, match="demo, tiny"):
        demo_settings.find("nothing")


def test_shipped_configurations_are_valid_and_the_default_is_demo():
    folder = ROOT / "configs" / "train"
    found = {path.stem: demo_settings.read(path) for path in folder.glob("*.toml")}
    assert found["demo"] == demo_settings.DemoSettings()
    assert demo_settings.override(found["tiny"], steps=7, mesh=None).steps == 7


def test_windows_are_of_the_text_and_repeatable():
    text = standard_library()
    first, again = (next(windows(text, 4, 16, seed=1)) for _ in range(2))
    assert first.shape == (4, 16) and first.dtype == np.int32
    np.testing.assert_array_equal(first, again)
    assert bytes(first[0].astype(np.uint8)) in text.tobytes()


@pytest.mark.parametrize(
    "values", [[1.0], [3.0, 2.0, 1.0], [1.0] * 5, list(np.linspace(5, 1, 1000)), [1.0, float("nan"), 2.0]]
)
@pytest.mark.parametrize("braille", [True, False])
def test_curves_have_their_size(values, braille):
    lines = draw(values, width=40, height=6, braille=braille)
    assert len(lines) == 6 and all(len(line) <= 10 + 40 for line in lines)
    assert sum(len(line) > 10 for line in lines) >= (1 if len(set(values)) == 1 else 2)
    assert braille or all(ord(c) < 128 for line in lines for c in line)


def test_curve_falls_from_left_to_right_and_refuses_nothing():
    lines = draw([4.0, 3.0, 2.0, 1.0], width=20, height=4, braille=False)
    firsts = [line.index("*") for line in lines]
    assert firsts == sorted(firsts)
    assert draw([float("nan")]) == ["no finite values to draw"]
