"""The compiler's memory figures, beside JAX's of the same program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshrt
from meshrt import numpy as mnp
from meshrt.runtime.memory_stats import CompiledMemoryStats


def step(numpy):
    return lambda w, x: (w - 0.1 * (x.T @ numpy.tanh(x @ w)), numpy.sum(x @ w))


@pytest.mark.smoke
def test_fields_and_figures_are_those_of_jax():
    w, x = np.ones((64, 32), np.float32), np.ones((16, 64), np.float32)
    ours = meshrt.jit(step(mnp), donate_argnums=0).lower(w, x).compile().memory_analysis()
    theirs = jax.jit(step(jnp), donate_argnums=0).lower(w, x).compile().memory_analysis()
    names = {n for n in dir(type(theirs)) if not n.startswith("_")}
    assert names <= set(CompiledMemoryStats.__dataclass_fields__)
    of_the_program = {n for n in names if n.endswith("_in_bytes") and "temp" not in n and "peak" not in n}
    assert {n: getattr(ours, n) for n in of_the_program} == {n: getattr(theirs, n) for n in of_the_program}
    assert ours.alias_size_in_bytes == w.nbytes and ours.argument_size_in_bytes == w.nbytes + x.nbytes
    assert ours.temp_size_in_bytes > 0 and ours.peak_memory_in_bytes > 0


def test_a_donated_argument_is_held_once():
    stats = CompiledMemoryStats(0, 100, 100, 60, 30, 0, 0, 0, 0, 0, 150)
    assert stats.device_size_in_bytes == 170
    assert "peak_memory_in_bytes=150" in repr(stats) and "proto" not in repr(stats)
