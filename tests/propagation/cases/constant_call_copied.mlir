module {
  sdy.mesh @mesh = <["d"=2, "e"=2, "f"=2, "g"=2]>
  func.func public @main() -> (tensor<24x1x6xf32>, tensor<24x1x6xf32>) {
    %cst = stablehlo.constant dense<1.500000e+00> : tensor<24x1x6xf32>
    %0 = call @f_9(%cst) : (tensor<24x1x6xf32>) -> tensor<24x1x6xf32>
    return %0, %0 : tensor<24x1x6xf32>, tensor<24x1x6xf32>
  }
  func.func private @f_9(%arg0: tensor<24x1x6xf32>) -> tensor<24x1x6xf32> {
    return %arg0 : tensor<24x1x6xf32>
  }
}
