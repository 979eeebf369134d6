module {
  sdy.mesh @mesh = <["a"=2, "b"=1, "c"=6]>
  func.func public @main(%arg0: tensor<3x2xf32>) {
    %0:2 = call @f_5(%arg0, %arg0) : (tensor<3x2xf32>, tensor<3x2xf32>) -> (tensor<3x2xf32>, tensor<3x2xf32>)
    %1 = sdy.sharding_constraint %0#0 <@mesh, [{}, {}]> : tensor<3x2xf32>
    %2 = sdy.sharding_constraint %0#1 <@mesh, [{}, {"c"}]> : tensor<3x2xf32>
    return
  }
  func.func private @f_5(%arg0: tensor<3x2xf32>, %arg1: tensor<3x2xf32>) -> (tensor<3x2xf32>, tensor<3x2xf32>) {
    return %arg0, %arg0 : tensor<3x2xf32>, tensor<3x2xf32>
  }
}
