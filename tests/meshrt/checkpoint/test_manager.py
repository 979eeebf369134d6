"""The checkpoints of a run: which stay, saving in a thread, what went wrong there, the command line."""

import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import meshrt
from meshrt import checkpoint, errors
from meshrt.checkpoint import CheckpointManager, folder
from tests.meshrt.cli.test_main import run


@pytest.mark.parametrize(
    ("keep", "want"),
    [
        ({}, [5, 10, 15, 20, 25]),
        ({"keep_last": 1}, [25]),
        ({"keep_last": 2}, [20, 25]),
        ({"keep_last": 1, "keep_every": 10}, [10, 20, 25]),
        ({"keep_every": 10}, [5, 10, 15, 20, 25]),
    ],
)
def test_which_checkpoints_stay(tmp_path, keep, want):
    with CheckpointManager(tmp_path / "run", **keep) as manager:
        assert manager.latest() is None and manager.steps() == [] and manager.list() == []
        for step in (5, 10, 15, 20, 25):
            manager.save(step, {"step": step}, metadata={"at": step})
    assert manager.steps() == want and manager.latest() == 25
    assert [c.metadata["at"] for c in manager.list()] == want
    assert manager.restore() == {"step": 25} and manager.restore(want[0]) == {"step": want[0]}
    assert sorted(os.listdir(tmp_path / "run")) == [f"step_{s:08d}" for s in want]


def test_saving_goes_on_in_a_thread_and_the_next_one_waits(tmp_path, monkeypatch):
    go_on = threading.Event()
    commit = folder.Unfinished.commit
    monkeypatch.setattr(folder.Unfinished, "commit", lambda self: go_on.wait(20) and commit(self))
    manager = CheckpointManager(tmp_path)
    manager.save(1, {"a": 1})
    assert manager.steps() == []  # still being written
    threading.Timer(0.1, go_on.set).start()
    manager.save(2, {"a": 2})
    assert go_on.is_set() and 1 in manager.steps()
    manager.wait()
    assert manager.steps() == [1, 2]


def test_what_went_wrong_in_the_thread_is_raised_by_the_next_call_once(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    manager = CheckpointManager(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", refuse)
        manager.save(1, {"a": np.zeros(3)})
        manager._saving._thread.join()
    with pytest.raises(errors.CheckpointWriteError, match=r"step_00000001: .*No space left on device"):
        manager.save(2, {"a": np.zeros(3)})
    manager.save(2, {"a": np.zeros(3)})
    manager.close()
    assert manager.steps() == [2]
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", refuse)
        with pytest.raises(ValueError, match="mine") as e, manager:
            manager.save(3, {"a": np.zeros(3)})
            manager._saving._thread.join()
            raise ValueError("mine")
    assert "saving failed: CheckpointWriteError" in e.value.__notes__[0]


def test_a_saving_tells_how_it_is(tmp_path, monkeypatch):
    go_on = threading.Event()
    commit = folder.Unfinished.commit
    monkeypatch.setattr(folder.Unfinished, "commit", lambda self: go_on.wait(20) and commit(self))
    saving = checkpoint.save_async(tmp_path / "a", [1])
    after = checkpoint.save_async(tmp_path / "b", [2], after=saving)
    assert not saving.done and "being saved" in repr(saving)
    with pytest.raises(errors.CheckpointError, match=r"was not committed within 0\.01 s"):
        saving.wait(timeout=0.01)
    go_on.set()
    after.wait()
    assert saving.done and "committed" in repr(saving) and folder.is_committed(tmp_path / "b")


def test_a_program_that_ends_finishes_what_it_began(tmp_path):
    script = (
        "import sys, numpy as np\nfrom meshrt import checkpoint\n"
        "checkpoint.save_async(sys.argv[1] + '/a', [np.zeros(1 << 20)])\n"
        "checkpoint.save_async(sys.argv[1] + '/none/../a', [1]) if len(sys.argv) > 2 else None"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    assert checkpoint.verify(tmp_path / "a") == []
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "b"), ""], text=True, stderr=-1, check=False)
    assert "a was not saved: CheckpointExistsError: there is" in done.stderr


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda p: CheckpointManager(p, keep_last=0), "keep_last=0: expected a whole number, at least 1"),
        (lambda p: CheckpointManager(p, keep_every=1.5), "keep_every=1.5"),
        (lambda p: CheckpointManager(p).save(-1, 0), "step=-1: expected a whole number from 0 on"),
        (lambda p: CheckpointManager(p).save("1", 0), "step='1'"),
        (lambda p: CheckpointManager(p).restore(), "there is no committed checkpoint in"),
        (lambda p: CheckpointManager(p).restore(3), "step_00000003"),
    ],
)
def test_bad_arguments(tmp_path, call, match):
    with pytest.raises((errors.ArgumentValueError, errors.CheckpointNotFoundError), match=match):
        call(tmp_path)


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.CheckpointWriteError, match="making it failed: "):
        CheckpointManager(tmp_path / "file" / "run")


def test_what_is_imported_only_when_it_is_used():
    script = "import sys, meshrt; print([m for m in sys.modules if m.startswith('meshrt.checkpoint')])"
    assert subprocess.run([sys.executable, "-c", script], text=True, stdout=-1, check=True).stdout.strip() == "[]"
    assert callable(meshrt.checkpoint)


# --- meshrt checkpoint


def test_the_command_line(tmp_path, capsys):
    with CheckpointManager(tmp_path / "run") as manager:
        for step in (1, 20):
            manager.save(step, {"w": np.zeros((2, 3), np.float32), "n": 5}, metadata={"loss": 0.5})
    name = str(tmp_path / "run")
    code, out, _ = run(capsys, "checkpoint", "ls", name)
    assert code == 0 and "step_00000001" in out and '{"loss": 0.5}' in out and "2 checkpoints" in out
    code, out, _ = run(capsys, "checkpoint", "ls", "--leaves", str(manager.path(1)))
    assert "['w']  float32[2,3]" in out and "['n']  5" in out and "step_00000020" not in out
    code, out, _ = run(capsys, "checkpoint", "ls", "--json", "--leaves", name)
    rows = json.loads(out)
    assert rows[1]["metadata"] == {"loss": 0.5} and rows[1]["leaves"] == {"['n']": "5", "['w']": "float32[2,3]"}
    assert rows[0]["time"] <= time.time() and rows[0]["bytes"] == 24
    assert run(capsys, "checkpoint", "verify", name)[:2] == (
        0,
        f"{name}/step_00000001: sound\n{name}/step_00000020: sound\n",
    )
    shard = manager.path(20) / "process_00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\1")
    code, out, _ = run(capsys, "checkpoint", "verify", name)
    assert code == 1 and "step_00000020: 1 damaged" in out and "of the leaf ['w']" in out
    code, out, _ = run(capsys, "checkpoint", "verify", "--json", str(manager.path(20)))
    assert code == 1 and "is damaged" in json.loads(out)[str(manager.path(20))][0]
    (manager.path(20) / "manifest.json").write_text("{")
    code, out, _ = run(capsys, "checkpoint", "ls", "--json", name)
    assert code == 0 and "does not begin as the manifest" in json.loads(out)[1]["problem"]
    assert "damaged" in run(capsys, "checkpoint", "ls", name)[1]
    assert run(capsys, "checkpoint", "rm", str(manager.path(20)))[0] == 0 and manager.steps() == [1]
    for wrong in ("ls", "verify", "rm"):
        code, _, err = run(capsys, "checkpoint", wrong, str(tmp_path / "none"))
        assert code == 2 and "no committed checkpoint" in err
    assert run(capsys, "checkpoint", "rm", str(tmp_path))[0] == 2 and manager.steps() == [1]
