"""Calls and functions: the shardings of calls' results, and which copies of functions there are, by which names."""

from __future__ import annotations

import itertools

import pytest

import propagation
from propagation.fuzz import Oracle, compare
from propagation.fuzz.compare import VERSION

from .test_stages import normal

MESHES = """
sdy.mesh @mesh = <["a"=2, "b"=4]>
sdy.mesh @turned = <["a"=2, "b"=4], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>
sdy.mesh @one = <[], device_ids=[1]>
"""
T = "tensor<8xf32>"
RETURNED = {
    "split": '<@mesh, [{"a"}]>',
    "unreduced": '<@mesh, [{}], unreduced={"b"}>',
    "turned": '<@turned, [{"a"}]>',
    "one": "<@one, []>",
    "open": "<@mesh, [{?}]>",
    "none": None,
}
WANTED = [None, ("split", "open"), ("split", "split"), ("turned", "turned"), ("unreduced", "split")]


def _note(*names: str | None) -> str:
    texts = [RETURNED[n] for n in names if n is not None and RETURNED[n] is not None]
    return f" {{sdy.sharding = #sdy.sharding_per_value<[{', '.join(texts)}]>}}" if texts else ""


def _module(returned: tuple[str, str], wanted: tuple[str, str] | None) -> str:
    lines = [
        f"%r{i} = stablehlo.custom_call @unknown(%a{i}){_note(name)} : ({T}) -> {T}" for i, name in enumerate(returned)
    ]
    return f"""{MESHES}
    func.func public @main(%x: {T}, %y: {T}) -> ({T}, {T}) {{
      %0:2 = call @f(%x, %y){_note(*wanted or ())} : ({T}, {T}) -> ({T}, {T})
      return %0#0, %0#1 : {T}, {T} }}
    func.func private @f(%a0: {T}, %a1: {T}) -> ({T}, {T}) {{
      {lines[0]}
      {lines[1]}
      return %r0, %r1 : {T}, {T} }}"""


@pytest.mark.smoke
def test_results_of_calls():
    """What a function returns and what its call wants, over several meshes."""
    compared = 0
    with Oracle() as oracle:
        for returned, wanted in itertools.product(itertools.product(RETURNED, repeat=2), WANTED):
            text = _module(returned, wanted)
            found = compare(text, oracle("closed", text))
            assert not found.is_failure, (returned, wanted, found.detail)
            compared += found.verdict == "agree"
    assert compared == len(RETURNED) ** 2 * len(WANTED)


NESTED = f"""{MESHES}
func.func public @main(%x: {T}) -> ({T}, {T}) {{
  %0 = call @f_0(%x) : ({T}) -> {T}
  %1 = call @f_0(%0) {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{"a"}}]>]>}} : ({T}) -> {T}
  %2 = call @h(%1) : ({T}) -> {T}
  %3 = call @f(%0) : ({T}) -> {T}
  %4 = call @f(%x) : ({T}) -> {T}
  return %2, %4 : {T}, {T} }}
func.func private @f(%x: {T}) -> {T} {{
  %0 = call @g(%x) : ({T}) -> {T}
  %1 = call @g(%0) : ({T}) -> {T}
  %2 = stablehlo.negate %1 : {T}
  return %2 : {T} }}
func.func private @f_0(%x: {T}) -> {T} {{
  %0 = call @g(%x) : ({T}) -> {T}
  %1 = stablehlo.negate %0 {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{"b"}}]>]>}} : {T}
  return %1 : {T} }}
func.func private @h(%x: {T}) -> {T} {{
  %0 = call @f(%x) : ({T}) -> {T}
  return %0 : {T} }}
func.func private @g(%x: {T}) -> {T} attributes {{no_inline, some.text = "kept"}} {{
  %0 = stablehlo.abs %x : {T}
  return %0 : {T} }}"""

CONSTANT = f"""{MESHES}
func.func public @main(%x: {T}) -> ({T}, {T}, {T}) {{
  %c = stablehlo.constant dense<1.0> : {T}
  %0 = call @f(%c) : ({T}) -> {T}
  %1 = call @f(%0) : ({T}) -> {T}
  %2 = stablehlo.add %x, %1 : {T}
  %3 = call @f(%x) : ({T}) -> {T}
  %4 = stablehlo.add %1, %3 : {T}
  return %1, %2, %4 : {T}, {T}, {T} }}
func.func private @f(%x: {T}) -> {T} {{
  %0 = call @g(%x) : ({T}) -> {T}
  %1 = stablehlo.negate %0 : {T}
  return %1 : {T} }}
func.func private @g(%x: {T}) -> {T} {{
  %0 = stablehlo.negate %x : {T}
  return %0 : {T} }}"""

MANUAL = f"""{MESHES}
func.func public @main(%x: {T}) -> ({T}, {T}) {{
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{{"a"}}]>] out_shardings=[<@mesh, [{{"a"}}]>]
      manual_axes={{"a"}} (%p: tensor<4xf32>) {{
    %1 = stablehlo.concatenate %p, %p, dim = 0 : (tensor<4xf32>, tensor<4xf32>) -> {T}
    %2 = func.call @f(%1) : ({T}) -> {T}
    %3 = stablehlo.slice %2 [0:4] : ({T}) -> tensor<4xf32>
    sdy.return %3 : tensor<4xf32>
  }} : ({T}) -> {T}
  %1 = call @f(%0) : ({T}) -> {T}
  %2 = call @f(%1) : ({T}) -> {T}
  return %0, %2 : {T}, {T} }}
func.func private @f(%x: {T}) -> {T} {{
  %0 = stablehlo.negate %x {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{"b"}}]>]>}} : {T}
  return %0 : {T} }}"""


@pytest.mark.parametrize("stage", ["import", "closed", "pipeline"])
@pytest.mark.parametrize("text", [NESTED, CONSTANT, MANUAL], ids=["nested", "constant", "manual"])
def test_copies_of_functions(text, stage):
    with Oracle() as oracle:
        expected = oracle(stage, text)
    assert expected is not None and not expected.startswith("ERROR"), expected
    ours = propagation.run(text, stage, version=VERSION, chlo=False, shardy_faults=True).as_text()
    assert normal(ours) == normal(expected)
