module {
  sdy.mesh @mesh = <["a"=2, "b"=4]>
  func.func public @main(%arg0: tensor<1x3x6xf32>) {
    %0:2 = call @f_4(%arg0) : (tensor<1x3x6xf32>) -> (tensor<1x3x6xf32>, tensor<1x3x6xf32>)
    return
  }
  func.func private @f_4(%arg0: tensor<1x3x6xf32>) -> (tensor<1x3x6xf32>, tensor<1x3x6xf32>) {
    %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {}, {}]> : tensor<1x3x6xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{}, {}, {}], unreduced={"a"}> : tensor<1x3x6xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x3x6xf32>
    %3 = stablehlo.slice %2 [0:1, 0:3, 0:6] : (tensor<2x3x6xf32>) -> tensor<1x3x6xf32>
    return %3, %arg0 : tensor<1x3x6xf32>, tensor<1x3x6xf32>
  }
}
