"""examples/sharded_recurrence.py: a partition function beside automatic sharding."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import meshrt
from meshrt import NamedSharding, P
from meshrt.sharding import AxisType

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sharded_recurrence.py"


def test_it_sends_little_and_its_gradients_are_those_of_the_scan(capsys):
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    text = capsys.readouterr().out
    automatic, sharded = (float(s) for s in re.findall(r"sends\s+([\d.]+) KiB", text))
    assert sharded < automatic / 50 and "the gradients agree" in text


@pytest.mark.parametrize("spec", [P(), P("data"), P(None, "time"), P(None, ("time", "data")), P(None, None, "time")])
@pytest.mark.parametrize("partitioner", ["meshrt", "xla"])
def test_wherever_the_sequences_are(spec, partitioner):
    example = runpy.run_path(str(EXAMPLE))
    mesh = meshrt.make_mesh((2, 4), ("data", "time"), AxisType.Auto)
    rng = np.random.default_rng(1)
    a, x = (rng.uniform(0.5, 1.0, (2, 16, 4)).astype(np.float32) for _ in range(2))
    h, want = np.zeros((2, 4)), np.zeros(a.shape)
    for t in range(16):
        h = a[:, t] * h + x[:, t]
        want[:, t] = h
    placed = [meshrt.device_put(v, NamedSharding(mesh, spec)) for v in (a, x)]
    with meshrt.config.override(partitioner=partitioner):
        np.testing.assert_allclose(meshrt.jit(example["sharded"])(*placed), want, rtol=1e-5)
        mapped = meshrt.jit(meshrt.vmap(example["sharded"], (0, None)))(np.stack([a, a / 2]), placed[1])
    np.testing.assert_allclose(mapped[0], want, rtol=1e-5)
