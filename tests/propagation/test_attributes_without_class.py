"""Attributes for which the bindings have no class travel as text."""

import propagation

TEXT = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%x: tensor<4xcomplex<f32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<4xcomplex<f32>> {
  %0 = stablehlo.constant dense<(1.0,2.0)> : tensor<4xcomplex<f32>>
  %1 = stablehlo.constant dense<[(1.0,2.0),(3.0,4.0),(5.0,6.0),(7.0,8.0)]> : tensor<4xcomplex<f32>>
  %2 = stablehlo.add %0, %1 : tensor<4xcomplex<f32>>
  %3 = stablehlo.add %x, %2 : tensor<4xcomplex<f32>>
  return %3 : tensor<4xcomplex<f32>>
}"""


def test_complex_constants():
    text = propagation.run(TEXT, "closed").as_text()
    assert "dense<(1.000000e+00,2.000000e+00)>" in text and "(7.000000e+00,8.000000e+00)" in text
    again = propagation.run(text, "closed")
    assert again.result_shardings[0].to_text() == '#sdy.sharding<@mesh, [{"x"}]>'
