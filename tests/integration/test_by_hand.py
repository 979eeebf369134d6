"""Examples of what is written by hand with shard_map: values, gradients, bytes, beside one device and Auto mode."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

import meshrt

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "by_hand"
# Example -> (mesh, name of the function on one device, kinds of collectives that a device runs, arguments to derive by)
EXAMPLES = {
    "ring_attention": ({"ring": 8}, "attention", {"collective_permute"}, (0, 1, 2)),
    "pipeline": ({"stage": 8}, "network", {"collective_permute", "all_reduce"}, (0, 1)),
    "experts": ({"expert": 8}, "plain", {"all_to_all"}, (0, 2, 3)),
    "zero1": ({"data": 8}, "plain", {"all_gather", "reduce_scatter"}, ()),
    "halo": ({"rows": 4, "columns": 2}, "plain", {"collective_permute"}, (0,)),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_by_hand(name, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    example, compare = importlib.import_module(name), importlib.import_module("compare")
    axes, plain, kinds, numbers = EXAMPLES[name]
    types = (meshrt.sharding.AxisType.Auto,) * len(axes)
    mesh = meshrt.make_mesh(tuple(axes.values()), tuple(axes), axis_types=types)
    by_hand, automatic = example.programs(mesh)
    args = example.arguments(mesh)
    host = meshrt.tree.map(np.asarray, args)
    judge = getattr(example, plain)
    want = judge(*host)
    for program in (by_hand, automatic):
        close(meshrt.jit(program)(*args), want)
    count, runs = compare.sent(by_hand, *args)
    assert set(runs) == kinds
    assert count <= compare.sent(automatic, *args)[0]
    if numbers:
        grad = lambda f: meshrt.jit(meshrt.grad(lambda *a: (f(*a) ** 2).mean(), argnums=numbers))
        close(grad(by_hand)(*args), grad(judge)(*host))


def close(got, want):
    for g, w in zip(meshrt.tree.leaves(got), meshrt.tree.leaves(want), strict=True):
        w = np.asarray(w)
        np.testing.assert_allclose(g, w, rtol=2e-3, atol=1e-3 * max(1e-3, float(np.abs(w).max())))
