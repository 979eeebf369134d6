"""meshrt.distributed with real processes over jaxlib's runtime and gloo: one global all-reduce, and its failures."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

from meshrt import distributed
from meshrt.errors import ConfigError, DistributedError

# An all-reduce over all devices, as plain StableHLO: independent of the rest of the library.
PROGRAM = '''
import numpy as np
import meshrt.distributed
meshrt.distributed.initialize(shutdown_timeout_seconds=int(os.environ.get("PATIENCE", "0")) or None)
from jaxlib import xla_client as xc
from meshrt.runtime import backend
devices = backend.devices()
n = len(devices)
options = xc.CompileOptions()
options.num_replicas, options.num_partitions = n, 1
options.device_assignment = xc.DeviceAssignment.create(np.array([[d.id] for d in devices]))
text = f"""module @m attributes {{mhlo.num_replicas = {n} : i32, mhlo.num_partitions = 1 : i32}} {{
  func.func public @main() -> tensor<4xf32> {{
    %id = stablehlo.replica_id : tensor<ui32>
    %f = stablehlo.convert %id : (tensor<ui32>) -> tensor<f32>
    %b = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %r = "stablehlo.all_reduce"(%b) ({{
      ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %s = stablehlo.add %x, %y : tensor<f32>
        stablehlo.return %s : tensor<f32>
    }}) {{replica_groups = dense<[{list(range(n))}]> : tensor<1x{n}xi64>,
         channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>}} : (tensor<4xf32>) -> tensor<4xf32>
    return %r : tensor<4xf32> }} }}"""
exe = devices[0].client.compile_and_load(text, xc.DeviceList(tuple(devices)), options)
def step():
    parts = exe.execute_sharded([]).disassemble_into_single_device_arrays()[0]
    return float(parts[0]._single_device_array_to_np_array_did_copy()[0][0])
me = meshrt.distributed.context().node_id
print(f"sum {step()} on {n} devices", flush=True)
'''
STEPS = "for i in range(200):\n  step(); time.sleep(0.02)\n  if i == 5 and me == 1: "


@pytest.mark.smoke
def test_two_processes_form_one_mesh_and_leave_together(launch):
    result = launch("--nproc", 2, "--devices-per-process", 2, body=PROGRAM + "time.sleep(me)")
    assert result.code == 0, result.err
    assert sorted(x for x in result.out.splitlines() if "sum" in x) == [f"[{r}] sum 6.0 on 4 devices" for r in (0, 1)]
    assert "meshrt launch" not in result.err


@pytest.mark.parametrize(
    ("failure", "code", "text"),
    [
        ("raise ValueError('boom')", 1, "ValueError: boom [exit code 1]"),
        ("os.kill(os.getpid(), 9)", 137, "killed by SIGKILL"),
        ("raise SystemExit(6)", 6, "exit code 6"),
    ],
)
def test_the_failing_rank_is_named_and_its_peer_only_follows(launch, failure, code, text):
    result = launch("--nproc", 2, "--devices-per-process", 2, body=PROGRAM + STEPS + failure)
    assert result.code == code and result.seconds < 50
    assert result.report.startswith(f"meshrt launch: rank 1 failed first: {text} (")
    assert "rank 0 lost its connection to a peer" in result.report


def test_a_rank_that_finishes_early_is_pointed_out(launch):
    result = launch("--nproc", 2, "--devices-per-process", 1, "--env", "PATIENCE=1", body=PROGRAM + STEPS + "break")
    assert result.code == 1
    assert "rank 0 failed first: " in result.report and "each that failed had lost a peer" in result.report


def test_a_rank_that_does_not_join_is_named(launch):
    body = "import meshrt.distributed\nif rank == 0: meshrt.distributed.initialize()\nprint('up'); time.sleep(60)"
    result = launch("--nproc", 2, "--start-timeout", 1, body=body)
    assert result.code == 1
    assert "rank 1 did not call meshrt.distributed.initialize() within 1 s" in result.report


def test_a_restarted_job_forms_a_new_mesh(launch):
    body = PROGRAM + "if generation == 0 and me == 0: raise RuntimeError('once')\n"
    result = launch("--nproc", 2, "--devices-per-process", 1, "--max-restarts", 1, body=body)
    assert result.code == 0, result.err
    assert result.out.count("sum 1.0 on 2 devices") == 4


def test_a_survivor_that_waits_in_a_fetch_is_ended_and_the_job_restarts(launch):
    body = PROGRAM + (
        "if generation == 0:\n"
        "  if me == 1: time.sleep(0.5); os.kill(os.getpid(), 9)\n"
        "  print('fetching', flush=True); step(); time.sleep(60)\n"
    )
    result = launch("--nproc", 2, "--devices-per-process", 2, "--max-restarts", 1, body=body)
    assert result.code == 0 and result.seconds < 50, result.err
    assert "[0] fetching" in result.out and result.out.count("sum 6.0 on 4 devices") == 4
    assert result.report.startswith("meshrt launch: rank 1 failed first: killed by SIGKILL (")
    assert "succeeded after 1 restart" in result.err


def test_without_a_launcher_process_0_runs_the_service(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os\n" + PROGRAM)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    processes = [_start_alone(script, address, rank) for rank in range(2)]
    outs = [p.communicate(timeout=60) for p in processes]
    assert [p.returncode for p in processes] == [0, 0], outs
    assert all("sum 1.0 on 2 devices" in out for out, _ in outs)


def _start_alone(script, address, rank):
    env = {
        **os.environ, "JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(rank),
        "MESHRT_NUM_CPU_DEVICES": "1",
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, str(script)], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


# --- what is refused.


@pytest.fixture
def no_job(monkeypatch):
    for prefix in ("MESHRT", "JAX"):
        for name in ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID", "LOCAL_DEVICE_IDS", "LAUNCHED"):
            monkeypatch.delenv(f"{prefix}_{name}", raising=False)


def test_a_process_that_nothing_identifies_is_an_error(no_job):
    with pytest.raises(ConfigError, match="coordinator_address and num_processes and process_id should be defined"):
        distributed.initialize()
    with pytest.raises(ConfigError, match="MESHRT_NUM_PROCESSES, MESHRT_PROCESS_ID"):
        distributed.initialize("10.0.0.1:1234")
    assert not distributed.is_initialized()
    distributed.shutdown()  # nothing to do


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("host", 2, 0), "'host' is not an address"),
        (("host:1", 0, 0), "num_processes=0"),
        (("host:1", 2, 2), r"process_id=2: expected a whole number from 0 to num_processes - 1 = 1"),
        (("host:1", 2, -1), "process_id=-1"),
        (("host:1", 2, 0, [0, 0]), "local_device_ids=\\[0, 0\\]: expected different"),
        (("host:1", 2, 0, None, "mpi4py"), "cluster_detection_method='mpi4py'"),
    ],
)
def test_bad_arguments(no_job, arguments, text):
    with pytest.raises((ConfigError, DistributedError), match=text):
        distributed.initialize(*arguments)


def test_a_bad_variable(no_job, monkeypatch):
    monkeypatch.setenv("MESHRT_COORDINATOR_ADDRESS", "h:1")
    monkeypatch.setenv("MESHRT_NUM_PROCESSES", "two")
    with pytest.raises(ConfigError, match="MESHRT_NUM_PROCESSES='two': expected a whole number"):
        distributed.initialize()


def test_variables_of_two_kinds_are_never_mixed(no_job, monkeypatch):
    monkeypatch.setenv("MESHRT_COORDINATOR_ADDRESS", "h:1")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    monkeypatch.setenv("JAX_PROCESS_ID", "0")
    with pytest.raises(ConfigError, match="num_processes and process_id should be defined"):
        distributed.initialize()


def test_an_unreachable_coordinator_is_an_error_in_time(no_job, monkeypatch):
    monkeypatch.setattr("meshrt.runtime.backend.is_created", lambda: False)
    since = time.monotonic()
    with pytest.raises(DistributedError, match=r"127.0.0.1:1 could not be reached within 1 s"):
        distributed.initialize("127.0.0.1:1", 2, 1, initialization_timeout=1)
    assert time.monotonic() - since < 15


def test_devices_must_not_have_been_used(no_job, monkeypatch):
    monkeypatch.setattr("meshrt.runtime.backend.is_created", lambda: True)
    with pytest.raises(DistributedError, match="must be called before devices are used"):
        distributed.initialize("127.0.0.1:1", 2, 1)
