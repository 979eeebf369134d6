"""What is done to a module before propagation.

Meshes are unified, axes of size one forgotten, unreachable functions dropped, and constants duplicated so that each
user decides for itself how its copy is sharded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir

from .axes import merged
from .functions import Symbols, callee_of, copy_function, set_callee
from .model import AxisRef, DimSharding, Mesh, TensorSharding
from .program import Edits, Func, Op, Program, Use, Value
from .quoting import quote, quote_symbol
from .schedule import is_elementwise
from .shardings import Shardings, map_shardings

__all__ = [
    "clean_manual_axes",
    "drop_unit_axes",
    "filled",
    "func_to_call",
    "split_constants",
    "unify_meshes",
]


def unify_meshes(program: Program, shardings: Shardings) -> None:
    """Equal meshes under different names become the first of them. Each is described for StableHLO, too."""
    _join_equal_meshes(program, shardings)
    with program.context:
        for name, mesh in program.meshes.items():
            program.mesh_attrs.setdefault(name, {})["stablehlo.mesh"] = ir.Attribute.parse(_described(mesh))


def _described(mesh: Mesh) -> str:
    axes = ", ".join(f"{{name = {quote(name)}, size = {size} : i64}}" for name, size in mesh.axes)
    if mesh.device_ids is None:
        return f"{{axes = [{axes}]}}"
    ids = ", ".join(map(str, mesh.device_ids))
    return f"{{axes = [{axes}], device_ids = dense<[{ids}]> : tensor<{len(mesh.device_ids)}xi64>}}"


def _join_equal_meshes(program: Program, shardings: Shardings) -> None:
    first: dict[Any, Mesh] = {}
    for mesh in program.meshes.values():
        first.setdefault(mesh.layout, mesh)
    if len(first) == len(program.meshes):
        return

    def change(s: TensorSharding) -> TensorSharding:
        return TensorSharding(first[s.mesh.layout], s.dims, s.replicated, s.unreduced, s.reduction)

    map_shardings(program, shardings, change)
    joined = {n: first[m.layout].name for n, m in program.meshes.items() if first[m.layout] is not m}
    _rename_in_collectives(program, joined)
    for name in joined:
        del program.meshes[name]


def _rename_in_collectives(program: Program, joined: dict[str, str]) -> None:
    """Replica groups may name a mesh."""
    with program.context:
        for op in program.ops():
            groups = str(op.attr("replica_groups") or "") if op.name.startswith("stablehlo.") else ""
            if "mesh = @" not in groups:
                continue
            for old, new in joined.items():
                pattern = rf"mesh = @{re.escape(quote_symbol(old))}(?![\w.$])"
                groups = re.sub(pattern, f"mesh = @{quote_symbol(new)}".replace("\\", r"\\"), groups)
            op.attrs["replica_groups"] = ir.Attribute.parse(groups)


def drop_unit_axes(program: Program, shardings: Shardings) -> None:
    """Removes axes of size one from all shardings; meshes keep them. Parts of an axis between which one stood are one
    part then (Shardy's own pass leaves them apart, which its verifier refuses)."""
    if not any(size == 1 for mesh in program.meshes.values() for _, size in mesh.axes):
        return

    def keep(axes: tuple[AxisRef, ...]) -> tuple[AxisRef, ...]:
        return merged(a for a in axes if a.size > 1)

    def change(s: TensorSharding) -> TensorSharding:
        dims = [DimSharding(keep(d.axes), d.is_open, _kept_priority(d)) for d in s.dims]
        return TensorSharding(s.mesh, dims, keep(s.replicated), keep(s.unreduced), s.reduction)

    def _kept_priority(d: DimSharding) -> int | None:
        return d.priority if d.is_open or any(a.size > 1 for a in d.axes) else None

    map_shardings(program, shardings, change)
    sizes = {name: size for mesh in program.meshes.values() for name, size in mesh.axes}
    for op in program.ops():
        if op.name == "sdy.manual_computation":
            op.data["manual_axes"] = tuple(a for a in op.data["manual_axes"] if sizes.get(a) != 1)


def func_to_call(program: Program, shardings: Shardings) -> None:
    """A call without shardings gets those of its callee's results."""
    if "func.call" not in program.names:
        return
    for op in program.ops():
        if op.name != "func.call" or any(shardings.get(v) is not None for v in op.results):
            continue
        results = shardings.results[program.funcs[callee_of(op)]]
        for value, sharding in zip(op.results, filled(results, op.results)):
            shardings.set(value, sharding)


def filled(shardings: Sequence[TensorSharding | None], values: Sequence[Value]) -> list[TensorSharding | None]:
    """`shardings` of `values`, in which a missing one is open in every dimension, on the mesh of the others. All are
    None if the only meshes are those of single devices."""
    mesh = next((s.mesh for s in shardings if s is not None and not s.mesh.is_maximal), None)
    if mesh is None:
        return [None] * len(values)
    return [s or TensorSharding.open_on(mesh, v.type.rank) for s, v in zip(shardings, values)]


def clean_manual_axes(program: Program, shardings: Shardings) -> None:
    """Sorts manual axes in mesh order and lists those that a value does not use as replicated."""
    if "sdy.manual_computation" not in program.names:
        return
    for op in program.ops():
        if op.name != "sdy.manual_computation":
            continue
        ins, outs = op.data["in_shardings"], [shardings.get(v) for v in op.results]
        mesh = next((s.mesh for s in (*ins, *outs) if s is not None and not s.mesh.is_empty), None)
        if mesh is None:
            continue
        manual = tuple(sorted(op.data["manual_axes"], key=mesh.axis_index))
        op.data["manual_axes"] = manual
        op.data["in_shardings"] = [_with_manual(s, v, manual, mesh) for s, v in zip(ins, op.operands)]
        for value, sharding in zip(op.results, outs):
            shardings.set(value, _with_manual(sharding, value, manual, mesh))


def _with_manual(s: TensorSharding | None, value: Value, manual: Sequence[str], mesh: Mesh) -> TensorSharding | None:
    if s is None:
        return None
    used = {a.name for d in s.dims for a in d.axes} | {a.name for a in (*s.replicated, *s.unreduced)}
    unused = [mesh.axis(name) for name in manual if name not in used]
    if not unused or not value.type.is_tensor:
        return s
    replicated = sorted((*s.replicated, *unused), key=mesh.sort_key)
    return TensorSharding(mesh if s.mesh.is_empty else s.mesh, s.dims, replicated, s.unreduced, s.reduction)


_CONSTANT_INSIDE = {"sdy.constant", "stablehlo.constant", "stablehlo.iota", "sdy.sharding_group"}
_PRESERVING = {"stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.slice"}


def split_constants(program: Program, shardings: Shardings) -> None:
    """Gives every user that is not itself constant its own copy of the constant expression (constants, iotas, and
    pure broadcasts, reshapes, slices and pointwise operations of them), and of broadcast scalars. Scalars are shared.
    A call that is part of such an expression calls a copy of its function, too.

    Constants become `sdy.constant`, which nothing merges again by accident.
    """
    preserving: dict[str, bool] = {}
    symbols = Symbols(program)
    done: set[Func] = set()
    while todo := [f for f in program.funcs.values() if f not in done]:  # copies of functions come behind the others
        for func in todo:
            _Splitter(program, shardings, preserving, symbols).run(func)
            done.add(func)


class _Splitter:
    def __init__(self, program: Program, shardings: Shardings, preserving: dict[str, bool], symbols: Symbols):
        self.program, self.shardings, self.symbols = program, shardings, symbols
        self.preserving = preserving  # by function: whether calls of it are constant for constant operands
        self.edits = Edits()
        self.constants: dict[Op, None] = {}
        self.expansions: dict[Op, None] = {}
        self.left: dict[Value, None] = {}  # values some of whose users now use a copy
        self.grouping: dict[Value, list[Op]] = {}

    def run(self, func: Func) -> None:
        ops = func.body.walk()
        for op in ops:
            if op.name == "stablehlo.constant":
                op.name = "sdy.constant"
        inside: list[Op] = []  # the named computations around; one is constant or not when its body has been seen
        for op in ops:
            while inside and op.parent is not inside[-1].regions[0]:
                self._process(inside.pop())
            if op.name == "sdy.named_computation":
                inside.append(op)
            else:
                self._process(op)
        while inside:
            self._process(inside.pop())
        for value in self.left:  # once for all users: there may be as many as operations
            value.uses[:] = [u for u in value.uses if u.op.operands[u.number] is value]
        self._erase_unused([*self.expansions, *reversed(self.constants)])
        self.edits.apply()

    def _process(self, op: Op) -> None:
        name = op.name
        if name == "sdy.sharding_group":
            return
        if self._is_constant(op):
            self.constants[op] = None
        elif name == "stablehlo.broadcast_in_dim" and not op.operands[0].type.shape:
            self.expansions[op] = None
        else:
            for number, value in enumerate(op.operands):
                source = value.owner
                if (source in self.constants or source in self.expansions) and value.type.shape:
                    copy = self._copy(value)
                    op.replace_operand(number, copy)
                    copy.uses.append(Use(op, number))
                    self.left[value] = None

    def _is_constant(self, op: Op) -> bool:
        constants = self.constants
        for value in op.operands:
            if value.owner not in constants:
                return False
        return op.name in ("sdy.constant", "stablehlo.iota") or self._preserves(op)

    def _preserves(self, op: Op) -> bool:
        """Whether constant operands make the results constant."""
        name = op.name
        if name == "func.call":
            callee = callee_of(op)
            known = self.preserving.get(callee)
            if known is None:
                body = self.program.funcs[callee].body.ops[:-1]
                known = self.preserving[callee] = all(self._is_constant_inside(o) for o in body)
            return known
        if name == "sdy.named_computation":
            return all(self._is_constant_inside(o) for o in op.regions[0].ops[:-1])
        return name in _PRESERVING or (is_elementwise(op) and name != "sdy.sharding_constraint")

    def _is_constant_inside(self, op: Op) -> bool:
        return op.name in _CONSTANT_INSIDE or self._preserves(op)

    def _copy(self, root: Value) -> Value:
        """A copy of the expression that computes `root`, each operation right before its original."""
        mapping: dict[Value, Value] = {}
        stack = [root]
        while stack:
            value = stack[-1]
            if value in mapping or not value.type.shape or value.op is None:
                stack.pop()
                continue
            op = value.op
            needed = [v for v in op.operands if v.type.shape and v.op is not None and v not in mapping]
            if needed:
                stack.extend(reversed(needed))
                continue
            stack.pop()
            self._clone(op, value, mapping)
        return mapping[root]

    def _clone(self, op: Op, value: Value, mapping: dict[Value, Value]) -> None:
        if op.regions:  # copies that were inserted into its body are part of it
            self.edits.apply()
            self.edits = Edits()
        copy = self.program.clone(op, mapping)
        if op.name == "func.call":
            callee = self.program.funcs[callee_of(op)]
            set_callee(self.program, copy, copy_function(self.program, self.shardings, callee, self.symbols).name)
        self.edits.before(op, copy)
        for one, other in zip(op.walk(), copy.walk()) if op.regions else ((op, copy),):
            for old, new in zip(one.results, other.results):
                self.shardings.set(new, self.shardings.get(old))
        for group in self._groups_of(value):
            self.edits.before(op, self.program.clone(group, mapping))

    def _groups_of(self, value: Value) -> list[Op]:
        """The operations that make `value` a member of sharding groups, newest first."""
        if "sdy.sharding_group" not in self.program.names:
            return []
        found = self.grouping.get(value)
        if found is None:
            found = [u.op for u in reversed(value.uses) if u.op.name == "sdy.sharding_group"]
            self.grouping[value] = found
        return found

    def _erase_unused(self, ops: list[Op]) -> None:
        for op in ops:
            users = [u.op for v in op.results for u in v.uses]
            if any(u.name != "sdy.sharding_group" for u in users):
                continue
            for dead in (*users, op):
                self.edits.erase(dead)
                for number, value in enumerate(dead.operands):
                    value.uses.remove(Use(dead, number))
                dead.operands = ()
