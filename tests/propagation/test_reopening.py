"""What propagation wrote is read again as it was before: only what was said then is said."""

from __future__ import annotations

import pytest

import collectives
import propagation
from propagation.annotation_sites import one_after_other
from propagation.reopening import Reading, decided, run_opened
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
