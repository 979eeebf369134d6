// The order of functions does not matter.
module {
  sdy.mesh @mesh = <["x"=8, "y"=3]>
  func.func public @main(%arg0: tensor<1x4x16x2xf32>, %arg1: tensor<1x8xf32>) {
    %0 = call @f_7(%arg0, %arg1) : (tensor<1x4x16x2xf32>, tensor<1x8xf32>) -> tensor<f32>
    %1 = call @f_16(%arg1) : (tensor<1x8xf32>) -> tensor<f32>
    return
  }
  func.func private @f_16(%arg0: tensor<1x8xf32>) -> tensor<f32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.convert %c : (tensor<i32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @f_7(%arg0: tensor<1x4x16x2xf32>, %arg1: tensor<1x8xf32>) -> tensor<f32> {
    %0 = call @f_16(%arg1) : (tensor<1x8xf32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
}

