module {
  sdy.mesh @mesh = <["a"=4, "b"=2, "c"=2]>
  sdy.mesh @twin = <["a"=4, "b"=2, "c"=2]>
  func.func public @main(%arg0: tensor<24x2x1xf32> {sdy.sharding = #sdy.sharding<@twin, [{}, {"a":(2)2}, {}]>}, %arg1: tensor<i1>) {
    %0 = call @f_5(%arg0, %arg0) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"a":(1)2}, {}]>]>} : (tensor<24x2x1xf32>, tensor<24x2x1xf32>) -> tensor<24x2x1xf32>
    %1:2 = stablehlo.while(%iterArg = %arg0, %iterArg_0 = %arg0) : tensor<24x2x1xf32>, tensor<24x2x1xf32>
    cond {
      stablehlo.return %arg1 : tensor<i1>
    } do {
      sdy.sharding_group %0 group_id=0 : tensor<24x2x1xf32>
      sdy.sharding_group %arg0 group_id=0 : tensor<24x2x1xf32>
      stablehlo.return %0, %iterArg_0 : tensor<24x2x1xf32>, tensor<24x2x1xf32>
    }
    return
  }
  func.func private @f_5(%arg0: tensor<24x2x1xf32>, %arg1: tensor<24x2x1xf32>) -> tensor<24x2x1xf32> {
    return %arg0 : tensor<24x2x1xf32>
  }
}
