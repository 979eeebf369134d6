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

from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from .attributes import symbol
from .dataflow import Edge, edges_of, is_data_flow_op
from .graph import Program, Value
from .model import FactorType, OpRule
from .pipeline import Options, run_stage
from .program import read
from .rules import RuleCache

__all__ = ["ArgumentDim", "Correspondence", "DimensionClass", "Place", "correspondence_of", "dimension_classes"]

Place = tuple[int, int]  # a value's index, one of its dimensions


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
    joined = Correspondence()
    rules = rules or RuleCache()
    for op in program.ops():
        if op.name == "func.call":
            callee = program.funcs.get(symbol(op.attrs["callee"]))
            if callee is not None:
                joined.follow_same(op.operands, callee.args)
                joined.follow_same(op.results, callee.returned)
        elif is_data_flow_op(op):
            for edge in edges_of(op):
                joined.follow_edge(edge)
        elif (rule := rules.rule_for(op)) is not None:
            joined.follow(rule, op.operands, op.results)
    return joined


class Correspondence:
    """A union of places, with what is known of each class under its first place."""

    def __init__(self) -> None:
        self._above: dict[Place, Place] = {}
        self.summed: set[Place] = set()
        self.uses: dict[Place, int] = {}

    def find(self, place: Place) -> Place:
        """The place that stands for the class of a place."""
        root = place
        while (above := self._above.get(root, root)) != root:
            root = above
        while place != root:
            place, self._above[place] = self._above.get(place, place), root
        return root

    def join(self, places: list[Place], is_summed: bool) -> None:
        """Makes one class of those of several places."""
        roots = sorted({self.find(p) for p in places})
        first = roots[0]
        self.uses[first] = sum(self.uses.pop(r, 0) for r in roots) + 1
        if is_summed or not self.summed.isdisjoint(roots):
            self.summed.add(first)
        for root in roots[1:]:
            self._above[root] = first

    def follow(self, rule: OpRule, operands: Sequence[Value], results: Sequence[Value]) -> None:
        """Joins the dimensions whose major factor is the same. A factor that the operation needs whole joins none."""
        places: dict[int, list[Place]] = {}
        for values, mappings in ((operands, rule.operands), (results, rule.results)):
            for value, dims in zip(values, mappings):
                for d, factors in enumerate(dims):
                    if factors and value.type.shape[d] > 1:
                        places.setdefault(factors[0], []).append((value.index, d))
        for factor, found in places.items():
            if rule.types[factor] is not FactorType.NEED_REPLICATION and factor not in rule.blocked:
                self.join(found, rule.types[factor] is FactorType.REDUCTION)

    def follow_edge(self, edge: Edge) -> None:
        """All that flows along an edge has the same dimensions."""
        values: list[Value] = [edge.owner, *edge.targets, *[u.op.operands[u.number] for u in edge.sources]]
        for d in range(edge.owner.type.rank):
            self.join([(v.index, d) for v in values if v.type.rank > d], is_summed=False)

    def follow_same(self, values: Sequence[Value], others: Sequence[Value]) -> None:
        """Values that are the same under another name."""
        for v, other in zip(values, others):
            for d in range(v.type.rank if v.type.is_tensor else 0):
                self.join([(v.index, d), (other.index, d)], is_summed=False)


def _classes(joined: Correspondence, arguments: list[Value]) -> list[DimensionClass]:
    found: dict[Place, list[ArgumentDim]] = {}
    for number, value in enumerate(arguments):
        for d, size in enumerate(value.type.shape):
            if size > 1:
                found.setdefault(joined.find((value.index, d)), []).append(ArgumentDim(number, d, size))
    return [
        DimensionClass(tuple(dims), root in joined.summed, joined.uses.get(root, 0)) for root, dims in found.items()
    ]
