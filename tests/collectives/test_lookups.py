"""Look-ups in a table that is split both ways: devices share the look-ups where that sends less than adding them up."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from .jax_side import Case, check

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


@pytest.mark.parametrize("axes", [{"a": 4, "b": 2}, {"a": 2, "b": 4}])
def test_look_ups_are_dealt(axes):
    case = Case(axes, look_up, arguments(), (TABLE, IDS, ROW), ROW)
    result, _ = check(case, exact=True)
    assert result.plan.counts["all_to_all"] == 1
    assert "all_reduce" not in result.plan.counts
    whole = ROWS * COLUMNS * WIDTH * 4 / axes["a"]  # what a device ends with
    moved = max(e.bytes for e in result.plan if e.kind == "all_to_all")
    assert moved < whole / axes["b"]


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
    result, _ = check(case, exact=True)
    assert "all_reduce" in result.plan.counts
