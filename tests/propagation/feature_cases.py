"""One small module per feature of the `sdy` dialect, for comparison with the real passes."""

from __future__ import annotations

MESHES = """
sdy.mesh @mesh = <["a"=2, "b"=4, "one"=1]>
sdy.mesh @same = <["a"=2, "b"=4, "one"=1]>
sdy.mesh @turned = <["a"=2, "b"=4, "one"=1], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>
sdy.mesh @other = <["x"=8]>
sdy.mesh @third = <[], device_ids=[3]>
sdy.mesh @empty = <[]>
"""
T = "tensor<8x16xf32>"
A, B, A_OPEN, B_OPEN = '{"a"}', '{"b"}', '{"a", ?}', '{"b", ?}'


def _on(mesh: str, *dims: str, rest: str = "") -> str:
    return f"{{sdy.sharding = #sdy.sharding<@{mesh}, [{', '.join(dims)}]{rest}>}}"


def _unary(args: str, result: str = "") -> str:
    return f"func.func @main({args}) -> ({T} {result}) {{\n  %0 = stablehlo.tanh %x : {T}\n  return %0 : {T} }}"


def _binary(first: str, second: str, result: str = "") -> str:
    return (
        f"func.func @main(%x: {T} {first}, %y: {T} {second}) -> ({T} {result}) {{\n"
        f"  %0 = stablehlo.add %x, %y : {T}\n  %1 = stablehlo.negate %0 : {T}\n  return %1 : {T} }}"
    )


CASES: dict[str, str] = {
    "several meshes of one shape": _binary(_on("mesh", '{"a"}', "{?}"), _on("same", "{?}", '{"b"}')),
    "meshes of another device order": _binary(_on("mesh", '{"a"}', "{?}"), _on("turned", "{?}", '{"b"}')),
    "meshes of other axes": _binary(_on("mesh", '{"a"}', "{?}"), _on("other", '{"x"}', "{?}")),
    "empty mesh": _binary(_on("empty", "{}", "{}"), _on("mesh", "{?}", '{"b"}')),
    "axes of size one": _binary(_on("mesh", '{"one", "a"}', '{"b"}'), _on("mesh", '{"one"}', "{?}p1")),
    "sub-axes at the boundary": _binary(_on("mesh", '{"b":(1)2, ?}', "{?}"), _on("mesh", "{?}", '{"b":(2)2}')),
    "replicated axes": _binary(_on("mesh", '{"a"}', "{?}", rest=', replicated={"b"}'), _on("mesh", "{?}", '{"b"}')),
    "unreduced axes": _binary(
        _on("mesh", '{"a"}', "{}", rest=', unreduced={"b"}'), _on("mesh", '{"a"}', "{?}"), _on("mesh", "{?}", "{?}")
    ),
    "priorities": _binary(
        _on("mesh", '{"a"}p1', '{"b"}'), _on("mesh", '{"b"}', '{"a"}p2'), _on("mesh", "{?}", "{?}p1")
    ),
    "indivisible input and output": (
        f"func.func @main(%x: tensor<6x3xf32> {_on('mesh', '{?}', '{?}')}, %y: tensor<3x6xf32> "
        f"{_on('mesh', '{?}', '{}')}) -> (tensor<6x6xf32> {_on('mesh', '{?}', '{?}')}) {{\n"
        "  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] {sdy.sharding = "
        '#sdy.sharding_per_value<[<@mesh, [{"b"}, {"a", ?}]>]>} '
        ": (tensor<6x3xf32>, tensor<3x6xf32>) -> tensor<6x6xf32>\n"
        "  return %0 : tensor<6x6xf32> }"
    ),
    "maximal mesh": (
        f"func.func @main(%x: {T} {_on('mesh', A, '{?}')}) -> {T} {{\n"
        f"  %0 = stablehlo.custom_call @foo(%x) {{sdy.sharding = #sdy.sharding_per_value<[<@third, []>]>}}"
        f" : ({T}) -> {T}\n"
        f"  %1 = stablehlo.negate %0 : {T}\n  return %1 : {T} }}"
    ),
    "shared and repeated callees": (
        f"func.func @main(%x: {T} {_on('mesh', A, '{?}')}, %y: {T} {_on('mesh', '{?}', B)}) "
        f"-> ({T}, {T}, {T}) {{\n"
        f"  %0 = call @f(%x) : ({T}) -> {T}\n  %1 = call @f(%y) : ({T}) -> {T}\n  %2 = call @g(%0) : ({T}) -> {T}\n"
        f"  return %0, %1, %2 : {T}, {T}, {T} }}\n"
        f"func.func private @f(%x: {T}) -> {T} {{\n  %0 = stablehlo.sine %x : {T}\n  return %0 : {T} }}\n"
        f"func.func private @g(%x: {T}) -> {T} {{\n  %0 = call @f(%x) : ({T}) -> {T}\n"
        f"  %1 = call @f(%0) : ({T}) -> {T}\n"
        f"  return %1 : {T} }}\n"
        f"func.func private @unused(%x: {T}) -> {T} {{\n  return %x : {T} }}"
    ),
    "callee with shardings of its own": (
        f"func.func @main(%x: {T} {_on('mesh', A, '{?}')}) -> {T} {{\n"
        f"  %0 = call @f(%x) : ({T}) -> {T}\n  return %0 : {T} }}\n"
        f"func.func private @f(%x: {T} {_on('mesh', B, '{}')}) -> ({T} {_on('mesh', '{}', B)}) {{\n"
        f"  %0 = stablehlo.sine %x : {T}\n  return %0 : {T} }}"
    ),
    "constants and scalars": (
        f"func.func @main(%x: {T} {_on('mesh', A, '{}')}, %y: {T} {_on('mesh', B, '{}')}, %s: tensor<f32>)"
        f" -> ({T}, {T}, {T}) {{\n"
        f"  %c = stablehlo.constant dense<2.0> : {T}\n  %n = stablehlo.negate %c : {T}\n"
        f"  %i = stablehlo.iota dim = 0 : {T}\n  %b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> {T}\n"
        f"  %m = stablehlo.multiply %n, %i : {T}\n"
        f"  %0 = stablehlo.add %x, %m : {T}\n  %1 = stablehlo.add %y, %m : {T}\n"
        f"  %2 = stablehlo.add %0, %b : {T}\n  %3 = stablehlo.add %1, %b : {T}\n"
        f"  return %2, %3, %m : {T}, {T}, {T} }}"
    ),
    "groups": (
        f"func.func @main(%x: {T} {_on('mesh', A, '{?}')}, %y: {T}, %z: {T}) -> ({T}, {T}) {{\n"
        f"  sdy.sharding_group %x group_id = 7 : {T}\n  sdy.sharding_group %y group_id = 7 : {T}\n"
        f"  sdy.sharding_group %y group_id = 3 : {T}\n  sdy.sharding_group %z group_id = 3 : {T}\n"
        f"  %0 = stablehlo.negate %y : {T}\n  %1 = stablehlo.negate %z : {T}\n  return %0, %1 : {T}, {T} }}"
    ),
    "data flow": (
        f"func.func @main(%x: {T} {_on('mesh', A, '{?}')}, %y: {T} {_on('mesh', '{?}', B)}, %p: tensor<i32>)"
        f" -> ({T}, {T}) {{\n"
        '  %0 = "stablehlo.case"(%p) ({\n'
        f"    %t = stablehlo.tanh %x : {T}\n    stablehlo.return %t : {T}\n  }}, {{\n    stablehlo.return %y : {T}\n"
        f"  }}) : (tensor<i32>) -> {T}\n"
        f"  %1:2 = stablehlo.optimization_barrier %0, %y : {T}, {T}\n"
        f"  %2 = stablehlo.while(%i = %1#1) : {T} cond {{\n    %c = stablehlo.constant dense<false> : tensor<i1>\n"
        "    stablehlo.return %c : tensor<i1>\n"
        f"  }} do {{\n    %u = stablehlo.add %i, %1#0 : {T}\n    stablehlo.return %u : {T}\n  }}\n"
        f"  return %1#0, %2 : {T}, {T} }}"
    ),
    "named computation": (
        f"func.func @main(%x: {T} {_on('mesh', A, '{?}')}) -> {T} {{\n"
        f'  %0 = sdy.named_computation<"f">(%x) in_shardings=[<@mesh, [{{?}}, {{"b", ?}}]>] '
        f"out_shardings=[<@mesh, [{{?}}, {{?}}]>] (%y: {T}) {{\n"
        f"    %1 = stablehlo.sine %y : {T}\n    sdy.return %1 : {T}\n  }} : ({T}) -> {T}\n  return %0 : {T} }}"
    ),
    "partial manual computation": (
        f"func.func @main(%x: {T} {_on('mesh', '{?}', B)}) -> {T} {{\n"
        '  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"a", ?}, {?}]>] '
        'out_shardings=[<@mesh, [{"a", ?}, {?}]>] manual_axes={"a"} (%y: tensor<4x16xf32>) {\n'
        "    %1 = stablehlo.sine %y : tensor<4x16xf32>\n    sdy.return %1 : tensor<4x16xf32>\n"
        f"  }} : ({T}) -> {T}\n  return %0 : {T} }}"
    ),
    "nested manual computations": (
        f"func.func @main(%x: {T}) -> {T} {{\n"
        '  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"a", ?}, {?}]>] '
        'out_shardings=[<@mesh, [{"a", ?}, {?}]>] manual_axes={"a"} (%y: tensor<4x16xf32>) {\n'
        '    %1 = sdy.manual_computation(%y) in_shardings=[<@mesh, [{}, {"b"}]>] '
        'out_shardings=[<@mesh, [{}, {"b"}]>] manual_axes={"b"} (%z: tensor<4x4xf32>) {\n'
        "      %2 = stablehlo.sine %z : tensor<4x4xf32>\n      sdy.return %2 : tensor<4x4xf32>\n"
        "    } : (tensor<4x16xf32>) -> tensor<4x16xf32>\n    sdy.return %1 : tensor<4x16xf32>\n"
        f"  }} : ({T}) -> {T}\n  return %0 : {T} }}"
    ),
    "constraints in a chain": (
        f"func.func @main(%x: {T}) -> ({T}, {T}) {{\n"
        f'  %0 = sdy.sharding_constraint %x <@mesh, [{{"a"}}, {{}}]> : {T}\n'
        f'  %1 = sdy.sharding_constraint %0 <@mesh, [{{}}, {{"b"}}]> : {T}\n'
        f"  %2 = stablehlo.negate %x : {T}\n  return %1, %2 : {T}, {T} }}"
    ),
    "asynchronous operation": (
        f"func.func @main(%x: {T} {_on('mesh', A, '{?}')}) -> {T} {{\n"
        f'  %0 = "stablehlo.async_start"(%x) ({{ ^bb0(%y: {T}):\n'
        '    %s = "stablehlo.collective_permute"(%y) {source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}'
        f" : ({T}) -> {T}\n    stablehlo.return %s : {T} }}) : ({T}) -> !stablehlo.future<{T}>\n"
        f'  %1 = "stablehlo.async_done"(%0) : (!stablehlo.future<{T}>) -> {T}\n  return %1 : {T} }}'
    ),
    "product resharded behind": (
        f"func.func @main(%x: tensor<8x16xf32> {_on('mesh', B, A)}, "
        f"%y: tensor<16x4xf32> {_on('mesh', A, '{}')}) -> (tensor<8x4xf32> {_on('mesh', A, '{}')}) {{\n"
        "  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] {sdy.sharding = "
        '#sdy.sharding_per_value<[<@mesh, [{"a"}, {}]>]>} '
        ": (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>\n"
        "  return %0 : tensor<8x4xf32> }"
    ),
} | {
    f"barrier {direction}": (
        f"func.func @main(%x: {T} {_on('mesh', A_OPEN, '{?}')}) -> ({T} {_on('mesh', '{?}', B_OPEN)}) {{\n"
        f"  %0 = stablehlo.sine %x : {T}\n"
        f"  %1 = sdy.propagation_barrier %0 allowed_direction={direction} : {T}\n"
        f"  %2 = stablehlo.sine %1 : {T}\n  return %2 : {T} }}"
    )
    for direction in ("NONE", "FORWARD", "BACKWARD")
}


def module(name: str) -> str:
    """The module of a case: its function with the meshes."""
    return MESHES + CASES[name] + "\n"
