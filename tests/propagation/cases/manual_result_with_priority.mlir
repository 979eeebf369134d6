module {
  sdy.mesh @mesh = <["d"=2, "e"=2, "f"=2, "g"=2]>
  func.func public @main(%arg0: tensor<8x4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"e", ?}, {?}, {"g", ?}]>}, %arg5: tensor<8x4x6xf32>, %arg1: tensor<i32>) -> tensor<8x4x6xf32> {
    %1:1 = sdy.manual_computation(%arg5) in_shardings=[<@mesh, [{"e", ?}, {"g", "f"}, {}]>] out_shardings=[<@mesh, [{?}, {"g", "f"}p2, {}]>] manual_axes={"g"} (%arg3: tensor<8x2x6xf32>) {
        sdy.return %arg3 : tensor<8x2x6xf32>
      } : (tensor<8x4x6xf32>) -> (tensor<8x4x6xf32>)
    %0 = "stablehlo.add"(%1#0, %arg0) : (tensor<8x4x6xf32>, tensor<8x4x6xf32>) -> tensor<8x4x6xf32>
    return %0 : tensor<8x4x6xf32>
  }
}
