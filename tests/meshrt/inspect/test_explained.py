"""Why collectives run: what is named is replayed, until nothing is sent any more."""

from __future__ import annotations

import functools
from typing import NamedTuple

import pytest

import collectives
import propagation
from collectives.ir.program import Collective
from collectives.module import PartitionedProgram
from meshrt.errors import InspectError
from meshrt.pipeline.explain_sent import FAR, chains_behind, explained
from meshrt.pipeline.names import argument_names, output_names
from propagation.annotation_sites import Said, annotations_of, origin_of
from propagation.program import read
from tests.collectives.test_alternatives import case

HEAD = 'sdy.mesh @mesh = <["data"=4, "model"=2]>\n'
SPEC = "{sdy.sharding = #sdy.sharding<@mesh, [%s]>}"
MLP = (
    HEAD
    + f"""func.func @main(
    %x: tensor<32x16xf32> {SPEC % '{"data"}, {}'}, %w: tensor<16x64xf32> {SPEC % '{}, {"model"}'},
    %u: tensor<64x8xf32>) -> tensor<32x8xf32> {{
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
       : (tensor<32x16xf32>, tensor<16x64xf32>) -> tensor<32x64xf32>
  %1 = stablehlo.tanh %0 : tensor<32x64xf32>
  %2 = stablehlo.dot_general %1, %u, contracting_dims = [1] x [0]
       : (tensor<32x64xf32>, tensor<64x8xf32>) -> tensor<32x8xf32>
  %3 = sdy.sharding_constraint %2 <@mesh, [{{}}, {{}}]> : tensor<32x8xf32>
  return %3 : tensor<32x8xf32> }}"""
)
MANUAL = (
    HEAD
    + f"""func.func @main(%x: tensor<32xf32> {SPEC % '{"data"}'}) -> tensor<8xf32> {{
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{{"data"}}]>] out_shardings=[<@mesh, [{{}}]>]
      manual_axes={{"data"}} (%y: tensor<8xf32>) {{
    %1 = "stablehlo.all_reduce"(%y) <{{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[0, 2, 4, 6], [1, 3, 5, 7]]> : tensor<2x4xi64>, use_global_device_ids}}> ({{
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %s = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %s : tensor<f32>
    }}) : (tensor<8xf32>) -> tensor<8xf32>
    sdy.return %1 : tensor<8xf32>
  }} : (tensor<32xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32> }}"""
)


class Program(NamedTuple):
    """A module without some of its annotations."""

    made: PartitionedProgram
    said: list[Said]

    @property
    def propagated(self):
        return self.made.propagated

    def lines(self, query: str = "collectives") -> list[str]:
        names = argument_names(self.propagated), output_names(self.propagated)
        return explained(self.made, self.propagated, query, *names)

    def behind(self, collective: Collective) -> list[Said]:
        """The annotations at the ends of the chains of a collective's axes."""
        axes = frozenset(a.name for a in self.made.axes(collective))
        ends = [chain[-1] for chain in chains_behind(self.propagated, collective.op, axes)]
        found = [origin_of(self.propagated, step, self.said) for step in ends]
        assert None not in found, ends
        return found


def program(text: str, without: tuple[Said, ...] = ()) -> Program:
    def edit(read_program, shardings):
        for said in without:
            said.saying(None)(read_program, shardings)

    made = collectives.partition(propagation.run(text, annotate=edit, xla_order=True))
    return Program(made, annotations_of(read(text), edit))


@pytest.mark.smoke
def test_each_collective_has_the_annotations_behind_its_axes():
    lines = program(MLP).lines()
    assert lines[0] == "all_reduce over model, 256 B (-:8): dot_general: partial sum"
    assert any("of arg1 (f32[16,64]) is annotated with axis 'model' by the user" in line for line in lines)
    gathered = lines[lines.index("all_gather over data, 768 B (-:10): sdy.reshard: annotation") :]
    assert "of arg0 (f32[32,16]) is annotated with axis 'data' by the user" in gathered[-1]
    assert [line for line in gathered[1:] if not line.startswith("  ")] == []


def test_a_kind_a_line_and_what_sends_nothing():
    whole = program(MLP)
    assert whole.lines("all_gather") == [x for x in whole.lines() if x in whole.lines("all_gather")] != []
    assert {*whole.lines("-:8")} > {*whole.lines("all_reduce")}  # what is computed there has chains too
    assert whole.lines("all_to_all") == ["nothing is sent: the program runs no all_to_all"]
    with pytest.raises(InspectError, match="nothing is called 'alltoall'"):
        whole.lines("alltoall")


def test_a_layout_that_another_reader_asked_for_is_its_annotation():
    """The sum is made once, in the parts that the constraint wants; the second result gathers these."""
    text = """sdy.mesh @m = <["a"=2, "b"=4]>
      func.func @main(%x: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@m, [{}, {}], unreduced={"a"}>})
          -> (tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@m, [{"b"}, {}]>},
              tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@m, [{}, {}]>}) {
        %0 = sdy.sharding_constraint %x <@m, [{"b"}, {}]> : tensor<16x8xf32>
        %1 = sdy.propagation_barrier %x allowed_direction=NONE : tensor<16x8xf32>
        return %0, %1 : tensor<16x8xf32>, tensor<16x8xf32> }"""
    lines = program(text).lines()
    assert any("is annotated as a partial sum over 'a' by the user" in line for line in lines)
    assert not any("no annotation" in line for line in lines)


def test_what_the_partitioner_splits_by_itself_has_no_annotation():
    """Random numbers that every device would draw alike are drawn in parts where that sends less than one draws all."""
    lines = program("""sdy.mesh @m = <["a"=2, "c"=6]>
      func.func @main(%x: tensor<12xf32> {sdy.sharding = #sdy.sharding<@m, [{"a"}]>}) -> (tensor<8x8x16x4xf32>) {
        %n = stablehlo.constant dense<[8, 8, 16, 4]> : tensor<4xi64>
        %a = stablehlo.constant dense<1.0> : tensor<f32>
        %b = stablehlo.constant dense<1.5> : tensor<f32>
        %0 = "stablehlo.rng"(%b, %a, %n) {rng_distribution = #stablehlo<rng_distribution UNIFORM>}
             : (tensor<f32>, tensor<f32>, tensor<4xi64>) -> tensor<8x8x16x4xf32>
        return %0 : tensor<8x8x16x4xf32> }""").lines()
    assert lines[1::2] == [
        "  no annotation asks for it: the partitioner splits what all devices would compute alike"
    ] * (len(lines) // 2)


def test_of_what_nothing_near_asks_for_the_nearest_that_is_split_so_is_named():
    """The bound of random numbers comes from an argument that is split over the axis over which they are drawn in
    parts, but lies further away than is looked at first: that no annotation names the axis would be wrong, and that
    this one is the cause, too."""
    steps = "".join(f"%t{i + 1} = stablehlo.tanh %t{i} : tensor<f32>\n" for i in range(FAR))
    text = f"""sdy.mesh @m = <["a"=2]>
      func.func @main(%x: tensor<12xf32> {{sdy.sharding = #sdy.sharding<@m, [{{"a"}}]>}}) -> (tensor<8x8x16x4xf32>) {{
        %n = stablehlo.constant dense<[8, 8, 16, 4]> : tensor<4xi64>
        %z = stablehlo.constant dense<0.0> : tensor<f32>
        %b = stablehlo.constant dense<1.0> : tensor<f32>
        %t0 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0]
             : (tensor<12xf32>, tensor<f32>) -> tensor<f32>
{steps} %0 = "stablehlo.rng"(%b, %t{FAR}, %n) {{rng_distribution = #stablehlo<rng_distribution UNIFORM>}}
             : (tensor<f32>, tensor<f32>, tensor<4xi64>) -> tensor<8x8x16x4xf32>
        return %0 : tensor<8x8x16x4xf32> }}"""
    lines = program(text).lines("all_gather")
    assert lines[1] == "  nothing near is split over 'a'; of what is connected with it, the nearest that is:"
    assert lines[-1] == "  dimension 0 of arg0 (f32[12]) is annotated with axis 'a' by the user (-:2)"
    (said,) = annotations_of(read(text))
    without = program(text, (said,)).lines("all_gather")
    assert without[0] == lines[0] and "no annotation asks for it" in without[1]


def test_what_the_program_sends_itself_is_said_so():
    head, why = program(MANUAL).lines("all_reduce")
    assert "all_reduce" in head and "the program itself asks for it, in a manual computation" in why


@pytest.mark.parametrize("text", [MLP, case().text], ids=["mlp", "layouts that send less"])
def test_without_what_is_named_nothing_is_sent(text):
    """Annotations may say one thing twice; without those that are named, and those that are named then, it ends."""
    make = functools.lru_cache(lambda *without: program(text, without))
    first = make()
    behind = dict.fromkeys(tuple(first.behind(s.collective)) for s in first.made.sent())
    assert () not in behind
    gone: tuple[Said, ...] = ()
    for _ in range(8):
        now = make(*gone)
        named = dict.fromkeys(said for s in now.made.sent() for said in now.behind(s.collective))
        if not now.made.plan.entries:
            break
        assert named, now.lines()
        gone = (*gone, *named)
    assert not now.made.plan.entries


def test_arguments_of_layouts_that_send_less_keep_their_own_reasons():
    """Another propagation is given what the first one decided of arguments: that is nobody's annotation."""
    text = (
        HEAD
        + f"""func.func @main(%x: tensor<8x16xf32>) -> (tensor<8x16xf32> {SPEC % '{"data"}, {}'}) {{
  %0 = stablehlo.tanh %x : tensor<8x16xf32>
  return %0 : tensor<8x16xf32> }}"""
    )
    first = propagation.run(text)

    def hold(read_program, shardings):
        (tanh,) = (op for op in read_program.ops() if op.name == "stablehlo.tanh")
        shardings.set(tanh.results[0], first.sharding(first.program.main.returned[0]))

    again = first.again(hold)
    assert [str(s) for s in again.explain("arg0", 0)[0]] == [str(s) for s in first.explain("arg0", 0)[0]]
    (chain,) = again.explain(again.program.main.returned[0], 0)
    assert chain[0].is_chosen and [str(s) for s in chain[1:]] == [str(s) for s in first.explain("result0", 0)[0]]


CALLED = (
    HEAD
    + """func.func @main(%x: tensor<32x16xf32>) -> tensor<32x16xf32> {
  %0 = stablehlo.sine %x : tensor<32x16xf32>
  %1 = call @layer(%0) : (tensor<32x16xf32>) -> tensor<32x16xf32>
  return %1 : tensor<32x16xf32> }
func.func private @layer(%h: tensor<32x16xf32>) -> tensor<32x16xf32> {
  %0 = sdy.sharding_constraint %h <@mesh, [{"data"}, {}]> : tensor<32x16xf32>
  %1 = stablehlo.tanh %0 : tensor<32x16xf32>
  return %1 : tensor<32x16xf32> }"""
)


def test_a_constraint_in_a_called_function_is_told_where_it_stands():
    lines = program(CALLED).lines("arg0:0")
    assert "through the call of layer (-:4) from dimension 0 of f32[32,16] of argument 0 of layer" in lines[1]
    assert lines[-1].endswith("of the constraint (-:7) is annotated with axis 'data' by the user (-:7), in layer")
    assert not any("loop" in line or "reshard" in line for line in lines)


def test_a_collective_of_a_constraint_names_what_it_asks_for():
    lines = program(MLP).lines("all_gather")
    assert lines[1] == "  the constraint (-:10) asks for f32[32,8] with no dimension split"


def test_partial_sums_that_are_annotated_are_named():
    text = (
        HEAD
        + """func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}], unreduced={"data"}>})
    -> tensor<8x16xf32> {
  %c = stablehlo.constant dense<0.5> : tensor<8x16xf32>
  %0 = stablehlo.maximum %x, %c : tensor<8x16xf32>
  return %0 : tensor<8x16xf32> }"""
    )
    lines = program(text).lines("collectives")
    assert lines[0].startswith(("all_reduce over data", "reduce_scatter over data"))
    assert lines[1] == "  arg0 (f32[8,16]) is annotated as a partial sum over 'data' by the user (-:2)"


def test_what_runs_in_a_composite_has_the_reasons_of_what_enters():
    spec = SPEC % '{"data"}, {}'
    text = (
        HEAD
        + f"""func.func @main(%x: tensor<8x16xf32> {spec}) -> tensor<8x16xf32> {{
  %0 = stablehlo.composite "my.op" %x {{decomposition = @inside}} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32> }}
func.func private @inside(%y: tensor<8x16xf32>) -> tensor<8x16xf32> {{
  %0 = stablehlo.negate %y : tensor<8x16xf32>
  return %0 : tensor<8x16xf32> }}"""
    )
    made = program(text)
    (negate,) = (op for op in made.propagated.program.ops() if op.name == "stablehlo.negate")
    (chain,) = chains_behind(made.propagated, negate, frozenset(["data"]))
    assert (chain[-1].value.number, chain[-1].dim, chain[-1].op) == (0, 0, None)


def test_every_axis_of_a_collective_is_looked_for():
    """One axis is near; the other one splits only what was computed before."""
    text = (
        HEAD
        + f"""func.func @main(%x: tensor<8x16xf32> {SPEC % '{"data"}, {"model"}'}) -> tensor<8x16xf32> {{
  %0 = stablehlo.tanh %x : tensor<8x16xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{{"data"}}, {{}}]> : tensor<8x16xf32>
  %2 = stablehlo.sine %1 : tensor<8x16xf32>
  return %2 : tensor<8x16xf32> }}"""
    )
    made = program(text)
    (sine,) = (op for op in made.propagated.program.ops() if op.name == "stablehlo.sine")
    found = chains_behind(made.propagated, sine, frozenset(["data", "model"]))
    assert {chain[0].axis.name for chain in found} == {"data", "model"}


def test_what_ends_a_branch_has_the_reasons_of_its_results():
    text = (
        HEAD
        + f"""func.func @main(%p: tensor<i1>, %x: tensor<8x16xf32>) -> (tensor<8x16xf32> {SPEC % '{"data"}, {}'}) {{
  %0 = "stablehlo.if"(%p) ({{
    stablehlo.return %x : tensor<8x16xf32>
  }}, {{
    %1 = stablehlo.tanh %x : tensor<8x16xf32>
    stablehlo.return %1 : tensor<8x16xf32>
  }}) : (tensor<i1>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32> }}"""
    )
    made = program(text)
    ends = [op for op in made.propagated.program.ops() if op.name == "stablehlo.return"]
    assert all(chains_behind(made.propagated, op, frozenset(["data"])) for op in ends)
