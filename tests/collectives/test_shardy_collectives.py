"""Modules into which Shardy has written its collectives already: they say where values are to be laid out."""

from __future__ import annotations

import numpy as np
import pytest

import collectives
import propagation

from . import harness

PROGRAM = """
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>},
                %b: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>},
        tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
        tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}) {
  %0 = sdy.all_gather [{}, {"y"}] %a out_sharding=<@mesh, [{"x"}, {}]> : tensor<8x8xf32>
  %1 = sdy.all_gather [{"x"}, {}] %0 out_sharding=<@mesh, [{}, {}]> : tensor<8x8xf32>
  %2 = sdy.all_slice [{"y"}, {}] %1 out_sharding=<@mesh, [{"y"}, {}]> : tensor<8x8xf32>
  %3 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}
    : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %4 = sdy.all_reduce {"y"} %3 out_sharding=<@mesh, [{"x"}, {}]> : tensor<8x8xf32>
  %5 = sdy.reduce_scatter [{}, {"y"}] %3 out_sharding=<@mesh, [{"x"}, {"y"}]> : tensor<8x8xf32>
  return %2, %4, %5 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}
"""


@pytest.mark.parametrize("ahead", [lambda text: text, propagation.run], ids=["as it is", "propagated"])
def test_collectives_of_shardy_are_places(ahead):
    a, b = np.random.default_rng(0).standard_normal((2, 8, 8)).astype(np.float32)
    (c, d, e), _ = harness.run_partitioned(collectives.partition(ahead(PROGRAM)), (a, b), [(8, 8)] * 3)
    np.testing.assert_array_equal(c, a)
    np.testing.assert_allclose(d, a @ b, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(e, a @ b, rtol=1e-4, atol=1e-5)


def test_sums_of_what_devices_hold_of_an_argument():
    text = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
  %0 = sdy.all_reduce {"x"} %a out_sharding=<@mesh, [{}]> : tensor<8xf32>
  return %0 : tensor<8xf32>
}
"""
    with pytest.raises(collectives.errors.UnsupportedOpError, match="not declared unreduced"):
        collectives.partition(text)
