"""A training that is killed and resumed ends with the bits of one that nobody disturbed."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

import meshrt
from meshrt import checkpoint
from tests.meshrt.launch.conftest import launch  # noqa: F401 -- a fixture

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "resume.py"


def final(text: str) -> str:
    return re.search(r"step 40  loss [\d.]+  parameters \w+", text)[0]


def test_killed_and_resumed_under_the_launcher(launch):  # noqa: F811
    script = (str(EXAMPLE), "--directory")
    job = ("--nproc", 2, "--devices-per-process", 2)
    undisturbed = launch(*job, *script, "undisturbed")
    killed = launch(*job, "--max-restarts", 2, *script, "killed", "--die-at", 17)
    assert undisturbed.code == killed.code == 0, killed.err
    assert "rank 1 failed first: killed by SIGKILL" in killed.report and "succeeded after 1 restart" in killed.err
    resumed = re.search(r"resumed after step (\d+)", killed.out)
    assert 5 <= int(resumed[1]) <= 15 and final(killed.out) == final(undisturbed.out)
    ours, theirs = (
        checkpoint.restore(launch.folder / run / "step_00000040", as_numpy=True) for run in ("killed", "undisturbed")
    )
    for a, b in zip(meshrt.tree.leaves(ours), meshrt.tree.leaves(theirs), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_in_one_process(tmp_path):
    runs = [(tmp_path / "a", 40), (tmp_path / "b", 20), (tmp_path / "b", 40)]
    outs = [
        subprocess.run(
            [sys.executable, str(EXAMPLE), "--directory", str(folder), "--steps", str(steps)],
            text=True, stdout=subprocess.PIPE, check=True,
        ).stdout
        for folder, steps in runs
    ]  # fmt: skip
    assert "resumed after step 20" in outs[2] and final(outs[2]) == final(outs[0])
