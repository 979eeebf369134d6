"""Data flow between functions that stay functions (`dedup_functions_fully`).

By default every call is propagated as if inlined, and calls that want other shardings get functions of their own.
Here a function is one for all its calls: each of its arguments is an edge from the operands of all its calls, each
result of a call an edge from what the function returns. A name of a function keeps one meaning, at the price of
reshards around the calls that would have had it otherwise.
"""

from __future__ import annotations

from .annotations import Shardings
from .dataflow import FUNC_EDGE, Edge, node_of
from .functions import callee_of
from .program import Edits, Func, Op, Program, Use, Value, replace_all_uses

__all__ = ["add_func_edges", "callers_first", "calls_by_function", "manual_contexts", "sink_func_edges"]


def calls_by_function(program: Program) -> dict[Func, list[Op]]:
    """The calls of each function as MLIR lists the users of a symbol: by the function that they are in, and there those
    of a block in front of those in its operations' regions, of which the last come first."""
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
    """The functions with each in front of those that it calls: the reverse of the order in which a walk down the calls
    leaves them."""
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


def manual_contexts(program: Program, calls: dict[Func, list[Op]]) -> dict[Func, frozenset[str]]:
    """The axes that are manual around some call of each function: nothing in it can be split over them. `program` has
    callers first."""
    around: dict[Func, frozenset[str]] = {}
    for func in program.funcs.values():
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
    return names | around[parent]


def add_func_edges(program: Program, shardings: Shardings) -> list[Edge]:
    """Adds an edge operation for each argument of every function but the entry, and for each result of every call.
    `program` has callers first."""
    calls, main = calls_by_function(program), program.main
    around = manual_contexts(program, calls)
    edits = Edits()
    added: list[Edge] = []

    def add(op: Func | Op, owner: Value, sources: list[Use], like: Op | None) -> Op:
        edge = Edge(op, owner, sources, [])
        here = around[op] if isinstance(op, Func) else _manual_at(op, around)
        manual = (*[_manual_at(use.op, around) for use in sources], here)
        edge.manual = manual if len({*manual}) > 1 else None
        added.append(edge)
        node = node_of(program, edge, FUNC_EDGE, like)
        shardings.set(node.results[0], shardings.get(owner))
        return node

    for func in program.funcs.values():
        if func is not main:
            flows = [a for a in func.args if a.type.is_tensor and a.type.is_static]
            like = func.caller or (func.body.ops[0] if func.body.ops else None)
            for node in reversed([add(func, a, [Use(c, a.number) for c in calls[func]], like) for a in flows]):
                edits.first(func.body, node)
    for func, callers in calls.items():
        for call in callers:
            flows = [v for v in call.results if v.type.is_tensor and v.type.is_static]
            returned = func.body.terminator
            for node in reversed([add(call, v, [Use(returned, v.number)], call) for v in flows]):
                edits.after(call, node)
    edits.apply()
    return added


def sink_func_edges(shardings: Shardings, edges: list[Edge]) -> None:
    """Gives the edges' shardings to their owners and removes the edge operations."""
    edits = Edits()
    for edge in edges:
        node = edge.node
        if node is None or node.parent is None:
            continue
        shardings.set(edge.owner, shardings.get(node.results[0]))
        replace_all_uses(node.results[0], edge.owner)
        edits.erase(node)
    edits.apply()
