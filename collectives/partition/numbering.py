"""Equal operations on equal operands are one value: it is computed, and reduced over devices, once.

Frontends write the mean of a tensor again inside its variance, and positions again in every mask. The repeated
operation becomes another name of the first one's results wherever these are visible.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from propagation.program import Block, Op

from ..emit import has_grown
from .context import Context

__all__ = ["once"]

# What is not a function of its operands alone, or must stay where it is.
_OWN = frozenset(
    f"stablehlo.{name}"
    for name in (
        "after_all", "all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute",
        "composite", "create_token", "custom_call", "infeed", "optimization_barrier", "outfeed", "partition_id",
        "recv", "reduce_scatter", "replica_id", "rng", "rng_bit_generator", "send", "while", "case", "if",
    )
)  # fmt: skip


def once(ctx: Context, op: Op, rule: Callable[[Context, Op], None]) -> None:
    """Partitions an operation by its `rule`, unless its results are those of an equal one, and remembers them."""
    key = _key_of(ctx, op)
    if key is None:
        rule(ctx, op)
    elif not _bind_repeated(ctx, op, key):
        rule(ctx, op)
        ctx.region.known[key] = tuple([ctx.env[r] for r in op.results])


def _key_of(ctx: Context, op: Op) -> tuple | None:
    """What makes an operation equal to another; None if it never is."""
    name, env = op.name, ctx.env
    if not _is_function(name):
        return None
    bodies = tuple([_body_key(ctx, block) for block in op.regions]) if op.regions else ()
    if None in bodies:
        return None
    # States are equal to themselves only, so that types and operands need no tuples of their own.
    return (name, ctx.signature(op), bodies, ctx.manual, *[r.type for r in op.results], *[env[v] for v in op.operands])


@functools.cache
def _is_function(name: str) -> bool:
    """Whether operations of this name are functions of their operands."""
    return name not in _OWN and name.startswith(("stablehlo.", "chlo.", "sdy.constant"))


def _body_key(ctx: Context, block: Block) -> tuple | None:
    """The operations of a region of scalars by position; None if it uses values from outside."""
    number = {v: i for i, v in enumerate(block.args)}
    rows = []
    for op in block.ops:
        if op.regions or [v for v in op.operands if v not in number]:
            return None
        types = [r.type for r in op.results]
        rows.append((op.name, tuple([number[v] for v in op.operands]), ctx.signature(op), *types))
        for r in op.results:
            number[r] = len(number)
    return (tuple([a.type for a in block.args]), tuple(rows))


def _bind_repeated(ctx: Context, op: Op, key: tuple) -> bool:
    """Binds the results to those of an equal operation, if there is one."""
    shapes = [v.type.shape for v in op.operands]
    states = ctx.region.lookup(key, any(has_grown(r.type.shape, shapes) for r in op.results))
    if states is None or (op.name == "stablehlo.slice" and not any(s.versions or s.make for s in states)):
        return False  # of a slice not made yet, one consumer may need a sum over devices, another one intervals
    if all(ctx.env[v].make for v in op.operands) and any(map(ctx.move_bytes, states, map(ctx.want, op.results))):
        return False  # whatever is needed for it anywhere is there
    for r, state in zip(op.results, states):
        ctx.env[r] = state
        state.uses += len(r.uses)
    return True
