// An argument annotated as open and nothing else takes the sharding of its constraint (jaxlib 0.12).
module {
  sdy.mesh @mesh = <["data"=16]>
  func.func public @main(%arg0: tensor<2xf32>) {
    %0 = call @f(%arg0) : (tensor<2xf32>) -> tensor<2xf32>
    return
  }
  func.func private @f(%arg0: tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}]>}) -> tensor<2xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = sdy.sharding_constraint %arg0 <@mesh, [{}]> : tensor<2xf32>
    %1 = "stablehlo.case"(%c) ({
      stablehlo.return %arg0 : tensor<2xf32>
    }, {
      %cst = stablehlo.constant dense<2.500000e+00> : tensor<2xf32>
      stablehlo.return %cst : tensor<2xf32>
    }) : (tensor<i32>) -> tensor<2xf32>
    return %1 : tensor<2xf32>
  }
}
