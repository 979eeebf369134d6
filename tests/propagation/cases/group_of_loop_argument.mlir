module {
  sdy.mesh @mesh = <["a"=4, "b"=2, "c"=2]>
  sdy.mesh @twin = <["a"=4, "b"=2, "c"=2]>
  func.func public @main(%arg0: tensor<24x12x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"c", "b", ?}p2, {"a":(2)2}]>}, %arg1: tensor<i1>, %arg2: tensor<24x12x24xf32>) -> (tensor<24x12x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a":(2)2}, {?}, {}]>}) {
    %0 = stablehlo.while(%iterArg = %arg0) : tensor<24x12x24xf32>
    cond {
      stablehlo.return %arg1 : tensor<i1>
    } do {
      sdy.sharding_group %iterArg group_id=0 : tensor<24x12x24xf32>
      sdy.sharding_group %arg2 group_id=0 : tensor<24x12x24xf32>
      stablehlo.return %arg2 : tensor<24x12x24xf32>
    }
    return %0 : tensor<24x12x24xf32>
  }
}
