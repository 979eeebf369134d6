"""Where the partitioner learns shardings from: a finished propagation, or a module that carries them already."""

from __future__ import annotations

import functools
from collections.abc import Callable

from propagation import Propagated, run
from propagation.annotations import read_shardings
from propagation.attributes import string
from propagation.axis_conflicts import Alike, lying_apart
from propagation.errors import PropagationError
from propagation.model import AxisRef, TensorSharding
from propagation.program import Op, Program, Value, read, source
from propagation.rules import RuleCache
from propagation.sdy_text import read_sharding
from propagation.shardings import Shardings

from .findings import Finding

__all__ = ["Annotate", "Annotated", "KnownShardings", "Propagation", "unpropagated", "unresolved"]

# What changes the shardings that a module says, before any is propagated.
Annotate = Callable[[Program, Shardings], None]


class KnownShardings:
    """Answers for the shardings of a program: of values, of the results of @main, around manual computations.

    gathered   values that are brought to another sharding before anything uses them
    divided    values that are made in no larger pieces than they are wanted in
    rules      the sharding rules of operations, as far as somebody asked
    """

    def __init__(self, program: Program, shardings: Shardings):
        self.program = program
        self.shardings = shardings
        self.gathered: dict[Value, TensorSharding] = {}
        self.divided: frozenset[Value] = frozenset()
        self.rules = RuleCache()
        self.sharding: Callable[[Value], TensorSharding | None] = shardings.get

    @functools.cached_property
    def apart(self) -> Alike:
        """The operations whose operands and results are split by different axes."""
        return lying_apart(self.program, self.shardings, self.rules)

    def results(self) -> list[TensorSharding | None]:
        """The shardings of @main's results."""
        raise NotImplementedError

    def manual(self, op: Op) -> tuple[tuple[TensorSharding, ...], tuple[TensorSharding, ...]]:
        """(in_shardings, out_shardings) of a manual computation."""
        assert op.data is not None, "manual computations are decoded when they are read"
        outs = tuple([s for r in op.results if (s := self.sharding(r)) is not None])
        assert len(outs) == len(op.results), "a manual computation says the shardings of all its results"
        return op.data["in_shardings"], outs

    def manual_axes(self, op: Op) -> tuple[str, ...]:
        assert op.data is not None, "manual computations are decoded when they are read"
        return tuple(op.data["manual_axes"])

    def used_axes(self) -> set[AxisRef]:
        """Every axis and sub-axis that some sharding uses."""
        out: set[AxisRef] = set()
        for s in {*self.shardings.table, *self.results()}:
            if s is not None:
                for d in s.dims:
                    out.update(d.axes)
                out.update(s.unreduced)
        return out | self.used_by_devices()

    def used_by_devices(self) -> set[AxisRef]:
        """The axes and sub-axes of manual axes by which manual computations split what they take and give. Their bodies
        know which device has which part.
        """
        out: set[AxisRef] = set()
        if "sdy.manual_computation" in self.program.names:
            for op in self.program.ops():
                if op.name == "sdy.manual_computation":
                    manual = self.manual_axes(op)
                    ins, outs = self.manual(op)
                    out.update(a for s in (*ins, *outs) for d in s.dims for a in d.axes if a.name in manual)
        return out


class Annotated(KnownShardings):
    """A module that carries closed shardings in its `sdy` attributes, whoever wrote them."""

    def __init__(self, program: Program):
        super().__init__(program, read_shardings(program))

    def results(self) -> list[TensorSharding | None]:
        main = self.program.main
        declared = self.shardings.results[main]
        return [_reduced(self.shardings.get(v)) if s is None else s for v, s in zip(main.returned, declared)]


# Operations whose results propagation may leave without a sharding.
_UNSAID = ("stablehlo.custom_call", "stablehlo.async_", "stablehlo.composite", "stablehlo.recv", "stablehlo.infeed")


def unpropagated(known: KnownShardings) -> list[Finding]:
    """A finding where a module that carries its own shardings looks as if nothing had been propagated through it: no
    operation's result has one, though operands do, and propagation would give some."""
    if not isinstance(known, Annotated):
        return []
    ops = _computing(known.program)
    if any(known.shardings.get(r) is not None for op in ops for r in op.results):
        return []
    heard = [op for op in ops if not op.name.startswith(_UNSAID) and any(r.type.is_tensor for r in op.results)]
    bare = [op for op in heard if any(_is_split(known.shardings, v) for v in op.operands)]
    if not bare or not _gets_shardings(known.program):
        return []
    message = (
        f"no operation's result has a sharding, so that all count as replicated, though {bare[0].name} has a sharded "
        "operand; if nothing was propagated through this module yet, do so (python -m propagation closed)"
    )
    return [Finding("unpropagated", message, source(bare[0]), 0.0)]


def _gets_shardings(program: Program) -> bool:
    """Whether propagation splits the result of an operation: it may be that nothing can be, in a small module."""
    try:
        made = run(read(program.module))
    except PropagationError:  # which says nothing of the module as it stands
        return True
    return any(_is_split(made.shardings, r) for op in _computing(made.program) for r in op.results)


def _computing(program: Program) -> list[Op]:
    return [op for op in program.main.body.ops if op.name.startswith(("stablehlo.", "chlo."))]


def _is_split(shardings: Shardings, value: Value) -> bool:
    sharding = shardings.get(value)
    return sharding is not None and not sharding.is_fully_replicated


# Custom calls that stand for functions of the process that wrote the module: JAX's, and ours.
_PARTITIONED_BY_USERS = ("CustomSPMDPartitioning", "meshrt.custom_partitioning")


def unresolved(known: KnownShardings) -> list[Finding]:
    """A finding for every operation whose partition function is not in the module."""
    if "stablehlo.custom_call" not in known.program.names:
        return []
    found = []
    for op in known.program.ops():
        if op.name == "stablehlo.custom_call" and string(op.attrs["call_target_name"]) in _PARTITIONED_BY_USERS:
            message = (
                f"custom_call @{string(op.attrs['call_target_name'])} is partitioned by a Python function of the "
                "process that wrote the module: it stays as it is, on pieces that its sharding rule allows, and cannot "
                "be compiled; partition it in that process"
            )
            found.append(Finding("unresolved", message, source(op), 0.0))
    return found


def _reduced(sharding: TensorSharding | None) -> TensorSharding | None:
    """The sharding of a result that nobody declared unreduced."""
    return sharding and TensorSharding(sharding.mesh, sharding.dims, sharding.replicated)


class Propagation(KnownShardings):
    """What `propagation.run` returned."""

    def __init__(self, propagated: Propagated):
        super().__init__(propagated.program, propagated.shardings)
        self.propagated = propagated
        self.rules = propagated.rules
        self._results: list[TensorSharding | None] | None = None  # attributes are read once

    @property
    def is_repeatable(self) -> bool:
        """Whether somebody can make the module once more, to propagate it anew."""
        return self.propagated.is_repeatable

    def again(self, annotate: Annotate) -> Propagated | None:
        """The same module propagated anew, with what `annotate` changes; None if nobody can make it once more."""
        return self.propagated.again(annotate)

    def results(self) -> list[TensorSharding | None]:
        """As propagation left them, but unreduced only where @main declares it so: a caller who did not ask for addends
        gets their sum, even where propagation found the returned value unreduced."""
        if self._results is not None:
            return self._results
        attrs = self.program.main.result_attrs
        found: list[TensorSharding | None] = []
        for s, own in zip(self.propagated.result_shardings, attrs, strict=True):
            said = own.get("sdy.sharding")
            is_declared = said is not None and bool(read_sharding(str(said)).unreduced)
            found.append(s if is_declared else _reduced(s))
        self._results = found
        return found
