module {
  sdy.mesh @mesh = <["data"=16]>
  func.func public @main(%arg0: tensor<2x16x24x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}, {"data":(8)2}]>}, %arg1: tensor<f32>) {
    %0 = call @f_17(%arg1, %arg0) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}, {}, {}], unreduced={"data"}>]>} : (tensor<f32>, tensor<2x16x24x8xf32>) -> tensor<2x16x24x8xf32>
    return
  }
  func.func private @f_17(%arg0: tensor<f32>, %arg1: tensor<2x16x24x8xf32>) -> tensor<2x16x24x8xf32> {
    return %arg1 : tensor<2x16x24x8xf32>
  }
}
