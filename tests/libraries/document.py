"""`docs/libraries.md`: what of each library runs, from the results of the last runs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.libraries.libraries import LIBRARIES, Library
from tests.libraries.runs import PASSED, SKIPPED

__all__ = ["PAGE", "RESULTS", "note", "page", "results"]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "libraries.md"
RESULTS = Path(__file__).with_name("results.json")
SHOWN = 12  # kinds of failures that are listed

_HEAD = """# JAX's libraries on meshrt

Each library's own tests, unchanged, of its source distribution: once with JAX 0.10.2, once with meshrt in its place
([compat.md](compat.md)) in an environment without JAX. This file is written by `python -m tests.libraries`
(`make test-libraries`; with `--again` it runs only what did not pass the last time). The distributions of equinox,
diffrax, jaxtyping, orbax and penzai have no tests in them: a few lines of each, of blackjax, whose chains take hours,
and of those below run in `tests/libraries/test_smoke.py`. Where JAX's run is missing, all tests that do not skip
themselves count.

| library | version | pass on JAX | of those on meshrt | share |
| --- | --- | ---: | ---: | ---: |
"""


def results() -> dict[str, Any]:
    """What the last runs gave, by library."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def note(library: Library, with_jax: dict[str, str] | None, with_meshrt: dict[str, str]) -> None:
    """Keeps what two runs of a library gave; without one of JAX, all tests that do not skip themselves count."""
    judged = with_meshrt if with_jax is None else with_jax
    passing = [n for n, outcome in judged.items() if outcome == PASSED or (with_jax is None and outcome != SKIPPED)]
    failing = {name: with_meshrt.get(name, "not collected") for name in passing}
    failing = {name: outcome for name, outcome in sorted(failing.items()) if outcome not in (PASSED, SKIPPED)}
    skipped = sorted(name for name in passing if with_meshrt.get(name) == SKIPPED)
    row = {"version": library.version, "jax": len(passing), "skipped": skipped, "failing": failing}
    row["judged"] = with_jax is not None
    _keep(library, row)


def _keep(library: Library, row: dict[str, Any]) -> None:
    found = {**results(), library.name: row}
    RESULTS.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")


def not_passed(library: Library) -> list[str]:
    """The tests that failed the last time or skipped themselves with meshrt."""
    row = results().get(library.name, {"failing": {}, "skipped": []})
    return sorted([*row["failing"], *row["skipped"]])


def note_again(library: Library, with_meshrt: dict[str, str]) -> None:
    """Keeps what a run of only the tests of `not_passed` gave."""
    skipped = sorted(name for name, outcome in with_meshrt.items() if outcome == SKIPPED)
    failing = {name: outcome for name, outcome in sorted(with_meshrt.items()) if outcome not in (PASSED, SKIPPED)}
    row = results()[library.name]
    ran = row.get("ran_again", 0) + len(with_meshrt)
    _keep(library, {**row, "skipped": skipped, "failing": failing, "ran_again": ran})


def page() -> str:
    """The whole page."""
    found = results()
    listed = [library for library in LIBRARIES if library.name in found]
    rows = [_row(library, found[library.name]) for library in listed]
    return _HEAD + "\n".join(rows) + "\n" + "".join(_missing(library, found[library.name]) for library in listed)


def _row(library: Library, row: dict[str, Any]) -> str:
    good = row["jax"] - len(row["skipped"]) - len(row["failing"])
    share = f"{100 * good / row['jax']:.1f} %" if row["jax"] else ""
    wanted = row["jax"] if row["judged"] else f"not run ({row['jax']} tests)"
    return f"| {library.name} | {row['version']} | {wanted} | {good} | {share} |"


def _missing(library: Library, row: dict[str, Any]) -> str:
    lines = [f"\n## {library.name}\n"]
    lines += [f"* Not run: `{path}` ({why})" for path, why in library.left_out]
    kinds = Counter(row["failing"].values()).most_common()
    if row.get("ran_again"):
        count = f"{row['ran_again']} test{'' if row['ran_again'] == 1 else 's'}"
        lines.append(f"* Run again alone, later than the others, because they had not passed: {count}")
    if row["skipped"]:
        lines.append(f"* Skip themselves on meshrt: {len(row['skipped'])}")
    lines += [f"* {count} × {_plain(kind)}" for kind, count in kinds[:SHOWN]]
    if len(kinds) > SHOWN:
        lines.append(f"* {sum(n for _, n in kinds[SHOWN:])} others, of {len(kinds) - SHOWN} kinds")
    return "\n".join(lines if len(lines) > 1 else [*lines, "Nothing is missing."]) + "\n"


def _plain(message: str) -> str:
    """A message as a line of code."""
    return "`" + message.replace("`", "'").replace("|", "/")[:160] + "`"
