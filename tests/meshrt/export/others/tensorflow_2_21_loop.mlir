module @a_inference_loop_91__.6 attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func private @while_cond_58_const_0__.3(%arg0: tensor<i32>, %arg1: tensor<i32>, %arg2: tensor<i32>, %arg3: tensor<8x16xf32>) -> tensor<i1> {
    %c = stablehlo.constant dense<3> : tensor<i32>
    %0 = stablehlo.compare LT, %arg2, %c : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %1 = stablehlo.reshape %0 : (tensor<i1>) -> tensor<i1>
    return %1 : tensor<i1>
  }
  func.func private @cond_wrapper.4(%arg0: tensor<i32>, %arg1: tensor<i32>, %arg2: tensor<i32>, %arg3: tensor<8x16xf32>) -> tensor<i1> {
    %0 = call @while_cond_58_const_0__.3(%arg0, %arg1, %arg2, %arg3) : (tensor<i32>, tensor<i32>, tensor<i32>, tensor<8x16xf32>) -> tensor<i1>
    return %0 : tensor<i1>
  }
  func.func private @while_body_59_const_0__.5(%arg0: tensor<i32>, %arg1: tensor<i32>, %arg2: tensor<i32>, %arg3: tensor<8x16xf32>) -> (tensor<i32>, tensor<i32>, tensor<i32>, tensor<8x16xf32>) {
    %c = stablehlo.constant dense<1> : tensor<i32>
    %0 = stablehlo.add %arg0, %c : tensor<i32>
    %1 = stablehlo.reshape %0 : (tensor<i32>) -> tensor<i32>
    %2 = stablehlo.reshape %arg1 : (tensor<i32>) -> tensor<i32>
    %c_0 = stablehlo.constant dense<1> : tensor<i32>
    %3 = stablehlo.add %arg2, %c_0 : tensor<i32>
    %4 = stablehlo.reshape %3 : (tensor<i32>) -> tensor<i32>
    %5 = stablehlo.sine %arg3 : tensor<8x16xf32>
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %7 = stablehlo.multiply %5, %6 : tensor<8x16xf32>
    %8 = stablehlo.reshape %7 : (tensor<8x16xf32>) -> tensor<8x16xf32>
    return %1, %2, %4, %8 : tensor<i32>, tensor<i32>, tensor<i32>, tensor<8x16xf32>
  }
  func.func @main(%arg0: tensor<8x16xf32>) -> tensor<8x16xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<-1> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %c_3 = stablehlo.constant dense<-1> : tensor<i32>
    %c_4 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.reshape %arg0 : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %1:4 = stablehlo.while(%iterArg = %c_2, %iterArg_5 = %c_3, %iterArg_6 = %c_4, %iterArg_7 = %0) : tensor<i32>, tensor<i32>, tensor<i32>, tensor<8x16xf32>
    cond {
      %3 = func.call @while_cond_58_const_0__.3(%iterArg, %iterArg_5, %iterArg_6, %iterArg_7) : (tensor<i32>, tensor<i32>, tensor<i32>, tensor<8x16xf32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    } do {
      %c_8 = stablehlo.constant dense<1> : tensor<i32>
      %3 = stablehlo.add %iterArg, %c_8 : tensor<i32>
      %4 = stablehlo.reshape %3 : (tensor<i32>) -> tensor<i32>
      %5 = stablehlo.reshape %iterArg_5 : (tensor<i32>) -> tensor<i32>
      %c_9 = stablehlo.constant dense<1> : tensor<i32>
      %6 = stablehlo.add %iterArg_6, %c_9 : tensor<i32>
      %7 = stablehlo.reshape %6 : (tensor<i32>) -> tensor<i32>
      %8 = stablehlo.sine %iterArg_7 : tensor<8x16xf32>
      %cst = stablehlo.constant dense<2.000000e+00> : tensor<f32>
      %9 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
      %10 = stablehlo.multiply %8, %9 : tensor<8x16xf32>
      %11 = stablehlo.reshape %10 : (tensor<8x16xf32>) -> tensor<8x16xf32>
      stablehlo.return %4, %5, %7, %11 : tensor<i32>, tensor<i32>, tensor<i32>, tensor<8x16xf32>
    }
    %2 = stablehlo.reshape %1#3 : (tensor<8x16xf32>) -> tensor<8x16xf32>
    return %2 : tensor<8x16xf32>
  }
}
