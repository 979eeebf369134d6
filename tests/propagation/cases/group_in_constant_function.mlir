module {
  sdy.mesh @mesh = <["a"=2, "b"=1, "c"=6]>
  sdy.mesh @other = <["a"=2, "b"=1, "c"=6], device_ids=[3, 2, 11, 10, 5, 4, 0, 9, 7, 1, 8, 6]>
  func.func public @main() {
    %0 = stablehlo.iota dim = 0 : tensor<4x6x16x2xf32>
    %1 = call @f_24(%0, %0) : (tensor<4x6x16x2xf32>, tensor<4x6x16x2xf32>) -> tensor<4x6x16x2xf32>
    return
  }
  func.func private @f_24(%arg0: tensor<4x6x16x2xf32>, %arg1: tensor<4x6x16x2xf32>) -> tensor<4x6x16x2xf32> {
    sdy.sharding_group %arg0 group_id=0 : tensor<4x6x16x2xf32>
    return %arg0 : tensor<4x6x16x2xf32>
  }
}
