"""Small collectives over the same devices become one: same results bit for bit, same bytes, fewer messages."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives
import propagation
from collectives.passes import combine as combining
from collectives.topology import Link, Topology

from .. import harness
from ..jax_side import Case, check


def normal(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def both(case: Case, **options):
    """The plan without and with combining, after checking that results and bytes are the same."""
    plans, results = [], []
    for combine in (False, True):
        result = collectives.partition(propagation.run(case.text), combine=combine, **options)
        flat = [np.asarray(a) for a in jax.tree.leaves(case.args)]
        got, compiled = harness.run_partitioned(result, flat, [e.shape for e in case.expected()])
        assert harness.hlo_bytes(compiled.hlo(), case.mesh.size)[0] <= result.plan.bytes * 1.0001
        plans.append(result.plan)
        results.append(got)
    for a, b in zip(*results):
        np.testing.assert_array_equal(a, b)
    assert plans[0].bytes == plans[1].bytes
    return plans


def large(table):
    """A sum that needs a whole matrix on each device: beside its peak there is room for packed copies elsewhere."""
    return jnp.sum(jnp.tanh(table @ table))


TABLE = normal(96, 96) / 96


def sums(constrain):
    return lambda x: (jnp.sum(x, 0), jnp.max(x, 0), jnp.sum(x * x, (0, 1)), jnp.sum(x[:, :3].astype(jnp.int32), 0))


@pytest.mark.smoke
def test_sums_of_one_type_and_kind_become_one_and_keep_their_origins():
    case = Case({"x": 8}, sums, (normal(64, 16),), P("x", None), (P(),) * 4)
    before, after = both(case)
    assert before.counts == {"all_reduce": 4} and after.counts == {"all_reduce": 3}
    (one,) = [e for e in after if e.members]
    assert sum(m.bytes for m in one.members) == one.bytes == 2 * 7 / 8 * (16 + 1) * 4
    assert {m.where for m in one.members} == {e.where for e in before} and "2 combined" in one.cause
    assert after.as_text().count("  for ") == 2
    assert [len(e["members"]) for e in after.as_json() if e["members"]] == [2]
    assert after.seconds < before.seconds
    check(case)


def test_each_kind_of_collective_is_packed():
    def build(constrain):
        def f(a, b, c, d, table):
            gathers = constrain(jnp.sin(a), None, None), constrain(jnp.cos(b), None, None, None)
            moves = constrain(jnp.tan(a), None, "x"), constrain(jnp.exp(b), None, None, "x")
            return gathers, moves, (jnp.roll(c, 1, 0), jnp.roll(d, 1, 0)), large(table)

        return f

    args = (normal(16, 8), normal(8, 3, 8), normal(16), normal(24, 5), TABLE)
    ins = (P("x", None), P("x", None, None), P("x"), P("x", None), P())
    outs = ((P(), P()), (P(None, "x"), P(None, None, "x")), (P("x"), P("x", None)), P())
    before, after = both(Case({"x": 8}, build, args, ins, outs))
    assert before.counts == {"all_gather": 2, "all_to_all": 2, "collective_permute": 2}
    assert after.counts == {"all_gather": 1, "all_to_all": 1, "collective_permute": 1}


def test_scattered_sums_and_gathers_along_minor_dimensions():
    def build(constrain):
        def f(a, b, ids, t):
            totals = [jax.ops.segment_sum(v, ids, num_segments=16) for v in (a, b)]
            cut = [constrain(total, "x", None) for total in totals]
            return cut, [constrain(v * 2, "x", None) for v in (a, b)], large(t)

        return f

    args = (normal(64, 4), normal(64, 6), np.random.default_rng(0).integers(0, 16, 64).astype("int32"), TABLE)
    case = Case({"x": 8}, build, args, (P("x", None), P("x", None), P("x"), P()), None)
    _, after = both(case)
    assert after.counts["reduce_scatter"] == 1

    def gather(constrain):
        return lambda a, b, t: (constrain(a + 1, None, None), constrain(b * 2, None, None, None), large(t))

    args = (normal(3, 16), normal(2, 8, 5), TABLE)
    before, after = both(Case({"x": 8}, gather, args, (P(None, "x"), P(None, "x", None), P()), (P(),) * 3))
    assert (len(before), len(after)) == (2, 1)


def test_what_depends_on_another_waits_and_groups_do_not_wait_for_each_other():
    def build(constrain):
        def f(x, y):
            a = jnp.sum(x, 0)  # over x
            b = jnp.sum(jnp.sin(y + a[0]), 1)  # over y, needs a
            c = jnp.sum(jnp.cos(y), 1)
            d = jnp.sum(jnp.sin(x + c[0]), 0)  # over x, needs c
            return a, b, c, d, jnp.sum(jnp.tanh(x + d[1] + b[1]), 0)

        return f

    case = Case({"x": 4, "y": 2}, build, (normal(16, 6), normal(6, 16)), (P("x", None), P(None, "y")), (P(),) * 5)
    before, after = both(case)
    assert before.counts == {"all_reduce": 5}
    # a with d would need c, which may then not be with b.
    assert after.counts == {"all_reduce": 4}


def test_gradients_of_many_layers_go_together_and_loops_have_their_own():
    def build(constrain):
        def f(ws, x, table):
            def loss(ws):
                h = x
                for w in ws:
                    h = jnp.tanh(h @ w)

                def body(c, _):
                    return (c[0] + jnp.sum(h * c[1]), c[1] + jnp.mean(h * h)), None

                return jax.lax.scan(body, (0.0, 1.0), None, length=3)[0][0]

            return jax.grad(loss)(ws), large(table)

        return f

    ws = [normal(8, 8, seed=i) for i in range(6)]
    ins, outs = ([P()] * 6, P("x", None), P()), ([P()] * 6, P())
    before, after = both(Case({"x": 8}, build, (ws, normal(32, 8), TABLE), ins, outs))
    assert len(before) >= 7 and len(after) < len(before) - 4
    assert max(len(e.members) for e in after) == 6


def test_large_ones_stay_alone_and_the_topology_says_what_is_large():
    build = lambda constrain: lambda x, y: (jnp.sum(x, 0), jnp.sum(y, 0))
    case = Case({"x": 8}, build, (normal(8, 65536), normal(8, 65536)), (P("x", None),) * 2, (P(), P()))
    assert [len(p) for p in both(case)] == [2, 2]
    slow_start = Topology(default=Link(latency=1.0, bandwidth=1e9))
    assert [len(p) for p in both(case, topology=slow_start)] == [2, 1]
    small = Case({"x": 8}, build, (normal(8, 64), normal(8, 64)), (P("x", None),) * 2, (P(), P()))
    no_latency = Topology(default=Link(latency=0.0, bandwidth=1e9))
    assert [len(p) for p in both(small, topology=no_latency)] == [2, 2]


def test_tpus_reduce_several_buffers_at_once_where_they_are_and_gpus_combine_themselves():
    case = Case(
        {"x": 8}, lambda constrain: lambda x, y: (jnp.sum(x, 0), jnp.sum(y, 0)),
        (normal(8, 64, 128), normal(8, 128, 32)), (P("x"),) * 2, (P(), P()),
    )  # fmt: skip
    before, after = both(case, topology="v5e:8x1")
    assert before.counts == {"all_reduce": 2} and after.counts == {"all_reduce": 1}
    text = collectives.partition(propagation.run(case.text), topology="v5e:8x1").as_text()
    assert "(tensor<64x128xf32>, tensor<128x32xf32>) -> (tensor<64x128xf32>, tensor<128x32xf32>)" in text
    assert "concatenate" not in text
    assert "concatenate" in collectives.partition(propagation.run(case.text), topology="cpu:8").as_text()
    gpu = collectives.partition(propagation.run(case.text), topology="h100:8")
    assert gpu.plan.counts == {"all_reduce": 2} and "concatenate" not in gpu.as_text()


def test_large_blocks_are_not_laid_out_anew_on_tpus():
    def build(constrain):
        return lambda a, b: (constrain(jnp.sin(a), None, None), constrain(jnp.cos(b), None, None))

    def gathers(rows, topology):
        args = normal(rows, 32), normal(rows, 16)
        case = Case({"x": 8}, build, args, (P("x", None),) * 2, (P(), P()))
        return len(collectives.partition(propagation.run(case.text), topology=topology).plan)

    assert (gathers(64, "v5e:8x1"), gathers(64, "h100:8")) == (1, 1)
    assert (gathers(4096, "v5e:8x1"), gathers(4096, "h100:8")) == (2, 1)


def test_members_do_not_wait_where_what_waits_would_need_memory():
    def build(constrain):
        # Each sum over the devices is used up at once; together they would all be there.
        return lambda x: [jnp.sum(jnp.sin(constrain(jnp.sum(jnp.cos(x * (i + 1)), 0), None))) for i in range(6)]

    case = Case({"x": 8}, build, (normal(8, 65536),), P("x", None), [P()] * 6)
    slow = Topology(default=Link(latency=1e-3, bandwidth=1e9))
    assert [len(p) for p in both(case, topology=slow)] == [6, 6]


def test_more_than_one_message_may_hold_goes_in_several():
    """Beside what the program needs, all vectors in one message would be missed, a few of them not."""
    build = lambda constrain: lambda table, *vs: [large(table), *[jnp.sin(v) for v in vs]]
    vectors = tuple(normal(512, seed=i) for i in range(12))
    before, after = both(Case({"x": 8}, build, (TABLE, *vectors), (P(), *[P("x")] * 12), [P()] * 13))
    assert before.counts == {"all_gather": 12}
    assert after.counts == {"all_gather": 6}


@pytest.mark.parametrize(("elements", "has_room", "messages"), [(32, False, 1), (512, False, 2), (512, True, 1)])
def test_at_the_peak_of_memory_messages_are_saved_as_far_as_they_are_worth_it(elements, has_room, messages):
    """Packed copies take memory of their own: beside nothing else they are the peak, unless they are tiny."""

    def build(constrain):
        return lambda a, b, t: (constrain(a + 1, None), constrain(b * 2, None), large(t) if has_room else jnp.sum(t))

    case = Case({"x": 8}, build, (normal(elements), normal(elements), TABLE), (P("x"), P("x"), P()), (P(),) * 3)
    _, after = both(case)
    assert after.counts == {"all_gather": messages}
    if has_room:
        return
    held = [
        harness.Compiled(collectives.partition(propagation.run(case.text), combine=combine).as_text(), 8)
        .exe.get_compiled_memory_stats().temp_size_in_bytes for combine in (False, True)
    ]  # fmt: skip
    assert held[1] <= held[0] + 512


@pytest.mark.parametrize("seed", range(4))
def test_the_peak_of_a_function_that_changed_lies_between_its_bounds(monkeypatch, seed):
    """Once some collectives have become one, it is known so, until somebody has to know it exactly."""
    rng, bounds, seen = np.random.default_rng(seed), combining._Memory.bounds, []

    def checked(memory, region):
        least, most = bounds(memory, region)
        assert least <= memory.peak_as(region, region.items) <= most
        seen.append(least < most)
        return least, most

    def run(x, ws):
        out = []
        for w in ws:
            h = jnp.tanh(x @ w) if rng.random() < 0.7 else jnp.sin(x @ w) * jnp.cos(x @ w)
            out += [h.sum(0) * 2, jnp.max(h, 0) + 1, jnp.min(h * h, 0) - (out[-1] if out and rng.random() < 0.3 else 1)]
            x = h if rng.random() < 0.5 else x
        return out

    mesh = jax.sharding.AbstractMesh((8,), ("x",))
    put = lambda shape, *spec: jax.ShapeDtypeStruct(
        shape, np.float32, sharding=jax.sharding.NamedSharding(mesh, P(*spec))
    )
    arguments = put((1 << 18, 512), "x"), [put((512, 512)) for _ in range(5)]
    text = jax.jit(run).trace(*arguments).lower(lowering_platforms=("cpu",)).as_text()
    monkeypatch.setattr(combining._Memory, "bounds", checked)
    assert collectives.partition(propagation.run(text)).plan.counts["all_reduce"] < 15
    assert any(seen)
