module {
  sdy.mesh @mesh = <["a"=2, "b"=1, "c"=6]>
  sdy.mesh @twin = <["a"=2, "b"=1, "c"=6]>
  sdy.mesh @one_device = <[], device_ids=[1]>
  func.func public @main(%arg0: tensor<24xf32>, %arg1: tensor<24xf32>) {
    %0 = sdy.manual_computation(%arg1) in_shardings=[<@mesh, [{"a", "c", ?}]>] out_shardings=[<@mesh, [{"a", ?}]>] manual_axes={"a"} (%arg2: tensor<12xf32>) {
      sdy.return %arg2 : tensor<12xf32>
    } : (tensor<24xf32>) -> tensor<24xf32>
    sdy.sharding_group %0 group_id=1 : tensor<24xf32>
    sdy.sharding_group %arg0 group_id=1 : tensor<24xf32>
    return
  }
}
