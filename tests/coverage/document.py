"""docs/jax-coverage.md, from the comparison."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import jax

from tests.coverage.names import KINDS, Row, compare

__all__ = ["PATH", "text"]

PATH = Path(__file__).parents[2] / "docs" / "jax-coverage.md"

HEAD = """# What of JAX's library is here

Every public name of JAX {version}, module by module. This file is written by `python -m tests.coverage`; a test
compares it with what is there.

* **equal**: it is here under the same name and takes every argument that JAX's takes. Whether results agree is judged
  by the tests of its room, beside JAX.
* **different**: it is here, and what it lacks or does otherwise stands beside it.
* **missing**: not here yet. Asking for it raises `meshrt.errors.MissingFunctionError` at the attribute.
* **not planned**: with the reason.

"""


def text() -> str:
    """The document."""
    rows = compare()
    parts = [HEAD.format(version=jax.__version__), _table(rows)]
    for module, found in groupby(rows, key=lambda r: r.module):
        parts.append(_section(module, list(found)))
    return "".join(parts)


def _table(rows: list[Row]) -> str:
    lines = ["| module | " + " | ".join(KINDS) + " |", "| --- |" + " ---: |" * len(KINDS)]
    for module, found in groupby(rows, key=lambda r: r.module):
        lines.append(f"| `{module}` | " + _counts(list(found)) + " |")
    lines.append("| all | " + _counts(rows) + " |")
    return "\n".join(lines) + "\n"


def _counts(rows: list[Row]) -> str:
    kinds = [r.kind for r in rows]
    return " | ".join(str(kinds.count(k) or "") for k in KINDS)


def _section(module: str, rows: list[Row]) -> str:
    lines = [f"\n## {module}\n"]
    for kind in KINDS:
        of_kind = [r for r in rows if r.kind == kind]
        plain = ", ".join(f"`{r.name}`" for r in of_kind if not r.why)
        if plain:
            lines.append(f"{kind}: {plain}\n")
        lines += [f"* {kind}: `{r.name}`: {r.why}" for r in of_kind if r.why]
        if any(r.why for r in of_kind):
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"
