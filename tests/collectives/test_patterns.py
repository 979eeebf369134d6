"""The patterns of `benchmarks/communication/patterns.py`: bytes beside an expert's, and the numbers of one device."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import collectives
import propagation
from benchmarks.communication import experts, patterns
from benchmarks.communication.library import PROGRAMS
from benchmarks.communication.measure import staged

from . import harness
from .jax_side import jax_mesh

# What is sent, over what an expert sends, where that is more than 1.
RATIOS = {
    "contrastive loss and its transpose, shared labels": 1.05,  # in two collectives less
    "fused q, k, v reshaped to (3, heads)": 1.03,
    "fourier neural operator, split in space": 1.26,
    "roll by a traced amount": 1.32,
}
OURS = [name for name, p in PROGRAMS.items() if p.function.__module__ == patterns.__name__]


def test_ratios_are_of_programs():
    assert set(RATIOS) <= set(OURS)


@pytest.mark.parametrize("name", OURS)
def test_sends_what_an_expert_sends(name):
    program = PROGRAMS[name]
    mesh = jax_mesh(dict(program.mesh))
    jitted, _ = staged(program, mesh)
    values = program.values()
    result = collectives.partition(propagation.run(jitted.lower(*values).as_text(debug_info=True)))
    if program.best is not None:
        assert result.plan.bytes <= RATIOS.get(name, 1.0) * program.best + 8, result.plan.as_text()
    expected = jax.tree.leaves(jax.jit(program.bind(lambda x, *spec: x))(*values))
    flat = [np.asarray(a) for a in jax.tree.leaves(values)]
    got, _ = harness.run_partitioned(result, flat, [e.shape for e in expected])
    for g, e in zip(got, map(np.asarray, expected), strict=True):
        assert g.dtype == e.dtype
        if e.dtype.kind in "iub":
            np.testing.assert_array_equal(g, e)
        else:
            np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-4 * float(np.max(np.abs(e), initial=0.0)))


@pytest.mark.parametrize("name", experts.EXPERTS)
def test_experts_send_what_is_called_the_best(name):
    """The yardstick itself: a program written by hand, compiled by XLA, computes the same and sends these bytes."""
    program = PROGRAMS[name]
    values = program.values()
    compiled = experts.by_hand(program, jax_mesh(dict(program.mesh))).lower(*values).compile()
    sent, _ = harness.hlo_bytes(compiled.as_text(), program.devices)
    assert sent == pytest.approx(program.best, abs=16)
    expected = jax.tree.leaves(jax.jit(program.bind(lambda x, *spec: x))(*values))
    placed = jax.tree.map(jax.device_put, values, compiled.input_shardings[0])
    for g, e in zip(jax.tree.leaves(compiled(*placed)), expected, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-4 * float(np.max(np.abs(e))))
