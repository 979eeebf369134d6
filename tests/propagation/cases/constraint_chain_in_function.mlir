module {
  sdy.mesh @mesh = <["x"=8, "y"=3], device_ids=[0, 4, 13, 23, 3, 8, 7, 1, 20, 11, 9, 21, 10, 14, 16, 17, 2, 18, 6, 15, 22, 12, 5, 19]>
  func.func public @main(%arg0: tensor<3x8x1xf32>, %arg1: tensor<f32>) {
    %0:2 = call @f_10(%arg1, %arg0) : (tensor<f32>, tensor<3x8x1xf32>) -> (tensor<1xf32>, tensor<3x8x1xf32>)
    return
  }
  func.func private @f_10(%arg0: tensor<f32>, %arg1: tensor<3x8x1xf32>) -> (tensor<1xf32>, tensor<3x8x1xf32>) {
    %0 = sdy.sharding_constraint %arg1 <@mesh, [{"y"}, {}, {}]> : tensor<3x8x1xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{}, {}, {}]> : tensor<3x8x1xf32>
    %2 = stablehlo.reshape %arg0 : (tensor<f32>) -> tensor<1xf32>
    return %2, %arg1 : tensor<1xf32>, tensor<3x8x1xf32>
  }
}
