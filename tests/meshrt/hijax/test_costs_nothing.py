"""What programs without high types are, and what tracing them takes: the same in a process that has no high types."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import meshrt.experimental.hijax.padded
import meshrt.experimental.hijax.quantized
import meshrt.experimental.hijax.tuples  # noqa: F401  (registers types)
from tests.meshrt.hijax import ordinary


@pytest.fixture(scope="module")
def without():
    """Of a process that imports none of `meshrt.experimental.hijax`, which it asserts itself."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    ran = subprocess.run(
        [sys.executable, "-m", ordinary.__name__], cwd=root, env={**os.environ, "PYTHONPATH": root},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_000_01_programs_and_values_are_those_of_a_process_without_high_types(without):
    here = ordinary.described()
    assert here.keys() == without["programs"].keys()
    for name, (program, text, values) in here.items():
        assert [program, text, values] == without["programs"][name], name
        assert "high" not in program


def test_000_02_tracing_a_step_takes_as_many_calls_with_high_types_as_without(without):
    """Counts of calls, which do not vary as times do. Statement 000-02 allows 3 percent of time."""
    (total, own), (before, own_before) = ordinary.calls(), without["calls"]
    assert abs(total - before) <= before / 1000 and own == own_before
    assert own <= 0.025 * total, f"{own} of {total} calls are of what serves high types alone"
