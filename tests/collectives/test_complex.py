"""Complex values, and their constants, for which MLIR's bindings have no class."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives
import propagation

from .jax_side import Case, check

X = (np.arange(48) + 1j * np.arange(48)[::-1]).reshape(16, 3).astype(np.complex64)

FUNCTIONS = {
    "a splat": lambda x: x * (1 + 2j),
    "a table": lambda x: x + jnp.asarray(X[::-1]),
    "padding": lambda x: jnp.pad(x, ((1, 2), (0, 0)), constant_values=1j),
    "sum": lambda x: x.sum(0) * 1j,
    "roll": lambda x: jnp.roll(x, 3, 0) - 2j,
    "parts": lambda x: (x.real, jnp.abs(x), jnp.conj(x)),
    "dot": lambda x: x.T @ x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("axes", [{"x": 8}, {"x": 3, "y": 2}])
def test_complex_values(name, axes):
    x = X if axes == {"x": 8} else X[:15]
    f = FUNCTIONS[name] if len(x) == 16 else {**FUNCTIONS, "a table": lambda x: x + jnp.asarray(X[:15])}[name]
    check(Case(axes, lambda constrain: f, (x,), (P("x"),)), above_xla=True)


@pytest.mark.smoke
@pytest.mark.parametrize("after", [P(), P("x"), P(None, None, "x")])
@pytest.mark.parametrize("transform", [jnp.fft.fft, jnp.fft.rfft, jnp.fft.ifft])
def test_transforms_between_collectives_that_want_other_layouts(transform, after):
    """XLA gives collectives along the second dimension layouts that its transforms on CPU refuse."""
    x = np.random.default_rng(0).standard_normal((8, 32, 16)).astype(np.float32)

    def build(constrain):
        def f(x):
            y = constrain(transform(x, n=14), None, "x", None)
            return jnp.real(constrain(y, None, None, None)), jnp.abs(y[..., :8])

        return f

    check(Case({"x": 8}, build, (x,), (P(None, "x"),), (P(), after)), above_xla=True)


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("dtype, kept", [("complex<f32>", 1), ("f32", 0)])
def test_what_is_added_up_over_devices_is_behind_a_barrier(dtype, kept, optimize):
    """Where XLA's simplifier would end the process, whichever passes run."""
    zero = "(0.0, 0.0)" if kept else "0.0"
    text = f"""sdy.mesh @m = <["x"=4]>
func.func @main(%x: tensor<8x{dtype}> {{sdy.sharding = #sdy.sharding<@m, [{{"x"}}]>}}) -> tensor<{dtype}> {{
  %0 = stablehlo.constant dense<{zero}> : tensor<{dtype}>
  %1 = stablehlo.reduce(%x init: %0) applies stablehlo.add across dimensions = [0]
       : (tensor<8x{dtype}>, tensor<{dtype}>) -> tensor<{dtype}>
  return %1 : tensor<{dtype}> }}"""
    made = collectives.partition(propagation.run(text), optimize=optimize).as_text()
    assert made.count("stablehlo.all_reduce") == 1 and made.count("optimization_barrier") == kept
