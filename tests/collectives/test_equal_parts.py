"""Dimensions of equal parts, split over devices and cut into the parts: fused projections, gates, rotary embeddings."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives
import propagation
from collectives import alternatives

from .jax_side import Case, check

ROWS, WIDTH, HEADS, DEPTH = 64, 16, 8, 4


def normal(*shape, seed=0, scale=0.3):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def attend(q, k, v):
    scores = jax.nn.softmax(jnp.einsum("bshk,bthk->bhst", q, k), -1)
    return jnp.einsum("bhst,bthk->bshk", scores, v)


def reshaped(x, w, bias, wo):
    b, s, _ = x.shape
    q, k, v = jnp.moveaxis((x @ w + bias).reshape(b, s, 3, HEADS, DEPTH), 2, 0)
    return attend(q, k, v).reshape(b, s, HEADS * DEPTH) @ wo


def sliced(x, w, bias, wo):
    b, s, _ = x.shape
    q, k, v = (t.reshape(b, s, HEADS, DEPTH) for t in jnp.split((x @ w + bias).astype(jnp.float32), 3, axis=-1))
    return attend(q, k, v).reshape(b, s, HEADS * DEPTH) @ wo


def gated(x, w, bias, wo):
    a, b = jnp.split(x @ w + bias, 2, axis=-1)
    return (jax.nn.silu(a) * b) @ wo


def layer(parts, out):
    args = normal(2, ROWS, WIDTH), normal(WIDTH, parts * out), normal(parts * out, seed=1), normal(out, WIDTH, seed=2)
    return args, (P(), P(None, "x"), P("x"), P("x", None)), (P(None, "x"), P("x"), P("x", None))


# The function, its arguments, and the bytes of the output's sum (1.15 times) and of an exchange of the first weight.
LAYERS = {
    "queries, keys and values, reshaped": (reshaped, layer(3, HEADS * DEPTH), 1.15 * 14336 + 1344),
    "queries, keys and values, sliced": (sliced, layer(3, HEADS * DEPTH), 1.15 * 14336 + 1344),
    "a gate beside its values": (gated, layer(2, 64), 1.15 * 14336 + 896),
}


@pytest.mark.parametrize("name", LAYERS)
def test_weights_are_laid_out_anew_and_activations_stay(name):
    function, (args, ins, _), least = LAYERS[name]
    result, sent = check(Case({"x": 8}, lambda _: function, args, ins), rtol=1e-3)
    assert sent <= least
    assert any(row.taken and row.what.startswith("equal parts") for row in result.plan.alternatives)


@pytest.mark.parametrize(
    "name", [pytest.param("queries, keys and values, reshaped", marks=pytest.mark.slow), "a gate beside its values"]
)
def test_gradients_are_laid_out_anew_and_cotangents_stay(name):
    function, (args, ins, outs), least = LAYERS[name]

    def gradients(x, *weights):
        return jax.grad(lambda weights: jnp.sum(jnp.sin(function(x, *weights))))(weights)

    _, sent = check(Case({"x": 8}, lambda _: gradients, args, ins, outs), rtol=1e-3)
    assert sent <= 1.7 * least


def halves(q):
    a, b = jnp.split(q, 2, axis=-1)
    return jnp.concatenate([a * 2 - b, b * 2 + a], axis=-1)


def test_halves_are_exchanged_once():
    q = normal(4, 8, 64)
    _, sent = check(Case({"x": 8}, lambda _: halves, (q,), (P(None, None, "x"),), P(None, None, "x")), exact=True)
    assert sent == q.nbytes / 8


# Programs that cut, join or rename parts of the dimension of size 24 or 48, which is split over 8 devices.
CUTS = {
    "another dimension too": lambda x, w: (x @ w)[:, 2:5, 8:16] * 2,
    "several parts": lambda x, w: jnp.concatenate([(x @ w)[..., 8:], (x @ w)[..., :8]], -1),
    "padded by parts": lambda x, w: jnp.pad((x @ w)[..., :8], ((0, 0), (1, 0), (8, 8)), constant_values=3.0),
    "sums over parts and beside them": lambda x, w: ((x @ w).sum(-1), (x @ w)[..., 8:16].sum(1), (x @ w).max(1)),
    "transposed": lambda x, w: jnp.transpose(x @ w, (2, 0, 1))[8:16] + 1,
    "reversed, of which nothing is known": lambda x, w: jnp.flip(x @ w, -1)[..., :8] + (x @ w)[..., 16:],
    "summed over in another product": lambda x, w: ((x @ w)[..., 16:], (x @ w) @ w.T),
    "a batch of products": lambda x, w: jnp.einsum("bsn,bsn->bn", x @ w, jnp.cos(x @ w))[:, :8],
    "a square of it": lambda x, w: ((x @ w)[..., 8:16], jnp.einsum("bsn,bsm->nm", x @ w, x @ w)),
    "in a loop": lambda x, w: jax.lax.fori_loop(0, 3, lambda i, c: c + jnp.tile((c @ w)[..., 8:16], 2), x),
    "merged": lambda x, w: jnp.stack([x[..., :8], x[..., 8:], x[..., 4:12]], 2).reshape(4, 6, 24) @ w.T,
    "returned as it is": lambda x, w: (jnp.tanh(x @ w), jnp.tanh(x @ w)[..., 16:]),
    "whole numbers": lambda x, w: jnp.split((x @ w * 100).astype(jnp.int32), 3, -1),
    "gathered": lambda x, w: ((x @ w)[..., jnp.array([3, 1, 20])], (x @ w)[..., :8]),
}  # fmt: skip


@pytest.mark.parametrize("name", CUTS)
def test_rewritten_programs_compute_the_same(name, monkeypatch):
    """Whatever the rewriting sends and holds, it is taken."""
    monkeypatch.setattr(alternatives, "ALTERNATIVE_SHARE", math.inf)
    monkeypatch.setattr(alternatives, "computed_whole", lambda *_: None)
    args = normal(4, 6, 16), normal(16, 24)
    case = Case({"x": 8}, lambda _: CUTS[name], args, (P(None, None, "x"), P(None, "x")))
    result, _ = check(case, rtol=1e-4, above_xla=True, memory_growth=10.0)
    assert any(row.taken and "equal parts" in row.what for row in result.plan.alternatives), result.plan.as_text()


def slices_of(tanh: str, slices: str) -> str:
    """Two parts of a split dimension, cut out of a `tanh`; the attributes of these operations are given."""
    return f"""
    sdy.mesh @mesh = <["x"=8]>
    func.func @main(%x: tensor<64x16xf32>,
        %w: tensor<16x48xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}}) -> tensor<64x16xf32> {{
      %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
          : (tensor<64x16xf32>, tensor<16x48xf32>) -> tensor<64x48xf32>
      %1 = stablehlo.tanh %0 {tanh} : tensor<64x48xf32>
      %2 = stablehlo.slice %1 [0:64, 0:16] {slices} : (tensor<64x48xf32>) -> tensor<64x16xf32>
      %3 = stablehlo.slice %1 [0:64, 16:32] {slices} : (tensor<64x48xf32>) -> tensor<64x16xf32>
      %4 = stablehlo.add %2, %3 : tensor<64x16xf32>
      return %4 : tensor<64x16xf32> }}"""


SPLIT = '{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>}'


@pytest.mark.parametrize("tanh, slices, tried", [("", "", True), (SPLIT, "", True), (SPLIT, SPLIT, False)])
def test_what_is_annotated_stays_as_it_was_said(tanh, slices, tried, monkeypatch):
    """Whatever the rewriting sends and holds, it is taken; operations that somebody annotated it leaves alone."""
    monkeypatch.setattr(alternatives, "ALTERNATIVE_SHARE", math.inf)
    made = collectives.partition(propagation.run(slices_of(tanh, slices)), memory_growth=10.0)
    assert any("equal parts" in row.what for row in made.plan.alternatives) == tried
    (line,) = [line for line in made.propagated.as_text().splitlines() if "stablehlo.tanh" in line]
    assert line.endswith("tensor<64x48xf32>") == bool(tanh)
    assert not tanh or SPLIT.strip("{}") in line
