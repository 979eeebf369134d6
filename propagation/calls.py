"""Function calls: propagated as if inlined, and called again afterwards.

`inline_calls` turns each call into an `sdy.named_computation` with a copy of the callee's body; `outline_calls` makes
functions of them again, one per distinct (original function, argument and result shardings).
"""

from __future__ import annotations

from jaxlib.mlir import ir

from .annotations import Shardings
from .importing import callee_of, filled
from .model import TensorSharding
from .program import Block, Edits, Func, Op, Program, Use, replace_all_uses

__all__ = ["inline_calls", "note_returned", "outline_calls"]


def inline_calls(program: Program, shardings: Shardings) -> list[Op]:
    """Replaces every call reached from the remaining functions; returns the named computations, inner ones first."""
    if "func.call" not in program.names:
        return []
    called = {callee_of(op) for op in program.ops() if op.name == "func.call"}
    inliner = _Inliner(program, shardings)
    for func in [f for n, f in program.funcs.items() if n not in called or f.visibility == "public"]:
        inliner.block(func.body)
    inliner.edits.apply()
    for name in called:
        if program.funcs[name].visibility != "public":
            del program.funcs[name]
    return inliner.made


class _Inliner:
    def __init__(self, program: Program, shardings: Shardings):
        self.program, self.shardings = program, shardings
        self.edits = Edits()
        self.made: list[Op] = []
        self.names = set(program.funcs)
        self.called: set[str] = set()
        self.count = 0

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
        # Operands come from values; uses are made in the order of the operands.
        new = program.new_op("sdy.named_computation", list(op.operands), [v.type for v in op.results], attrs, (), op)
        mapping: dict = {}
        body = program.clone_block(callee.body, mapping, new)
        new.regions.append(body)
        body.terminator.name = "sdy.return"
        for old, copy in mapping.items():
            shardings.set(copy, shardings.get(old))
        ins = [shardings.get(a) for a in callee.args]
        new.data = {"name": callee.name, "in_shardings": filled(ins, callee.args), "callee": callee}
        for old, value in zip(op.results, new.results):
            shardings.set(value, shardings.get(old))
            replace_all_uses(old, value)
        self.edits.before(op, new)
        self.edits.erase(op)
        self.block(body)
        new.data["symbol"] = self.symbol(callee.name)
        self.made.append(new)

    def symbol(self, name: str) -> str:
        """A name for this copy of function `name`, of which the first has the function's own; the numbers of all
        functions' copies are counted together, as Shardy does."""
        symbol = name
        if name in self.called:
            while symbol in self.names:
                symbol, self.count = f"{name}_{self.count}", self.count + 1
        self.called.add(name)
        self.names.add(symbol)
        return symbol


def note_returned(program: Program, shardings: Shardings) -> None:
    """Notes what named computations return, as long as edges hold the shardings of loops' and branches' values: an
    edge without one says nothing, although its operation may later list it as open."""
    if "sdy.named_computation" not in program.names:
        return
    for op in program.ops():
        if op.name == "sdy.named_computation":
            op.data["returned"] = [shardings.get(v) for v in op.regions[0].terminator.operands]
            op.data["returned_values"] = [*op.regions[0].terminator.operands]


def outline_calls(program: Program, shardings: Shardings, keep_own: bool) -> None:
    """Makes functions and calls of the named computations. Calls of one function with equal shardings share one; a
    call whose results are sharded otherwise than the function returns them gets reshards behind it. Where the axes
    agree, the call keeps its own sharding (`keep_own`) or takes the function's; they can differ in unreduced axes."""
    if "sdy.named_computation" not in program.names:
        return
    made: dict[tuple, Func] = {}
    edits = Edits()
    for func in list(program.funcs.values()):
        for op in func.body.walk_inside_out():
            if op.name == "sdy.named_computation":
                _outline(program, shardings, op, made, edits, keep_own)
    edits.apply()


def _outline(program: Program, shardings: Shardings, op: Op, made: dict, edits: Edits, keep_own) -> None:
    returned = op.data["returned"]
    ins = tuple(op.data["in_shardings"])
    key = (op.data["name"], ins, tuple(returned))
    func = made.get(key)
    if func is None:
        func = made[key] = _new_function(program, shardings, op, ins, returned)
    attrs = {k: v for k, v in op.attrs.items() if k not in ("name", "in_shardings", "out_shardings", "sdy.sharding")}
    with program.context:
        attrs["callee"] = ir.FlatSymbolRefAttr.get(func.name)
    call = program.new_op("func.call", op.operands, [v.type for v in op.results], attrs, (), op)
    stands_for = [*op.results]  # whose sharding each result has, for explanations
    call.data = {"stands_for": stands_for}
    edits.before(op, call)
    for old, value, sharding in zip(op.results, call.results, filled(returned, op.results)):
        wanted = shardings.get(old)
        unsharded = wanted is not None and wanted.is_fully_replicated and not wanted.unreduced
        if sharding is None and unsharded and not wanted.mesh.is_maximal:
            wanted = TensorSharding.replicated_on(wanted.mesh, value.type.rank)  # as the function returns it
        differs = wanted is not None and sharding is not None and not _same_axes(wanted, sharding)
        own = keep_own and not differs and wanted is not None
        own = own and (sharding is None or sharding.unreduced != wanted.unreduced)
        shardings.set(value, wanted if own else sharding or wanted)
        if not own and sharding is not None:
            stands_for[old.number] = op.data["returned_values"][old.number]
        replace_all_uses(old, value)
        if differs:
            _reshard(program, shardings, value, wanted, call, op, edits)
    edits.erase(op)


def _same_axes(a: TensorSharding, b: TensorSharding) -> bool:
    return [d.axes for d in a.dims] == [d.axes for d in b.dims]


def _reshard(program, shardings, value, wanted: TensorSharding, call: Op, anchor: Op, edits: Edits) -> None:
    reshard = program.new_op("sdy.reshard", [], [value.type], {}, (), call)
    replace_all_uses(value, reshard.results[0])
    reshard.operands.append(value)
    value.uses.append(Use(reshard, 0))
    shardings.set(reshard.results[0], wanted)
    edits.before(anchor, reshard)


def _new_function(program: Program, shardings: Shardings, op: Op, ins, returned) -> Func:
    original: Func | None = op.data.get("callee")
    base, name, count = op.data["name"], op.data.get("symbol", op.data["name"]), 0
    while name in program.funcs:
        name, count = f"{base}_{count}", count + 1
    body = op.regions[0]
    op.regions = []
    body.terminator.name = "func.return"
    func = Func(name, "private", body, [v.type for v in body.terminator.operands])
    func._ir = original._ir if original is not None else op._ir
    func.arg_attrs = [dict(a) for a in original.arg_attrs] if original else [{} for _ in body.args]
    func.result_attrs = [dict(a) for a in original.result_attrs] if original else [{} for _ in returned]
    program.funcs[name] = func
    for value, sharding in zip(body.args, ins):
        shardings.set(value, sharding)
    shardings.results[func] = list(returned)
    return func
