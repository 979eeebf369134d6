"""A checkpoint is there as a whole or not at all: whoever is killed, whatever the file system says, whoever else works
in the same directory."""

import errno
import os
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

import meshrt.numpy as jnp
from meshrt import checkpoint, errors
from meshrt.checkpoint import folder

TREE = {"w": np.arange(1000, dtype=np.float32), "b": jnp.arange(3), "step": 7}


def test_what_is_there_is_not_overwritten(tmp_path):
    checkpoint.save(tmp_path / "a", TREE)
    with pytest.raises(errors.CheckpointExistsError, match=r"there is a checkpoint at .*/a already"):
        checkpoint.save(tmp_path / "a", {"other": 1})
    (tmp_path / "b").write_text("text")
    with pytest.raises(FileExistsError, match="there is something else at"):
        checkpoint.save(tmp_path / "b", TREE)
    assert checkpoint.restore(tmp_path / "a")["step"] == 7 and sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_of_two_writers_the_second_is_refused_at_the_commit(tmp_path, monkeypatch):
    started, go_on = threading.Event(), threading.Event()
    commit = folder.Unfinished.commit

    def late(self):
        started.set()
        assert go_on.wait(20)
        commit(self)

    monkeypatch.setattr(folder.Unfinished, "commit", late)
    first = checkpoint.save_async(tmp_path / "a", {"by": "first"})
    assert started.wait(20)
    monkeypatch.setattr(folder.Unfinished, "commit", commit)
    checkpoint.save(tmp_path / "a", {"by": "second"})
    go_on.set()
    with pytest.raises(errors.CheckpointExistsError):
        first.wait()
    assert checkpoint.restore(tmp_path / "a") == {"by": "second"} and os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("call", ["pwrite", "fsync", "mkdir", "rename"])
def test_a_file_system_that_refuses(tmp_path, monkeypatch, call, number):
    checkpoint.save(tmp_path / "before", TREE)

    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(errors.CheckpointWriteError) as e:
            checkpoint.save(tmp_path / "a", TREE)
    assert os.strerror(number) in str(e.value) and str(tmp_path / "a") in str(e.value) and e.value.errno == number
    if number in (errno.ENOSPC, errno.EDQUOT):
        assert (
            "bytes free. " not in str(e.value) and "bytes free failed" in str(e.value) and "Make room" in str(e.value)
        )
    assert os.listdir(tmp_path) == ["before"]
    assert checkpoint.verify(tmp_path / "before") == []
    checkpoint.save(tmp_path / "a", TREE)


def test_a_disk_that_is_too_small_is_noticed_before_writing(tmp_path, monkeypatch):
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 100, 10))
    with pytest.raises(errors.CheckpointWriteError, match="writes 4012 bytes, and its disk has 10 bytes free"):
        checkpoint.save(tmp_path / "a", TREE)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system")
def test_a_full_disk(tmp_path):
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(tmp_path)], check=False)
    if done.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        checkpoint.save(tmp_path / "a", TREE)
        with pytest.raises(errors.CheckpointWriteError, match="bytes free"):
            checkpoint.save(tmp_path / "b", [np.arange(10_000), *[np.arange(6000) + i for i in range(5)]])
        assert checkpoint.verify(tmp_path / "a") == [] and os.listdir(tmp_path) == ["a"]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_an_interrupted_save_leaves_nothing(tmp_path):
    def stop(progress):
        if progress.done_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path / "a", TREE, progress=stop)
    assert os.listdir(tmp_path) == []


def test_restoring_while_others_are_saved_and_removed(tmp_path):
    manager = checkpoint.CheckpointManager(tmp_path, keep_last=1)
    manager.save(0, TREE)
    manager.wait()
    with folder.Opened(manager.path(0)):
        manager.save(1, TREE)
        manager.wait()
        assert manager.steps() == [0, 1]  # somebody reads the first
        with pytest.raises(errors.CheckpointBusyError, match="is being read"):
            checkpoint.remove(manager.path(0))
        assert checkpoint.restore(manager.path(0))["step"] == 7
    manager.save(2, TREE)
    manager.wait()
    assert manager.steps() == [2]
    with pytest.raises(errors.CheckpointNotFoundError):
        checkpoint.remove(tmp_path)


def test_what_fails_behind_the_commit_is_no_failure_of_the_save(tmp_path, monkeypatch):
    flush = folder.fsync_directory

    def refuse(path):
        if path == tmp_path:
            raise OSError(errno.EIO, "Input/output error")
        flush(path)

    monkeypatch.setattr(folder, "fsync_directory", refuse)
    with pytest.warns(RuntimeWarning, match="is complete, but its directory could not be written through"):
        checkpoint.save(tmp_path / "a", TREE)
    assert checkpoint.restore(tmp_path / "a")["step"] == 7


# --- what killed processes leave


def test_what_dead_writers_left_is_removed_and_what_living_ones_write_is_not(tmp_path):
    alive = folder.Unfinished.begin(tmp_path / "step_00000001")
    dead = tmp_path / ".step_00000002.saving-0123456789abcdef"
    dead.mkdir()
    (dead / "lock").touch()
    (tmp_path / ".step_00000003.saving-0123456789abcdef").mkdir()
    half = tmp_path / ".step_00000004.removed-0123456789abcdef"
    half.mkdir()
    (tmp_path / ".mine.saving-thing").mkdir()
    checkpoint.CheckpointManager(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([".mine.saving-thing", alive.folder.name])
    alive.abandon()


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(folder.fcntl, "flock", refuse)
    with checkpoint.CheckpointManager(tmp_path, keep_last=1) as manager:
        other = folder.Unfinished.begin(manager.path(9))
        manager.save(1, TREE)
        manager.save(2, TREE)
    assert manager.steps() == [2] and manager.restore()["step"] == 7
    checkpoint.CheckpointManager(tmp_path)
    assert other.folder.is_dir()  # whether its maker lives cannot be told
    checkpoint.remove(manager.path(2))


WRITER = """
import os, random, signal, sys, time
import numpy as np
from meshrt import checkpoint
from meshrt.checkpoint import CheckpointManager, functions  # everything is imported before the first fork

root, trials, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
draw = random.Random(seed)

def tree(step):
    return {"w": np.full(2000 + step, step, np.int64), "b": [np.float32(step)] * 3, "step": step}

def train(tell):
    manager = CheckpointManager(root, keep_last=2, asynchronous=draw.random() < 0.5)
    step = manager.latest()
    step = 0 if step is None else manager.restore(step, as_numpy=True)["step"] + 1
    print(step, flush=True)
    while True:
        os.write(tell, b".")
        manager.save(step, tree(step))
        step += 1

last = -1
for trial in range(trials):
    draw.seed(seed * 1000 + trial)
    saves, moment = int(6 * draw.random() ** 2), 0.03 * draw.random()
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        train(tell)
    for _ in range(saves):  # by what it did, as on a loaded machine it may do nothing for long
        os.read(told, 1)
    time.sleep(moment)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(told)
    os.close(tell)
    manager = CheckpointManager(root)
    steps = manager.steps()
    assert [n for n in os.listdir(root) if n.startswith(".")] == [], os.listdir(root)
    assert not steps or steps[-1] >= last, (steps, last)
    for step in steps:
        found = manager.restore(step, as_numpy=True)
        want = tree(step)
        assert found["step"] == step and (found["w"] == want["w"]).all() and len(found["w"]) == len(want["w"])
        assert checkpoint.verify(manager.path(step)) == []
    assert steps or last == -1
    last = steps[-1] if steps else -1
print("committed", last)
"""


@pytest.mark.parametrize("trials", [25, pytest.param(300, marks=pytest.mark.slow)])
def test_killed_at_random_moments_the_last_committed_one_is_readable(tmp_path, trials):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WRITER, str(tmp_path), str(trials), "7"],
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 0, done.stdout


# Each call that changes the disk is one before which a process is killed.
CALLS = """
import os, shutil, sys
import numpy as np
from meshrt import checkpoint
from meshrt.checkpoint import CheckpointManager, functions  # everything is imported before the first fork
left = 0

def count(name):
    real = getattr(os, name)
    def call(*args, **kw):
        global left
        left -= 1
        if not left:
            os._exit(9)
        return real(*args, **kw)
    setattr(os, name, call)

def save(step, root):
    CheckpointManager(root, keep_last=1, asynchronous=False).save(step, {"w": np.full(100, step)})

base = sys.argv[1]
save(1, base)
for moment in range(1, 60):
    root = f"{base}-{moment}"
    shutil.copytree(base, root)
    child = os.fork()
    if not child:
        for name in ("mkdir", "open", "pwrite", "fsync", "unlink", "rename", "rmdir"):
            count(name)
        left = moment
        save(2, root)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    steps = CheckpointManager(root).steps()
    assert steps in ([1], [1, 2], [2]), steps
    assert all(checkpoint.verify(f"{root}/step_{s:08d}") == [] for s in steps)
    assert not [n for n in os.listdir(root) if n.startswith(".")]
    print(code, steps)
    if not code:
        break
"""


def test_killed_before_each_call_that_changes_the_disk(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", CALLS, str(tmp_path / "base")]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()
    assert len(rows) > 12 and rows[0] == "9 [1]" and "9 [1, 2]" in rows and rows[-1] == "0 [2]", rows
