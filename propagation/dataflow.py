"""Data-flow edges: values that are one value seen from several places must be sharded alike.

A loop's initial value, its body's argument and result, and the loop's result are one *edge*. `add_edges` makes each
edge an operation `sdy.data_flow_edge` on the edge's owner, through which all uses of the owner go, so that the driver
treats it like any other operation; `sink_edges` removes them again.

Values that flow between functions are edges, too, where functions are not inlined (`propagation.func_edges`).

For a manual computation the two sides of an edge differ by the manual axes; `to_sources` and `from_sources` convert.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .annotations import Shardings
from .errors import UnsupportedModuleError
from .model import DimSharding, TensorSharding
from .program import Edits, Func, Op, Program, Use, Value, replace_all_uses

__all__ = [
    "FUNC_EDGE",
    "Edge",
    "add_edges",
    "add_manual",
    "edges_of",
    "is_data_flow_op",
    "is_edge",
    "node_of",
    "remove_manual",
    "sink_edges",
]

EDGE, FUNC_EDGE = "sdy.data_flow_edge", "sdy.func_data_flow_edge"

_DATA_FLOW = {
    "sdy.manual_computation",
    "sdy.named_computation",
    "stablehlo.case",
    "stablehlo.if",
    "stablehlo.optimization_barrier",
    "stablehlo.while",
}


@dataclass(slots=True, eq=False)
class Edge:
    """`op` is the data-flow operation (or the function or call that values enter or leave), `owner` the value that
    stands for the edge, `sources` the uses through which values flow in, `targets` the other values that carry the
    edge's sharding, `node` the edge operation. `manual` are the axes that are manual at each source and at the owner,
    of an edge between functions where these differ."""

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
    def is_between_functions(self) -> bool:
        return self.node is not None and self.node.name == FUNC_EDGE


def is_edge(op: Op) -> bool:
    """Whether `op` is an edge operation."""
    return op.name in (EDGE, FUNC_EDGE)


def is_data_flow_op(op: Op) -> bool:
    """Whether values that flow through `op` are sharded alike. Marked ones (`data["no_edges"]`) are not: versions
    before 0.12 let nothing through `stablehlo.if`."""
    return op.name in _DATA_FLOW and not (op.data is not None and op.data.get("no_edges"))


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
    if ops is None and program.names.isdisjoint(_DATA_FLOW):
        return []
    if ops is None:
        ops = [op for func in program.funcs.values() for op in func.body.walk_inside_out() if is_data_flow_op(op)]
    edits = Edits()
    added = []
    for op in ops:
        arguments, results = [], []
        for edge in edges_of(op):
            shardings.set(node_of(program, edge, EDGE, op).results[0], initial_sharding(edge, shardings))
            (arguments if edge.is_argument else results).append(edge)
            added.append(edge)
        for edge in reversed(arguments):
            edits.first(edge.owner.owner, edge.node)
        for edge in reversed(results):
            edits.after(op, edge.node)
    edits.apply()
    return added


def node_of(program: Program, edge: Edge, name: str, like: Op | None) -> Op:
    """A new operation `name` that stands for an edge; all uses of the edge's owner go through it. It is in no block."""
    node = program.new_op(name, [], [edge.owner.type], like=like)
    replace_all_uses(edge.owner, node.results[0])
    node.add_operand(edge.owner)
    node.data = {"edge": edge}
    edge.node = node
    return node


def initial_sharding(edge: Edge, shardings: Shardings) -> TensorSharding | None:
    """What an edge starts from: the owner's sharding, seen from inside for an argument."""
    if not edge.is_argument:
        return shardings.get(edge.owner)
    outer = edge.op.data["in_shardings"][edge.owner.number]
    if edge.op.name == "sdy.manual_computation":
        return remove_manual(outer, edge.op.data["manual_axes"])
    return outer


def sink_edges(program: Program, shardings: Shardings, edges: list[Edge]) -> None:
    """Moves the edges' shardings to the operations and removes the edge operations."""
    sides: dict[tuple[Op, bool], list[Edge]] = {}
    for edge in edges:
        if edge.node is not None and edge.node.parent is not None:
            sides.setdefault((edge.op, edge.is_argument), []).append(edge)
    edits = Edits()
    for members in sides.values():
        found = [shardings.get(e.node.results[0]) for e in members]
        mesh = next((s.mesh for s in found if s is not None), None)
        for edge, sharding in zip(members, found):
            if sharding is None and mesh is not None:
                sharding = TensorSharding.open_on(mesh, edge.owner.type.rank)
            _store(edge, sharding, shardings)
            replace_all_uses(edge.node.results[0], edge.owner)
            edits.erase(edge.node)
    edits.apply()


def _store(edge: Edge, sharding: TensorSharding | None, shardings: Shardings) -> None:
    shardings.set(edge.owner, sharding)
    for target in edge.targets:
        shardings.set(target, sharding)
    if edge.is_argument:
        store_argument(edge, sharding)


def store_argument(edge: Edge, sharding: TensorSharding | None) -> None:
    """Writes the sharding of a computation's argument back to the computation's input sharding."""
    outer, number = edge.op.data["in_shardings"], edge.owner.number
    if edge.op.name == "sdy.manual_computation":
        sharding = add_manual(sharding, outer[number], edge.op.data["manual_axes"])
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
    keep = lambda axes: tuple(a for a in axes if a.name not in names)
    return TensorSharding(sharding.mesh, dims, keep(sharding.replicated), keep(sharding.unreduced))


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
    return TensorSharding(outer.mesh, dims, outer.replicated, outer.unreduced)


def source_view(edge: Edge, shardings: Shardings) -> tuple[Callable, Callable] | None:
    """For an edge of a manual computation, the maps of its sharding to the side of its sources and back; None where
    both sides are alike."""
    if edge.op.name != "sdy.manual_computation" or not edge.op.data["manual_axes"]:
        return None
    manual = edge.op.data["manual_axes"]
    if edge.is_argument:
        outer = edge.op.data["in_shardings"][edge.owner.number]
        return (lambda s: add_manual(s, outer, manual), lambda s: remove_manual(s, manual))
    slot = edge.node.results[0]
    return (lambda s: remove_manual(s, manual), lambda s: add_manual(s, shardings.get(slot), manual))


def func_of(value: Value) -> Func:
    """The function in which `value` is defined."""
    owner = value.owner
    while not isinstance(owner, Func):
        owner = owner.owner if not isinstance(owner, Op) else owner.parent
    return owner
