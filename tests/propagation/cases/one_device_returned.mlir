module {
  sdy.mesh @mesh = <["a"=2, "b"=4]>
  sdy.mesh @one_device = <[], device_ids=[1]>
  func.func public @main(%arg0: tensor<24x8x2x16xf32>, %arg1: tensor<f32>) {
    %0 = call @f_10(%arg0, %arg1) : (tensor<24x8x2x16xf32>, tensor<f32>) -> tensor<24x8x2x16xf32>
    return
  }
  func.func private @f_10(%arg0: tensor<24x8x2x16xf32>, %arg1: tensor<f32>) -> tensor<24x8x2x16xf32> {
    %0 = stablehlo.abs %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@one_device, []>]>} : tensor<24x8x2x16xf32>
    return %0 : tensor<24x8x2x16xf32>
  }
}
