// CHLO's elementwise operations in a called function.
module {
  sdy.mesh @mesh = <["a"=2, "b"=4]>
  func.func public @main(%arg0: tensor<i32>, %arg1: tensor<f32>) {
    %0 = "stablehlo.case"(%arg0) ({
      stablehlo.return %arg1 : tensor<f32>
    }, {
      %cst = stablehlo.constant dense<2.500000e+00> : tensor<f32>
      %1 = func.call @f_16(%cst) : (tensor<f32>) -> tensor<f32>
      stablehlo.return %arg1 : tensor<f32>
    }) : (tensor<i32>) -> tensor<f32>
    return
  }
  func.func private @f_16(%arg0: tensor<f32>) -> tensor<f32> {
    %0 = chlo.square %arg0 : tensor<f32> -> tensor<f32>
    return %0 : tensor<f32>
  }
}

