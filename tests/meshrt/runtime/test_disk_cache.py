"""The directory of compiled programs: entries are whole or absent, bounded and shared; it must be the user's alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import meshrt
from meshrt import config, errors
from meshrt.cli import main as cli
from meshrt.runtime import compile_cache, events
from meshrt.runtime.disk_cache import DamagedEntry, DiskCache, checked_directory


@pytest.fixture
def disk(tmp_path):
    return DiskCache(checked_directory(tmp_path / "cache"))


def test_what_was_written_is_read(disk):
    disk.write("a.xla", b"code", program="step", platform="cpu", jaxlib="0.10.2")
    about, content = disk.read("a.xla")
    assert content == b"code" and about["program"] == "step"
    disk.read("a.xla")
    (entry,) = disk.entries(check=True)
    assert (entry.hits, entry.program, entry.platform, entry.problem) == (2, "step", "cpu", None)
    with pytest.raises(FileNotFoundError):
        disk.read("b.xla")


def test_every_flipped_byte_is_noticed(disk):
    disk.write("a.xla", b"code", program="step")
    good = disk.path("a.xla").read_bytes()
    for i in range(len(good)):
        disk.path("a.xla").write_bytes(good[:i] + bytes([good[i] ^ 1]) + good[i + 1 :])
        with pytest.raises(DamagedEntry):
            disk.read("a.xla")
    for length in range(len(good)):
        disk.path("a.xla").write_bytes(good[:length])
        with pytest.raises(DamagedEntry):
            disk.read("a.xla")
        assert disk.entries(check=True)[0].problem is not None
    disk.path("b.xla").write_bytes(good)  # a sound entry under another name
    with pytest.raises(DamagedEntry):
        disk.read("b.xla")


def test_the_entries_not_used_for_longest_go(disk):
    for i, name in enumerate("abcd"):
        disk.write(f"{name}.xla", bytes(1000))
        os.utime(disk.path(f"{name}.xla"), (i, i))
    disk.read("a.xla")
    bounded = DiskCache(disk.root, 3500)
    bounded.write("e.xla", bytes(1000))
    assert {e.name for e in bounded.entries()} == {"a.xla", "d.xla", "e.xla"}
    bounded.write("f.xla", bytes(9000))  # larger than all may be: nothing stays, but what is asked for now
    assert [e.name for e in bounded.entries()] == []
    assert not [p.name for p in disk.root.iterdir()]


def test_files_of_the_users_in_the_directory_stay(disk):
    ours = ".0123456789abcdef-12-34-56.tmp"
    for name in ("notes.tmp", ".hidden.tmp", ".mine.used", ours):
        (disk.root / name).write_text("")
        os.utime(disk.root / name, (0, 0))
    disk.write("a.xla", b"code")
    disk.read("a.xla")
    assert [e.name for e in disk.entries()] == ["a.xla"]
    assert not (disk.root / ours).exists(), "half-written by a process that was killed"
    assert disk.clear() == 1
    assert sorted(p.name for p in disk.root.iterdir()) == [".hidden.tmp", ".mine.used", "notes.tmp"]


def test_links_pipes_and_directories_are_not_read(disk, tmp_path):
    disk.write("a.xla", b"code")
    disk.path("link.xla").symlink_to(disk.path("a.xla"))
    os.mkfifo(disk.path("pipe.xla"))
    disk.path("folder.xla").mkdir()
    for name in ("link.xla", "pipe.xla", "folder.xla"):
        with pytest.raises(OSError):
            disk.read(name)
    assert len([e for e in disk.entries() if e.problem]) == 3
    assert disk.clear() == 3 and [e.name for e in disk.entries()] == ["folder.xla"], "what it cannot remove stays"


def test_entries_are_written_while_another_clears(disk):
    failed, end = [], time.monotonic() + 0.5

    def work(number):
        while time.monotonic() < end:
            try:
                disk.write(f"{number}.xla", bytes(1000)) if number else disk.clear()
            except OSError as e:
                failed.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads], [t.join(20) for t in threads]
    disk.clear()
    assert not failed and not list(disk.root.iterdir())


def test_one_makes_an_entry_and_the_others_wait(disk):
    made, waits, all_there = [], [], threading.Barrier(6)

    def work():
        all_there.wait(20)
        with disk.making("a.xla", 10) as waited:
            waits.append(waited)
            if not disk.path("a.xla").exists():
                time.sleep(0.3)
                made.append(1)
                disk.write("a.xla", b"code")

    threads = [threading.Thread(target=work) for _ in range(6)]
    [t.start() for t in threads], [t.join(20) for t in threads]
    assert len(made) == 1 and waits.count(False) == 1 and len(waits) == 6
    assert [p.name for p in disk.root.iterdir()] == ["a.xla"]


HOLDER = """
import sys, time
from pathlib import Path
from meshrt.runtime.disk_cache import DiskCache
with DiskCache(Path(sys.argv[1])).making("a.xla", 10):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_ends_with_its_holder(disk):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(disk.root)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        start = time.monotonic()
        with disk.making("a.xla", 0.2) as waited:  # it takes too long: this one goes on without
            assert waited and time.monotonic() - start >= 0.2
        threading.Timer(0.3, holder.send_signal, [signal.SIGKILL]).start()
        start = time.monotonic()
        with disk.making("a.xla", 30) as waited:
            assert waited and time.monotonic() - start < 20
    finally:
        holder.kill()
        holder.communicate()
    assert not list(disk.root.iterdir())


def test_directories_that_are_not_the_users_alone_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.CompileCacheError, match=r"cannot be used|is not a directory"):
        checked_directory(tmp_path / "file")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o770)
    with pytest.raises(errors.CompileCacheError, match=f"run `chmod go-w {open_to_all}`"):
        checked_directory(open_to_all)
    if os.getuid() == 0:
        open_to_all.chmod(0o700)
        os.chown(open_to_all, 12345, -1)
        with pytest.raises(errors.CompileCacheError, match="belongs to user id 12345"):
            checked_directory(open_to_all)


def test_settings_have_jaxs_names(tmp_path):
    with config.override(
        jax_compilation_cache_dir=str(tmp_path / "c"), jax_persistent_cache_min_compile_time_secs=1,
        jax_raise_persistent_cache_errors=True,
    ):  # fmt: skip
        store = lambda seconds: compile_cache.store_entry("a.xla", b"x", seconds=seconds, program="f", platform="cpu")
        store(0.5)
        assert compile_cache.load_entry("a.xla") is None
        store(1.5)
        assert compile_cache.load_entry("a.xla") == b"x"
        with config.override(jax_enable_compilation_cache=False), events.count() as n:
            assert compile_cache.load_entry("a.xla") is None and n.persistent_miss == 0
        (tmp_path / "c" / "a.xla").write_bytes(b"y")
        with pytest.raises(errors.CompileCacheError, match="is damaged"):
            compile_cache.load_entry("a.xla")
    with pytest.raises(errors.ConfigError, match="at least 0"):
        config.update("persistent_cache_min_compile_time_secs", -1.0)
    with pytest.raises(errors.ConfigError, match="at least 0"):
        config.update("persistent_cache_min_compile_time_secs", float("nan"))


# --- the command.


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        cli.main(["cache", *arguments])
    out, err = capsys.readouterr()
    return caught.value.code, out, err


def test_command(disk, capsys):
    disk.write("a.xla", bytes(3000), program="train_step", platform="cpu", jaxlib="0.10.2")
    disk.write("b.program", b"module", program="evaluate", platform="tpu")
    disk.read("a.xla")
    where = ("--dir", str(disk.root))
    code, out, _ = run(capsys, "ls", *where)
    assert code == 0
    for text in ("2 entries", "train_step", "evaluate", "tpu", "3.1 KiB", "hits"):
        assert text in out
    code, out, _ = run(capsys, "ls", "--json", *where)
    rows = {e["name"]: e for e in json.loads(out)["entries"]}
    assert code == 0 and rows["a.xla"]["hits"] == 1 and rows["b.program"]["platform"] == "tpu"
    assert run(capsys, "verify", *where)[:2] == (0, "2 entries, 0 damaged\n")
    disk.path("a.xla").write_bytes(b"rubbish")
    code, out, _ = run(capsys, "verify", "--remove", *where)
    assert code == 1 and "its checksum does not match" in out and "1 damaged" in out
    assert run(capsys, "clear", "--older-than", "1", *where)[1].startswith("removed 0 of 1 entries")
    assert run(capsys, "clear", *where)[0] == 0
    assert not list(disk.root.iterdir())


def test_command_without_a_directory(capsys, tmp_path):
    code, _, err = run(capsys, "ls")
    assert code == 2 and "MESHRT_COMPILATION_CACHE_DIR" in err
    code, _, err = run(capsys, "ls", "--dir", str(tmp_path / "none"))
    assert code == 2 and "cannot be used" in err


def test_5_12_programs_are_found_again_whatever_devices_and_processes_they_run_on(tmp_path, capsys):
    """Keys have no device, a miss is explained, damage is found and mended, and what is there is checked."""
    x, here, there = np.arange(4, dtype=np.float32), *meshrt.devices()[:2]
    program = "import meshrt, numpy as np; meshrt.jit(lambda x: meshrt.numpy.cumsum(x) * 3)(np.arange(4, dtype='f4'))"
    env = {**os.environ, "MESHRT_COMPILATION_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=env, check=True)
    (entry,) = tmp_path.glob("*.xla")
    f = lambda: meshrt.jit(lambda x: meshrt.numpy.cumsum(x) * 3)
    with config.override(compilation_cache_dir=str(tmp_path)):
        for device in here, there:
            compile_cache.clear()
            with events.count() as n:
                found = f()(meshrt.device_put(x, device))
            np.testing.assert_array_equal(found, np.cumsum(x) * 3)
            assert (n.compile, n.persistent_hit) == (0, 1) and found.devices() == {device}
        entry.write_bytes(entry.read_bytes()[:-1] + b"?")
        assert "1 damaged" in run(capsys, "verify", "--dir", str(tmp_path))[1]
        compile_cache.clear()
        with events.count() as n:
            f()(meshrt.device_put(x, here))
        assert (n.compile, n.persistent_corrupt) == (1, 1)
    assert run(capsys, "verify", "--dir", str(tmp_path))[:2] == (0, "1 entry, 0 damaged\n")
    jitted = f()
    jitted(x)
    miss = meshrt.explain_cache_miss(jitted)(x[:2])
    assert miss.layer == "trace" and "shape" in " ".join(miss.components)
