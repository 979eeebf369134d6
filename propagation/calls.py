"""Function calls: propagated as if inlined, and called again afterwards.

`inline_calls` turns each call into an `sdy.named_computation` with a copy of the callee's body; `outline_calls` makes
functions of them again, one per distinct (original function, argument and result shardings).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from .functions import Symbols, callee_of, drop_unreachable_functions, original_name, set_callee
from .importing import filled
from .model import TensorSharding
from .program import Block, Edits, Func, Op, Program, Value, replace_all_uses
from .shardings import Shardings

# What makes two copies of a function one: the original's name, and the shardings of arguments and results.
Key: TypeAlias = "tuple[str, tuple[TensorSharding | None, ...], tuple[TensorSharding | None, ...]]"

__all__ = ["inline_calls", "note_returned", "outline_calls", "returned_shardings", "settle_calls"]


def inline_calls(program: Program, shardings: Shardings, applied: list[tuple[Op, Value]] | None = None) -> list[Op]:
    """Replaces every call reached from the remaining functions; returns the named computations, inner ones first. To
    what was `applied` to values (`Log.applied`) it adds that their copies have it too."""
    if "func.call" not in program.names:
        return []
    called = {callee_of(op) for op in program.ops() if op.name == "func.call"}
    inliner = _Inliner(program, shardings, [] if applied is None else applied)
    for func in [f for n, f in program.funcs.items() if n not in called or f.visibility == "public"]:
        inliner.block(func.body)
    inliner.edits.apply()
    for name in called:
        if program.funcs[name].visibility != "public":
            del program.funcs[name]
    return inliner.made


class _Inliner:
    def __init__(self, program: Program, shardings: Shardings, applied: list[tuple[Op, Value]]):
        self.program, self.shardings = program, shardings
        self.applied, self._by = applied, {value: op for op, value in reversed(applied)}
        self.edits = Edits()
        self.made: list[Op] = []

    def block(self, block: Block) -> None:
        for op in list(block.ops):
            if op.name == "func.call":
                self.call(op)
            else:
                for inner in op.regions:
                    self.block(inner)

    def call(self, op: Op) -> None:
        program, shardings = self.program, self.shardings
        callee = program.funcs[callee_of(op)]
        attrs = {k: v for k, v in op.attrs.items() if k not in ("callee", "sdy.sharding")}
        new = program.new_op("sdy.named_computation", list(op.operands), [v.type for v in op.results], attrs, (), op)
        mapping: dict[Value, Value] = {}
        body = program.clone_block(callee.body, mapping, new)
        new.regions = [body]
        body.terminator.name = "sdy.return"
        for old, copy in mapping.items():
            shardings.set(copy, shardings.get(old))
            by = self._by.get(old)
            if by is not None:
                self._by[copy] = (mapping[by.results[0]].op or by) if by.results and by.results[0] in mapping else by
                self.applied.append((self._by[copy], copy))
        ins = [shardings.get(a) for a in callee.args]
        new.data = {"name": original_name(callee), "in_shardings": filled(ins, callee.args), "callee": callee}
        for old, value in zip(op.results, new.results):
            shardings.set(value, shardings.get(old))
            replace_all_uses(old, value)
        self.edits.before(op, new)
        self.edits.erase(op)
        self.block(body)
        self.made.append(new)


def note_returned(program: Program, shardings: Shardings, is_newest: bool) -> None:
    """Notes the shardings of what each named computation returns, while those of loops and branches still stand on
    their edges: one without a sharding counts as unsharded here, though sinking the edges may list it as open next to
    sharded ones. In the newest version a value on a single device (a maximal sharding) counts as unsharded, too."""
    if "sdy.named_computation" not in program.names:
        return
    for op in program.ops():
        if op.name == "sdy.named_computation":
            values = op.regions[0].terminator.operands
            op.data["returned"] = returned_shardings(values, shardings, is_newest)
            op.data["returned_values"] = [*values]


def returned_shardings(values: Sequence[Value], shardings: Shardings, is_newest: bool) -> list[TensorSharding | None]:
    """The result shardings of a function that returns `values`."""
    found = [shardings.get(v) for v in values]
    return [None if s is not None and s.mesh.is_maximal and is_newest else s for s in found]


def outline_calls(program: Program, shardings: Shardings, keep_own: bool) -> None:
    """Makes functions and calls of the named computations again. Calls of one function with equal argument and result
    shardings share a copy: the one that comes first in program order. Where a call's result is sharded otherwise than
    the function returns it, an `sdy.reshard` follows the call, the last result's first. But with `keep_own`, where the
    two are unreduced over different axes, the call keeps its own sharding."""
    if "sdy.named_computation" not in program.names:
        return
    symbols = Symbols(program)
    edits = Edits()
    calls: list[tuple[Op, Op]] = []
    keys: dict[str, Key] = {}
    for func in list(program.funcs.values()):
        for op in func.body.walk_inside_out():
            if op.name == "sdy.named_computation":
                calls.append((_outline(program, shardings, op, symbols, keys, edits), op))
    edits.apply()
    _share_functions(program, keys)
    for call, op in calls:
        wanted = [shardings.get(v) for v in op.results]
        # The value whose decisions explain each result of the call.
        call.data = {"stands_for": [*op.results]}
        returns = op.data["returned"], op.data["returned_values"]
        _settle_results(program, shardings, call, *returns, wanted, keep_own, edits)
    edits.apply()
    drop_unreachable_functions(program)


def settle_calls(program: Program, shardings: Shardings, keep_own: bool) -> None:
    """`outline_calls` for functions that were not inlined: copies of one function with equal shardings become one
    again, and a call's results get the shardings that the function returns."""
    if "func.call" not in program.names:
        return
    keys = {}
    for func in program.funcs.values():
        if func is not program.main:
            ins = filled([shardings.get(a) for a in func.args], func.args)
            keys[func.name] = (original_name(func), tuple(ins), tuple(shardings.results[func]))
    _share_functions(program, keys)
    drop_unreachable_functions(program)
    edits = Edits()
    for func in program.funcs.values():
        for call in [op for op in func.body.walk_inside_out() if op.name == "func.call"]:
            callee = program.funcs[callee_of(call)]
            wanted = [shardings.get(v) for v in call.results]
            call.data = {"stands_for": [*call.results]}
            returns = shardings.results[callee], callee.returned
            _settle_results(program, shardings, call, *returns, wanted, keep_own, edits)
    edits.apply()


def _outline(
    program: Program, shardings: Shardings, op: Op, symbols: Symbols, keys: dict[str, Key], edits: Edits
) -> Op:
    """The call that stands for a named computation, and a function of its body."""
    func = _new_function(program, shardings, op, symbols)
    keys[func.name] = (op.data["name"], tuple(op.data["in_shardings"]), tuple(op.data["returned"]))
    attrs = {k: v for k, v in op.attrs.items() if k not in ("name", "in_shardings", "out_shardings", "sdy.sharding")}
    call = program.new_op("func.call", op.operands, [v.type for v in op.results], attrs, (), op)
    set_callee(program, call, func.name)
    func.caller = call
    for old, value in zip(op.results, call.results):
        replace_all_uses(old, value)
    edits.before(op, call)
    edits.erase(op)
    op.data["became"] = call
    return call


def _share_functions(program: Program, keys: dict[str, Key]) -> None:
    first: dict[Key, str] = {}
    for op in program.ops():
        if op.name == "func.call":
            name = callee_of(op)
            shared = first.setdefault(keys[name], name) if name in keys else name
            if shared != name:
                set_callee(program, op, shared)


def _settle_results(
    program: Program, shardings: Shardings, call: Op, returned: Sequence[TensorSharding | None],
    returned_values: Sequence[Value], wanted_ones: Sequence[TensorSharding | None], keep_own: bool, edits: Edits,
) -> None:  # fmt: skip
    """The shardings of a call's results: those that the function returns (`returned`, of `returned_values`), with
    reshards to those that were decided for them (`wanted_ones`)."""
    given = filled(returned, call.results)
    for number, value in enumerate(call.results):
        returns, wanted = given[number], wanted_ones[number]
        if returns is None and wanted is not None and not wanted.mesh.is_maximal:
            returns = TensorSharding.replicated_on(wanted.mesh, value.type.rank)
        if wanted is None and returns is not None and not returns.mesh.is_maximal:
            wanted = TensorSharding.replicated_on(returns.mesh, value.type.rank)
        if returns is None or wanted is None:
            shardings.set(value, returns or wanted)
        elif keep_own and (returns.unreduced, returns.reduction) != (wanted.unreduced, wanted.reduction):
            shardings.set(value, wanted)
            continue
        else:
            shardings.set(value, returns)
            if not _is_placed_alike(returns, wanted):
                _reshard(program, shardings, value, wanted, call, edits)
        if given[number] is not None:
            call.data["stands_for"][number] = returned_values[number]


def _is_placed_alike(a: TensorSharding, b: TensorSharding) -> bool:
    """Whether two shardings split their value alike; axes over which it is unreduced do not count."""
    if a.is_fully_replicated and b.is_fully_replicated:
        return True
    return a.mesh is b.mesh and [d.axes for d in a.dims] == [d.axes for d in b.dims]


def _reshard(
    program: Program, shardings: Shardings, value: Value, wanted: TensorSharding, call: Op, edits: Edits
) -> None:
    reshard = program.new_op("sdy.reshard", [], [value.type], {}, (), call)
    replace_all_uses(value, reshard.results[0])
    reshard.add_operand(value)
    shardings.set(reshard.results[0], wanted)
    edits.after(call, reshard)


def _new_function(program: Program, shardings: Shardings, op: Op, symbols: Symbols) -> Func:
    original: Func | None = op.data.get("callee")
    name = symbols.unique(op.data["name"])
    body = op.regions[0]
    op.regions = []
    body.terminator.name = "func.return"
    func = Func(name, "private", body, [v.type for v in body.terminator.operands])
    func._ir = original._ir if original is not None else op._ir
    func.arg_attrs = [dict(a) for a in original.arg_attrs] if original else [{} for _ in body.args]
    func.result_attrs = [dict(a) for a in original.result_attrs] if original else [{} for _ in op.results]
    program.funcs[name] = func
    for value, sharding in zip(body.args, op.data["in_shardings"]):
        shardings.set(value, sharding)
    shardings.results[func] = list(op.data["returned"])
    return func
