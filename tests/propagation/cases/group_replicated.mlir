// A sharding that only lists replicated axes says nothing about a group.
module {
  sdy.mesh @mesh = <["a"=12, "b"=2]>
  func.func public @main(%arg0: tensor<4x24x12x4xf32>) {
    %0 = stablehlo.rsqrt %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {?}, {?}, {?}], replicated={"a"}>]>} : tensor<4x24x12x4xf32>
    sdy.sharding_group %0 group_id=0 : tensor<4x24x12x4xf32>
    sdy.sharding_group %arg0 group_id=0 : tensor<4x24x12x4xf32>
    return
  }
}
