"""The collectives of a scheduled program, with what the compiler runs while they are on their way.

Accelerator compilers split a collective into a start and a done and put other work between them. Text of XLA's GPU
compiler has `all-gather-start` and `all-gather-done`; the TPU compiler wraps a collective into fusions that begin it,
carry it along with other work and end it, marked by the custom calls AsyncCollectiveStart and AsyncCollectiveDone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from collectives.cost import sent_bytes
from meshrt import errors
from meshrt.inspect import hlo

__all__ = ["ScheduledCollective", "schedule"]

_KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute|ragged-all-to-all|collective-broadcast"
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\(")
_CALLS = re.compile(r"\b(?:calls|to_apply)=%?([\w.\-]+)")
_LOOP = re.compile(r"\bbody=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\b(?:branch_computations=\{([^}]*)\}|(?:true|false)_computation=%?([\w.\-]+))")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_SHAPE = re.compile(r"[a-z]\w*\[[\d,<=]*\]")
# Instructions that compute nothing: they do not count as work done meanwhile.
_IDLE = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy-start", "copy-done", "slice-start",
     "slice-done", "partition-id", "replica-id", "after-all", "opt-barrier")
)  # fmt: skip


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
    computations, entry = hlo._split(text)
    if entry is None:
        raise errors.ArgumentValueError("the text has no ENTRY computation: it is not optimised HLO")
    return tuple(_Walk(computations, num_devices).computation(entry, 1))


class _Walk:
    """Reads computation after computation. `inner` remembers the collectives inside fusions."""

    def __init__(self, computations: dict[str, list[str]], num_devices: int):
        self.computations, self.num_devices = computations, num_devices
        self.inner: dict[str, list[ScheduledCollective]] = {}

    def computation(self, name: str, times: int | None) -> Iterator[ScheduledCollective]:
        found: list[ScheduledCollective] = []
        pending: list[tuple[int, str]] = []  # (position in found, name of the start)
        for line in self.computations.get(name, ()):
            m = _INSTRUCTION.match(line)
            if m is None:
                continue
            op = m[3]
            kind, _, suffix = op.rpartition("-")
            if suffix == "done" and (kind in _KINDS.split("|") or kind == "async"):
                self._done(pending, line)
            elif op == "async-start" or (suffix == "start" and kind in _KINDS.split("|")):
                started = self._started(line, m, times)
                if started is not None:
                    pending.append((len(found), m[1]))
                    found.append(started)
            elif op in _KINDS.split("|"):
                found.append(self._one(line, m[1], m[2], op, False, times))
            elif op == "fusion":
                self._fusion(line, m[1], times, found, pending)
            elif op in ("while", "conditional", "call"):
                found += self._called(line, op, times)
            elif op not in _IDLE:
                _overlap(found, pending)
        yield from found

    def _called(self, line: str, op: str, times: int | None) -> Iterator[ScheduledCollective]:
        if op == "while":
            trips = _TRIPS.search(line)
            inner = None if trips is None or times is None else times * int(trips[1])
            yield from self.computation(_LOOP.search(line)[1], inner)
        elif op == "call":
            yield from self.computation(_CALLS.search(line)[1], times)
        else:
            for several, one in _BRANCHES.findall(line):
                for branch in re.findall(r"[\w.\-]+", several or one):
                    yield from self.computation(branch, times)

    def _started(self, line: str, m: re.Match, times: int | None) -> ScheduledCollective | None:
        if m[3] != "async-start":
            return self._one(line, m[1], m[2], m[3], '"is_sync":true' not in line, times)
        inside = self._inside(_CALLS.search(line)[1])
        return replace(inside[0], name=m[1], times=times, asynchronous=True) if inside else None

    def _fusion(self, line: str, name: str, times: int | None, found: list, pending: list) -> None:
        called = _CALLS.search(line)[1]
        marks, inside = self._marks(called), self._inside(called)
        if inside and "AsyncCollectiveStart" in marks:
            pending.append((len(found), inside[0].kind + inside[0].shapes[0]))
            found.append(replace(inside[0], name=name, times=times, asynchronous=True))
        elif inside and "AsyncCollectiveDone" in marks:
            key = inside[0].kind + inside[0].shapes[0]
            for i, (_, started) in enumerate(pending):
                if started == key:
                    del pending[i]
                    break
        elif inside and not any(key == c.kind + c.shapes[0] for _, key in pending for c in inside):
            found += [replace(c, name=name, times=times) for c in inside]
        else:
            _overlap(found, pending)

    def _done(self, pending: list, line: str) -> None:
        operands = line[line.index("(", line.index(" = ")) :]
        for i, (_, started) in enumerate(pending):
            if re.search(rf"%{re.escape(started)}\b(?![.\-\w])", operands):
                del pending[i]
                return

    def _marks(self, name: str) -> set[str]:
        text = "\n".join(self.computations.get(name, ()))
        marks = set(re.findall(r'custom_call_target="(AsyncCollective\w+)"', text))
        for called in _CALLS.findall(text):
            marks |= self._marks(called)
        return marks

    def _inside(self, name: str) -> list[ScheduledCollective]:
        """The collectives inside a fused or asynchronous computation, those of nested fusions too."""
        known = self.inner.get(name)
        if known is None:
            known = self.inner[name] = []
            for line in self.computations.get(name, ()):
                m = _INSTRUCTION.match(line)
                if m is None:
                    continue
                if m[3] in _KINDS.split("|"):
                    known.append(self._one(line, m[1], m[2], m[3], False, 1))
                elif m[3] == "fusion":
                    known += self._inside(_CALLS.search(line)[1])
        return known

    def _one(self, line: str, name: str, result: str, op: str, asynchronous: bool, times: int | None):
        kind = op.removesuffix("-start").replace("-", "_")
        shapes = _results(result, op)
        held = sum(hlo._size(s) for s in shapes)
        if kind == "collective_permute":
            pairs = re.findall(r"\{(\d+),(\d+)\}", hlo._attribute(line, "source_target_pairs"))
            groups, sent = (len(pairs), 2), held if any(a != b for a, b in pairs) else 0.0
        else:
            members = hlo._groups(hlo._attribute(line, "replica_groups"), self.num_devices)
            n = max((len(g) for g in members), default=1)
            groups = (len(members), n)
            operand = {"all_gather": held / n, "reduce_scatter": held * n}.get(kind, held)
            ring = kind in ("all_gather", "reduce_scatter", "all_reduce")
            sent = sent_bytes(kind if ring else "all_to_all", n, operand)
        where = re.search(r'op_name="([^"]*)"', line)
        return ScheduledCollective(kind, name, shapes, groups, sent, times, asynchronous, 0, where and where[1])


def _results(result: str, op: str) -> tuple[str, ...]:
    """The shapes that a collective gives; a start's type lists operands, results and the state of the transfer."""
    result = re.sub(r"/\*.*?\*/", "", result)
    if result.startswith("(("):
        depth = 0
        for i, c in enumerate(result[1:], 1):
            depth += (c == "(") - (c == ")")
            if depth == 0:
                result = result[i + 1 :]
                break
    elif result.startswith("(") and op in ("all-gather-start", "collective-permute-start"):
        shapes = [s for s in _SHAPE.findall(result) if not s.startswith(("u32[]", "s32[]"))]
        return tuple(shapes[math.ceil(len(shapes) / 2) :])
    return tuple(s for s in _SHAPE.findall(result) if not s.startswith("u32[]"))


def _overlap(found: list[ScheduledCollective], pending: list[tuple[int, str]]) -> None:
    for i, _ in pending:
        found[i] = replace(found[i], overlapped=found[i].overlapped + 1)
