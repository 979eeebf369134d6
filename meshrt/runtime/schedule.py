"""The collectives of a scheduled program, with what the compiler runs while they are on their way.

Accelerator compilers split a collective into a start and a done and put other work between them. Text of XLA's GPU
compiler has `all-gather-start` and `all-gather-done`; the TPU compiler wraps a collective into fusions that begin it,
carry it along with other work and end it, marked by the custom calls AsyncCollectiveStart and AsyncCollectiveDone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from collectives.kinds import by_hlo, kind_of
from meshrt.runtime.hlo import Instruction, Module, collective_of, read_module

__all__ = ["ScheduledCollective", "schedule"]

_MARK = re.compile(r'custom_call_target="(AsyncCollective\w+)"')
# Instructions that compute nothing: they do not count as work done meanwhile.
_IDLE = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy-start", "copy-done", "slice-start",
     "slice-done", "partition-id", "replica-id", "after-all", "opt-barrier")
)  # fmt: skip
_BRANCHES = ("branch_computations", "true_computation", "false_computation")


@dataclass(frozen=True, slots=True)
class ScheduledCollective:
    """One collective of the schedule.

    kind          all_gather, reduce_scatter, all_reduce, all_to_all, collective_permute, ...
    name          the instruction that starts it
    shapes        what it gives, per device
    groups        number of groups, devices per group
    bytes         sent by the busiest device each time
    times         how often it runs per execution; None in a loop of unknown length
    asynchronous  whether it has a start and a done
    overlapped    instructions that compute between start and done
    op_name       the operation of the program it belongs to, as the compiler knows it
    """

    kind: str
    name: str
    shapes: tuple[str, ...]
    groups: tuple[int, int]
    bytes: float
    times: int | None
    asynchronous: bool
    overlapped: int
    op_name: str | None


def schedule(text: str, num_devices: int) -> tuple[ScheduledCollective, ...]:
    """All collectives of scheduled HLO in the order in which they start.

    Raises `ArgumentValueError` when `text` is not optimised HLO.
    """
    module = read_module(text)
    return tuple(_Walk(module, num_devices).computation(module.entry, 1))


@dataclass(slots=True)
class _Flight:
    """The collectives of one computation so far; `pending` are those under way, as (position in found, key), where the
    key is the name of the start, or of one inside fusions what it gives."""

    found: list[ScheduledCollective]
    pending: list[tuple[int, str]]

    def start(self, key: str, collective: ScheduledCollective) -> None:
        self.pending.append((len(self.found), key))
        self.found.append(collective)

    def end(self, position: int) -> None:
        del self.pending[position]

    def overlap(self) -> None:
        """Something computes while they are under way."""
        for i, _ in self.pending:
            self.found[i] = replace(self.found[i], overlapped=self.found[i].overlapped + 1)


class _Walk:
    """Reads computation after computation. `inner` remembers the collectives inside fusions."""

    def __init__(self, module: Module, num_devices: int):
        self.module, self.num_devices = module, num_devices
        self.inner: dict[str, list[ScheduledCollective]] = {}

    def computation(self, name: str | None, times: int | None) -> Iterator[ScheduledCollective]:
        flight = _Flight([], [])
        for instruction in self.module.instructions(name):
            op = instruction.op
            kind, _, end = op.rpartition("-")
            if end == "done" and (kind in by_hlo() or kind == "async"):
                self._done(instruction, flight)
            elif end == "start" and kind in by_hlo():
                flight.start(instruction.name, self._one(instruction, '"is_sync":true' not in instruction.text, times))
            elif op == "async-start":
                inside = self._inside(instruction.callee("calls"))
                if inside:
                    flight.start(
                        instruction.name, replace(inside[0], name=instruction.name, times=times, asynchronous=True)
                    )
            elif op in by_hlo():
                flight.found.append(self._one(instruction, False, times))
            elif op == "fusion":
                self._fusion(instruction, times, flight)
            elif op in ("while", "conditional", "call"):
                flight.found += self._called(instruction, times)
            elif op not in _IDLE:
                flight.overlap()
        yield from flight.found

    def _called(self, instruction: Instruction, times: int | None) -> Iterator[ScheduledCollective]:
        if instruction.op == "while":
            yield from self.computation(instruction.callee("body"), instruction.body_times(times))
        elif instruction.op == "call":
            yield from self.computation(instruction.callee("calls", "to_apply"), times)
        else:
            for role, branch in instruction.called:
                if role in _BRANCHES:
                    yield from self.computation(branch, times)

    def _fusion(self, instruction: Instruction, times: int | None, flight: _Flight) -> None:
        called = instruction.callee("calls")
        marks, inside = self._marks(called), self._inside(called)
        if inside and "AsyncCollectiveStart" in marks:
            flight.start(_key(inside[0]), replace(inside[0], name=instruction.name, times=times, asynchronous=True))
        elif inside and "AsyncCollectiveDone" in marks:
            for i, (_, key) in enumerate(flight.pending):
                if key == _key(inside[0]):
                    flight.end(i)
                    break
        elif inside and not any(key == _key(c) for _, key in flight.pending for c in inside):
            flight.found += [replace(c, name=instruction.name, times=times) for c in inside]
        else:
            flight.overlap()

    def _done(self, instruction: Instruction, flight: _Flight) -> None:
        for i, (_, started) in enumerate(flight.pending):
            if re.search(rf"%{re.escape(started)}\b(?![.\-\w])", instruction.operands):
                flight.end(i)
                return

    def _marks(self, name: str | None) -> set[str]:
        """The marks that the TPU compiler leaves in a fused computation and in those that it calls."""
        marks: set[str] = set()
        for instruction in self.module.instructions(name):
            marks.update(_MARK.findall(instruction.text))
            marks.update(*(self._marks(c) for role, c in instruction.called if role in ("calls", "to_apply")))
        return marks

    def _inside(self, name: str | None) -> list[ScheduledCollective]:
        """The collectives inside a fused or asynchronous computation, those of nested fusions too."""
        if name is None:
            return []
        known = self.inner.get(name)
        if known is None:
            known = self.inner[name] = []
            for instruction in self.module.instructions(name):
                if instruction.op in by_hlo():
                    known.append(self._one(instruction, False, 1))
                elif instruction.op == "fusion":
                    known += self._inside(instruction.callee("calls"))
        return known

    def _one(self, instruction: Instruction, asynchronous: bool, times: int | None) -> ScheduledCollective:
        c = collective_of(instruction, times, self.num_devices)
        groups = len(c.groups), 2 if kind_of(c.kind).pairs else c.group_size
        return ScheduledCollective(c.kind, c.name, c.shapes, groups, c.bytes, times, asynchronous, 0, c.op_name)


def _key(c: ScheduledCollective) -> str:
    return c.kind + c.shapes[0]
