"""Reads XLA's optimised HLO text: computations, instructions, and the collectives among them. Text in, values out.

>>> found = collectives(compiled.as_text(), 8)             # doctest: +SKIP
>>> least, most = traffic(compiled.as_text(), 8).bytes      # doctest: +SKIP

Whoever's program it was (JAX's, PyTorch/XLA's, ours), its collectives are counted alike: bytes are what the busiest
device sends each time by a bandwidth-optimal ring (`collectives.cost.sent_bytes`). An `all-gather` in groups of n = 4
whose result is f32[16] sends (n-1)/n * 64 B = 48 B.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collectives import cost
from collectives.kinds import by_hlo, kind_of
from collectives.plan.traffic import Traffic
from meshrt import errors

__all__ = [
    "HloCollective",
    "Instruction",
    "Module",
    "axes_of_groups",
    "collective_of",
    "collectives",
    "read_module",
    "replica_groups",
    "traffic",
]

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+)\b.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\(")
_CALLED = re.compile(
    r"\b(body|condition|to_apply|calls|called_computations|branch_computations|true_computation|false_computation)="
    r"(\{[^}]*\}|%?[\w.\-]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_COMMENT = re.compile(r"/\*.*?\*/")
_SHAPE = re.compile(r"([a-z]\w*)\[([\d,<=]*)\]")
_BITS = {"pred": 8, "token": 0, "opaque": 0}  # of the element types that do not say it


# ----------------------------------------------------------------------------------------------------------
# Instructions.


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a computation: `%name = type op(operands), attributes`. `type` and `text` are as they are written."""

    name: str
    op: str
    type: str
    text: str

    def attribute(self, name: str) -> str:
        """The text behind `name=`, up to the next attribute; `{}` if there is none."""
        begin = self.text.find(f"{name}=")
        if begin < 0:
            return "{}"
        rest = self.text[begin + len(name) + 1 :]
        if rest.startswith("mesh["):
            return rest[: rest.index("}", rest.index("{")) + 1]
        return _items(rest)[0]

    @property
    def operands(self) -> str:
        """The text of the operands and all behind it."""
        return self.text[self.text.index(f" {self.op}(") + len(self.op) + 1 :]

    @property
    def called(self) -> list[tuple[str, str]]:
        """(role, computation) of the computations that it names: `[("condition", "c"), ("body", "b")]` of a loop."""
        return [(role, name) for role, names in _CALLED.findall(self.text) for name in re.findall(r"[\w.\-]+", names)]

    def callee(self, *roles: str) -> str | None:
        """The first computation that is called in one of these roles."""
        return next((name for role, name in self.called if role in roles), None)

    def body_times(self, times: int | None) -> int | None:
        """How often a loop's body runs when the loop runs `times` times; None if that is not known."""
        trips = _TRIPS.search(self.text)
        return None if trips is None or times is None else times * int(trips[1])

    @property
    def results(self) -> tuple[str, ...]:
        """The shapes that it gives, without layouts: `("f32[16,8]",)`.

        The type of an asynchronous start lists operands, results and the state of the transfer; `all-reduce-start` has
        its results alone.
        """
        kind = _COMMENT.sub("", self.type)
        starts = self.op.endswith("-start") and kind.startswith("(")
        if starts and (kind.startswith("((") or self._lists_operands()):
            kind = _items(kind[1:])[1]
        return tuple(m[0] for m in _SHAPE.finditer(kind))

    def _lists_operands(self) -> bool:
        kind = by_hlo().get(self.op.removesuffix("-start"))
        return kind is not None and kind.lists_operands

    @property
    def op_name(self) -> str | None:
        """The operation of the program that it belongs to, as its metadata say."""
        found = _OP_NAME.search(self.text)
        return found and found[1]


@dataclass(frozen=True, slots=True)
class Module:
    """The computations of a module by name, each in the order of its text (of its schedule, if it has one)."""

    entry: str
    computations: Mapping[str, tuple[Instruction, ...]]

    def instructions(self, computation: str | None) -> tuple[Instruction, ...]:
        """Those of a computation; none of one that is not in the text."""
        return () if computation is None else self.computations.get(computation, ())


def read_module(text: str) -> Module:
    """Reads optimised HLO. ArgumentValueError for text that has no entry computation, such as StableHLO."""
    computations: dict[str, list[Instruction]] = {}
    entry: str | None = None
    inside: list[Instruction] | None = None
    for line in text.splitlines():
        if inside is None:
            head = _COMPUTATION.match(line)
            if head and "=" not in line.split("(", 1)[0] and not line.startswith("HloModule"):
                inside = computations.setdefault(head[2], [])
                entry = head[2] if head[1] else entry
        elif line.startswith("}"):
            inside = None
        else:
            found = _INSTRUCTION.match(line)
            if found is not None:
                inside.append(Instruction(found[1], found[3], found[2], line))
    if entry is None:
        raise errors.ArgumentValueError(
            "the text has no ENTRY computation: it is not optimised HLO (Compiled.as_text())"
        )
    return Module(entry, {name: tuple(body) for name, body in computations.items()})


def _items(text: str) -> list[str]:
    """`text` cut at its commas outside of brackets, up to a bracket that closes what was not opened in it."""
    items: list[str] = []
    begin = depth = 0
    for i, c in enumerate(text):
        depth += (c in "{[(") - (c in "}])")
        if depth < 0:
            return [*items, text[begin:i]]
        if c == "," and depth == 0:
            items.append(text[begin:i])
            begin = i + 1
    return [*items, text[begin:]]


# ----------------------------------------------------------------------------------------------------------
# Collectives.


@dataclass(frozen=True, slots=True)
class HloCollective:
    """One collective instruction.

    kind     all_gather, reduce_scatter, all_reduce, all_to_all, collective_permute, ...
    shapes   what it gives, per device
    groups   positions of devices; of a permute the pairs (from, to)
    bytes    sent by the busiest device each time
    times    how often it runs per execution; None in a loop of unknown length
    op_name  the operation of the program that it belongs to, as its metadata say
    """

    kind: str
    name: str
    shapes: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    bytes: float
    times: int | None
    op_name: str | None

    @property
    def senders(self) -> list[int]:
        """The devices that send."""
        if kind_of(self.kind).pairs:
            return [a for a, b in self.groups if a != b]
        return [d for group in self.groups for d in group]

    @property
    def group_size(self) -> int:
        return max((len(g) for g in self.groups), default=1)


def collectives(text: str, num_devices: int) -> list[HloCollective]:
    """All collectives of a module that can run, callee by callee, those of loop bodies with their number of runs.

    Raises `ArgumentValueError` when `text` is not HLO or spells its groups in a way this reader does not know.
    """
    module = read_module(text)
    return list(_visit(module, module.entry, 1, num_devices))


def traffic(text: str, num_devices: int) -> Traffic:
    """Bytes that each device sends per execution of a module, counted as `CommunicationPlan` does.

    A permute counts for those that send, a loop as often as it runs (once where that is not known), and of branches the
    one that sends most, and the one that sends least.

    Raises `ArgumentValueError` as `collectives` does.
    """
    return _traffic(read_module(text), None, num_devices)


def _traffic(module: Module, name: str | None, num_devices: int) -> Traffic:
    sent = Traffic.none(num_devices)
    for instruction in module.instructions(module.entry if name is None else name):
        if instruction.op.removesuffix("-start") in by_hlo():
            found = collective_of(instruction, 1, num_devices)
            sent.send(found.bytes, found.senders)
            continue
        inside = [
            (role, _traffic(module, called, num_devices))
            for role, called in instruction.called
            if role != "to_apply" or instruction.op == "call"
        ]
        if instruction.op == "conditional":
            sent.add(Traffic.of_branches([each for _, each in inside]))
            continue
        for role, each in inside:
            runs = instruction.body_times(1) if role in ("body", "condition") else 1
            sent.add(each, 1 if runs is None else runs)
    return sent


def _visit(module: Module, name: str, times: int | None, num_devices: int) -> Iterator[HloCollective]:
    for instruction in module.instructions(name):
        if instruction.op.removesuffix("-start") in by_hlo():
            yield collective_of(instruction, times, num_devices)
            continue  # its to_apply is the reduction of two elements
        for role, called in instruction.called:
            if role == "to_apply" and instruction.op != "call":
                continue
            inner = instruction.body_times(times) if role in ("body", "condition") else times
            yield from _visit(module, called, inner, num_devices)


def collective_of(instruction: Instruction, times: int | None, num_devices: int) -> HloCollective:
    """What an instruction that is a collective, or the start of one, does when it runs `times` times."""
    kind = by_hlo()[instruction.op.removesuffix("-start")]
    shapes = instruction.results
    held = sum(map(_size, shapes))
    if kind.pairs:
        pairs = re.findall(r"\{(\d+),(\d+)\}", instruction.attribute("source_target_pairs"))
        groups: tuple[tuple[int, ...], ...] = tuple((int(a), int(b)) for a, b in pairs)
        sent = held if any(a != b for a, b in groups) else 0.0
    else:
        groups = replica_groups(instruction.attribute("replica_groups"), num_devices)
        n = max((len(g) for g in groups), default=1)
        sent = cost.sent_bytes(kind.name, n, kind.operand_bytes(n, held))
    return HloCollective(kind.name, instruction.name, shapes, groups, sent, times, instruction.op_name)


def _size(shape: str) -> float:
    """Bytes of `f32[16,8]`; `f32[<=16]`, of a size known at run time, at its largest."""
    found = _SHAPE.match(shape)
    assert found is not None, shape
    dtype, dims = found.groups()
    count = math.prod(int(d.lstrip("<=")) for d in dims.split(",") if d)
    digits = re.search(r"\d+", dtype)
    if dtype not in _BITS and digits is None:
        raise errors.ArgumentValueError(f"the element type of {shape} is not one of HLO's")
    return count * (_BITS[dtype] if digits is None else int(digits[0])) / 8


# ----------------------------------------------------------------------------------------------------------
# Groups of devices.


def replica_groups(text: str, num_devices: int) -> tuple[tuple[int, ...], ...]:
    """The value of `replica_groups=`, in every spelling:

    {{0,2},{1,3}}               lists; {} is all devices
    [2,4]<=[4,2]T(1,0)          a transposed iota: arange(8).reshape(4, 2).transpose(1, 0).reshape(2, 4)
    mesh['a'=4,'b'=2] {'b'}     axes of a mesh, with sub-axes as `'a':(1)2`
    """
    text = text.strip()
    if text.startswith("{"):
        lists = re.findall(r"\{([\d,\s]+)\}", text[1:])
        return tuple(tuple(_numbers(g)) for g in lists) if lists else (tuple(range(num_devices)),)
    if text.startswith("mesh["):
        return _mesh_groups(text)
    found = re.match(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if not found:
        raise errors.ArgumentValueError(f"cannot read these replica groups: {text[:120]}")
    return _rows(_iota(found[2], found[3]).reshape(_numbers(found[1])))


def _numbers(text: str) -> list[int]:
    return [int(i) for i in text.split(",")]


def _iota(shape: str, order: str | None) -> np.ndarray:
    sizes = _numbers(shape)
    ids = np.arange(math.prod(sizes)).reshape(sizes)
    return ids.transpose(_numbers(order)) if order else ids


def _rows(ids: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, ids.tolist()))


def _mesh_groups(text: str) -> tuple[tuple[int, ...], ...]:
    """`mesh['a'=4,'b'=2] {'a'}`: sub-axes are written `'a':(1)2`, and another order than 0, 1, 2 ... of the devices as
    `mesh[...], device_ids=([4,2]T(1,0)) {...}` (a transposed iota) or as a list of numbers."""
    head = re.match(
        r"mesh\[([^\]]*)\](?:, device_ids=\((?:\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))\))? \{([^}]*)\}", text
    )
    if head is None:
        raise errors.ArgumentValueError(f"cannot read these replica groups: {text[:120]}")
    sizes = {n: int(s) for n, s in re.findall(r"'([^']+)'=(\d+)", head[1])}
    if head[2]:
        devices = _iota(head[2], head[3])
    else:
        devices = np.array(_numbers(head[4])) if head[4] else np.arange(math.prod(sizes.values()))
    wanted = re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", head[5])
    dims: list[int] = []  # of the mesh with its axes split into the sub-axes that are named
    position: dict[tuple[str, str], int] = {}  # of an axis, or of its sub-axis behind so many devices, in dims
    for name, size in sizes.items():
        dims_before = 1
        parts = sorted((int(pre), int(n)) for x, pre, n in wanted if x == name and pre) or [(1, size)]
        for pre, n in parts:
            if pre > dims_before:
                dims.append(pre // dims_before)
            position[name, str(pre) if n != size else ""] = len(dims)
            dims.append(n)
            dims_before = pre * n
        dims.append(size // dims_before)
    chosen = [position[name, pre] for name, pre, _ in wanted]
    rest = [d for d in range(len(dims)) if d not in chosen]
    return _rows(devices.reshape(dims).transpose(rest + chosen).reshape(-1, math.prod([dims[d] for d in chosen])))


def axes_of_groups(groups: Sequence[Sequence[int]], axes: Sequence[tuple[str, int]]) -> str:
    """The mesh axes in which the members of each group differ, for devices numbered along a mesh of these (name, size).

    "data" or "data,model"; for pairs of a permute the axes in which any pair differs.
    """
    sizes = [s for _, s in axes]
    differing = set()
    for group in groups:
        places = [np.unravel_index(i, sizes) for i in group]
        differing |= {d for d in range(len(sizes)) if len({int(p[d]) for p in places}) > 1}
    return ",".join(name for d, (name, _) in enumerate(axes) if d in differing)
