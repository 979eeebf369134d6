"""The kernels of a selective scan: blocks of channels, walked over step by step with their states (states, channels).

`a` lies (states, channels), `b` and `c` (batch, steps, states, 1), so that what belongs to a step is a row of channels
or a column of states.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import lax
from meshrt import numpy as jnp
from meshrt.experimental import pallas as pl
from meshrt.experimental.pallas import tpu as pltpu
from meshrt.experimental.pallas.ops import heuristics
from meshrt.experimental.pallas.ops.tiles import accumulator, within
from meshrt.shape_dtype import ShapeDtypeStruct

__all__ = ["backward", "forward"]


@dataclasses.dataclass(frozen=True)
class _Walk:
    """The grid (batch, blocks of channels, blocks of steps), the windows along it, and how to walk through a block."""

    batch: int
    steps: int
    channels: int
    states: int
    rows: int
    width: int
    acc: Any
    backwards: bool

    @staticmethod
    def over(x: Any, a: Any, blocks: Any, backwards: bool = False) -> _Walk:
        batch, steps, channels = x.shape
        rows, width = heuristics.block_of(steps, blocks[0]), heuristics.block_of(channels, blocks[1])
        return _Walk(batch, steps, channels, a.shape[0], rows, width, accumulator(x, a), backwards)

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.batch, -(-self.channels // self.width), -(-self.steps // self.rows)

    @property
    def state(self) -> tuple[int, int]:
        return self.states, self.width

    @property
    def block(self) -> tuple[int, int]:
        return self.rows, self.width

    def at(self, t: Any) -> Any:
        """The block of steps of turn `t`."""
        return self.grid[2] - 1 - t if self.backwards else t

    def length(self, t: Any) -> Any:
        """How many steps the block of turn `t` has; those behind the last one do not exist."""
        if self.steps % self.rows == 0:
            return self.rows
        return jnp.minimum(self.rows, self.steps - self.at(t) * self.rows)

    # Windows

    def of_channels(self) -> Any:
        """Of arrays (batch, steps, channels)."""
        return pl.BlockSpec((None, self.rows, self.width), lambda m, c, t: (m, self.at(t), c))

    def of_states(self) -> Any:
        """Of arrays (batch, steps, states, 1)."""
        return pl.BlockSpec((None, self.rows, self.states, 1), lambda m, c, t: (m, self.at(t), 0, 0))

    def of_sums(self) -> Any:
        """Of what each block of channels adds to arrays by states: (batch, blocks of channels, steps, states, 1)."""
        return pl.BlockSpec((None, None, self.rows, self.states, 1), lambda m, c, t: (m, c, self.at(t), 0, 0))

    def of_first(self) -> Any:
        """Of the states before each block of steps: (batch, blocks of steps, states, channels)."""
        return pl.BlockSpec((None, None, self.states, self.width), lambda m, c, t: (m, self.at(t), 0, c))

    def coefficients(self) -> Any:
        return pl.BlockSpec((self.states, self.width), lambda m, c, t: (0, c))

    def call(self, kernel: Any, name: str, in_specs: Any, out_specs: Any, out_shape: Any, scratch: Any) -> Any:
        work = self.batch * self.steps * self.channels
        return pl.pallas_call(
            functools.partial(kernel, walk=self),
            grid=self.grid,
            in_specs=in_specs,
            out_specs=out_specs,
            out_shape=out_shape,
            scratch_shapes=[pltpu.VMEM(shape, self.acc) for shape in scratch],
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
            cost_estimate=pl.CostEstimate(
                flops=8 * work * self.states, transcendentals=work * self.states,
                bytes_accessed=3 * work * np.dtype(self.acc).itemsize,
            ),
            name=name,
        )  # fmt: skip


def forward(x: Any, delta: Any, a: Any, b: Any, c: Any, blocks: Any) -> Any:
    """y (batch, steps, channels)."""
    walk = _Walk.over(x, a, blocks)
    wide, narrow = walk.of_channels(), walk.of_states()
    return walk.call(
        _forward_kernel, "selective_scan", [wide, wide, walk.coefficients(), narrow, narrow], wide,
        ShapeDtypeStruct(x.shape, x.dtype), [walk.state, *[walk.block] * 3],
    )(x, delta, a, b, c)  # fmt: skip


def _step(walk: _Walk, t: Any, h: Any, wide: Any, a: Any, b: Any) -> Any:
    """The states after step `t` of a block: (states, channels). `wide` are x and delta."""
    x, delta = (ref[pl.ds(t, 1), :] for ref in wide)
    return jnp.exp(delta * a) * h + b[t].astype(walk.acc) * (delta * x)


def _widened(walk: _Walk, refs: Sequence[Any], scratch: Sequence[Any]) -> Sequence[Any]:
    """The blocks in the dtype of sums: of narrower ones, of which several lie in one word, no single row can be read.
    They are zero beyond the last channel, for sums over channels."""
    for ref, wide in zip(refs, scratch):
        wide[...] = within(ref[...].astype(walk.acc), pl.program_id(1), 1, walk.channels)
    return scratch


def _forward_kernel(
    x_ref: Any, delta_ref: Any, a_ref: Any, b_ref: Any, c_ref: Any, y_ref: Any, h_ref: Any, *scratch: Any, walk: _Walk
) -> None:  # fmt: skip
    turn = pl.program_id(2)
    a = a_ref[...].astype(walk.acc)
    *wide, y_wide = scratch
    _widened(walk, (x_ref, delta_ref), wide)

    @pl.when(turn == 0)
    def _start() -> None:
        h_ref[...] = jnp.zeros(h_ref.shape, walk.acc)

    def step(t: Any, h: Any) -> Any:
        h = _step(walk, t, h, wide, a, b_ref)
        y_wide[pl.ds(t, 1), :] = jnp.sum(c_ref[t].astype(walk.acc) * h, axis=0, keepdims=True)
        return h

    h_ref[...] = lax.fori_loop(0, walk.length(turn), step, h_ref[...])
    y_ref[...] = y_wide[...].astype(y_ref.dtype)


def backward(x: Any, delta: Any, a: Any, b: Any, c: Any, cotangent: Any, blocks: Any) -> tuple[Any, ...]:
    """Cotangents of x and delta (batch, steps, channels), of a (batch, states, channels), of b and c (batch, blocks of
    channels, steps, states, 1); the last three are to be summed."""
    ahead = _Walk.over(x, a, blocks)
    wide, narrow = ahead.of_channels(), ahead.of_states()
    grid, type_of = ahead.grid, ShapeDtypeStruct
    first = ahead.call(
        _states_kernel, "selective_scan_states", [wide, wide, ahead.coefficients(), narrow], ahead.of_first(),
        type_of((ahead.batch, grid[2], ahead.states, ahead.channels), ahead.acc), [ahead.state, *[ahead.block] * 2],
    )(x, delta, a, b)  # fmt: skip
    walk = _Walk.over(x, a, blocks, backwards=True)
    wide, narrow, sums = walk.of_channels(), walk.of_states(), walk.of_sums()
    of_sums = type_of((walk.batch, grid[1], walk.steps, walk.states, 1), walk.acc)
    return walk.call(
        _backward_kernel, "selective_scan_backward",
        [wide, wide, walk.coefficients(), narrow, narrow, wide, walk.of_first()],
        [wide, wide, pl.BlockSpec((None, walk.states, walk.width), lambda m, c, t: (m, 0, c)), sums, sums],
        [
            type_of(x.shape, x.dtype), type_of(delta.shape, delta.dtype),
            type_of((walk.batch, walk.states, walk.channels), walk.acc), of_sums, of_sums,
        ],
        [walk.state, (walk.rows, *walk.state), *[walk.block] * 5],
    )(x, delta, a, b, c, cotangent, first)  # fmt: skip


def _states_kernel(
    x_ref: Any, delta_ref: Any, a_ref: Any, b_ref: Any, first_ref: Any, h_ref: Any, *wide: Any, walk: _Walk
) -> None:  # fmt: skip
    """Writes the states before each block."""
    turn = pl.program_id(2)
    a = a_ref[...].astype(walk.acc)
    _widened(walk, (x_ref, delta_ref), wide)

    @pl.when(turn == 0)
    def _start() -> None:
        h_ref[...] = jnp.zeros(h_ref.shape, walk.acc)

    first_ref[...] = h_ref[...]
    step = lambda t, h: _step(walk, t, h, wide, a, b_ref)
    h_ref[...] = lax.fori_loop(0, walk.length(turn), step, h_ref[...])


def _backward_kernel(
    x_ref: Any, delta_ref: Any, a_ref: Any, b_ref: Any, c_ref: Any, g_ref: Any, first_ref: Any, dx_ref: Any,
    ddelta_ref: Any, da_ref: Any, db_ref: Any, dc_ref: Any, dh_ref: Any, before_ref: Any, *scratch: Any, walk: _Walk,
) -> None:  # fmt: skip
    """Walks through a block twice: ahead, to note the states before each step, and back, with what is pulled back to
    them."""
    turn, block = pl.program_id(2), pl.program_id(1)
    length = walk.length(turn)
    inside = lambda v: within(v.astype(walk.acc), block, 1, walk.channels)  # sums over channels follow
    a = inside(a_ref[...])
    *wide, dx_wide, ddelta_wide = scratch
    _widened(walk, (x_ref, delta_ref, g_ref), wide)

    @pl.when(turn == 0)
    def _start() -> None:
        dh_ref[...] = jnp.zeros(dh_ref.shape, walk.acc)
        da_ref[...] = jnp.zeros(da_ref.shape, walk.acc)

    def ahead(t: Any, h: Any) -> Any:
        before_ref[t] = h
        return _step(walk, t, h, wide[:2], a, b_ref)

    lax.fori_loop(0, length, ahead, inside(first_ref[...]))

    def back(k: Any, carry: Any) -> Any:
        dh, da = carry
        t = length - 1 - k
        x, delta, g = (ref[pl.ds(t, 1), :] for ref in wide)
        b, c, before = b_ref[t].astype(walk.acc), c_ref[t].astype(walk.acc), before_ref[t]
        decay = jnp.exp(delta * a)
        h = decay * before + b * (delta * x)
        dh = dh + c * g
        dc_ref[t] = jnp.sum(h * g, axis=1, keepdims=True)
        db_ref[t] = jnp.sum(dh * (delta * x), axis=1, keepdims=True)
        through, entered = dh * before * decay, jnp.sum(dh * b, axis=0, keepdims=True)
        ddelta_wide[pl.ds(t, 1), :] = jnp.sum(through * a, axis=0, keepdims=True) + entered * x
        dx_wide[pl.ds(t, 1), :] = entered * delta
        return dh * decay, da + through * delta

    dh, da = lax.fori_loop(0, length, back, (dh_ref[...], da_ref[...]))
    dh_ref[...], da_ref[...] = dh, da
    dx_ref[...], ddelta_ref[...] = dx_wide[...].astype(dx_ref.dtype), ddelta_wide[...].astype(ddelta_ref.dtype)
