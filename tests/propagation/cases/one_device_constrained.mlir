module {
  sdy.mesh @mesh = <["d"=2, "e"=2, "f"=2, "g"=2]>
  sdy.mesh @one_device = <[], device_ids=[1]>
  func.func public @main(%arg0: tensor<12x4xf32>, %arg1: tensor<8x16x12xf32>, %arg2: tensor<i32>) {
    %0 = "stablehlo.case"(%arg2) ({
      %1 = stablehlo.remainder %arg0, %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@one_device, []>]>} : tensor<12x4xf32>
      %2 = sdy.manual_computation(%1) in_shardings=[<@mesh, [{"e", "d"}, {}]>] out_shardings=[<@mesh, [{"e", "d"}, {}]>] manual_axes={"e", "d"} (%arg3: tensor<3x4xf32>) {
        sdy.return %arg3 : tensor<3x4xf32>
      } : (tensor<12x4xf32>) -> tensor<12x4xf32>
      stablehlo.return %arg1 : tensor<8x16x12xf32>
    }, {
      stablehlo.return %arg1 : tensor<8x16x12xf32>
    }) : (tensor<i32>) -> tensor<8x16x12xf32>
    return
  }
}
