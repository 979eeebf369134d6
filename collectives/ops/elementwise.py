"""Pointwise operations: computed in the layout of an operand or in the one wanted for the result, whichever sends less.

Sums, differences and products with a constant pass unreduced operands on (see `deferred_reduction`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from propagation.ops import POINTWISE
from propagation.program import Op, Value

from ..analysis.constants import scalar_constant
from ..decide.candidate import Candidate, as_propagated
from ..heuristics import RECOMPUTED_SOURCE_SHARE
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts import recompute
from ..layouts.context import Context
from ..partial_sums import deferred_reduction
from .aligned import where_slices_lie

_WITH_UNIT = ("stablehlo.divide", "stablehlo.multiply")  # a one among the operands may be all there is to them


def pointwise(ctx: Context, op: Op) -> Sequence[Candidate]:
    """Any pointwise operation. Scalar operands beside larger ones (clamp, select) stay replicated."""
    result = op.results[0]
    env = ctx.env
    made = [v for v in op.operands if env[v].make is None]
    if not made:
        make = lambda dims: _compute(ctx, op, dims)
        return (Candidate((None,) * len(op.operands), (None,), lambda: ctx.bind_lazy(result, make)),)
    if [v for v in made if env[v].view is not None] and (placed := where_slices_lie(ctx, op)) is not None:
        return (placed,)
    rank = len(result.type.shape)
    bound = [v for v in made if len(v.type.shape) == rank]
    layouts = _layouts(ctx, result, bound)
    per_element = ctx.itemsize(result) * (1 + len(bound)) * ctx.redundancy if len(layouts) > 1 else 0.0
    found = []
    for dims in layouts:
        work = ctx.elements(result.type.shape, dims) * per_element if per_element else 0.0  # nobody weighs a single one
        operands = tuple([dims if v in bound else None for v in op.operands])
        found.append(Candidate(operands, (dims,), functools.partial(_write, ctx, op, dims), work=work))
    return found


def settled(ctx: Context, op: Op) -> bool:
    """Whether every operand is there in the layout that is wanted for the result, or can be made in it; then the
    operation is written in it."""
    result, operands, env = op.results[0], op.operands, ctx.env
    dims = ctx.wants.get(result) or ctx.want(result)
    there: list[LocalValue] = []
    most = -1.0  # bytes of the largest operand that is no copy of something small
    for v in operands:
        state = env[v]
        ref = state.versions.get(dims)
        if state.make is None:
            if ref is None:
                return False
            size = state.bytes if state.recipe is None else 0.0
            if size > most:
                most = size
        elif op.name in _WITH_UNIT and scalar_constant(v) == 1:
            return False
        if ref is not None:
            there.append(ref)
    if most < 0.0:
        return False  # all can be made anywhere, and so can the result
    if len(there) == len(operands):
        ref = ctx.local_one(op, there, ctx.piece_shape(result, dims))
    else:
        ref = _compute(ctx, op, dims)
    state = ctx.new_state(result, {dims: ref})
    if len(operands) == 1 or most <= RECOMPUTED_SOURCE_SHARE * state.bytes:
        _note_recipe(ctx, op)
    return True


def _layouts(ctx: Context, result: Value, bound: Sequence[Value]) -> list[Dims]:
    """The layouts to compute in: the one wanted for the result, and those of operands (resharding the result later may
    be cheaper)."""
    want = ctx.want(result)
    env = ctx.env
    found = [want]
    if not [v for v in bound if want not in env[v].versions]:
        return found
    for v in bound:
        state = env[v]
        for dims in [state.dims, *state.versions]:
            if dims is not None and dims not in found:
                found.append(dims)
    return found


def _write(ctx: Context, op: Op, dims: Dims) -> None:
    result = op.results[0]
    ctx.bind(result, dims, _compute(ctx, op, dims))
    _note_recipe(ctx, op)


def _note_recipe(ctx: Context, op: Op) -> None:
    again = lambda refs, dims: ctx.local_one(op, refs, ctx.piece_shape(op.results[0], dims))
    recompute.note(ctx, op, op.operands, lambda dims: _operand_layouts(op, dims), again)


def ahead(ctx: Context, op: Op, value: Value, dims: Dims) -> Iterator[Candidate]:
    """For the look-ahead: the layouts in which a pointwise operation may work, one operand being in `dims`."""
    (result, *more), shape = op.results, value.type.shape
    if more or result.type.shape != shape:
        yield as_propagated(ctx, op, value)
        return
    layouts = [dims, ctx.want(value), ctx.want(result)]
    alike = [True]
    if len(op.operands) > 1:
        alike = [v.type.shape == shape for v in op.operands]
        have = [ctx.env[v].dims for v, a in zip(op.operands, alike) if a and v is not value and v in ctx.env]
        layouts += [d for d in have if d is not None]
    for layout in dict.fromkeys(layouts):
        operands = (layout,) * len(alike) if all(alike) else tuple([layout if a else None for a in alike])
        yield Candidate(operands, (layout,))


def _operand_layouts(op: Op, dims: Dims) -> tuple[Dims, ...]:
    return tuple([dims if len(v.type.shape) == len(dims) else () for v in op.operands])


def _compute(ctx: Context, op: Op, dims: Dims) -> LocalValue:
    operands = [ctx.get(v, wanted) for v, wanted in zip(op.operands, _operand_layouts(op, dims))]
    return ctx.local_one(op, operands, ctx.piece_shape(op.results[0], dims))


def add(ctx: Context, op: Op) -> Sequence[Candidate]:
    """Sums stay sums."""
    return _or_pointwise(ctx, op, deferred_reduction.added(ctx, op, negate_second=False))


def subtract(ctx: Context, op: Op) -> Sequence[Candidate]:
    """Differences of sums stay sums."""
    return _or_pointwise(ctx, op, deferred_reduction.added(ctx, op, negate_second=True))


def _or_pointwise(ctx: Context, op: Op, summed: Candidate | None) -> Sequence[Candidate]:
    """The way in which unreduced operands are passed on, if there is one: it sends nothing, and what follows is summed
    up less often or on less. Else those of any pointwise operation."""
    return pointwise(ctx, op) if summed is None else (summed,)


def multiply(ctx: Context, op: Op) -> Sequence[Candidate]:
    """A product with one is its other operand, and one of a sum with a constant stays a sum."""
    a, b = op.operands
    if scalar_constant(a) == 1:
        return _same(ctx, op, b)
    if scalar_constant(b) == 1:
        return _same(ctx, op, a)
    scaled = deferred_reduction.scaled(ctx, op, 0) or deferred_reduction.scaled(ctx, op, 1)
    return _or_pointwise(ctx, op, scaled)


def divide(ctx: Context, op: Op) -> Sequence[Candidate]:
    """As `multiply`."""
    floating = not op.results[0].type.dtype.startswith(("i", "ui"))
    if scalar_constant(op.operands[1]) == 1:
        return _same(ctx, op, op.operands[0])
    return _or_pointwise(ctx, op, deferred_reduction.scaled(ctx, op, 0) if floating else None)


def _same(ctx: Context, op: Op, value: Value) -> Sequence[Candidate]:
    """x * 1 and x / 1 are x: frontends write them, as the cotangent of a loss begins with ones."""
    write = functools.partial(ctx.bind_same, op.results[0], value)
    return (Candidate((None,) * len(op.operands), (None,), write),)


def negate(ctx: Context, op: Op) -> Sequence[Candidate]:
    """A sum's parts are negated one by one."""
    partial = deferred_reduction.deferred(ctx, op.operands[0])
    if partial is None:
        return pointwise(ctx, op)
    local = lambda r: ctx.emit(op.name, (r,), r.shape, r.dtype)
    return (deferred_reduction.applied(ctx, op, partial, partial.dims, local),)


def convert(ctx: Context, op: Op) -> Sequence[Candidate]:
    """An unreduced sum converted to its own type stays unreduced; to another one it is rounded after the sum."""
    value = op.operands[0]
    partial = deferred_reduction.deferred(ctx, value) if value.type.dtype == op.results[0].type.dtype else None
    if partial is None:
        return pointwise(ctx, op)
    return (deferred_reduction.applied(ctx, op, partial, partial.dims, lambda r: r),)


BEHIND = dict.fromkeys([*sorted(POINTWISE), "stablehlo.map"], _operand_layouts)

AHEAD = dict.fromkeys([*sorted(POINTWISE), "stablehlo.map"], ahead)

SETTLED = dict.fromkeys(sorted(POINTWISE), settled)

CANDIDATES = {
    **dict.fromkeys(sorted(POINTWISE), pointwise),
    "stablehlo.map": pointwise,
    "stablehlo.add": add,
    "stablehlo.subtract": subtract,
    "stablehlo.multiply": multiply,
    "stablehlo.divide": divide,
    "stablehlo.negate": negate,
    "stablehlo.convert": convert,
}
