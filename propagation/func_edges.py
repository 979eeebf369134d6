"""Data flow between functions that stay functions (`dedup_functions_fully`).

By default every call is propagated as if inlined, and calls that want other shardings get functions of their own.
Here a function is one for all its calls: each of its arguments is an edge from the operands of all its calls, each
result of a call an edge from what the function returns. So every function is compiled once, at the price of reshards
around the calls that would rather have had other shardings.
"""

from __future__ import annotations

from .dataflow import FUNC_EDGE, Edge, node_of, with_nodes
from .functions import callee_of
from .program import Edits, Func, Op, Program, Use, Value, replace_all_uses
from .shardings import Shardings, set_result

__all__ = ["add_func_edges", "callers_first", "func_edges_in", "sink_func_edges"]


def calls_by_function(program: Program) -> dict[Func, list[Op]]:
    """The calls of each function in the order in which MLIR lists the users of a symbol: function by function; in a
    block first its own operations, then those in regions, the last operation's regions first."""
    calls: dict[Func, list[Op]] = {func: [] for func in program.funcs.values()}
    for func in program.funcs.values() if "func.call" in program.names else ():
        todo = [func.body]
        while todo:
            for op in todo.pop().ops:
                if op.name == "func.call":
                    calls[program.funcs[callee_of(op)]].append(op)
                todo += op.regions
    return calls


def callers_first(program: Program) -> dict[str, Func]:
    """The functions in topological order, callers first (the reverse postorder of a depth-first walk)."""
    callees: dict[Func, list[Func]] = {func: [] for func in program.funcs.values()}
    for func in callees:
        callees[func] = [program.funcs[callee_of(op)] for op in func.body.walk() if op.name == "func.call"]
    left: dict[Func, None] = {}

    def leave(func: Func) -> None:  # no deeper than `limits.MAX_DEPTH` calls
        for callee in callees[func]:
            if callee not in left:
                leave(callee)
        left[func] = None

    for func in callees:
        if func not in left:
            leave(func)
    return {func.name: func for func in reversed(left)}


def manual_contexts(funcs: dict[str, Func], calls: dict[Func, list[Op]]) -> dict[Func, frozenset[str]]:
    """The axes that are manual around some call of each function: nothing in it can be split over them. `funcs` has
    callers first."""
    around: dict[Func, frozenset[str]] = {}
    for func in funcs.values():
        around[func] = frozenset(name for call in calls[func] for name in _manual_at(call, around))
    return around


def _manual_at(op: Op, around: dict[Func, frozenset[str]]) -> frozenset[str]:
    """The axes that are manual where `op` stands."""
    names: frozenset[str] = frozenset()
    parent = op.parent_op
    while isinstance(parent, Op):
        if parent.name == "sdy.manual_computation":
            names = names.union(parent.data["manual_axes"])
        parent = parent.parent_op
    return names | around[parent] if parent is not None else names


def edges_between(program: Program) -> list[tuple[Func | Op, list[Edge]]]:
    """The edges of the arguments of every function but the entry, and those of the results of every call; none has an
    edge operation yet."""
    calls, main = calls_by_function(program), program.main
    around = manual_contexts(callers_first(program), calls)

    def edge(op: Func | Op, owner: Value, sources: list[Use]) -> Edge:
        here = around[op] if isinstance(op, Func) else _manual_at(op, around)
        manual = (*[_manual_at(use.op, around) for use in sources], here)
        return Edge(op, owner, sources, [], manual=manual if len({*manual}) > 1 else None)

    found: list[tuple[Func | Op, list[Edge]]] = []
    for func in program.funcs.values():
        if func is not main:
            flows = [a for a in func.args if a.type.is_tensor and a.type.is_static]
            found.append((func, [edge(func, a, [Use(c, a.number) for c in calls[func]]) for a in flows]))
    for func, callers in calls.items():
        for call in callers:
            flows = [v for v in call.results if v.type.is_tensor and v.type.is_static]
            found.append((call, [edge(call, v, [Use(func.body.terminator, v.number)]) for v in flows]))
    return found


def add_func_edges(program: Program, shardings: Shardings) -> list[Edge]:
    """Adds an edge operation for each argument of every function but the entry, and for each result of every call."""
    edits = Edits()
    added: list[Edge] = []
    for place, edges in edges_between(program):
        if isinstance(place, Func):
            like = place.caller or (place.body.ops[0] if place.body.ops else None)
        else:
            like = place
        for edge in edges:
            node = node_of(program, edge, FUNC_EDGE, like)
            shardings.set(node.results[0], shardings.get(edge.owner))
        for edge in reversed(edges):
            if isinstance(place, Func):
                edits.first(place.body, edge.operation)
            else:
                edits.after(place, edge.operation)
        added += edges
    edits.apply()
    return added


def func_edges_in(program: Program) -> list[Edge]:
    """The edges between functions whose edge operations the module carries already."""
    if FUNC_EDGE not in program.names:
        return []
    return with_nodes(program, FUNC_EDGE, [edge for _, edges in edges_between(program) for edge in edges])


def sink_func_edges(shardings: Shardings, edges: list[Edge]) -> None:
    """Gives the edges' shardings to their owners and removes the edge operations."""
    edits = Edits()
    for edge in edges:
        node = edge.node
        if node is None or node.parent is None:
            continue
        sharding = shardings.get(node.results[0])
        if sharding is not None:
            set_result(shardings, edge.owner, sharding)
        replace_all_uses(node.results[0], edge.owner)
        edits.erase(node)
    edits.apply()
