"""What is removed, by whom and when: half-removed directories, links, other processes in the same directory; and names,
limits and leaves that are refused in words."""

import errno
import os
import resource
import subprocess
import sys

import numpy as np
import pytest

import meshrt.numpy as jnp
from meshrt import checkpoint, errors
from meshrt.checkpoint import CheckpointManager, folder

TREE = {"w": np.arange(1000, dtype=np.float32), "step": 7}


# --- removing


def test_a_directory_whose_lock_went_first_is_removed_with_all_that_is_in_it(tmp_path):
    half = tmp_path / ".step_00000002.saving-0123456789abcdef"
    half.mkdir()
    (half / "process_00000.safetensors").write_bytes(b"x" * 100)
    CheckpointManager(tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("stop_at", [1, 2, 3])
def test_killed_while_it_cleans_or_gives_up_the_next_one_removes_the_rest(tmp_path, stop_at):
    """Removing stops behind each of its first calls, as by a kill."""
    script = f"""
import os, sys
from meshrt.checkpoint import CheckpointManager, folder
made = folder.Unfinished.begin(folder.Path(sys.argv[1]) / "step_00000001")
for name in ("a", "b", "c"):
    (made.folder / name).write_text("x")
left = {stop_at}
def count(name):
    real = getattr(os, name)
    def call(*args, **kw):
        global left
        real(*args, **kw)
        left -= 1
        if not left:
            os._exit(9)
    setattr(os, name, call)
if sys.argv[2] == "cleans":
    os.close(made._lock)
for name in ("rename", "unlink", "rmdir"):
    count(name)
made.abandon() if sys.argv[2] == "gives up" else CheckpointManager(sys.argv[1])
"""
    for how in ("gives up", "cleans"):
        done = subprocess.run([sys.executable, "-c", script, str(tmp_path), how], text=True, stderr=-1, check=False)
        assert done.returncode == 9, done.stderr
        assert len(os.listdir(tmp_path)) == 1
        CheckpointManager(tmp_path)
        assert os.listdir(tmp_path) == []


def test_a_maker_whose_directory_was_taken_away_makes_another(tmp_path, monkeypatch):
    taken = []

    def late(handle):  # somebody cleans between the lock's making and its taking
        if not taken:
            taken.extend(folder.clean(tmp_path))

    monkeypatch.setattr(folder, "_lock", late)
    made = folder.Unfinished.begin(tmp_path / "a")
    assert len(taken) == 1 and made.folder != taken[0] and os.listdir(tmp_path) == [made.folder.name]


def test_of_a_link_the_link_is_removed(tmp_path):
    checkpoint.save(tmp_path / "step", TREE)
    (tmp_path / "latest").symlink_to("step")
    assert checkpoint.restore(tmp_path / "latest")["step"] == 7
    checkpoint.remove(tmp_path / "latest")
    assert os.listdir(tmp_path) == ["step"] and checkpoint.verify(tmp_path / "step") == []


def test_what_another_process_removed_meanwhile_is_not_found(tmp_path, monkeypatch):
    checkpoint.save(tmp_path / "a", TREE)
    real = folder.fcntl.flock

    def other_first(handle, how):
        monkeypatch.setattr(folder.fcntl, "flock", real)
        checkpoint.remove(tmp_path / "a")
        checkpoint.save(tmp_path / "a", {"by": "another"})
        real(handle, how)

    monkeypatch.setattr(folder.fcntl, "flock", other_first)
    with pytest.raises(errors.CheckpointNotFoundError):
        checkpoint.remove(tmp_path / "a")
    assert checkpoint.restore(tmp_path / "a") == {"by": "another"}


def test_a_checkpoint_that_another_process_drops_at_once_was_saved(tmp_path, monkeypatch, recwarn):
    rename = os.rename

    def then_gone(old, new):
        rename(old, new)
        if new == tmp_path / "a":
            monkeypatch.setattr(os, "rename", rename)
            checkpoint.remove(new)

    monkeypatch.setattr(os, "rename", then_gone)
    checkpoint.save(tmp_path / "a", TREE)
    assert os.listdir(tmp_path) == [] and not recwarn.list
    assert folder.committed_in(tmp_path / "a") == folder.clean(tmp_path / "a") == []


# --- the manager


def test_what_was_just_saved_stays_also_behind_later_ones(tmp_path):
    with CheckpointManager(tmp_path, keep_last=2) as manager:
        for step in (10, 20, 30):
            manager.save(step, TREE)
        manager.restore(20)  # a run that goes back
        manager.save(15, TREE)
        manager.wait()
        assert manager.steps() == [15, 20, 30]


def test_restoring_waits_for_what_is_being_saved_and_tells_what_went_wrong_there(tmp_path, monkeypatch):
    manager = CheckpointManager(tmp_path)
    for step in range(3):
        manager.save(step, {"step": step})
        assert manager.restore()["step"] == step

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", refuse)
        manager.save(3, TREE)
        with pytest.raises(errors.CheckpointWriteError, match="No space left"):
            manager.restore()
    assert manager.restore()["step"] == 2


def test_one_that_cannot_be_dropped_is_no_failure_of_the_save(tmp_path, monkeypatch):
    manager = CheckpointManager(tmp_path, keep_last=1, asynchronous=False)
    manager.save(1, TREE)
    rename = os.rename

    def refuse(old, new):
        if ".removed-" in os.fspath(new):
            raise OSError(errno.EACCES, "Permission denied")
        rename(old, new)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", refuse)
        with pytest.warns(RuntimeWarning, match=r"step_00000001: removing it failed: Permission denied.* It stays"):
            manager.save(2, TREE)
    assert manager.steps() == [1, 2]
    manager.save(3, TREE)
    assert manager.steps() == [3]


# --- names and limits


def test_names_of_every_length_that_file_systems_take(tmp_path):
    for name in ("n" * 255, "ä" * 127, "a\nb"):
        checkpoint.save(tmp_path / name, TREE)
        assert checkpoint.restore(tmp_path / name)["step"] == 7
        checkpoint.remove(tmp_path / name)
        folder.Unfinished.begin(tmp_path / name).abandon()
    assert os.listdir(tmp_path) == []
    with pytest.raises(errors.CheckpointWriteError, match=r"File name too long\. Give it a shorter name"):
        checkpoint.save(tmp_path / ("n" * 256), TREE)
    for call in (lambda p: checkpoint.save(p, TREE), checkpoint.restore, CheckpointManager):
        with pytest.raises(errors.ArgumentValueError, match="has no zero bytes"):
            call(f"{tmp_path}/a\0b")


LIMITS = """
import os, resource, sys
import numpy as np
import meshrt.numpy as jnp
from meshrt import checkpoint, errors
from meshrt.checkpoint import functions
root = sys.argv[1]
checkpoint.save(root + "/a", {"w": np.arange(9)})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, -1))
try:
    checkpoint.save(root + "/b", {"w": np.zeros(100_000)})
except errors.CheckpointWriteError as e:
    assert "File too large. Raise the limit for the size of a file" in str(e), e
assert os.listdir(root) == ["a"]
files = max(map(int, os.listdir("/proc/self/fd")))
resource.setrlimit(resource.RLIMIT_NOFILE, (files + 2, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    os.close(held.pop())
for call in (lambda: checkpoint.restore(root + "/a"), lambda: checkpoint.save(root + "/b", 1)):
    try:
        call()
        print("went on")
    except errors.DamagedCheckpointError as e:
        print("blames the file", e)
    except errors.CheckpointError as e:
        print("Raise the limit for open files" in str(e))
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no such limit")
def test_limits_of_the_process_are_not_blamed_on_files(tmp_path):
    done = subprocess.run([sys.executable, "-c", LIMITS, str(tmp_path)], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True", "True"] or done.stdout.splitlines() == ["True", "went on"], done.stdout
    assert "a" in os.listdir(tmp_path)


# --- leaves


@pytest.mark.parametrize(
    ("leaf", "match"),
    [
        (np.ma.MaskedArray([1, 2], [0, 1]), r"the leaf \['x'\] is a masked NumPy array.*not the mask"),
        (10**5000, r"the leaf \['x'\] is a value that cannot be shown .*which a checkpoint cannot hold"),
    ],
    ids=["masked", "many digits"],
)
def test_leaves_of_which_something_would_be_lost(tmp_path, leaf, match):
    with pytest.raises(errors.CheckpointError, match=match):
        checkpoint.save(tmp_path / "a", {"x": leaf})
    assert os.listdir(tmp_path) == []


# --- arguments


def test_steps_of_numpy_are_steps(tmp_path):
    with CheckpointManager(tmp_path) as manager:
        manager.save(np.int64(3), TREE)
        manager.save(jnp.asarray(4), TREE)
    assert manager.steps() == [3, 4] and manager.restore(np.int32(4))["step"] == 7
    for bad in (True, 1.0, np.float32(2), np.int64(-1)):
        with pytest.raises(errors.ArgumentValueError, match="expected a whole number from 0 on"):
            manager.save(bad, TREE)


@pytest.mark.parametrize(
    ("call", "kind", "match"),
    [
        (
            lambda p: checkpoint.save(p / "b", 1, timeout="1"),
            errors.ArgumentTypeError,
            "timeout is a number of seconds",
        ),
        (lambda p: checkpoint.save(p / "b", 1, timeout=0), errors.ArgumentTypeError, r"above 0\. Got 0"),
        (lambda p: checkpoint.save_async(p / "b", 1, after=3), errors.ArgumentTypeError, "after is what an earlier"),
        (lambda p: checkpoint.restore(p / "a", mesh=3), errors.ArgumentTypeError, "mesh is a Mesh of devices"),
        (
            lambda p: checkpoint.restore(p / "a", shardings={"v": None}),
            errors.TreeError,
            "shardings= is no prefix of the tree that is restored: ",
        ),
    ],
)
def test_arguments_of_another_kind(tmp_path, call, kind, match):
    checkpoint.save(tmp_path / "a", TREE)
    with pytest.raises(kind, match=match):
        call(tmp_path)
    assert os.listdir(tmp_path) == ["a"]
