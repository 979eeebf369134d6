module @a_inference__lambda__17__.3 attributes {mhlo.cross_program_prefetches = [], mhlo.input_output_alias = [], mhlo.is_dynamic = false, mhlo.use_auto_spmd_partitioning = false} {
  func.func private @region_0.1(%arg0: tensor<f32>, %arg1: tensor<f32>) -> tensor<f32> {
    %0 = stablehlo.maximum %arg0, %arg1 : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @region_1.2(%arg0: tensor<f32>, %arg1: tensor<f32>) -> tensor<f32> {
    %0 = stablehlo.add %arg0, %arg1 : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<16x16xf32>) -> tensor<8x16xf32> {
    %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %1 = stablehlo.reshape %arg0 : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %2 = stablehlo.reshape %arg1 : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %3 = stablehlo.dot %1, %2, precision = [DEFAULT, DEFAULT] {mhlo.frontend_attributes = {grad_x = "false", grad_y = "false"}} : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    %4 = stablehlo.transpose %3, dims = [0, 1] : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %5 = stablehlo.multiply %0, %4 : tensor<8x16xf32>
    %6 = stablehlo.negate %4 : tensor<8x16xf32>
    %cst_0 = stablehlo.constant dense<0.707106769> : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %8 = stablehlo.multiply %6, %7 : tensor<8x16xf32>
    %9 = stablehlo.abs %8 : tensor<8x16xf32>
    %cst_1 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %10 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %11 = stablehlo.compare GT, %9, %10 : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xi1>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %13 = stablehlo.compare LT, %8, %12 : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xi1>
    %cst_3 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %15 = stablehlo.multiply %8, %8 : tensor<8x16xf32>
    %16 = stablehlo.negate %15 : tensor<8x16xf32>
    %17 = stablehlo.exponential %16 : tensor<8x16xf32>
    %cst_4 = stablehlo.constant dense<0.102081165> : tensor<f32>
    %18 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %cst_5 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %19 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %20 = stablehlo.divide %19, %15 : tensor<8x16xf32>
    %21 = stablehlo.multiply %18, %20 : tensor<8x16xf32>
    %cst_6 = stablehlo.constant dense<0.429206669> : tensor<f32>
    %22 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %23 = stablehlo.add %21, %22 : tensor<8x16xf32>
    %24 = stablehlo.multiply %23, %20 : tensor<8x16xf32>
    %cst_7 = stablehlo.constant dense<0.323790789> : tensor<f32>
    %25 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %26 = stablehlo.add %24, %25 : tensor<8x16xf32>
    %27 = stablehlo.multiply %26, %20 : tensor<8x16xf32>
    %cst_8 = stablehlo.constant dense<0.053971976> : tensor<f32>
    %28 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %29 = stablehlo.add %27, %28 : tensor<8x16xf32>
    %30 = stablehlo.abs %8 : tensor<8x16xf32>
    %cst_9 = stablehlo.constant dense<1.006000e+01> : tensor<f32>
    %31 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %32 = stablehlo.minimum %30, %31 : tensor<8x16xf32>
    %cst_10 = stablehlo.constant dense<0.0172516778> : tensor<f32>
    %33 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %34 = stablehlo.multiply %33, %20 : tensor<8x16xf32>
    %cst_11 = stablehlo.constant dense<0.391371638> : tensor<f32>
    %35 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %36 = stablehlo.add %34, %35 : tensor<8x16xf32>
    %37 = stablehlo.multiply %36, %20 : tensor<8x16xf32>
    %cst_12 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %38 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %39 = stablehlo.add %37, %38 : tensor<8x16xf32>
    %40 = stablehlo.multiply %39, %20 : tensor<8x16xf32>
    %cst_13 = stablehlo.constant dense<0.621732413> : tensor<f32>
    %41 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %42 = stablehlo.add %40, %41 : tensor<8x16xf32>
    %43 = stablehlo.multiply %42, %20 : tensor<8x16xf32>
    %cst_14 = stablehlo.constant dense<0.095662862> : tensor<f32>
    %44 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %45 = stablehlo.add %43, %44 : tensor<8x16xf32>
    %46 = stablehlo.multiply %32, %45 : tensor<8x16xf32>
    %47 = stablehlo.divide %29, %46 : tensor<8x16xf32>
    %48 = stablehlo.multiply %17, %47 : tensor<8x16xf32>
    %49 = stablehlo.subtract %14, %48 : tensor<8x16xf32>
    %50 = stablehlo.select %13, %49, %48 : tensor<8x16xi1>, tensor<8x16xf32>
    %cst_15 = stablehlo.constant dense<5.61802299E-4> : tensor<f32>
    %51 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %52 = stablehlo.multiply %8, %8 : tensor<8x16xf32>
    %53 = stablehlo.multiply %51, %52 : tensor<8x16xf32>
    %cst_16 = stablehlo.constant dense<-0.00491381669> : tensor<f32>
    %54 = stablehlo.broadcast_in_dim %cst_16, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %55 = stablehlo.add %53, %54 : tensor<8x16xf32>
    %56 = stablehlo.multiply %55, %52 : tensor<8x16xf32>
    %cst_17 = stablehlo.constant dense<0.0267075151> : tensor<f32>
    %57 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %58 = stablehlo.add %56, %57 : tensor<8x16xf32>
    %59 = stablehlo.multiply %58, %52 : tensor<8x16xf32>
    %cst_18 = stablehlo.constant dense<-0.112800106> : tensor<f32>
    %60 = stablehlo.broadcast_in_dim %cst_18, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %61 = stablehlo.add %59, %60 : tensor<8x16xf32>
    %62 = stablehlo.multiply %61, %52 : tensor<8x16xf32>
    %cst_19 = stablehlo.constant dense<0.376122952> : tensor<f32>
    %63 = stablehlo.broadcast_in_dim %cst_19, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %64 = stablehlo.add %62, %63 : tensor<8x16xf32>
    %65 = stablehlo.multiply %64, %52 : tensor<8x16xf32>
    %cst_20 = stablehlo.constant dense<-1.12837911> : tensor<f32>
    %66 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %67 = stablehlo.add %65, %66 : tensor<8x16xf32>
    %68 = stablehlo.multiply %8, %67 : tensor<8x16xf32>
    %cst_21 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %69 = stablehlo.broadcast_in_dim %cst_21, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %70 = stablehlo.add %68, %69 : tensor<8x16xf32>
    %71 = stablehlo.select %11, %50, %70 : tensor<8x16xi1>, tensor<8x16xf32>
    %72 = stablehlo.multiply %5, %71 : tensor<8x16xf32>
    %73 = stablehlo.dot %72, %2, precision = [DEFAULT, DEFAULT] {mhlo.frontend_attributes = {grad_x = "false", grad_y = "false"}} : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    %74 = stablehlo.transpose %73, dims = [0, 1] : (tensor<8x16xf32>) -> tensor<8x16xf32>
    %cst_22 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %75 = stablehlo.reduce(%74 init: %cst_22) applies stablehlo.maximum across dimensions = [1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
    %76 = stablehlo.reshape %75 : (tensor<8xf32>) -> tensor<8x1xf32>
    %77 = stablehlo.broadcast_in_dim %76, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x1xf32>
    %78 = stablehlo.reshape %77 : (tensor<8x1xf32>) -> tensor<8xf32>
    %79 = stablehlo.broadcast_in_dim %78, dims = [0] : (tensor<8xf32>) -> tensor<8x16xf32>
    %80 = stablehlo.subtract %74, %79 : tensor<8x16xf32>
    %81 = stablehlo.exponential %80 : tensor<8x16xf32>
    %cst_23 = stablehlo.constant dense<-0.000000e+00> : tensor<f32>
    %82 = stablehlo.reduce(%81 init: %cst_23) applies stablehlo.add across dimensions = [1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
    %83 = stablehlo.reshape %82 : (tensor<8xf32>) -> tensor<8x1xf32>
    %84 = stablehlo.broadcast_in_dim %83, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x1xf32>
    %85 = stablehlo.reshape %84 : (tensor<8x1xf32>) -> tensor<8xf32>
    %86 = stablehlo.broadcast_in_dim %85, dims = [0] : (tensor<8xf32>) -> tensor<8x16xf32>
    %87 = stablehlo.divide %81, %86 : tensor<8x16xf32>
    %88 = stablehlo.reshape %87 : (tensor<8x16xf32>) -> tensor<8x16xf32>
    return %88 : tensor<8x16xf32>
  }
}
