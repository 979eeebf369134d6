"""A training run on two hosts whose parts are killed at random moments ends with the numbers of an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("grpc")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")]

KILLS = 8
TRAIN = """
import meshrt.distributed
meshrt.distributed.initialize()
import meshrt, meshrt.numpy as jnp, numpy as np
folder = sys.argv[1]
mesh = meshrt.make_mesh((meshrt.device_count(),), ("d",))
rows = meshrt.NamedSharding(mesh, meshrt.P("d"))
data = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
x = meshrt.make_array_from_callback(data.shape, rows, lambda i: data[i])
loss = lambda w, x, s: jnp.mean((jnp.tanh(x @ w) - jnp.sin(s + x)) ** 2)
step = meshrt.jit(lambda w, x, s: w - 0.1 * meshrt.grad(loss)(w, x, s))
try:
    with np.load(folder + "/state.npz") as file:
        start, w = int(file["step"]), file["w"]
except FileNotFoundError:
    start, w = 0, np.eye(8, dtype=np.float32)
for s in range(start, 120):
    w = np.asarray(step(w, x, np.float32(s)).addressable_data(0))
    if rank == 0:
        np.savez(folder + "/new.npz", step=s + 1, w=w)
        os.replace(folder + "/new.npz", folder + "/state.npz")
        print("step", s + 1, flush=True)
    time.sleep(0.05)
"""


def trained(folder) -> bytes:
    return (folder / "state.npz").read_bytes()


@pytest.mark.timeout(900)
def test_random_kills_change_no_number(launch, hosts, tmp_path):
    for name in ("calm", "stormy"):
        (tmp_path / name).mkdir()
    script = launch.script(TRAIN)
    options = ("--nproc", 1, "--devices-per-process", 1)
    assert launch(*options, "--nodes", 2, script, tmp_path / "calm", timeout=200).code == 0

    chance = random.Random(20)
    everything = (*options, "--nodes", 2, "--max-restarts", 50, "--journal", tmp_path / "journal", script)
    hosts.start(*everything, tmp_path / "stormy")
    hosts.agent("a", "b")
    done = 0
    while done < KILLS and hosts.coordinator.poll() is None:
        time.sleep(chance.uniform(1.0, 6.0))
        done += strike(chance.choice(["worker", "agent", "coordinator"]), chance, hosts, everything, tmp_path)
    assert hosts.coordinator.wait(timeout=200) == 0, hosts.coordinator.stderr.read()
    assert trained(tmp_path / "stormy") == trained(tmp_path / "calm")


def strike(kind: str, chance: random.Random, hosts, everything, tmp_path) -> bool:
    """Kills something; whether it was there."""
    if kind == "coordinator":
        hosts.coordinator.kill()
        hosts.coordinator.communicate()
        hosts.start(*everything, tmp_path / "stormy")
        return True
    name = chance.choice("ab")
    if kind == "agent":
        hosts.agents[name].kill()
        hosts.agents[name].communicate()
        hosts.agent(name)
        return True
    found = subprocess.run(
        ["pgrep", "-P", str(hosts.agents[name].pid), "-f", "script.py"], capture_output=True, text=True, check=False
    )
    for pid in found.stdout.split()[:1]:
        os.kill(int(pid), signal.SIGKILL)
    return bool(found.stdout)
