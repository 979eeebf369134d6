"""What changed between two programs, and because of what: in the process that parses them, and from outside of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from collectives.errors import CollectivesError
from collectives.topology import load
from meshrt.errors import MeshrtError
from meshrt.inspect.causes import with_causes
from meshrt.inspect.changes import Comparison, compare
from meshrt.inspect.child_options import annotating_of, module_text, partitioning_of
from meshrt.inspect.compared_programs import Side
from meshrt.inspect.guard import Limits, ask_child
from meshrt.inspect.lint.subject import Subject, subject_of_module
from meshrt.inspect.model import Report, place, report_of
from meshrt.inspect.relative_paths import relative
from propagation.errors import PropagationError

__all__ = ["compare_sides", "compared"]


def compare_sides(before: Side, after: Side, topology: str | None, limits: Limits) -> Comparison:
    """What `after` has otherwise than `before`, found in a process with limits. InspectError for what is no module."""
    sides = [before.as_options(), after.as_options()]
    options = {"sides": sides, "topology": topology, "memory_bytes": limits.memory_bytes, "seconds": limits.seconds}
    data = json.dumps(options).encode() + b"\n" + before.module + after.module
    reply = ask_child(after.name, "meshrt.inspect.child", data, limits)
    return Comparison.from_json(relative(reply["comparison"]))


def compared(options: Mapping[str, Any], data: bytes) -> dict[str, Any]:
    """{"comparison": ...} of the two modules that `data` holds, one behind the other; or {"error": ..., "of": ...}
    where one cannot be used."""
    topology = load(options["topology"]) if options["topology"] else None
    first, second = options["sides"]
    made = []
    for side, module in ((first, data[: first["bytes"]]), (second, data[first["bytes"] :])):
        try:
            made.append(_subject(side, module, topology))
        except (PropagationError, CollectivesError, MeshrtError) as e:
            return {"error": str(e), "of": side["name"]}
    before, after = made
    comparison = compare(_report(before, first["name"]), _report(after, second["name"]))
    return {"comparison": asdict(with_causes(comparison, before, after))}


def _subject(side: Mapping[str, Any], data: bytes, topology: Any) -> Subject:
    (module, side), name = module_text(data, side), side["name"]
    return subject_of_module(
        module, None, topology, given=annotating_of(module, side), file=side["file"], names=side["names"],
        place=lambda where: place(where, name), how=partitioning_of(side, topology),
    )  # fmt: skip


def _report(subject: Subject, name: str) -> Report:
    return report_of(
        name, subject.propagated, subject.base.partitioned, subject.arg_names, subject.result_names, source=name
    )
