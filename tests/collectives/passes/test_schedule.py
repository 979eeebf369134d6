"""Order for overlap, and gathering again where memory is short: results stay, the plan tells what it costs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives
import propagation
from collectives.errors import DeviceMemoryError, OptionError
from collectives.topology import Link, Topology

from ..jax_side import Case, check

OVERLAPPING = Topology(name="test", default=Link(1e-6, 1e9), flops=1e12, memory_bandwidth=1e11)


def normal(*shape, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.2).astype("float32")


def layers(constrain):
    """A chain of products with weights that are gathered: each can be gathered while the product before is taken."""

    def f(ws, x):
        h = x
        for w in ws:
            h = jnp.tanh(h @ constrain(jnp.sin(w), None, None))
        return h

    return f


def chain(count=4):
    ws = [normal(64, 64, seed=i) for i in range(count)]
    return Case({"x": 8}, layers, (ws, normal(1024, 64)), ([P("x", None)] * count, P("x", None)), P("x", None))


@pytest.mark.smoke
def test_messages_start_early_and_users_come_late():
    options = {"topology": OVERLAPPING, "combine": False, "collective_matmul": False}
    plain, _ = check(chain(), order=False, **options)
    ordered, _ = check(chain(), order=True, **options)
    assert ordered.plan.bytes == plain.plan.bytes and len(ordered.plan) == len(plain.plan) == 4
    assert ordered.plan.seconds == plain.plan.seconds > plain.plan.exposed > ordered.plan.exposed
    assert "not hidden behind computing" in ordered.plan.as_text()
    text = ordered.as_text()
    assert text.index("dot_general") > [i for i in range(len(text)) if text.startswith("stablehlo.all_gather", i)][1]


def test_no_more_memory_than_allowed():
    options = {"topology": OVERLAPPING, "combine": False, "collective_matmul": False}
    free, _ = check(chain(8), order=True, memory_growth=4.0, **options)
    bound, _ = check(chain(8), order=True, memory_growth=0.0, **options)
    assert free.plan.exposed <= bound.plan.exposed


def test_without_a_topology_or_overlap_the_order_stays():
    text = chain().text
    plain = collectives.partition(propagation.run(text), order=False, collective_matmul=False, combine=False)
    assert collectives.partition(propagation.run(text), combine=False).as_text() == plain.as_text()
    assert plain.plan.exposed is None
    cpu = [collectives.partition(propagation.run(text), "cpu", order=o).as_text() for o in (False, True)]
    assert cpu[0] == cpu[1]


def reused(constrain):
    """A gathered weight used before and after a tensor that is much larger."""

    def f(w, x):
        whole = constrain(jnp.sin(w), None, None)
        h = x @ whole
        wide = constrain(jnp.outer(h[0], h[1]).reshape(-1), None)
        wide = jax.lax.sort(wide)
        return jnp.tanh(h) @ whole + jnp.sum(wide[::97])

    return f


def test_a_gathered_value_is_dropped_where_it_does_not_fit():
    case = Case({"x": 8}, reused, (normal(512, 512), normal(8, 512)), (P("x", None), P()), P())
    kept, _ = check(case, rtol=1e-4, above_xla=True)
    assert kept.plan.counts["all_gather"] == 1
    # Arguments, results, the weight, and the large tensor: without the weight it fits.
    size = 512 * 512 * 4
    short, _ = check(case, memory=int(1.5 * size), reorder=False, rtol=1e-4, above_xla=True)
    gathers = [e for e in short.plan if e.kind == "all_gather"]
    assert len(gathers) == 2 and "gathered again to save memory" in gathers[1].cause
    assert gathers[0].where == gathers[1].where
    assert short.plan.bytes == 2 * kept.plan.bytes  # the CPU compiler takes barriers away and merges them
    still, _ = check(case, memory=int(1.5 * size), reorder=False, keep_gathered=True, rtol=1e-4, above_xla=True)
    assert still.plan.counts["all_gather"] == 1


def test_arguments_that_no_compiler_could_fit():
    text = """
    sdy.mesh @mesh = <["x"=8]>
    func.func @main(%a: tensor<65536x65536xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                    %b: tensor<65536x65536xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
        -> tensor<65536x65536xf32> {
      %c = stablehlo.add %a, %b : tensor<65536x65536xf32>
      return %c : tensor<65536x65536xf32>
    }"""
    program = propagation.run(text)
    with pytest.raises(
        DeviceMemoryError, match=r"does not fit v5e:2x4: a device needs .* has 16 GiB; .*argument 1"
    ) as e:
        collectives.partition(program, "v5e:2x4")
    assert isinstance(e.value, MemoryError) and "Shard them" in str(e.value)
    assert collectives.partition(program).plan is not None
    with pytest.raises(DeviceMemoryError, match="a device needs"):
        collectives.partition(program, memory=1 << 30)


@pytest.mark.parametrize(
    "options", [{"memory": 0}, {"memory": 1.5}, {"memory_growth": -1}, {"memory_growth": True}, {"combine": None},
                {"order": 1}, {"collective_matmul": "yes"}]
)  # fmt: skip
def test_options_that_say_nothing(options):
    with pytest.raises(OptionError, match=f"option {next(iter(options))}"):
        collectives.partition(
            "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }", **options
        )
