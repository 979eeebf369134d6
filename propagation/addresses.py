"""Values by the names that users write: `arg[0]:1`, `result[1]`, `%3:0`, an argument's name, `train.py:57`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxlib.mlir import ir

from .errors import BadOptionError
from .locations import argument_names, source
from .program import Block, Func, Value

if TYPE_CHECKING:
    from .propagated import Propagated

__all__ = ["Address", "function_of", "is_at", "names_in_text", "resolve"]

_NUMBERED = re.compile(r"(arg|result)(?:\[(\d+)\]|(\d+))")


@dataclass(frozen=True, slots=True)
class Address:
    """Dimensions `dims` of `value` in `func`; `result` is the number of the function's result that is meant, which has
    a sharding beside that of the value it is, else None. `called` is the value as it was asked for."""

    called: str
    func: Func
    value: Value
    dims: tuple[int, ...]
    result: int | None = None


def resolve(result: Propagated, text: str, function: str | None = None) -> list[Address]:
    """What `VALUE` or `VALUE:DIM` stands for in `function` (default: the entry).

    VALUE is `arg[0]` or `arg0`, `result[1]` or `result1`, the name that the module's locations give an argument, a
    name in the propagated module's text (`%3`, `%arg0`, `%0#1`), or `FILE:LINE`, which stands for all that is computed
    there. Raises `BadOptionError` for a value, dimension or function that is not there.
    """
    if not isinstance(text, str):
        raise BadOptionError(f"a value is addressed by text such as 'result[0]:1' or '%3:0', got {type(text).__name__}")
    func = function_of(result, function)
    what, separator, number = text.rpartition(":")
    found = _found(result, func, what) if separator and re.fullmatch(r"[0-9]+", number) else []
    if found:
        dim = int(number)
        fitting = [(value, i) for value, i in found if dim < value.type.rank]
        if not fitting:
            raise BadOptionError(f"{what} of type {found[0][0].type.text} has no dimension {dim}")
        return [Address(what, func, value, (dim,), i) for value, i in fitting]
    found = _found(result, func, text)
    if not found:
        raise BadOptionError(
            f"@{func.name} has no value {text if not separator else what}; write VALUE or VALUE:DIM, with VALUE one of "
            f"arg[0] ... arg[{len(func.args) - 1}], result[0] ... result[{len(func.returned) - 1}], a name in the "
            "propagated module (%3), or FILE:LINE"
        )
    return [Address(text, func, value, tuple(range(value.type.rank)), i) for value, i in found]


def function_of(result: Propagated, name: str | None) -> Func:
    """The function of a name; the entry for None. Raises `BadOptionError`."""
    program = result.program
    if name is None:
        return program.main
    if name not in program.funcs:
        raise BadOptionError(f"there is no function @{name}; there are {', '.join('@' + f for f in program.funcs)}")
    return program.funcs[name]


def _found(result: Propagated, func: Func, what: str) -> list[tuple[Value, int | None]]:
    """(value, number of the function's result or None) of what is called `what`; empty if nothing is."""
    numbered = _NUMBERED.fullmatch(what)
    if numbered:
        side, number = numbered[1], int(numbered[2] or numbered[3])
        values = func.args if side == "arg" else func.returned
        return [(values[number], number if side == "result" else None)] if number < len(values) else []
    own = [value for value, name in zip(func.args, argument_names(func)) if name == what]
    if own:
        return [(own[0], None)]
    if ":" in what:
        ops = [op for op in result.program.ops() if is_at(source(op), what)]
        return [(v, None) for op in ops for v in op.results if v.type.is_tensor]
    name = what if what.startswith("%") else f"%{what}"
    return [(v, None) for v, known in result.value_names.items() if known == (func.name, name)]


def is_at(where: str | None, what: str) -> bool:
    """Whether a place is the one asked for: the same, or the same behind a folder."""
    return where is not None and (where == what or where.endswith(("/" + what, "\\" + what)))


def names_in_text(result: Propagated) -> dict[Value, tuple[str, str]]:
    """(function, name in the propagated module's text) of every value, from the module that is written."""
    names: dict[Value, tuple[str, str]] = {}
    funcs = [op for op in result.module.body.operations if op.operation.name == "func.func"]
    for func, op in zip(result.program.funcs.values(), funcs):
        state = ir.AsmState(op.operation)

        def note(block: Block, view: Any, func: Func = func, state: ir.AsmState = state) -> None:
            for value, printed in zip(block.args, view.arguments):
                names[value] = (func.name, printed.get_name(state))
            for ours, theirs in zip(block.ops, view.operations):
                for value, printed in zip(ours.results, theirs.operation.results):
                    names[value] = (func.name, printed.get_name(state))
                for inner, region in zip(ours.regions, theirs.operation.regions):
                    note(inner, region.blocks[0])

        note(func.body, op.operation.regions[0].blocks[0])
    return names
