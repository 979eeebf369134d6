module {
  sdy.mesh @mesh = <["a"=12, "b"=2]>
  func.func public @main(%arg0: tensor<3x4x1xf32>) {
    %0 = call @f_5(%arg0) : (tensor<3x4x1xf32>) -> tensor<3x4x1xf32>
    return
  }
  func.func private @f_5(%arg0: tensor<3x4x1xf32>) -> tensor<3x4x1xf32> {
    %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {}, {}], unreduced={"a"}> : tensor<3x4x1xf32>
    return %0 : tensor<3x4x1xf32>
  }
}
