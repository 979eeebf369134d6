"""A training run on two hosts whose parts are killed or cut off at random moments ends with the numbers of an
undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("grpc")

from tests.meshrt.launch.conftest import Launcher, Network

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")

STEPS = 120
# Each kill allows some steps more, so that all of them strike a job at work.
LOOP = """
for s in range(start, STEPS):
    while int(open(folder + "/allowed").read() or 0) <= s:
        time.sleep(0.01)
    w = advance(w, s)
    if rank == 0:
        with open(folder + "/new", "wb") as file:
            np.savez(file, step=s + 1, w=w)
        os.replace(folder + "/new", folder + "/state.npz")
    time.sleep(0.02)
"""
BEGIN = """
import numpy as np
folder = sys.argv[1]
try:
    with np.load(folder + "/state.npz") as file:
        start, w = int(file["step"]), file["w"]
except FileNotFoundError:
    start, w = 0, np.eye(8, dtype=np.float32)
"""
ALONE = "def advance(w, s):\n    return w - np.float32(0.1) * np.sin(w + np.float32(s))\n"
TOGETHER = """
import meshrt.distributed
meshrt.distributed.initialize()
import meshrt, meshrt.numpy as jnp
mesh = meshrt.make_mesh((meshrt.device_count(),), ("d",))
rows = meshrt.NamedSharding(mesh, meshrt.P("d"))
data = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
x = meshrt.make_array_from_callback(data.shape, rows, lambda i: data[i])
loss = lambda w, x, s: jnp.mean((jnp.tanh(x @ w) - jnp.sin(s + x)) ** 2)
step = meshrt.jit(lambda w, x, s: w - 0.1 * meshrt.grad(loss)(w, x, s))
def advance(w, s):
    return np.asarray(step(w, x, np.float32(s)).addressable_data(0))
"""
SETTINGS = ("--nodes", 2, "--nproc", 1, "--devices-per-process", 1)


class Storm:
    """A job on hosts that are namespaces, and what strikes it."""

    def __init__(self, spread, network: Network, launch: Launcher, script: Path, folder: Path):
        self._spread, self._network, self._launch = spread, network, launch
        self._chance = random.Random(20)
        listen = f"{network.address['c']}:8476"
        again = ("--max-restarts", 100, "--journal", folder / "journal", "--start-timeout", 120)
        self._command = ("coordinator", "--listen", listen, *SETTINGS, *again, script, folder)
        self._agent_command = ("agent", "--coordinator", listen, "--join-timeout", 120, "--quiet", "--name")
        self.said = ""
        self.coordinator = self._started()
        self._agents = {name: self._joined(name) for name in "ab"}
        self._cut_until = dict.fromkeys("ab", 0.0)

    def _started(self) -> subprocess.Popen:
        # To a file: nobody reads while the storm lasts.
        with open(self._launch.folder / "said", "ab") as file:
            return self._spread("c", *self._command, stdout=file, stderr=file)

    def _joined(self, name: str) -> subprocess.Popen:
        return self._spread(name, *self._agent_command, name)

    def strike(self, kind: str) -> bool:
        """Whether there was something to strike."""
        name = self._chance.choice("ab")
        if kind == "coordinator":
            self.coordinator.kill()
            self.coordinator.wait()
            self.coordinator = self._started()
        elif kind == "agent":
            self._agents[name].kill()
            self._agents[name].communicate()
            self._agents[name] = self._joined(name)
        elif kind == "cut":
            self._network.cut(name)
            self._cut_until[name] = time.monotonic() + self._chance.uniform(1.0, 14.0)
        else:
            return self._kill_worker(self._agents[name].pid)
        return True

    def _kill_worker(self, agent: int) -> bool:
        found = subprocess.run(
            ["pgrep", "-P", str(agent), "-f", "script.py"], capture_output=True, text=True, check=False
        )
        for pid in found.stdout.split()[:1]:
            os.kill(int(pid), signal.SIGKILL)
        return bool(found.stdout)

    def mend(self, all_of_it: bool = False) -> None:
        for name, until in self._cut_until.items():
            if until and (all_of_it or until < time.monotonic()):
                self._network.cut(name, down=False)
                self._cut_until[name] = 0.0


def allow(folder: Path, steps: int) -> None:
    (folder / "next").write_text(str(steps))
    (folder / "next").replace(folder / "allowed")


@pytest.mark.parametrize(
    ("advance", "strikes", "pause_s"),
    [
        (ALONE, ["worker", "agent", "coordinator"], 0.5),
        pytest.param(TOGETHER, ["worker", "agent", "coordinator", "cut"] * 5, 6.0, marks=pytest.mark.slow),
    ],
    ids=["quick", "long"],
)
@pytest.mark.timeout(1200)
def test_random_kills_change_no_number(launch, spread, network, tmp_path, advance, strikes, pause_s):
    calm, stormy = (tmp_path / name for name in ("calm", "stormy"))
    for folder in (calm, stormy):
        folder.mkdir()
    script = launch.script(BEGIN + advance + LOOP.replace("STEPS", str(STEPS)))
    allow(calm, STEPS)
    assert launch(*SETTINGS, script, calm, timeout=300).code == 0

    allow(stormy, 1)
    storm = Storm(spread, network, launch, script, stormy)
    chance = random.Random(20)
    chance.shuffle(strikes)
    done = 0
    while done < len(strikes):
        time.sleep(chance.uniform(pause_s / 5, pause_s))
        storm.mend()
        assert storm.coordinator.poll() is None, (launch.folder / "said").read_text()
        done += storm.strike(strikes[done])
        allow(stormy, done * (STEPS // len(strikes)))
    storm.mend(all_of_it=True)
    assert storm.coordinator.wait(timeout=300) == 0, (launch.folder / "said").read_text()
    assert (stormy / "state.npz").read_bytes() == (calm / "state.npz").read_bytes()
