"""What a device holds over the course of a program: by hand on small ones, beside the compiler's on whole ones."""

from __future__ import annotations

import re

import pytest

import collectives
import propagation
from meshrt.runtime.memory_stats import memory_stats_of
from meshrt.xla import jaxlib_api

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
      %a = stablehlo.{op} %x : tensor<16xf32>
      %s = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0]
         : (tensor<16xf32>, tensor<f32>) -> tensor<f32>
      %b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<16xf32>
      %c = stablehlo.divide %a, %b : tensor<16xf32>
      %r = stablehlo.reduce(%c init: %zero) applies stablehlo.add across dimensions = [0]
         : (tensor<16xf32>, tensor<f32>) -> tensor<f32>
      return %r : tensor<f32>"""
        plan = partitioned("%x: tensor<16xf32>", body, "tensor<f32>").memory
        assert held(plan).get(op, 0.0) == (64.0 if kept else 0.0)


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


def check_beside_compiler(made: collectives.Partitioned, ynnpack: str = "all") -> None:
    """A plan of a program for one device is within 1 KiB of what the compiler for CPUs needs."""
    import jax

    devices = jax.devices()[:1]
    options = jaxlib_api.compile_options(devices, ynnpack=ynnpack)
    compiled = jaxlib_api.compile_and_load(made.as_text(), devices, options)
    assert made.memory.peak == pytest.approx(memory_stats_of(compiled).device_size_in_bytes, abs=KIB)


def test_the_gradient_of_a_maximum_over_windows_keeps_positions():
    """Of each element its place in every dimension, all of them at once, though they lie in a later part."""
    body = """%0 = stablehlo.tanh %x : tensor<2x33x33x16xf32>
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %1 = "stablehlo.select_and_scatter"(%0, %s, %z) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      }, {
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %c : tensor<f32>
      }) {window_dimensions = array<i64: 1, 3, 3, 1>, window_strides = array<i64: 1, 2, 2, 1>}
      : (tensor<2x33x33x16xf32>, tensor<2x16x16x16xf32>, tensor<f32>) -> tensor<2x33x33x16xf32>
    return %1 : tensor<2x33x33x16xf32>"""
    made = partitioned("%x: tensor<2x33x33x16xf32>, %s: tensor<2x16x16x16xf32>", body, "tensor<2x33x33x16xf32>")
    assert made.memory.temporaries == 4 * (5 * 2 * 33 * 33 * 16 + 6 * 2 * 16 * 16 * 16)
    check_beside_compiler(made)


LARGE = "tensor<64x64xf32>"
WHOLE = 4.0 * 64 * 64  # bytes of it


@pytest.mark.parametrize(
    "length, op, temporaries",
    [(64, "abs", 0.0), (64, "clamp", WHOLE), (32, "clamp", 0.0), (33, "clamp", 33 * WHOLE / 64)],
    ids=["a kernel that has it", "a kernel that has it not", "few elements", "many elements, block by block"],
)
def test_long_reductions_read_memory(length, op, temporaries):
    """What a library does not have is written before a large array is reduced; few elements are computed when read."""
    kind, rows = f"tensor<64x{length}xf32>", "tensor<64xf32>"
    made = f"stablehlo.clamp %zero, %x, %zero : (tensor<f32>, {kind}, tensor<f32>) -> {kind}"
    body = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %a = {made if op == "clamp" else f"stablehlo.{op} %x : {kind}"}
      %r = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [1]
         : ({kind}, tensor<f32>) -> {rows}
      return %r : {rows}"""
    made = partitioned(f"%x: {kind}", body, rows)
    assert made.memory.temporaries == temporaries
    check_beside_compiler(made)


def test_a_softmax_is_one_kernel_up_to_its_exponential():
    body = f"""
      %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %s = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] : ({LARGE}, {LARGE}) -> {LARGE}
      %m = stablehlo.reduce(%s init: %low) applies stablehlo.maximum across dimensions = [1]
         : ({LARGE}, tensor<f32>) -> tensor<64xf32>
      %lows = stablehlo.broadcast_in_dim %low, dims = [] : (tensor<f32>) -> tensor<64xf32>
      %n = stablehlo.maximum %lows, %m : tensor<64xf32>
      %ms = stablehlo.broadcast_in_dim %n, dims = [0] : (tensor<64xf32>) -> {LARGE}
      %d = stablehlo.subtract %s, %ms : {LARGE}
      %e = stablehlo.exponential %d : {LARGE}
      %t = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1]
         : ({LARGE}, tensor<f32>) -> tensor<64xf32>
      %ts = stablehlo.broadcast_in_dim %t, dims = [0] : (tensor<64xf32>) -> {LARGE}
      %p = stablehlo.divide %e, %ts : {LARGE}
      return %p : {LARGE}"""
    check_beside_compiler(partitioned(f"%x: {LARGE}", body, LARGE))


def test_what_takes_little_is_computed_again_for_those_who_can():
    """The sum is written for the contraction; the last addition computes it from the argument, which is there."""
    body = f"""
      %one = stablehlo.constant dense<1.0> : {LARGE}
      %a = stablehlo.add %x, %one : {LARGE}
      %d = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0] : ({LARGE}, {LARGE}) -> {LARGE}
      %e = stablehlo.dot_general %d, %d, contracting_dims = [1] x [0] : ({LARGE}, {LARGE}) -> {LARGE}
      %r = stablehlo.add %e, %a : {LARGE}
      return %r : {LARGE}"""
    check_beside_compiler(partitioned(f"%x: {LARGE}", body, LARGE))


def test_a_number_beside_a_value_is_padding_that_readers_compute():
    """Where two arrays are joined they are written once for two readers."""
    for other, kept in (("%border", 0.0), ("%y", 520.0)):
        plan = partitioned("%x: tensor<128xf32>, %y: tensor<2xf32>", f"""
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %border = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<2xf32>
      %a = stablehlo.concatenate %x, {other}, dim = 0 : (tensor<128xf32>, tensor<2xf32>) -> tensor<130xf32>
      %b = stablehlo.slice %a [1:129] : (tensor<130xf32>) -> tensor<128xf32>
      %c = stablehlo.slice %a [2:130] : (tensor<130xf32>) -> tensor<128xf32>
      %d = stablehlo.subtract %b, %c : tensor<128xf32>
      return %d : tensor<128xf32>""", "tensor<128xf32>").memory  # fmt: skip
        assert held(plan).get("concatenate", 0.0) == kept


JOINED = """
      %a = stablehlo.concatenate %x, %y, %z, dim = 0
         : (tensor<1xf32>, tensor<256xf32>, tensor<1xf32>) -> tensor<258xf32>
      %i = stablehlo.slice %a [0:257] : (tensor<258xf32>) -> tensor<257xf32>
      %b = stablehlo.slice %i [FROM] : (tensor<257xf32>) -> tensor<TOxf32>
      %c = stablehlo.slice %a [FIRST] : (tensor<258xf32>) -> tensor<TOxf32>
      %s = stablehlo.sine %b : tensor<TOxf32>
      %d = stablehlo.subtract %c, %s : tensor<TOxf32>
      return %d : tensor<TOxf32>"""


@pytest.mark.parametrize(
    "second, size, first, kept",
    [
        ("1:257", 256, "1:257", 0.0),  # the middle operand itself, twice
        ("2:257", 255, "1:256", 0.0),
        ("0:256", 256, "1:257", 0.0),  # the first two, which one slice alone reads
        ("0:256", 256, "0:256", 257 * 4.0),  # the first two, read twice
    ],
)
def test_a_slice_reads_what_it_takes_of_joined_arrays_only(second, size, first, kept):
    body = JOINED.replace("FROM", second).replace("TO", str(size)).replace("FIRST", first)
    made = partitioned("%x: tensor<1xf32>, %y: tensor<256xf32>, %z: tensor<1xf32>", body, f"tensor<{size}xf32>")
    assert held(made.memory).get("concatenate", 0.0) == kept


def test_without_a_library_reductions_read_what_they_compute():
    """As meshrt compiles programs that have no narrow types."""
    body = f"""%0 = stablehlo.sine %x : {LARGE}
    %b = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<64xf32>) -> {LARGE}
    %1 = stablehlo.add %0, %b : {LARGE}
    %2 = stablehlo.multiply %1, %x : {LARGE}
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %3 = stablehlo.reduce(%2 init: %z) applies stablehlo.add across dimensions = [1]
         : ({LARGE}, tensor<f32>) -> tensor<64xf32>
    %4 = stablehlo.dot_general %1, %x, contracting_dims = [1] x [0] : ({LARGE}, {LARGE}) -> {LARGE}
    return %3, %4 : tensor<64xf32>, {LARGE}"""
    text = f"func.func @main(%x: {LARGE}, %m: tensor<64xf32>) -> (tensor<64xf32>, {LARGE}) {{{body}}}"
    options = ("always", "never", "narrow")
    made = {o: collectives.partition(propagation.run(text), kernel_library=o) for o in options}
    assert made["narrow"].memory == made["never"].memory
    check_beside_compiler(made["always"])
    check_beside_compiler(made["never"], ynnpack="none")
    narrow = text.replace("f32", "bf16")
    always, other = (collectives.partition(propagation.run(narrow), kernel_library=o) for o in ("always", "narrow"))
    assert always.memory == other.memory


@pytest.mark.parametrize("batch", [1, 2])
def test_who_reads_a_product_of_a_batch_of_one_writes_elsewhere(batch):
    kind, flat = f"tensor<{batch}x64x64xf32>", "tensor<64xf32>"
    body = f"""%0 = stablehlo.dot_general %x, %y, batching_dims = [0] x [0], contracting_dims = [2] x [1]
         : ({kind}, {kind}) -> {kind}
    %1 = stablehlo.sine %0 : {kind}
    %2 = stablehlo.dot_general %1, %y, batching_dims = [0] x [0], contracting_dims = [2] x [1]
         : ({kind}, {kind}) -> {kind}
    %3 = stablehlo.slice %2 [0:1, 0:1, 0:64] : ({kind}) -> tensor<1x1x64xf32>
    %4 = stablehlo.reshape %3 : (tensor<1x1x64xf32>) -> {flat}
    return %4 : {flat}"""
    text = f"func.func @main(%x: {kind}, %y: {kind}) -> {flat} {{{body}}}"
    check_beside_compiler(collectives.partition(propagation.run(text), kernel_library="never"), ynnpack="none")


@pytest.mark.parametrize("heads", [1, 2])
def test_an_update_that_is_returned_is_made_again_for_a_product_that_drops_a_dimension(heads):
    """The cache of one head is read as a matrix; of several heads a copy in another order is read, as of any value."""
    cache, new = f"tensor<4x1024x{heads}x16xf32>", f"tensor<4x1x{heads}x16xf32>"
    body = f"""
      %z = stablehlo.constant dense<0> : tensor<i32>
      %u = stablehlo.dynamic_update_slice %x, %v, %z, %i, %z, %z
         : ({cache}, {new}, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> {cache}
      %q = stablehlo.sine %p : tensor<4x{heads}x1024xf32>
      %d = stablehlo.dot_general %q, %u, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [1]
         : (tensor<4x{heads}x1024xf32>, {cache}) -> tensor<4x{heads}x16xf32>
      return %d, %u : tensor<4x{heads}x16xf32>, {cache}"""
    made = partitioned(
        f"%x: {cache}, %v: {new}, %p: tensor<4x{heads}x1024xf32>, %i: tensor<i32>", body,
        f"tensor<4x{heads}x16xf32>, {cache}",
    )  # fmt: skip
    assert made.memory.temporaries >= 4 * 1024 * heads * 16 * 4
    check_beside_compiler(made)


def test_a_result_under_another_name_is_held_once():
    body = f"""
      %d = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : ({LARGE}, {LARGE}) -> {LARGE}
      %r = stablehlo.reshape %d : ({LARGE}) -> tensor<4096xf32>
      return %r : tensor<4096xf32>"""
    made = partitioned(f"%x: {LARGE}", body, "tensor<4096xf32>")
    assert (made.memory.peak, made.memory.temporaries) == (2 * WHOLE, 0)
    check_beside_compiler(made)


def test_what_nobody_reads_of_a_branch_takes_no_memory():
    body = f"""
      %r:2 = "stablehlo.case"(%i) ({{
        %a = stablehlo.sine %x : {LARGE}
        %b = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<512x512xf32>
        stablehlo.return %a, %b : {LARGE}, tensor<512x512xf32>
      }}, {{
        %a = stablehlo.cosine %x : {LARGE}
        %b = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<512x512xf32>
        stablehlo.return %a, %b : {LARGE}, tensor<512x512xf32>
      }}) : (tensor<i32>) -> ({LARGE}, tensor<512x512xf32>)
      return %r#0 : {LARGE}"""
    made = partitioned(f"%x: {LARGE}, %i: tensor<i32>, %f: tensor<f32>", body, LARGE)
    assert made.memory.peak < 3 * WHOLE
    check_beside_compiler(made)


def test_all_reduces_that_may_wait_for_each_other_are_one():
    """As in a model: those on the way of the others stay apart, those of gradients become one, the last one first."""
    total = lambda name, of: (
        f"""%{name} = "stablehlo.all_reduce"(%{of}) <{{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}}> ({{
      ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %s = stablehlo.add %p, %q : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }}) : ({LARGE}) -> {LARGE}"""
    )
    text = f"""module {{
    sdy.mesh @m = <["x"=2]>
    func.func @main(%x: {LARGE}, %y: {LARGE}) -> ({LARGE}, {LARGE}, {LARGE}) {{
      %r:3 = sdy.manual_computation(%x, %y) in_shardings=[<@m, [{{}}, {{}}]>, <@m, [{{}}, {{}}]>]
        out_shardings=[<@m, [{{}}, {{}}]>, <@m, [{{}}, {{}}]>, <@m, [{{}}, {{}}]>] manual_axes={{"x"}} (%a: {LARGE}, %b: {LARGE}) {{
      {total("forward", "a")}
      %c = stablehlo.dot_general %forward, %b, contracting_dims = [1] x [0] : ({LARGE}, {LARGE}) -> {LARGE}
      {total("first", "c")}
      %d = stablehlo.dot_general %c, %b, contracting_dims = [1] x [0] : ({LARGE}, {LARGE}) -> {LARGE}
      {total("second", "d")}
      sdy.return %forward, %first, %second : {LARGE}, {LARGE}, {LARGE}
      }} : ({LARGE}, {LARGE}) -> ({LARGE}, {LARGE}, {LARGE})
      return %r#0, %r#1, %r#2 : {LARGE}, {LARGE}, {LARGE}
    }} }}"""  # noqa: E501
    moments = [m.what for m in collectives.partition(propagation.run(text)).memory.moments]
    assert [m.removeprefix("stablehlo.") for m in moments if "all_reduce" in m or "dot" in m] == [
        "all_reduce", "dot_general", "dot_general", "all_reduce", "all_reduce",
    ]  # fmt: skip


SQUARE = "tensor<64x64xf32>"


def a_loop_that_adds(each: str, made: str) -> str:
    """A loop of `%n` trips that adds `%e`, which `made` makes in it, to what it carries."""
    return """
      %z = stablehlo.constant dense<0> : tensor<i32>
      %o = stablehlo.constant dense<1> : tensor<i32>
      %r:2 = stablehlo.while(%i = %z, %y = %x) : tensor<i32>, EACH
      cond {
        %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        MADE
        %s = stablehlo.add %e, %y : EACH
        %j = stablehlo.add %i, %o : tensor<i32>
        stablehlo.return %j, %s : tensor<i32>, EACH
      }
      return %r#1 : EACH""".replace("MADE", made).replace("EACH", each)


AS_COMPILED = {  # arguments, results, the program, bytes of temporaries
    "one kernel with two reductions": ("%x: tensor<64x3xf32>, %y: tensor<64x3xf32>", "tensor<64x3xf32>", """
      %z = stablehlo.constant dense<0.0> : tensor<f32>
      %a = stablehlo.broadcast_in_dim %x, dims = [0, 2] : (tensor<64x3xf32>) -> tensor<64x64x3xf32>
      %b = stablehlo.broadcast_in_dim %y, dims = [1, 2] : (tensor<64x3xf32>) -> tensor<64x64x3xf32>
      %d = stablehlo.subtract %a, %b : tensor<64x64x3xf32>
      %s = stablehlo.multiply %d, %d : tensor<64x64x3xf32>
      %r = stablehlo.reduce(%s init: %z) applies stablehlo.add across dimensions = [2]
         : (tensor<64x64x3xf32>, tensor<f32>) -> tensor<64x64xf32>
      %q = stablehlo.rsqrt %r : tensor<64x64xf32>
      %w = stablehlo.broadcast_in_dim %q, dims = [0, 1] : (tensor<64x64xf32>) -> tensor<64x64x3xf32>
      %e = stablehlo.multiply %d, %w : tensor<64x64x3xf32>
      %f = stablehlo.reduce(%e init: %z) applies stablehlo.add across dimensions = [1]
         : (tensor<64x64x3xf32>, tensor<f32>) -> tensor<64x3xf32>
      return %f : tensor<64x3xf32>""", 0.0),
    "a product over one element": ("%x: tensor<64x1xf32>, %y: tensor<1x64xf32>, %w: SQUARE", "SQUARE", """
      %a = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
         : (tensor<64x1xf32>, tensor<1x64xf32>) -> SQUARE
      %b = stablehlo.add %a, %w : SQUARE
      %c = stablehlo.dot_general %b, %w, contracting_dims = [1] x [0] : (SQUARE, SQUARE) -> SQUARE
      return %c : SQUARE""", 4.0 * 64 * 64),
    "products of narrow floats": ("%x: tensor<64x64xbf16>, %w: SQUARE", "SQUARE", """
      %a = stablehlo.convert %w : (SQUARE) -> tensor<64x64xbf16>
      %b = stablehlo.dot_general %x, %a, contracting_dims = [1] x [0]
         : (tensor<64x64xbf16>, tensor<64x64xbf16>) -> tensor<64x64xbf16>
      %c = stablehlo.convert %b : (tensor<64x64xbf16>) -> SQUARE
      %d = stablehlo.tanh %c : SQUARE
      return %d : SQUARE""", 2 * 4.0 * 64 * 64),
    "what does not change in a loop": (
        "%x: SQUARE, %n: tensor<i32>", "SQUARE",
        a_loop_that_adds("SQUARE", "%e = stablehlo.exponential %x : SQUARE"), 4.0 * 64 * 64,
    ),
    "a vector that does not change in a loop": (
        "%x: tensor<1x4096xf32>, %n: tensor<i32>", "tensor<1x4096xf32>",
        a_loop_that_adds("tensor<1x4096xf32>", "%e = stablehlo.exponential %x : tensor<1x4096xf32>"), 4.0 * 4096,
    ),
    "what is the same along a dimension and does not change in a loop": (
        "%x: tensor<32x32x32xf32>, %w: tensor<1x32x32xf32>, %n: tensor<i32>", "tensor<32x32x32xf32>",
        a_loop_that_adds("tensor<32x32x32xf32>", """
        %b = stablehlo.broadcast_in_dim %w, dims = [0, 1, 2] : (tensor<1x32x32xf32>) -> tensor<32x32x32xf32>
        %e = stablehlo.exponential %b : tensor<32x32x32xf32>"""), 4.0 * 32 * 32,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", AS_COMPILED)
def test_as_the_compiler_simplifies(case):
    arguments, results, body, temporaries = (
        each.replace("SQUARE", SQUARE) if isinstance(each, str) else each for each in AS_COMPILED[case]
    )
    made = partitioned(arguments, body, results)
    assert made.memory.temporaries == pytest.approx(temporaries, abs=64)
    check_beside_compiler(made)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f8E4M3FN", "f4E2M1FN"])
def test_products_of_narrow_floats_are_multiplied_as_f32(dtype):
    """What is read, what one product gives another, and what is converted into a result."""
    narrow, wide = f"tensor<64x64x{dtype}>", 4.0 * 64 * 64
    product = f"contracting_dims = [1] x [0] : ({narrow}, {narrow}) -> {narrow}"
    one = f"%p = stablehlo.dot_general %x, %y, {product}\n"
    three = f"{one} %q = stablehlo.dot_general %p, %y, {product}\n %r = stablehlo.dot_general %q, %x, {product}\n"
    for body, result, temporaries in ((one, "%p", 3 * wide), (three, "%r", 4 * wide)):
        made = partitioned(f"%x: {narrow}, %y: {narrow}", f"{body} return {result} : {narrow}", narrow)
        assert made.memory.temporaries == temporaries
        check_beside_compiler(made)


@pytest.mark.parametrize(("dtype", "wide"), [("bf16", 4), ("f16", 0), ("f8E5M2", 2)])
def test_sums_over_devices_of_narrow_floats_are_those_of_wider_ones(dtype, wide):
    """bfloat16 is added up as f32, floats of one byte as f16, and f16 as it is."""
    import jax

    layout = '[{"data", "model"}, {}]'
    text = f"""sdy.mesh @mesh = <["data"=4, "model"=2]>
    func.func @main(%x: tensor<512x64x{dtype}> {{sdy.sharding = #sdy.sharding<@mesh, {layout}>}})
      -> tensor<64x64x{dtype}> {{
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, {layout}>] out_shardings=[<@mesh, [{{}}, {{}}]>]
      manual_axes={{"data", "model"}} (%p: tensor<64x64x{dtype}>) {{
      %1 = "stablehlo.all_reduce"(%p) ({{
        ^bb0(%a: tensor<{dtype}>, %b: tensor<{dtype}>):
          %c = stablehlo.add %a, %b : tensor<{dtype}>
          stablehlo.return %c : tensor<{dtype}>
      }}) {{replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>}}
        : (tensor<64x64x{dtype}>) -> tensor<64x64x{dtype}>
      sdy.return %1 : tensor<64x64x{dtype}> }} : (tensor<512x64x{dtype}>) -> tensor<64x64x{dtype}>
    return %0 : tensor<64x64x{dtype}> }}"""
    made = collectives.partition(propagation.run(text))
    assert made.memory.temporaries == 2 * wide * 64 * 64
    devices = jax.devices()[:8]
    compiled = jaxlib_api.compile_and_load(made.as_text(), devices, jaxlib_api.compile_options(devices))
    assert made.memory.peak == pytest.approx(memory_stats_of(compiled).device_size_in_bytes, abs=KIB)


def test_copies_that_are_written_over_are_made_early():
    """Two sums begin with the same zeros: both copies of them are there before either is written."""
    args = "%u: tensor<8x64xf32>, %i: tensor<8x1xi32>"
    one = """%RES = "stablehlo.scatter"(%zeros, %i, %WHAT) ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %c = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %c : tensor<f32>
      }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
          scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}
        : (tensor<64x64xf32>, tensor<8x1xi32>, tensor<8x64xf32>) -> tensor<64x64xf32>
    """
    reduced = """%RES = stablehlo.reduce(%FROM init: %z) applies stablehlo.minimum across dimensions = [0, 1]
        : (tensor<64x64xf32>, tensor<f32>) -> tensor<f32>
    """
    body = "%z = stablehlo.constant dense<0.0> : tensor<f32>\n"
    body += "%zeros = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> tensor<64x64xf32>\n"
    body += "%v = stablehlo.sine %u : tensor<8x64xf32>\n"
    body += one.replace("RES", "p").replace("WHAT", "v") + reduced.replace("RES", "m").replace("FROM", "p")
    body += "%f = stablehlo.broadcast_in_dim %m, dims = [] : (tensor<f32>) -> tensor<8x64xf32>\n"
    body += one.replace("RES", "q").replace("WHAT", "f") + reduced.replace("RES", "n").replace("FROM", "q")
    made = partitioned(args, body + "return %n : tensor<f32>", "tensor<f32>")
    check_beside_compiler(made)


def test_a_scan_is_not_computed_again_without_bound():
    """Halves of halves: computed where they are read, the first would be computed for each of many readers."""
    body, name, n = "", "x", 8192
    for level in range(7):
        half = f"tensor<{n // 2}xf32>"
        body += f"""%e{level} = stablehlo.slice %{name} [0:{n}:2] : (tensor<{n}xf32>) -> {half}
        %o{level} = stablehlo.slice %{name} [1:{n}:2] : (tensor<{n}xf32>) -> {half}
        %p{level} = stablehlo.multiply %e{level}, %o{level} : {half}
        %s{level} = stablehlo.add %p{level}, %e{level} : {half}
        """
        name, n = f"s{level}", n // 2
    made = partitioned("%x: tensor<8192xf32>", body + "return %s6 : tensor<64xf32>", "tensor<64xf32>")
    assert made.memory.temporaries > KIB
    check_beside_compiler(made)


PROGRAMS = [
    "mlp", "fsdp scan", "sequence-parallel block", "decode with grouped queries", "recurrent network", "roll",
    "permutation", "ring attention", "convolution gradient", "mixture of experts", "decode, cache sharded by position",
    "gradient accumulation", "running sum", "mlp gradient", "data-parallel sgd", "trace and triangle",
    "merge into the minor", "matrix product in two dimensions", "attention with heads moved in and out",
    "Maxwell's equations", "strided convolution split in space, gradient",
    "patch embedding, gradient", "layer norm over a sharded dimension", "attention block, heads and batch",
    "orthogonal update",
]  # fmt: skip


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
    assert 0.9 * needed <= made.memory.peak <= 1.1 * needed
