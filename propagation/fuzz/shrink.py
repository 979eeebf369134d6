"""Reduces a module on which something fails to a smaller one on which it still fails.

Greedy: each edit is tried on a fresh copy of the module and kept if the failure persists, until none helps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from jaxlib.mlir import ir

from .. import errors
from ..annotations import read_shardings
from ..functions import drop_unreachable_functions
from ..model import DimSharding, TensorSharding
from ..program import Func, Op, Program, Use, Value, erase, read, replace_all_uses
from ..shardings import Shardings
from ..write import write

__all__ = ["shrink"]

_TERMINATORS = {"func.return", "stablehlo.return", "sdy.return"}


@dataclass(slots=True)
class _Copy:
    """A freshly read module, to be edited."""

    program: Program
    shardings: Shardings

    @classmethod
    def of(cls, text: str) -> _Copy:
        program = read(text)
        return cls(program, read_shardings(program))

    def text(self) -> str:
        return str(write(self.program, self.shardings))


Edit = Callable[[_Copy], bool]


def shrink(text: str, fails: Callable[[str], bool], limit: int = 2000) -> str:
    """The smallest module found for which `fails` is true, as it is for `text`. Tries at most `limit` edits."""
    tried = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for edit in _edits(_Copy.of(text)):
            tried += 1
            if tried > limit:
                return text
            smaller = _attempt(text, edit)
            if smaller is not None and smaller != text and fails(smaller):
                text, is_smaller = smaller, True
    return text


def _attempt(text: str, edit: Edit) -> str | None:
    """The edited module; None if the edit does not apply or its outcome is not a valid module."""
    copy = _Copy.of(text)
    try:
        return copy.text() if edit(copy) else None
    except (errors.PropagationError, ir.MLIRError, ValueError, IndexError):
        return None


def _edits(copy: _Copy) -> Iterator[Edit]:
    """All edits of one pass, the coarsest first. Numbers are looked up again in each copy, so that edits behind one
    that was kept still mean something."""
    program = copy.program
    for i in reversed(range(len(program.main.returned))):
        yield partial(_drop_result, number=i)
    for i in reversed(range(len(program.ops()))):
        yield partial(_drop_op, number=i)
    yield _drop_functions
    for i in reversed(range(len(program.main.args))):
        yield partial(_drop_argument, number=i)
    for i in range(len(program.values)):
        yield partial(_change, index=i, change=_forgotten)
    for name, func in program.funcs.items():
        for i in range(len(func.result_types)):
            yield partial(_drop_result_sharding, name=name, number=i)
    for i, value in enumerate(program.values):
        for change in _simpler(copy.shardings.get(value)):
            yield partial(_change, index=i, change=change)


Change = Callable[[TensorSharding], TensorSharding | None]


def _forgotten(sharding: TensorSharding) -> None:
    return None


def _simpler(sharding: TensorSharding | None) -> list[Change]:
    """Functions that simplify a sharding, each a little."""
    if sharding is None:
        return []
    out: list[Change] = [
        lambda s: TensorSharding(s.mesh, s.dims, (), s.unreduced, s.reduction),
        lambda s: TensorSharding(s.mesh, s.dims, s.replicated, ()),
    ]
    for d in range(len(sharding.dims)):
        out += [partial(_with_dim, d=d, change=change) for change in (_without_priority, _shorter, _closed)]
    return out


def _without_priority(dim: DimSharding) -> DimSharding:
    return DimSharding(dim.axes, dim.is_open)


def _shorter(dim: DimSharding) -> DimSharding:
    return DimSharding(dim.axes[:-1], dim.is_open)


def _closed(dim: DimSharding) -> DimSharding:
    return DimSharding(dim.axes, False)


def _with_dim(s: TensorSharding, d: int, change: Callable[[DimSharding], DimSharding]) -> TensorSharding | None:
    return s.with_dims((*s.dims[:d], change(s.dims[d]), *s.dims[d + 1 :])) if d < len(s.dims) else None


def _change(c: _Copy, index: int, change: Change) -> bool:
    old = c.shardings.table[index]
    if old is None:
        return False
    c.shardings.table[index] = change(old)
    return c.shardings.table[index] is not old


def _drop_result_sharding(c: _Copy, name: str, number: int) -> bool:
    func = c.program.funcs.get(name)
    if func is None or c.shardings.results[func][number] is None:
        return False
    c.shardings.results[func][number] = None
    return True


def _drop_result(c: _Copy, number: int) -> bool:
    func = c.program.main
    if number >= len(func.returned):
        return False
    terminator = func.body.terminator
    for i, value in enumerate(terminator.operands):
        value.uses.remove(Use(terminator, i))
    terminator.operands = [v for i, v in enumerate(terminator.operands) if i != number]
    del func.result_types[number], c.shardings.results[func][number]
    if func.result_attrs:
        del func.result_attrs[number]
    for i, value in enumerate(terminator.operands):
        value.uses.append(Use(terminator, i))
    return True


def _drop_op(c: _Copy, number: int) -> bool:
    ops = c.program.ops()
    if number >= len(ops) or ops[number].name in _TERMINATORS:
        return False
    op = ops[number]
    for value in op.results:
        if value.uses:
            replace_all_uses(value, _substitute(c, op, value))
    if op.parent is not None:
        op.parent.ops.remove(op)
    erase(op)
    return True


def _substitute(c: _Copy, op: Op, value: Value) -> Value:
    """A value that can stand for a result of `op`: an operand of its type, an argument of the entry function (a new
    one if there is none), inside other functions a constant."""
    for operand in op.operands:
        if operand.type is value.type:
            return operand
    main = c.program.main
    if _sees_arguments(op, main):
        return _argument(c, main, value)
    with c.program.context:
        attrs = {"value": ir.Attribute.parse(f"dense<0> : {value.type.text}")}
    constant = c.program.new_op("stablehlo.constant", [], [value.type], attrs, like=op)
    block = op.parent
    assert block is not None  # it is in the program
    constant.parent = block
    block.ops.insert(block.ops.index(op), constant)
    return constant.results[0]


def _sees_arguments(op: Op, main: Func) -> bool:
    parent = op.parent_op
    while isinstance(parent, Op):
        if parent.name in ("sdy.manual_computation", "sdy.named_computation"):
            return False
        parent = parent.parent_op
    return parent is main


def _argument(c: _Copy, main: Func, like: Value) -> Value:
    for argument in main.args:
        if argument.type is like.type and c.shardings.get(argument) is None:
            return argument
    argument = c.program.new_value(like.type, main.body, len(main.args))
    main.args.append(argument)
    main.arg_attrs.append({})
    return argument


def _drop_argument(c: _Copy, number: int) -> bool:
    main = c.program.main
    if number >= len(main.args) or main.args[number].uses:
        return False
    del main.args[number], main.arg_attrs[number]
    for i, value in enumerate(main.args):
        value.number = i
    return True


def _drop_functions(c: _Copy) -> bool:
    before = len(c.program.funcs)
    drop_unreachable_functions(c.program)
    return len(c.program.funcs) < before
