module {
  sdy.mesh @mesh = <["a"=2, "b"=1, "c"=6]>
  func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = sdy.propagation_barrier %arg0 allowed_direction=NONE : tensor<4xf32>
    %1 = stablehlo.subtract %0, %arg0 : tensor<4xf32>
    %2 = sdy.sharding_constraint %0 <@mesh, [{}], unreduced={"a"}> : tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}
