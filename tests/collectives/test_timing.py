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
