"""Exchanges between two real processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import meshrt
from meshrt.experimental import multihost_utils
from meshrt.sharding import NamedSharding, P, make_mesh
from tests.meshrt.launch.conftest import PREAMBLE, launch  # noqa: F401 -- a fixture

SCRIPT = """
import numpy as np
import meshrt
meshrt.distributed.initialize()
from meshrt.experimental.multihost_utils import process_allgather, sync_global_devices
sync_global_devices("start")
big = np.arange(1 << 18, dtype=np.float64) + rank  # more than one chunk of the store
both = process_allgather({"small": np.full((2,), rank, np.int32), "big": big})
assert both["small"].tolist() == [[0, 0], [1, 1]] and both["small"].dtype == np.int32
assert both["big"].shape == (2, 1 << 18) and (both["big"][1] - both["big"][0] == 1).all()
assert process_allgather(np.full((2,), rank), tiled=True).tolist() == [0, 0, 1, 1]
assert process_allgather(rank, tiled=True).tolist() == [0, 1]
mesh = meshrt.make_mesh((4,), ("x",))
sharding = meshrt.NamedSharding(mesh, meshrt.P("x"))
mine = np.arange(4 * rank, 4 * rank + 4).astype("bfloat16")
whole = process_allgather(meshrt.make_array_from_process_local_data(sharding, mine))
assert whole.dtype.name == "bfloat16" and whole.astype(int).tolist() == list(range(8))
try:
    process_allgather(np.zeros(rank + 1))
except meshrt.errors.ArgumentTypeError as e:
    print(e)
"""


def test_two_processes_exchange_values(launch):  # noqa: F811
    result = launch("--nproc", 2, "--devices-per-process", 2, body=SCRIPT)
    assert result.code == 0, result.err
    text = "the processes hold different kinds of arrays: process 0: float64[1], process 1: float64[2]"
    assert result.out.count(text) == 2


def test_one_process_alone_needs_no_service():
    multihost_utils.sync_global_devices("x")
    assert multihost_utils.process_allgather([np.arange(2), 3])[0].tolist() == [[0, 1]]
    assert multihost_utils.process_allgather(np.arange(2), tiled=True).tolist() == [0, 1]


WHOLE = """
import numpy as np, pickle
import meshrt
import meshrt.numpy as jnp
from meshrt import errors
from meshrt.sharding import AxisType, Mesh, NamedSharding, P, make_mesh
meshrt.distributed.initialize()
from meshrt.experimental import multihost_utils as mu

def raises(kind, text, call, *args, **kw):
    try:
        call(*args, **kw)
    except kind as e:
        assert text in str(e), e
    else:
        raise AssertionError(f"{text!r} was not raised")

# broadcast_one_to_all
tree = {"w": np.full((2, 3), rank, "bfloat16"), "n": rank}
assert mu.broadcast_one_to_all(tree)["n"] == 0 and mu.broadcast_one_to_all(tree)["w"].dtype.name == "bfloat16"
assert mu.broadcast_one_to_all(tree, is_source=rank == 1)["w"].max() == 1
raises(errors.ArgumentValueError, "exactly one source. Got the processes []", mu.broadcast_one_to_all, 1, False)
raises(errors.ArgumentValueError, "Got the processes [0, 1]", mu.broadcast_one_to_all, 1, True)
if rank == 1:
    raises(errors.ArgumentTypeError, "float32[2]", mu.broadcast_one_to_all, np.zeros(2, np.float32))
else:
    mu.broadcast_one_to_all(np.zeros(3, np.float32))

# assert_equal, sync_global_devices
mu.assert_equal({"a": np.arange(3), "b": "text"}, "same")
raises(AssertionError, "steps. Expected: [0]; got", mu.assert_equal, {"a": [1, np.full(1, rank)]}, "steps")
raises(AssertionError, "in_tree['a'][1] differs between processes: process 0 has [0]; process 1 has [1]",
       mu.assert_equal, {"a": [1, np.full(1, rank)]})
raises(AssertionError, "the structure differs", mu.assert_equal, [1] * (rank + 1))
raises(AssertionError, "sync_global_devices name mismatch", mu.sync_global_devices, f"here {rank}")
mu.sync_global_devices("there")

# between one process and all
mesh = make_mesh((2, 2), ("host", "chip"), AxisType.Auto)
mine = np.arange(8, dtype=np.float32).reshape(2, 4) + 100 * rank
x, r = mu.host_local_array_to_global_array((mine, mine[0] * 0 + 7), mesh, (P("host", "chip"), P()))
assert x.shape == (4, 4) and x.sharding is NamedSharding(mesh, P("host", "chip")) and r.shape == (4,)
assert mu.process_allgather(x).tolist() == np.concatenate([mine - 100 * rank, mine - 100 * rank + 100]).tolist()
y = meshrt.jit(lambda a, b: (a * 2 + b).sum(0), out_shardings=NamedSharding(mesh, P("chip")))(x, r)
back = mu.global_array_to_host_local_array(x, mesh, P("host", "chip"))
assert back.is_fully_addressable and back.sharding.mesh is mesh.local_mesh and (np.asarray(back) == mine).all()
local = mu.global_array_to_host_local_array(y, mesh, P("chip"))
want = (2 * mine + 7).sum(0) + (2 * (mine + (-100 if rank else 100)) + 7).sum(0)
assert (np.asarray(local) == want).all()
assert mu.host_local_array_to_global_array(x, mesh, P("host", "chip")) is x
assert mu.global_array_to_host_local_array(back, mesh, P("host")) is back
raises(ValueError, "`None` is not a valid input to the", mu.host_local_array_to_global_array, mine, mesh, None)
raises(ValueError, "`None` is not a valid input", mu.global_array_to_host_local_array, x, mesh, None)

# uneven parts over processes
full = np.arange(35, dtype=np.float32).reshape(7, 5)
u = meshrt.make_array_from_callback((7, 5), NamedSharding(mesh, P(("host", "chip")), uneven=True), lambda i: full[i])
assert (mu.process_allgather(u) == full).all()
z = meshrt.jit(lambda a: a * 2)(u)
assert z.sharding is u.sharding and (mu.process_allgather(z) == full * 2).all()
assert (mu.process_allgather(meshrt.device_put(z, NamedSharding(mesh, P(None, "host"), uneven=True))) == full * 2).all()
rows = full[:4] if rank == 0 else full[4:]
w = meshrt.make_array_from_process_local_data(u.sharding, rows, (7, 5))
assert (mu.process_allgather(w) == full).all()
raises(ValueError, "pass global_shape=", meshrt.make_array_from_process_local_data, u.sharding, rows)

# what spans processes cannot be fetched, and says so
for fetch in (np.asarray, meshrt.device_get, lambda a: a.tolist(), lambda a: int(a)):
    raises((RuntimeError, TypeError), "", fetch, x)
raises(errors.NonAddressableError, "spans non-addressable (non process local) devices is not possible", np.asarray, x)
raises(errors.NonAddressableError, "process_allgather", np.asarray, x)
assert repr(x).startswith(f"Array(shape=(4, 4), dtype=float32), of which process {rank} holds:")
assert f"[{2 * rank}:{2 * rank + 2}, 0:2] on device" in repr(x)
assert [s.data is None for s in x.global_shards].count(True) == 2

# captured in a compiled function it is an argument like others
captured = meshrt.jit(lambda a: (a + x).sum())(x)
assert float(captured) == 2 * float(mu.process_allgather(x).sum())

# pickles hold this process's parts
p = pickle.loads(pickle.dumps(x))
assert p.sharding is x.sharding and (mu.process_allgather(p) == mu.process_allgather(x)).all()

# live_devices
with mu.live_devices(meshrt.devices()) as alive:
    assert alive == meshrt.devices()
try:
    with mu.live_devices(meshrt.devices()):
        raise KeyError("both raise")
except KeyError:
    pass
raises(errors.ArgumentValueError, "No devices provided", lambda: mu.live_devices([]).__enter__())
others = [d for d in meshrt.devices() if d.process_index != rank]
raises(errors.ArgumentValueError, "do not have any local devices", lambda: mu.live_devices(others).__enter__())

# notice of the end
steps = []
for step in range(200):
    if step == 2 and rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    if mu.reached_preemption_sync_point(step):
        steps.append(step)
        break
    time.sleep(0.05)
assert steps and mu.process_allgather(np.array(steps)).tolist() == [steps, steps]
assert not mu.reached_preemption_sync_point(steps[0] + 1)  # who leaves where it saved has not done its work
print("whole", rank)
"""


def test_two_processes_use_everything(launch):  # noqa: F811
    result = launch("--nproc", 2, "--devices-per-process", 2, body=WHOLE)
    assert result.code == 0, result.err
    assert "whole 0" in result.out and "whole 1" in result.out


def test_one_process_alone():
    mesh = make_mesh((2, 2), ("x", "y"), devices=meshrt.devices()[:4])
    value = np.arange(16.0, dtype=np.float32).reshape(4, 4)
    assert multihost_utils.broadcast_one_to_all({"a": 3})["a"] == 3
    multihost_utils.assert_equal([1, "a"], "equal")
    assert multihost_utils.reached_preemption_sync_point(3) is False
    x = multihost_utils.host_local_array_to_global_array(value, mesh, P("x", "y"))
    assert x.sharding is NamedSharding(mesh, P("x", "y")) and np.array_equal(np.asarray(x), value)
    assert multihost_utils.global_array_to_host_local_array(x, mesh, P("x", "y")) is x
    with pytest.raises(RuntimeError, match="not initialized"), multihost_utils.live_devices(meshrt.devices()):
        pass


DIES = """
import meshrt
from meshrt.experimental.multihost_utils import ProcessFailureError, live_devices
meshrt.distributed.initialize(heartbeat_timeout_seconds=3, shutdown_timeout_seconds=3)
everybody = meshrt.devices()
try:
    with live_devices(everybody) as alive:
        assert alive == everybody
        if rank == 1:
            os._exit(3)
        time.sleep(0.5)
except ProcessFailureError as e:
    assert {d.process_index for d in e.failed_devices} == {1}, e
    print("failed:", e, flush=True)
else:
    raise AssertionError("nobody failed")
with live_devices([d for d in everybody if d.process_index == 0]) as alive:
    assert {d.process_index for d in alive} == {0}
print("went on", flush=True)
"""


@pytest.mark.slow
def test_live_devices_tells_who_died(tmp_path):
    """Without the launcher, which would end the job. The service sees a process go by its silence."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    script = tmp_path / "script.py"
    script.write_text(PREAMBLE + DIES)
    base = {k: v for k, v in os.environ.items() if k not in ("MESHRT_NUM_CPU_DEVICES", "XLA_FLAGS")}
    base |= {"PYTHONPATH": str(Path(__file__).parents[3]), "MESHRT_GENERATION": "0", "MESHRT_NUM_PROCESSES": "2"}
    base |= {"MESHRT_COORDINATOR_ADDRESS": address, "MESHRT_ENABLE_RECOVERABILITY": "true"}
    workers = [
        subprocess.Popen(
            [sys.executable, str(script)], env={**base, "MESHRT_PROCESS_ID": str(i)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for i in range(2)
    ]  # fmt: skip
    try:
        out, err = workers[0].communicate(timeout=60)
    finally:
        for w in workers:
            w.kill()
            w.communicate()
    assert "Devices failed" in out and "went on" in out, err[-3000:]
