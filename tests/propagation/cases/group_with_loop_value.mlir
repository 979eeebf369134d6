module {
  sdy.mesh @mesh = <["a"=2, "b"=1, "c"=6]>
  sdy.mesh @line = <["all"=12]>
  func.func public @main(%arg0: tensor<6xf32>, %arg1: tensor<i1>, %arg2: tensor<16x4xf32>) {
    %0:2 = stablehlo.while(%iterArg = %arg0, %iterArg_0 = %arg2) : tensor<6xf32>, tensor<16x4xf32>
    cond {
      stablehlo.return %arg1 : tensor<i1>
    } do {
      sdy.sharding_group %arg0 group_id=0 : tensor<6xf32>
      sdy.sharding_group %iterArg group_id=0 : tensor<6xf32>
      %1 = sdy.sharding_constraint %arg0 <@mesh, [{}]> : tensor<6xf32>
      stablehlo.return %arg0, %arg2 : tensor<6xf32>, tensor<16x4xf32>
    }
    return
  }
}
