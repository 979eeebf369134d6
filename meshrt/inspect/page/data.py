"""Reports as the columns that the page reads: texts stand once, in a table, and all in them can be shown."""

from __future__ import annotations

import json
import os.path
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from collectives.findings import human_time
from meshrt.inspect.changes import Comparison, compare
from meshrt.inspect.model import Report
from meshrt.inspect.page.folding import Tree, by_function, by_layer, by_line
from meshrt.inspect.page.layout import laid_out
from meshrt.inspect.program_rows import OperationRow, ProgramRow
from meshrt.inspect.render import clean
from meshrt.inspect.scopes import layer_of
from meshrt.inspect.totals import by_axes
from meshrt.inspect.totals import by_layer as total_by_layer
from meshrt.inspect.totals import by_line as total_by_line
from meshrt.pipeline.names import path_of

__all__ = ["page_data"]


def page_data(report: Report, against: Report | None = None, found: Comparison | None = None) -> dict[str, Any]:
    """What the page shows of a report, and of what it is compared with; `found` is what changed, if that is known."""
    reports = [_report(r) for r in ([report] if against is None else [against, report])]
    changes = None if against is None else asdict(found or compare(against, report))
    cleaned: dict[str, Any] = _cleaned({"reports": reports, "changes": changes})
    return cleaned


def _report(report: Report) -> dict[str, Any]:
    data = replace(report, program=None).as_json()
    data["mesh"] = [[name, size] for name, size in report.mesh]
    for rows, values in ((data["arguments"], report.arguments), (data["results"], report.results)):
        for row, value in zip(rows, values):
            row["path"] = path_of(value.name)
    for row, collective in zip(data["collectives"], report.collectives):
        row["layer"] = layer_of(collective.scope)
        row["total"] = collective.total
        row["time"] = human_time(collective.seconds)
    data["sent"] = {
        "line": [asdict(t) for t in total_by_line(report)],
        "axes": [asdict(t) for t in by_axes(report)],
        "layer": [asdict(t) for t in total_by_layer(report)],
    }
    folder = data["folder"] = _folder(report)
    program = None if report.program is None else _program(report.program, folder)
    return {"report": data, "program": program}


def _folder(report: Report) -> str:
    """The folder that the sources of a report have in common, which need not be read in each line."""
    operations = () if report.program is None else report.program.operations
    wheres = [c.where for c in report.collectives] + [o.where for o in operations]
    paths = {os.path.dirname(w.rpartition(":")[0]) for w in wheres if w and os.path.isabs(w)}
    return os.path.commonpath(paths) + os.sep if paths else ""


class _Texts:
    """A table of texts; `number` gives the place of one."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str | None) -> int:
        return -1 if text is None else self.numbers.setdefault(text, len(self.numbers))

    def column(self, texts: Iterable[str | None]) -> list[int]:
        return [self.number(t) for t in texts]


def _program(program: ProgramRow, folder: str) -> dict[str, Any]:
    texts = _Texts()
    operations, values = program.operations, program.values
    edges = _edges(operations)
    reasons = [(i, r) for i, v in enumerate(values) for r in v.reasons]
    return {
        "operations": {
            "kind": texts.column(o.kind for o in operations), "function": texts.column(o.function for o in operations),
            "scope": texts.column(o.scope for o in operations), "where": texts.column(o.where for o in operations),
            "within": [-1 if o.within is None else o.within for o in operations],
            "operands": [o.operands for o in operations], "results": [o.results for o in operations],
        },
        "values": {
            "name": texts.column(v.name for v in values), "type": texts.column(v.type for v in values),
            "part": texts.column(v.device_type for v in values),
            "axes": texts.column(json.dumps(v.axes) for v in values),
            "unreduced": texts.column(",".join(v.unreduced) for v in values),
            "bytes": [v.global_bytes for v in values], "held": [v.device_bytes for v in values],
        },
        "reasons": {
            "value": [i for i, _ in reasons], "dim": [r.dim for _, r in reasons],
            "axis": texts.column(r.axis for _, r in reasons), "text": texts.column(r.text for _, r in reasons),
            "source": [-1 if r.source is None else r.source for _, r in reasons],
            "sourceDim": [-1 if r.source_dim is None else r.source_dim for _, r in reasons],
        },
        "trees": {
            name: _tree(tree, edges, folder)
            for name, tree in (
                ("layer", by_layer(program)), ("function", by_function(program)), ("line", by_line(program)),
            )
        },
        "sources": [{"path": s.path, "lines": s.text.splitlines()} for s in program.sources],
        "texts": [*texts.numbers],
    }  # fmt: skip


def _edges(operations: Sequence[OperationRow]) -> list[tuple[int, int]]:
    makers = {value: i for i, op in enumerate(operations) for value in op.results}
    return [(makers[v], i) for i, op in enumerate(operations) for v in op.operands if v in makers]


def _tree(tree: Tree, edges: Sequence[tuple[int, int]], folder: str) -> dict[str, Any]:
    layout = laid_out(tree, edges)
    names = [name.removeprefix(folder) for name in tree.names]
    parents = [-1 if parent is None else parent for parent in tree.parents]
    return {"parents": parents, "names": names, "rows": layout.rows, "places": layout.places}


def _cleaned(data: Any) -> Any:
    """The data with what cannot be printed escaped in every text: a name must not hide or turn round what follows."""
    if isinstance(data, str):
        return data if data.isprintable() else clean(data.expandtabs(4))
    if isinstance(data, dict):
        return {key if key.isprintable() else clean(key): _cleaned(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_cleaned(item) for item in data]
    return data
