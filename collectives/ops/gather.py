"""Gather and scatter: batch dimensions and whole slices pass through, indexed dimensions are split by masked lookups.

An embedding table f32[50000@x, 512] indexed by i32[64]: each device subtracts the offset of its rows from the indices,
looks up those that fall into its piece and zeros for the others, and the sum over x (64 rows, not the table) is the
result. A scatter into a split target is its mirror image: indices outside of the device's piece are dropped. Updates
that are split (segment sums) leave partial sums of the target, reduced later."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

from propagation.attributes import GatherDims, ScatterDims, gather_dims, integer, integers, scatter_dims
from propagation.program import Op, Value

from ..analysis.constants import bounds_of, scalar_constant
from ..analysis.reducers import identity_literal, is_identity, reduction_kind
from ..decide.candidate import Candidate
from ..decide.factors import PASS, REDUCE, WHOLE, Choice, Factors, Splits, followed, gathered, layout_of, work_of
from ..heuristics import COUNTING_STEPS, ELSEWHERE_SHARE
from ..ir.attributes import Attributes, Integers
from ..ir.operations import attributes
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context
from ..layouts.state import Partial
from ..lookup import indices as indices_
from ..lookup import masked_lookup, static_gather
from ..partial_sums import deferred_reduction


class _Builder:
    """Collects the factors of an operation while its dimensions are matched."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.kinds: list[int] = []

    def add(self, size: int, kind: int) -> int:
        self.sizes.append(size)
        self.kinds.append(kind)
        return len(self.sizes) - 1

    def build(
        self, operands: Sequence[Sequence[int]], results: Sequence[Sequence[int]], dealt: Sequence[int] = (),
        rows: Sequence[int] = (),
    ) -> Factors:  # fmt: skip
        """`dealt` are the factors that count look-ups, `rows` the indexed ones: see `Factors`."""
        operands, results = (tuple(map(tuple, part)) for part in (operands, results))
        sizes, kinds = tuple(self.sizes), tuple(self.kinds)
        return Factors(sizes, kinds, operands, results, dealt=tuple(dealt), idle=frozenset(rows))


_WHY = "indices that are computed point into this dimension, which has to be whole"


# -- gather ---------------------------------------------------------------------------------------------------


# The factors of a gather (scatter), the dimensions of the table (target) that are looked up by index, and the pairs of
# dimensions of table and indices that correspond.
_Indexed = tuple[Factors, tuple[int, ...], tuple[tuple[int, int], ...]]


@functools.lru_cache(maxsize=4096)
def _gather_factors(
    dims: GatherDims, sizes: tuple[int, ...], operand: tuple[int, ...], indices: tuple[int, ...],
    result: tuple[int, ...], iotas: _Iotas,
) -> _Indexed:  # fmt: skip
    """The factors of a gather: batch dimensions and whole slices pass through, dimensions looked up by index are
    reduced (of a masked lookup's sum over devices). Dimensions that an iota indexes correspond to the iota's."""
    b, counted = _Builder(), dict(iotas)
    table, index, out = [-1] * len(operand), [-1] * len(indices), [-1] * len(result)
    batch_out = [i for i in range(len(result)) if i not in dims.offset]
    batch_in = [i for i in range(len(indices)) if i != dims.index_vector]
    for i, j in zip(batch_in, batch_out):
        index[i] = out[j] = b.add(indices[i], PASS)
    for d, i in zip(dims.operand_batching, dims.indices_batching):
        table[d] = index[i]
    window = [d for d in range(len(operand)) if d not in dims.collapsed_slice and d not in dims.operand_batching]
    for d, j in zip(window, dims.offset):
        if sizes[d] == operand[d]:
            table[d] = out[j] = b.add(operand[d], PASS)
    paired, looked_up = [], []
    for d in dims.start_index_map:
        if table[d] >= 0 or sizes[d] != 1 or operand[d] == 1:
            continue
        along = counted.get(d)
        if along is not None and indices[along] == operand[d]:
            table[d] = index[along]
            paired.append((d, along))
        else:
            table[d] = b.add(operand[d], REDUCE)
            looked_up.append(d)
    dealt = [index[i] for i in batch_in if index[i] not in table] if looked_up else []
    rows = [table[d] for d in looked_up]
    return b.build((table, index), (out,), dealt, rows), tuple(looked_up), tuple(paired)


# Pairs of an operand dimension and the dimension of the indices along which its index counts 0, 1, 2, ...
_Iotas = tuple[tuple[int, int], ...]


def factors_of_gather(op: Op) -> _Indexed:
    """`_gather_factors` of an operation."""
    table, indices = op.operands
    dims = gather_dims(op.attrs["dimension_numbers"])
    sizes = integers(op.attrs["slice_sizes"])
    iotas = _counting_indices(indices, dims.index_vector, dims.start_index_map)
    return _gather_factors(dims, sizes, table.type.shape, indices.type.shape, op.results[0].type.shape, iotas)


def gather(ctx: Context, op: Op) -> Iterator[Candidate | Splits]:
    """Slices at indices known at compile time; else split along its factors."""
    static = static_gather.gather(ctx, op)
    if static is not None:
        yield static
        return
    result = op.results[0]
    byte = 2 * ctx.itemsize(result) * ctx.redundancy
    write = functools.partial(_write_gather, ctx, op)
    yield Splits(factors_of_gather(op)[0], op.operands, (result,), byte, write)


def _write_gather(ctx: Context, op: Op, choice: Choice) -> None:
    table, result = op.operands[0], op.results[0]
    dims = gather_dims(op.attrs["dimension_numbers"])
    sizes = integers(op.attrs["slice_sizes"])
    factors, looked_up, paired = factors_of_gather(op)
    layout, out = choice.operands[0], choice.results[0]
    x, i = gathered(ctx, factors, op.operands, choice.operands, _WHY)
    split = [d for d in looked_up if layout[d]]
    moved = [d for d, _ in paired if layout[d]]
    mask = None
    if split or moved:
        i, mask = _relative_indices(ctx, table, x, i, layout, dims, sizes, split, moved)
    elif dims.start_index_map and result.type.size == math.prod(sizes) and max(sizes) > 1:
        # XLA turns a gather of one window into a dynamic slice, and merges that with slices without clamping its start.
        lasts = [table.type.shape[d] - sizes[d] for d in dims.start_index_map]
        i = indices_.starts(ctx, i, dims.index_vector if dims.index_vector < len(i.shape) else None, lasts)
    local = [x.shape[d] if n == table.type.shape[d] else n for d, n in enumerate(sizes)]
    others = ctx.attributes_of(op).without("slice_sizes")
    own = Attributes.of({"slice_sizes": Integers(tuple(local))})
    shape = ctx.piece_shape(result, out)
    ref = ctx.emit(op.name, (x, i), shape, x.dtype, own, extra=others)
    if mask is not None:
        batch = [d for d in range(len(shape)) if d not in dims.offset]
        wide = attributes("stablehlo.broadcast_in_dim", tuple(batch))
        mask = ctx.emit("stablehlo.broadcast_in_dim", (mask,), shape, "i1", wide)
        zero = ctx.realiser.zero(ctx.region, shape, ref.dtype)
        ref = ctx.emit("stablehlo.select", (mask, ref, zero), shape, ref.dtype)
    masked_lookup.bind(ctx, result, out, choice.pending, ref)


def _relative_indices(
    ctx: Context, table: Value, x: LocalValue, i: LocalValue, layout: Dims, dims: GatherDims, sizes: Sequence[int],
    split: Sequence[int], moved: Sequence[int],
) -> tuple[LocalValue, LocalValue | None]:  # fmt: skip
    """(indices relative to this device's piece of the table, mask of those that fall into it).

    Along `split` dimensions indices may be anywhere. Along `moved` ones each device's indices are known to lie in its
    own piece (x[arange(n)]); with only such there is no mask."""
    shape = i.shape
    vector = dims.index_vector if dims.index_vector < len(shape) else None
    i = indices_.starts(ctx, i, vector, [table.type.shape[d] - sizes[d] for d in dims.start_index_map])
    zero = ctx.realiser.index(ctx.region, 0)
    offsets = [
        ctx.realiser.offset(ctx.region, layout[d], x.shape[d]) if d in split or d in moved else None
        for d in dims.start_index_map
    ]
    i = ctx.emit("stablehlo.subtract", (i, indices_.along_refs(ctx, shape, vector, offsets)), shape, "i32")
    if not split:
        return i, None
    ends = [x.shape[d] if d in split else max(table.type.shape) + 1 for d in dims.start_index_map]
    end = indices_.along(ctx, shape, vector, ends)
    low = ctx.realiser.splat(ctx.region, zero, shape)
    inside = [
        ctx.emit("stablehlo.compare", (i, bound), shape, "i1", attributes("stablehlo.compare", name))
        for bound, name in ((low, "GE"), (end, "LT"))
    ]
    mask = ctx.emit("stablehlo.and", inside, shape, "i1")
    if vector is None:
        return i, mask
    kept = [n for d, n in enumerate(shape) if d != vector]
    if shape[vector] == 1:
        return i, ctx.emit("stablehlo.reshape", (mask,), kept, "i1")
    true = ctx.realiser.constant(ctx.region, (), "i1", "true")
    body = ctx.realiser.reducer(ctx.region, "and", "i1")
    attrs = attributes("stablehlo.reduce", (vector,))
    return i, ctx.emit("stablehlo.reduce", (mask, true), kept, "i1", attrs, regions=(body,))


_EXACT = {"bf16": 8, "f16": 11, "f32": 24, "f64": 53}  # bits of the integers that float types hold exactly


def _counting_indices(indices: Value, vector: int, index_map: tuple[int, ...]) -> _Iotas:
    """Which indexed dimensions are indexed by their own position along a batch dimension of the indices."""
    op = indices.op
    if op is None or op.name != "stablehlo.concatenate" or integer(op.attrs["dimension"]) != vector:
        return ()
    if len(op.operands) != len(index_map):
        return ()
    found = [(d, _counts_along(column, 0)) for d, column in zip(index_map, op.operands)]
    return tuple(sorted([(d, along) for d, along in found if along is not None and along != vector]))


def _counts_along(value: Value, depth: int) -> int | None:
    """The dimension along which `value` holds 0, 1, 2, ... (is an iota); None if it is not known to be."""
    d = _counts(value, depth)
    return None if d is None or not _holds(value.type.dtype, value.type.shape[d]) else d


def _holds(dtype: str, count: int) -> bool:
    """Whether all of 0, 1, ..., count - 1 are numbers of a type, exactly."""
    if dtype in _EXACT:
        return count <= 1 << _EXACT[dtype]
    return dtype.startswith(("i", "ui")) and count - 1 <= bounds_of(dtype)[1]


def _counts(value: Value, depth: int) -> int | None:
    op = value.op
    if op is None or depth > COUNTING_STEPS:
        return None
    if op.name == "stablehlo.iota":
        return int(integer(op.attrs["iota_dimension"]))
    if op.name == "stablehlo.convert":
        return _counts_along(op.operands[0], depth + 1)
    if op.name == "stablehlo.select":  # select(i < 0, i + n, i), as for negative indices, leaves an iota as it is
        return _counts_along(op.operands[2], depth + 1) if _wraps(op) else None
    if op.name == "stablehlo.broadcast_in_dim":
        d = _counts_along(op.operands[0], depth + 1)
        if d is None:
            return None
        to = integers(op.attrs["broadcast_dimensions"])[d]
        return to if value.type.shape[to] == op.operands[0].type.shape[d] else None  # else it is broadcast
    if op.name == "stablehlo.reshape":
        d = _counts_along(op.operands[0], depth + 1)
        if d is None:
            return None
        shape, new = op.operands[0].type.shape, value.type.shape
        before = math.prod(shape[:d])
        for j, n in enumerate(new):
            if n == shape[d] and math.prod(new[:j]) == before:
                return j
    return None


def _wraps(op: Op) -> bool:
    """select(i < 0, i + n, i)"""
    test, other, same = op.operands
    return (
        test.op is not None
        and test.op.name == "stablehlo.compare"
        and test.op.operands[0] is same
        and "LT" in str(test.op.attrs["comparison_direction"])
        and scalar_constant(test.op.operands[1]) == 0
        and other.op is not None
        and other.op.name == "stablehlo.add"
        and same in other.op.operands
    )


# -- scatter --------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _scatter_factors(
    dims: ScatterDims, count: int, target: tuple[int, ...], indices: tuple[int, ...], update: tuple[int, ...],
    reducible: bool, iotas: _Iotas,
) -> _Indexed:  # fmt: skip
    """The factors of a scatter into `count` targets: whole slices pass through, indexed dimensions pass through with
    indices made relative to the device's piece, and dimensions that count updates are reduced if the body is a known
    reduction (`reducible`)."""
    b, counted = _Builder(), dict(iotas)
    into, index, new = [-1] * len(target), [-1] * len(indices), [-1] * len(update)
    batch_index = [i for i in range(len(indices)) if i != dims.index_vector]
    batch_update = [j for j in range(len(update)) if j not in dims.update_window]
    own = set(dims.indices_batching) | set(counted.values())
    for i, j in zip(batch_index, batch_update):
        kind = PASS if i in own else REDUCE if reducible else WHOLE
        index[i] = new[j] = b.add(indices[i], kind)
    for d, i in zip(dims.input_batching, dims.indices_batching):
        into[d] = index[i]
    window = [d for d in range(len(target)) if d not in dims.inserted_window and d not in dims.input_batching]
    shifted, paired = [], []
    for d, j in zip(window, dims.update_window):
        if update[j] == target[d]:
            into[d] = new[j] = b.add(target[d], PASS)
        elif update[j] == 1 and d in dims.to_operand:  # if it has no index, position 0 is written
            into[d] = b.add(target[d], PASS)
            shifted.append(d)
    for d in dims.inserted_window:
        along = counted.get(d)
        if along is not None and indices[along] == target[d]:
            into[d] = index[along]
            paired.append((d, along))
        elif d in dims.to_operand:
            into[d] = b.add(target[d], PASS)
            shifted.append(d)
    unpaired = own - set(dims.indices_batching) - {i for _, i in paired}
    for i in unpaired:
        b.kinds[index[i]] = REDUCE if reducible else WHOLE
    operands = [into] * count + [index] + [new] * count
    dealt = [index[i] for i in batch_index if b.kinds[index[i]] == REDUCE] if shifted else []
    rows = [into[d] for d in shifted]
    return b.build(operands, [into] * count, dealt, rows), tuple(shifted), tuple(paired)


def factors_of_scatter(op: Op) -> _Indexed:
    """`_scatter_factors` of an operation."""
    count = len(op.results)
    targets, indices, updates = op.operands[:count], op.operands[count], op.operands[count + 1 :]
    dims = scatter_dims(op.attrs["scatter_dimension_numbers"])
    kind = reduction_kind(op.regions[0])
    reducible = kind is not None and count == 1 and identity_literal(kind, op.results[0].type.dtype) is not None
    iotas = _counting_indices(indices, dims.index_vector, dims.to_operand)
    shapes = targets[0].type.shape, indices.type.shape, updates[0].type.shape
    return _scatter_factors(dims, count, *shapes, reducible, iotas)


def scatter(ctx: Context, op: Op) -> Iterator[Candidate | Splits]:
    """Updates of slices at indices known at compile time; else split along its factors, or part by part."""
    static = static_gather.scatter(ctx, op)
    if static:
        yield from static
        return
    byte = 2 * ctx.itemsize(op.results[0]) * ctx.redundancy
    splits = Splits(
        factors_of_scatter(op)[0], op.operands, op.results, byte, functools.partial(_write_scatter, ctx, op)
    )
    yield splits
    if _neutral(op) is not None and reduction_kind(op.regions[0]) == "add" and _starts_neutral(op):
        yield from _part_by_part(ctx, op, splits)


def _neutral(op: Op) -> str | None:
    """The literal of the neutral element of a scatter's reduction; None if it is no known one."""
    kind = reduction_kind(op.regions[0])
    return identity_literal(kind, op.results[0].type.dtype) if kind and len(op.results) == 1 else None


def _starts_neutral(op: Op) -> bool:
    """Whether the target of a scatter with a known reduction holds the neutral element everywhere."""
    kind = reduction_kind(op.regions[0])
    return kind is not None and is_identity(kind, op.results[0].type.dtype, scalar_constant(op.operands[0]))


def _write_scatter(ctx: Context, op: Op, choice: Choice) -> None:
    count = len(op.results)
    targets, indices = op.operands[:count], op.operands[count]
    dims = scatter_dims(op.attrs["scatter_dimension_numbers"])
    kind, dtype, fill = reduction_kind(op.regions[0]), op.results[0].type.dtype, _neutral(op)
    factors, shifted, paired = factors_of_scatter(op)
    layout = choice.operands[0]
    i, *new = gathered(ctx, factors, op.operands, choice.operands, _WHY, slice(count, None))
    vector = dims.index_vector if dims.index_vector < len(i.shape) else None
    moved = [d for d in (*shifted, *(d for d, _ in paired)) if layout[d]]
    shape = ctx.piece_shape(targets[0], layout)
    padded = bool(choice.pending) and _is_padded(ctx, indices, choice.operands[count], vector)
    # Indices that are moved out of bounds need not stay sorted or unique.
    broken = ("indices_are_sorted", "unique_indices") if padded or (moved and not indices_.fits(i.dtype)) else ()
    if moved or padded:
        i = indices_.within_reach(ctx, i, vector, [targets[0].type.shape[d] for d in dims.to_operand])
    if moved:
        offsets = [
            ctx.realiser.offset(ctx.region, layout[d], shape[d]) if d in moved else None for d in dims.to_operand
        ]
        i = ctx.emit("stablehlo.subtract", (i, indices_.along_refs(ctx, i.shape, vector, offsets)), i.shape, "i32")
    if choice.pending:
        i = _drop_padding(ctx, indices, i, choice.operands[count], vector)
    attrs = ctx.attributes_of(op).without(*broken)
    if not choice.pending:
        base = gathered(ctx, factors, op.operands, choice.operands, _WHY, slice(count))
        hit, i = _hits(ctx, dims, i, moved, shape) if moved else (None, i)
        for r, ref, old in zip(op.results, ctx.local_copy(op, [*base, i, *new], [shape] * count, attrs), base):
            if hit is not None:
                ref = ctx.emit("stablehlo.select", (hit, ref, old), shape, ref.dtype)
            ctx.bind(r, layout, ref)
        return
    assert kind is not None and fill is not None  # else no factor is reduced
    neutral = ctx.realiser.constant(ctx.region, shape, dtype, fill)
    parts = {choice.pending: ctx.local_copy(op, [neutral, i, *new], [shape], attrs)[0]}
    if not _starts_neutral(op):
        parts[()] = gathered(ctx, factors, op.operands, choice.operands, _WHY, slice(count))[0]
    ctx.bind_partial(op.results[0], layout, parts, kind)


def _part_by_part(ctx: Context, op: Op, splits: Splits) -> Iterator[Candidate]:
    """Scattering unreduced updates into zeros part by part, so that only the result is reduced; indexed dimensions stay
    whole. It is taken for sending less than the best of `splits`, not for computing less, so it counts as as much work;
    and where it is larger, it has to save more (`ELSEWHERE_SHARE`)."""
    updates, result = op.operands[2], op.results[0]
    partial = deferred_reduction.deferred(ctx, updates)
    if partial is None:
        return
    factors, shifted, paired = factors_of_scatter(op)
    assigned: list[tuple[int, ...]] = [()] * len(factors.sizes)
    for f, atoms in zip(factors.operands[2], partial.dims):
        if atoms and (f < 0 or factors.kinds[f] == WHOLE):
            return
        assigned[f] = atoms
    theirs, out = layout_of(factors.operands[1], assigned), layout_of(factors.results[0], assigned)
    if any(out[d] for d in (*shifted, *(d for d, _ in paired))):
        return
    more = tuple(a for k, atoms in zip(factors.kinds, assigned) if k == REDUCE for a in atoms)
    other, _ = splits.best(ctx)
    work = work_of(ctx, factors, other.assigned) * splits.byte_per_work
    if ctx.elements(result.type.shape, out) > ctx.elements(result.type.shape, other.results[0]):
        work += (1 - ELSEWHERE_SHARE) * (other.bytes - work)
    pending = tuple([tuple(sorted({*atoms, *more})) for atoms in partial.parts])
    write = lambda: _write_parts(ctx, op, partial, theirs, out, more)
    yield Candidate((None, theirs, None), (out,), write, pending, work=work)


def _write_parts(ctx: Context, op: Op, partial: Partial, theirs: Dims, out: Dims, more: tuple[int, ...]) -> None:
    """Writes what `_part_by_part` says: indices laid out as `theirs`, results as `out`, each a sum over the atoms
    `more` as well."""
    target, indices, _ = op.operands
    result, dims = op.results[0], scatter_dims(op.attrs["scatter_dimension_numbers"])
    i = ctx.get(indices, theirs)
    vector = dims.index_vector if dims.index_vector < len(i.shape) else None
    attrs = ctx.attributes_of(op)
    if more and _is_padded(ctx, indices, theirs, vector):
        i = indices_.within_reach(ctx, i, vector, [target.type.shape[d] for d in dims.to_operand])
        i = _drop_padding(ctx, indices, i, theirs, vector)
        attrs = attrs.without("indices_are_sorted", "unique_indices")
    base = ctx.get(target, out)
    local = lambda ref: ctx.local_copy(op, [base, i, ref], [ctx.piece_shape(result, out)], attrs)[0]
    deferred_reduction.apply(ctx, op, partial, out, local, more)


def _hits(
    ctx: Context, dims: ScatterDims, i: LocalValue, moved: list[int], shape: tuple[int, ...]
) -> tuple[LocalValue | None, LocalValue]:
    """For a scatter at a single index: (whether it falls into this device's piece, the index clamped into it); else
    (None, i).

    XLA turns a scatter at one index into an update of a slice, and merging that with the slice which cut this piece
    loses the bounds check; so a single index is never left out of bounds.
    """
    if math.prod(i.shape) != len(dims.to_operand):
        return None, i
    count = len(dims.to_operand)
    flat = ctx.realiser.reshape(ctx.region, i, (count,), ctx.loc)
    far = (1 << 31) - 1
    high = indices_.along(ctx, (count,), 0, [shape[d] - 1 if d in moved else far for d in dims.to_operand])
    least = indices_.along(ctx, (count,), 0, [0 if d in moved else -far for d in dims.to_operand])
    inside = [
        ctx.emit("stablehlo.compare", (flat, bound), (count,), "i1", attributes("stablehlo.compare", name))
        for bound, name in ((least, "GE"), (high, "LE"))
    ]
    both = ctx.emit("stablehlo.and", inside, (count,), "i1")
    true = ctx.realiser.constant(ctx.region, (), "i1", "true")
    body = ctx.realiser.reducer(ctx.region, "and", "i1")
    hit = ctx.emit("stablehlo.reduce", (both, true), (), "i1", attributes("stablehlo.reduce", (0,)), regions=(body,))
    clamped = ctx.emit("stablehlo.clamp", (least, flat, high), (count,), "i32")
    return hit, ctx.realiser.reshape(ctx.region, clamped, i.shape, ctx.loc)


def _padded(layout: Dims, vector: int | None) -> list[int]:
    """The split batch dimensions of the indices."""
    return [d for d, atoms in enumerate(layout) if atoms and d != vector]


def _is_padded(ctx: Context, indices: Value, layout: Dims, vector: int | None) -> bool:
    """Whether some split batch dimension of the indices is padded on some device."""
    return any(indices.type.shape[d] % ctx.atoms.product(layout[d]) for d in _padded(layout, vector))


def _drop_padding(ctx: Context, indices: Value, i: LocalValue, layout: Dims, vector: int | None) -> LocalValue:
    """Replaces the i32 indices in the padding of unevenly split batch dimensions by an out-of-bounds one, which scatter
    drops."""
    for d in _padded(layout, vector):
        inside = ctx.realiser.inside(ctx.region, i.shape, d, layout[d], indices.type.shape[d])
        if inside is not None:
            outside = ctx.realiser.constant(ctx.region, i.shape, "i32", str(-(1 << 31)))
            i = ctx.emit("stablehlo.select", (inside, i, outside), i.shape, "i32")
    return i


def gather_ahead(ctx: Context, op: Op, value: Value, dims: Dims) -> Iterator[Candidate]:
    """For the look-ahead: the ways to split a gather."""
    return followed(ctx, op, value, dims, factors_of_gather(op)[0])


def scatter_ahead(ctx: Context, op: Op, value: Value, dims: Dims) -> Iterator[Candidate]:
    """For the look-ahead: the ways to split a scatter."""
    return followed(ctx, op, value, dims, factors_of_scatter(op)[0])


AHEAD = {"stablehlo.gather": gather_ahead, "stablehlo.scatter": scatter_ahead}

CANDIDATES = {"stablehlo.gather": gather, "stablehlo.scatter": scatter}
