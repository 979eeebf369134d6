"""Look-ups in a table that is split both ways: devices share the look-ups where that sends less than adding them up."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives
import propagation
from collectives.topology import load
from propagation.model import Mesh

from .jax_side import Case, check
from .text_side import over

VOCABULARY, WIDTH, ROWS, COLUMNS = 64, 16, 16, 8


def arguments(seed=0):
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
    ids = rng.integers(0, VOCABULARY, (ROWS, COLUMNS)).astype(np.int32)
    return table, ids, rng.standard_normal((ROWS, COLUMNS, WIDTH)).astype(np.float32)


def look_up(constrain):
    return lambda table, ids, rows: constrain(table[ids], "a", None, None) + rows


def gradient(constrain):
    def f(table, ids, rows):
        loss = lambda table: jnp.sum(constrain(table[ids], "a", None, None) * rows)
        return jax.grad(loss)(table)

    return f


TABLE, IDS, ROW = P("b", "a"), P("a", None), P("a", None, None)


def test_look_ups_are_dealt():
    axes = {"a": 4, "b": 2}
    case = Case(axes, look_up, arguments(), (TABLE, IDS, ROW), ROW)
    result, _ = check(case, exact=True)
    assert result.plan.counts["all_to_all"] == 1
    assert "all_reduce" not in result.plan.counts
    whole = ROWS * COLUMNS * WIDTH * 4 / axes["a"]  # what a device ends with
    moved = max(e.bytes for e in result.plan if e.kind == "all_to_all")
    assert moved < whole / axes["b"]


def test_a_table_is_gathered_that_is_smaller_than_what_is_looked_up():
    """Looking up rows takes no longer in a whole table than in a part of it."""
    case = Case({"a": 2, "b": 4}, look_up, arguments(), (TABLE, IDS, ROW), ROW)
    _, sent = check(case, exact=True)
    assert sent <= VOCABULARY * WIDTH * 4


@pytest.mark.parametrize("axes", [{"a": 4, "b": 2}, {"a": 2, "b": 4}])
def test_updates_are_dealt(axes):
    case = Case(axes, gradient, arguments(1), (TABLE, IDS, ROW), TABLE)
    result, _ = check(case)
    assert "reduce_scatter" in result.plan.counts
    rows = ROWS * COLUMNS * WIDTH * 4 / axes["a"]
    moved = sum(e.bytes for e in result.plan if e.kind == "all_to_all")
    assert moved < rows / axes["b"]


def test_a_large_table_stays_split():
    table, ids, rows = arguments(2)
    large = np.tile(table, (64, 1))
    case = Case({"a": 4, "b": 2}, look_up, (large, ids, rows), (TABLE, IDS, ROW), ROW)
    result, sent = check(case, exact=True)
    assert {"all_reduce", "reduce_scatter"} & set(result.plan.counts) and sent < large.nbytes / 32


@pytest.mark.parametrize(("spec", "precision", "bits"), [
    ("v5e:2x4", "DEFAULT", False), ("v5e:2x4", "HIGHEST", True), ("h100:8", "HIGHEST", False),
])  # fmt: skip
def test_looked_up_rows_that_tpus_round_travel_as_numbers(spec, precision, bits):
    """Their compiler then sends 16 bits of each; it takes no dimension of one beside the last in a reduce-scatter."""
    text = f"""sdy.mesh @mesh = <["x"=8]>
    func.func @main(%t: tensor<8192x32xf32> {over("x", "")}, %i: tensor<128x1xi32> {over("x", "")},
                    %w: tensor<32x4xf32> {over("", "")}) -> (tensor<128x1x4xf32> {over("x", "", "")}) {{
      %0 = "stablehlo.gather"(%t, %i) <{{dimension_numbers = #stablehlo.gather<offset_dims = [1],
          collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
          slice_sizes = array<i64: 1, 32>}}> : (tensor<8192x32xf32>, tensor<128x1xi32>) -> tensor<128x32xf32>
      %1 = stablehlo.reshape %0 : (tensor<128x32xf32>) -> tensor<128x1x32xf32>
      %2 = stablehlo.dot_general %1, %w, contracting_dims = [2] x [0], precision = [{precision}, {precision}]
          : (tensor<128x1x32xf32>, tensor<32x4xf32>) -> tensor<128x1x4xf32>
      return %2 : tensor<128x1x4xf32>
    }}"""
    topology = load(spec).on(Mesh("mesh", (("x", 8),)))
    made = collectives.partition(propagation.run(text), topology)
    assert ("bitcast_convert" in made.as_text()) == bits
    assert set(made.plan.counts) <= {"all_gather", "reduce_scatter"} and "reduce_scatter" in made.plan.counts
    sums = re.findall(r"reduce_scatter.*?\}\) : \((\S+?)\)", made.as_text(), re.DOTALL)
    assert sums and (topology.compiler != "tpu" or not any("x1x" in s for s in sums))


def look_up_and(reader):
    return lambda constrain: lambda table, ids: reader(constrain(table[ids], None, None))


def in_a_loop(rows):
    return jax.lax.fori_loop(0, 3, lambda _, x: x[::-1] + 2, rows) - 1


@pytest.mark.parametrize(("reader", "bits"), [
    (lambda rows: rows, True),  # as they are
    (lambda rows: rows[::-1].T, True),
    (lambda rows: jnp.where(rows > 0, rows, -1), True),
    (lambda rows: (rows + 2, rows), True),
    (lambda rows: rows * 2, True),  # a zero has its sign
    (lambda rows: (rows - jnp.mean(rows, 1, keepdims=True)) @ rows.T, False),
    (lambda rows: jnp.concatenate([rows, rows]).sum(1), False),
    (lambda rows: jnp.concatenate([rows, -rows * 3]) @ rows.T, False),
    (in_a_loop, False),
])  # fmt: skip
def test_rows_travel_as_numbers_where_that_makes_no_difference(reader, bits):
    """Bits and the numbers made of them are two buffers; numbers lose what arithmetic loses anyway."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((4096, 16)).astype(np.float32)
    table[:8, 3] = np.array([0.0, -0.0, np.inf, np.nan]).repeat(2)
    if bits:
        table[:8].view(np.uint32)[...] = np.array([1, 0x7FC00123], np.uint32)[:, None].repeat(4, 0)
    ids = rng.permutation(16).astype(np.int32)
    case = Case({"x": 8}, look_up_and(reader), (table, ids), (P("x", None), P()))
    result, _ = check(case, exact=True)
    assert ("bitcast_convert" in result.as_text()) == bits


@pytest.mark.parametrize("reader", [
    lambda rows, negative: rows + negative,
    lambda rows, negative: rows - -negative,
    lambda rows, negative: negative - rows,
    lambda rows, negative: 3 - rows,
    lambda rows, negative: 1 / (rows + negative + negative),
    lambda rows, negative: jnp.atan2(rows + negative, -1),
    lambda rows, negative: rows[:, :1] @ jnp.ones((1, 4)),
    lambda rows, negative: jnp.sum(rows[:, :1], 1),
    lambda rows, negative: negative.at[jnp.arange(16)[::-1]].add(rows),
    lambda rows, negative: jax.lax.lt_to_p.bind(rows, -negative),  # the order of bits
    lambda rows, negative: jnp.zeros((32, 16)).at[rows[5, 0].astype(int)].add(rows[0]),
])  # fmt: skip
def test_zeros_of_rows_keep_their_signs(reader):
    """Negative zeros, of which sums over devices make positive ones, in what one device computes from them."""
    table = np.full((4096, 16), -0.0, np.float32)
    table[3], table[5] = 0, 2
    ids = np.arange(16, dtype=np.int32)

    def build(constrain):
        return lambda table, negative, ids: reader(constrain(table[ids], None, None), negative)

    arguments = table, table[8:24].copy(), ids
    check(Case({"x": 8}, build, arguments, (P("x", None), P(), P())), exact=True)


def test_rows_of_two_tables_that_are_added_up_are_sent_once():
    rng = np.random.default_rng(0)
    tables = [rng.standard_normal((1024, 16)).astype(np.float32) for _ in range(2)]
    build = lambda constrain: lambda a, b, ids: a[ids] + b[ids]
    ids = rng.integers(0, 1024, 64).astype(np.int32)
    _, sent = check(Case({"x": 8}, build, (*tables, ids), (P("x", None), P("x", None), P()), P()), exact=True)
    assert sent == 2 * 7 / 8 * 64 * 16 * 4


def test_one_look_up_that_is_wanted_split_moves_one_row():
    """A single position over six devices: no reason to have the whole table on each."""

    def build(constrain):
        return lambda x: constrain(jnp.take(constrain(x, "x"), jnp.array([5]), mode="clip"), ("x", "y")) * 2

    x = np.arange(777, dtype=np.float32)
    _, sent = check(Case({"x": 3, "y": 2}, build, (x,), (P("x"),)), above_xla=True, exact=True)
    assert sent < 64


@pytest.mark.parametrize("axes, heads, rows", [({"a": 4, "b": 2}, 8, 12), ({"a": 2, "b": 3}, 4, 13)])
@pytest.mark.parametrize("split", [False, True])
def test_what_scatters_add_up_is_reduced_after_them(axes, heads, rows, split):
    """A relative-position bias: the batch's sum is as large as a score matrix, the table's gradient is small."""

    def build(constrain):
        def f(table, ids, scores):
            if split:
                scores = constrain(scores, "b", None, "a", None)
            bias = lambda table: jnp.sum(jnp.tanh(scores) * table[ids].transpose(2, 0, 1))
            return jax.grad(bias)(table)

        return f

    rng = np.random.default_rng(0)
    table, scores = rng.standard_normal((16, heads)), rng.standard_normal((6, heads, rows, 24))
    args = (table.astype(np.float32), rng.integers(0, 16, (rows, 24)).astype(np.int32), scores.astype(np.float32))
    case = Case(axes, build, args, (P(), P(), P("b") if split else P("b", "a")), P())
    result, sent = check(case, rtol=1e-4)
    assert not result.findings and sent <= 2 * 16 * heads * 4


def test_updates_that_are_to_be_summed_are_summed_before_they_are_spread_over_a_table():
    """Sums of a few rows are smaller than the table's sums would be."""

    def build(constrain):
        def f(a, b, i, j):
            loss = lambda ab: jnp.mean(jax.nn.logsumexp(ab[0][i] @ ab[1][j].T, -1))
            return jax.grad(loss)((a, b))

        return f

    rng = np.random.default_rng(0)
    tables = [rng.standard_normal((8192, 8)).astype(np.float32) for _ in range(2)]
    ids = [rng.integers(0, 8192, 64).astype(np.int32) for _ in range(2)]
    case = Case({"x": 8}, build, (*tables, *ids), (P("x"), P("x"), P("x"), P("x")), (P("x"), P("x")))
    _, sent = check(case)
    assert sent < 8192 * 8 * 4 / 8


@pytest.mark.parametrize(("axes", "columns"), [({"x": 8}, 6), ({"x": 5}, 4), ({"x": 8}, 1)])
def test_columns_that_are_fewer_than_devices_are_looked_up_where_they_are(axes, columns):
    def build(constrain):
        return lambda table, ids: jnp.take(constrain(table, None, "x") * 2, ids, axis=0, mode="clip")[:, 0] + 1

    table, ids, _ = arguments()
    check(Case(axes, build, (table[:60, :columns], ids[:2, :5]), (P(), P())))
