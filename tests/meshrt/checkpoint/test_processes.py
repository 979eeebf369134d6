"""Several processes: each writes its share, all or none is committed, and others may read it."""

from __future__ import annotations

import types

import numpy as np
import pytest

import meshrt
from meshrt import checkpoint
from meshrt.sharding import NamedSharding
from meshrt.sharding import PartitionSpec as P
from tests.meshrt.checkpoint.trees import mesh_of, put, same_bits
from tests.meshrt.launch.conftest import launch  # noqa: F401 -- a fixture

START = """
import numpy as np
import meshrt
import meshrt.checkpoint.background
meshrt.distributed.initialize()
from meshrt import checkpoint, errors
from meshrt.sharding import NamedSharding, P, AxisType
count = meshrt.process_count()
mesh = meshrt.make_mesh((meshrt.device_count() // 2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

def put(value, *spec, **how):
    sharding = NamedSharding(mesh, P(*spec), **how)
    return meshrt.make_array_from_callback(value.shape, sharding, lambda index: value[index])

def raises(kind, text, call, *args, **kw):
    try:
        call(*args, **kw)
    except kind as e:
        assert text in str(e), e
    else:
        raise AssertionError(f"{text!r} was not raised")

W = np.arange(64, dtype=np.float32).reshape(16, 4)
"""
SAVE = (
    START
    + """
big = np.arange(1 << 21, dtype=np.int32)
tree = {"w": put(W, "data", "model"), "bf16": put(W.astype("bfloat16"), "model"), "same": put(W),
        "uneven": put(np.arange(10, dtype=np.int32), "data", uneven=True), "big": put(big), "host": W + 1, "n": 7}
with checkpoint.CheckpointManager("run", keep_last=1) as manager:
    for step in (1, 2):
        manager.save(step, tree, data_state={"rank": rank}, metadata={"step": step})
assert manager.steps() == [2] and not (manager.path(2) / "process_00000.json").exists()
found = manager.restore(mesh=mesh)
for a, b in zip(meshrt.tree.leaves(found), meshrt.tree.leaves(tree)):
    if isinstance(b, meshrt.Array):
        assert a.sharding == b.sharding and a.dtype == b.dtype
        assert all((np.asarray(x) == np.asarray(y)).all() for x, y in zip(a.local_parts(), b.local_parts()))
assert (found["host"] == W + 1).all() and found["n"] == 7
class Data:
    def set_state(self, state):
        assert state == {"rank": rank}
manager.restore(data_state=Data(), as_numpy=True)
print("saved")
"""
)


def test_two_processes_share_the_work_and_one_process_reads_it(launch, mesh):  # noqa: F811
    result = launch("--nproc", 2, "--devices-per-process", 2, body=SAVE)
    assert result.code == 0, result.err
    path = launch.folder / "run" / "step_00000002"
    found = checkpoint.describe(path)
    assert checkpoint.verify(path) == [] and found.data_states == ({"rank": 0}, {"rank": 1}) and found.processes == 2
    sizes = [size for _, size in found.files]
    assert len(sizes) == 2 and max(sizes) < 1.1 * min(sizes)  # what both held was divided
    assert sum(sizes) < 1.01 * found.nbytes  # and written once
    tree = checkpoint.restore(path, mesh=mesh)
    w = np.arange(64, dtype=np.float32).reshape(16, 4)
    assert same_bits(tree["w"], w) and tree["w"].sharding == NamedSharding(mesh, P("data", "model"))
    assert same_bits(tree["bf16"], w.astype("bfloat16")) and same_bits(tree["big"], np.arange(1 << 21, dtype=np.int32))
    assert same_bits(tree["uneven"], np.arange(10, dtype=np.int32)) and tree["n"] == 7
    with pytest.raises(meshrt.errors.CheckpointMismatchError, match="data_state of 2 processes, and this job has 1"):
        checkpoint.restore(path, data_state=types.SimpleNamespace(set_state=print), as_numpy=True)


READ = (
    START
    + """
opened = []
preadv = os.preadv
os.preadv = lambda fd, into, at: opened.append(len(into[0])) or preadv(fd, into, at)
found = checkpoint.restore("one", mesh=mesh, shardings={"w": P(None, ("data", "model")), "n": None})
w = found["w"]
for shard in w.addressable_shards:
    assert (np.asarray(shard.data) == np.arange(1 << 22, dtype=np.float32).reshape(2048, 2048)[shard.index]).all()
print("read", sum(opened))
"""
)


def test_one_process_writes_and_each_of_several_reads_its_part(launch, mesh):  # noqa: F811
    value = np.arange(1 << 22, dtype=np.float32).reshape(2048, 2048)
    rows = mesh_of((2,), ("rows",))
    checkpoint.save(launch.folder / "one", {"w": put(value, rows, "rows"), "n": 1})
    result = launch("--nproc", 2, "--devices-per-process", 2, body=READ)
    assert result.code == 0, result.err
    read = [int(line.split()[-1]) for line in result.out.splitlines() if "read" in line]
    assert read == [value.nbytes // 2] * 2  # of the tiles of saved rows those with its columns


DISAGREE = (
    START
    + """
from meshrt.errors import CheckpointError, ProcessesDisagreeError
leader = rank == 0
mine = ProcessesDisagreeError if leader else CheckpointError
raises(mine, "the leaf ['n'] has another value in process 1", checkpoint.save, "a", {"n": np.full(3, rank)})
raises(mine, "process 1 saves another tree than process 0", checkpoint.save, "a", {"n": 1} if leader else {"m": 1})
bad = {"n": 1} if leader else {"n": object()}
raises(CheckpointError, "process 1 failed" if leader else "cannot hold", checkpoint.save, "a", bad)
bad = {"n": object()} if leader else {"n": 1}
raises(CheckpointError, "cannot hold", checkpoint.save, "a", bad)
mine = CheckpointError if leader else ProcessesDisagreeError
raises(mine, "saves the checkpoint", checkpoint.save, f"of{rank}", {"w": put(W)})
manager = checkpoint.CheckpointManager("steps", asynchronous=False)
raises(mine, "process 0 one of the name step_00000000", manager.save, rank, {"w": put(W)})
pwrite = os.pwrite
def refuse(*_):
    raise OSError(28, "No space left on device")
if not leader:
    os.pwrite = refuse
saving = checkpoint.save_async("a", {"w": put(W, "data", "model")})
raises(CheckpointError, "No space left on device", saving.wait)
os.pwrite = pwrite
if not leader:
    os.chdir("/")  # as a host that does not share the file system
raises(CheckpointError, "process 1 failed" if leader else "that all hosts share", checkpoint.save, "a", {"w": put(W)})
if leader:
    assert not [n for n in os.listdir(".") if n.startswith((".", "of")) or n == "a"], os.listdir(".")
os.chdir(os.path.dirname(os.path.abspath(__file__)))
checkpoint.save("a", {"w": put(W, "data", "model")})
raises(CheckpointError, "there is a checkpoint at", checkpoint.save, "a", {"w": put(W)})
print("refused")
checkpoint.save_async("last", {"w": put(W, "data")})  # finished before the processes part
"""
)


def test_what_one_process_cannot_do_no_process_commits(launch):  # noqa: F811
    result = launch("--nproc", 2, "--devices-per-process", 2, body=DISAGREE)
    assert result.code == 0, result.err
    assert result.out.count("refused") == 2 and checkpoint.verify(launch.folder / "a") == []
    assert checkpoint.verify(launch.folder / "last") == []


KILLED = (
    START
    + """
manager = checkpoint.CheckpointManager("run", keep_last=2)
step = -1 if manager.latest() is None else int(manager.restore(mesh=mesh)["step"])
print("from", step, flush=True)
import random
moment = time.monotonic() + 0.1 + 0.5 * random.Random(generation).random()
while not generation or step < 10:
    step += 1
    manager.save(step, {"w": put(W + step, "data", "model"), "step": step})
    if not generation and rank == 1 and time.monotonic() > moment:
        os.kill(os.getpid(), 9)
manager.close()
found = manager.restore(mesh=mesh)
assert found["step"] == step and (np.asarray(found["w"].addressable_data(0)) >= step).all()
"""
)


def test_killed_while_saving_the_job_goes_on_from_the_last_commit(launch):  # noqa: F811
    result = launch("--nproc", 2, "--devices-per-process", 2, "--max-restarts", 1, body=KILLED)
    assert result.code == 0, result.err
    froms = [int(line.split()[-1]) for line in result.out.splitlines() if line.startswith("[0] from")]
    assert len(froms) == 2 and sorted(froms) == froms and froms[1] >= 0
    left = [p.name for p in (launch.folder / "run").iterdir() if p.name.startswith(".")]
    assert left == []
