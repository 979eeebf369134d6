// As in `group_of_two_meshes`, with the members the other way round.
module {
  sdy.mesh @mesh = <["d"=2, "e"=2, "f"=2, "g"=2]>
  sdy.mesh @line = <["all"=16]>
  func.func public @main(%arg0: tensor<24x2x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {"e"}]>}) {
    %0 = sdy.sharding_constraint %arg0 <@line, [{}, {?}, {"all", ?}]> : tensor<24x2x6xf32>
    sdy.sharding_group %arg0 group_id=0 : tensor<24x2x6xf32>
    sdy.sharding_group %0 group_id=0 : tensor<24x2x6xf32>
    return
  }
}
