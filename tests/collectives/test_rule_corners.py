"""Operations whose sharding rule depends on more than their shapes, realised: strides, shifts, several reductions."""

from __future__ import annotations

import numpy as np
import pytest

import collectives
import propagation

from . import harness
from .text_side import MESH, check_text, over


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def strided(window: int, stride: int, kernel_dims, result_dims) -> str:
    windows = (64 - window) // stride + 1
    return f"""{MESH}func.func @main(%x: tensor<4x64x8xf32> {over("", "x", "")},
                        %k: tensor<{window}x8x16xf32> {over(*kernel_dims)})
        -> (tensor<4x{windows}x16xf32> {over(*result_dims)}) {{
      %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {{stride = [{stride}]}}
           {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
           : (tensor<4x64x8xf32>, tensor<{window}x8x16xf32>) -> tensor<4x{windows}x16xf32>
      return %0 : tensor<4x{windows}x16xf32> }}"""


@pytest.mark.parametrize(("window", "stride"), [(8, 8), (16, 4), (8, 2), (40, 3), (8, 1)])
@pytest.mark.parametrize(("kernel", "result"), [(("", "", ""), ("", "", "")), (("x", "", ""), ("", "", "x"))])
def test_strided_convolutions(window, stride, kernel, result):
    """The input's dimension is a compound of windows and window, of which the kernel's may be summed over."""
    check_text(strided(window, stride, kernel, result), (normal(4, 64, 8), normal(window, 8, 16)), rtol=1e-3)


SCATTER = f"""{MESH}func.func @main(%a: tensor<32x4xf32>, %b: tensor<32x4xf32>, %i: tensor<64x1xi32> {over("x", "")},
                                    %u: tensor<64x4xf32> {over("x", "")}, %v: tensor<64x4xf32> {over("x", "")})
        -> (tensor<32x4xf32>, tensor<32x4xf32>) {{
  %0:2 = "stablehlo.scatter"(%a, %b, %i, %u, %v) ({{ ^bb0(%p: tensor<f32>, %q: tensor<f32>, %r: tensor<f32>,
      %s: tensor<f32>):
    %m = stablehlo.add %p, %r : tensor<f32>
    %n = stablehlo.maximum %q, %s : tensor<f32>
    stablehlo.return %m, %n : tensor<f32>, tensor<f32> }}) {{scatter_dimension_numbers = #stablehlo.scatter<
      update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}
      : (tensor<32x4xf32>, tensor<32x4xf32>, tensor<64x1xi32>, tensor<64x4xf32>, tensor<64x4xf32>)
      -> (tensor<32x4xf32>, tensor<32x4xf32>)
  return %0#0, %0#1 : tensor<32x4xf32>, tensor<32x4xf32> }}"""


def test_a_scatter_that_sums_and_takes_maxima():
    indices = (np.arange(64, dtype=np.int32) * 7 % 32)[:, None]
    check_text(SCATTER, (normal(32, 4), normal(32, 4) + 1, indices, normal(64, 4), normal(64, 4) - 1), rtol=1e-4)


SHIFT = f"""{MESH}func.func @main(%x: tensor<32x4xf32> {over("x", "")}) -> (tensor<32x4xf32> {over("x", "")}) {{
  %c = stablehlo.constant dense<0.5> : tensor<f32>
  %0 = stablehlo.pad %x, %c, low = [-3, 0], high = [3, 0], interior = [0, 0]
       : (tensor<32x4xf32>, tensor<f32>) -> tensor<32x4xf32>
  return %0 : tensor<32x4xf32> }}"""


def test_a_pad_that_shifts():
    check_text(SHIFT, (normal(32, 4),))


FROM_THE_END = f"""{MESH}func.func @main(%x: tensor<6x32xf32> {over("", "x")}) -> (tensor<6x32xf32> {over("", "x")}) {{
  %0 = "stablehlo.sort"(%x) ({{ ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %c = stablehlo.compare LT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1> }}) DIMENSION : (tensor<6x32xf32>) -> tensor<6x32xf32>
  return %0 : tensor<6x32xf32> }}"""


@pytest.mark.parametrize(
    ("attribute", "dimension"), [("{dimension = -1 : i64}", 1), ("", 1), ("{dimension = -2 : i64}", 0)]
)
def test_a_sort_along_a_dimension_counted_from_the_end(attribute, dimension):
    """The per-device program counts from the start: XLA's sort reads beyond the shape otherwise, and is no judge."""
    x = normal(6, 32)
    text = FROM_THE_END.replace("DIMENSION", attribute)
    for program in (text, propagation.run(text)):
        partitioned = collectives.partition(program)
        assert f"dimension = {dimension} : i64" in partitioned.as_text()
        ((got,), _) = harness.run_partitioned(partitioned, [x], [x.shape])
        np.testing.assert_array_equal(got, np.sort(x, dimension))
