"""What the kernels of attention share: which blocks of scores exist, which are skipped, and how they are masked.

Arrays are laid out (batch, heads, positions, width). Scores are computed block by block, `rows` queries by `columns`
keys, and never written.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from meshrt import numpy as jnp
from meshrt.experimental import pallas as pl
from meshrt.experimental.pallas import tpu as pltpu
from meshrt.experimental.pallas import triton as pltriton
from meshrt.experimental.pallas.ops.heuristics import STAGES, warps_for
from meshrt.experimental.pallas.ops.tiles import contract, positions, within
from meshrt.shape_dtype import ShapeDtypeStruct

__all__ = ["Blocks", "Plan", "rows_within"]


@dataclasses.dataclass(frozen=True)
class Plan:
    """A call of attention: sizes, blocks, and what may attend to what.

    before, after: how many positions before and after its own a query may attend to; None for any number.
    bias: the shape of the bias, of four dimensions, each 1 or whole. segments: whether positions have segments.
    narrowed: whether the steps of a kernel begin and end where there are blocks, instead of leaving blocks out by
      branches: on GPUs, where nothing is fetched ahead inside of branches.
    """

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    width: int
    rows: int
    columns: int
    scale: float
    before: int | None
    after: int | None
    bias: tuple[int, ...] | None
    segments: bool
    dtype: Any
    itemsize: int
    narrowed: bool = False

    @property
    def shared(self) -> int:
        """How many heads share a head of keys and values."""
        return self.heads // self.groups

    @property
    def row_blocks(self) -> int:
        return -(-self.queries // self.rows)

    @property
    def column_blocks(self) -> int:
        return -(-self.keys // self.columns)

    # Which blocks have pairs that may attend to each other; i and j may be traced.

    def columns_for(self, i: Any) -> tuple[Any, Any]:
        """The first and the last block of keys that block `i` of queries may attend to."""
        first, last = 0, self.column_blocks - 1
        if self.before is not None:
            first = jnp.maximum(i * self.rows - self.before, 0) // self.columns
        if self.after is not None:
            last = jnp.minimum(jnp.maximum((i + 1) * self.rows - 1 + self.after, 0) // self.columns, last)
        return first, last

    def rows_for(self, j: Any) -> tuple[Any, Any]:
        """The first and the last block of queries that may attend to block `j` of keys."""
        first, last = 0, self.row_blocks - 1
        if self.after is not None:
            first = jnp.maximum(j * self.columns - self.after, 0) // self.rows
        if self.before is not None:
            last = jnp.minimum(jnp.maximum((j + 1) * self.columns - 1 + self.before, 0) // self.rows, last)
        return first, last

    @property
    def is_banded(self) -> bool:
        return self.before is not None or self.after is not None

    def meets(self, i: Any, j: Any) -> Any:
        """Whether block (i, j) has a pair of positions that may attend to each other."""
        if not self.is_banded or self.narrowed:
            return True
        first, last = self.columns_for(i)
        return jnp.logical_and(j >= first, j <= last)

    def ends_of_row(self, i: Any) -> tuple[Any, Any]:
        """The first and the last step over blocks of keys of block `i` of queries; there is one at least."""
        if not (self.narrowed and self.is_banded):
            return 0, self.column_blocks - 1
        first, last = self.columns_for(i)
        return jnp.minimum(first, last), last

    def ends_of_column(self, j: Any) -> tuple[Any, Any]:
        """The first and the last step over blocks of queries of block `j` of keys; there is one at least."""
        if not (self.narrowed and self.is_banded):
            return 0, self.row_blocks - 1
        first, last = self.rows_for(j)
        return jnp.minimum(first, last), last

    # Operands of kernels whose grid positions `at` maps to (batch, head, block of queries, block of keys)

    def by_rows(self, width: int, at: Any) -> Any:
        """The window of an array (batch, heads, queries, width)."""

        def index(*place: Any) -> Any:
            b, h, i, _ = at(*place)
            return b, h, i, 0

        return pl.BlockSpec((None, None, self.rows, width), index)

    def by_columns(self, at: Any) -> Any:
        """The window of keys or values."""

        def index(*place: Any) -> Any:
            b, h, _, j = at(*place)
            return b, h // self.shared, j, 0

        return pl.BlockSpec((None, None, self.columns, self.width), index)

    def beside(self, at: Any) -> list[Any]:
        """The windows of bias and segments, where there are any."""
        specs = []
        if self.bias is not None:
            b1, h1, t1, s1 = (n == 1 for n in self.bias)

            def index(*place: Any) -> Any:
                b, h, i, j = at(*place)
                return 0 if b1 else b, 0 if h1 else h, 0 if t1 else i, 0 if s1 else j

            specs.append(pl.BlockSpec((None, None, 1 if t1 else self.rows, 1 if s1 else self.columns), index))
        if self.segments:

            def of_rows(*place: Any) -> Any:
                b, _, i, _ = at(*place)
                return b, i, 0

            def of_columns(*place: Any) -> Any:
                b, _, _, j = at(*place)
                return b, 0, j

            specs.append(pl.BlockSpec((None, self.rows, 1), of_rows))
            specs.append(pl.BlockSpec((None, 1, self.columns), of_columns))
        return specs

    def rows_type(self, width: int, dtype: Any) -> Any:
        return ShapeDtypeStruct((self.batch, self.heads, self.queries, width), dtype)

    def compiler_params(self, along: str, of_rows: int, of_columns: int, sums: int) -> dict[str, Any]:
        """What compilers are told of a kernel whose steps go along the "keys" or the "queries", of all heads that share
        keys, and which holds so many blocks by queries, by keys, and `sums` elements of sums for each of the width."""
        semantics = ("parallel",) * 3 + ("arbitrary",) * (1 if along == "keys" else 2)
        turns = Turns(self, along) if self.narrowed and self.is_banded else None
        width = 1 << (self.width - 1).bit_length()
        operands = (of_rows * self.rows + of_columns * self.columns) * width
        warps = warps_for(operands, sums * width, self.itemsize)
        return {
            "mosaic": pltpu.CompilerParams(dimension_semantics=semantics),
            "triton": pltriton.CompilerParams(num_warps=warps, num_stages=STAGES, turns=turns),
        }

    def cost(self, products: int, itemsize: int) -> Any:
        """What a kernel of so many products per pair costs, at most: skipped blocks are counted by their share."""
        pairs = self.queries * self.keys
        if self.after is not None and self.before is None:
            pairs = pairs // 2
        elif self.is_banded and self.before is not None and self.after is not None:
            pairs = min(pairs, self.queries * (self.before + self.after + 1))
        heads = self.batch * self.heads
        moved = heads * (2 * self.queries + products * self.keys * self.row_blocks) * self.width * itemsize
        return pl.CostEstimate(
            flops=2 * products * heads * pairs * self.width, transcendentals=heads * pairs, bytes_accessed=moved
        )


@dataclasses.dataclass(frozen=True)
class Turns:
    """Where the steps of a kernel along "keys" or "queries" begin and end, by the place of the others."""

    plan: Plan
    along: str

    def __call__(self, b: Any, h: Any, block: Any, *shared: Any) -> tuple[Any, Any]:
        ends = self.plan.ends_of_row if self.along == "keys" else self.plan.ends_of_column
        first, last = ends(block)
        return jnp.asarray(first, np.int32), jnp.asarray(last + 1, np.int32)


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The references of one turn of a kernel, and what it reads through them."""

    plan: Plan
    q: Any
    k: Any
    v: Any
    bias: Any
    segments: Any

    @staticmethod
    def of(plan: Plan, refs: list[Any]) -> Blocks:
        """Takes its references from the front of the list."""
        q, k, v = (refs.pop(0) for _ in range(3))
        bias = refs.pop(0) if plan.bias is not None else None
        segments = (refs.pop(0), refs.pop(0)) if plan.segments else None
        return Blocks(plan, q, k, v, bias, segments)

    def keys(self, j: Any) -> Any:
        return within(self.k[...], j, 0, self.plan.keys)

    def values(self, j: Any) -> Any:
        return within(self.v[...], j, 0, self.plan.keys)

    def queries(self, i: Any) -> Any:
        return within(self.q[...], i, 0, self.plan.queries)

    def scores(self, q: Any, k: Any, i: Any, j: Any) -> Any:
        """The scores of block (i, j): minus infinity where attention is not allowed."""
        plan = self.plan
        out = contract(q, k, 1, 1, plan.dtype) * np.asarray(plan.scale, plan.dtype)[()]
        if self.bias is not None:
            bias = self.bias[...].astype(plan.dtype)
            out = out + (bias if bias.shape[0] == 1 else rows_within(plan, bias, i))
        allowed = self._allowed(i, j)
        return out if allowed is None else jnp.where(allowed, out, np.asarray(-np.inf, plan.dtype)[()])

    def _allowed(self, i: Any, j: Any) -> Any:
        plan = self.plan
        shape = (plan.rows, plan.columns)
        conditions = []
        column = positions(j, shape, 1)
        if plan.keys % plan.columns:
            conditions.append(column < plan.keys)
        if plan.is_banded:
            apart = column - positions(i, shape, 0)
            if plan.before is not None:
                conditions.append(apart >= -plan.before)
            if plan.after is not None:
                conditions.append(apart <= plan.after)
        if self.segments is not None:
            conditions.append(self.segments[0][...] == self.segments[1][...])
        out = None
        for c in conditions:
            out = c if out is None else jnp.logical_and(out, c)
        return out


def rows_within(plan: Plan, x: Any, i: Any) -> Any:
    """A block of an array by queries, zero where it reaches beyond."""
    return within(x, i, 0, plan.queries)
