"""Functions and the calls of them: how deep calls go, copies of functions, and the names that these get."""

from __future__ import annotations

from jaxlib.mlir import ir

from . import errors
from .graph import Func, Op, Program, Value
from .limits import MAX_DEPTH, MAX_GROWTH, MAX_INLINED, MAX_OPERATIONS
from .locations import source
from .shardings import Shardings

__all__ = [
    "Symbols", "callee_of", "callers_of", "check_calls", "copy_function", "drop_unreachable_functions",
    "named_functions", "original_name", "set_callee",
]  # fmt: skip

_ORIGINAL = "sdy.original_func_name"


class Symbols:
    """Names for new functions of a program, as MLIR's symbol table gives them: the wanted name, or if it is taken the
    name with a number behind it. One count numbers the copies of all functions."""

    def __init__(self, program: Program):
        self._taken = {*program.funcs, *program.meshes}
        self._count = 0

    def unique(self, name: str) -> str:
        symbol = name
        while symbol in self._taken:
            symbol, self._count = f"{name}_{self._count}", self._count + 1
        self._taken.add(symbol)
        return symbol


def callee_of(op: Op) -> str:
    """The name of the function that a `func.call` calls."""
    return ir.FlatSymbolRefAttr(op.attrs["callee"]).value


def set_callee(program: Program, op: Op, name: str) -> None:
    with program.context:
        op.attrs["callee"] = ir.FlatSymbolRefAttr.get(name)


def original_name(func: Func) -> str:
    """The name of the function that `func` is a copy of, or its own."""
    attr = func.attrs.get(_ORIGINAL)
    return func.name if attr is None else ir.StringAttr(attr).value


def copy_function(program: Program, shardings: Shardings, func: Func, symbols: Symbols) -> Func:
    """A copy of `func` that calls copies of its callees, at the end of the program, behind those."""
    mapping: dict[Value, Value] = {}
    body = program.clone_block(func.body, mapping, None)
    for op in body.walk():
        if op.name == "func.call":
            callee = copy_function(program, shardings, program.funcs[callee_of(op)], symbols)
            set_callee(program, op, callee.name)
    copy = Func(symbols.unique(func.name), "private", body, list(func.result_types))
    copy._ir, copy.caller = func._ir, func.caller
    copy.attrs = dict(func.attrs)
    with program.context:
        copy.attrs[_ORIGINAL] = ir.StringAttr.get(original_name(func))
    copy.arg_attrs = [dict(a) for a in func.arg_attrs]
    copy.result_attrs = [dict(a) for a in func.result_attrs]
    for old, new in mapping.items():
        shardings.set(new, shardings.get(old))
    shardings.results[copy] = list(shardings.results[func])
    program.funcs[copy.name] = copy
    return copy


def drop_unreachable_functions(program: Program) -> None:
    """Removes private functions that no reachable operation names."""
    if len(program.funcs) == 1:
        return
    todo = [f for f in program.funcs.values() if f.visibility == "public"]
    reached = {f.name for f in todo}
    while todo:
        for op in todo.pop().body.walk():
            for name in named_functions(op):
                if name in program.funcs and name not in reached:
                    reached.add(name)
                    todo.append(program.funcs[name])
    for name in [n for n in program.funcs if n not in reached]:
        del program.funcs[name]


def callers_of(program: Program) -> dict[str, list[Op]]:
    """The operations that hand their operands to each function, which is called or what a composite stands for."""
    found: dict[str, list[Op]] = {}
    if not program.names.isdisjoint(("func.call", "stablehlo.composite")):
        for op in program.ops():
            for name in named_functions(op) if op.name != "stablehlo.custom_call" else ():
                found.setdefault(name, []).append(op)
    return found


def named_functions(op: Op) -> list[str]:
    """The functions that an operation runs or names."""
    if op.name == "func.call":
        return [callee_of(op)]
    if op.name == "stablehlo.composite":
        return [ir.FlatSymbolRefAttr(op.attrs["decomposition"]).value]
    if op.name == "stablehlo.custom_call" and "called_computations" in op.attrs:
        return [ir.FlatSymbolRefAttr(a).value for a in ir.ArrayAttr(op.attrs["called_computations"])]
    return []


def check_calls(program: Program) -> None:
    """Notes each function's first call. Raises `UnsupportedModuleError` for functions that call themselves, and
    `LimitError` for chains of calls that are too long or that would inline to too many operations."""
    if "func.call" not in program.names:
        return
    sizes: dict[str, int] = {}
    depths: dict[str, int] = {}
    active: dict[str, None] = {}
    bodies = {name: func.body.walk() for name, func in program.funcs.items()}
    calls = {name: [op for op in ops if op.name == "func.call"] for name, ops in bodies.items()}
    for ops in calls.values():
        for op in ops:
            callee = program.funcs[callee_of(op)]
            callee.caller = callee.caller or op
    written = sum(map(len, bodies.values()))
    for start in program.funcs:
        stack = [start]
        while stack:
            name = stack[-1]
            if name in sizes:
                stack.pop()
                continue
            active[name] = None
            todo = [op for op in calls[name] if callee_of(op) not in sizes]
            for op in todo:
                if callee_of(op) in active:
                    raise errors.UnsupportedModuleError(
                        f"function @{callee_of(op)} calls itself; only calls without recursion can be propagated",
                        source(op),
                    )
            if todo:
                stack.append(callee_of(todo[0]))
                continue
            names = [callee_of(op) for op in calls[name]]
            sizes[name] = len(bodies[name]) + sum(sizes[n] for n in names)
            depths[name] = 1 + max((depths[n] for n in names), default=0)
            if depths[name] > MAX_DEPTH:
                raise errors.LimitError(f"calls are nested more than {MAX_DEPTH} deep from @{name}")
            if sizes[name] > MAX_OPERATIONS:
                raise errors.LimitError(
                    f"@{name} has {sizes[name]:,} operations with its calls inlined; at most {MAX_OPERATIONS:,} are"
                )
            if sizes[name] > max(MAX_INLINED, MAX_GROWTH * written):
                raise errors.LimitError(
                    f"@{name} has {sizes[name]:,} operations with its calls inlined, of {written:,} that are written; "
                    f"above {MAX_INLINED:,} there may be {MAX_GROWTH:,} times as many. Write what repeats as a loop"
                )
            del active[name]
            stack.pop()
