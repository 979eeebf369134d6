"""Where values stand in every reading of a module: what one propagation is told of a value that another one has."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from propagation.program import Func, Op, Program, Value
from propagation.purity import is_removable

__all__ = ["Address", "addresses"]


class Address(NamedTuple):
    """Where a value stands in every reading of a module: result `number` of the operation of that name which is the
    `at`-th of its function; an argument of a function has no operation, that of a region says which."""

    function: str
    operation: str
    at: int
    region: int
    number: int


def addresses(program: Program) -> tuple[Counter[tuple[str, str]], dict[Address, Value]]:
    """How many operations of each name the functions have, and all values by address. Operations that nothing needs do
    not count and have none: propagation removes them."""
    counts: Counter[tuple[str, str]] = Counter()
    found: dict[Address, Value] = {}
    for name, func in program.funcs.items():
        for arg in func.args:
            found[Address(name, "", 0, 0, arg.number)] = arg
        unneeded = _unneeded(func)
        for op in func.body.walk():
            if op in unneeded:
                continue
            at = counts[name, op.name]
            counts[name, op.name] += 1
            for result in op.results:
                found[Address(name, op.name, at, -1, result.number)] = result
            for region, block in enumerate(op.regions):
                for arg in block.args:
                    found[Address(name, op.name, at, region, arg.number)] = arg
    return counts, found


def _unneeded(func: Func) -> set[Op]:
    """The operations without effect whose results nothing uses that is needed, with all within them."""
    found: set[Op] = set()
    for op in reversed(func.body.walk_inside_out()):
        if op.results and all(use.op in found for v in op.results for use in v.uses) and is_removable(op):
            found.update(op.walk())
    return found
