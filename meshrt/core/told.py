"""What messages tell of a program that is being traced: its function, its arguments, and what made a value unknown."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from meshrt.core.jaxpr import Atom, Eqn, Literal, Var
from meshrt.core.naming import FunctionName, Labels

__all__ = ["Told"]

# How many operations a message shows.
_SHOWN = 5


class Told:
    """The function `fun`, shown as `name`, that is traced for `what` (jit, scan), and its arguments' names.

    `names` gives the names, and is asked once somebody wants to read them. If it has a method `outliving`, that is the
    same without the function.
    """

    __slots__ = ("_names", "fun", "inputs", "name", "results", "what")

    def __init__(self, fun: Any, name: str, what: str, names: Callable[[], Sequence[str]]):
        self.fun, self.name, self.what, self._names = fun, name, what, names
        # The variables that stand for the arguments, set where the trace begins.
        self.inputs: Sequence[Var] = ()
        # Where each result stands in what the function returned, set when that is known.
        self.results: Callable[[], Sequence[str]] | None = None

    def function_name(self) -> FunctionName:
        """What a program made of the function is called."""
        return FunctionName.of(self.name, self.what, self.place())

    def labels(self) -> Labels:
        """The names of arguments and results for a program, which outlives the function."""
        outliving = getattr(self._names, "outliving", None)
        if outliving is not None:
            return Labels(outliving(), self.results)
        names = self._names()
        return Labels(lambda: names, self.results)

    def __str__(self) -> str:
        """`the function f at file:line for jit`."""
        return f"the function {self.placed()} for {self.what}"

    def traced(self) -> str:
        """`f at file:line traced for jit`."""
        return f"{self.placed()} traced for {self.what}"

    def placed(self) -> str:
        """`f at file:line`."""
        return f"{self.name}{self.place()}"

    def place(self) -> str:
        """` at file:line`, or nothing."""
        fun = self.fun
        while isinstance(fun, functools.partial):
            fun = fun.func
        if hasattr(fun, "__wrapped__"):
            with contextlib.suppress(ValueError):  # it wraps itself
                fun = inspect.unwrap(fun)
        code = getattr(fun, "__code__", None)
        return "" if code is None else f" at {code.co_filename}:{code.co_firstlineno}"

    def called(self, var: Var) -> str | None:
        """`argument x`, if a variable is an argument."""
        return dict(zip(self.inputs, (f"argument {n}" for n in self._names()))).get(var)

    def names(self) -> Sequence[str]:
        """The arguments' names."""
        return self._names()

    def names_behind(self, eqns: Sequence[Eqn], var: Atom) -> list[str]:
        """The names of the arguments from which the value of a variable was computed."""
        needed = {var, *(v for eqn in behind(eqns, var) for v in eqn.invars)}
        return [name for name, v in zip(self._names(), self.inputs) if v in needed]


def behind(eqns: Iterable[Eqn], var: Atom) -> list[Eqn]:
    """The equations from which the value of a variable was computed, in their order."""
    needed, found = {var}, []
    for eqn in reversed([*eqns]):
        if not needed.isdisjoint(eqn.outvars):
            needed.update(v for v in eqn.invars if type(v) is Var)
            found.append(eqn)
    return found[::-1]


def operations(eqns: Sequence[Eqn]) -> str:
    """The operations that a value came from though it depends on no argument, each with its line."""
    shown = [f"  operation {_text(eqn)}\n    from line {eqn.source}" for eqn in eqns[:_SHOWN]]
    if len(eqns) > _SHOWN:
        shown.append(f"  and {len(eqns) - _SHOWN} more")
    return "\n\n".join(shown)


def _text(eqn: Eqn) -> str:
    """An equation by itself, without its parameters: `a:bool[] = gt b:f32[] 0.0:f32[]`."""
    names: dict[Var, str] = {}

    def text(atom: Atom) -> str:
        name = atom.val if type(atom) is Literal else names.setdefault(atom, chr(ord("a") + len(names) % 26))
        return f"{name}:{atom.aval.short()}"

    results = ", ".join(map(text, eqn.outvars))
    return f"{results} = {eqn.primitive.name} {' '.join(map(text, eqn.invars))}"
