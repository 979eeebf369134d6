"""Collective matmul: the pipeline computes what the collective and the contraction did, with the same bytes."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives
import propagation
from collectives.topology import Link, Topology, load

from ..jax_side import Case, check


def normal(*shape, seed=0, dtype="float32"):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.3).astype(dtype)


def gathered_weight(c):
    return lambda x, w: c(c(x, "x", None) @ w, "x", None)


def two_uses(c):
    def f(x, w, v):
        whole = c(jnp.tanh(x), None, None)
        return c(whole @ w, None, "x"), jnp.sin(c(whole @ v, None, "x"))

    return f


def scattered(c):
    return lambda a, b: a @ b


ROWS, COLUMNS = P("x", None), P(None, "x")
CASES = {
    "contracted": (gathered_weight, (normal(512, 64), normal(64, 48)), (ROWS, ROWS), ROWS),
    "free, right": (gathered_weight, (normal(512, 64), normal(64, 48)), (ROWS, COLUMNS), ROWS),
    "free, left, two": (two_uses, (normal(512, 64), normal(64, 48), normal(64, 32)), (ROWS, COLUMNS, COLUMNS),
                        (COLUMNS, COLUMNS)),
    "scatter rows": (scattered, (normal(64, 1024), normal(1024, 48)), (COLUMNS, ROWS), ROWS),
    "scatter columns": (scattered, (normal(64, 1024), normal(1024, 48)), (COLUMNS, ROWS), COLUMNS),
    "scatter batch": (lambda c: lambda a, b: jnp.einsum("bik,bkj->bij", a, b),
                      (normal(8, 16, 1024), normal(8, 1024, 24)), (P(None, None, "x"), P(None, "x", None)), P("x")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_pipelines_equal_what_they_replace(name):
    build, args, ins, outs = CASES[name]
    case = Case({"x": 8}, build, args, ins, outs)
    plain, _ = check(case)
    result, sent = check(case, collective_matmul=True, rtol=1e-4)
    assert set(plain.plan.counts) <= {"all_gather", "reduce_scatter"} and len(plain.plan) == 1
    assert result.plan.counts == {"collective_permute": 7}
    assert sent == result.plan.bytes == plain.plan.bytes
    assert all("pipelined" in e.cause and e.where == plain.plan.entries[0].where for e in result.plan)


def test_groups_of_a_mesh_of_two_axes_and_narrow_types():
    args = (normal(64, 32, dtype="bfloat16"), normal(32, 48, dtype="bfloat16"))
    case = Case({"x": 4, "y": 2}, gathered_weight, args, (P("x", "y"), P(None, "x")), P("x", None))
    check(case, rtol=3e-2)
    result, _ = check(case, collective_matmul=True, rtol=3e-2)
    assert any("pipelined" in e.cause for e in result.plan)


def test_uses_that_are_no_contraction_and_results_keep_the_collective():
    def build(c):
        def f(x, w):
            whole = c(w, None, None)
            return c(c(x, "x", None) @ whole, "x", None), whole

        return f

    args = (normal(512, 64), normal(64, 48))
    result, _ = check(Case({"x": 8}, build, args, (ROWS, ROWS), (ROWS, P())), collective_matmul=True)
    assert result.plan.counts == {"all_gather": 1}


def test_in_a_loop_and_under_differentiation():
    def build(c):
        def f(ws, x):
            def net(ws):
                return jax.lax.scan(lambda h, w: (c(jnp.tanh(h @ w), "x", None), None), x, ws)[0]

            y, back = jax.vjp(net, ws)
            return back(y)[0]

        return f

    spec = P(None, "x", None)
    case = Case({"x": 8}, build, (normal(3, 64, 64), normal(512, 64)), (spec, ROWS), spec)
    result, _ = check(case, collective_matmul=True, rtol=1e-3)
    assert result.plan.counts == {"collective_permute": 3 * 3 * 7}


def kinds(topology, rows, **options):
    """Kinds of collectives of a product over 8 devices whose right side is gathered."""
    text = f"""
    sdy.mesh @mesh = <["x"=8]>
    func.func @main(%a: tensor<{rows}x4096xbf16> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}},
                    %b: tensor<4096x8192xbf16> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}})
        -> (tensor<{rows}x8192xbf16> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}) {{
      %c = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
        : (tensor<{rows}x4096xbf16>, tensor<4096x8192xbf16>) -> tensor<{rows}x8192xbf16>
      return %c : tensor<{rows}x8192xbf16>
    }}"""
    return set(collectives.partition(propagation.run(text), topology, **options).plan.counts)


def test_the_cost_model_decides():
    assert kinds(None, 1 << 17) == {"all_gather"}
    assert kinds("cpu", 1 << 17) == {"all_gather"}  # nothing overlaps there
    assert kinds("h100:8", 1 << 17) == {"collective_permute"}
    assert kinds("h100:8", 1 << 17, collective_matmul=False) == {"all_gather"}
    # Little to compute: sending piece by piece costs latencies and hides nothing.
    assert kinds("h100:8", 64) != {"collective_permute"}
    endless = Topology(default=Link(latency=1.0, bandwidth=1e12))
    assert kinds(endless, 1 << 17) == {"all_gather"}
    assert load("h100:8").compiler == "cuda"


def test_memory_decides_too():
    """A contracted dimension is gathered: parts as large as the result are added up, in wider numbers."""
    text = """
    sdy.mesh @mesh = <["x"=8]>
    func.func @main(%a: tensor<131072x4096xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                    %b: tensor<4096x8192xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
        -> (tensor<131072x8192xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
      %c = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
        : (tensor<131072x4096xbf16>, tensor<4096x8192xbf16>) -> tensor<131072x8192xbf16>
      return %c : tensor<131072x8192xbf16>
    }"""
    propagated = propagation.run(text)
    topology = dataclasses.replace(load("h100:8"), memory_bandwidth=1e15)  # adding up takes no time
    kinds = lambda **options: set(collectives.partition(propagated, topology, **options).plan.counts)
    assert kinds() == {"collective_permute"}
    assert kinds(memory=500 << 20) == {"all_gather"}
    assert kinds(memory=500 << 20, collective_matmul=True) == {"collective_permute"}
