"""The sharding of each value of a program, as far as it is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .graph import Func, Op, Program, Value
from .model import TensorSharding

__all__ = ["Edit", "Place", "Shardings", "map_shardings", "set_result"]

# An argument, or (function, number) of a result.
Place = Value | tuple[Func, int]


class Shardings:
    """The sharding of each value (by index; None: none yet) and of each function result.

    `asked` is what arguments and results (function, number) of the entry function were annotated with where in the end
    they have something else: less, because it does not divide them or is a part of an axis, while inside it was
    propagated as it is; or more, as it was open. It is open in all dimensions where nothing was said.
    """

    __slots__ = ("asked", "results", "table")
    table: list[TensorSharding | None]
    results: dict[Func, list[TensorSharding | None]]
    asked: dict[Place, TensorSharding]

    def __init__(self, program: Program):
        self.table = [None] * len(program.values)
        self.results = {}
        self.asked = {}

    def get(self, value: Value) -> TensorSharding | None:
        """The sharding of a value; None if nothing was said about it."""
        return self.table[value.index] if value.index < len(self.table) else None

    def __getitem__(self, value: Value) -> TensorSharding | None:
        return self.get(value)

    def set(self, value: Value, sharding: TensorSharding | None) -> None:
        """Gives a value this sharding; None takes what was said away."""
        missing = value.index + 1 - len(self.table)
        if missing > 0:
            self.table.extend([None] * missing)
        self.table[value.index] = sharding

    def copy(self) -> Shardings:
        """Another table of the same shardings."""
        new = Shardings.__new__(Shardings)
        new.table = self.table[:]
        new.results = {f: list(r) for f, r in self.results.items()}
        new.asked = dict(self.asked)
        return new


# What `run(..., annotate=)` takes: it changes what a program says before anything is propagated.
Edit = Callable[[Program, Shardings], None]


class Table(Protocol):
    """What `set_result` asks of shardings."""

    def get(self, value: Value) -> TensorSharding | None: ...

    @property
    def set(self) -> Callable[[Value, TensorSharding | None], None]: ...


def set_result(shardings: Table, value: Value, sharding: TensorSharding) -> None:
    """Gives a value this sharding. An operation lists a sharding for each of its results or for none: others of its
    results become open where nothing was said about them."""
    shardings.set(value, sharding)
    if isinstance(value.owner, Op):
        for other in value.owner.results:
            if other is not value and shardings.get(other) is None:
                shardings.set(other, TensorSharding.open_on(sharding.mesh, other.type.rank))


def map_shardings(program: Program, shardings: Shardings, change: Callable[[TensorSharding], TensorSharding]) -> None:
    """Applies `change` to every sharding, each distinct one once."""
    known: dict[TensorSharding | None, TensorSharding | None] = {None: None}

    def changed(s: TensorSharding | None) -> TensorSharding | None:
        if s is not None and s not in known:
            known[s] = change(s)
        return known[s]

    shardings.table[:] = [changed(s) for s in shardings.table]
    for results in shardings.results.values():
        results[:] = [changed(s) for s in results]
    shardings.asked = {place: change(s) for place, s in shardings.asked.items()}
    if program.names.isdisjoint(("sdy.manual_computation", "sdy.named_computation")):
        return
    for op in program.ops():
        if op.data is not None and "in_shardings" in op.data:
            op.data["in_shardings"] = [changed(s) for s in op.data["in_shardings"]]
