"""Hosts that are cut off, as network namespaces on a bridge: what is named, what ends where, and what goes on."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("grpc")

from tests.meshrt.launch.conftest import wait_for

STEPS = """
import meshrt.distributed
meshrt.distributed.initialize()
import meshrt, numpy as np
mesh = meshrt.make_mesh((meshrt.device_count(),), ("d",))
n = meshrt.device_count()
x = meshrt.make_array_from_callback((n,), meshrt.NamedSharding(mesh, meshrt.P("d")), lambda i: np.ones(1, np.float32))
total = meshrt.jit(lambda x: x.sum())
step = 0
while not (os.path.exists("enough") or (generation and step > 20)):
    float(total(x))
    step += 1
    if step == 5:
        print("steps on", n, "in", generation, "." * 60_000, flush=True)
    time.sleep(0.05)
"""


def begin(spread, network, launch, *options: object):
    script = launch.script(STEPS)
    listen = f"{network.address['c']}:8476"
    options = ("--devices-per-process", 1, "--nodes", "1:2", "--nproc", 1, *options)
    coordinator = spread("c", "coordinator", "--listen", listen, *options, script)
    agents = [spread(name, "agent", "--coordinator", listen, "--name", name, "--join-timeout", 60) for name in "ab"]
    wait_for(coordinator, "steps on 2 in 0")
    return coordinator, agents


def test_a_host_that_is_cut_off_is_named_and_the_rest_goes_on_without_it(spread, network, launch):
    coordinator, (_, b) = begin(spread, network, launch, "--max-restarts", 1)
    network.cut("b")
    said = next(line for line in coordinator.stderr if "nothing was heard" in line)
    assert "nothing was heard of host b (rank 1) for " in said
    wait_for(coordinator, "steps on 1 in 1")
    ended = next(line for line in b.stderr if "ending all processes" in line)
    assert "ending all processes of this host: the coordinator has not answered for" in ended
    _, err = coordinator.communicate(timeout=60)
    assert coordinator.returncode == 0, err
    assert "rank 1 on b failed first" in err or "rank 0 on a failed first" in err
    assert "host b is gone: nothing was heard of it for 10 s" in err


@pytest.mark.slow
def test_a_short_cut_heals_and_the_job_goes_on(spread, network, launch):
    coordinator, agents = begin(spread, network, launch)
    network.cut("b")
    time.sleep(3.0)
    network.cut("b", down=False)
    time.sleep(1.0)
    (launch.folder / "enough").touch()
    _, err = coordinator.communicate(timeout=60)
    assert coordinator.returncode == 0, err
    assert [agent.wait(10) for agent in agents] == [0, 0]


@pytest.mark.slow
def test_a_host_whose_network_is_slow_and_drops_packets_slows_the_job_down_and_no_more(spread, network, launch):
    network.slow("b")
    coordinator, agents = begin(spread, network, launch)
    time.sleep(5.0)
    (launch.folder / "enough").touch()
    _, err = coordinator.communicate(timeout=60)
    assert coordinator.returncode == 0, err
    assert "starting again" not in err and "is gone" not in err
    assert [agent.wait(10) for agent in agents] == [0, 0]
    assert network.dropped("b") > 0
