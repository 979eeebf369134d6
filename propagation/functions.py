"""Copies of functions, and the names that they get."""

from __future__ import annotations

from jaxlib.mlir import ir

from .annotations import Shardings
from .graph import Block, Func, Op, Program, Value

__all__ = ["Symbols", "callee_of", "copy_function", "drop_unreachable_functions", "original_name", "set_callee"]

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
    body = program.clone_block(func.body, mapping, Block())
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
            for name in _named_functions(op):
                if name in program.funcs and name not in reached:
                    reached.add(name)
                    todo.append(program.funcs[name])
    for name in [n for n in program.funcs if n not in reached]:
        del program.funcs[name]


def _named_functions(op: Op) -> list[str]:
    if op.name == "func.call":
        return [callee_of(op)]
    if op.name == "stablehlo.composite":
        return [ir.FlatSymbolRefAttr(op.attrs["decomposition"]).value]
    if op.name == "stablehlo.custom_call" and "called_computations" in op.attrs:
        return [ir.FlatSymbolRefAttr(a).value for a in ir.ArrayAttr(op.attrs["called_computations"])]
    return []
