"""Sums carried by loops: taken after the loop if nothing reads them inside, also behind a call."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives
import propagation

from . import harness
from .jax_side import Case, check


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 4


WHOLE = P()
WRAPPERS = {"plain": lambda f: f, "jit": jax.jit, "checkpoint": jax.checkpoint, "nested": lambda f: jax.jit(jax.jit(f))}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("gradient", [False, True])
def test_a_residual_stream_is_read_in_every_round(wrapper, gradient):
    wrap = WRAPPERS[wrapper]

    def build(constrain):
        layer = wrap(lambda h, u, v: h + jnp.tanh(h @ u) @ v)

        def run(x, us, vs):
            return jax.lax.scan(lambda h, uv: (layer(h, *uv), None), x, (us, vs))[0]

        return jax.grad(lambda *args: jnp.sum(run(*args) ** 2), (0, 1, 2)) if gradient else run

    args = (normal(6, 16), normal(3, 16, 32, seed=1), normal(3, 32, 16, seed=2))
    check(Case({"x": 8}, build, args, (P(), P(None, None, "x"), P(None, "x", None))), above_xla=True)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_sum_that_nothing_reads_inside(wrapper):
    def build(constrain):
        add = WRAPPERS[wrapper](lambda total, a, b: total + a @ b)
        return lambda a, b: jax.lax.scan(lambda t, ab: (add(t, *ab), None), jnp.zeros((6, 5)), (a, b))[0]

    args = (normal(3, 6, 16), normal(3, 16, 5, seed=1))
    check(Case({"x": 8}, build, args, (P(None, None, "x"), P(None, "x"))))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("start", [0.0, 1.0])
@pytest.mark.parametrize("more", [False, True], ids=["inner", "inner and outer"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_sum_carried_through_two_loops(wrapper, more, start):
    def build(constrain):
        inner = WRAPPERS[wrapper](
            lambda total, a, b: jax.lax.scan(lambda t, x: (t + x[0] @ x[1], None), total, (a, b))[0]
        )

        def outer(total, ab):
            total = inner(total, *ab)
            return (total - ab[0][0] @ ab[1][1] if more else total), None

        return lambda a, b: jax.lax.scan(outer, jnp.full((6, 5), np.float32(start)), (a, b))[0]

    args = (normal(3, 2, 6, 16), normal(3, 2, 16, 5, seed=1))
    result, _ = check(Case({"x": 8}, build, args, (P(None, None, None, "x"), P(None, None, "x"))), above_xla=True)
    assert result.plan.counts == {"all_reduce": 1}


def test_a_sum_that_the_condition_reads_is_complete_in_every_round():
    def build(constrain):
        def run(a, b):
            step = lambda s: (s[0] + 1, s[1] + a @ b)
            return jax.lax.while_loop(lambda s: (s[0] < 9) & (jnp.sum(s[1]) < 100.0), step, (0, jnp.ones((6, 5))))

        return run

    args = (np.full((6, 16), 0.25, np.float32), np.full((16, 5), 0.25, np.float32))
    check(Case({"x": 8}, build, args, (P(None, "x"), P("x"))), above_xla=True)


def test_large_functions_without_a_proper_name_are_called():
    def build(constrain):
        def long(x, a):
            for _ in range(30):
                x = jnp.tanh(x) + 0.5 * x
            return x + jnp.tanh(x @ a) @ a.T

        inner = jax.jit(lambda x, a: long(x, a) * 0.5)
        return lambda x, a: inner(inner(x, a), a) + inner(x, a)

    case = Case({"x": 8}, build, (normal(8, 16), normal(16, 16, seed=1)), (P(), P(None, "x")))
    result, _ = check(case, above_xla=True)
    assert result.as_text().count("func.call") == 3


BARRIER = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %a: tensor<4x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
    %b: tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<4x4xf32> {
  %first = stablehlo.constant dense<1.0> : tensor<4x4xf32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %out:2 = stablehlo.while(%i = %zero, %t = %first) : tensor<i32>, tensor<4x4xf32>
  cond {
    %n = stablehlo.constant dense<3> : tensor<i32>
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %s = sdy.propagation_barrier %t allowed_direction=NONE : tensor<4x4xf32>
    %h = stablehlo.tanh %s : tensor<4x4xf32>
    %m = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<4x16xf32>, tensor<16x4xf32>) -> tensor<4x4xf32>
    %p = stablehlo.multiply %m, %h : tensor<4x4xf32>
    %u = stablehlo.add %s, %p : tensor<4x4xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %u : tensor<i32>, tensor<4x4xf32>
  }
  return %out#1 : tensor<4x4xf32>
}
"""


def test_a_sum_read_behind_a_propagation_barrier():
    a, b = normal(4, 16), normal(16, 4, seed=1)
    total = np.ones((4, 4), np.float32)
    for _ in range(3):
        total = total + (a @ b) * np.tanh(total)
    got, _ = harness.run_partitioned(collectives.partition(propagation.run(BARRIER)), [a, b], [(4, 4)])
    np.testing.assert_allclose(got[0], total, rtol=1e-5)


def rows(step):
    """A recurrent network over x[batch, time, features]: all its states."""
    return lambda x, *ws: jnp.moveaxis(
        jax.lax.scan(lambda h, row: (step(h, row, *ws),) * 2, jnp.zeros(x[:, 0].shape), jnp.moveaxis(x, 1, 0))[1], 0, 1
    )


SPECS = {
    "rows beside columns": ({"x": 8}, P("x"), P(None, "x"), P(None, None, "x")),
    "columns": ({"x": 5}, P(None, None, "x"), P(None, "x"), P(None, None, "x")),
    "time": ({"x": 8}, P(None, "x"), P(), P()),
    "time and columns": ({"a": 4, "b": 2}, P(None, "a", "b"), P(None, "b"), P(None, "a", "b")),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_states_of_recurrent_networks_take_the_layout_that_sends_least(name, gradient):
    axes, x, w, out = SPECS[name]
    n = 5 if "x" in axes and axes["x"] == 5 else 8
    run = rows(lambda h, row, w: jnp.tanh(h @ w + row))

    def build(constrain):
        return jax.grad(lambda *args: jnp.sum(jnp.sin(run(*args))), (0, 1)) if gradient else run

    args = (normal(n, 2 * n, 3 * n), normal(3 * n, 3 * n, seed=1))
    check(Case(axes, build, args, (x, w), (x, w) if gradient else out))


def test_a_state_leaves_what_surrounds_the_loop_as_it_was():
    """What was tried and not taken leaves no versions behind: the weights, gathered for a trial, are not at hand."""

    def build(constrain):
        def run(x, w):
            h = jax.lax.scan(lambda h, row: (jnp.tanh(h @ w + row), None), jnp.zeros(x[:, 0].shape), x.swapaxes(0, 1))[
                0
            ]
            return h, w * 2

        return run

    args = (normal(8, 2, 64), normal(64, 64, seed=1))
    result, _ = check(Case({"x": 8}, build, args, (P(None, None, "x"), P(None, "x")), (P(), P(None, "x"))))
    assert not any(e.bytes > 8 * 64 * 4 * 2 for e in result.plan)


def test_an_abandoned_trial_leaves_no_function_behind():
    def build(constrain):
        @jax.jit
        def cell(h, row, w):
            return jnp.tanh(h @ w + row)

        return rows(cell)

    args = (normal(8, 16, 24), normal(24, 24, seed=1))
    text = Case({"x": 8}, build, args, (P("x"), P(None, "x")), P(None, None, "x")).text
    kept, calls = re.subn(
        r"(call @cell\([^)]*\))",
        r'\1 {mhlo.frontend_attributes = {inlineable = "false"}}',
        text,
    )
    assert calls
    found = collectives.partition(propagation.run(kept)).as_text()
    names = re.findall(r'sym_name = "(\w+)"', found)
    assert len(names) == 2, "in the layouts of one trial"
    assert set(names) == {"main", *re.findall(r"callee = @(\w+)", found)}


def test_a_loop_that_is_written_again_counts_the_same_uses(monkeypatch):
    """Costs look at how often values are used: what a body captures must not have more uses the second time."""
    from collectives.ops import control

    seen = {}
    write = control._loop_regions

    def noting(ctx, op, *rest):
        seen.setdefault(op, []).append([ctx.state(v).uses for v in op.operands])
        return write(ctx, op, *rest)

    monkeypatch.setattr(control, "_loop_regions", noting)

    def build(constrain):
        product = jax.jit(lambda x, y, w: x @ (y * jnp.sin(w) * jnp.cos(w)))

        def run(a, b, w):
            step = lambda total, ab: (total + product(*ab, w), None)
            outer = lambda total, ab: (jax.lax.scan(step, total, ab)[0], None)
            return jax.lax.scan(outer, jnp.zeros((6, 5)), (a, b))[0]

        return run

    args = (normal(3, 2, 6, 16), normal(3, 2, 16, 5, seed=1), normal(16, 5, seed=2))
    specs = (P(None, None, None, "x"), P(None, None, "x"), P("x"))
    collectives.partition(propagation.run(Case({"x": 8}, build, args, specs).text))
    assert max(map(len, seen.values())) > 2
    assert all(len(set(map(tuple, counts))) == 1 for counts in seen.values()), seen.values()


def accumulating(split, start, rows=64, sizes=(16, 32)):
    """The gradients of microbatches, added up in accumulators that are split like the parameters."""

    def build(constrain):
        def run(ws, xs, ys):
            def turn(total, batch):
                x, y = batch
                loss = lambda ws: jnp.mean((jnp.tanh(x @ ws[0]) @ ws[1] - y) ** 2)
                return jax.tree.map(jnp.add, total, jax.grad(loss)(ws)), None

            first = [constrain(jnp.full_like(w, start), *s) for w, s in zip(ws, split)]
            return jax.lax.scan(turn, first, (xs, ys))[0]

        return run

    n, m = sizes
    args = [normal(n, m), normal(m, n, seed=1)], normal(4, rows, n, seed=2), normal(4, rows, n, seed=3)
    specs = [P(*s) for s in split]
    return Case({"x": 8}, build, args, (specs, P(None, "x"), P(None, "x")), specs)


@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize("split", [(("x",), (None, "x")), ((None, "x"), ("x",))])
def test_split_accumulators_are_scattered_once_behind_the_loop(split, start):
    result, sent = check(accumulating(split, start), rtol=1e-4)
    assert sent == 4 * 7 / 8 * 16 * 32 * 4, result.plan.as_text()  # weights gathered, gradients scattered
    assert {e.times for e in result.plan} == {1}


def test_split_accumulators_stay_split_where_there_is_no_room():
    text = accumulating((("x",), (None, "x")), 0).text
    plan = collectives.partition(propagation.run(text), memory_growth=0.0).plan
    assert {e.times for e in plan if e.kind == "reduce_scatter"} == {4}


def test_no_more_accumulators_are_carried_whole_than_there_is_room_for():
    """However often a loop is drafted: what it was told to hold more before counts too."""
    text = accumulating((("x",), (None, "x")), 0, 16384, (512, 384)).text
    plan = collectives.partition(propagation.run(text), memory_growth=1e-9).plan
    assert sorted(e.times for e in plan if e.kind == "reduce_scatter") == [1, 4], plan.as_text()


def layers_over_microbatches(start, split=WHOLE, tokens=16, half=False):
    """The gradients of layers that a scan goes through, added up over microbatches that another one goes through."""

    def build(constrain):
        def loss(ws, x):
            layer = lambda h, w: (jnp.tanh(h @ (w.astype(jnp.float16).astype(w.dtype) if half else w)), None)
            return jnp.sum(jax.lax.scan(layer, x, ws)[0] ** 2)

        def run(ws, xs):
            turn = lambda total, x: (total + jax.grad(loss)(ws, x), None)
            return jax.lax.scan(turn, jnp.full_like(ws, start), xs)[0]

        return run

    args = normal(3, 8, 8), normal(4, tokens, 8, seed=1)
    return Case({"x": 8}, build, args, (split, P(None, "x")), split)


@pytest.mark.parametrize("start", [0, 2])
def test_gradients_of_scanned_layers_are_added_up_once_behind_the_loop_over_microbatches(start):
    result, sent = check(layers_over_microbatches(start), rtol=1e-4)
    assert sent == 2 * 7 / 8 * 3 * 8 * 8 * 4, result.plan.as_text()
    assert [e.times for e in result.plan] == [1]


@pytest.mark.parametrize(("split", "start"), [(P(None, "x"), 0), (P(None, None, "x"), 2)])
def test_split_layers_are_gathered_and_their_gradients_scattered_once_for_all_microbatches(split, start):
    result, sent = check(layers_over_microbatches(start, split, 256), rtol=1e-4)
    assert sent == 2 * 7 / 8 * 3 * 8 * 8 * 4, result.plan.as_text()
    assert {e.times for e in result.plan} == {1}


def test_split_layers_that_are_rounded_in_the_loop_are_gathered_once():
    """Their rows are seen to travel in the narrower type; sums of gradients that are rounded are not carried whole."""
    plan = collectives.partition(propagation.run(layers_over_microbatches(0, P(None, "x"), 256, half=True).text)).plan
    assert {(e.kind, e.times) for e in plan} == {("all_gather", 1), ("reduce_scatter", 4 * 3)}, plan.as_text()


def test_split_layers_are_gathered_row_by_row_where_there_is_no_room():
    text = layers_over_microbatches(0, P(None, "x"), 256).text
    plan = collectives.partition(propagation.run(text), memory_growth=0.0).plan
    assert {e.times for e in plan} == {4 * 3}, plan.as_text()


def test_only_the_axis_over_which_rows_are_gathered_is_given_up():
    """Features stay split over the axis of tensor parallelism."""

    def build(constrain):
        def loss(ws, x):
            layer = lambda h, w: (h + jnp.tanh(h @ w[0]) @ w[1], None)
            return jnp.sum(jax.lax.scan(layer, x, ws)[0] ** 2)

        def run(ws, xs):
            turn = lambda total, x: (jax.tree.map(jnp.add, total, jax.grad(loss)(ws, x)), None)
            return jax.lax.scan(turn, jax.tree.map(jnp.zeros_like, ws), xs)[0]

        return run

    args = (normal(3, 16, 32), normal(3, 32, 16, seed=1)), normal(4, 512, 16, seed=2)
    ins = (P(None, "x", "y"), P(None, "y", "x")), P(None, "x")
    over_x = lambda plan: sorted((e.kind, e.times) for e in plan if "x" in e.axes)
    plan = check(Case({"x": 4, "y": 2}, build, args, ins, ins[0]), rtol=1e-4)[0].plan
    assert over_x(plan) == [("all_gather", 1)] * 2 + [("reduce_scatter", 1)] * 2, plan.as_text()


def test_rows_that_nothing_is_added_to_are_reduced_as_they_are_made():
    """They can be sent while the next ones are computed; and what a loop starts from is counted once."""

    def stack(first):
        def run(a, b):
            write = lambda total, ab: (jax.lax.dynamic_update_slice(total, (ab[0] @ ab[1])[None], (ab[2], 0, 0)), None)
            total = jax.lax.scan(write, jnp.full((6, 4, 4), first), (a, b, jnp.arange(3)))[0]
            return jnp.sin(total)

        args = normal(3, 4, 16), normal(3, 16, 4, seed=1)
        return Case({"x": 8}, lambda constrain: run, args, (P(None, None, "x"), P(None, "x")))

    for first in (0.0, 1.0):
        result, _ = check(stack(first), rtol=1e-4)
        assert [e.times for e in result.plan] == [3], result.plan.as_text()


def _accumulated(h, x):
    return h + x


def _decayed(h, x):
    return jnp.tanh(h + x)


@pytest.mark.parametrize("step", [_decayed, _accumulated])
@pytest.mark.parametrize("wrapper", ["plain", "jit"])
def test_what_a_step_adds_to_and_changes_is_carried_where_its_rows_are(step, wrapper):
    """Propagation carries h over "a" alone; rows that are split over "b" too were resharded in every step."""

    def build(constrain):
        body = WRAPPERS[wrapper](step)

        def run(xs):
            h, _ = jax.lax.scan(lambda h, x: (body(h, x), None), jnp.zeros(xs.shape[1:]), xs)
            return constrain(h, "a", None)

        return run

    case = Case({"a": 3, "b": 2}, build, (normal(12, 12, 18),), (P(None, ("b", "a")),))
    result, sent = check(case)
    assert all(row.times == 1 for row in result.plan)
    assert sent <= 2 * 12 * 18 * 4 / 6
