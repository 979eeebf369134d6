"""Weights over the devices that share the batch: what is laid out as XLA's own run of Shardy decides it."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives
import propagation
from propagation.axis_conflicts import depends_on_order

from .jax_side import Case, check

LAYERS, VOCABULARY, WIDTH, HIDDEN, HEADS = 1, 64, 32, 64, 4


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 6


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)


def attention(x, w):
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, w[i]) for i in range(3))
    a = jax.nn.softmax(jnp.einsum("bshk,bthk->bhst", q, k), -1)
    return jnp.einsum("bhst,bthk,dhk->bsd", a, v, w[3])


def loss(params, ids):
    table, heads, up, gate, down = params
    x = table[ids]
    for i in range(LAYERS):
        x = x + attention(norm(x), heads[i])
        h = norm(x)
        x = x + (jax.nn.silu(h @ gate[i]) * (h @ up[i])) @ down[i]
    z = norm(x) @ table.T
    return jnp.mean(jax.nn.logsumexp(z, -1) - jnp.take_along_axis(z, ids[..., None], -1)[..., 0])


def step(params, moments, ids):
    """A training step with momentum."""
    value, grads = jax.value_and_grad(loss)(params, ids)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments, value


def parameters(over: str, beside: str | None):
    """Parameters and their PartitionSpecs: split over the batch's axis, and over another for tensor parallelism."""
    shapes = (
        (VOCABULARY, WIDTH),
        (LAYERS, 4, WIDTH, HEADS, WIDTH // HEADS),
        (LAYERS, WIDTH, HIDDEN),
        (LAYERS, WIDTH, HIDDEN),
        (LAYERS, HIDDEN, WIDTH),
    )
    specs = (P((beside, over) if beside else over), P(None, None, over, beside), *[P(None, over, beside)] * 2,
             P(None, beside, over))  # fmt: skip
    return tuple(normal(*s, seed=i) for i, s in enumerate(shapes)), specs


IDS = np.arange(16 * 32, dtype=np.int32).reshape(16, 32) * 7 % VOCABULARY


@pytest.mark.parametrize(
    ("mesh", "over", "beside"), [({"x": 8}, "x", None), ({"data": 4, "model": 2}, "data", "model")]
)
def test_weights_are_gathered_and_gradients_scattered(mesh, over, beside):
    params, specs = parameters(over, beside)
    moments = tuple(np.zeros_like(p) for p in params)
    outs = (specs, specs, P())
    case = Case(mesh, lambda _: step, (params, moments, IDS), (specs, specs, P(over)), outs)
    result, sent = check(case, rtol=2e-3)
    theirs, _ = case.xla()
    assert sent < 0.8 * theirs
    kinds = result.plan.counts
    assert kinds["reduce_scatter"] >= 1
    wide = [e for e in result.plan if e.kind == "all_reduce" and over in e.axes and e.bytes > WIDTH * HIDDEN]
    assert not wide, result.plan.as_text()


def test_closed_text_is_opened_where_propagation_closed_it():
    params, specs = parameters("x", None)
    case = Case({"x": 8}, lambda _: jax.grad(loss), (params, IDS), (specs, P("x")), specs)
    propagated = propagation.run(case.text)
    known = collectives.partition(propagated).plan.bytes
    text = propagated.as_text()
    assert collectives.partition(text).plan.bytes == known
    assert collectives.partition(propagation.read(text)).plan.bytes == known
    assert collectives.partition(propagated, reorder=False).plan.bytes > 1.5 * known


def spelled_loss(params, ids):
    """Rows looked up as products with one-hot rows, through which the batch comes late."""
    table, _, up, gate, down = params
    spelled = jax.nn.one_hot(ids, VOCABULARY)
    x = spelled @ table
    for i in range(LAYERS):
        h = norm(x)
        x = x + (jax.nn.silu(h @ gate[i]) * (h @ up[i])) @ down[i]
    z = norm(x) @ table.T
    return jnp.mean(jax.nn.logsumexp(z, -1) - jnp.sum(z * spelled, -1))


def with_priorities(text: str) -> str:
    """The parameters, and the results that are as they are, wait until the batch is everywhere."""
    head = next(line for line in text.splitlines() if "func.func public @main" in line)
    parts = re.split(r"(?=%arg\d+: |\) -> )", head)
    is_batch = [part.startswith("%arg") and "xi32>" in part for part in parts]
    assert sum(is_batch) == 1
    new = "".join(p if batch else p.replace('{"x"}', '{"x"}p1') for p, batch in zip(parts, is_batch, strict=True))
    return text.replace(head, new)


@pytest.mark.parametrize("lookup", [loss, spelled_loss])
def test_user_priorities_are_kept(lookup):
    """The batch first, the parameters after it: what is sent does not depend on the order of visits any more."""

    def update(params, ids):
        value, grads = jax.value_and_grad(lookup)(params, ids)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    params, specs = parameters("x", None)
    ids = np.arange(512 * 32, dtype=np.int32).reshape(512, 32) * 7 % VOCABULARY
    case = Case({"x": 8}, lambda _: update, (params, ids), (specs, P("x")), (specs, P()))
    first = propagation.run(with_priorities(case.text))
    plain = propagation.run(case.text)
    assert {e.round[0] for e in first.log} == {0, 1}
    known, left = (collectives.partition(first, reorder=r) for r in (True, False))
    assert known.plan.bytes <= left.plan.bytes
    assert known.plan.bytes < 100_000 < collectives.partition(plain, reorder=False).plan.bytes
    again = first.again(xla_order=True)
    assert {e.round[0] for e in again.log} == {0, 1}
    assert again.arg_shardings == first.arg_shardings
    assert collectives.partition(again).plan.bytes == known.plan.bytes


OWN = """
module { sdy.mesh @mesh = <["x"=8]>
func.func @main(%x: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                %w: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<16x1x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {"x"}]>}) {
  %0 = stablehlo.broadcast_in_dim %x, dims = [0, 2]
       {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}, {}]>]>} : (tensor<16x64xf32>) -> tensor<16x1x64xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [2] x [0]
       {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}, {"x"}]>]>}
       : (tensor<16x1x64xf32>, tensor<64x64xf32>) -> tensor<16x1x64xf32>
  return %1 : tensor<16x1x64xf32> } }
"""


def test_shardings_of_somebodys_own_stay():
    program = propagation.read(OWN)
    assert depends_on_order(program, propagation.annotations.read_shardings(program))
    assert collectives.partition(program).propagated is None


def test_a_program_changed_since_it_was_read_is_not_read_again():
    params, specs = parameters("x", None)
    case = Case({"x": 8}, lambda _: jax.grad(loss), (params, IDS), (specs, P("x")), specs)
    program = propagation.read(propagation.run(case.text).as_text())
    tanh = next(op for op in program.ops() if op.name == "stablehlo.rsqrt")
    tanh.name = "stablehlo.sqrt"
    text = collectives.partition(program).as_text()
    assert "stablehlo.sqrt" in text


def test_the_result_says_what_it_follows():
    """Values are explained by the propagation that the program realises; arguments and results stay as they were."""
    params, specs = parameters("x", None)
    case = Case({"x": 8}, lambda _: lambda p, i: norm(p[0][i]) @ p[0].T, (params, IDS), (specs, P("x")))
    first = propagation.run(case.text)
    result = collectives.partition(first)
    assert result.propagated is not first
    assert result.propagated.options.xla_order
    for got, asked in zip(result.result_shardings, first.result_shardings, strict=True):
        assert got.dims == asked.dims
    for got, asked in zip(result.arg_shardings, first.arg_shardings, strict=True):
        assert got.dims == asked.dims
    assert collectives.partition(first, reorder=False).propagated is first


def test_programs_without_such_axes_are_not_propagated_again():
    build = lambda _: lambda x, w: norm(x @ w)
    case = Case({"x": 8}, build, (normal(16, 32), normal(32, 64)), (P("x"), P()))
    first = propagation.run(case.text)
    assert not depends_on_order(first.program, first.shardings)
    assert collectives.partition(first).propagated is first


def test_the_second_of_two_loops_whose_bodies_are_calls_stays_split():
    """Shardy leaves it whole: an axis that comes late to the operand of a call ends there."""

    def build(constrain):
        def layer(w, x):
            def step(h, row):
                h = jnp.tanh(jnp.concatenate([row, h], -1) @ w)
                return h, h

            return jax.lax.scan(step, jnp.zeros((16, 8)), x)[1]

        return jax.grad(lambda ws, x: jnp.mean(layer(ws[1], layer(ws[0], x)) ** 2))

    args = [normal(16, 8), normal(16, 8, seed=1)], normal(4, 16, 8)
    case = Case({"x": 8}, build, args, ([P(), P()], P(None, "x")), [P(), P()])
    result, sent = check(case)
    assert set(result.plan.counts) == {"all_reduce"}
    assert sent == 2 * 2 * 7 / 8 * 16 * 8 * 4
