"""Annotations and what only stands in order: sharding constraints, barriers, tokens, messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from propagation.program import Op, Value, source

from ..decide.candidate import Candidate
from ..errors import WITH_XLA, UnsupportedOpError
from ..layout import Dims
from ..layouts.context import Context
from ..layouts.provenance import asked
from . import batch

# -- of one value -----------------------------------------------------------------------------------------------


def constraint(ctx: Context, op: Op) -> Iterator[Candidate]:
    """A sharding constraint or reshard: the value in the layout of the annotation."""
    value, result = op.operands[0], op.results[0]
    state, dims = ctx.state(value), ctx.want(result)
    sharding, sum_ = ctx.sharding(result), state.partial
    stays = state.pending and sum_ is not None and sum_.dims == dims and sharding is not None and sharding.unreduced
    if stays or state.make is not None or state.type_text is not None:
        yield Candidate((None,), (dims,), partial(same, ctx, op))
    else:
        yield Candidate((dims,), (dims,), partial(_constrain, ctx, op, dims))


def _constrain(ctx: Context, op: Op, dims: Dims) -> None:
    value, result = op.operands[0], op.results[0]
    ctx.bind(result, dims, asked(ctx, value, dims, "annotation"))
    ctx.state(result).recipe = ctx.state(value).recipe


def asked_ahead(ctx: Context, op: Op, value: Value, dims: Dims) -> Iterator[Candidate]:
    """For the look-ahead: a constraint brings its operand to the layout of the annotation."""
    layout = ctx.want(op.results[0])
    yield Candidate((layout,), (layout,))


def reduced(ctx: Context, op: Op) -> Iterator[Candidate]:
    """`sdy.all_reduce` and `sdy.reduce_scatter`, which Shardy inserts behind an operation with a partial result. Values
    of the global program are whole, so it is the operand itself, in the layout of the result. Of an argument that makes
    sense only if it is declared unreduced."""
    value = op.operands[0]
    sharding = ctx.sharding(value)
    if not isinstance(value.owner, Op) and not (sharding is not None and sharding.unreduced):
        raise UnsupportedOpError(
            f"{op.name} adds up what devices hold of an argument that is not declared unreduced; give the argument an "
            "unreduced sharding, or reduce it in a manual computation",
            source(op),
        )
    yield from constraint(ctx, op)


# -- what only tells something ----------------------------------------------------------------------------------


def same(ctx: Context, op: Op) -> None:
    """The result is the operand: operations that only tell propagation something."""
    for v, r in zip(op.operands, op.results):
        ctx.bind_same(r, v)


def told(ctx: Context, op: Op) -> Iterator[Candidate]:
    """Operands as they are."""
    yield Candidate((None,) * len(op.operands), (None,) * len(op.results), partial(same, ctx, op))


def through(ctx: Context, op: Op, value: Value, dims: Dims) -> Iterator[Candidate]:
    """For the look-ahead: a result is laid out as its operand."""
    passed = tuple([dims if v is value else None for v in op.operands])
    yield Candidate(passed, passed)


def nothing(ctx: Context, op: Op) -> None:
    pass


# -- what stands in order ---------------------------------------------------------------------------------------


def optimization_barrier(ctx: Context, op: Op) -> Iterator[Candidate]:
    """One barrier over the pieces of all operands: no collective or computation of theirs moves across it. What is
    complete passes as it is: gathered behind the barrier, it is held in pieces as long as frontends meant to save
    memory."""
    layouts = []
    for v, r in zip(op.operands, op.results):
        state, want = ctx.state(v), ctx.want(r)
        layouts.append(want if state.dims is None or state.pending or want in state.versions else state.dims)
    passed = tuple(layouts)
    yield Candidate(passed, passed, partial(_barrier, ctx, op, passed))


def _barrier(ctx: Context, op: Op, layouts: Sequence[Dims]) -> None:
    refs = [ctx.get(v, dims) for v, dims in zip(op.operands, layouts)]
    outs = ctx.region.op(op.name, refs, [(r.shape, r.dtype) for r in refs], loc=ctx.loc)
    for r, dims, ref, old in zip(op.results, layouts, outs, refs):
        ref.type_text = old.type_text
        ctx.bind(r, dims, ref)


def token(ctx: Context, op: Op) -> None:
    """Operations on tokens: run on every device."""
    batch.write_whole(ctx, op, "it has no sharding of its own", effect=True)


def message(ctx: Context, op: Op) -> None:
    """Messages to and from the host (outfeed, send, ...): in a manual computation once on each device."""
    if not ctx.manual and ctx.atoms.count > 1:
        raise UnsupportedOpError(
            f"{op.name} outside of a manual computation would run once per device; write it in one (shard_map), or "
            f"{WITH_XLA}",
            source(op),
        )
    token(ctx, op)


_ASKED = ("sharding_constraint", "reshard", "all_gather", "all_slice", "all_to_all", "collective_permute")
_SUMMED = ("all_reduce", "reduce_scatter")
_TOLD = ("propagation_barrier", "data_flow_edge")

AHEAD = {
    **{f"sdy.{name}": asked_ahead for name in (*_ASKED, *_SUMMED)},
    **{f"sdy.{name}": through for name in _TOLD},
    "stablehlo.optimization_barrier": through,
}

CANDIDATES = {
    **{f"sdy.{name}": constraint for name in _ASKED},
    **{f"sdy.{name}": reduced for name in _SUMMED},
    **{f"sdy.{name}": told for name in _TOLD},
    "stablehlo.optimization_barrier": optimization_barrier,
}

PARTITION = {
    "sdy.sharding_group": nothing,
    **{f"stablehlo.{name}": token for name in ("after_all", "create_token")},
    **{f"stablehlo.{name}": message for name in ("infeed", "outfeed", "send", "recv")},
}
