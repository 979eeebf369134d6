"""What a device holds over the course of a program: by hand on small ones, beside the compiler's on whole ones."""

from __future__ import annotations

import re

import pytest

import collectives
import propagation
from meshrt.runtime import jaxlib_api
from meshrt.runtime.memory_stats import memory_stats_of

KIB = 1024.0


def partitioned(arguments: str, body: str, results: str = "tensor<256xf32>"):
    """A program on one device; `k` stands for tensors of 1 KiB."""
    text = f"func.func @main({arguments}) -> ({results}) {{\n{body}\n}}"
    return collectives.partition(propagation.run(re.sub(r"\bk\b", "tensor<256xf32>", text)))


def held(plan: collectives.MemoryPlan) -> dict[str, float]:
    out: dict[str, float] = {}
    for h in plan.alive:
        name = h.what.removeprefix("stablehlo.")
        out[name] = out.get(name, 0.0) + h.bytes
    return out


def test_what_is_fused_takes_no_memory():
    plan = partitioned("%x: k", """
      %a = stablehlo.tanh %x : k
      %b = stablehlo.add %a, %x : k
      %c = stablehlo.negate %b : k
      return %c : k""").memory  # fmt: skip
    assert (plan.peak, plan.arguments, plan.results, plan.temporaries) == (2 * KIB, KIB, KIB, 0)
    assert held(plan) == {"argument": KIB, "result": KIB}


def test_what_is_dear_and_read_twice_is_kept():
    for op, kept in (("negate", False), ("tanh", True)):
        body = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %a = stablehlo.{op} %x : k
      %s = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0]
         : (k, tensor<f32>) -> tensor<f32>
      %b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> k
      %c = stablehlo.divide %a, %b : k
      %r = stablehlo.reduce(%c init: %zero) applies stablehlo.add across dimensions = [0]
         : (k, tensor<f32>) -> tensor<f32>
      return %r : tensor<f32>"""
        plan = partitioned("%x: k", body, "tensor<f32>").memory
        assert held(plan).get(op, 0.0) == (KIB if kept else 0.0)


def test_a_result_of_an_update_takes_the_memory_of_what_is_updated():
    plan = partitioned("%x: k, %i: tensor<i32>", """
      %a = stablehlo.sine %x : k
      %s = "stablehlo.sort"(%a) ({
        ^bb0(%p: tensor<f32>, %q: tensor<f32>):
          %l = stablehlo.compare LT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
          stablehlo.return %l : tensor<i1>
      }) {dimension = 0 : i64} : (k) -> k
      %u = stablehlo.slice %x [0:1] : (k) -> tensor<1xf32>
      %d = stablehlo.dynamic_update_slice %s, %u, %i : (k, tensor<1xf32>, tensor<i32>) -> k
      %c = "stablehlo.sort"(%d) ({
        ^bb0(%p: tensor<f32>, %q: tensor<f32>):
          %l = stablehlo.compare GT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
          stablehlo.return %l : tensor<i1>
      }) {dimension = 0 : i64} : (k) -> k
      return %c : k""").memory  # fmt: skip
    assert plan.peak == 2 * KIB + 4  # one buffer from the sine to the last sort: the result's


def test_a_donated_argument_makes_room_for_a_result():
    plan = partitioned("%x: k {tf.aliasing_output = 0 : i32}", """
      %a = stablehlo.sine %x : k
      return %a : k""").memory  # fmt: skip
    assert (plan.peak, plan.results) == (KIB, 0)


def test_the_peak_is_within_a_loop_where_that_holds_most():
    plan = partitioned("%x: k, %n: tensor<i32>", """
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %w:2 = stablehlo.while(%i = %zero, %c = %x) : tensor<i32>, k
        cond {
          %l = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %l : tensor<i1>
        } do {
          %j = stablehlo.add %i, %one : tensor<i32>
          %m = stablehlo.reshape %c : (k) -> tensor<16x16xf32>
          %d = stablehlo.dot_general %m, %m, contracting_dims = [1] x [0]
             : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
          %e = stablehlo.dot_general %d, %m, contracting_dims = [1] x [0]
             : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
          %r = stablehlo.reshape %e : (tensor<16x16xf32>) -> k
          stablehlo.return %j, %r : tensor<i32>, k
        }
      return %w#1 : k""").memory  # fmt: skip
    # The argument, the carried buffer (the result's), the first product, and the second while the carried one is read.
    assert plan.peak == pytest.approx(4 * KIB, abs=64)
    assert held(plan)["dot_general"] == 2 * KIB


def test_moments_and_places(tmp_path):
    file = tmp_path / "m.mlir"
    file.write_text("func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {\n"
                    "  %a = stablehlo.sine %x : tensor<8xf32>\n  return %a : tensor<8xf32>\n}")  # fmt: skip
    plan = collectives.partition(propagation.run(file.read_text())).memory
    assert max(m.bytes for m in plan.moments) == plan.peak == 64
    assert [m.what for m in plan.moments] == ["stablehlo.sine"]
    assert plan.moments[0].where == "-:2"


def test_what_is_ready_first_runs_first():
    """Both branches begin before either goes on, as XLA's compiler for CPUs runs them; others keep the order."""
    body = """
      %a = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0] : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
      %b = stablehlo.dot_general %a, %x, contracting_dims = [0] x [0] : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
      %c = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
      %d = stablehlo.dot_general %c, %b, contracting_dims = [0] x [0] : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
      return %d : tensor<16x16xf32>"""  # noqa: E501
    text = f"func.func @main(%x: tensor<16x16xf32>) -> tensor<16x16xf32> {{\n{body}\n}}"
    for topology, order in ((None, "acbd"), ("v5e:1x1", "abcd")):
        plan = collectives.partition(propagation.run(text), topology=topology).memory
        assert [m.where for m in plan.moments] == [f"-:{3 + 'abcd'.index(name)}" for name in order]


Q, K, SCORES = "tensor<2x4x8xf32>", "tensor<2x16x4x8xf32>", "tensor<2x4x16xf32>"
SIZE = 4.0 * 2 * 16 * 4 * 8  # bytes of K
MOVED = f"""stablehlo.dot_general %m, %a, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [3]
         : ({Q}, {K}) -> {SCORES}"""  # reads %a in another order of dimensions


@pytest.mark.parametrize(
    "key, body, results, temporaries",
    [
        (K, f"%a = stablehlo.sine %key : {K}\n %d = {MOVED}\n return %a, %d : {K}, {SCORES}", f"{K}, {SCORES}", SIZE),
        (K, f"%a = stablehlo.sine %key : {K}\n %d = {MOVED}\n return %d : {SCORES}", SCORES, SIZE),
        (
            "tensor<128x8xf32>",
            f"""%s = stablehlo.sine %key : tensor<128x8xf32>
            %a = stablehlo.reshape %s : (tensor<128x8xf32>) -> {K}
            %d = {MOVED}
            return %d : {SCORES}""",
            SCORES, SIZE,
        ),
    ],
    ids=["of a result", "computed for it alone", "under another name"],
)  # fmt: skip
def test_a_contraction_reads_another_order_of_dimensions(key, body, results, temporaries):
    """A copy of what others read too; what is computed for it alone is written in its order."""
    assert partitioned(f"%m: {Q}, %key: {key}", body, results).memory.temporaries == temporaries


def test_copies_for_contractions_are_made_when_their_operand_is_there():
    """At the start, where what is ready first runs first; else when the contraction runs."""
    text = f"""func.func @main(%q: {Q}, %a: {K}) -> {SCORES} {{
      %m = stablehlo.sine %q : {Q}
      %d = {MOVED}
      return %d : {SCORES} }}"""
    for topology, early in ((None, True), ("v5e:1x1", False)):
        plan = collectives.partition(propagation.run(text), topology=topology).memory
        first, last = (m.bytes - plan.arguments - plan.results for m in plan.moments)
        assert first // SIZE == early and last // SIZE == 1


PROGRAMS = [
    "mlp", "fsdp scan", "sequence-parallel block", "decode with grouped queries", "recurrent network", "roll",
    "permutation", "ring attention", "convolution gradient", "mixture of experts", "decode, cache sharded by position",
    "gradient accumulation", "running sum",
]  # fmt: skip
# The parts of a contraction that is cut (`ops/contraction_cuts.py`) are estimated to lie side by side; the compiler
# cuts them out one after the other.
TOO_HIGH = {"convolution gradient": 0.4}


@pytest.mark.parametrize("name", PROGRAMS)
def test_near_what_the_compiler_needs(name):
    import jax
    import numpy as np

    from benchmarks.communication.library import PROGRAMS as LIBRARY
    from benchmarks.communication.measure import staged

    program = LIBRARY[name]
    sizes, names = [n for _, n in program.mesh], [n for n, _ in program.mesh]
    mesh = jax.sharding.Mesh(np.array(jax.devices()[: program.devices]).reshape(sizes), names)
    jitted, _ = staged(program, mesh)
    made = collectives.partition(propagation.run(jitted.lower(*program.values()).as_text()))
    devices = list(mesh.devices.flat)
    compiled = jaxlib_api.compile_and_load(made.as_text(), devices, jaxlib_api.compile_options(devices))
    needed = memory_stats_of(compiled).device_size_in_bytes
    assert 0.9 * needed <= made.memory.peak <= (1 + TOO_HIGH.get(name, 0.1)) * needed
