module {
  sdy.mesh @mesh = <["a"=12, "b"=2]>
  func.func public @main(%arg0: tensor<6x2xf32>, %arg1: tensor<i1>, %arg2: tensor<2x2x24x1xf32>) {
    %0:2 = stablehlo.while(%iterArg = %arg2, %iterArg_0 = %arg0) : tensor<2x2x24x1xf32>, tensor<6x2xf32>
    cond {
      stablehlo.return %arg1 : tensor<i1>
    } do {
      %1 = sdy.sharding_constraint %iterArg <@mesh, [{}, {}, {}, {}], unreduced={"a":(1)3}> : tensor<2x2x24x1xf32>
      stablehlo.return %1, %iterArg_0 : tensor<2x2x24x1xf32>, tensor<6x2xf32>
    }
    return
  }
}
