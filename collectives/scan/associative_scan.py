"""Associative scans (prefix sums) along a split dimension, as a scan on two levels: each device scans its own piece,
the totals of the pieces are scanned over the devices, and every element is combined with the total before its piece.

cumsum of f32[1024] over 8 devices: local cumsum of 128 elements, 3 permutes of one element each, one add. The programs
come as trees of slices, which `recognition` recognises.

The local scan is the work-efficient recursion over even and odd positions (Blelloch, "Prefix sums and their
applications", 1990). The totals take log2(devices) rounds of permutes over distances 1, 2, 4, ... (Kogge and Stone,
1973). On TPUs, whose arrays lie in tiles, rows of up to 128 positions are scanned by such rounds too: picking even and
odd positions out of a tile's row is a product of matrices there, and half a row takes the memory of a whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from propagation.attributes import integers
from propagation.program import Block, Op, Value

from ..halo.exchange import neighbours
from ..heuristics import TILE_ROW_ELEMENTS
from ..ir.operations import attributes
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context
from .recognition import Node, Tree, find

__all__ = ["Scans", "before"]

Refs = list[LocalValue]
Combine = Callable[[Refs, Refs], Refs]


class Scans:
    """The associative scans of a block, by the first operation of each: they are written when the walk arrives there,
    since only then it is known whether their dimension is split."""

    def __init__(self, block: Block):
        self.starts: dict[Op, list[Tree]] = {}
        for tree in find(block):
            self.starts.setdefault(tree.first, []).append(tree)

    def enter(self, ctx: Context, op: Op, skipped: set[Op]) -> None:
        """Called before each operation: writes the scans that begin there, and adds the operations that they replace to
        `skipped`."""
        for tree in self.starts.get(op, ()):
            skipped |= _write(ctx, tree)


def _write(ctx: Context, tree: Tree) -> set[Op]:
    """Writes a scan over a split dimension and binds its results. Returns the operations that it replaces; none if the
    dimension is not split."""
    turned = _turned(tree)
    elements = [v.op.operands[0] for v in tree.elements if v.op is not None] if turned else tree.elements
    d = tree.axis
    dims = _layout(ctx, tree, elements)
    if dims is None or (turned and elements[0].type.shape[d] % ctx.atoms.product(dims[d])):
        return set()
    outer, scan = ctx.op, next(iter(tree.results.values())).op
    assert scan is not None
    ctx.op = scan
    pieces = [ctx.get(v, dims) for v in elements]
    if turned:
        pieces = [_flip(ctx, x, d) for x in pieces]
    combine = lambda a, b: _apply(ctx, tree.combine, a, b)
    local = _scan(ctx, pieces, d, combine)
    if dims[d]:
        local = _joined(ctx, local, d, dims[d], turned, combine)
    for c, value in tree.results.items():
        x = local[c]
        if turned:
            for use in value.uses:
                ctx.bind(use.op.results[0], dims, _flip(ctx, x, d))
        else:
            ctx.bind(value, dims, x)
    ctx.op = outer
    return tree.ops | {use.op for v in tree.results.values() for use in v.uses} if turned else tree.ops


def _joined(ctx: Context, local: Refs, d: int, atoms: Sequence[int], turned: bool, combine: Combine) -> Refs:
    """The scans of the pieces (`local`), each combined with the total of all pieces before it."""
    last = local[0].shape[d] - 1
    totals = [ctx.realiser.cut(ctx.region, x, d, last, last + 1, ctx.loc) for x in local]
    earlier = [_repeat(ctx, x, local[0].shape) for x in before(ctx, totals, atoms, not turned, combine)]
    return _select(ctx, _is_first(ctx, atoms, turned, local[0].shape), local, combine(earlier, local))


def _turned(tree: Tree) -> bool:
    """Whether it is a reverse scan: operands and results of a forward one are reversed along the axis."""

    def reverses(op: Op | None) -> bool:
        return (
            op is not None and op.name == "stablehlo.reverse" and list(integers(op.attrs["dimensions"])) == [tree.axis]
        )

    block = tree.first.parent
    used = [use.op for v in tree.results.values() for use in v.uses]
    return all(reverses(v.op) for v in tree.elements) and all(reverses(op) and op.parent is block for op in used)


def _layout(ctx: Context, tree: Tree, elements: Sequence[Value]) -> Dims | None:
    """The layout to scan in: one that an operand or result has, or one where an all-to-all has moved the axes of the
    scanned dimension to another one. None if the dimension is not split."""
    d, shape = tree.axis, elements[0].type.shape
    made = [ctx.state(v) for v in elements if ctx.state(v).make is None]
    split = next((s.dims for s in made if s.dims is not None and s.dims[d]), None)
    if split is None or any(s.pending for s in made):
        return None
    n = ctx.atoms.product(split[d])
    options = [split, *(ctx.want(v) for v in tree.results.values())]
    for e, atoms in enumerate(split):
        if e != d and not atoms and shape[e] % n == 0:
            options.append(tuple(split[d] if i == e else () if i == d else a for i, a in enumerate(split)))

    def cost(dims: Dims) -> float:
        row = ctx.elements([1 if i == d else n for i, n in enumerate(shape)], (*dims[:d], (), *dims[d + 1 :]))
        rounds = (ctx.atoms.product(dims[d]) - 1).bit_length()
        total = sum((ctx.itemsize(v) * row + ctx.message) * rounds + ctx.move_cost(v, dims) for v in elements)
        work = 4 * len(elements) * ctx.itemsize(elements[0]) * ctx.elements(shape, dims) * ctx.redundancy
        return total + work + sum(ctx.later_cost(v, dims) for v in tree.results.values())

    return min(options, key=cost)


def _scan(ctx: Context, x: Refs, d: int, combine: Combine) -> Refs:
    """The inclusive scan of the tensors `x` along `d`, on one device."""
    n = x[0].shape[d]
    if n < 2:
        return x
    cut = lambda refs, start, stop, stride=1: [
        ctx.realiser.cut(ctx.region, r, d, start, stop, ctx.loc, stride) for r in refs
    ]
    if n <= TILE_ROW_ELEMENTS and ctx.realiser.platform == "tpu":
        for distance in (1 << i for i in range((n - 1).bit_length())):
            rest = combine(cut(x, 0, n - distance), cut(x, distance, n))
            x = [_concatenate(ctx, a, b, d) for a, b in zip(cut(x, 0, distance), rest)]
        return x
    odd = _scan(ctx, combine(cut(x, 0, n - 1, 2), cut(x, 1, n, 2)), d, combine)
    first = cut(x, 0, 1)
    if n == 2:
        even = first
    else:
        rest = combine(cut(odd, 0, (n - 1) // 2), cut(x, 2, n, 2))
        even = [_concatenate(ctx, a, b, d) for a, b in zip(first, rest)]
    return [_interleave(ctx, a, b, d) for a, b in zip(even, odd)]


def _concatenate(ctx: Context, a: LocalValue, b: LocalValue, d: int) -> LocalValue:
    shape = (*a.shape[:d], a.shape[d] + b.shape[d], *a.shape[d + 1 :])
    return ctx.emit("stablehlo.concatenate", (a, b), shape, a.dtype, attributes("stablehlo.concatenate", d))


def _interleave(ctx: Context, even: LocalValue, odd: LocalValue, d: int) -> LocalValue:
    """even[0], odd[0], even[1], ..."""
    n = even.shape[d] + odd.shape[d]
    a = ctx.realiser.pad(ctx.region, even, d, 0, n - (2 * even.shape[d] - 1), loc=ctx.loc, inner=1)
    b = ctx.realiser.pad(ctx.region, odd, d, 1, n - 2 * odd.shape[d], loc=ctx.loc, inner=1)
    return ctx.emit("stablehlo.or" if even.dtype == "i1" else "stablehlo.add", (a, b), a.shape, a.dtype)


def before(ctx: Context, totals: Refs, atoms: Sequence[int], forward: bool, combine: Combine) -> Refs:
    """The exclusive scan over devices: `totals` of all devices before this one along `atoms` (behind it, if not
    `forward`), combined in order; undefined on the first device. After round k each device has the total of up to 2^k
    devices."""
    n, shape = ctx.atoms.product(atoms), totals[0].shape
    place = ctx.realiser.coordinate(ctx.region, atoms)
    out, distance = totals, 1
    while distance < n:
        step = distance if forward else -distance
        got = [neighbours(ctx, x, atoms, step, "totals of the pieces") for x in totals]
        inside = _compare(ctx, place, distance if forward else n - distance, "GE" if forward else "LT", shape)
        if distance == 1:
            out = got
        else:
            out = _select(ctx, inside, combine(got, out), out)
        distance *= 2
        if distance < n:
            totals = _select(ctx, inside, combine(got, totals), totals)
    return out


def _is_first(ctx: Context, atoms: Sequence[int], turned: bool, shape: tuple[int, ...]) -> LocalValue:
    place = ctx.realiser.coordinate(ctx.region, atoms)
    return _compare(ctx, place, ctx.atoms.product(atoms) - 1 if turned else 0, "EQ", shape)


def _compare(ctx: Context, place: LocalValue, number: int, direction: str, shape: tuple[int, ...]) -> LocalValue:
    attrs = attributes("stablehlo.compare", direction)
    bound = ctx.realiser.index(ctx.region, number)
    return ctx.realiser.splat(ctx.region, ctx.region.entry("stablehlo.compare", (place, bound), (), "i1", attrs), shape)


def _select(ctx: Context, test: LocalValue, yes: Refs, no: Refs) -> Refs:
    return [ctx.emit("stablehlo.select", (test, a, b), a.shape, a.dtype) for a, b in zip(yes, no)]


def _repeat(ctx: Context, x: LocalValue, shape: tuple[int, ...]) -> LocalValue:
    attrs = attributes("stablehlo.broadcast_in_dim", tuple(range(len(shape))))
    return ctx.emit("stablehlo.broadcast_in_dim", (x,), shape, x.dtype, attrs)


def _flip(ctx: Context, x: LocalValue, d: int) -> LocalValue:
    return ctx.emit("stablehlo.reverse", (x,), x.shape, x.dtype, attributes("stablehlo.reverse", (d,)))


def _apply(ctx: Context, functions: Sequence[Node], a: Refs, b: Refs) -> Refs:
    """The combining functions applied to tensors of any length."""
    made: dict[tuple[Any, ...], LocalValue] = {}

    def write(node: Node) -> LocalValue:
        if node.key[0] == "side":
            side, number = int(node.key[1]), int(node.key[2])
            return (a, b)[side][number]
        ref = made.get(node.key)
        if ref is None:
            if node.op is None:
                assert node.value is not None
                ref = ctx.realiser.constant(ctx.region, a[0].shape, node.value.type.dtype, _literal(ctx, node.value))
            else:
                refs = [write(x) for x in node.args]
                dtype = node.op.results[0].type.dtype
                ref = ctx.region.op(
                    node.op.name, refs, [(a[0].shape, dtype)], extra=ctx.attributes_of(node.op), loc=ctx.loc
                )[0]
            made[node.key] = ref
        return ref

    return [write(f) for f in functions]


def _literal(ctx: Context, value: Value) -> str:
    """The number that a tensor holds everywhere, as MLIR writes it."""
    op = value.op
    while op is not None and op.name == "stablehlo.broadcast_in_dim":
        op = op.operands[0].op
    assert op is not None
    text = ctx.text_of(op.attrs["value"])
    return text[text.index("<") + 1 : text.rindex("> :")]
