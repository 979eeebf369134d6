"""Recognising associative scans that are written as trees of slices, so that `associative_scan.py` can write them anew.

`associative_scan` of the frontends becomes strided slices, pointwise combinations and interleaving pads on tensors of
half, a quarter, ... of the length (Blelloch's recursion). On a split dimension every one of these would communicate.

The recognition is an abstract interpretation: for every position of every tensor it follows which interval [low, high)
of scanned elements it holds the combination of. Slices, concatenations and pads move intervals; applying the combining
function to adjacent intervals joins them: of x0..x7, x[0::2] (+) x[1::2] holds [0, 2), [2, 4), [4, 6), [6, 8). A tensor
whose position i holds [0, i + 1) is the scan. The combining function itself is what the first two levels of the tree
have in common."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from propagation.attributes import PADDING, integer, integers
from propagation.ops import POINTWISE
from propagation.program import Block, Op, Value

from ..analysis.constants import scalar_constant
from ..heuristics import SCAN_LONGEST, SCAN_NODES, SCAN_SHORTEST

__all__ = ["Node", "Tree", "find"]

_PLAIN = ("stablehlo.constant", "sdy.constant", "stablehlo.broadcast_in_dim")


class Node(NamedTuple):
    """A node of the expression of a combining function: an element (key "side", 0 for the earlier operand and 1 for the
    later one), a constant (key "number"), or an operation on `args`. Equal functions have equal keys."""

    key: tuple[Any, ...]
    size: int
    op: Op | None = None
    args: tuple[Node, ...] = ()
    value: Value | None = None


class _Intervals(NamedTuple):
    """What a tensor holds: at position i the combination of elements [low[i], high[i]) of component `of` (scans may
    have several, as of pairs); low < 0 where it holds zero. Empty tensors are of component -1."""

    of: int
    low: np.ndarray
    high: np.ndarray


@dataclass(slots=True)
class Tree:
    """A scan along `axis` of the tensors `elements`.

    combine   per component its function, over leaves whose keys are ("side", side, component)
    results   component to the value that holds its scan
    ops       the operations that need not be written if the results are known
    first     the operation before which the elements are known
    """

    axis: int
    elements: list[Value]
    combine: list[Node]
    results: dict[int, Value]
    ops: set[Op]
    first: Op


_Halves = dict[tuple[Value, int], tuple[Op, Op]]


def find(block: Block) -> list[Tree]:
    """The scans in a block."""
    halves = _halved(block)
    if not halves:
        return []
    order = {op: i for i, op in enumerate(block.ops)}
    trees: list[Tree] = []
    taken: set[Op] = set()
    for value, axis in halves:
        n = value.type.shape[axis]
        if SCAN_SHORTEST <= n <= SCAN_LONGEST and halves[value, axis][0] not in taken:
            tree = _Finder(block, order, halves, axis, n).tree(value)
            if tree is not None:
                trees.append(tree)
                taken |= tree.ops
    return trees


def _halved(block: Block) -> _Halves:
    """By (value, axis) the two slices that take its even and its odd positions, if both exist."""
    found: dict[tuple[Value, int], dict[int, Op]] = {}
    for op in block.ops:
        if op.name != "stablehlo.slice":
            continue
        cut = _cut(op)
        if cut is not None and cut[3] == 2 and cut[1] < 2:
            n = op.operands[0].type.shape[cut[0]]
            if -(-(cut[2] - cut[1]) // 2) == n // 2:
                found.setdefault((op.operands[0], cut[0]), {})[cut[1]] = op
    return {key: (slices[0], slices[1]) for key, slices in found.items() if len(slices) == 2}


def _cut(op: Op) -> tuple[int, int, int, int] | None:
    """(axis, start, limit, stride) of a slice of one dimension."""
    shape = op.operands[0].type.shape
    rows = zip(integers(op.attrs["start_indices"]), integers(op.attrs["limit_indices"]), integers(op.attrs["strides"]))
    cuts = [(d, s, e, k) for d, (s, e, k) in enumerate(rows) if (s, e, k) != (0, shape[d], 1)]
    return cuts[0] if len(cuts) == 1 else None


class _Finder:
    """The search for one tree."""

    def __init__(self, block: Block, order: dict[Op, int], halves: _Halves, axis: int, n: int):
        self.block, self.order, self.halves, self.axis, self.n = block, order, halves, axis, n
        self.known: dict[Value, _Intervals] = {}
        self.nodes: dict[Value, Node] = {}
        self.combine: dict[tuple[Any, ...], int] = {}  # key of a combining function to its component

    def tree(self, value: Value) -> Tree | None:
        first = self._level([value])
        if first is None:
            return None
        second = self._level([v for v, _ in first[1]])
        if second is None or len(second[0]) != len(first[0]) or len(first[0]) != len(first[1]):
            return None
        elements, outs = first
        component = _components(elements, outs, second)
        if component is None:
            return None
        of_component: dict[int, Node] = {}
        for (v, node), c in zip(outs, component):
            if v.type.dtype != elements[c].type.dtype:
                return None
            of_component[c] = node
            self.combine[node.key] = c
        ends, tracked = self._follow(elements)
        return self._made(elements, [of_component[c] for c in range(len(elements))], ends, tracked)

    def _made(
        self, elements: list[Value], combine: list[Node], ends: dict[int, Value], tracked: list[Op]
    ) -> Tree | None:  # fmt: skip
        if not ends:
            return None
        ops = {v.op for v in ends.values() if v.op is not None}
        for op in reversed(tracked):
            if op not in ops and all(use.op in ops for r in op.results for use in r.uses):
                ops.add(op)
        before = self.order[tracked[0]]
        if any(v.op is not None and self.order.get(v.op, -1) >= before for v in elements):
            return None
        return Tree(self.axis, elements, combine, ends, ops, tracked[0])

    # -- the combining function -------------------------------------------------------------------------------

    def _level(self, values: list[Value]) -> tuple[list[Value], list[tuple[Value, Node]]] | None:
        """One level of the tree: (the tensors whose even and odd positions are combined together with those of
        `values`, the results with their combining functions, in program order)."""
        elements: list[Value] = []
        leaves: dict[Value, tuple[int, int]] = {}
        waiting = list(values)
        nodes: dict[Value, Node] = {}
        outs: dict[Value, Node] = {}
        while waiting:
            v = waiting.pop()
            pair = self.halves.get((v, self.axis))
            if v in elements:
                continue
            if pair is None:
                return None
            elements.append(v)
            for side, op in enumerate(pair):
                leaves[op.results[0]] = (side, len(elements) - 1)
            waiting += self._sources(self._pointwise(leaves), leaves)
        elements.sort(key=lambda v: self.order.get(self.halves[v, self.axis][0], 0))
        for c, v in enumerate(elements):
            for side, op in enumerate(self.halves[v, self.axis]):
                nodes[op.results[0]] = Node(("side", side, c), 1)
        for op in self._pointwise(leaves):
            node = _node(op, nodes)
            if node is None:
                return None
            result = op.results[0]
            nodes[result] = node
            if any(use.op.name not in POINTWISE for use in result.uses):
                outs[result] = node
        return elements, list(outs.items())

    def _pointwise(self, leaves: Iterable[Value]) -> list[Op]:
        """The pointwise operations of the block that follow from `leaves`, in order."""
        found: set[Op] = set()
        todo = list(leaves)
        while todo:
            for use in todo.pop().uses:
                op = use.op
                if op not in found and op.name in POINTWISE and op in self.order and len(found) < SCAN_NODES:
                    found.add(op)
                    todo += op.results
        return sorted(found, key=self.order.__getitem__)

    def _sources(self, ops: list[Op], leaves: Container[Value]) -> list[Value]:
        """Further tensors whose slices reach `ops` through pointwise operations, besides those of `leaves`."""
        found, todo, seen = [], list(ops), set(ops)
        while todo:
            for v in todo.pop().operands:
                if v.op is None or v in leaves or v.op not in self.order:
                    continue
                if v.op.name == "stablehlo.slice":
                    found.append(v.op.operands[0])
                elif v.op.name in POINTWISE and v.op not in seen and len(seen) < SCAN_NODES:
                    seen.add(v.op)
                    todo.append(v.op)
        return found

    # -- what positions hold ----------------------------------------------------------------------------------

    def _follow(self, elements: list[Value]) -> tuple[dict[int, Value], list[Op]]:
        """(by component the value that is its scan, the operations in between)."""
        at = np.arange(self.n)
        for c, v in enumerate(elements):
            self.known[v] = _Intervals(c, at, at + 1)
        queue: list[int] = []
        seen: set[int] = set()
        ends: dict[int, Value] = {}
        tracked: list[Op] = []

        def follow(value: Value) -> None:
            for use in value.uses:
                i = self.order.get(use.op)
                if i is not None and i not in seen:
                    seen.add(i)
                    heapq.heappush(queue, i)

        for v in elements:
            follow(v)
        while queue:
            op = self.block.ops[heapq.heappop(queue)]
            if not self._step(op):
                continue
            tracked.append(op)
            result = op.results[0]
            held = self.known.get(result)
            if held is not None and len(held.low) == self.n and (held.low == 0).all() and (held.high == at + 1).all():
                ends.setdefault(held.of, result)
            else:
                follow(result)
        return ends, tracked

    def _step(self, op: Op) -> bool:
        """Finds what the result of `op` holds; False if it is not part of the tree."""
        if len(op.results) != 1:
            return False
        held = self._moved(op)
        if held is not None:
            self.known[op.results[0]] = held
            return True
        if op.name not in POINTWISE:
            return False
        lengths = {len(self.known[v].low) for v in op.operands if v in self.known}
        if lengths == {0}:
            self.known[op.results[0]] = _Intervals(-1, np.arange(0), np.arange(0))
            return True
        leaves = {v: Node(("of", v), 1, value=v) for v in op.operands if v in self.known}
        node = _node(op, {**self.nodes, **leaves})
        if node is None or node.size > SCAN_NODES:
            return False
        joined = self._joined(node)
        if joined is None and any(v in self.nodes for v in leaves):  # a combination inside of another component's
            node = _node(op, {**leaves, **self.nodes}) or node
            joined = self._joined(node) if node.size <= SCAN_NODES else None
        self.nodes[op.results[0]] = node
        if joined is not None:
            self.known[op.results[0]] = joined
        return True

    def _joined(self, node: Node) -> _Intervals | None:
        """What a combination of adjacent intervals holds; None if `node` is not the combining function of a
        component."""
        held = [self.known[v] for v in _leaves(node)]
        if not held or any((h.low < 0).any() for h in held):
            return None
        first = min(held, key=lambda h: h.low[0])
        last = max(held, key=lambda h: h.low[0])
        if first.high.shape != last.low.shape or (first.high != last.low).any():
            return None
        names: dict[Value, tuple[Any, ...]] = {}
        for v in _leaves(node):
            h = self.known[v]
            for side, other in enumerate((first, last)):
                if h.low.shape == other.low.shape and (h.low == other.low).all() and (h.high == other.high).all():
                    names[v] = ("side", side, h.of)
                    break
            else:
                return None
        component = self.combine.get(_renamed(node, names))
        return None if component is None else _Intervals(component, first.low, last.high)

    def _moved(self, op: Op) -> _Intervals | None:
        """What the result of an operation that moves positions along the axis holds."""
        held = [self.known.get(v) for v in op.operands]
        first = held[0] if held else None
        if op.name == "stablehlo.slice" and first is not None:
            cut = _cut(op) or (self.axis, 0, len(first.low), 1)
            if cut[0] != self.axis:
                return None
            where = slice(*cut[1:])
            return _Intervals(first.of, first.low[where], first.high[where])
        if op.name == "stablehlo.concatenate" and integer(op.attrs["dimension"]) == self.axis:
            some = [h for h in held if h is not None and len(h.low)]
            if None in held or len({h.of for h in some}) != 1:
                return None
            low, high = (np.concatenate([getattr(h, side) for h in some]) for side in ("low", "high"))
            return _Intervals(some[0].of, low, high)
        if op.name == "stablehlo.pad" and first is not None and scalar_constant(op.operands[1]) == 0:
            return self._padded(op, first)
        if op.name in ("stablehlo.add", "stablehlo.or"):
            a, b = held
            if a is not None and b is not None and a.of == b.of:
                return _merged(a, b)
        return None

    def _padded(self, op: Op, held: _Intervals) -> _Intervals | None:
        low, high, inner = (integers(op.attrs[name]) for name in PADDING)
        if any(d != self.axis and (low[d] or high[d] or inner[d]) for d in range(len(low))):
            return None
        d = self.axis
        if min(low[d], high[d]) < 0 or not len(held.low):
            return None
        size = op.results[0].type.shape[d]
        where = low[d] + np.arange(len(held.low)) * (inner[d] + 1)
        out = _Intervals(held.of, np.full(size, -1), np.full(size, -1))
        out.low[where], out.high[where] = held.low, held.high
        return out


def _merged(a: _Intervals, b: _Intervals) -> _Intervals | None:
    """The sum of two tensors, one of which is zero wherever the other is not."""
    if a.low.shape != b.low.shape or ((a.low < 0) == (b.low < 0)).any():
        return None
    return _Intervals(a.of, np.maximum(a.low, b.low), np.maximum(a.high, b.high))


def _components(
    elements: list[Value], outs: list[tuple[Value, Node]], second: tuple[list[Value], list[tuple[Value, Node]]]
) -> list[int] | None:
    """The component of each combination, found by matching two levels: the second level uses the combinations of the
    first in the place of the elements. None if they do not match."""
    names: dict[int, Value] = {}  # component to the combination that takes its place
    for (_, a), (_, b) in zip(outs, second[1]):
        if not _same(a, b, second[0], names):
            return None
    place = {v: c for c, v in names.items()}
    if len(place) != len(elements) or any(v not in place for v, _ in outs):
        return None
    return [place[v] for v, _ in outs]


def _same(a: Node, b: Node, others: list[Value], names: dict[int, Value]) -> bool:
    """Whether two functions are equal if component c of the first is `names[c]` of the second; fills `names`."""
    if a.key[0] == "side" or b.key[0] == "side":
        if a.key[:2] != b.key[:2]:
            return False
        return names.setdefault(a.key[2], others[b.key[2]]) is others[b.key[2]]
    if a.op is None or b.op is None:
        return a.key == b.key
    if a.key[:2] != b.key[:2] or len(a.args) != len(b.args):
        return False
    return all(_same(x, y, others, names) for x, y in zip(a.args, b.args))


def _node(op: Op, nodes: dict[Value, Node]) -> Node | None:
    """A pointwise operation on known nodes and numbers; None if an operand is neither."""
    args = []
    for v in op.operands:
        node = nodes.get(v)
        if node is None:
            node = _number(v)
        if node is None:
            return None
        args.append(node)
    attrs = tuple((k, a) for k, a in op.attrs.items() if not k.startswith(("sdy.", "mhlo.")))
    kind = (op.name, attrs, op.results[0].type.dtype)
    return Node(("op", kind, *(a.key for a in args)), 1 + sum(a.size for a in args), op, tuple(args))


def _number(value: Value) -> Node | None:
    """A tensor that holds one number everywhere."""
    op = value.op
    while op is not None and op.name == "stablehlo.broadcast_in_dim":
        op = op.operands[0].op
    if op is None or op.name not in _PLAIN or scalar_constant(value) is None:
        return None
    number = scalar_constant(value)
    return Node(("number", value.type.dtype, str(number)), 1, None, (), value)


def _leaves(node: Node) -> Iterator[Value]:
    if node.key[0] == "of" and node.value is not None:
        yield node.value
    for a in node.args:
        yield from _leaves(a)


def _renamed(node: Node, names: dict[Value, tuple[Any, ...]]) -> tuple[Any, ...]:
    """The key of a function with its leaves replaced by `names`."""
    if node.key[0] == "of" and node.value is not None:
        return names[node.value]
    if node.op is None:
        return node.key
    return ("op", node.key[1], *(_renamed(a, names) for a in node.args))
