"""Plans of the engines that reach other hosts, what people see of them, and what is refused."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
import time

import jsonschema
import pytest

from meshrt.cli import _launch_hosts
from meshrt.cli.main import main
from meshrt.errors import ConfigError
from meshrt.launch import environment, hostlist, placing, settings
from meshrt.launch.hostlist import Host
from meshrt.launch.output import Console
from meshrt.launch.placing import _kubernetes_driver, _ray_driver, job, plans, runner
from meshrt.launch.placing.plans import Wanted, Work
from meshrt.launch.shell import Job

from .processes import gone

SECRET = "0123456789abcdef"


def wanted(**fields) -> Wanted:
    work = Work(("train.py", "--steps", "3"), {"A": "b c"}, {environment.SECRET: SECRET}, "/work dir")
    return Wanted(**{"name": "meshrt-train-1a2b3c", "work": work, **fields})


def shown(engine: str, **fields) -> str:
    text = plans.described(placing.module(engine).plan(wanted(**fields)))
    assert SECRET not in text, "secrets are for machines"
    return text


# --- lists of hosts.


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", [("a", None)]),
        ("a,b:2", [("a", None), ("b", 2)]),
        ("me@n[01-02,7]:3", [("me@n01", 3), ("me@n02", 3), ("me@n7", 3)]),
        ("[::1],10.0.0.2", [("[::1]", None), ("10.0.0.2", None)]),
        (" a , b ", [("a", None), ("b", None)]),
    ],
)
def test_lists_of_hosts(text, hosts):
    assert [(h.name, h.slots) for h in hostlist.parse_hosts(text)] == hosts


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no host"),
        (",", "names no host"),
        ("a,a", "more than once"),
        ("a:x", "behind the colon"),
        ("a:0", "no process"),
        ("-oProxyCommand=x", "not the name of a host"),
        ("a;rm", "not the name of a host"),
        ("n[1-", "not"),
        ("n[5-2]", "not a range"),
    ],
)
def test_what_is_no_list_of_hosts(text, why):
    with pytest.raises(ConfigError, match=why):
        hostlist.parse_hosts(text)


def test_hostfiles(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# the cluster\nnode1 slots=2 max_slots=4\n\nnode2:3  # bigger\nnode[3-4]\n")
    assert hostlist.read_hostfile(file) == (
        Host("node1", 2), Host("node2", 3), Host("node3", None), Host("node4", None),
    )  # fmt: skip
    file.write_text("node1\nnode2 cores=2\n")
    with pytest.raises(ConfigError, match="line 2: 'node2 cores=2'"):
        hostlist.read_hostfile(file)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        hostlist.read_hostfile(tmp_path / "none")


# --- what users get wrong.


@pytest.mark.parametrize(
    ("engine", "fields", "why"),
    [
        ("ssh", {}, "needs hosts"),
        ("ssh", {"hosts": (Host("a"),), "options": {"colour": "red"}}, "no such option; its options are: ssh, arg"),
        ("ssh", {"hosts": (Host("a"),), "options": {"arguments": 3}}, "takes a list of words"),
        ("ssh", {"hosts": (Host("a"),), "detach": True}, "nobody to leave the job to"),
        ("slurm", {"options": {"cpus_per_task": "many"}}, "takes a whole number"),
        ("slurm", {"hosts": (Host("a", 1), Host("b", 2))}, "different numbers of processes"),
        ("slurm", {"hosts": (Host("a"), Host("b")), "nodes": 3}, "--hosts names 2"),
        ("mpi", {"options": {"mpirun": "no-such-mpirun"}}, "not on the PATH"),
        ("mpi", {"options": {"mpirun": "true"}}, "neither Open MPI nor MPICH"),
        ("mpi", {"options": {"flavour": "lam"}}, "known are: openmpi, mpich"),
        ("ray", {"hosts": (Host("a"),)}, "--nodes N in place of --hosts"),
        ("ray", {"options": {"strategy": "NEAR", "ray_python": "py"}}, "known are: PACK"),
        ("kubernetes", {}, "needs an image"),
        ("kubernetes", {"options": {"image": "i", "kind": "pod"}}, "known are: job, jobset"),
        ("kubernetes", {"options": {"image": "i"}, "max_restarts": 2}, "kind=jobset can"),
        ("kubernetes", {"options": {"image": "i", "resources": "gpu"}}, "takes a table"),
    ],
)
def test_what_is_refused(engine, fields, why):
    with pytest.raises(ConfigError, match=why):
        placing.module(engine).plan(wanted(**fields))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"listen": 3}, "listen = 3"),
        ({"agents": "no"}, "agents = 'no'"),
        ({"hosts": 3}, "hosts = 3"),
        ({"hosts": "a", "hostfile": "f"}, "leave the other one out"),
        ({"options": "x"}, "options = 'x'"),
    ],
)
def test_settings_that_are_refused(given, why):
    with pytest.raises(ConfigError, match=re.escape(why)):
        settings.Settings(**given)


def test_options_come_from_the_file_and_the_command_line(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text(
        'engine = "slurm"\nnodes = 2\n'.join(["[launch]\n", '[launch.options]\npartition = "a"\nstep = ["-v"]\n'])
    )
    read = settings.override(settings.read(file), options={"partition": "b"}, env={})
    assert (read.options, read.nodes) == ({"partition": "b", "step": ["-v"]}, (2, 2))
    script = tmp_path / "train.py"
    script.touch()
    text = plans.described(job.plan(Job(read, ("script", str(script))), environ={}))
    assert "--partition=b" in text and " -v " in text


# --- plans.


def test_ssh_tells_nothing_on_the_command_line():
    plan = placing.module("ssh").plan(wanted(hosts=(Host("me@a", 2), Host("b")), options={"arguments": "-p 2222"}))
    assert [front.name for front in plan.fronts] == ["0", "1", "2"]
    told = [json.loads(front.stdin) for front in plan.fronts]
    assert all(front.command[-3:-1] == ("--", host) for front, host in zip(plan.fronts, ("me@a", "me@a", "b")))
    assert all("train.py" not in " ".join(front.command) and "2222" in front.command for front in plan.fronts)
    assert told[2]["command"][-4:] == ["script", "train.py", "--steps", "3"] and told[2]["directory"] == "/work dir"
    variables = told[2]["variables"]
    assert variables["MESHRT_PROCESS_ID"] == "2" and variables["MESHRT_NUM_PROCESSES"] == "3"
    assert variables["MESHRT_COORDINATOR_ADDRESS"].startswith("a:") and variables["MESHRT_JOB_SECRET"] == SECRET
    text = shown("ssh", hosts=(Host("a"),))
    assert "ssh -o BatchMode=yes" in text and plans.HIDDEN in text


def test_slurm_outside_of_an_allocation_asks_for_one():
    text = shown("slurm", nodes=2, per_host=4, timeout=90, options={"partition": "gpu", "gpus_per_node": "4"})
    size = "--nodes=2 --ntasks=8 --ntasks-per-node=4"
    head, _, step = text.partition(" srun ")
    assert f"salloc --quiet {size} --job-name=meshrt-train-1a2b3c --partition=gpu" in head
    assert "--gpus-per-node=4" in head and "--time=2" in head and "A='b c'" in head
    assert step.startswith(size) and "'--chdir=/work dir'" in step and step.endswith("train.py --steps 3")


def test_slurm_within_an_allocation_is_a_step_of_it():
    text = shown("slurm", per_host=2, environ={"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3"})
    assert "salloc" not in text and "srun --nodes=3 --ntasks=6 --ntasks-per-node=2" in text
    text = shown("slurm", hosts=(Host("a"), Host("b")), environ={"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3"})
    assert "--nodes=2 --ntasks=2 --ntasks-per-node=1 --nodelist=a,b" in text


def test_slurm_detached_is_a_batch_script():
    text = shown("slurm", nodes=2, detach=True, options={"output": "out-%j", "requeue": "true"})
    command, *script = text.splitlines()[1:-1]
    assert command.endswith("sbatch --parsable <<'END'") and script[0] == "#!/bin/sh"
    assert {"#SBATCH --nodes=2", "#SBATCH --output=out-%j", "#SBATCH --requeue"} <= set(script)
    assert script[-1].startswith("exec srun --nodes=2") and script[-1].endswith("train.py --steps 3")


@pytest.mark.parametrize(
    ("flavour", "fields", "parts"),
    [
        ("openmpi", {"per_host": 2}, ["-n 2 ", "-x A -x MESHRT_JOB_SECRET", "--wdir '/work dir'"]),
        ("openmpi", {"hosts": (Host("a"), Host("b")), "per_host": 2}, ["--host a:2,b:2", "-n 4", "ppr:2:node"]),
        ("mpich", {"hosts": (Host("a"), Host("b"))}, ["-hosts a,b", "-ppn 1", "-genvlist A,MESHRT_JOB_SECRET"]),
    ],
)
def test_mpi_passes_variables_on_by_name(flavour, fields, parts):
    text = shown("mpi", options={"flavour": flavour, "arguments": "--mca x y"}, **fields)
    assert all(part in text for part in [*parts, "--mca x y", "train.py --steps 3"])


def test_a_process_that_an_actor_cannot_start_has_ended():
    holder = _ray_driver.Holder()
    holder.start(["/no/such/python"], b"")
    (stream, line), (what, code) = holder.read(5.0)
    assert (stream, what, code) == ("stderr", "exit", 2)
    assert line.startswith(b"meshrt launch: cannot start /no/such/python: ") and line.endswith(b"\n")
    holder.stop()


def test_the_scripts_own_flags_stay_where_the_launcher_is_started_again():
    words = ["launch", "--engine", "slurm", "--detach", "train.py", "--dry-run", "--detach"]
    again = _launch_hosts._without(words, 2, "--detach", "--dry-run")
    assert again == ("launch", "--engine", "slurm", "train.py", "--dry-run", "--detach")


def test_ray_is_shown_as_what_it_does():
    text = shown("ray", nodes=2, per_host=2, options={"cpus": 3, "ray_python": "py"}, environ={"RAY_ADDRESS": "h:1"})
    assert "ray.init('h:1')" in text and '[{"CPU": 6}, {"CPU": 6}]' in text


def test_agents_are_told_where_the_launcher_is():
    work = Work(("-m", "meshrt", "launch", "agent"), secrets={environment.SECRET: SECRET}, ranks=False)
    text = shown("ssh", hosts=(Host("a", 2), Host("b")), work=work)
    assert text.count('"MESHRT_AGENT_NAME": "a"') == 1 and "MESHRT_PROCESS_ID" not in text
    text = shown("slurm", nodes=2, per_host=8, work=work)
    assert "--ntasks=2 --ntasks-per-node=1" in text and "--label" not in text
    again = ("python", "-m", "meshrt", "launch", "--engine", "slurm", "train.py")
    text = shown("slurm", nodes=2, work=work, detach=True, again=again)
    assert text.splitlines()[-2] == "exec " + " ".join(again), "the launcher itself runs in the batch job"


# --- Kubernetes.

_NAME = {"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"}


def _strict(properties: dict, *required: str) -> dict:
    return {
        "type": "object", "properties": properties, "additionalProperties": False,
        "required": list(required or properties),
    }  # fmt: skip


# What we write of jobset.x-k8s.io/v1alpha2, which has no published schema among the packages.
JOBSET = _strict({
    "apiVersion": {"const": "jobset.x-k8s.io/v1alpha2"},
    "kind": {"const": "JobSet"},
    "metadata": _strict({"name": _NAME, "labels": {"type": "object", "additionalProperties": {"type": "string"}}}),
    "spec": _strict({
        "network": _strict({
            "enableDNSHostnames": {"type": "boolean"}, "publishNotReadyAddresses": {"type": "boolean"},
        }),
        "failurePolicy": _strict({
            "maxRestarts": {"type": "integer", "minimum": 0},
            "rules": {"type": "array", "items": _strict({
                "name": _NAME,
                "action": {"enum": ["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"]},
                "onJobFailureReasons": {"type": "array", "items": {"enum": [
                    "BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded",
                    "PodFailurePolicy",
                ]}},
            })},
        }),
        "replicatedJobs": {"type": "array", "minItems": 1, "items": _strict({
            "name": _NAME, "replicas": {"type": "integer", "minimum": 1},
            "template": _strict({"spec": {"type": "object"}}),
        })},
    }),
})  # fmt: skip


def manifest(**fields) -> list[dict]:
    (front,) = placing.module("kubernetes").plan(wanted(detach=True, **fields)).fronts
    assert front.command[-3:] == ("apply", "-f", "-") and front.detached
    return json.loads(front.stdin)["items"]


K8S = {
    "image": "registry/train:1", "resources": "nvidia.com/gpu=1,memory=8Gi", "node_selector": {"pool": "a"},
    "service_account": "trainer", "pull_policy": "Always", "namespace": "ml",
}  # fmt: skip


def test_a_job_of_pods_that_find_each_other():
    items = {item["kind"]: item for item in manifest(nodes=2, per_host=2, timeout=60.5, options=K8S)}
    spec = items["Job"]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (4, 4, 0)
    assert spec["activeDeadlineSeconds"] == 61
    pod = spec["template"]["spec"]
    name = items["Service"]["metadata"]["name"]
    assert pod["subdomain"] == name and items["Service"]["spec"]["clusterIP"] == "None"
    assert items["Service"]["spec"]["selector"].items() <= spec["template"]["metadata"]["labels"].items()
    (container,) = pod["containers"]
    assert container["command"] == ["python", "train.py", "--steps", "3"]
    variables = {v["name"]: v for v in container["env"]}
    assert variables["MESHRT_NUM_PROCESSES"]["value"] == "4" and variables["A"]["value"] == "b c"
    reference = variables["MESHRT_JOB_SECRET"]["valueFrom"]["secretKeyRef"]
    assert items["Secret"]["stringData"][reference["key"]] == SECRET and reference["name"] == name
    text = shown("kubernetes", nodes=2, options=K8S)
    assert "kubectl --namespace=ml apply -f - <<'END'" in text and plans.HIDDEN in text


@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_manifests_have_their_published_schemas(kind):
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="the schemas are in kubernetes-validate")
    items = manifest(nodes=3, options={**K8S, "kind": kind})
    for item in items:
        if item["kind"] == "JobSet":  # of what stands in it, the jobs are Kubernetes' own
            (group,) = item["spec"]["replicatedJobs"]
            item = {"apiVersion": "batch/v1", "kind": "Job", "metadata": item["metadata"], **group["template"]}
        kubernetes_validate.validate(item, "1.30", strict=True)


def test_a_jobset_starts_all_again():
    (secret, jobset) = manifest(nodes=3, max_restarts=2, options={**K8S, "kind": "jobset"})
    jsonschema.validate(jobset, JOBSET)
    assert secret["kind"] == "Secret" and jobset["spec"]["failurePolicy"]["maxRestarts"] == 2
    wrong = {**jobset, "spec": {**jobset["spec"], "replicas": 2}}
    with pytest.raises(jsonschema.ValidationError, match="replicas"):
        jsonschema.validate(wrong, JOBSET)


@pytest.mark.parametrize("name", ["meshrt-" + "x" * 80 + "-1a2b3c", "7-Up_Now!-1a2b3c", "a"])
def test_names_that_hosts_may_have(name):
    for item in manifest(nodes=1, name=name, options=K8S):
        made = item["metadata"]["name"]
        assert re.fullmatch(_NAME["pattern"], f"{made}-ranks-0-12345") and made.endswith(name[-6:])


BREAKING_OFF = """\
import sys
lines = ["05.1Z a", "06.1Z b", "06.2Z b", "06.2Z b", "07.9Z c", "08Z  d"]
given = [word for word in sys.argv if word.startswith("--since-time=")]
first = 0 if not given else [line.startswith(given[0][-3:-1]) for line in lines].index(True)
for line in lines[first:][: 3 + len(given)]:
    print("2030-01-01T00:00:" + line)
if first == len(lines) - 1:
    sys.exit(open(__file__ + ".done", "w").close())
sys.exit("unexpected EOF")
"""


def test_a_pods_log_that_breaks_off_is_taken_up_with_each_line_once(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(_kubernetes_driver, "_AGAIN_S", 0.01)
    (tmp_path / "kubectl.py").write_text(BREAKING_OFF)
    kubectl = _kubernetes_driver.Kubectl([sys.executable, str(tmp_path / "kubectl.py")])
    follower = _kubernetes_driver.Follower(kubectl, "p-1", "1")
    deadline = time.monotonic() + 30
    while not (tmp_path / "kubectl.py.done").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    follower.join(20)
    # Read once: what is printed between capfd's reading and its truncating is lost.
    assert capfd.readouterr().out.splitlines() == ["1: a", "1: b", "1: b", "1: b", "1: c", "1:  d"]


# --- holding a process for somebody elsewhere.


def hold(told: object, **more) -> subprocess.Popen:
    process = subprocess.Popen(
        plans.module_command("hold"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdin.write((told if isinstance(told, str) else json.dumps(told)) + "\n")
    process.stdin.flush()
    return process


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")
@pytest.mark.parametrize("killed", [False, True])
def test_the_end_of_stdin_ends_all_that_was_started_and_so_does_that_of_who_holds_it(killed):
    body = (
        "import os, signal, subprocess, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['setsid', 'sleep', '60']); print(os.getpid(), child.pid, flush=True); time.sleep(60)"
    )
    process = hold({"command": [sys.executable, "-c", body], "variables": {}, "directory": None, "grace": 0.2})
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert not any(map(gone, pids))
    if killed:
        process.kill()
    process.stdin.close()
    assert process.wait(20) == (-9 if killed else 137)
    deadline = time.monotonic() + 5
    while not all(map(gone, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert all(map(gone, pids))


@pytest.mark.parametrize(
    ("told", "code", "why"),
    [
        ({"command": ["sh", "-c", 'exit "$CODE"'], "variables": {"CODE": "7"}}, 7, ""),
        ({"command": ["sh", "-c", "kill -9 $$"], "variables": {}}, 137, ""),
        ({"command": ["no-such-program"], "variables": {}}, 2, "cannot start no-such-program"),
        ({"command": ["true"], "variables": {}, "directory": "/no/such"}, 2, "No such file"),
        ("}", 2, "cannot be read"),
        ({"command": [], "variables": {}}, 2, "cannot be read"),
    ],
)
def test_what_comes_of_what_is_held(told, code, why):
    process = hold(told)
    assert process.wait(20) == code
    assert why in process.stderr.read()


# --- from the command line.


def launch(*arguments: object, cwd=None, **variables: str) -> subprocess.CompletedProcess:
    command, env = [sys.executable, "-m", "meshrt", "launch", *map(str, arguments)], {**os.environ, "COLUMNS": "80"}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, timeout=60, check=False, env=env | variables
    )


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--engine", "cloud"], "no such engine; known are: kubernetes, local, mpi, ray, slurm, ssh"),
        (["--engine", "ssh", "--no-agents"], "needs hosts"),
        (["--engine", "ssh", "--listen", "127.0.0.1:0"], "needs hosts"),
        (["--engine", "ssh", "--hosts", "no.such.host.invalid"], "--listen HOST:0 says where"),
        (["--hosts", "a,b"], "for --hosts, --engine ssh"),
        (["-o", "a=b"], "has no options"),
        (["--listen", "127.0.0.1:0"], "no agent of another machine comes to a job of the engine 'local'"),
        (["--engine", "ssh", "--hosts", "a", "-o", "x"], "expected NAME=VALUE"),
        (["--engine", "ssh", "--hosts", "a", "--no-agents", "--max-restarts", "2"], "without agents"),
        (["--engine", "slurm", "--no-agents", "--nodes", "2:4"], "give one number"),
        (["--dry-run"], "a job on this machine is not submitted"),
        (["--node-rank", "1"], "run once for all hosts"),
    ],
)
def test_a_wrong_command_is_one_line(tmp_path, monkeypatch, capsys, arguments, why):
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["launch", *arguments, "train.py"])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and why in said and len(said.splitlines()) == 1, said


@pytest.mark.parametrize(
    ("arguments", "shown", "why"),
    [
        (["--engine", "ray"], "placement_group(", "needs the package ray"),
        (["--engine", "mpi", "-o", "mpirun=no-such", "-o", "flavour=openmpi"], "no-such -n 2", "not on the PATH"),
    ],
)
@pytest.mark.parametrize("placed", [[], ["--no-agents"]], ids=["agents", "ranks"])
def test_a_plan_is_shown_also_where_it_cannot_be_carried_out(
    tmp_path, monkeypatch, capfd, arguments, shown, why, placed
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)  # ray may be installed
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    command = ["launch", *arguments, *placed, "--nodes", "2"]
    for end, code in (["--dry-run", "train.py"], 0), (["train.py"], 2):
        with pytest.raises(SystemExit) as ended:
            main([*command, *end])
        out, err = capfd.readouterr()
        assert ended.value.code == code and (shown in out, why in err) == (code == 0, code == 2)


def test_a_secret_that_agents_would_refuse_is_refused_before_they_are_placed(tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(environment.SECRET, "short")
    with pytest.raises(SystemExit) as ended:
        main(["launch", "--engine", "ssh", "--hosts", "127.0.0.1", "--dry-run", "train.py"])
    assert ended.value.code == 2 and "the secret is shorter than 16 characters" in capsys.readouterr().err


def test_what_would_be_submitted_is_shown_where_the_hosts_are_not_known(tmp_path, monkeypatch, capfd):
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["launch", "--engine", "ssh", "--hosts", "no.such.host.invalid", "--dry-run", "train.py", "--lr", "1 2"])
    shown, said = capfd.readouterr()
    assert ended.value.code == 0 and '"--coordinator", "HOST:PORT"' in shown and not said
    assert shown.startswith(
        "# an agent on each host, which this launcher tells to start 1 rank of train.py --lr '1 2'\n"
    )


def test_a_script_that_is_not_here_may_be_in_an_image(tmp_path):
    done = launch("--engine", "slurm", "--no-agents", "--dry-run", "none.py", cwd=tmp_path)
    assert done.returncode == 2 and "none.py: no such script" in done.stderr
    done = launch("--engine", "kubernetes", "-o", "image=x", "--dry-run", "none.py", cwd=tmp_path)
    assert done.returncode == 0 and '"none.py"' in done.stdout


def test_a_job_whose_agents_cannot_be_placed_says_so_last(tmp_path):
    pytest.importorskip("grpc")
    (tmp_path / "train.py").touch()
    where = ("--nodes", 1, "--listen", "127.0.0.1:0")
    done = launch("--engine", "slurm", *where, "train.py", cwd=tmp_path, PATH=str(tmp_path))  # there is no salloc
    *_, placed, last = done.stderr.splitlines()
    assert done.returncode == 2 and placed.endswith("what places an agent there ended: exit code 2")
    assert last.startswith("meshrt launch: stopped: no agent is left, and no other one can come ("), last


def test_agents_of_a_job_that_never_was_are_not_waited_for(tmp_path):
    pytest.importorskip("grpc")
    from meshrt.launch.placing.agents import Agents

    front = plans.Front("a", ("sh", "-c", f"sleep 5; touch {tmp_path}/waited"))
    agents = Agents(lambda _: plans.Plan("ssh", (front,)), os.environ, Console(io.BytesIO(), io.BytesIO()))
    with pytest.raises(ConfigError), agents.place("h:1", None):
        raise ConfigError("no log directory")
    assert not (tmp_path / "waited").exists() and agents.failed is None


# --- who failed first, where the engine starts the ranks.


def _run_by_engine(tmp_path, scripts: list[str], together: bool, clock=time.monotonic) -> tuple[int, list[str]]:
    """Runs a script per rank, as ssh does (a front for each) or as srun does (one front, whose lines have labels)."""
    paths = []
    for rank, body in enumerate(scripts):
        paths.append(tmp_path / f"r{rank}.py")
        paths[-1].write_text(body)
    commands = [Work((str(path),)).command(sys.executable) for path in paths]
    if together:
        started = " & ".join(f"({shlex.join(c)} 2>&1 >&3 | sed 's/^/{r}: /' >&2) 3>&1" for r, c in enumerate(commands))
        command = ("/bin/sh", "-c", f"{started} & wait; exit 9")
        fronts = (plans.Front("srun", command, label=re.compile(r"(\d+): ")),)
    else:
        fronts = tuple(plans.Front(str(rank), command) for rank, command in enumerate(commands))
    out, err = io.BytesIO(), io.BytesIO()
    code = runner.run(plans.Plan("test", fronts), os.environ, console=Console(out, err), grace=0.5, clock=clock)
    return code, err.getvalue().decode().splitlines()


BAD_BATCH = """\
import os; open("{pid}.new", "w").write(str(os.getpid())); os.rename("{pid}.new", "{pid}")
def step(n):
    raise ValueError(f"bad batch {{n}}")
step(17)
"""
LOSES = """\
import os, time
class PeerLost(Exception): pass
while not os.path.exists("{pid}") or os.path.exists("/proc/" + open("{pid}").read()):
    time.sleep(0.01)
raise PeerLost("without rank 1")
"""


@pytest.mark.parametrize("together", [False, True])
def test_the_rank_that_raised_first_is_named_with_its_traceback(tmp_path, together):
    """Rank 0 fails once the process of rank 1 has been waited for, and has a minute for it."""
    bad = BAD_BATCH.format(pid=tmp_path / "pid")
    code, err = _run_by_engine(
        tmp_path, [LOSES.format(pid=tmp_path / "pid"), bad], together, lambda: time.monotonic() / 60
    )
    at = next(i for i, line in enumerate(err) if "failed first" in line)
    how = "srun: exit code 9" if together else "exit code 1"
    assert err[at].startswith(f"meshrt launch: rank 1 failed first: ValueError: bad batch 17 [{how}] (")
    assert err[at + 1] == "  | Traceback (most recent call last):"
    assert any(line.endswith('r1.py", line 3, in step') for line in err[at:])
    assert err[-1] == "  then: rank 0 lost its connection to a peer" and code == (9 if together else 1)


@pytest.mark.parametrize(("body", "said"), [
    ("import sys; sys.exit(3)", "rank 1 failed first: exit code 3 ("),
    ("raise SystemExit('no data')", "SystemExit: no data [exit code 1]"),
    ("import os; os._exit(4)", "rank 1 failed first: exit code 4 ("),
    ("raise SystemExit(0)", None),
])  # fmt: skip
def test_a_rank_that_leaves_by_an_exit_code(tmp_path, body, said):
    code, err = _run_by_engine(tmp_path, ["", body], together=False)
    first = [line for line in err if "failed first" in line]
    assert (code == 0 and not first) if said is None else (code and said in first[0])
