"""The whole road: a model trained on a mesh gives the losses of one device, of JAX, and of two processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import Peer

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "train_lm.py"
MESH = {"data": 4, "model": 2}
MODEL = {"layers": 2, "width": 32, "heads": 2, "hidden": 64, "context": 32, "batch": 8, "vocabulary": 64}
STEPS = 5


def losses(package: str, devices: int, mesh: dict, **model) -> list[float]:
    peer = Peer(package, devices)
    try:
        return peer("losses", model={**MODEL, **model}, mesh=mesh, steps=STEPS)
    finally:
        peer.close()


@pytest.fixture(scope="module")
def ours():
    return losses("meshrt", 8, MESH)


@pytest.mark.smoke
def test_losses_on_a_mesh_equal_those_of_one_device(ours):
    alone = losses("meshrt", 1, {"data": 1, "model": 1})
    np.testing.assert_allclose(ours, alone, rtol=2e-5)
    assert ours[-1] < ours[0]


def test_losses_equal_those_of_jax_step_by_step(ours):
    np.testing.assert_allclose(ours, losses("jax", 8, MESH), rtol=2e-5)


@pytest.mark.slow
def test_unrolled_layers_equal_those_of_jax():
    np.testing.assert_allclose(
        losses("meshrt", 8, MESH, unrolled=True), losses("jax", 8, MESH, unrolled=True), rtol=2e-5
    )


@pytest.mark.slow
def test_bfloat16_is_near_jax():
    np.testing.assert_allclose(
        losses("meshrt", 8, MESH, dtype="bfloat16"), losses("jax", 8, MESH, dtype="bfloat16"), rtol=5e-3
    )


def environment() -> dict[str, str]:
    """Without the settings of the test suite: the script asks for its devices itself."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MESHRT_", "JAX_"))}
    return {**env, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(ROOT)}


def finished(arguments: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=400,
    )


def run(arguments: list[str]) -> str:
    done = finished(arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def printed_losses(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"loss (\d+\.\d+)", text)]


@pytest.fixture(scope="module")
def example_losses():
    return printed_losses(run([str(EXAMPLE), "--steps", "3"]))


def test_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) < 150


@pytest.mark.parametrize("devices", ["3", "0", "-1", "1000000000"])
def test_devices_that_the_example_cannot_use_are_one_clear_message(devices):
    done = finished([str(EXAMPLE), "--devices", devices])
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"argument --devices: invalid choice: {devices} (choose from 1, 2, 4, 8, 16, 32)" in done.stderr


def test_example_runs_unchanged_under_jax(example_losses, tmp_path):
    source = EXAMPLE.read_text()
    swapped = re.sub(r"^(import|from) meshrt", r"\1 jax", source, flags=re.M).replace("import jax as jax", "import jax")
    assert swapped.count("meshrt") == source.count("meshrt") - 4  # nothing but the imports
    script = tmp_path / "train_jax.py"
    script.write_text(swapped)
    theirs = printed_losses(run([str(script), "--steps", "3"]))
    assert len(theirs) == 2
    np.testing.assert_allclose(example_losses, theirs, rtol=2e-5)


def test_two_processes_give_the_losses_of_one(example_losses):
    text = run(["-m", "meshrt", "launch", "--nproc", "2", "--timeout", "300", str(EXAMPLE), "--steps", "3"])
    np.testing.assert_allclose(printed_losses(text), example_losses, rtol=2e-5)
