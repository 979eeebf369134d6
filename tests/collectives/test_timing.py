"""Predicted times: by hand on small programs, and how they move when the machine does."""

import math
from dataclasses import replace

import pytest

import collectives
import propagation
from collectives.topology import Link, Topology

MACHINE = Topology(name="m", flops=1e9, memory_bandwidth=1e8, default=Link(1e-6, 1e7), compiler="tpu")
HEAD = 'sdy.mesh @mesh = <["x"=4]>\n'
MATMUL = (
    HEAD
    + """
func.func @main(%x: tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %w: tensor<32x128xf32>)
    -> tensor<64x128xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<64x32xf32>, tensor<32x128xf32>) -> tensor<64x128xf32>
  return %0 : tensor<64x128xf32>
}
"""
)
CHAIN = (
    HEAD
    + """
func.func @main(%x: tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<64x32xf32> {
  %0 = stablehlo.add %x, %x : tensor<64x32xf32>
  %1 = stablehlo.multiply %0, %x : tensor<64x32xf32>
  %2 = stablehlo.negate %1 : tensor<64x32xf32>
  return %2 : tensor<64x32xf32>
}
"""
)
SUMMED = (
    HEAD
    + """
func.func @main(%x: tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
                %w: tensor<32x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                %v: tensor<64x64xf32>) -> (tensor<64x128xf32>, tensor<64x64xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<64x32xf32>, tensor<32x128xf32>) -> tensor<64x128xf32>
  %1 = stablehlo.dot_general %v, %v, contracting_dims = [1] x [0]
      : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %0, %1 : tensor<64x128xf32>, tensor<64x64xf32>
}
"""
)
LOOP = (
    HEAD
    + """
func.func @main(%x: tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %w: tensor<32x32xf32>)
    -> tensor<64x32xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<TRIPS> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %c = %x) : tensor<i32>, tensor<64x32xf32>
    cond {
      %go = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %d = stablehlo.dot_general %c, %w, contracting_dims = [1] x [0]
          : (tensor<64x32xf32>, tensor<32x32xf32>) -> tensor<64x32xf32>
      %k = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %k, %d : tensor<i32>, tensor<64x32xf32>
    }
  return %r#1 : tensor<64x32xf32>
}
"""
)


def timing(text: str, machine: Topology = MACHINE):
    return collectives.partition(propagation.run(text), machine).timing


def test_a_product_takes_its_arithmetic_or_its_memory() -> None:
    found = timing(MATMUL)
    arithmetic, moved = 2 * 16 * 32 * 128 / 1e9, 4 * (16 * 32 + 32 * 128 + 16 * 128) / 1e8
    assert moved > arithmetic and found.memory == pytest.approx(moved) and found.arithmetic == 0
    found = timing(MATMUL, replace(MACHINE, memory_bandwidth=1e12))
    assert found.arithmetic == pytest.approx(arithmetic) and found.seconds == pytest.approx(arithmetic)


def test_elementwise_operations_move_what_goes_in_and_what_comes_out() -> None:
    assert timing(CHAIN).seconds == pytest.approx(2 * 4 * 16 * 32 / 1e8)


def test_loops_count_their_trips() -> None:
    one, ten = (timing(LOOP.replace("TRIPS", n)).seconds for n in ("1", "10"))
    assert ten == pytest.approx(10 * one, rel=0.05)


def test_machines_with_a_network_compute_while_they_send() -> None:
    beside = timing(SUMMED)
    assert beside.sending > 0 and beside.seconds < beside.computing + beside.sending
    after = timing(SUMMED, replace(MACHINE, compiler="cpu"))
    assert after.seconds == pytest.approx(after.computing + after.sending)
    assert beside.exposed <= beside.sending


@pytest.mark.parametrize(
    "text", [MATMUL, CHAIN, SUMMED, LOOP.replace("TRIPS", "7")], ids=["matmul", "chain", "summed", "loop"]
)
def test_faster_machines_take_less(text) -> None:
    base = timing(text)
    for faster in (
        replace(MACHINE, flops=2e9),
        replace(MACHINE, memory_bandwidth=2e8),
        replace(MACHINE, default=Link(1e-6, 2e7)),
        replace(MACHINE, default=Link(5e-7, 1e7)),
    ):
        assert timing(text, faster).seconds <= base.seconds * (1 + 1e-9)
    twice = replace(MACHINE, flops=2e9, memory_bandwidth=2e8, default=Link(5e-7, 2e7))
    assert math.isclose(timing(text, twice).seconds, base.seconds / 2, rel_tol=1e-9)


def test_a_call_takes_what_its_function_takes_written_out() -> None:
    head, body = CHAIN.split("tensor<64x32xf32> {\n", 1)
    call = 'func.call @f(%x) {mhlo.frontend_attributes = {inlineable = "false"}}'
    kind = "(tensor<64x32xf32>) -> tensor<64x32xf32>"
    called = f"{head}tensor<64x32xf32> {{\n  %0 = {call} : {kind}\n  return %0 : tensor<64x32xf32>\n}}\n"
    made = collectives.partition(
        propagation.run(f"{called}func.func private @f(%x: tensor<64x32xf32>) -> tensor<64x32xf32> {{\n{body}"), MACHINE
    )
    assert '"func.call"' in made.as_text()
    assert made.timing.seconds == pytest.approx(timing(CHAIN).seconds)


ALONE = {
    "sort": """
      %0 = "stablehlo.sort"(%x) <{dimension = 1 : i64, is_stable = true}> ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
          stablehlo.return %c : tensor<i1>
      }) : (tensor<8xNxf32>) -> tensor<8xNxf32>""",
    "running sums": """
      %z = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = "stablehlo.reduce_window"(%x, %z) <{window_dimensions = array<i64: 1, N>,
          padding = dense<[[0, 0], [BEFORE, 0]]> : tensor<2x2xi64>}> ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %c = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %c : tensor<f32>
      }) : (tensor<8xNxf32>, tensor<f32>) -> tensor<8xNxf32>""",
    "transform": """
      %y = stablehlo.fft %x, type = RFFT, length = [N] : (tensor<8xNxf32>) -> tensor<8xHALFxcomplex<f32>>
      %0 = stablehlo.fft %y, type = IRFFT, length = [N] : (tensor<8xHALFxcomplex<f32>>) -> tensor<8xNxf32>""",
    "factor": """
      %0 = stablehlo.cholesky %x, lower = true : tensor<8xNxf32>""",
}


def seconds_alone(what, n, machine=MACHINE):
    shape = f"{n}x{n}" if what == "factor" else f"8x{n}"
    body = ALONE[what].replace("BEFORE", str(n - 1)).replace("HALF", str(n // 2 + 1)).replace("8xN", shape)
    text = f"{HEAD}func.func @main(%x: tensor<{shape}xf32>) -> tensor<{shape}xf32> {{{body.replace('N', str(n))}\n"
    return timing(text + f"return %0 : tensor<{shape}xf32>\n}}", machine).arithmetic


@pytest.mark.parametrize("what, least", [("sort", 2.1), ("running sums", 2.0), ("transform", 2.1), ("factor", 7.9)])
def test_what_takes_longer_than_its_memory_grows_with_its_arithmetic(what, least):
    """n log n comparisons and transforms, n^3 steps of a decomposition; a running sum is made of blocks."""
    one, twice = seconds_alone(what, 512), seconds_alone(what, 1024)
    assert one > 0 and twice / one >= least - 1e-9


@pytest.mark.parametrize(
    "features, groups, on_tpu, on_cpu", [(8, 1, 1, 1), (8, 8, 100, 100), (512, 8, 4, 100 / 64), (512, 2, 1, 1)]
)
def test_convolutions_in_groups_of_few_features_are_far_from_the_peak(features, groups, on_tpu, on_cpu):
    x, kernel = f"tensor<4x32x32x{features}xf32>", f"tensor<3x3x{features // groups}x{features}xf32>"
    text = f"""{HEAD}
      func.func @main(%x: {x}, %k: {kernel}) -> {x} {{
        %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
          window = {{pad = [[1, 1], [1, 1]]}} {{feature_group_count = {groups} : i64, batch_group_count = 1 : i64}}
          : ({x}, {kernel}) -> {x}
        return %0 : {x}
      }}"""
    flops = 2 * 4 * 32 * 32 * features * 9 * features / groups
    for machine, factor in ((MACHINE, on_tpu), (replace(MACHINE, compiler="cpu"), on_cpu)):
        assert timing(text, machine).arithmetic == pytest.approx(flops / 1e9 * factor)


def measured(**rows):
    return replace(MACHINE, compiler="cuda", measured=rows)


def test_measured_rates_stand_for_those_of_the_data_sheet() -> None:
    base = timing(CHAIN).seconds
    assert timing(CHAIN, measured(memory_bandwidth=5e7)).seconds == pytest.approx(2 * base)
    assert timing(CHAIN, measured(kernel=10.0)).seconds == 10.0, "one fused operation"
    wide = timing(MATMUL, measured(memory_bandwidth=1e15, flops=1e3, flops_f32=2e3))
    assert wide.arithmetic == pytest.approx(2 * 16 * 32 * 128 / 2e3), "of float32"
    narrow = timing(MATMUL.replace("f32", "bf16"), measured(memory_bandwidth=1e15, flops=1e3, flops_f32=2e3))
    assert narrow.arithmetic == pytest.approx(2 * 16 * 32 * 128 / 1e3)


def test_measured_times_of_comparisons_and_columns() -> None:
    machine = measured(memory_bandwidth=1e15, flops=1e15, comparison=1.0, cholesky=3.0)
    assert seconds_alone("sort", 16, machine) == 8 * 16 * 4 * 5 / 2
    assert seconds_alone("factor", 8, machine) == 8 * 3.0


def library(target: str) -> float:
    call = f"stablehlo.custom_call @{target}(%x) : (tensor<64x64xf32>) -> tensor<64x64xf32>"
    text = f"{HEAD}func.func @main(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {{\n  %0 = {call}\n"
    return timing(
        text + "return %0 : tensor<64x64xf32>\n}", measured(memory_bandwidth=1e15, eigen=1.0, lu=0.5)
    ).arithmetic


def test_only_kernels_of_libraries_are_decompositions() -> None:
    assert library("cusolver_syevd_ffi") == library("Eigh") == 64.0 and library("lapack_sgetrf_ffi") == 32.0
    assert library("my_weighted") == library("my_neighbours_lu") == 0.0
