"""Pointwise operations on lazy slices along a split dimension, computed where the elements of most of them lie.

What is computed on u[1:-1] is a lazy slice itself, of a tensor as large as u: devices compute on the pieces of u, and
what stands there at the ends belongs to nobody. See `alignment.py` for which slices are moved to where the others are.
"""

from __future__ import annotations

import functools

from propagation.ops import POINTWISE
from propagation.program import Op, Value

from ..analysis.alignment import Alignment, aligned_with, is_uniform
from ..decide.candidate import Candidate, Sent
from ..halo.exchange import assemble
from ..halo.lazy_views import leave
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context
from ..layouts.state import Run, Span, View

__all__ = ["origin_of", "where_slices_lie"]


def where_slices_lie(ctx: Context, op: Op) -> Candidate | None:
    """The way to compute a pointwise operation where the elements of its lazy slices lie; None if it has none, or is
    better computed like others."""
    result = op.results[0]
    dims, shape = ctx.want(result), result.type.shape
    views = [v for v in op.operands if v.type.shape == shape and ctx.view(v, dims) is not None]
    if not views:
        return None
    d = _view(ctx, views[0], dims).dim
    found = _alignment(ctx, result, d)
    if found is None or not all(_fits(ctx, v, dims, d, found) for v in op.operands):
        return None
    row = ctx.itemsize(result) * ctx.elements(shape, dims) / -(-shape[d] // ctx.atoms.product(dims[d]))
    moves = [abs(_view(ctx, v, dims).start - found.start) for v in dict.fromkeys(views)]
    sent = Sent("collective_permute", dims[d], row * sum(moves), sum(map(bool, moves)))
    write = functools.partial(_write, ctx, op, dims, d, found)
    return Candidate((None,) * len(op.operands), (dims,), write, sent=(sent,) if any(moves) else ())


def origin_of(ctx: Context, dims: Dims, op: Op) -> dict[int, int]:
    """For a slice along one split dimension of a tensor laid out as `dims`, by that dimension: the position of a tensor
    as large at which pointwise operations take its first one. Empty where they take it as position 0."""
    (value,), (result,) = op.operands, op.results
    shape = result.type.shape
    cut = [d for d, atoms in enumerate(dims) if atoms and shape[d] != value.type.shape[d]]
    views, view = ctx.views(value, dims), ctx.view(value, dims)
    if len(cut) != 1 or views is not view or (view is not None and view.dim != cut[0]):
        return {}
    size = value.type.shape[cut[0]] if view is None else view.size
    found = set[Alignment | None]()
    for use in result.uses:
        is_pointwise = use.op.name in POINTWISE and use.op.results[0].type.shape == shape
        found.add(_alignment(ctx, use.op.results[0], cut[0]) if is_pointwise else None)
    (alignment,) = found if len(found) == 1 else (None,)
    return {cut[0]: alignment.start} if alignment is not None and alignment.size == size else {}


def _alignment(ctx: Context, value: Value, d: int) -> Alignment | None:
    key = ("alignment", value, d)
    if key not in ctx.decisions:
        ctx.decisions[key] = None  # where a slice of everything leads back here
        found, members = aligned_with(value, d, functools.partial(_alignment, ctx))
        ctx.decisions.update({("alignment", member, d): found for member in members})
    decided: Alignment | None = ctx.decisions[key]
    return decided


def _view(ctx: Context, value: Value, dims: Dims) -> View:
    view = ctx.view(value, dims)
    assert view is not None, "only lazy slices are asked for"
    return view


def _fits(ctx: Context, value: Value, dims: Dims, d: int, found: Alignment) -> bool:
    """Whether an operand is a lazy slice of a tensor as large, or is the same everywhere."""
    shape = value.type.shape
    if not shape:
        return True
    if is_uniform(value):
        p = ctx.atoms.product(dims[d])
        return len(shape) == len(dims) and -(-shape[d] // p) == -(-found.size // p)
    view = ctx.view(value, dims)
    if view is None or view.local is not None or view.dim != d or view.size != found.size:
        return False
    return view.holds(0, view.length)


def _write(ctx: Context, op: Op, dims: Dims, d: int, found: Alignment) -> None:
    """Computes on pieces of tensors of the size that the slices are cut from, and binds the result to a lazy slice of
    what that gives."""
    refs = [_moved(ctx, v, dims, d, found) for v in op.operands]
    shape = ctx.piece_shape(op.results[0], dims)
    base = ctx.local_one(op, refs, (*shape[:d], -(-found.size // ctx.atoms.product(dims[d])), *shape[d + 1 :]))
    span = Span(d, found.size, found.start, op.results[0].type.shape[d])
    leave(ctx, op, base, [span], dims, None, None, None)


def _moved(ctx: Context, value: Value, dims: Dims, d: int, found: Alignment) -> LocalValue:
    """What an operand is cut from, its elements moved to where those of the result are."""
    if not value.type.shape or is_uniform(value):
        return ctx.get(value, dims if value.type.shape else ())
    view = _view(ctx, value, dims)
    if view.start == found.start:
        return view.base
    run = Run(0, view.start, found.start, view.length)
    return assemble(ctx, d, dims[d], [view.base], [view.size], view.size, [run], None)
