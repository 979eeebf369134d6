"""The measuring itself: pairs, statistics, the two processes, and the command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.figures import Result
from benchmarks.peers import Pairs, Peer, PeerError, alternate
from benchmarks.report import amount

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "layers": 1,
    "width": 16,
    "heads": 2,
    "hidden": 32,
    "context": 16,
    "batch": 8,
    "vocabulary": 32,
    "unrolled": True,
}
MESH = {"data": 4, "model": 2}


def test_ratios_are_taken_pair_by_pair():
    pairs = Pairs((1.0, 2.0, 9.0), (2.0, 4.0, 9.0))
    assert pairs.ratio == 0.5 and pairs.spread == (0.5, 1.0) and pairs.medians == (2.0, 4.0)
    result = Result.of("x", pairs, must=0.5)
    assert result.reached and result.as_json()["reached"] is True
    assert Result.of("x", pairs, must=0.4).reached is False and Result.of("x", pairs).reached is None


def test_samples_alternate_and_warm_ones_are_dropped():
    calls = []
    pairs = alternate(lambda: calls.append("a") or 1.0, lambda: calls.append("b") or 2.0, pairs=3, warm=1)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab" and len(pairs.ours) == 3


def test_amounts():
    assert amount(0.00123, "s") == "1.23 ms" and amount(3e-6, "s") == "3 µs" and amount(2048, "B") == "2 KiB"
    assert amount(None, "s") == "-"


# JAX's side is all compilation, and what `make bench` times in it is JAX's own.
@pytest.mark.parametrize("package", ["meshrt", pytest.param("jax", marks=pytest.mark.slow)])
def test_a_peer_runs_every_task(package):
    peer = Peer(package)
    try:
        task = {"model": SMALL, "mesh": MESH}
        assert package in peer("versions")
        assert peer("trace_lower", **task) > 0
        assert peer("second_device_set", **task) > 0
        assert peer("step_time", **task, steps=1) > 0
        assert peer("call_overhead", leaves=2, devices=8, calls=100) > 0
        assert peer("call_overhead", leaves=100, devices=1, calls=100) > 0
        if package == "meshrt":  # the other side takes seconds to import
            assert peer("checkpoint", arrays=1).keys() == {"stall", "step", "save", "restore"}
        found = peer("communication", **task)
        assert "all-reduce" in found["hlo"] and (found["plan"] is None) == (package == "jax")
        if package == "meshrt":
            assert peer("propagate_partition", **task) > 0
        with pytest.raises(PeerError, match="no_such_task"):
            peer("no_such_task")
    finally:
        peer.close()


def test_a_dead_peer_is_an_error():
    peer = Peer("meshrt")
    peer.process.kill()
    with pytest.raises(PeerError, match="ended with code"):
        peer("versions")
    peer.close()


def test_bytes_are_measured_by_the_command(tmp_path):
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks", "--only", "bytes", "--quick", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=500)
    data = json.loads(file.read_text())
    assert not data["failures"], data["failures"]
    assert "sent per device and step" in done.stdout
    for figure in data["figures"]:
        details = figure["details"]
        assert figure["ratio"] <= 1.0 and figure["reached"]
        assert details["planned bytes"] == pytest.approx(
            figure["ours"], rel=0.01
        )  # what is planned is what is compiled
