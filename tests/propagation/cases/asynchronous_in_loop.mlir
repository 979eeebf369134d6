module {
  sdy.mesh @mesh = <["a"=12, "b"=2]>
  func.func public @main(%arg0: tensor<6x24x12xf32>, %arg1: tensor<i1>) {
    %0 = stablehlo.while(%iterArg = %arg0) : tensor<6x24x12xf32> attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}, {"a"}]>]>}
    cond {
      stablehlo.return %arg1 : tensor<i1>
    } do {
      %1 = "stablehlo.async_start"(%iterArg) ({
      ^bb0(%arg2: tensor<6x24x12xf32>):
        %2 = "stablehlo.collective_permute"(%arg2) <{source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<6x24x12xf32>) -> tensor<6x24x12xf32>
        stablehlo.return %2 : tensor<6x24x12xf32>
      }) : (tensor<6x24x12xf32>) -> !stablehlo.future<tensor<6x24x12xf32>>
      stablehlo.return %iterArg : tensor<6x24x12xf32>
    }
    return
  }
}
