"""An operation of a propagated program replaced by a computation that each device runs on its pieces."""

from __future__ import annotations

from collections.abc import Sequence

from .graph import Block, Func, Op, Program
from .model import TensorSharding
from .shardings import Shardings

__all__ = ["replace_by_manual"]


def replace_by_manual(
    program: Program, shardings: Shardings, op: Op, body: Program, ins: Sequence[TensorSharding],
    outs: Sequence[TensorSharding], axes: Sequence[str],
) -> None:  # fmt: skip
    """Makes `op` an `sdy.manual_computation` over `axes` that takes pieces of its operands laid out as `ins` to
    pieces of its results laid out as `outs`.

    `body` is a module: its @main is run on the pieces, and its other functions, whose names must be new, are added to
    the program. Operands, results and their uses stay what they are; only `shardings` of the results
    change. No value inside has a sharding.
    """
    main = body.main
    for func in body.funcs.values():
        if func is not main:
            _add(program, shardings, func)
    block = program.clone_block(main.body, {}, op)
    block.terminator.name = "sdy.return"
    op.name, op.regions, op._attrs = "sdy.manual_computation", [block], {}
    op.data = {"in_shardings": list(ins), "manual_axes": tuple(axes)}
    program.names.update(body.names | {op.name, "sdy.return"})
    for result, sharding in zip(op.results, outs, strict=True):
        shardings.set(result, sharding)


def _add(program: Program, shardings: Shardings, func: Func) -> None:
    copy = Func(func.name, "private", Block(), list(func.result_types))
    copy.body = program.clone_block(func.body, {}, copy)
    copy.attrs, copy._ir = dict(func.attrs), func._ir
    copy.arg_attrs, copy.result_attrs = [{} for _ in func.args], [{} for _ in func.result_types]
    program.funcs[func.name] = copy
    shardings.results[copy] = [None] * len(func.result_types)
