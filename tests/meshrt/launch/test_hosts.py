"""Jobs on several hosts, as people start them: a coordinator and agents on loopback, and what happens to them."""

from __future__ import annotations

import json
import signal
import sys

import pytest

pytest.importorskip("grpc")

from tests.meshrt.launch.conftest import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")

PLACES = """
print("rank", rank, "of", os.environ["MESHRT_NUM_PROCESSES"], "in", generation, flush=True)
"""
WAITS = PLACES + "time.sleep(60)\n"


def test_a_job_on_two_hosts_numbers_ranks_host_by_host_and_ends_with_everything(hosts, tmp_path):
    hosts.start("--nodes", 2, "--nproc", 2, "--log-dir", tmp_path / "logs", body=PLACES)
    hosts.agent("b", "a")
    result = hosts.finish()
    assert result.code == 0
    expected = [f"[{host}:{rank}] rank {rank} of 4 in 0" for rank, host in enumerate("aabb")]
    assert sorted(result.out.splitlines()) == expected
    for name in "ab":
        ended = hosts.ends(name)
        joined = f"meshrt agent: host {name} (127.0.0.1) is in the job of {hosts.address}\n"
        assert (ended.code, ended.err) == (0, joined)
    assert (tmp_path / "logs" / "g0000" / "r0002.log").read_text() == "rank 2 of 4 in 0\n"


def test_the_test_bed_computes_over_all_hosts(launch):
    result = launch("--nodes", 2, "--nproc", 1, "--devices-per-process", 1, body="""
import meshrt.distributed
meshrt.distributed.initialize()
import meshrt, numpy as np
mesh = meshrt.make_mesh((meshrt.device_count(),), ("d",))
s = meshrt.NamedSharding(mesh, meshrt.P("d"))
x = meshrt.make_array_from_callback((2, 4), s, lambda i: np.ones((1, 4), np.float32))
print("sum", float(meshrt.jit(lambda x: x.sum())(x)))
""")  # fmt: skip
    assert result.code == 0, result.err
    assert sorted(result.out.splitlines()) == ["[local0:0] sum 8.0", "[local1:1] sum 8.0"]


@pytest.mark.parametrize(
    ("deed", "code", "words"),
    [
        ("raise ValueError('of rank 3')", 1, "rank 3 on b failed first: ValueError: of rank 3 [exit code 1]"),
        ("sys.exit(7)", 7, "rank 3 on b failed first: exit code 7"),
        ("os.kill(os.getpid(), 9)", 137, "rank 3 on b failed first: killed by SIGKILL"),
    ],
)
def test_what_happens_to_one_rank_is_named_with_its_host_and_ends_the_others(hosts, deed, code, words):
    hosts.start("--nodes", 2, "--nproc", 2, body=f"if rank == 3:\n    time.sleep(0.5)\n    {deed}\n{WAITS}")
    hosts.agent("a", "b")
    result = hosts.finish()
    assert result.code == code
    assert words in result.report
    if "raise" in deed:
        assert "| ValueError: of rank 3" in result.report
    assert [hosts.ends(name).code for name in "ab"] == [code, code]


def test_an_agent_that_is_killed_takes_its_processes_along_and_the_job_starts_again_on_the_rest(hosts, launch):
    body = f"""
if generation == 0 and rank == 1:
    subprocess.Popen(["sleep", "60"], start_new_session=True)
{PLACES}
if generation == 0:
    time.sleep(60)
"""
    hosts.start("--nodes", "1:2", "--nproc", 1, "--max-restarts", 1, body=body)
    hosts.agent("a", "b")
    for _ in range(2):
        wait_for(hosts.coordinator, "in 0")
    hosts.agents["b"].kill()
    result = hosts.finish()
    assert result.code == 0
    assert "[a:0] rank 0 of 1 in 1" in result.out
    assert "nothing was heard of host b (rank 1)" in result.err
    assert "rank 1 on b failed first: lost with its host: nothing was heard of it for 10 s" in result.err


def test_a_host_that_comes_later_makes_the_job_larger_and_resizing_makes_it_smaller(hosts):
    body = f"import meshrt.distributed\nmeshrt.distributed.initialize()\n{WAITS}"
    hosts.start("--nodes", "1:2", "--nproc", 1, body=body)
    # The last call is 30 s long: resizing to one host ends it.
    hosts.agent("a")
    while "a " not in hosts.ask("status").out:
        pass
    assert hosts.ask("resize", 1).out == "the job goes on with 1 host as soon as so many are there\n"
    wait_for(hosts.coordinator, "[a:0] rank 0 of 1 in 0")
    assert hosts.ask("resize", 2).code == 0
    hosts.agent("b")
    wait_for(hosts.coordinator, "of 2 in 1")
    assert "hosts: 2 of 1 to 2" in hosts.ask("status").out
    assert hosts.ask("resize", 3).err.endswith("3 hosts: the job was started with --nodes 1:2\n")
    assert hosts.ask("stop").out == "the job is being stopped\n"
    result = hosts.finish()
    assert result.code == 128 + signal.SIGTERM
    assert "the job goes on with 2 hosts in place of 1" in result.err


def test_a_coordinator_that_is_killed_is_replaced_from_its_journal_and_the_job_goes_on(hosts, tmp_path):
    body = f"""{PLACES}
print('meanwhile', flush=True)
while not os.path.exists('go'): time.sleep(0.05)
print('done', rank)
"""
    arguments = ("--nodes", 2, "--nproc", 1, "--journal", tmp_path / "journal", "--log-dir", tmp_path / "logs")
    hosts.start(*arguments, body=body)
    hosts.agent("a", "b")
    for _ in range(2):
        wait_for(hosts.coordinator, "meanwhile")
    found = json.loads(hosts.ask("status", "--json").out)
    assert {h["name"]: h["ranks"] for h in found["hosts"]} == {"a": [0], "b": [1]}
    nobody = hosts.ask("logs", "--rank", 9)
    assert nobody.out == "" and nobody.err.startswith("meshrt launch: no lines of rank 9 so far; "), nobody
    follower = hosts.command("logs", "--follow", "--rank", 1)
    assert [follower.stdout.readline() for _ in range(2)] == ["[b:1] rank 1 of 2 in 0\n", "[b:1] meanwhile\n"]
    hosts.coordinator.kill()
    hosts.coordinator.communicate()
    former = hosts.address
    hosts.start(*arguments, body=body)
    assert hosts.address == former
    hosts.until("taking up the job where it was forming")
    (tmp_path / "go").touch()
    result = hosts.finish()
    out, err = follower.communicate(timeout=30)
    assert follower.returncode == 0 and out == "[b:1] done 1\n", err
    assert err == f"meshrt launch: the connection to {former} broke; trying again\n"
    assert result.code == 0, result.err
    assert sorted(result.out.splitlines()) == ["[a:0] done 0", "[b:1] done 1"]
    log = (tmp_path / "logs" / "g0000" / "r0000.log").read_text()
    assert log.splitlines() == ["rank 0 of 2 in 0", "meanwhile", "done 0"]
    assert not (tmp_path / "journal").exists()
    assert [hosts.ends(name).code for name in "ab"] == [0, 0]
