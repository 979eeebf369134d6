"""Collectives that only move carry bfloat16 as integers: compilers for CPUs would carry f32."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import collectives
import propagation

from .. import harness
from ..text_side import MESH, _plain, over

MOVES = {
    "permute": ("stablehlo.reverse %y, dims = [0] : tensor<64x16xbf16>", over("x", "")),
    "gather": ("stablehlo.negate %y : tensor<64x16xbf16>", over("", "")),
    "exchange": ("stablehlo.negate %y : tensor<64x16xbf16>", over("", "x")),
}


def text(name: str) -> str:
    line, after = MOVES[name]
    return f"""{MESH}
func.func @main(%x: tensor<64x16xbf16> {over("x", "")}) -> (tensor<64x16xbf16> {after}) {{
  %y = stablehlo.add %x, %x : tensor<64x16xbf16>
  %z = {line}
  %r = stablehlo.multiply %z, %z : tensor<64x16xbf16>
  return %r : tensor<64x16xbf16>
}}"""


@pytest.mark.smoke
@pytest.mark.parametrize("name", MOVES)
def test_half_the_bytes_of_what_the_compiler_would_send(name):
    x = np.random.default_rng(0).normal(size=(64, 16)).astype(ml_dtypes.bfloat16)
    result = collectives.partition(propagation.run(text(name)))
    (want,) = harness.one_device(_plain(text(name)), [x])
    (got,), compiled = harness.run_partitioned(result, [x], [x.shape])
    np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))
    sent, _ = harness.hlo_bytes(compiled.hlo(), 8)
    assert 0 < sent == result.plan.bytes


def test_compilers_that_have_the_type_are_given_it():
    known = propagation.run(text("gather"))
    assert "bitcast_convert" in collectives.partition(known).as_text()
    assert "bitcast_convert" not in collectives.partition(known, topology="v5e:2x4").as_text()
    assert "bitcast_convert" in collectives.partition(known, compiler="cpu").as_text()
    assert "bitcast_convert" not in collectives.partition(known, compiler="cuda").as_text()
    assert "bitcast_convert" in collectives.partition(known, topology="cpu", compiler="tpu").as_text()


def test_what_contractions_read_is_gathered_as_they_want_it():
    """There the compiler has f32 in any case; integers beside it would take further memory."""
    types = "(tensor<64x16xbf16>, tensor<16x64xbf16>) -> tensor<64x64xbf16>"
    program = f"""{MESH}
func.func @main(%x: tensor<64x16xbf16> {over("x", "")}, %w: tensor<16x64xbf16> {over("x", "")})
    -> (tensor<64x64xbf16> {over("x", "")}) {{
  %v = stablehlo.tanh %w : tensor<16x64xbf16>
  %r = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : {types}
  return %r : tensor<64x64xbf16>
}}"""
    result = collectives.partition(propagation.run(program))
    assert set(result.plan.counts) == {"all_gather"} and "bitcast_convert" not in result.as_text()
