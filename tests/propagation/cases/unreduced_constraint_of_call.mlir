module {
  sdy.mesh @mesh = <["a"=12, "b"=2]>
  func.func public @main(%arg0: tensor<4x2x3x1xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"b"}, {}, {}]>}) {
    %0 = stablehlo.bitcast_convert %arg0 : (tensor<4x2x3x1xf32>) -> tensor<4x2x3x1xi32>
    %1 = stablehlo.convert %0 : (tensor<4x2x3x1xi32>) -> tensor<4x2x3x1xf32>
    %2 = call @f_4(%1) : (tensor<4x2x3x1xf32>) -> tensor<4x2x3x1xf32>
    %3 = sdy.sharding_constraint %2 <@mesh, [{}, {}, {}, {}], unreduced={"b"}> : tensor<4x2x3x1xf32>
    return
  }
  func.func private @f_4(%arg0: tensor<4x2x3x1xf32>) -> tensor<4x2x3x1xf32> {
    return %arg0 : tensor<4x2x3x1xf32>
  }
}
