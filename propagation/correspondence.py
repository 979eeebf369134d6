"""Which dimensions of a program's values correspond: those that an axis would reach, one from another.

The sharding rules of operations and the edges of loops, branches and calls say it, without any sharding: in
`y = x @ w` the features of `x` and the rows of `w` are one class, the columns of `w` and of `y` another. A class is one
decision of whoever lays out the program (TOAST, arXiv 2508.15010, calls them colours).

>>> text = '''
... func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x32xf32>) -> tensor<8x32xf32> {
...   %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
...        : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
...   return %0 : tensor<8x32xf32> }'''
>>> [[(d.argument, d.dim) for d in c.dims] for c in dimension_classes(text)]
[[(0, 0)], [(0, 1), (1, 0)], [(1, 1)]]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxlib.mlir import ir

from .attributes import symbol
from .dataflow import Edge, edges_of, is_data_flow_op
from .graph import Op, Program, Value
from .model import FactorType, OpRule
from .ops import DATA_FLOW
from .pipeline import Options, run_stage
from .program import read
from .rules import RuleCache

__all__ = ["ArgumentDim", "Correspondence", "DimensionClass", "correspondence_of", "dimension_classes"]

Place = tuple[int, int]  # the number of a tensor, one of its dimensions


@dataclass(frozen=True, slots=True)
class ArgumentDim:
    """Dimension `dim` of argument `argument` of the entry function; `size` is its size."""

    argument: int
    dim: int
    size: int


@dataclass(frozen=True, slots=True)
class DimensionClass:
    """Dimensions of arguments that correspond, in the order of the arguments. `is_summed` says whether an operation
    sums over them, so that splitting them leaves partial sums; `uses` counts the operations that the class runs
    through."""

    dims: tuple[ArgumentDim, ...]
    is_summed: bool
    uses: int


def dimension_classes(module: str | bytes | ir.Module, file: str | None = None) -> list[DimensionClass]:
    """The classes in which arguments of the entry function have dimensions of more than one element, in the order of
    their first ones. What the module says of shardings plays no part; dimensions of unknown size belong to none.

    Raises the errors of `propagation.errors` for what is no module.
    """
    program = read(module, file)
    arguments = list(program.main.args)
    run = run_stage(program, "inlined", Options())
    joined = Correspondence()
    rules = RuleCache(run.options.rules)
    for op in run.program.ops():
        rule = rules.rule_for(op)
        if rule is not None:
            joined.follow(rule, op.operands, op.results)
    for edge in run.edges:
        joined.follow_edge(edge)
    return _classes(joined, arguments)


def correspondence_of(program: Program, rules: RuleCache | None = None) -> Correspondence:
    """The classes of all dimensions of a program that no edge operation is in, calls of functions included. `rules` may
    be those that are known already."""
    joined = Correspondence(counts=False)
    follow, summed, ops = joined.follow, FactorType.REDUCTION, program.ops()
    for op, rule in zip(ops, (rules or RuleCache()).rules_for(ops)):
        if op.name in DATA_FLOW and is_data_flow_op(op):
            for edge in edges_of(op):
                joined.follow_edge(edge)
        elif rule is not None:
            follow(rule, op.operands, op.results)
            if not rule.elementwise and summed in rule.types:
                joined.summing.append((op, rule))
        elif op.name == "func.call" and (callee := program.funcs.get(symbol(op.attrs["callee"]))) is not None:
            joined.follow_same(op.operands, callee.args)
            joined.follow_same(op.results, callee.returned)
    return joined


class _Joins(NamedTuple):
    """What an operation joins: groups of dimensions, each with whether it is summed over; a dimension is the number of
    its tensor (operands, then results) and its own.

    alike     the dimensions of more than one element, if all tensors correspond dimension by dimension
    among     the groups as far as they are of operands, where these are several
    sources   for each result and dimension the operand's dimension that it corresponds to, if any; None where results
              correspond to each other and to no operand
    """

    groups: tuple[tuple[bool, tuple[Place, ...]], ...]
    alike: tuple[int, ...] | None
    among: tuple[tuple[Place, ...], ...]
    sources: tuple[tuple[Place | None, ...], ...] | None


class Correspondence:
    """A union of dimensions, with what is known of each class.

    A dimension of a value is a node, a number, and so is a class: the first of its nodes. A dimension of a result takes
    the node of an operand's that it corresponds to, and values that correspond dimension by dimension from the first,
    as along chains of pointwise operations, share one row of nodes.

    summing   the operations that sum over some dimension, with their rules
    counts    whether the operations are counted that a class runs through, and those that sum over it (`counted`)
    """

    def __init__(self, counts: bool = True) -> None:
        self._counts = counts
        self._rows: dict[int, list[int]] = {}  # by a value's index: the nodes of its dimensions
        self._above: list[int] = []  # by node: another one of its class, nearer to the first
        self._uses: list[int] = []  # by node: operations for which it stands for its class
        self._summed: set[int] = set()  # nodes
        self._joins: dict[Any, _Joins] = {}  # by rule and types, or by a rule that says the shapes of all
        self._is_flat = True  # whether every node stands right below its class
        self.summing: list[tuple[Op, OpRule]] = []

    def find(self, value: Value, dim: int) -> int:
        """The class of a dimension."""
        return self._find(self._row(value)[dim])

    def classes(self, value: Value) -> tuple[int, ...]:
        """The classes of all dimensions of a value."""
        row, above = self._row(value), self._above
        if not self._is_flat:
            for node, nearer in enumerate(above):  # which is no larger, so it stands right below its class by now
                above[node] = above[nearer]
            self._is_flat = True
        return tuple([above[node] for node in row])

    def having(self, values: Iterable[Value], among: Collection[int]) -> Iterator[tuple[Value, tuple[int, ...]]]:
        """Those of `values` that have a dimension of a class that is `among` some, with the classes of all of their
        dimensions. Many values share a row, which is looked at once."""
        known: dict[int, tuple[int, ...] | None] = {}
        rows = self._rows
        for value in values:
            row = rows.get(value.index)
            if not row:  # a scalar, or nobody has asked about it yet: it is alone in its classes
                continue
            found = known.get(id(row), ())
            if found == ():
                found = self.classes(value)
                found = known[id(row)] = None if found is None or set(found).isdisjoint(among) else found
            if found:
                yield value, found

    def counted(self) -> dict[int, tuple[int, bool]]:
        """By class: how many operations it runs through, and whether one of them sums over it."""
        uses, summed = Counter[int](), set(map(self._find, self._summed))
        for node, count in enumerate(self._uses):
            uses[self._find(node)] += count
        return {of: (count, of in summed) for of, count in uses.items()}

    def _find(self, node: int) -> int:
        above = self._above
        while (nearer := above[node]) != node:
            above[node] = node = above[nearer]
        return node

    def _node(self) -> int:
        """A new one, in a class of its own."""
        node = len(self._above)
        self._above.append(node)
        self._uses.append(0)
        return node

    def _row(self, value: Value) -> list[int]:
        row = self._rows.get(value.index)
        if row is None:
            first, count = len(self._above), len(value.type.shape)
            row = self._rows[value.index] = list(range(first, first + count))
            self._above += row
            self._uses += [0] * count
        return row

    def _join(self, nodes: Sequence[int]) -> None:
        """Makes one class of those of several nodes."""
        above, first = self._above, self._find(nodes[0])
        for node in nodes[1:]:
            root = above[node]
            if root == first:
                continue
            if above[root] != root:
                root = self._find(root)
            if root != first:
                first, other = (first, root) if first < root else (root, first)
                above[other] = first
                self._is_flat = False

    def follow(self, rule: OpRule, operands: Sequence[Value], results: Sequence[Value]) -> None:
        """Joins the dimensions whose major factor is the same. A factor that the operation needs whole joins none."""
        joins = self._joins.get(rule) or self._joins_of(rule, operands, results)
        rows, uses = self._rows, self._uses
        if joins.alike is not None:
            self._follow_alike(joins.alike, [*operands, *results])
            return
        at = [self._row(v) for v in operands]
        if joins.sources is not None and not [v for v in results if v.index in rows]:
            for v, sources in zip(results, joins.sources):
                rows[v.index] = [self._node() if p is None else at[p[0]][p[1]] for p in sources]
            for places in joins.among:
                self._join([at[t][d] for t, d in places])
        else:
            at += [self._row(v) for v in results]
            for _, places in joins.groups:
                if len(places) > 1:
                    self._join([at[t][d] for t, d in places])
        for is_summed, places in joins.groups if self._counts else ():
            t, d = places[0]
            uses[at[t][d]] += 1
            if is_summed:
                self._summed.add(at[t][d])

    def _follow_alike(self, dims: tuple[int, ...], values: Sequence[Value]) -> None:
        """Joins the dimensions `dims` of all values, one by one; these are all that have more than one element."""
        rows, above = self._rows, self._above
        shared = rows.get(values[0].index)
        if shared is None:
            shared = self._row(values[0])
        for v in values:
            row = rows.setdefault(v.index, shared)
            if row is not shared:
                for d in dims:
                    if above[shared[d]] != above[row[d]]:
                        self._join((shared[d], row[d]))
                if len(dims) == len(row):
                    rows[v.index] = shared  # there is nothing left to join the next time
        for d in dims if self._counts else ():
            self._uses[shared[d]] += 1

    def _joins_of(self, rule: OpRule, operands: Sequence[Value], results: Sequence[Value]) -> _Joins:
        """What an operation joins; kept by its rule alone if that says the types, too."""
        key: Any = rule if _says_types(rule) else (rule, *[v.type for v in operands], *[v.type for v in results])
        joins = self._joins.get(key)
        if joins is None:
            joins = self._joins[key] = _joins(rule, operands, results)
        return joins

    def follow_edge(self, edge: Edge) -> None:
        """All that flows along an edge has the same dimensions."""
        values: list[Value] = [edge.owner, *edge.targets, *[u.op.operands[u.number] for u in edge.sources]]
        for d in range(edge.owner.type.rank):
            nodes = [self._row(v)[d] for v in values if v.type.rank > d]
            self._join(nodes)
            self._uses[nodes[0]] += 1

    def follow_same(self, values: Sequence[Value], others: Sequence[Value]) -> None:
        """Values that are the same under another name."""
        for v, other in zip(values, others):
            for d in range(v.type.rank if v.type.is_tensor else 0):
                nodes = [self._row(v)[d], self._row(other)[d]]
                self._join(nodes)
                self._uses[nodes[0]] += 1


def _says_types(rule: OpRule) -> bool:
    """Whether all tensors of operations with this rule have the shape that its factors' sizes are."""
    return rule.elementwise and len(rule.results) == 1 and rule.operands.count(rule.results[0]) == len(rule.operands)


def _joins(rule: OpRule, operands: Sequence[Value], results: Sequence[Value]) -> _Joins:
    """What operations of this rule join, on values of these types."""
    values = (*operands, *results)
    places: dict[int, list[Place]] = {}
    for t, (value, dims) in enumerate(zip(values, (*rule.operands, *rule.results))):
        for d, factors in enumerate(dims):
            if factors and value.type.shape[d] > 1:
                places.setdefault(factors[0], []).append((t, d))
    joined = [f for f in places if rule.types[f] is not FactorType.NEED_REPLICATION and f not in rule.blocked]
    groups = tuple([(rule.types[f] is FactorType.REDUCTION, tuple(places[f])) for f in joined])
    shape = values[0].type.shape if values else ()
    long = [d for d, size in enumerate(shape) if size > 1]
    alike = (
        bool(values)
        and all(v.type.shape == shape for v in values)
        and not any(is_summed for is_summed, _ in groups)
        and sorted(found for _, found in groups) == [tuple([(t, d) for t in range(len(values))]) for d in long]
    )
    among = [tuple([place for place in found if place[0] < len(operands)]) for _, found in groups]
    source = {place: inside[0] for inside, (_, found) in zip(among, groups) if inside for place in found}
    sources = [
        tuple([source.get((t, d)) for d in range(v.type.rank)]) for t, v in enumerate(results, start=len(operands))
    ]
    return _Joins(
        groups,
        tuple(long) if alike else None,
        tuple([inside for inside in among if len(inside) > 1]),
        tuple(sources) if all(among) else None,
    )


def _classes(joined: Correspondence, arguments: list[Value]) -> list[DimensionClass]:
    found: dict[int, list[ArgumentDim]] = {}
    for number, value in enumerate(arguments):
        for d, size in enumerate(value.type.shape):
            if size > 1:
                found.setdefault(joined.find(value, d), []).append(ArgumentDim(number, d, size))
    counted = joined.counted()
    return [DimensionClass(tuple(dims), counted[of][1], counted[of][0]) for of, dims in found.items()]
