"""What a process of the user's sees when another one dies while both are in a program."""

from __future__ import annotations

import re

import pytest

from tests.meshrt.launch.conftest import HANGS_S

# Rank 1 dies by itself a moment after both are in a program of many all-reduces. The others end by themselves, however
# long that takes them on a loaded machine: the launcher's SIGTERM, a second after the death, is nothing to them.
PATIENT = ("--devices-per-process", 1, "--grace", HANGS_S)
TRAINING = """\
import threading, numpy as np
import meshrt
from meshrt.sharding import NamedSharding, PartitionSpec as P
meshrt.distributed.initialize()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
mesh = meshrt.make_mesh((meshrt.device_count(),), ("x",))
split, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
value = np.ones(3 << 10, np.float32)
x = meshrt.make_array_from_callback(value.shape, split, lambda i: value[i])
def step(x):
    add = lambda i, x: meshrt.lax.with_sharding_constraint(x * x.sum() * 1e-9, split)
    y = meshrt.lax.fori_loop(0, 300, add, x)
    return y, y.sum()
step = meshrt.jit(step, out_shardings=(split, whole))
meshrt.block_until_ready(step(x))
if rank == 1:
    threading.Timer(0.3, lambda: os.kill(os.getpid(), 9)).start()
def train():
    while True:
        y, total = step(x)
        USE
"""
USES = ["float(total)", "np.asarray(y.addressable_shards[0].data)", "meshrt.block_until_ready((y, total))", "pass"]


@pytest.mark.parametrize("use", [USES[0], USES[-1]])
def test_what_is_printed_is_the_users_line_and_who_was_lost(launch, use):
    shown = ("--env", "MESHRT_TRACEBACK_FILTERING=remove_frames")
    body = TRAINING.replace("USE", use) + "train()\n"
    result = launch("--nproc", 2, *PATIENT, *shown, body=body)
    assert result.code == 137
    printed = [line for line in result.err.splitlines() if line.startswith("[0]")]
    assert printed[0] == "[0] Traceback (most recent call last):" and "Gloo" not in result.err
    assert sum("Traceback" in line for line in printed) == 1, result.err
    assert not any("meshrt/runtime" in line for line in printed), result.err
    assert re.search(r"PeerLost: process 1 \(host \S+, pid \d+\) was lost: its connection closed", printed[-1])


def test_the_loss_can_be_caught_wherever_it_comes_out_and_the_process_ends_well(launch):
    body = TRAINING.replace("USE", f"exec(uses[steps % {len(USES)}]); steps += 1").replace(
        "def train():", f"uses, steps = {USES}, 0\ndef train():\n    global steps"
    )
    body += """
try:
    train()
except meshrt.distributed.PeerLost as e:
    assert e.processes == {1} and "pid" in e.causes[1] and e.__cause__ is None and e.__suppress_context__
    print("caught", flush=True)
"""
    result = launch("--nproc", 2, *PATIENT, body=body)
    assert result.out == "[0] caught\n", result.err
    assert "rank 0" not in result.report and "Traceback" not in result.err


def test_those_that_leave_because_of_a_loss_say_so(launch):
    body = TRAINING.replace("USE", "float(total)").replace("os.kill(os.getpid(), 9)", "os._exit(5)")
    body += """
try:
    train()
except meshrt.distributed.PeerLost as e:
    if rank == 0:
        raise
    meshrt.distributed.context().member._wait(lambda: 0 in meshrt.distributed.context().member.lost, 20)
    print(meshrt.distributed.context().member.lost[0], flush=True)
"""
    result = launch("--nproc", 3, *PATIENT, body=body)
    assert result.code == 5 and "was lost: it cannot go on without process 1" in result.out


ELASTIC = """\
import meshrt, numpy as np
from meshrt.sharding import NamedSharding, PartitionSpec as P
meshrt.distributed.initialize()
job = meshrt.distributed.elastic(min_processes=2)
while not job.finished:
    with job:
        count = meshrt.device_count()
        split = NamedSharding(meshrt.make_mesh((count,), ("x",)), P("x"))
        x = meshrt.make_array_from_callback((count,), split, lambda i: np.ones(count, np.float32)[i])
        total = meshrt.jit(lambda x: x.sum())
        for step in range(400 if count == full else 5):
            value = float(total(x))
            if generation == 0 and rank == 1 and step == 3:
                os.kill(os.getpid(), 9)
print(f"pid {os.getpid() == first} sum {value} generation {generation}.{job.generation}", flush=True)
"""


def test_beside_a_launcher_those_that_are_left_go_on(launch):
    body = f"full, first = 3, os.getpid()\n{ELASTIC}"
    result = launch("--nproc", 3, "--devices-per-process", 1, "--elastic", "--max-restarts", 1, body=body)
    assert result.code == 0, result.err
    assert sorted(result.out.splitlines()) == [f"[{r}] pid True sum 2.0 generation 0.1" for r in (0, 2)]
    assert result.err.count("rank 1 failed first: killed by SIGKILL") == 1
    assert "meshrt launch: the 2 ranks that are left go on" in result.err
    assert result.err.splitlines()[-1] == "meshrt launch: succeeded without rank 1"


@pytest.mark.slow
def test_all_start_again_where_too_few_are_left(launch):
    body = f"full, first = 2, os.getpid()\n{ELASTIC}"  # the fewest that the script wants
    result = launch("--nproc", 2, "--devices-per-process", 1, "--elastic", "--max-restarts", 1, body=body)
    assert result.code == 0 and "go on" not in result.report, result.err
    assert "starting again, generation 1" in result.err and result.out.count("sum 2.0 generation 1.0") == 2


def test_those_that_are_left_go_on_when_a_host_is_lost(launch):
    body = "full, first = 4, os.getpid()\n" + ELASTIC.replace("rank == 1", "rank == 3").replace(
        "getpid(), 9", "getppid(), 9"
    )
    options = ("--nodes", "1:2", "--nproc", 2, "--devices-per-process", 1, "--elastic", "--max-restarts", 1)
    result = launch(*options, body=body)  # rank 3 kills its agent
    assert result.code == 0, result.err
    assert sorted(result.out.splitlines()) == [f"[local0:{r}] pid True sum 2.0 generation 0.1" for r in (0, 1)]
    assert "the 2 ranks that are left go on" in result.err and "succeeded without rank 2, 3" in result.err
