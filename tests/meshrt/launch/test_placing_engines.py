"""Jobs that engines really place: by ssh to loopback, in a small Slurm, by MPIs, in a small Ray cluster, by a kubectl
that stands for a cluster. Each is left out where its system is not installed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")

# Two ranks that meet, by what the engine tells them.
MEET = """\
import os, sys
import meshrt
meshrt.distributed.initialize(*sys.argv[1:2])
from meshrt.experimental import multihost_utils
import meshrt.numpy as jnp
total = multihost_utils.process_allgather(jnp.float32(meshrt.process_index())).sum()
print(f"rank {meshrt.process_index()} of {meshrt.process_count()}: {total}", os.environ["MARK"])
"""
FAIL = """\
import os, sys, time
names = ("MESHRT_PROCESS_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
rank = int(next(os.environ[name] for name in names if name in os.environ))
print("here", rank, flush=True)
if rank == 1:
    sys.exit(3)
time.sleep(60)
"""
STAY = """\
import os, subprocess, time
child = subprocess.Popen(["setsid", "sleep", "60"])
print("pids", os.getpid(), child.pid, flush=True)
time.sleep(60)
"""


class Engine:
    """The arguments of `meshrt launch` that place two ranks, and what comes before them."""

    def __init__(self, *arguments: object, code: int = 3, before: tuple[str, ...] = (), **variables: str):
        self.arguments, self.code, self.before, self.variables = arguments, code, before, variables

    @property
    def direct(self) -> Engine:
        """The engine starts the ranks itself."""
        return Engine(*self.arguments, "--no-agents", code=self.code, before=self.before, **self.variables)

    def start(self, folder: Path, body: str, *of_script: str) -> subprocess.Popen:
        script = folder / "script.py"
        script.write_text(body)
        command = [
            *self.before, sys.executable, "-m", "meshrt", "launch", "--grace", "1", "--env", "MARK=m a r k",
            *map(str, self.arguments), str(script), *of_script,
        ]  # fmt: skip
        root = str(Path(__file__).parents[3])
        environ = {**os.environ, **self.variables, "PYTHONPATH": root, "MESHRT_NUM_CPU_DEVICES": "1"}
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=environ
        )


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None and not Path("/usr/sbin", program).exists():
            pytest.skip(f"{program} is not installed")


def await_true(done: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


# --- the systems.


@pytest.fixture(scope="module")
def ssh(tmp_path_factory) -> Iterator[Engine]:
    needs("sshd", "ssh", "ssh-keygen")
    folder, port = tmp_path_factory.mktemp("ssh"), free_port()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    shutil.copy(folder / "user.pub", folder / "allowed")
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/allowed\n"
        f"StrictModes no\nUsePAM no\nPidFile none\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", folder / "config", "-E", folder / "log"])
    options = (
        f"-p {port} -i {folder}/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    )
    try:
        if not await_true(lambda: _listens(port), 10) or server.poll() is not None:
            pytest.skip(f"sshd does not start here: {(folder / 'log').read_text()[-200:]}")
        yield Engine("--engine", "ssh", "--hosts", "127.0.0.1:2", "-o", f"arguments={options}")
    finally:
        server.terminate()
        server.wait()


def _listens(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def slurm(tmp_path_factory) -> Iterator[Engine]:
    needs("slurmctld", "slurmd", "srun", "salloc", "munged")
    if os.geteuid() != 0:
        pytest.skip("a Slurm of our own needs root")
    folder = tmp_path_factory.mktemp("slurm")
    munge = None
    munge_works = lambda: (
        not subprocess.run("munge -n | unmunge", shell=True, capture_output=True, check=False).returncode
    )
    if not munge_works():
        subprocess.run(["install", "-d", "-o", "munge", "-g", "munge", "-m", "755", "/run/munge"], check=True)
        munge = folder / "munged.pid"
        shutil.chown(folder, "munge")
        os.chmod(folder.parent, 0o711)
        os.chmod(folder.parent.parent, 0o711)
        subprocess.run(["runuser", "-u", "munge", "--", "/usr/sbin/munged", f"--pid-file={munge}"], check=False)
        if not await_true(munge_works, 10):
            pytest.skip("munged does not start here")
    ports = [free_port() for _ in range(3)]
    for name in ("state", "spool-n0", "spool-n1"):
        (folder / name).mkdir()
    config = folder / "slurm.conf"
    config.write_text(f"""\
ClusterName=meshrt
SlurmctldHost=localhost
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=2
SchedulerType=sched/builtin
NodeName=n0 NodeHostname=localhost NodeAddr=127.0.1.1 Port={ports[1]} CPUs=2 State=UNKNOWN
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.1.2 Port={ports[2]} CPUs=2 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
""")
    environ = {**os.environ, "SLURM_CONF": str(config)}
    ask = lambda *command: subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    try:
        ask("slurmctld", "-c", "-f", str(config))
        for name in ("n0", "n1"):
            ask("slurmd", "-N", name, "-f", str(config))
        if not await_true(lambda: ask("sinfo", "-h", "-o", "%T %D").stdout.strip() == "idle 2", 20):
            pytest.skip(f"Slurm does not start here: {ask('sinfo').stdout}{ask('sinfo').stderr}")
        engine = Engine("--engine", "slurm", "--nodes", "2", SLURM_CONF=str(config))
        engine.ask = ask
        yield engine
    finally:
        ask("scontrol", "shutdown")
        if munge is not None:
            os.kill(int(munge.read_text()), signal.SIGTERM)


@pytest.fixture(scope="module")
def openmpi() -> Engine:
    needs("mpirun.openmpi")
    arguments = "--oversubscribe --mca oob_tcp_if_include lo --mca btl_tcp_if_include lo"
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return Engine(
        "--engine", "mpi", "--nproc", "2", "-o", "mpirun=mpirun.openmpi", "-o", f"arguments={arguments}", **root
    )


@pytest.fixture(scope="module")
def mpich() -> Engine:
    needs("mpiexec.hydra")
    return Engine("--engine", "mpi", "--nproc", "2", "-o", "mpirun=mpiexec.hydra")


# --- what each must do.

ENGINES = ["ssh", "slurm", "openmpi", pytest.param("mpich", marks=pytest.mark.slow)]


@pytest.fixture
def engine(request) -> Engine:
    """Without agents."""
    return request.getfixturevalue(request.param).direct


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_ranks_find_each_other(engine, tmp_path):
    # The hosts of that Slurm have no names of their own, and are told where the first one is.
    told = [f"127.0.0.1:{free_port()}"] if "slurm" in engine.arguments else []
    out, err = (process := engine.start(tmp_path, MEET, *told)).communicate(timeout=100)
    assert process.returncode == 0, err
    assert sorted(out.splitlines()) == [f"[{r}] rank {r} of 2: 1.0 m a r k" for r in range(2)]


# MPICH ends the others only of programs that speak MPI; ranks that have met hear of it from each other.
@pytest.mark.parametrize("engine", ["ssh", "slurm", "openmpi"], indirect=True)
def test_one_that_fails_ends_the_others_and_gives_its_code(engine, tmp_path):
    out, err = (process := engine.start(tmp_path, FAIL)).communicate(timeout=60)
    assert process.returncode == 3 and "failed first: exit code 3" in err, err
    assert "[1] here 1" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda n: n.name)
@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_nobody_is_left_behind(engine, tmp_path, number):
    process = engine.start(tmp_path, STAY)
    pids = []
    for _ in range(2):
        while "pids" not in (line := process.stdout.readline()):
            assert line, process.stderr.read()
        pids += [int(pid) for pid in line.split()[-2:]]
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -9)
    assert await_true(lambda: not any(map(_alive, pids)), 20), [Path(f"/proc/{p}/cmdline").read_text() for p in pids]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("more", "why"), [(["--no-agents"], "rank 0 failed first: exit code 255"), ([], "what places an agent there ended")]
)
def test_an_unknown_host_is_one_clear_failure(ssh, tmp_path, more, why):
    wrong = Engine("--engine", "ssh", "--hosts", "127.0.0.1", "-o", f"arguments=-p {free_port()}", *more)
    _, err = (process := wrong.start(tmp_path, STAY)).communicate(timeout=60)
    assert process.returncode == 255 and "Connection refused" in err and why in err


def test_the_doctor_visits_hosts(ssh):
    doctor = [sys.executable, "-m", "meshrt", "doctor", "--no-devices", "-o", ssh.arguments[-1], "--hosts"]
    ask = lambda *words: subprocess.run([*doctor, *words], capture_output=True, text=True, timeout=100, check=False)
    done = ask("127.0.0.1,localhost", "--json")
    found = json.loads(done.stdout)
    assert [h["host"] for h in found["hosts"]] == ["127.0.0.1", "localhost"], done.stderr
    for host in found["hosts"]:
        assert abs(host["clock"]) < 60 and host["facts"]["reach"] >= 0 and host["facts"]["packages"]["jaxlib"]
    assert done.returncode == int(any(p["severity"] == "error" for p in found["problems"]))
    done = ask("no.such.host.invalid")
    assert done.returncode == 1 and "cannot be examined" in done.stdout


# --- with an agent on each host.

AGENTS = {
    "ssh": ["--hosts", "127.0.0.1,localhost", "--nproc", "1"],
    "slurm": ["--listen", "127.0.0.1:0"],
    "openmpi": [],
    "mpich": [],
}
# In the first generation rank 1 fails; the next one is whole.
AGAIN = """\
import os, sys
import meshrt
meshrt.distributed.initialize()
if os.environ["MESHRT_GENERATION"] == "0" and meshrt.process_index() == 1:
    raise ValueError("bad batch")
meshrt.distributed.barrier("all")
print("rank", meshrt.process_index(), "of", meshrt.process_count())
"""


@pytest.fixture
def with_agents(request) -> Engine:
    engine = request.getfixturevalue(request.param)
    return Engine(*engine.arguments, *AGENTS[request.param], **engine.variables)


@pytest.mark.parametrize(
    "with_agents",
    [pytest.param(n, marks=[pytest.mark.slow] * (n not in ("ssh", "slurm"))) for n in AGENTS],
    indirect=True,
)
def test_the_first_cause_is_named_and_the_job_starts_again(with_agents, tmp_path):
    pytest.importorskip("grpc", reason="agents need gRPC")
    engine = Engine(*with_agents.arguments, "--max-restarts", "1", **with_agents.variables)
    out, err = (process := engine.start(tmp_path, AGAIN)).communicate(timeout=100)
    assert process.returncode == 0, err
    assert sorted(line.partition("] ")[2] for line in out.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
    assert "rank 1 on " in err and "ValueError: bad batch" in err and "succeeded after 1 restart" in err


@pytest.mark.parametrize(
    "with_agents",
    [pytest.param(n, marks=[pytest.mark.slow] * (n not in ("ssh", "slurm"))) for n in AGENTS],
    indirect=True,
)
def test_agents_leave_nobody_behind_a_launcher_that_was_killed(with_agents, tmp_path):
    pytest.importorskip("grpc", reason="agents need gRPC")
    process, pids = with_agents.start(tmp_path, STAY), list[int]()
    for _ in range(2):
        while "pids" not in (line := process.stdout.readline()):
            assert line, process.stderr.read()
        pids += [int(pid) for pid in line.split()[-2:]]
    process.kill()
    process.communicate(timeout=60)
    assert await_true(lambda: not any(map(_alive, pids)), 30)


def test_a_batch_job_is_left_to_slurm(slurm, tmp_path):
    detached = Engine(*slurm.direct.arguments, "--detach", "-o", f"output={tmp_path}/out", **slurm.variables)
    out, err = (
        process := detached.start(tmp_path, "import os; print('node', os.environ['SLURMD_NODENAME'])")
    ).communicate(timeout=60)
    assert process.returncode == 0 and out.strip().isdigit(), err
    assert await_true(lambda: slurm.ask("squeue", "-h").stdout == "", 60)
    assert sorted(line.split()[-1] for line in (tmp_path / "out").read_text().splitlines()) == ["n0", "n1"]


def test_logs_are_by_rank(openmpi, tmp_path):
    logged = Engine(*openmpi.direct.arguments, "--log-dir", tmp_path / "logs", **openmpi.variables)
    body = "import os; print('I am', os.environ['OMPI_COMM_WORLD_RANK'])"
    assert logged.start(tmp_path, body).wait(timeout=60) == 0
    assert [(tmp_path / f"logs/g0000/r000{r}.log").read_text() for r in range(2)] == ["I am 0\n", "I am 1\n"]


# --- Ray.

CLUSTER = """\
import sys, ray
ray.init(address="local", num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1",
         object_store_memory=100 * 2**20, log_to_driver=False)
print(ray.get_runtime_context().gcs_address, flush=True)
open(0, "rb", buffering=0).read()
"""


def ray_python() -> str:
    """An interpreter that has ray: this one, or the one that MESHRT_TEST_RAY_PYTHON names."""
    if named := os.environ.get("MESHRT_TEST_RAY_PYTHON"):
        return named
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed, and MESHRT_TEST_RAY_PYTHON names no interpreter that has it")
    return sys.executable


@pytest.mark.slow
def test_ranks_in_a_ray_cluster(tmp_path):
    """In a network of its own, as Ray listens on all addresses."""
    python = ray_python()
    if subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespaces here")
    environ = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    cluster = subprocess.Popen(
        ["unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", python, "-c", CLUSTER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ,
    )  # fmt: skip
    try:
        while ":" not in (address := cluster.stdout.readline().strip()):
            assert cluster.poll() is None, "the cluster does not start"
        inside = ("nsenter", f"--net=/proc/{cluster.pid}/ns/net")
        options = ("--engine", "ray", "-o", f"address={address}", "-o", f"ray_python={python}")
        engine = Engine(*options, "--no-agents", "--nproc", "2", before=inside, RAY_AUTH_MODE="disabled")
        out, err = (process := engine.start(tmp_path, MEET)).communicate(timeout=100)
        assert process.returncode == 0, err
        assert sorted(out.splitlines()) == [f"[{r}] rank {r} of 2: 1.0 m a r k" for r in range(2)]
        process = engine.start(tmp_path, FAIL)
        assert process.wait(timeout=100) == 3 and "rank 1 failed first: exit code 3" in process.stderr.read()
        process = engine.start(tmp_path, STAY)
        pids = [int(pid) for _ in range(2) for pid in process.stdout.readline().split()[-2:]]
        process.kill()
        process.communicate(timeout=60)
        assert await_true(lambda: not any(map(_alive, pids)), 30)
        placed = ("--nodes", "2", "--nproc", "1", "--listen", "127.0.0.1:0", "--max-restarts", "1")
        agents = Engine(*options, *placed, before=inside, RAY_AUTH_MODE="disabled")
        _, err = (process := agents.start(tmp_path, AGAIN)).communicate(timeout=200)
        assert process.returncode == 0 and "rank 1 on ray1 failed first: ValueError: bad batch" in err, err
    finally:
        cluster.stdin.close()
        cluster.wait(timeout=60)


# --- Kubernetes: a kubectl that keeps what it is given in a folder, and follows a story of the pods.

KUBECTL = """\
import json, os, sys
from pathlib import Path
folder, words = Path(__file__).parent, sys.argv[1:]
with open(folder / "calls", "a") as file:
    print(*words, file=file)
story = json.loads((folder / "story").read_text())
if words[0] == "apply":
    if story.get("refused"):
        sys.exit(story["refused"])
    (folder / "applied").write_text(sys.stdin.read())
elif words[0] == "logs":
    print("2030-01-01T00:00:00.5Z hello from", words[-1])
elif words[:2] == ["get", "pods"]:
    print(json.dumps({"items": story["pods"]}))
elif words[0] == "get":
    count = sum(line.startswith("get job") for line in (folder / "calls").read_text().splitlines())
    print(json.dumps({"status": {"conditions": story["conditions"] if count >= story.get("after", 1) else []}}))
"""


def pod(index: int, phase: str, **state: object) -> dict:
    return {
        "metadata": {"name": f"p-{index}", "labels": {"batch.kubernetes.io/job-completion-index": str(index)}},
        "status": {"phase": phase, "containerStatuses": [{"state": state}]},
    }


@pytest.fixture
def kubectl(tmp_path):
    def tell(**story) -> Engine:
        (tmp_path / "kubectl.py").write_text(KUBECTL)
        (tmp_path / "story").write_text(json.dumps(story))
        program = tmp_path / "kubectl"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/kubectl.py "$@"\n')
        program.chmod(0o755)
        return Engine("--engine", "kubernetes", "--nodes", "2", "-o", "image=i", "-o", f"kubectl={program}")

    return tell


def calls(folder: Path) -> list[str]:
    return [line.split()[0] for line in (folder / "calls").read_text().splitlines()]


def test_pods_are_followed_and_taken_away(kubectl, tmp_path):
    engine = kubectl(
        pods=[pod(i, "Succeeded", terminated={"exitCode": 0}) for i in range(2)],
        conditions=[{"type": "Complete", "status": "True"}],
    )
    out, err = (process := engine.start(tmp_path, "")).communicate(timeout=60)
    assert process.returncode == 0, err
    assert sorted(out.splitlines()) == ["[0] hello from pod/p-0", "[1] hello from pod/p-1"]
    kinds = [item["kind"] for item in json.loads((tmp_path / "applied").read_text())["items"]]
    assert kinds == ["Secret", "Service", "Job"] and calls(tmp_path)[-1] == "delete"


def test_the_first_pod_that_failed_gives_the_code(kubectl, tmp_path):
    engine = kubectl(
        pods=[
            pod(0, "Failed", terminated={"exitCode": 9, "finishedAt": "2030-01-01T00:00:02Z", "reason": "Error"}),
            pod(1, "Failed", terminated={"exitCode": 3, "finishedAt": "2030-01-01T00:00:01Z", "reason": "Error"}),
        ],
        conditions=[{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}],
    )
    _, err = (process := engine.start(tmp_path, "")).communicate(timeout=60)
    assert process.returncode == 3 and "rank 1 (pod p-1) failed: exit code 3" in err and "BackoffLimit" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda n: n.name)
def test_a_launcher_that_ends_takes_its_pods_along(kubectl, tmp_path, number):
    waiting = pod(0, "Pending", waiting={"reason": "ImagePullBackOff"})
    process = kubectl(pods=[waiting], conditions=[], after=99).start(tmp_path, "")
    while "waits: ImagePullBackOff" not in (line := process.stderr.readline()):
        assert line
    process.send_signal(number)
    process.communicate(timeout=60)
    assert await_true(lambda: calls(tmp_path)[-1] == "delete", 20)


def test_a_cluster_that_refuses(kubectl, tmp_path):
    _, err = (process := kubectl(refused="no such namespace").start(tmp_path, "")).communicate(timeout=60)
    assert process.returncode == 2 and "did not take the job: no such namespace" in err
