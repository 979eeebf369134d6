"""Programs written for machines whose arrays lie in tiles: as right as others, without what tiles make large."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from collectives.topology import load
from propagation.model import Mesh

from .jax_side import Case, check

SLICE = "v5e:2x4"


def on_tiles(case: Case, **options):
    axes = tuple(case.mesh.shape.items())
    return check(case, topology=load(SLICE).on(Mesh("mesh", axes)), **options)


def numbers(*shape):
    """With NaN, infinities, two zeros and many equals."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32).round(2)
    x.flat[:6] = np.nan, np.inf, -np.inf, -0.0, 0.0, -np.nan
    return x


def short_rows(text: str) -> list[str]:
    """The types of large tensors whose last dimension is a small part of a tile's row."""
    found = re.findall(r"tensor<((?:\d+x)+)[a-z]\w+>", text)
    shapes = [[int(n) for n in dims.split("x")[:-1]] for dims in found]
    return [str(s) for s in shapes if np.prod(s) > 4096 and s[-1] < 16]


@pytest.mark.parametrize("rows", [1 << 16, 1 << 17])
def test_a_sort_deals_rows_of_tiles(rows):
    """Shorter ones are gathered: one message of 56 KiB takes less time than the six of a columnsort."""
    case = Case({"x": 8}, lambda constrain: jnp.sort, (numbers(rows),), (P("x"),), P("x"))
    result, _ = on_tiles(case, rtol=0)
    assert "columnsort" in result.plan.as_text()
    assert not short_rows(result.as_text())


def test_a_sort_of_pairs_keeps_the_order_of_equals():
    keys = np.random.default_rng(0).integers(0, 9, (1 << 14, 2)).astype(np.int32)
    values = np.arange(keys.size, dtype=np.float32).reshape(keys.shape)
    build = lambda constrain: lambda k, v: lax.sort((k, v), dimension=0, num_keys=1)
    case = Case({"x": 8}, build, (keys, values), (P("x"), P("x")), (P("x"), P("x")))
    result, _ = on_tiles(case, rtol=0, above_xla=True)
    assert "columnsort" in result.plan.as_text()


@pytest.mark.parametrize("length, reverse", [(64, True), (8 * 136, False)])
def test_a_scan_within_a_row_takes_no_strides(length, reverse):
    def build(constrain):
        combine = lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1])
        return lambda a, b: lax.associative_scan(combine, (jax.nn.sigmoid(a), b), reverse=reverse, axis=0)[1]

    args = [np.random.default_rng(i).standard_normal((length, 3)).astype(np.float32) for i in range(2)]
    result, _ = on_tiles(Case({"x": 8}, build, tuple(args), (P("x"), P("x")), P("x")), above_xla=True)
    assert ("strides = array<i64: 2, 1>" in result.as_text()) == (length > 8 * 128)


@pytest.mark.parametrize("axes, before, after", [
    ({"x": 2, "y": 4}, P("x", "y"), P("y", "x")),
    ({"a": 2, "b": 2, "c": 2}, P("a", "b", "c"), P("c", ("a", "b"), None)),
    ({"a": 2, "b": 2, "c": 2}, P(("a", "b"), "c", None), P("c", None, ("b", "a"))),
])  # fmt: skip
def test_boxes_are_selected_into_their_slots(axes, before, after):
    x = np.arange(64 * 32 * 16, dtype=np.float32).reshape(64, 32, 16)
    case = Case(axes, lambda constrain: lambda x: x, (x,), (before,), after)
    result, _ = on_tiles(case, exact=True)
    counts = result.plan.counts
    if counts.keys() == {"collective_permute"} and counts["collective_permute"] > 1:
        assert "dynamic_update_slice" not in result.as_text()
