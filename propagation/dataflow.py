"""Data-flow edges: one value that appears in several places, as a loop's does, has one sharding in all of them.

A loop's initial value, its body's argument and result, and the loop's result are one *edge*. `add_edges` makes each
edge an operation `sdy.data_flow_edge` on the edge's owner, through which all uses of the owner go, so that the driver
treats it like any other operation; `sink_edges` removes them again.

Values that flow between functions are edges, too, where functions are not inlined (`propagation.func_edges`).

At the boundary of a manual computation the sharding outside has the manual axes, the one inside has not:
`remove_manual` and `add_manual` convert, and `source_view` has both for an edge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from .errors import UnsupportedModuleError
from .model import DimSharding, TensorSharding
from .ops import DATA_FLOW
from .program import Block, Edits, Func, Op, Program, Use, Value, replace_all_uses, source
from .shardings import Shardings

__all__ = [
    "FUNC_EDGE",
    "Edge",
    "add_edges",
    "add_manual",
    "edges_in",
    "edges_of",
    "is_data_flow_op",
    "is_edge",
    "node_of",
    "remove_manual",
    "sink_edges",
    "with_nodes",
]

EDGE, FUNC_EDGE = "sdy.data_flow_edge", "sdy.func_data_flow_edge"

Change: TypeAlias = Callable[[TensorSharding | None], TensorSharding | None]


@dataclass(slots=True, eq=False)
class Edge:
    """Values that are sharded alike. Of a loop `%r = while(%x)`, edge 0 has the owner `%r`, the sources `%x` and what
    the body returns, and the targets: the first argument of the condition and of the body.

    op       the data-flow operation; of an edge between functions, the function or call that values enter or leave
    owner    the value that stands for the edge
    sources  the uses through which values flow in
    targets  the other values that have the edge's sharding
    node     the edge operation, if there is one
    manual   of an edge between functions, where they differ: the axes that are manual at each source and at the owner
    """

    op: Op | Func
    owner: Value
    sources: list[Use]
    targets: list[Value]
    node: Op | None = None
    manual: tuple[frozenset[str], ...] | None = None

    @property
    def is_argument(self) -> bool:
        return self.owner.is_argument

    @property
    def operation(self) -> Op:
        """The edge operation, of an edge that has one."""
        assert self.node is not None
        return self.node

    @property
    def computation(self) -> Op:
        """The data-flow operation, of an edge that is not between functions."""
        assert isinstance(self.op, Op)
        return self.op

    @property
    def is_between_functions(self) -> bool:
        return self.node is not None and self.node.name == FUNC_EDGE


def is_edge(op: Op) -> bool:
    """Whether `op` is an edge operation."""
    return op.name in (EDGE, FUNC_EDGE)


def is_data_flow_op(op: Op) -> bool:
    """Whether values flow through `op` along edges. Not if it is marked (`data["no_edges"]`): versions before 0.12 let
    nothing through `stablehlo.if`."""
    return op.name in DATA_FLOW and not (op.data is not None and op.data.get("no_edges"))


def edges_of(op: Op) -> list[Edge]:
    """The edges of a data-flow operation: those of block arguments, then those of results."""
    name = op.name
    edges: list[Edge] = []
    if name == "stablehlo.while":
        cond, body = op.regions
        for i, result in enumerate(op.results):
            sources = [Use(op, i), Use(body.terminator, i)]
            edges.append(Edge(op, result, sources, [cond.args[i], body.args[i]]))
    elif name in ("stablehlo.case", "stablehlo.if"):
        for i, result in enumerate(op.results):
            edges.append(Edge(op, result, [Use(b.terminator, i) for b in op.regions], []))
    elif name == "stablehlo.optimization_barrier":
        edges = [Edge(op, result, [Use(op, i)], []) for i, result in enumerate(op.results)]
    elif name in ("sdy.manual_computation", "sdy.named_computation"):
        body = op.regions[0]
        edges = [Edge(op, arg, [Use(op, i)], []) for i, arg in enumerate(body.args)]
        edges += [Edge(op, result, [Use(body.terminator, i)], []) for i, result in enumerate(op.results)]
    return [e for e in edges if e.owner.type.is_tensor and e.owner.type.is_static]


def add_edges(program: Program, shardings: Shardings, ops: list[Op] | None = None) -> list[Edge]:
    """Adds an edge operation for every edge of `ops` (default: of all data-flow operations, inner ones first)."""
    if ops is None and program.names.isdisjoint(DATA_FLOW):
        return []
    if ops is None:
        ops = [op for func in program.funcs.values() for op in func.body.walk_inside_out() if is_data_flow_op(op)]
    edits = Edits()
    added: list[Edge] = []
    for op in ops:
        edges = edges_of(op)
        for edge in edges:
            shardings.set(node_of(program, edge, EDGE, op).results[0], initial_sharding(edge, shardings))
        for edge in reversed(edges):
            block = edge.owner.owner
            if isinstance(block, Block):
                edits.first(block, edge.operation)
            else:
                edits.after(op, edge.operation)
        added += edges
    edits.apply()
    return added


def edges_in(program: Program) -> list[Edge]:
    """The edges of data-flow operations whose edge operations the module carries already."""
    if EDGE not in program.names:
        return []
    edges = [edge for op in program.ops() if op.name in DATA_FLOW for edge in edges_of(op)]
    return with_nodes(program, EDGE, edges)


def with_nodes(program: Program, name: str, edges: list[Edge]) -> list[Edge]:
    """Those of `edges` for which there is an operation `name`, tied to it. Raises `UnsupportedModuleError` for such an
    operation on a value that owns no edge."""
    nodes = {op.operands[0]: op for op in program.ops() if op.name == name}
    found = [edge for edge in edges if edge.owner in nodes]
    for edge in found:
        edge.node = node = nodes.pop(edge.owner)
        node.data = {"edge": edge}
    for value, node in nodes.items():
        raise UnsupportedModuleError(
            f"{name} stands for a value that flows through a loop, a branch, a barrier, a computation or a call: its "
            f"result, or an argument of its body. Its operand is {value!r}; use that value itself",
            source(node),
        )
    return found


def node_of(program: Program, edge: Edge, name: str, like: Op | None) -> Op:
    """A new operation `name` that stands for an edge; all uses of the edge's owner go through it. It is in no block."""
    node = program.new_op(name, [], [edge.owner.type], like=like)
    replace_all_uses(edge.owner, node.results[0])
    node.add_operand(edge.owner)
    node.data = {"edge": edge}
    edge.node = node
    return node


def initial_sharding(edge: Edge, shardings: Shardings) -> TensorSharding | None:
    """The sharding that an edge begins with: the owner's; for an argument of a computation, the input sharding as seen
    from inside."""
    if not edge.is_argument:
        return shardings.get(edge.owner)
    op = edge.computation
    outer: TensorSharding | None = op.data["in_shardings"][edge.owner.number]
    if op.name == "sdy.manual_computation":
        return remove_manual(outer, op.data["manual_axes"])
    return outer


def sink_edges(program: Program, shardings: Shardings, edges: list[Edge]) -> None:
    """Moves the edges' shardings to the operations and removes the edge operations. An operation lists a sharding for
    each of its results, or for none: what has no edge, a token, gets one too."""
    sides: dict[tuple[Op | Func, bool], list[Edge]] = {}
    for edge in edges:
        if edge.node is not None and edge.node.parent is not None:
            sides.setdefault((edge.op, edge.is_argument), []).append(edge)
    edits = Edits()
    for (op, is_argument), members in sides.items():
        found = [shardings.get(e.operation.results[0]) for e in members]
        mesh = next((s.mesh for s in found if s is not None), None)
        if mesh is not None and not is_argument and isinstance(op, Op):
            for v in op.results:
                if not v.type.is_tensor and shardings.get(v) is None:
                    shardings.set(v, TensorSharding.open_on(mesh, v.type.rank))
        for edge, sharding in zip(members, found):
            if sharding is None and mesh is not None:
                sharding = TensorSharding.open_on(mesh, edge.owner.type.rank)
            _store(edge, sharding, shardings)
            replace_all_uses(edge.operation.results[0], edge.owner)
            edits.erase(edge.operation)
    edits.apply()


def _store(edge: Edge, sharding: TensorSharding | None, shardings: Shardings) -> None:
    shardings.set(edge.owner, sharding)
    for target in edge.targets:
        shardings.set(target, sharding)
    if edge.is_argument:
        store_argument(edge, sharding)


def store_argument(edge: Edge, sharding: TensorSharding | None) -> None:
    """Writes the sharding of a computation's argument back to the computation's input sharding."""
    op, number = edge.computation, edge.owner.number
    outer = op.data["in_shardings"]
    if op.name == "sdy.manual_computation":
        sharding = add_manual(sharding, outer[number], op.data["manual_axes"])
    outer[number] = sharding


def remove_manual(sharding: TensorSharding | None, manual: tuple[str, ...]) -> TensorSharding | None:
    """The sharding inside a manual computation: manual axes lead each dimension and are dropped."""
    if sharding is None or not manual:
        return sharding
    names = set(manual)
    dims = []
    for dim in sharding.dims:
        free = tuple(a for a in dim.axes if a.name not in names)
        dims.append(dim if free == dim.axes else DimSharding(free, dim.is_open, dim.priority))
    replicated = [a for a in sharding.replicated if a.name not in names]
    unreduced = [a for a in sharding.unreduced if a.name not in names]
    return TensorSharding(sharding.mesh, dims, replicated, unreduced, sharding.reduction)


def add_manual(
    inner: TensorSharding | None, outer: TensorSharding | None, manual: tuple[str, ...]
) -> TensorSharding | None:
    """The inverse: the manual axes of `outer` in front of the axes of `inner`."""
    if inner is None or outer is None or not manual:
        return inner
    names = set(manual)
    if any(axis.name in names for axis in inner.axes):
        raise UnsupportedModuleError(
            f"{inner.to_text()} came to a value inside a manual computation over {', '.join(manual)}: with "
            "shardy_faults, dedup_functions_fully carries axes there through functions that are called elsewhere, too"
        )
    dims = []
    for old, new in zip(outer.dims, inner.dims):
        kept = tuple(a for a in old.axes if a.name in names)
        dims.append(DimSharding(kept + new.axes, new.is_open, new.priority) if kept else new)
    return TensorSharding(outer.mesh, dims, outer.replicated, outer.unreduced, outer.reduction)


def source_view(edge: Edge, shardings: Shardings) -> tuple[Change, Change] | None:
    """For an edge of a manual computation, the maps of its sharding to the side of its sources and back; None where
    both sides are alike."""
    if edge.op.name != "sdy.manual_computation" or not edge.computation.data["manual_axes"]:
        return None
    manual = edge.computation.data["manual_axes"]
    if edge.is_argument:
        outer = edge.computation.data["in_shardings"][edge.owner.number]
        return (lambda s: add_manual(s, outer, manual), lambda s: remove_manual(s, manual))
    slot = edge.operation.results[0]
    return (lambda s: remove_manual(s, manual), lambda s: add_manual(s, shardings.get(slot), manual))


def func_of(value: Value) -> Func:
    """The function in which `value` is defined."""
    owner: Op | Block | Func | None = value.owner
    while not isinstance(owner, Func):
        assert owner is not None
        owner = owner.parent if isinstance(owner, Op) else owner.owner
    return owner
