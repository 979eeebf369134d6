"""Modules that carry the shardings which propagation gave them, opened: propagated as if nothing were said inside.

What propagation decides is written beside every operation. Read again, all of that is somebody's annotation: nothing is
left to decide, and no other propagation may decide otherwise. Where propagation makes the same of arguments, results
and constraints alone, the rest is its own and says nothing.

>>> from .propagated import run
>>> text = '''
... sdy.mesh @mesh = <["x"=4]>
... func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<8xf32> {
...   %0 = stablehlo.tanh %x : tensor<8xf32>
...   return %0 : tensor<8xf32> }'''
>>> closed = run(text).as_text()
>>> len(run(closed).log), len(run_opened(closed).log) > 0
(0, True)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxlib.mlir import ir

from .annotation_sites import Edit, one_after_other
from .annotations import WITH_IN_SHARDINGS
from .graph import Op, Program, Value
from .model import DimSharding
from .ops import SHARDING_ATTRIBUTE
from .program import read
from .propagated import Propagated, run
from .shardings import Shardings

__all__ = ["Reading", "decided", "opening", "reading_of", "run_opened"]

Module = str | bytes | ir.Module
_KEY = "sdy.sharding"


@dataclass(frozen=True, slots=True)
class Reading:
    """How a module is read: with which changes of what it says, and in which order (`Options.xla_order`)."""

    annotate: Edit | None
    xla_order: bool

    @staticmethod
    def of(propagated: Propagated) -> Reading:
        """How the module of a propagation was read."""
        return Reading(propagated.annotate, propagated.options.xla_order)

    def run(self, module: Module, edit: Edit | None = None, **given: Any) -> Propagated:
        """The module propagated, with one more change if there is one. Raises what `run` raises."""
        return run(module, annotate=one_after_other(self.annotate, edit), xla_order=self.xla_order, **given)


def run_opened(module: Module, annotate: Edit | None = None, xla_order: bool = False, **given: Any) -> Propagated:
    """The module propagated, with `annotate`; one that carries the shardings which propagation gave it, in whichever of
    the two orders, is opened. `given` is what else `run` takes; raises what that raises."""
    first = run(module, annotate=annotate, xla_order=xla_order, **given)
    if len(first.log) or not any(_says(op) for op in first.program.ops()):
        return first
    known = _but_reshards(first)
    for opens in (opening, _opening_inside) if first.shardings.asked else (opening,):
        for order in (xla_order, not xla_order):
            again = Reading(one_after_other(opens, annotate), order).run(module, **given)
            if _but_reshards(again) == known:
                return again
    return first


def reading_of(module: Module, xla_order: bool = False) -> Reading:
    """How a module is read as `run_opened` reads it, for who changes what it says and propagates it many times. It is
    propagated for that only if operations say something. Raises what `run` raises."""
    if not any(_says(op) for op in read(module).ops()):
        return Reading(None, xla_order)
    return Reading.of(run_opened(module, xla_order=xla_order))


def opening(program: Program, shardings: Shardings) -> None:
    """Leaves to propagation what operations and functions other than the entry say; constraints, reshards and manual
    computations keep theirs. Reshards were constraints, and are again. Arguments and results of the entry function say
    again what was asked for them, before it was cut or more was decided. For `annotate` of `run`."""
    _ask_again(program, shardings)
    _opening_inside(program, shardings)


def _opening_inside(program: Program, shardings: Shardings) -> None:
    """As `opening`, but arguments and results of the entry function keep what they say: somebody changed it since."""
    for func in program.funcs.values():
        if func is program.main:
            continue
        for attrs in (*func.arg_attrs, *func.result_attrs):
            attrs.pop(_KEY, None)
        for value in func.args:
            shardings.set(value, None)
        shardings.results[func] = [None] * len(shardings.results[func])
    for op in program.ops():
        if op.name == "sdy.reshard":
            op.name = "sdy.sharding_constraint"
            program.names.add(op.name)
        elif _says(op):
            del op.attrs[_KEY]
            for value in op.results:
                shardings.set(value, None)


def _ask_again(program: Program, shardings: Shardings) -> None:
    for place, asked in shardings.asked.items():
        said = None if asked.is_fully_open else asked
        if isinstance(place, Value):
            shardings.set(place, said)
        elif place[0] is program.main:
            shardings.results[program.main][place[1]] = said


def decided(program: Program, shardings: Shardings) -> list[tuple[Any, ...]]:
    """Operations with the shardings of their results; what is replicated counts as not said."""

    def said(value: Value) -> tuple[DimSharding, ...] | None:
        sharding = shardings.get(value)
        return None if sharding is None or sharding.is_fully_replicated else sharding.dims

    return [(op.name, [said(r) for r in op.results]) for op in program.ops()]


def _but_reshards(propagated: Propagated) -> list[tuple[Any, ...]]:
    """What is `decided`, in functions and for arguments and results as well, but for reshards: propagating what is said
    may add some to it."""
    boundary = [("func.func", [None if s is None or s.is_fully_replicated else s.dims for s in ends])
                for ends in (propagated.arg_shardings, propagated.result_shardings)]  # fmt: skip
    inside = decided(propagated.program, propagated.shardings)
    return [*boundary, *(said for said in inside if said[0] != "sdy.reshard")]


def _says(op: Op) -> bool:
    """Whether an operation that need not has shardings of its results."""
    return op.name not in SHARDING_ATTRIBUTE and op.name not in WITH_IN_SHARDINGS and op.has_attr(_KEY)
