"""Compares what we decide with what the real passes decide, value by value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jaxlib.version

from .. import errors
from ..annotations import read_shardings
from ..functions import callee_of
from ..model import TensorSharding
from ..program import Func, Program, read
from ..propagated import run
from ..shardings import Shardings

__all__ = ["VERSION", "Comparison", "compare", "differences", "view"]

VERSION = ".".join(jaxlib.version.__version__.split(".")[:2])


@dataclass(frozen=True, slots=True)
class Row:
    """One function or operation: its name, the types of its results, and the shardings that belong to it."""

    name: str
    types: tuple[str, ...]
    shardings: tuple[str | None, ...]
    inputs: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome of one module.

    verdict   "agree", "differ", "ours failed", "theirs failed" (refused or aborted), "unreliable" (the real pass
              touches freed memory, see `propagation.log.Log.stale_priorities`)
    detail    the first difference or the error
    rows      (operation name, whether its shardings agree), for "agree" and "differ"
    """

    verdict: str
    detail: str = ""
    rows: tuple[tuple[str, bool], ...] = ()

    @property
    def is_failure(self) -> bool:
        return self.verdict in ("differ", "ours failed")


def view(program: Program, shardings: Shardings) -> list[Row]:
    """The entry function and those that it calls, in the order of first calls, with their operations in program order.
    The order and the names of functions mean nothing."""

    def texts(found: Iterable[TensorSharding | None]) -> tuple[str | None, ...]:
        return tuple(None if s is None else s.to_text() for s in found)

    out = []
    for func in _reached(program):
        args = texts(shardings.get(a) for a in func.args)
        types = tuple(v.type.text for v in func.args)
        out.append(Row("func.func", types, args, texts(shardings.results[func])))
        for op in func.body.walk():
            found = texts(shardings.get(v) for v in op.results)
            inputs = texts((op.data or {}).get("in_shardings", ()))
            out.append(Row(op.name, tuple(v.type.text for v in op.results), found, inputs))
    return out


def _reached(program: Program) -> list[Func]:
    todo = [program.main]
    for func in todo:
        for op in func.body.walk():
            if op.name == "func.call":
                callee = program.funcs[callee_of(op)]
                if callee not in todo:
                    todo.append(callee)
    return todo


def compare(module: str, expected: str | None, stage: str = "closed", **options: Any) -> Comparison:
    """Our decision on `module` beside the oracle's answer `expected`. `options` are those of `propagation.run`;
    CHLO operations get no rules and faults are copied unless asked for otherwise, as in Shardy."""
    ours = problem = None
    try:
        ours = run(module, stage, **{"version": VERSION, "chlo": False, "shardy_faults": True, **options})
    except errors.PropagationError as e:
        problem = e
    if ours is not None and ours.log.stale_priorities:
        return Comparison("unreliable", ours.log.stale_priorities[0])
    if expected is None or expected.startswith("ERROR"):
        return Comparison("theirs failed", "aborted" if expected is None else expected)
    if ours is None:
        return Comparison("ours failed", f"{type(problem).__name__}: {problem}")
    theirs = read(expected)
    a, b = view(ours.program, ours.shardings), view(theirs, read_shardings(theirs))
    if [(x.name, x.types) for x in a] != [(x.name, x.types) for x in b]:
        return Comparison("differ", _structure(a, b), tuple((row.name, False) for row in b))
    rows = tuple((x.name, x == y) for x, y in zip(a, b))
    for x, y in zip(a, b):
        if x != y:
            return Comparison("differ", f"ours {x}\n    theirs {y}", rows)
    return Comparison("agree", "", rows)


def _structure(a: list[Row], b: list[Row]) -> str:
    for i, (x, y) in enumerate(zip(a, b)):
        if (x.name, x.types) != (y.name, y.types):
            return f"operation {i} is {x.name} {x.types} in ours, {y.name} {y.types} in theirs"
    longer = "ours" if len(a) > len(b) else "theirs"
    return f"{longer} has {abs(len(a) - len(b))} more operations"


def differences(module: str, expected: str, stage: str = "closed", **options: Any) -> list[str]:
    """What differs, as text; empty if all shardings agree."""
    found = compare(module, expected, stage, **options)
    return [found.detail] if found.is_failure else []
