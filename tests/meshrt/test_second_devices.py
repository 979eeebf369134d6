"""B01, B02, 002-02, 002-16: a second set of devices, and a second process, cost a load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import meshrt
from meshrt.runtime import events
from tests.meshrt.second_devices import FIRST, KINDS, ORDERS, ROWS, arrays, mesh_of


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_b01_a_second_set_of_devices_costs_a_load(row, order):
    meshrt.clear_caches()
    call = row()
    expected = arrays(call(mesh_of(FIRST)))
    other = mesh_of(order)
    with events.count(*KINDS) as n:
        results = call(other)
    # The strided set begins with the first set's first device, which is all that a program on one device sees.
    assert n.as_dict() == {**dict.fromkeys(KINDS, 0), "rebind": n.rebind}
    assert n.rebind == 1 or (row is ROWS["default_device"] and other.devices.flat[0].id == FIRST[0])
    for r, e in zip(arrays(results), expected, strict=True):
        np.testing.assert_array_equal(r, e)
    with events.count(*KINDS, "dispatch_miss") as n:
        call(mesh_of(FIRST)), call(other)
    assert not any(n.as_dict().values())


def started(directory, order):
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "tests.meshrt.second_devices", str(directory), ",".join(map(str, order))]
    environment = {**os.environ, "MESHRT_NUM_CPU_DEVICES": "8"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=root, env=environment, text=True, **pipes)


def told(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def digests(rows):
    return {name: row["digest"] for name, row in rows.items()}


def test_b02_a_second_process_loads_what_is_on_disk(tmp_path):
    # Two at once: of each program one makes the entry and the other waits for it.
    several = [started(tmp_path / "cache", FIRST) for _ in range(2)]
    first, beside = map(told, several)
    made = [sum(row[kind] for row in (*first.values(), *beside.values())) for kind in ("compile", "partition")]
    later = told(started(tmp_path / "cache", ORDERS["permuted"]))
    assert digests(first) == digests(beside) == digests(later)
    for name, row in later.items():
        counts = {k: row[k] for k in ("propagate", "partition", "compile", "persistent_miss")}
        assert not any(counts.values()), (name, counts)
    stored = [path.suffix for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".")]
    assert made == [stored.count(".xla"), stored.count(".program")]
