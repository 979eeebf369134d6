"""What differs between the programs that the processes of a job are about to run together, in words.

A record describes a program in a few fields; what they all have in common is not mentioned. Where the fields say too
little, the programs' texts are compared, line by line, and the source lines of the first difference are given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["describe", "fields", "named", "program", "representatives", "source_of"]

# In this order: the first that differs is mostly the cause of those behind it. Each with what people call it.
_FIELDS = {
    "jaxlib": "jaxlib",
    "devices": "order of devices",
    "name": "function",
    "line": "written at",
    "arguments": "arguments of one device",
    "results": "results of one device",
    "options": "compiler options",
}
_REFERENCE = re.compile(r" loc\((#loc\d*)\)\s*$")
_DEFINITION = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.MULTILINE)
_PLACE = re.compile(r'"([^"]+)":(\d+)')
_INNER = re.compile(r"#loc\d*")
_SHOWN = 200  # characters of a line of a program

Record = Mapping[str, Any]


def representatives(records: Mapping[int, Record]) -> tuple[int, ...]:
    """One process for each different program, the lowest; the first is process 0 or who comes nearest to it."""
    first: dict[str, int] = {}
    for process in sorted(records):
        first.setdefault(repr(records[process].get("digest")), process)  # which may be anything: it came by the wire
    return tuple(first.values())


def describe(records: Mapping[int, Record], texts: Mapping[int, str | None]) -> str:
    """Who runs what, and what differs: several lines."""
    chosen = representatives(records)
    parts = [f"{_who(records, p)} {program(records[p])}" for p in chosen]
    lines = [f"the processes of a job must run the same programs in the same order, but {'; '.join(parts)}"]
    base = chosen[0]
    for other in chosen[1:]:
        lines += [f"  {line}" for line in _between(base, other, records, texts)]
    lines.append(
        "  Let every process make the same calls with arguments of the same shapes; what only one process does, such "
        "as printing, belongs behind them"
    )
    return "\n".join(lines)


def _who(records: Mapping[int, Record], first: int) -> str:
    same = [p for p in sorted(records) if records[p].get("digest") == records[first].get("digest")]
    if len(same) == 1:
        return f"process {first} runs"
    listed = ", ".join(map(str, same[:8])) + (f" and {len(same) - 8} more" if len(same) > 8 else "")
    return f"processes {listed} run"


def named(record: Record) -> str:
    """A program as people call it, and where it is written."""
    line = f" ({record['line']})" if record.get("line") else ""
    return f"{record.get('name', '?')}{line}"


def program(record: Record) -> str:
    """The same, with what it is launched on."""
    return f"{named(record)} on {record.get('arguments', '?')}"


def fields(records: Mapping[int, Record]) -> str:
    """What differs between the programs of two processes, as the end of a line; empty where only their texts do."""
    one, other = records
    found = [line for line in _between(one, other, records, {}) if not line.startswith("their texts")]
    return f" ({'; '.join(found)})" if found else ""


def _between(one: int, other: int, records: Mapping[int, Record], texts: Mapping[int, str | None]) -> Iterator[str]:
    different = False
    for field, words in _FIELDS.items():
        mine, theirs = records[one].get(field), records[other].get(field)
        if mine != theirs:
            different = different or field not in ("line",)
            yield f"{words}: {mine} in process {one}, {theirs} in process {other}"
    first = _first_difference(texts.get(one), texts.get(other))
    if first is not None:
        (mine, here), (theirs, there) = first
        yield f"first difference, in process {one}: {mine}{here}"
        yield f"             in process {other}: {theirs}{there}"
    elif not different:
        yield f"their texts differ between process {one} and process {other} in ways that cannot be shown"


def _first_difference(one: str | None, other: str | None) -> tuple[tuple[str, str], tuple[str, str]] | None:
    if not one or not other:
        return None
    mine, theirs = _body(one), _body(other)
    for i in range(max(len(mine), len(theirs))):
        a = mine[i] if i < len(mine) else "(ends here)"
        b = theirs[i] if i < len(theirs) else "(ends here)"
        if _REFERENCE.sub("", a) != _REFERENCE.sub("", b):
            return _shown(a, one), _shown(b, other)
    return None


def _body(text: str) -> list[str]:
    lines = text.partition("\n#loc")[0].splitlines()
    return [line for line in lines if not line.startswith(("module", "#loc"))]


def _shown(line: str, text: str) -> tuple[str, str]:
    plain = _REFERENCE.sub("", line).strip()
    place = source_of(line, text)
    return plain[:_SHOWN] + (" ..." if len(plain) > _SHOWN else ""), f"   at {place}" if place else ""


def source_of(line: str, text: str) -> str | None:
    """Which line of the user's an operation comes from: `line` of the program `text`, which defines the locations."""
    found = _REFERENCE.search(line)
    if found is None:
        return None
    definitions = dict(_DEFINITION.findall(text))
    pending, seen = [found.group(1)], set()
    while pending:
        name = pending.pop()
        content = definitions.get(name, "")
        place = _PLACE.search(content)
        if place is not None:
            return f"{place.group(1)}:{place.group(2)}"
        seen.add(name)
        pending += [inner for inner in reversed(_INNER.findall(content)) if inner not in seen]
    return None
