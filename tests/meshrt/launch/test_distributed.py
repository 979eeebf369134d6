"""meshrt.distributed with real processes over jaxlib's runtime and gloo: one global all-reduce, and its failures."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import HANGS_S

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


# The second where the machine is so busy that a rank does not fail by itself within the second that it is given.
FOLLOWS = re.compile("rank 0 (lost its connection to a peer|was stopped by the launcher)")


@pytest.mark.parametrize(
    ("failure", "code", "text"),
    [
        ("raise ValueError('boom')", 1, "ValueError: boom [exit code 1]"),
        ("os.kill(os.getpid(), 9)", 137, "killed by SIGKILL"),
        ("raise SystemExit(6)", 6, "exit code 6"),
        (
            "os._exit(0)",
            1,
            "lost to the others: it left without a word (by os._exit?), and the others needed it [exit code 0]",
        ),
    ],
)
def test_the_failing_rank_is_named_and_its_peer_only_follows(launch, failure, code, text):
    result = launch("--nproc", 2, "--devices-per-process", 2, body=PROGRAM + STEPS + failure)
    assert result.code == code
    assert result.report.startswith(f"meshrt launch: rank 1 failed first: {text} (")
    assert FOLLOWS.search(result.report), result.report


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
    assert result.code == 0, result.err
    assert "[0] fetching" in result.out and result.out.count("sum 6.0 on 4 devices") == 4
    assert result.report.startswith("meshrt launch: rank 1 failed first: killed by SIGKILL (")
    assert "succeeded after 1 restart" in result.err


# --- without a launcher.


class Alone:
    """Processes that nobody watches, with their places in their environments."""

    def __init__(self, folder):
        self.folder, self.started = folder, []
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{s.getsockname()[1]}"

    def start(self, body, rank, count=2, **variables):
        script = self.folder / f"script{rank}.py"
        script.write_text(SETUP + body)
        own = ("MESHRT_", "JAX_", "XLA_FLAGS")
        env = {k: v for k, v in os.environ.items() if not k.startswith(own)} | {
            "JAX_COORDINATOR_ADDRESS": self.address, "JAX_NUM_PROCESSES": str(count), "JAX_PROCESS_ID": str(rank),
            "MESHRT_NUM_CPU_DEVICES": "1", "PYTHONPATH": str(Path(__file__).parents[3]), **variables,
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-u", str(script)], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.started.append(process)
        return process

    def __call__(self, *bodies, **variables):
        """Exit code and output of a process for each body."""
        started = [self.start(body, rank, len(bodies), **variables) for rank, body in enumerate(bodies)]
        return [(*p.communicate(timeout=HANGS_S), p.returncode) for p in started]


@pytest.fixture
def alone(tmp_path):
    found = Alone(tmp_path)
    yield found
    for process in found.started:
        if process.poll() is None:
            process.kill()
            process.wait()


SETUP = """
import os, signal, sys, time
import meshrt.distributed
from meshrt.errors import PeerLost, ProgramsDifferError
"""
JOB = """
meshrt.distributed.initialize(heartbeat_timeout_seconds=4)
import meshrt as jax, meshrt.numpy as jnp, numpy as np
me = jax.process_index()
s = jax.NamedSharding(jax.make_mesh((jax.device_count(),), ("d",)), jax.P("d"))
x = jax.make_array_from_callback((8, 4), s, lambda i: np.ones((8, 4), np.float32)[i])
@jax.jit
def total(x):
    return (x * 2).sum(0)
def steps(n):
    for i in range(n):
        total(x).block_until_ready()
steps(3)
since = time.monotonic()
def run_until_lost():
    try:
        steps(10**6)
    except PeerLost as e:
        print("lost", sorted(e.processes), round(time.monotonic() - since, 1), e, flush=True)
"""


def test_without_a_launcher_process_0_runs_the_service(alone):
    body = JOB + "print('sum', total(x)[0])"
    for out, err, code in alone(body, body):
        assert (code, out.splitlines()[-1]) == (0, "sum 16.0"), err


@pytest.mark.parametrize(
    ("deed", "code", "text"),
    [
        ("sys.exit(3)", 3, "its script ended after 3 programs together with others, which need it in more: process 0"),
        ("", 0, "its script ended after 3 programs"),
        ("os.kill(os.getpid(), 9)", -9, "its connection closed without a word"),
        ("raise ValueError('boom')", 1, "it raised ValueError: boom at "),
    ],
)
def test_a_process_that_leaves_is_a_peer_lost_to_the_other_at_once(alone, deed, code, text):
    (out, err, ok), (_, gone, left) = alone(JOB + "run_until_lost()", JOB + deed)
    assert (ok, left) == (0, code), err + gone
    word, who, _, why = out.splitlines()[-1].split(" ", 3)
    assert (word, who) == ("lost", "[1]") and text in why  # which says that it was not its silence that told


def test_a_stopped_process_is_named_and_the_collective_that_waits_for_it_broken_off(alone):
    stopping = "os.kill(os.getpid(), signal.SIGSTOP); run_until_lost()"
    other = alone.start(JOB + stopping, 1)
    one = alone.start(JOB + "run_until_lost()", 0)
    out, err = one.communicate(timeout=HANGS_S)
    assert one.returncode == 0, err
    assert "lost [1]" in out and "nothing was heard of it for " in out
    other.send_signal(signal.SIGCONT)
    other.communicate(timeout=HANGS_S)
    assert other.returncode != 0  # it wakes up in a job that has gone on without it


def test_a_process_that_stops_for_a_moment_only_is_waited_for(alone):
    stopping = (
        "import subprocess; subprocess.Popen(['sh', '-c', f'sleep 1.5; kill -CONT {os.getpid()}'])\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    after = "steps(30); print('sum', total(x)[0])"
    for out, err, code in alone(JOB + after, JOB + stopping + after):
        assert (out.splitlines()[-1], err, code) == ("sum 16.0", "", 0)


def test_losing_process_0_lets_the_others_leave_with_a_code_of_their_own(alone):
    """The runtime would abort them, at once or when they leave, as its service ran beside process 0."""
    (_, _, killed), (out, err, code) = alone(JOB + "os.kill(os.getpid(), 9)", JOB + "run_until_lost()\nsys.exit(17)")
    assert (killed, code, err) == (-9, 17, "")
    assert "\nlost [0] " in out


@pytest.mark.parametrize(
    ("then", "text"), [("steps(10**6)", "PeerLost: "), ("", "finished, and does not know whether the others do: ")]
)
def test_losing_the_service_alone_ends_every_process_by_one_error(alone, then, text):
    """jaxlib's client would abort them: its service is a process of its own beside process 0, and is killed here."""
    kill = (
        "import subprocess\n"
        "if me == 0: subprocess.run(['pkill', '-9', '-P', str(os.getpid()), '-f', 'serve.py'], check=True)\n"
        f"else: time.sleep(1)\n{then}"
    )
    lost = "the coordination service of the job was lost: the connection to it broke"
    for _, err, code in alone(JOB + kill, JOB + kill):
        assert code == 1 and f"{text}{lost}" in err and "Check failure" not in err, err


def test_a_process_that_others_wait_for_is_named_with_both_lines(alone):
    (out, err, code), (_, late, slow) = alone(JOB + "run_until_lost()", JOB + "time.sleep(6)", MESHRT_STALL_TIMEOUT="2")
    assert code == 0, err
    assert slow == 1 and "process 1 (" in late and "was lost: it kept others waiting" in late  # who went on without it
    assert "it kept others waiting" in out and "all_reduce at " in out and "script0.py" in out and "script1.py:" in out


DIFFERENT = (
    JOB
    + """
try:
    {}
except ProgramsDifferError as e:
    print("differ", e, flush=True)
    time.sleep(1)
"""
)


@pytest.mark.parametrize(
    ("one", "other", "texts"),
    [
        (
            "jax.jit(lambda x: x.sum())(x)",
            "jax.jit(lambda x: x.max())(x)",
            ["dense<0.000000e+00>", "script0.py:", "on 4x4xf32"],
        ),
        ("jax.jit(lambda x: x.sum())(x)", "jax.jit(lambda x: x.sum())(x[:, :2])", ["4x4xf32", "4x2xf32"]),
    ],
)
def test_processes_that_run_different_programs_are_told_what_differs(alone, one, other, texts):
    for out, err, code in alone(DIFFERENT.format(one), DIFFERENT.format(other)):
        assert code == 0 and "process 0 runs" in out and "process 1 runs" in out, err + out
        assert all(text in out for text in texts), out


def test_one_that_takes_a_new_program_where_the_others_take_one_that_all_know_is_told_at_once(alone):
    body = JOB + (
        "y = jax.make_array_from_callback((8, 2), s, lambda i: np.ones((8, 2), np.float32)[i])\n"
        "try:\n"
        "    for i in range(6): total(x if i < 3 or me == 0 else y).block_until_ready()\n"
        "except (PeerLost, ProgramsDifferError) as e: print(type(e).__name__, e, flush=True)\n"
    )
    (here, _, _), (there, err, code) = alone(body, body, MESHRT_STALL_TIMEOUT=str(HANGS_S - 60))
    assert "\nProgramsDifferError the processes" in there and "4x4xf32" in there and "4x2xf32" in there, (code, err)
    assert "\nPeerLost process 1" in here and "is about to launch total" in here and "4x2xf32 in process 1" in here


def test_known_programs_in_another_order_are_found_out(alone):
    body = JOB + (
        "other = jax.jit(lambda x: (x * 3).sum(0))\nother(x)\n"
        "try:\n"
        "    for i in range(10**6): (other if i == me else total)(x).block_until_ready(); time.sleep(0.05)\n"
        "except PeerLost as e: print('lost', e, flush=True)\n"
    )
    for out, err, code in alone(body, body):
        assert code == 0 and "it launched other programs than process" in out, err
        assert re.search(r"was total \(.*:\d+\) there and <lambda> \(.*:\d+\) here", out) or re.search(
            r"was <lambda> \(.*:\d+\) there and total \(.*:\d+\) here", out
        )


OTHER_AT_THE_END = """
other = jax.jit(lambda x: (x * 3).sum(0))
other(x)
for f in (total, other) if me else (other, total): f(x).block_until_ready()
"""


def test_known_programs_in_another_order_at_the_end_of_the_script_end_the_job(launch):
    body = SETUP + JOB.replace("heartbeat_timeout_seconds=4", "") + OTHER_AT_THE_END
    result = launch("--nproc", 2, "--devices-per-process", 1, body=body)
    assert result.code == 1 and "it launched other programs than process" in result.report


@pytest.mark.parametrize("after", ["", "time.sleep(3)"], ids=["at the end", "before work of the host"])
def test_known_programs_in_another_order_fail_all_processes_without_a_launcher(alone, after):
    body = JOB + OTHER_AT_THE_END + after
    for _, err, code in alone(body, body):
        assert code == 1 and "it launched other programs than process" in err, err


def test_a_launcher_blames_who_is_silent_and_who_finished_early(launch):
    body = (
        SETUP
        + JOB.replace("heartbeat_timeout_seconds=4", "")
        + (
            "if me == 1 and os.environ['DEED'] == 'stop': os.kill(os.getpid(), signal.SIGSTOP)\n"
            "if me == 0: steps(10**6)\n"
        )
    )
    for deed, text in (("stop", "nothing was heard of it for "), ("leave", "its script ended after 3 programs")):
        options = ("--nproc", 2, "--devices-per-process", 1, "--heartbeat-timeout", 4, "--env", f"DEED={deed}")
        result = launch(*options, body=body)
        assert result.code == 1 and result.report.startswith("meshrt launch: rank 1 failed first: lost to the others")
        assert text in result.report and FOLLOWS.search(result.report), result.report


ELASTIC = (
    SETUP
    + """
meshrt.distributed.initialize()
import meshrt as jax, numpy as np
job = meshrt.distributed.elastic(min_processes=int(os.environ.get("AT_LEAST", 1)))
me, total = jax.process_index(), jax.jit(lambda x: x.sum(0))
while not job.finished:
    with job:
        n = jax.device_count()
        s = jax.NamedSharding(jax.make_mesh((n,), ("d",)), jax.P("d"))
        x = jax.make_array_from_callback((n, 2), s, lambda i: np.ones((n, 2), np.float32)[i])
        for step in range(8):
            y = total(x).block_until_ready()
            if step == 3 and job.generation == 0 and me == 0:
                os.kill(os.getpid(), 9)
print("sum", y, "as", jax.process_index(), "of", jax.process_count(), "generation", job.generation)
"""
)


def test_those_that_are_left_go_on_in_the_same_processes_also_without_process_0(alone):
    _, one, two = alone(ELASTIC, ELASTIC, ELASTIC)
    for new, (out, err, code) in enumerate((one, two)):
        assert code == 0, err
        assert out.splitlines()[-1] == f"sum [2. 2.] as {new} of 2 generation 1"
        assert "going on without those that were lost: process 0" in err


def test_with_too_few_left_the_loss_reaches_the_caller(alone):
    _, (_, err, code) = alone(ELASTIC, ELASTIC, AT_LEAST="2")
    assert code == 1 and "PeerLost: process 0" in err


def test_beside_a_launcher_all_are_started_again(launch):
    body = ELASTIC.replace("job.generation == 0", "os.environ['MESHRT_GENERATION'] == '0'")
    result = launch("--nproc", 2, "--devices-per-process", 1, "--max-restarts", 1, body=body)
    assert result.code == 0 and result.out.count("sum [2. 2.]") == 2, result.err
    assert "rank 0 failed first: killed by SIGKILL" in result.report


STORE = """
from meshrt import distributed
from meshrt.errors import DistributedError
distributed.initialize()
me = distributed.context().node_id
def outcome(call):
    try:
        return call()
    except DistributedError as e:
        return f"{type(e).__name__}: {e}".replace(chr(10), " ")
if me == 0:
    time.sleep(0.2)
    distributed.key_value_set("port", "4711")
print(distributed.key_value_get("port"))
distributed.barrier("read")
if me == 0:
    print(outcome(lambda: distributed.key_value_set("port", b"1")))
    distributed.key_value_delete("port")
    print(outcome(lambda: distributed.key_value_get("port", 0.1)))
    print(outcome(lambda: distributed.barrier("nobody", 0.1)))
    print(outcome(lambda: distributed.barrier("others", processes=[1])))
    distributed.key_value_set("done", b"")
else:
    distributed.key_value_get("done")
    sys.exit(0)
print(outcome(lambda: distributed.barrier("gone")))
"""


def test_values_and_barriers(alone):
    (out, err, code), (other, _, _) = alone(SETUP + STORE, SETUP + STORE)
    assert code == 0, err
    value, taken, missing, late, foreign, gone = out.splitlines()
    assert value == "b'4711'" == other.strip()
    assert "'port' cannot be set" in taken and "no process has set 'port' within 0.1 s" in missing
    assert "not all of the processes 0,1 came there" in late and "process 0 is not one of [1]" in foreign
    assert gone == "PeerLost: barrier 'gone': process 1 ended its script"


def test_one_process_compiles_and_the_others_load(alone, tmp_path):
    setting = f"import meshrt\nmeshrt.config.update('compilation_cache_dir', {str(tmp_path / 'cache')!r})\n"
    body = (
        setting
        + JOB
        + (
            "from meshrt.runtime import events\n"
            "with events.count('compile') as n: jax.jit(lambda x: (x - 1).max(0))(x).block_until_ready()\n"
            "print('compiled', n.compile)"
        )
    )
    found = alone(body, body)
    assert all(code == 0 for _, _, code in found), found
    assert sum(int(out.split()[-1]) for out, _, _ in found) == 1, found


def test_ranks_of_a_launcher_share_what_one_compiles_without_being_told_to(launch):
    body = (
        "import meshrt\nmeshrt.distributed.initialize()\n"
        "import meshrt.numpy as jnp\nfrom meshrt.runtime import events\n"
        "split = meshrt.NamedSharding(meshrt.make_mesh((2,), ('x',)), meshrt.P('x'))\n"
        "x = meshrt.make_array_from_callback((2,), split, lambda i: __import__('numpy').ones(1))\n"
        "with events.count('compile') as n: value = float(meshrt.jit(lambda x: x.sum() * (generation + 2))(x))\n"
        "print('compiled', n.compile, value, os.path.isdir(os.environ['MESHRT_COMPILATION_CACHE_DIR']),\n"
        "      os.environ['MESHRT_COMPILATION_CACHE_DIR'])\n"
    )
    result = launch("--nproc", 2, "--devices-per-process", 1, body=body)
    found = [line.split() for line in result.out.splitlines()]
    assert sorted(line[2] for line in found) == ["0", "1"] and {(*line[3:5],) for line in found} == {("4.0", "True")}
    assert not os.path.exists(found[0][-1]), "it goes with the job"
    own = launch.folder / "own"
    result = launch("--nproc", 2, "--devices-per-process", 1, "--env", f"MESHRT_COMPILATION_CACHE_DIR={own}", body=body)
    assert result.out.count(f"True {own}") == 2 and list(own.iterdir()), result.err


# Both have imported everything before either begins to wait for the other.
ENTERING = """
from pathlib import Path
Path(__file__).with_suffix(".ready").touch()
while len(list(Path(__file__).parent.glob("*.ready"))) < 2:
    time.sleep(0.01)
try:
    meshrt.distributed.initialize(initialization_timeout=10)
except Exception as e:
    print(type(e).__name__, e, flush=True)
"""


def test_different_numbers_of_processes_are_refused_by_name(alone):
    one, two = alone.start(ENTERING, 0, count=2), alone.start(ENTERING, 1, count=3)
    outs = [p.communicate(timeout=HANGS_S)[0] for p in (one, two)]
    assert all("process 1 on host" in out and "as one of 3 processes, but this job has 2" in out for out in outs), outs


def test_a_process_without_the_secret_may_not_join(alone):
    one = alone.start(ENTERING.replace("=10", "=3"), 0, MESHRT_JOB_SECRET="abc")
    two = alone.start(ENTERING, 1, MESHRT_JOB_SECRET="abd")
    outs = [p.communicate(timeout=HANGS_S)[0] for p in (one, two)]
    assert "process 1 did not join the job within 3 s" in outs[0]
    assert "it does not know this job's secret (MESHRT_JOB_SECRET)" in outs[1]
