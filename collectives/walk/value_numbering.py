"""Common-subexpression elimination by value numbering: an operation with the name, attributes and operands of an
earlier one is not written again; its results are the earlier ones, reductions over devices included.

Frontends write the mean of a tensor again inside its variance (an all-reduce each), and an iota again in every mask.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from propagation.ops import COMMUNICATING, CONTROL, having
from propagation.program import Block, Op

from ..ir.program import has_grown
from ..layouts.context import Context

__all__ = ["once"]

# Operations that are no function of their operands alone, or must stay where they are.
_OWN = COMMUNICATING | CONTROL | having("nondeterministic") | having("message") | having("token") | having("device_id")
_OWN |= {"stablehlo.composite", "stablehlo.optimization_barrier", "stablehlo.rng_bit_generator"}


def once(ctx: Context, op: Op, rule: Callable[[Context, Op], None]) -> None:
    """Partitions an operation by its `rule`, unless an equal operation is visible, whose results it then takes."""
    operands, results = op.operands, op.results
    key: tuple[Any, ...] | None
    if op.regions or len(results) != 1 or not _is_function(op.name):
        key = _key_of(ctx, op)
        if key is None:
            rule(ctx, op)
            return
    else:  # as most are; states are equal to themselves only, so that types and operands need no tuples of their own
        env, kind = ctx.env, results[0].type
        if len(operands) == 2:
            key = (op.name, ctx.signature(op), (), ctx.manual, kind, env[operands[0]], env[operands[1]])
        else:
            key = (op.name, ctx.signature(op), (), ctx.manual, kind, *[env[v] for v in operands])
    region = ctx.region
    if (region.parent is None and key not in region.known) or not _bind_repeated(ctx, op, key):
        rule(ctx, op)
        env = ctx.env
        ctx.region.known[key] = (env[results[0]],) if len(results) == 1 else tuple([env[r] for r in results])


def _key_of(ctx: Context, op: Op) -> tuple[Any, ...] | None:
    """The key of an operation with regions or several results, equal for equal operations; None if it must not be
    merged with any."""
    name, env = op.name, ctx.env
    if not _is_function(name):
        return None
    bodies = tuple([_body_key(ctx, block) for block in op.regions])
    if None in bodies:
        return None
    return (name, ctx.signature(op), bodies, ctx.manual, *[r.type for r in op.results], *[env[v] for v in op.operands])


@functools.cache
def _is_function(name: str) -> bool:
    """Whether operations of this name are functions of their operands."""
    return name not in _OWN and name.startswith(("stablehlo.", "chlo.", "sdy.constant"))


def _body_key(ctx: Context, block: Block) -> tuple[Any, ...] | None:
    """The key of a region of scalars; None if it captures values from outside."""
    number = {v: i for i, v in enumerate(block.args)}
    rows: list[tuple[Any, ...]] = []
    for op in block.ops:
        if op.regions:
            return None
        if [v for v in op.operands if v not in number]:
            return None
        types = [r.type for r in op.results]
        rows.append((op.name, tuple([number[v] for v in op.operands]), ctx.signature(op), *types))
        for r in op.results:
            number[r] = len(number)
    return (tuple([a.type for a in block.args]), tuple(rows))


def _bind_repeated(ctx: Context, op: Op, key: tuple[Any, ...]) -> bool:
    """Binds the results to those of an equal operation, if there is one."""
    states = ctx.region.known.get(key)
    if states is None and ctx.region.parent is not None:
        shapes = [v.type.shape for v in op.operands]
        states = ctx.region.lookup(key, any(has_grown(r.type.shape, shapes) for r in op.results))
    if states is None or (op.name == "stablehlo.slice" and not any(s.versions or s.make for s in states)):
        return False  # of a lazy slice, one consumer may want a masked lookup and another one an interval move
    if all(ctx.env[v].make for v in op.operands) and any(map(ctx.move_bytes, states, map(ctx.want, op.results))):
        return False  # all operands can be made anywhere, so computing it again is cheaper than moving it
    for r, state in zip(op.results, states):
        ctx.env[r] = state
        state.use(len(r.uses))
    return True
