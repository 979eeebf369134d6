"""Composites, which exported programs have for operations of CHLO: they are what they are made of."""

from __future__ import annotations

import numpy as np
import pytest

import collectives
import propagation
from collectives.errors import UnsupportedOpError

from . import harness

TEXT = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(%x: tensor<8x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
    -> (tensor<8x3xf32>, tensor<8x3xi32>, tensor<8x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
        tensor<8x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %v, %i = stablehlo.composite "chlo.top_k" %x {composite_attributes = {k = 3 : i64}, decomposition = @top_k,
    version = 1 : i32} : (tensor<8x64xf32>) -> (tensor<8x3xf32>, tensor<8x3xi32>)
  %y = stablehlo.composite "my.shifted" %x {decomposition = @shifted} : (tensor<8x64xf32>) -> tensor<8x64xf32>
  %z = stablehlo.composite "my.shifted" %y {decomposition = @shifted} : (tensor<8x64xf32>) -> tensor<8x64xf32>
  return %v, %i, %y, %z : tensor<8x3xf32>, tensor<8x3xi32>, tensor<8x64xf32>, tensor<8x64xf32>
}
func.func private @top_k(%x: tensor<8x64xf32>) -> (tensor<8x3xf32>, tensor<8x3xi32>) {
  %v, %i = chlo.top_k(%x, k = 3) : tensor<8x64xf32> -> (tensor<8x3xf32>, tensor<8x3xi32>)
  return %v, %i : tensor<8x3xf32>, tensor<8x3xi32>
}
func.func private @shifted(%x: tensor<8x64xf32>) -> tensor<8x64xf32> {
  %one = stablehlo.constant dense<1.0> : tensor<8x64xf32>
  %twice = stablehlo.add %x, %x : tensor<8x64xf32>
  %out = stablehlo.add %twice, %one : tensor<8x64xf32>
  return %out : tensor<8x64xf32>
}
"""


def test_composites_are_what_they_are_made_of():
    result = collectives.partition(propagation.run(TEXT))
    assert not result.findings
    x = np.random.default_rng(0).permutation(512).reshape(8, 64).astype(np.float32)
    got, compiled = harness.run_partitioned(result, [x], [(8, 3), (8, 3), x.shape, x.shape])
    order = np.argsort(-x, axis=1)[:, :3]
    np.testing.assert_array_equal(got[1], order)
    np.testing.assert_array_equal(got[0], np.take_along_axis(x, order, 1))
    np.testing.assert_array_equal(got[2], 2 * x + 1)
    np.testing.assert_array_equal(got[3], 4 * x + 3)
    sent, _ = harness.hlo_bytes(compiled.hlo(), 8)
    assert sent < 8 * 64 * 4


def test_a_composite_of_a_function_that_is_not_there():
    with pytest.raises((UnsupportedOpError, propagation.errors.PropagationError), match="shifted"):
        collectives.partition(propagation.run(TEXT[: TEXT.index("func.func private @shifted")]))
