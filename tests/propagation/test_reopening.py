"""What propagation wrote is read again as it was before: only what was said then is said."""

from __future__ import annotations

import pytest

import collectives
import propagation
from propagation import reopening
from propagation.annotation_sites import one_after_other
from propagation.errors import PropagationError
from propagation.model import TensorSharding
from propagation.overrides import set_argument
from propagation.reopening import Reading, decided, reading_of, run_opened
from tests.collectives import harness
from tests.collectives.generator import random_program
from tests.collectives.jax_side import Case
from tests.collectives.test_alternatives import case

HEAD = 'sdy.mesh @mesh = <["x"=4, "y"=2]>\n'
LINE = (
    HEAD
    + """func.func @main(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x8xf32> {
  %0 = stablehlo.tanh %x : tensor<8x8xf32>
  return %0 : tensor<8x8xf32> }"""
)
CONSTRAINED = (
    HEAD
    + """func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"y"}, {}]> : tensor<8x8xf32>
  %2 = stablehlo.add %x, %1 : tensor<8x8xf32>
  return %2 : tensor<8x8xf32> }"""
)


def said(propagated):
    return decided(propagated.program, propagated.shardings)


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("text", [LINE, CONSTRAINED, case().text], ids=["line", "constrained", "alternatives"])
def test_what_was_decided_is_decided_again_and_explained_from_the_arguments(text, order):
    first = propagation.run(text, xla_order=True)
    again = run_opened(first.as_text(), xla_order=order)
    assert said(again) == said(first) and len(again.log)
    assert collectives.partition(again).plan.bytes == collectives.partition(first).plan.bytes


def test_a_program_of_which_less_may_be_sent_sends_as_little_when_it_is_read_again():
    closed = propagation.run(case().text).as_text()
    sent = [collectives.partition(read(closed)).plan.bytes for read in (run_opened, propagation.run)]
    assert sent[0] < sent[1]  # as it stands nothing else may be tried


def test_what_somebody_wrote_otherwise_stays():
    theirs = LINE.replace("tanh %x :", 'tanh %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"y"}]>]>} :')
    assert said(run_opened(theirs)) == said(propagation.run(theirs))
    assert "y" in str(run_opened(theirs).result_shardings[0])


def test_what_somebody_wrote_otherwise_in_a_function_stays():
    """Functions have new values once they were propagated; they are compared with what they say as well."""
    inside, rows = '[{}, {"y"}]', '[{"x"}, {}]'
    theirs = f"""{HEAD}
func.func @main(%x: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, {rows}>}})
    -> (tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, {rows}>}}) {{
  %0 = call @f(%x) {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {rows}>]>}} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32> }}
func.func private @f(%x: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, {rows}>}})
    -> (tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, {rows}>}}) {{
  %0 = stablehlo.tanh %x {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {inside}>]>}} : tensor<8x8xf32>
  return %0 : tensor<8x8xf32> }}"""
    tanh = [s for s in said(propagation.run(theirs)) if s[0] == "stablehlo.tanh"]
    assert "y" in str(tanh) and said(run_opened(theirs)) == said(propagation.run(theirs))


def test_functions_that_are_called_are_opened_too():
    text = (
        HEAD
        + """func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<8xf32> {
      %0 = call @f(%x) : (tensor<8xf32>) -> tensor<8xf32>
      return %0 : tensor<8xf32> }
    func.func private @f(%x: tensor<8xf32>) -> tensor<8xf32> {
      %0 = stablehlo.tanh %x : tensor<8xf32>
      return %0 : tensor<8xf32> }"""
    )
    first = propagation.run(text)
    again = run_opened(first.as_text())
    assert len(again.log) and said(again) == said(first)
    assert [str(s) for s in again.explain("result0", 0)[0]][-1].startswith("dimension 0 of ")


def test_a_reading_is_repeated_with_changes():
    closed = propagation.run(LINE).as_text()
    reading = Reading.of(run_opened(closed))

    def drop(program, shardings):
        shardings.set(program.main.args[0], None)
        shardings.results[program.main][0] = None

    assert reading.run(closed, drop).result_shardings == [None]
    assert propagation.run(closed, annotate=drop).result_shardings != [None]
    assert one_after_other(None, None)(None, None) is None


# Six rows over four devices: inside the two that are left of "x" are split, the argument is cut to what divides.
CUT = """sdy.mesh @twin = <["x"=4, "y"=2]>
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%x: tensor<6x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<6x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}, tensor<6x8xf32>) {
  %0 = stablehlo.tanh %x : tensor<6x8xf32>
  %1 = stablehlo.sine %0 : tensor<6x8xf32>
  return %0, %1 : tensor<6x8xf32>, tensor<6x8xf32> }"""


def test_what_was_asked_for_a_boundary_that_it_does_not_divide_is_read_again():
    first = propagation.run(CUT)
    text = first.as_text()
    assert text.count("propagation.asked") == 1  # of the argument: "y" divides
    again = run_opened(text)
    assert len(again.log) and said(again) == said(first) and again.arg_shardings == first.arg_shardings
    assert collectives.partition(again).plan.bytes == collectives.partition(first).plan.bytes
    assert again.as_text() == text and propagation.run(text).as_text() == text
    assert "propagation.asked" not in str(collectives.partition(again).module)


def test_what_is_said_instead_of_what_was_cut_holds():
    text = propagation.run(CUT).as_text()
    opened = run_opened(text)
    assert [*opened.shardings.asked] == [opened.program.main.args[0], (opened.program.main, 1)]
    sharding = opened.arg_shardings[0]
    assert sharding is not None
    whole = TensorSharding.replicated_on(sharding.mesh, 2)
    again = Reading.of(opened).run(text, lambda program, shardings: set_argument(program, shardings, 0, whole))
    assert again.arg_shardings == [whole] and [*again.shardings.asked] == [(again.program.main, 1)]


def test_xlas_partitioner_takes_what_is_written_of_boundaries():
    """It splits the argument as it does for the program itself."""

    def parameter(text):
        compiled = harness.Compiled(text, 8, by_xla=True).exe.get_hlo_text()
        return next(line for line in compiled.splitlines() if "parameter(0), sharding=" in line)

    text = propagation.run(CUT).as_text()
    assert "propagation.asked" in text and "f32[3,8]" in parameter(CUT) and parameter(text) == parameter(CUT)


@pytest.mark.parametrize("now", ['[{}, {"y"}]', "[{}, {}]", '[{"y"}, {}]'])
def test_what_somebody_says_since_something_was_cut_counts(now):
    """The text is changed, and beside the new annotation stands what was asked for before."""
    mark = 'propagation.asked = #sdy.sharding<@twin, [{"x"}, {}]>, '
    left = mark + 'sdy.sharding = #sdy.sharding<@twin, [{"x":(1)2}, {}]>'
    text = propagation.run(CUT).as_text()
    assert left in text
    text = text.replace(left, f"{mark}sdy.sharding = #sdy.sharding<@twin, {now}>")
    for read in (run_opened, propagation.run):
        assert read(text).as_text() == read(text.replace(mark, "")).as_text()


@pytest.mark.parametrize("asked", ['#sdy.sharding<@mesh, [{"x"}]>', "#sdy.sharding<@no, [{}, {}]>", "3 : i32"])
def test_a_mark_that_somebody_else_wrote_is_checked(asked):
    text = LINE.replace("{sdy.sharding", "{propagation.asked = " + asked + ", sdy.sharding")
    with pytest.raises(PropagationError):
        propagation.run(text)


DECIDED = (
    HEAD
    + """func.func @main(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %y: tensor<8x8xf32>)
    -> (tensor<8x8xf32>, tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {}]>}) {
  %0 = stablehlo.add %x, %y : tensor<8x8xf32>
  %1 = stablehlo.tanh %0 : tensor<8x8xf32>
  return %0, %1 : tensor<8x8xf32>, tensor<8x8xf32> }"""
)


def test_what_propagation_decided_at_the_boundary_is_decided_again():
    text = propagation.run(DECIDED).as_text()
    assert text.count("propagation.decided") == 2 and text.count("propagation.asked") == 1
    opened = run_opened(text)
    log, args = opened.log, opened.program.main.args
    assert log.initial(log.slot_of(args[0])) is not None and log.initial(log.slot_of(args[1])) is None
    assert opened.as_text() == text and propagation.run(text).as_text() == text
    assert "propagation." not in str(collectives.partition(opened).module)


@pytest.mark.parametrize("now", ['[{}, {"y"}]', '[{"y"}, {}]', "[{}, {}]"])
def test_what_somebody_says_where_propagation_had_decided_holds(now):
    """Of an argument, and of a result."""
    text = propagation.run(DECIDED).as_text()
    mark = "propagation.decided, sdy.sharding = #sdy.sharding<@mesh, "
    for number in (1, 2):
        pieces = text.split(mark + '[{"x"}, {}]')
        changed = (
            (mark + '[{"x"}, {}]').join(pieces[:number]) + mark + now + (mark + '[{"x"}, {}]').join(pieces[number:])
        )
        opened = run_opened(changed)
        said = opened.arg_shardings[1] if number == 1 else opened.result_shardings[0]
        assert said is not None and said.to_text() == f"#sdy.sharding<@mesh, {now}>"


@pytest.mark.parametrize("seed", [39, 80, 151, 193, 270, 355, 357])
def test_random_programs_send_what_they_did(seed):
    """Programs of JAX with constraints, whose results nobody annotates."""
    _sends_the_same(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 800, 50))
def test_more_random_programs_send_what_they_did(first):
    for seed in range(first, first + 50):
        _sends_the_same(seed)


def _sends_the_same(seed):
    axes, build, args, specs = random_program(seed)
    first = propagation.run(Case(axes, build, args, specs).text)
    again = run_opened(first.as_text())
    assert collectives.partition(again).plan.bytes == collectives.partition(first).plan.bytes, seed


def test_operations_that_nobody_reads_may_be_gone():
    constraint = '  %1 = sdy.sharding_constraint %x <@mesh, [{}, {"y"}]> : tensor<8x8xf32>\n  return'
    first = propagation.run(LINE.replace("  return", constraint))
    again = run_opened(first.as_text())
    assert len(again.log)
    assert [s for s in said(first) if s[0] == "stablehlo.tanh"] == [s for s in said(again) if s[0] == "stablehlo.tanh"]


def test_a_reading_is_found_without_propagating_what_says_nothing(monkeypatch):
    closed = propagation.run(LINE).as_text()
    assert reading_of(closed, True).annotate is not None
    monkeypatch.setattr(reopening, "run_opened", None)
    assert reading_of(LINE, True) == Reading(None, True)
