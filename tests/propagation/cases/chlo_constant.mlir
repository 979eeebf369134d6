// CHLO's elementwise operations keep a constant expression constant.
module {
  sdy.mesh @mesh = <["data"=16]>
  func.func public @main() {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<6x2x12x12xf32>
    %1 = chlo.lgamma %0 : tensor<6x2x12x12xf32> -> tensor<6x2x12x12xf32>
    sdy.sharding_group %1 group_id=0 : tensor<6x2x12x12xf32>
    return
  }
}

