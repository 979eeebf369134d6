module {
  sdy.mesh @mesh = <["d"=2, "e"=2, "f"=2, "g"=2]>
  func.func public @main(%arg0: tensor<12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"g", "f"}]>}, %arg1: tensor<12xf32>) {
    %0 = call @f_2(%arg1, %arg0) : (tensor<12xf32>, tensor<12xf32>) -> tensor<12xf32>
    %1 = call @f_2(%arg0, %arg0) : (tensor<12xf32>, tensor<12xf32>) -> tensor<12xf32>
    return
  }
  func.func private @f_2(%arg0: tensor<12xf32>, %arg1: tensor<12xf32>) -> tensor<12xf32> {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"g", ?}]>] out_shardings=[<@mesh, [{"g"}]>] manual_axes={"g"} (%arg2: tensor<6xf32>) {
      sdy.return %arg2 : tensor<6xf32>
    } : (tensor<12xf32>) -> tensor<12xf32>
    return %arg1 : tensor<12xf32>
  }
}
