module @a_inference_g_164__.2 attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func private @Sum_reduction.1(%arg0: tensor<f32>, %arg1: tensor<f32>) -> tensor<f32> {
    %0 = stablehlo.add %arg0, %arg1 : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<16x16xf32>) -> tensor<16x16xf32> {
    %0 = stablehlo.reshape %arg0 : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %1 = stablehlo.reshape %arg1 : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %2 = stablehlo.dot %0, %1, precision = [DEFAULT, DEFAULT] {mhlo.frontend_attributes = {grad_x = "false", grad_y = "false"}} : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    %3 = stablehlo.transpose %2, dims = [0, 1] : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %4 = stablehlo.tanh %3 : tensor<8x16xf32>
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %6 = stablehlo.power %4, %5 : tensor<8x16xf32>
    %7 = stablehlo.convert %6 : tensor<8x16xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %8 = stablehlo.convert %cst_0 : tensor<f32>
    %9 = stablehlo.reduce(%7 init: %8) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<f32>
    %10 = stablehlo.convert %9 : tensor<f32>
    %cst_1 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %11 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %13 = stablehlo.power %4, %12 : tensor<8x16xf32>
    %14 = stablehlo.multiply %11, %13 : tensor<8x16xf32>
    %cst_3 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %15 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %16 = stablehlo.multiply %4, %4 : tensor<8x16xf32>
    %17 = stablehlo.subtract %15, %16 : tensor<8x16xf32>
    %18 = stablehlo.multiply %14, %17 : tensor<8x16xf32>
    %19 = stablehlo.dot_general %0, %18, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] {mhlo.frontend_attributes = {grad_x = "false", grad_y = "true"}} : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<16x16xf32>
    %20 = stablehlo.transpose %19, dims = [0, 1] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %21 = stablehlo.reshape %20 : (tensor<16x16xf32>) -> tensor<16x16xf32>
    return %21 : tensor<16x16xf32>
  }
}
