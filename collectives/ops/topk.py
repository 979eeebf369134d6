"""top_k and ApproxTopK along a split dimension, by candidates: the k largest of a row are among the k largest of each
of its pieces, so only these candidates are exchanged, where that sends less than gathering rows.

top_k(x, 8) of f32[64, 65536@x] over 8 devices: each device selects its 8 largest per row, an all-to-all brings the 64
candidates of a row to one device, which selects 8 of them: 3.5 KiB of values and indices per device, instead of 1.75
MiB for an all-to-all of rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from jaxlib.mlir import ir

from propagation.attributes import GatherDims, integer
from propagation.program import Block, Op

from ..analysis.reducers import identity_literal
from ..cost import ITEM_BITS
from ..decide.candidate import Candidate, Sent
from ..decide.factors import PASS, WHOLE, Factors, Splits
from ..ir.attributes import Given
from ..ir.operations import attributes
from ..ir.program import LocalValue, Region
from ..layout import Dims
from ..layouts.context import Context
from .batch import by_rule, split

_ALL_ONES_ARE_NAN = frozenset(("bf16", "f16", "f32", "f64"))


def _meeting(
    ctx: Context, op: Op, shape: Sequence[int], itemsize: float, have: Dims, d: int
) -> tuple[Dims, Sent]:  # fmt: skip
    """(layout with dimension `d` whole, what is sent) that the candidates, split as `have`, are best brought to: an
    all-gather, or an all-to-all to another dimension that can take the split."""
    without = (*have[:d], (), *have[d + 1 :])
    n = ctx.atoms.product(have[d])
    options = [without]
    for e, size in enumerate(shape):
        if e != d and size and size % (ctx.atoms.product(have[e]) * n) == 0:
            options.append((*without[:e], (*have[e], *have[d]), *without[e + 1 :]))
    sent = {dims: ctx.planner.cost(tuple(shape), itemsize, have, dims) for dims in options}
    best = min(options, key=lambda dims: sent[dims] + sum(ctx.later_cost(r, dims) for r in op.results))
    return best, Sent("all_gather" if best == without else "all_to_all", have[d], sent[best], messages=0)


def top_k(ctx: Context, op: Op) -> Iterator[Candidate | Splits]:
    """chlo.top_k: along the last dimension, largest first; of equals the one with the lower index first."""
    value = op.operands[0]
    shape = value.type.shape
    last = len(shape) - 1
    every = tuple(range(len(shape)))
    out = (*every[:-1], -1)
    factors = Factors(shape, (*[PASS] * last, WHOLE), (every,), (out, out))
    yield split(ctx, op, factors, "top_k selects from whole rows")
    have = ctx.state(value).dims
    if have is not None and have[last]:
        yield from _by_candidates(ctx, op, have)


def _by_candidates(ctx: Context, op: Op, have: Dims) -> Iterator[Candidate]:
    """Selecting candidates of each piece, then among these; none where padding could be selected."""
    value = op.operands[0]
    shape, dtype = value.type.shape, value.type.dtype
    last, k = len(shape) - 1, integer(op.attrs["k"])
    p = ctx.atoms.product(have[last])
    piece = -(-shape[last] // p)
    few = min(k, piece)
    fill = _least(dtype)
    if not k or (fill is None and piece * p != shape[last]):
        return
    candidates = (*shape[:last], p * few)
    itemsize = sum(map(ctx.itemsize, op.results))
    target, sent = _meeting(ctx, op, candidates, itemsize, have, last)
    work = ctx.elements(shape, have) * ctx.itemsize(op.results[0]) * ctx.redundancy
    write = lambda: _select_candidates(ctx, op, have, few, fill, target)
    yield Candidate((have,), (target, target), write, sent=(sent,), work=work)


def _select_candidates(ctx: Context, op: Op, have: Dims, few: int, fill: str | None, target: Dims) -> None:
    """Writes the selection of `few` candidates of each piece, laid out as `have`, and of the largest among these in the
    layout `target`. Padding is filled with `fill`."""
    value = op.operands[0]
    shape, k = value.type.shape, integer(op.attrs["k"])
    last = len(shape) - 1
    p = ctx.atoms.product(have[last])
    piece, candidates = -(-shape[last] // p), (*shape[:last], p * few)
    x = ctx.masked(ctx.get(value, have), shape, have, [last], fill)
    values, where = _top(ctx, op, x, few)
    start = ctx.realiser.offset(ctx.region, have[last], piece)
    if start.dtype != where.dtype:
        start = ctx.emit("stablehlo.convert", (start,), (), where.dtype)
    start = ctx.realiser.splat(ctx.region, start, where.shape)
    where = ctx.emit("stablehlo.add", (where, start), where.shape, where.dtype)
    values = ctx.reshard(candidates, values, have, target, cause="candidates")
    where = ctx.reshard(candidates, where, have, target, cause="candidates")
    values, chosen = _top(ctx, op, values, k)
    ctx.bind(op.results[0], target, values)
    ctx.bind(op.results[1], target, _pick(ctx, where, chosen))


def _least(dtype: str) -> str | None:
    """The element that is never selected before another one, as an MLIR literal, to fill padding with. Floats are
    compared in total order, in which the NaN with all bits set comes last, after -inf. None if there is none."""
    if dtype in _ALL_ONES_ARE_NAN:
        return f"0x{(1 << int(ITEM_BITS[dtype])) - 1:X}"
    return identity_literal("max", dtype)


def _top(ctx: Context, op: Op, x: LocalValue, k: int) -> list[LocalValue]:
    shape = (*x.shape[:-1], k)
    types = [(shape, r.type.dtype) for r in op.results]
    attrs = attributes("chlo.top_k", k).also(ctx.attributes_of(op).without("k"))
    top = ctx.region.op(op.name, [x], types, extra=attrs, loc=ctx.loc)
    # Compilers expand top_k into a sort and slices of it, and recognise that pattern again. Collectives slice results
    # further, and slices of slices are merged: without a barrier the pattern is lost, and the whole sort runs.
    return ctx.region.op("stablehlo.optimization_barrier", top, types, loc=ctx.loc)


def _pick(ctx: Context, x: LocalValue, positions: LocalValue) -> LocalValue:
    """x[..., positions[..., i]]"""
    last = len(x.shape) - 1
    batch = tuple(range(last))
    numbers = GatherDims((), (last,), batch, batch, (last,), last + 1)
    attrs = attributes("stablehlo.gather", numbers, (1,) * len(x.shape), False)
    return ctx.emit("stablehlo.gather", (x, positions), positions.shape, x.dtype, attrs)


def approx_top_k(ctx: Context, op: Op) -> Iterator[Candidate | Splits]:
    """ApproxTopK(values, positions, least value, its position), with a comparator, and k in its backend config."""
    why = "ApproxTopK selects from whole rows"
    config = str(op.attrs.get("mhlo.backend_config", ""))
    names = ("aggregate_to_topk", "reduction_dim", "top_k")
    found = {n: re.search(rf"\b{n} = (-?\d+|true|false)", config) for n in names}
    number = {n: m[1] for n, m in found.items() if m is not None}
    have, shape = ctx.state(op.operands[0]).dims, op.operands[0].type.shape
    if len(number) < len(found) or number["aggregate_to_topk"] != "true" or have is None:
        yield by_rule(ctx, op, why)
        return
    d = int(number["reduction_dim"]) % len(shape)
    every = tuple(range(len(shape)))
    kinds, out = tuple(WHOLE if i == d else PASS for i in every), tuple(-1 if i == d else i for i in every)
    factors = Factors(shape, kinds, (every, every, *[()] * (len(op.operands) - 2)), (out, out))
    byte = _told_bytes(ctx, op) * ctx.redundancy
    yield split(ctx, op, factors, why)._replace(byte_per_work=byte)
    if have[d]:
        yield from _approximate_candidates(ctx, op, config, d, int(number["top_k"]), have)


def _told_bytes(ctx: Context, op: Op) -> float:
    """Bytes of what is told of an element: its value, and its position if somebody uses that."""
    return sum(ctx.itemsize(r) for r in (op.results[:1] if _only_values(ctx, op) else op.results))


def _approximate_candidates(
    ctx: Context, op: Op, config: str, d: int, k: int, have: Dims
) -> Iterator[Candidate]:  # fmt: skip
    """Selecting candidates of each piece, with the recall that is asked for the row, then the first of these in the
    comparator's order."""
    shape = op.operands[0].type.shape
    p = ctx.atoms.product(have[d])
    few = min(k, shape[d] // p)
    if not k or shape[d] % p or op.results[0].type.shape[d] != k:
        return
    candidates = (*shape[:d], p * few, *shape[d + 1 :])
    itemsize = _told_bytes(ctx, op)
    target, sent = _meeting(ctx, op, candidates, itemsize, have, d)
    work = itemsize * ctx.redundancy * ctx.elements(shape, have)
    operands = (have, have, *[None] * (len(op.operands) - 2))
    write = lambda: _select_approximately(ctx, op, config, d, k, have, target)
    yield Candidate(operands, (target, target), write, sent=(sent,), work=work)


def _select_approximately(ctx: Context, op: Op, config: str, d: int, k: int, have: Dims, target: Dims) -> None:
    """Writes what `_approximate_candidates` says."""
    shape = op.operands[0].type.shape
    p = ctx.atoms.product(have[d])
    few = min(k, shape[d] // p)
    candidates = (*shape[:d], p * few, *shape[d + 1 :])
    told = 1 if _only_values(ctx, op) else 2
    piece = [ctx.get(v, have) for v in op.operands[:2]]
    refs = _approximate(ctx, op, config, piece, d, few)

    def best(count: int) -> list[LocalValue]:
        moved = [ctx.reshard(candidates, x, have, target, cause="candidates") for x in refs[:count]]
        return _first(ctx, op, moved, d, k)

    for r, x in zip(op.results, best(told)):
        ctx.bind(r, target, x)
    if told == 1:  # nobody uses the positions
        ctx.bind_lazy(op.results[1], lambda dims: ctx.reshard(op.results[1].type.shape, best(2)[1], target, dims))


def _only_values(ctx: Context, op: Op) -> bool:
    """Whether nobody uses the positions of what is selected, the comparator included."""
    return not op.results[1].uses and not any(arg.uses for arg in _comparator(ctx, op).args[2:])


def _approximate(ctx: Context, op: Op, config: str, piece: list[LocalValue], d: int, k: int) -> list[LocalValue]:
    """A selection of `k` from each piece. On machines without an approximate one (`is_fallback`) it is an exact, stable
    sort."""
    if "is_fallback = true" in config:
        return _first(ctx, op, piece, d, k)
    config = re.sub(r"\btop_k = \d+", f"top_k = {k}", config)
    size = op.operands[0].type.shape[d]
    config = config.replace("reduction_input_size_override = -1", f"reduction_input_size_override = {size}")
    part = (*piece[0].shape[:d], k, *piece[0].shape[d + 1 :])
    told = Given(ir.Attribute.parse(config, ctx.program.context))
    attrs = ctx.attributes_of(op).without("mhlo.backend_config").also({"mhlo.backend_config": told})
    return ctx.local_copy(op, [*piece, *(ctx.whole(v) for v in op.operands[2:])], [part, part], attrs)


def _first(ctx: Context, op: Op, refs: list[LocalValue], d: int, k: int) -> list[LocalValue]:
    """The first `k` along `d` of a stable sort by the comparator."""
    block = _comparator(ctx, op)
    body = Region("body", ctx.region, [(a.type.shape, a.type.dtype) for a in block.args[: 2 * len(refs)]])
    body.op("stablehlo.return", ctx.copy_ops(block, body, body.args), ())
    types = [(x.shape, x.dtype) for x in refs]
    attrs = attributes("stablehlo.sort", d, True)
    refs = ctx.region.op("stablehlo.sort", refs, types, attrs, regions=(body,), loc=ctx.loc)
    return [ctx.realiser.cut(ctx.region, x, d, 0, k, ctx.loc) for x in refs]


def _comparator(ctx: Context, op: Op) -> Block:
    """The body of the comparator, which is a function of its own."""
    (name,) = ir.ArrayAttr(op.attrs["called_computations"])
    return ctx.program.funcs[ir.FlatSymbolRefAttr(name).value].body


CANDIDATES = {"chlo.top_k": top_k, "stablehlo.custom_call@ApproxTopK": approx_top_k}
