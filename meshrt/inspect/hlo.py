"""Reads the collectives out of XLA's optimised HLO text, whoever's program it was.

>>> text = compiled.as_text()                              # doctest: +SKIP
>>> sum(c.bytes * c.times for c in collectives(text, 8))   # doctest: +SKIP

Bytes are what the busiest device sends each time, with n devices per group: all-gather (n-1)/n of its output,
reduce-scatter (n-1)/n of its input, all-reduce 2(n-1)/n of its input, all-to-all (n-1)/n of what a device holds,
permute the payload where a device sends to another one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshrt import errors

__all__ = ["HloCollective", "axes_of_groups", "collectives", "sent_bytes"]

_KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute|ragged-all-to-all|collective-broadcast"
_COLLECTIVE = re.compile(rf"^\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ({_KINDS})(-start)?\(")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+)\b.*\{\s*$")
_CALLED = re.compile(
    r"\b(body|condition|to_apply|calls|called_computations|branch_computations|true_computation|false_computation)="
    r"(\{[^}]*\}|%?[\w.\-]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\]")
_BITS = {"pred": 8, "token": 0, "opaque": 0}


@dataclass(frozen=True, slots=True)
class HloCollective:
    """One collective instruction. `times` is how often it runs per execution (None in a loop of unknown length);
    `groups` are device positions; `op_name` and `source` come from its metadata."""

    kind: str
    name: str
    shapes: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    bytes: float
    times: int | None
    op_name: str | None

    @property
    def group_size(self) -> int:
        return max((len(g) for g in self.groups), default=1)


def collectives(text: str, num_devices: int) -> list[HloCollective]:
    """All collectives of a module that can run, callee by callee, those of loop bodies with their number of runs.

    Raises `ArgumentValueError` when `text` is not HLO or spells its groups in a way this reader does not know.
    """
    computations, entry = _split(text)
    if entry is None:
        raise errors.ArgumentValueError(
            "the text has no ENTRY computation: it is not optimised HLO (Compiled.as_text())"
        )
    return list(_visit(computations, entry, 1, num_devices))


def sent_bytes(found: Sequence[HloCollective]) -> float:
    """Bytes that the busiest device sends per execution; loops of unknown length count once."""
    return sum(c.bytes * (1 if c.times is None else c.times) for c in found)


def _split(text: str) -> tuple[dict[str, list[str]], str | None]:
    computations: dict[str, list[str]] = {}
    entry, lines = None, None
    for line in text.splitlines():
        if lines is None:
            found = _COMPUTATION.match(line)
            if found and "=" not in line.split("(", 1)[0] and not line.startswith("HloModule"):
                lines = computations.setdefault(found[2], [])
                entry = found[2] if found[1] else entry
        elif line.startswith("}"):
            lines = None
        else:
            lines.append(line)
    return computations, entry


def _visit(
    computations: dict[str, list[str]], name: str, times: int | None, num_devices: int
) -> Iterator[HloCollective]:
    for line in computations.get(name, ()):
        found = _COLLECTIVE.match(line)
        if found:
            yield _collective(found, line, times, num_devices)
            continue  # its to_apply is the reduction of two elements
        for key, names in _CALLED.findall(line):
            if key == "to_apply" and " call(" not in line:
                continue
            inner = times
            if key in ("body", "condition"):
                trips = _TRIPS.search(line)
                inner = None if trips is None or times is None else times * int(trips[1])
            for called in re.findall(r"[\w.\-]+", names):
                yield from _visit(computations, called, inner, num_devices)


def _collective(found: re.Match, line: str, times: int | None, num_devices: int) -> HloCollective:
    name, result, kind, start = found.groups()
    shapes = [m[0] for m in re.finditer(r"[a-z]\w*\[[\d,<=]*\]", re.sub(r"/\*.*?\*/", "", result))]
    if start and kind in ("all-gather", "collective-permute"):  # (operands, results, context ...)
        shapes = [s for s in shapes if not s.startswith("u32[]")]
        shapes = shapes[len(shapes) // 2 :]
    held = sum(_size(s) for s in shapes)
    if kind == "collective-permute":
        pairs = [tuple(map(int, p)) for p in re.findall(r"\{(\d+),(\d+)\}", _attribute(line, "source_target_pairs"))]
        groups: tuple[tuple[int, ...], ...] = tuple(pairs)
        sent = held if any(a != b for a, b in pairs) else 0
    else:
        groups = _groups(_attribute(line, "replica_groups"), num_devices)
        n = max((len(g) for g in groups), default=1)
        share = (n - 1) / n
        sent = {"all-gather": share * held, "reduce-scatter": share * held * n, "all-reduce": 2 * share * held}.get(
            kind, share * held
        )
    where = re.search(r'op_name="([^"]*)"', line)
    return HloCollective(kind.replace("-", "_"), name, tuple(shapes), groups, sent, times, where and where[1])


def _size(shape: str) -> float:
    dtype, dims = _ARRAY.match(shape).groups()
    count = math.prod(int(d.lstrip("<=")) for d in dims.split(",") if d)
    digits = re.search(r"\d+", dtype)
    bits = _BITS[dtype] if dtype in _BITS else int(digits[0])
    return count * bits / 8


def _attribute(line: str, name: str) -> str:
    """The text behind `name=`, up to the next attribute."""
    begin = line.find(f"{name}=")
    if begin < 0:
        return "{}"
    rest = line[begin + len(name) + 1 :]
    if rest.startswith("mesh["):
        return rest[: rest.index("}", rest.index("{")) + 1]
    depth = 0
    for i, c in enumerate(rest):
        depth += (c in "{[(") - (c in "}])")
        if c == "," and depth == 0:
            return rest[:i]
    return rest


def _groups(text: str, num_devices: int) -> tuple[tuple[int, ...], ...]:
    """Groups written as lists, as a transposed iota (`[2,4]<=[4,2]T(1,0)`) or by axes of a mesh."""
    text = text.strip()
    if text.startswith("{"):
        lists = re.findall(r"\{([\d,\s]+)\}", text[1:])
        if lists:
            return tuple(tuple(int(i) for i in g.split(",")) for g in lists)
        return (tuple(range(num_devices)),)
    if text.startswith("mesh["):
        return _mesh_groups(text)
    found = re.match(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if not found:
        raise errors.ArgumentValueError(f"cannot read these replica groups: {text[:120]}")
    shape, source, order = ([int(i) for i in g.split(",")] if g else None for g in found.groups())
    ids = np.arange(math.prod(source)).reshape(source)
    ids = (ids.transpose(order) if order else ids).reshape(shape)
    return tuple(tuple(int(i) for i in row) for row in ids)


def _mesh_groups(text: str) -> tuple[tuple[int, ...], ...]:
    """`mesh['a'=4,'b'=2] {'a'}`: sub-axes are written `'a':(1)2`, and another order than 0, 1, 2 ... of the devices as
    `mesh[...], device_ids=([4,2]T(1,0)) {...}` (a transposed iota) or as a list of numbers."""
    head = re.match(
        r"mesh\[([^\]]*)\](?:, device_ids=\((?:\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))\))? \{([^}]*)\}", text
    )
    if head is None:
        raise errors.ArgumentValueError(f"cannot read these replica groups: {text[:120]}")
    numbers = lambda t: [int(i) for i in t.split(",")]
    sizes = {n: int(s) for n, s in re.findall(r"'([^']+)'=(\d+)", head[1])}
    if head[2]:
        devices = np.arange(math.prod(numbers(head[2]))).reshape(numbers(head[2]))
        devices = devices.transpose(numbers(head[3])) if head[3] else devices
    else:
        devices = np.array(numbers(head[4])) if head[4] else np.arange(math.prod(sizes.values()))
    wanted = re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", head[5])
    dims: list[int] = []
    position: dict[tuple[str, str], int] = {}
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
    rows = devices.reshape(dims).transpose(rest + chosen).reshape(-1, math.prod([dims[d] for d in chosen]))
    return tuple(tuple(int(i) for i in row) for row in rows)


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
