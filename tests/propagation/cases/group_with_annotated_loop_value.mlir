module {
  sdy.mesh @mesh = <["a"=2, "b"=1, "c"=6]>
  func.func public @main(%arg0: tensor<24x8xf32>, %arg1: tensor<i1>, %arg2: tensor<2x8x3xf32>) {
    %0 = sdy.sharding_constraint %arg0 <@mesh, [{}, {}]> : tensor<24x8xf32>
    %1:2 = stablehlo.while(%iterArg = %arg0, %iterArg_0 = %arg2) : tensor<24x8xf32>, tensor<2x8x3xf32>
    cond {
      stablehlo.return %arg1 : tensor<i1>
    } do {
      sdy.sharding_group %0 group_id=0 : tensor<24x8xf32>
      sdy.sharding_group %iterArg group_id=0 : tensor<24x8xf32>
      stablehlo.return %0, %iterArg_0 : tensor<24x8xf32>, tensor<2x8x3xf32>
    }
    return
  }
}
