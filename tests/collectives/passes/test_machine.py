"""What passes assume: times, memory, what differs between devices, and what a step costs the reshard planner."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives
import propagation
from collectives.__main__ import main
from collectives.layout import Atoms
from collectives.machine import flops, machine_of
from collectives.options import Options
from collectives.passes.memory import boundary, need_of
from collectives.passes.schedule import simulate
from collectives.passes.varying import varying
from collectives.reshard.planner import Planner, step_cost
from collectives.topology import Link, Topology, load
from propagation.model import Mesh

from ..jax_side import Case

SLOW_START = Topology(default=Link(latency=1e-3, bandwidth=1e9))


def partitioned(axes, build, args, ins, outs=None, **options):
    return collectives.partition(propagation.run(Case(axes, build, args, ins, outs).text), **options)


def test_arithmetic_of_contractions_and_convolutions_is_counted():
    a, b = np.zeros((4, 16, 32), "float32"), np.zeros((4, 32, 8), "float32")
    result = partitioned({"x": 4}, lambda c: lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (a, b), (P("x"), P("x")))
    (dot,) = [i for i in result._builder.functions[0].region.items if i.name == "stablehlo.dot_general"]
    assert flops(dot) == 2 * 1 * 16 * 32 * 8
    x, w = np.zeros((8, 10, 10, 3), "float32"), np.zeros((3, 3, 3, 16), "float32")
    convolve = lambda c: (
        lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    )
    result = partitioned({"x": 4}, convolve, (x, w), (P("x"), P()))
    (item,) = [i for i in result._builder.functions[0].region.items if i.name == "stablehlo.convolution"]
    assert flops(item) == 2 * (2 * 10 * 10 * 16) * (3 * 3 * 3)


def test_memory_is_that_of_pieces_and_follows_what_lives():
    x = np.zeros((1024, 64), "float32")
    result = partitioned({"x": 8}, lambda c: lambda x: jnp.sort(x @ x.T, axis=1), (x,), P("x", None), P("x", None))
    (main_function,) = result._builder.functions
    piece, square = 128 * 64 * 4, 128 * 1024 * 4
    assert boundary(main_function) == piece + square
    # The gathered operand and the product live beside the boundary; a transpose of what was gathered may, too.
    assert piece + 2 * square <= need_of(main_function, {}) <= piece + 2 * square + 2 * 8 * piece


def test_time_counts_loops_and_overlap():
    def build(c):
        return lambda x: jax.lax.fori_loop(0, 5, lambda i, h: jnp.tanh(h) + jnp.sum(h), x)

    result = partitioned({"x": 8}, build, (np.zeros((64, 64), "float32"),), P("x", None), topology=SLOW_START)
    machine = machine_of(Atoms(result.mesh), SLOW_START, Options())
    total, computing = simulate(result._builder.functions[0].region.items, machine, {})
    (entry,) = result.plan
    assert entry.times == 5 and total - computing == pytest.approx(result.plan.exposed)
    assert 4.9 * entry.seconds < result.plan.exposed <= result.plan.seconds * 1.0001


def test_what_differs_between_devices():
    def build(c):
        def f(x, w):
            whole = c(jnp.sin(x), None, None)  # copies
            own = jnp.tanh(x) * 2
            again = jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + 1.0), (0, own))[1]
            return whole @ w, own, again

        return f

    args = (np.zeros((16, 8), "float32"), np.zeros((8, 8), "float32"))
    result = partitioned({"x": 8}, build, args, (P("x", None), P()), (P(), P("x", None), P("x", None)))
    function = result._builder.functions[0]
    found = varying(function)
    atoms = frozenset(a for a, (name, _, _) in enumerate(Atoms(result.mesh).names) if name == "x")
    assert [found.get(r, frozenset()) for r in function.results] == [frozenset(), atoms, atoms]


def test_a_step_costs_the_planner_what_could_be_sent_meanwhile():
    assert step_cost(None) == 16 and step_cost(SLOW_START) == 1e6 and step_cost(load("v5e:4x4")) == pytest.approx(45000)
    mesh = Mesh("mesh", (("a", 4), ("b", 2)))
    atoms = Atoms(mesh)
    a, b = (tuple(i for i, (name, _, _) in enumerate(atoms.names) if name == n) for n in "ab")
    plans = [Planner(atoms, cost).plan((64, 64), 4, ((), a), (a, b)) for cost in (16.0, 1e6)]
    assert plans[0].bytes <= plans[1].bytes
    messages = [sum(s.kind != "slice" for s in p.steps) for p in plans]
    assert plans[1].steps and messages[1] <= max(1, messages[0])


def test_options_of_the_command(tmp_path, capsys):
    sums = lambda c: lambda x: (jnp.sum(x, 0), jnp.sum(x * x))
    text = Case({"x": 8}, sums, (np.zeros((16, 4), "float32"),), P("x", None), (P(), P())).text
    path = tmp_path / "program.mlir"
    path.write_text(propagation.run(text, "closed").as_text())
    counts = []
    for options in ([], ["--no-combine"], ["--no-combine", "--topology", "v5e:2x4", "--order"]):
        assert main([str(path), "--json", *options]) == 0
        found = json.loads(capsys.readouterr().out)
        counts.append(len(found["collectives"]))
        assert (found["exposed"] is None) == ("--topology" not in options)
    assert counts == [1, 2, 2]
    assert main([str(path), "--memory", "-1"]) == 2 and "option memory" in capsys.readouterr().err
