"""Ranks that save when they are asked to, and what the launcher makes of their checkpoints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from meshrt import distributed
from meshrt.checkpoint import CheckpointManager
from meshrt.errors import ArgumentValueError
from tests.meshrt.launch import simulated
from tests.meshrt.launch.conftest import wait_for
from tests.meshrt.launch.simulated import JOINING, MESHED, OK, ExitStatus, SimulatedEngine

TRAINING = """\
import meshrt, numpy as np
meshrt.distributed.initialize()
manager = meshrt.checkpoint.CheckpointManager("checkpoints")
for step in range(1, 2000):
    time.sleep(0.02)
    asked = meshrt.distributed.checkpoint_requested(step)
    if step == 1:
        meshrt.distributed.barrier("all have asked once")
        print("training", flush=True)
    if asked:
        time.sleep(2.5)
        manager.save(step, {"step": np.asarray(step)})
        break
manager.close()
print("left after", step, flush=True)
"""


def test_ranks_that_are_stopped_save_first_at_the_same_step_and_get_the_time_for_it(launch):
    job = launch.start("--nproc", 2, "--devices-per-process", 1, "--grace", 2, body=TRAINING)
    wait_for(job, "training")
    job.send_signal(signal.SIGTERM)
    result = launch.finish(job, 0.0)
    manager = CheckpointManager(launch.folder / "checkpoints")
    last = manager.latest()
    assert result.code == 128 + signal.SIGTERM, result.err
    assert f"[0] left after {last}" in result.out and f"[1] left after {last}" in result.out
    assert manager.restore()["step"] == last
    lines = result.err.splitlines()
    assert lines[0].startswith("meshrt launch: asked the ranks for a checkpoint, and waits up to 300 s")
    assert lines[1] == f"meshrt launch: the checkpoint of step {last} is complete"
    assert lines[2].startswith("meshrt launch: stopped by SIGTERM")


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_sigterm_to_one_rank_makes_all_save_and_is_no_success(launch, restarts):
    kill = "    if step == 9 and generation == 0 and meshrt.process_index() == 1:\n        os.kill(os.getpid(), 15)\n"
    body = TRAINING.replace("2000)", "2000 - 1990 * generation)").replace("2.5", "0.1")
    body = body.replace("    asked =", f"{kill}    asked =")
    result = launch("--nproc", 2, "--devices-per-process", 1, "--max-restarts", restarts, body=body)
    assert "rank 0, 1 saved and left, as SIGTERM to a rank had asked, before the work was done" in result.err
    assert result.code == (0 if restarts else 128 + signal.SIGTERM)
    assert ("[0] left after 9\n" in result.out) == (restarts == 1)


@pytest.mark.slow
def test_an_agent_that_is_stopped_gives_its_ranks_the_time_to_save_and_the_job_goes_on_without_it(hosts, tmp_path):
    body = TRAINING.replace("time.sleep(2.5)", "time.sleep(7)")  # longer than the grace without a checkpoint
    body = body.replace("asked = ", "asked = generation == 0 and ").replace("2000)", "3000 - 2990 * generation)")
    hosts.start("--nodes", "1:2", "--nproc", 1, "--devices-per-process", 1, body=body)
    hosts.agent("a", "b")
    wait_for(hosts.coordinator, "training")
    hosts.agents["b"].send_signal(signal.SIGTERM)
    left = hosts.ends("b")
    assert left.code == 128 + signal.SIGTERM and "waiting up to 300 s for the ranks here to save" in left.err
    result = hosts.finish()
    assert result.code == 0 and result.err.count("starting again, generation 1") == 1, result.err
    assert "host b leaves (its agent was stopped by SIGTERM); the job goes on without it" in result.err
    assert CheckpointManager(tmp_path / "checkpoints").latest() is not None


def test_a_process_alone_is_asked_too():
    code = (
        "import os, signal, meshrt.distributed as d\n"
        "assert not d.checkpoint_requested(1)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print(d.checkpoint_requested(2), d.checkpoint_requested(3))"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("MESHRT_")}
    assert subprocess.check_output([sys.executable, "-c", code], env=env, text=True) == "True False\n"


@pytest.mark.parametrize("ask", [distributed.checkpoint_requested, distributed.checkpoint_committed])
@pytest.mark.parametrize("step", [-1, 1.5, True, None])
def test_steps_are_counted(ask, step):
    with pytest.raises(ArgumentValueError, match="expected a whole number, at least 0"):
        ask(step)


@pytest.mark.parametrize(("furthest", "code"), [(9, 0), (1, 1)])
def test_a_job_that_comes_further_may_fail_as_often_as_it_likes(furthest, code):
    """Each of three generations but the last fails after a checkpoint; one restart is allowed."""

    def deeds(generation, rank):
        done = {"kind": "checkpoint", "step": min(furthest, generation), "committed": True}
        return [(0.1, JOINING), (0.2, MESHED), (0.3, done), (0.5, OK if generation == 3 else ExitStatus(code=1))]

    assert simulated.run(SimulatedEngine(deeds), nproc=1, max_restarts=1).code == code
