"""What works with symbolic sizes: exported with them and called with numbers, functions give what they give else."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
from meshrt import export
from tests.meshrt.export.symbolic_rows import ROWS


def arguments(given):
    rng = np.random.default_rng(0)
    return [rng.random(a, dtype=np.float32) if isinstance(a, tuple) else a for a in given]


@pytest.mark.parametrize(("fun", "shapes", "given"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_symbolic_function(fun, shapes, given):
    args = arguments(given)
    specs = export.symbolic_args_specs(args, list(shapes))
    exported = export.export(meshrt.jit(fun))(*specs)
    found, expected = exported.call(*args), meshrt.jit(fun)(*args)
    assert meshrt.tree.structure(found) == meshrt.tree.structure(expected)
    for a, b in zip(meshrt.tree.leaves(found), meshrt.tree.leaves(expected)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
