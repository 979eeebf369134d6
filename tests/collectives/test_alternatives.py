"""Whole alternatives: contested axes given to the largest class of dimensions first, where that sends less."""

from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives
import propagation
from collectives.annotations import Propagation
from collectives.contended_axes import _times, preference
from collectives.errors import UnsupportedShardingError
from propagation.program import read

from .jax_side import Case, check

WIDTH, HIDDEN, VOCABULARY = 16, 64, 128


def normal(*shape, seed=0, scale=0.2):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)


def step(params, ids, labels):
    def loss(params):
        table, *layers = params
        x = table[ids]
        for down, gate, up in layers:
            h = norm(x)
            x = x + (jax.nn.silu(h @ gate) * (h @ up)) @ down
        z = norm(x) @ table.T
        return jnp.mean(jax.nn.logsumexp(z, -1) - jnp.take_along_axis(z, labels[..., None], -1)[..., 0])

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def arguments():
    layers = [[normal(HIDDEN, WIDTH, seed=i), normal(WIDTH, HIDDEN), normal(WIDTH, HIDDEN, seed=i)] for i in (1, 2)]
    ids = np.arange(32 * 64, dtype=np.int32).reshape(32, 64) * 7 % VOCABULARY
    return [normal(VOCABULARY, WIDTH), *layers], ids, ids[::-1].copy()


def case(mesh=(("x", 8),), over="x", beside=None):
    specs = [P(beside, over), *[[P(beside, over), P(over, beside), P(over, beside)]] * 2]
    return Case(dict(mesh), lambda _: step, arguments(), (specs, P(over), P(over)), (specs, P()))


def test_weights_over_the_batch_are_gathered_without_constraints():
    made = case()
    result, sent = check(made, rtol=2e-3)
    first, other = result.plan.alternatives
    assert (first.taken, other.taken) == (False, True)
    assert other.bytes == result.plan.bytes < 0.7 * first.bytes
    assert "x first to dimension 0 of argument 7" in other.what
    left = collectives.partition(propagation.run(made.text), reorder=False)
    assert left.plan.bytes > sent and not left.plan.alternatives


def test_the_other_axes_go_where_they_went():
    plan = collectives.partition(propagation.run(case((("x", 4), ("y", 2)), "x", "y").text)).plan
    first, other = plan.alternatives
    assert other.taken and other.bytes < 0.9 * first.bytes
    assert {e.axes for e in plan} >= {"x", "y"}


def test_arguments_and_results_stay_and_the_rest_is_explained():
    propagated = propagation.run(case().text)
    result = collectives.partition(propagated)
    for got, asked in zip(result.arg_shardings, propagated.arg_shardings, strict=True):
        assert got.dims == asked.dims
    for got, asked in zip(result.result_shardings, propagated.result_shardings, strict=True):
        assert got.dims == asked.dims
    assert result.propagated is not propagated
    assert any(event.round[0] == 1 for event in result.propagated.log.events)


def test_plans_say_what_was_compared():
    lines = collectives.partition(propagation.run(case().text)).plan.as_text().splitlines()[-2:]
    assert lines[0].startswith("tried: layouts as they were propagated: ")
    assert lines[1].startswith("taken: x first to dimension 0 of argument 7: ")
    assert all(" sent per device, " in line and line.endswith(" held") for line in lines)


def test_a_closed_text_is_compared_like_what_it_came_from():
    propagated = propagation.run(case().text)
    direct, read = collectives.partition(propagated), collectives.partition(propagated.as_text())
    assert read.plan.bytes == direct.plan.bytes
    assert [a.what for a in read.plan.alternatives] == [a.what for a in direct.plan.alternatives]


def test_with_a_topology_time_decides():
    plan = collectives.partition(propagation.run(case().text), "v5e:2x4").plan
    taken = next(a for a in plan.alternatives if a.taken)
    assert taken.seconds == plan.seconds == min(a.seconds for a in plan.alternatives)


def test_what_holds_much_more_is_not_taken(monkeypatch):
    """Memory is compared where bytes would decide for the other layouts."""
    held = lambda p: SimpleNamespace(peak=1e8 * (2 if any(e.round[0] for e in p.propagated.log.events) else 1))
    monkeypatch.setattr(collectives.module.PartitionedProgram, "memory", property(held))
    first, other = collectives.partition(propagation.run(case().text)).plan.alternatives
    assert (first.taken, other.taken) == (True, False)
    assert (first.peak, other.peak) == (1e8, 2e8) and other.bytes < first.bytes


@pytest.mark.parametrize(("more", "is_taken"), [(0.2, True), (0.5, False)])
def test_little_memory_is_paid_with_bytes_that_are_not_sent(monkeypatch, more, is_taken):
    """A small program may hold more by the share by which it sends less, and by a quarter."""
    propagated = propagation.run(case().text)
    first, other = collectives.partition(propagated).plan.alternatives
    factor = first.bytes / other.bytes + more
    held = lambda p: SimpleNamespace(peak=1e4 * (factor if any(e.round[0] for e in p.propagated.log.events) else 1))
    monkeypatch.setattr(collectives.module.PartitionedProgram, "memory", property(held))
    again = collectives.partition(propagated).plan.alternatives
    assert [a.taken for a in again] == [not is_taken, is_taken]


def test_alternatives_that_cannot_be_partitioned_are_told(monkeypatch):
    from collectives import alternatives

    made, partition = [], alternatives.partition_program

    def second_fails(*args):
        if made:
            raise UnsupportedShardingError("no such pieces")
        made.append(partition(*args))
        return made[0]

    monkeypatch.setattr(alternatives, "partition_program", second_fails)
    plan = collectives.partition(propagation.run(case().text)).plan
    assert [a.taken for a in plan.alternatives] == [True, False]
    assert "not possible: no such pieces" in plan.as_text()


def test_nothing_is_tried_without_a_contest():
    build = lambda _: lambda x, w: jnp.tanh(x @ w)
    made = Case({"x": 8}, build, (normal(16, 32), normal(32, 64)), (P("x"), P()))
    propagated = propagation.run(made.text)
    assert preference(Propagation(propagated), {"x": math.inf}) is None
    assert collectives.partition(propagated).plan.alternatives == ()


def never(*args):
    raise AssertionError("propagated again")


def layers_over_the_batch(batch):
    """Weights that are distributed over the devices of a batch: features are the larger class."""

    def build(_):
        def loss(ws, x):
            return jnp.sum(jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0] ** 2)

        return jax.grad(loss)

    return Case({"x": 8}, build, (normal(3, 64, 64), normal(batch, 64)), (P(None, "x"), P("x")), P(None, "x"))


def residual_layers(_):
    """Layers whose weights are gathered: tokens are many, and sums of different layers are not added to each other."""

    def loss(ws, x):
        for up, down in ws:
            x = x + jnp.tanh(norm(x) @ up) @ down
        return jnp.mean(x**2)

    return jax.grad(loss)


def constrained_block(constrain):
    """Features are split between two products, where constraints say so, rows everywhere else."""

    def run(w, v, x):
        h = jnp.tanh(constrain(x @ w, None, "x"))
        return constrain(h @ v, "x", None)

    return run


@pytest.mark.parametrize("name", ["sums of activations", "sums of several layers", "constraints"])
def test_nothing_is_tried_that_cannot_save(monkeypatch, name):
    """Where the class with most bytes would leave more sums than is sent now, or constraints hold the others."""
    from collectives import alternatives

    made = {
        "sums of activations": lambda: layers_over_the_batch(512),
        "sums of several layers": lambda: Case(
            {"x": 8}, residual_layers, ([[normal(32, 64), normal(64, 32)]] * 6, normal(192, 32)),
            ([[P("x"), P("x")]] * 6, P("x")), [[P("x"), P("x")]] * 6,
        ),
        "constraints": lambda: Case(
            {"x": 8}, constrained_block, (normal(64, 128), normal(128, 64), normal(512, 64)),
            (P(None, "x"), P("x", None), P("x")), P("x"),
        ),
    }[name]()  # fmt: skip
    propagated = propagation.run(made.text)
    monkeypatch.setattr(alternatives, "decided_again", never)
    result = collectives.partition(propagated)
    assert result.plan.entries and not result.plan.alternatives


def test_a_gather_that_sends_more_than_the_program_is_not_tried(monkeypatch):
    """Only a few rows of the gradient are needed for the results that are whole."""
    from collectives import alternatives

    first = lambda p, m, g: (p * g[0, 0], m * g[0, 1])
    args = [normal(64, 16, seed=i) for i in range(3)]
    propagated = propagation.run(Case({"x": 8}, lambda _: first, args, (P(), P(), P("x")), (P(), P())).text)
    monkeypatch.setattr(alternatives, "decided_again", never)
    assert collectives.partition(propagated).plan.bytes < 64 * 16 * 4 * 7 / 8


def branches(constrain):
    """Two branches on one stream of tokens; weights are split by their features over the same devices."""

    def run(x, *weights):
        h = norm(x)
        for up, down in zip(weights[::2], weights[1::2]):
            x = x + jnp.tanh(h @ up) @ down
        return x

    return run


@pytest.mark.parametrize(("tokens", "is_taken"), [(192, True), (1024, None)])
def test_tokens_are_gathered_once_for_all_weights(tokens, is_taken):
    """Unless the weights are smaller: then nothing else is tried."""
    args = [normal(tokens, 32), *[normal(32, 128, seed=1), normal(128, 32, seed=2)] * 2]
    made = Case({"x": 8}, branches, args, [P("x"), *[P(None, "x"), P("x")] * 2], P("x"))
    result, sent = check(made, rtol=1e-4)
    assert sent == 7 / 8 * 4 * min(2 * tokens * 32, 4 * 32 * 128), result.plan.as_text()
    told = {a.what: a.taken for a in result.plan.alternatives}
    assert told.get("x last to dimension 0 of argument 0") is is_taken


def test_nothing_is_tried_where_somebody_set_priorities():
    text = case().text
    head = next(line for line in text.splitlines() if "@main" in line)
    assert "%arg7: tensor<32x64xi32>" in head
    args, later = head.split("%arg7")
    waiting = propagation.run(text.replace(head, "%arg7".join([args, later.replace('{"x"}', '{"x"}p1', 1)])))
    assert 1 in {event.round[0] for event in waiting.log.events}
    assert collectives.partition(waiting).plan.alternatives == ()


def test_loops_and_functions_are_looked_into():
    """The batch reaches what a scan carries, and the bodies of functions that are called."""

    def build(constrain):
        @jax.jit
        def layer(h, w):
            return jnp.tanh(h @ w + h)

        def run(table, ws, ids):
            def loss(table, ws):
                h = jax.lax.scan(lambda h, w: (layer(h, w), None), table[ids], ws)[0]
                return jnp.mean(jax.nn.logsumexp(h @ table.T, -1))

            return jax.grad(loss, argnums=(0, 1))(table, ws)

        return run

    args = normal(VOCABULARY, WIDTH), normal(3, WIDTH, WIDTH, seed=1), arguments()[1]
    specs = P(None, "x"), P(None, "x")
    result, sent = check(Case({"x": 8}, build, args, (*specs, P("x")), specs), rtol=2e-3)
    weights = (VOCABULARY * WIDTH + 3 * WIDTH * WIDTH) * 4
    assert sent <= 7 / 8 * 3.5 * weights, result.plan.as_text()


def test_how_often_functions_run_is_counted_over_all_of_their_calls():
    """Each function calls the next one twice, the last one in a loop of three turns."""
    call = "func.call @{} (%{}) : (tensor<4xf32>) -> tensor<4xf32>".format
    head = "(%0: tensor<4xf32>) -> tensor<4xf32> {"
    tail = "return %r : tensor<4xf32> }"
    twice = f"%1 = {call('next', 0)}\n%r = {call('next', 1)}"
    funcs = [f"func.func private @f{i}{head}\n{twice.replace('next', f'f{i + 1}')}\n{tail}\n" for i in range(10)]
    text = f"""
    func.func @main{head}
      %r = {call("f0", 0)}
      {tail}
    {"".join(funcs)}
    func.func private @f10{head}
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %three = stablehlo.constant dense<3> : tensor<i32>
      %l, %r = stablehlo.while(%i = %zero, %c = %0) : tensor<i32>, tensor<4xf32>
        cond {{
          %go = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %go : tensor<i1>
        }} do {{
          %n = stablehlo.add %i, %one : tensor<i32>
          %d = stablehlo.tanh %c : tensor<4xf32>
          stablehlo.return %n, %d : tensor<i32>, tensor<4xf32>
        }}
      {tail}"""
    program = read(text)
    times = _times(program)
    assert [times[program.funcs[name].body] for name in ("main", "f0", "f1", "f10")] == [1, 1, 2, 2**10]
    (loop,) = [op for op in program.funcs["f10"].body.ops if op.regions]
    assert times[loop.regions[1]] == 3 * 2**10


def microbatches(walked: bool):
    def build(constrain):
        def run(w, x):
            cut = x.reshape(4, 64, 16)
            if not walked:
                return jnp.einsum("mbi,ij->mbj", cut, w).sum((0, 1))

            def turn(total, x):
                return total + jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w), None

            return jax.lax.scan(turn, jnp.zeros_like(w), cut)[0]

        return run

    return Case({"x": 8}, build, (normal(16, 16), normal(256, 16, seed=1)), (P(), P("x")), P())


def test_microbatches_that_a_loop_walks_through_stay_whole():
    """Each device has part of every microbatch: its rows are dealt out once, instead of gathered."""
    made = microbatches(walked=True)
    result, sent = check(made, rtol=1e-4)
    assert sent == 3 / 4 * 32 * 16 * 4 + 2 * 7 / 8 * 16 * 16 * 4, result.plan.as_text()
    assert {e.times for e in result.plan} == {1}
    first, other = result.plan.alternatives
    assert other.taken and other.bytes < first.bytes
    assert "dimension 0 of the reshape at " in other.what and other.what.endswith(" whole")
    read = collectives.partition(propagation.run(made.text).as_text()).plan
    assert read.bytes == result.plan.bytes


def test_operations_that_nothing_needs_do_not_count_among_reshapes():
    """Propagation removes them, so that the reshape is another one's number in the module as it came."""
    text = microbatches(walked=True).text
    dead = "%dead = stablehlo.reshape %arg1 : (tensor<256x16xf32>) -> tensor<16x256xf32>\n"
    place = text.index("{\n", text.index("@main")) + 2
    first, other = collectives.partition(propagation.run(text[:place] + dead + text[place:])).plan.alternatives
    assert other.taken and other.bytes < first.bytes


def test_other_reshapes_keep_what_they_carry():
    assert not collectives.partition(propagation.run(microbatches(walked=False).text)).plan.alternatives


def adam(p, m, v, g):
    m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


@pytest.mark.parametrize("jit", [False, True])
def test_a_gradient_is_gathered_where_parameters_and_moments_are_whole(jit):
    """One gather of what three results are made of."""
    args = normal(64, 16), normal(64, 16, seed=1), normal(64, 16, seed=2) ** 2, normal(64, 16, seed=3)
    update = jax.jit(adam) if jit else adam
    made = Case({"x": 8}, lambda _: update, args, (P(), P(), P(), P("x")), (P(),) * 3)
    result, sent = check(made, rtol=1e-4)
    assert sent == 7 / 8 * 64 * 16 * 4, result.plan.as_text()
    assert "argument 3 gathered before it is used" in result.plan.alternatives[1].what
    (entry,) = result.plan
    assert "gathered before it is used" in entry.cause and entry.where is not None


def test_a_gradient_stays_split_where_the_results_are():
    args = [normal(64, 16)] * 4
    made = Case({"x": 8}, lambda _: adam, args, (P("x"),) * 4, (P("x"),) * 3)
    plan = collectives.partition(propagation.run(made.text)).plan
    assert plan.bytes == 0 and not plan.alternatives


def orthogonalised(unroll):
    """Muon's step: Newton-Schulz iterations on split momenta."""

    @jax.jit
    def direction(x):
        def turn(_, x):
            a = x @ x.T
            return 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x

        tall = x.shape[0] > x.shape[1]
        x = x.T if tall else x
        x = jax.lax.fori_loop(0, 3, turn, x / (jnp.linalg.norm(x) + 1e-7), unroll=unroll)
        return x.T if tall else x

    def step(ps, ms, gs):
        ms = [0.95 * m + g for m, g in zip(ms, gs)]
        return [p - 0.02 * direction(m) for p, m in zip(ps, ms)], ms

    return lambda _: step


@pytest.mark.parametrize(
    ("mesh", "specs", "unroll"),
    [({"x": 8}, (P("x"), P(None, "x")), True), ({"d": 4, "m": 2}, (P("d", "m"), P("m", "d")), False)],
    ids=["one axis, unrolled", "two axes, loop"],
)
def test_every_device_computes_what_would_gather_over_and_over(mesh, specs, unroll):
    """Each momentum is gathered once, inside of functions, loops and copies of functions, and parameters stay split."""
    shapes, specs = [(64, 128), (128, 64)], list(specs)
    args = [[normal(*shape, seed=i + j) for i, shape in enumerate(shapes)] for j in range(3)]
    made = Case(mesh, orthogonalised(unroll), args, [specs] * 3, (specs, specs))
    result, sent = check(made, rtol=1e-3, above_xla=True)  # the bytes are asserted here
    assert sent <= 2 * 7 / 8 * 64 * 128 * 4 + 2 * 16, result.plan.as_text()
    taken = next(a for a in result.plan.alternatives if a.taken)
    assert "every device computes what follows from the operands at " in taken.what
    assert any("an operand, gathered before it is used" in e.cause for e in result.plan)


def products(unit):
    def run(x):
        x = x * unit
        for _ in range(3):
            x = x @ x * 0.1
        return x

    return lambda _: run


def test_arithmetic_is_not_repeated_where_it_takes_longer_than_the_bytes(monkeypatch):
    """The machine decides: a slow one computes its own part."""
    from collectives import alternatives

    made = Case({"x": 8}, products(0.5), (normal(64, 64),), (P("x"),), P("x"))
    propagated = propagation.run(made.text)
    assert collectives.partition(propagated).plan.bytes == 7 / 8 * 64 * 64 * 4
    monkeypatch.setattr(alternatives, "decided_again", never)
    slow = collectives.Topology(default=collectives.Link(1e-6, 1e11), flops=1e9)
    assert collectives.partition(propagated, slow).plan.bytes > 2 * 7 / 8 * 64 * 64 * 4


def test_what_is_sorted_and_turned_over_and_over_is_gathered_once():
    """By the positions of its own elements: five operations that each move all of it."""

    def run(x):
        x = x[jnp.argsort(jnp.sin(x))][::-1]
        return x[jnp.argsort(jnp.cos(x))]

    made = Case({"x": 8}, lambda _: run, (normal(64),), (P("x"),), P("x"))
    result, sent = check(made, rtol=1e-6)
    assert sent <= 7 / 8 * 64 * 4, result.plan.as_text()
    taken = next(a for a in result.plan.alternatives if a.taken)
    assert "every device computes what follows from the operands at " in taken.what


def test_the_search_for_what_every_device_may_compute_takes_steps_as_there_are_operations(monkeypatch):
    """Every product of one split weight may start a chain, and each looks through the weight's users."""
    from collectives import replicated_chains

    def steps(layers):
        t = "tensor<8x8xf32>"
        lines = [
            f"%x{k + 1} = stablehlo.dot_general %x{k}, %w, contracting_dims = [1] x [0] : ({t}, {t}) -> {t}"
            for k in range(layers)
        ]
        text = "\n".join([
            'sdy.mesh @mesh = <["a"=4, "b"=2]>',
            f'func.func public @main(%x0: {t} {{sdy.sharding = #sdy.sharding<@mesh, [{{"a"}}, {{?}}]>}}, '
            f'%w: {t} {{sdy.sharding = #sdy.sharding<@mesh, [{{?}}, {{"b"}}]>}}) -> {t} {{',
            *lines, f"return %x{layers} : {t} }}",
        ])  # fmt: skip
        seen.clear()
        collectives.partition(propagation.run(text))
        return seen["pushed"]

    seen = Counter()
    push = replicated_chains.heapq.heappush
    monkeypatch.setattr(replicated_chains.heapq, "heappush", lambda *args: seen.update(["pushed"]) or push(*args))
    few, many = steps(50), steps(200)
    assert few > 0 and many < 5 * few
