"""Latency: a collective counts as bytes besides those that it sends, so many tiny ones become few."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives
import propagation
from collectives.decide.candidate import Candidate, Sent
from collectives.heuristics import ESTIMATED_STEP_SHARE, STEP_BYTES
from collectives.layout import Atoms
from collectives.reshard.planner import Planner, step_cost
from propagation.model import Mesh

from .jax_side import Case, check


def normal(*shape, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.2).astype(np.float32)


def test_a_candidate_counts_its_collectives():
    sent = (Sent("all_to_all", (0,), 100.0, 3), Sent("all_gather", (0,), 50.0), Sent("all_gather", (0,), 7.0, 0))
    assert Candidate((), (), sent=sent).price(10.0) == 157 + 40


def test_a_plan_counts_its_collectives_but_no_slices():
    mesh = Mesh("m", (("a", 4), ("b", 2)))
    atoms = Atoms(mesh, set())
    a, b = (atoms.of_axes([mesh.axis(name)]) for name in "ab")
    planner, whole = Planner(atoms, step_bytes=100.0), ((), ())
    ask = lambda *layouts: planner.plan((64, 64), 4.0, *layouts)
    assert ask((a, ()), whole).messages == 1
    assert ask(whole, (a, b)).messages == 0
    assert planner.cost((64, 64), 4.0, whole, (a, b)) == 0
    moved = ask((a, ()), whole)
    assert planner.price(moved) == moved.bytes + 100
    assert planner.cost((64, 64), 4.0, (a, ()), whole) == moved.bytes + 100 * ESTIMATED_STEP_SHARE


def test_the_latency_is_the_topologys_where_one_is_named():
    topology = collectives.load("v5e:2x4")
    assert step_cost(None) == STEP_BYTES
    assert step_cost(topology) == topology.default.latency * topology.default.bandwidth > 1000


def ravelled(constrain):
    """A loop over a vector in which two states lie one behind the other, as solvers of differential equations have."""

    def run(state, w):
        def step(state, _):
            x, v = state[:160].reshape(10, 16), state[160:]
            return constrain(jnp.concatenate([jnp.tanh(x @ w).ravel(), v * 0.5 + x.sum(1)]), "x"), None

        return jax.lax.scan(step, state, None, length=3)[0]

    return run


def test_interval_moves_of_many_small_pieces_are_one_message():
    case = Case({"x": 8}, ravelled, [normal(170), normal(16, 16, seed=1)], (P(), P()), P())
    made, _ = check(case, rtol=1e-4)
    assert sum(e.times for e in made.plan) <= 3 * 6 + 1, made.plan.as_text()
    assert any("in one message" in e.cause for e in made.plan)


def test_borders_stay_permutes():
    """Two rows of a stencil are less than all of its pieces, whatever a message takes."""
    stencil = lambda constrain: lambda x: x[:-2] + x[1:-1] + x[2:]
    case = Case({"x": 8}, stencil, [normal(512, 16)], (P("x"),), None)
    made, _ = check(case)
    causes = [e.cause for e in made.plan if e.kind == "collective_permute"]
    assert causes and not any("in one message" in e.cause for e in made.plan)


def test_the_largest_piece_of_a_long_move_stays_where_it_is():
    """Many permutes of large pieces send less than a gather."""
    rolled = lambda constrain: lambda x: constrain(jnp.concatenate([x[4001:], x[:4001]]), "x")
    made, sent = check(Case({"x": 8}, rolled, [normal(16384)], (P("x"),), P("x")))
    assert set(made.plan.counts) == {"collective_permute"} and sent < 16384 * 4 * 7 / 8


@pytest.mark.parametrize("topology", [None, "v5e:2x4"])
def test_what_moves_nothing_is_no_message(topology):
    """Two parts of one array, put together where they came from."""
    text = """sdy.mesh @mesh = <["x"=8]>
func.func public @main(%x: tensor<64x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<64x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %0 = stablehlo.slice %x [0:24, 0:4] : (tensor<64x4xf32>) -> tensor<24x4xf32>
  %1 = stablehlo.slice %x [24:64, 0:4] : (tensor<64x4xf32>) -> tensor<40x4xf32>
  %2 = stablehlo.concatenate %0, %1, dim = 0 : (tensor<24x4xf32>, tensor<40x4xf32>) -> tensor<64x4xf32>
  return %2 : tensor<64x4xf32>
}"""
    made = collectives.partition(propagation.run(text), topology)
    (decided,) = [row for row in made.plan.decisions if row.op.name == "stablehlo.concatenate"]
    assert not made.plan.counts and decided.ways[decided.taken].now < STEP_BYTES
