"""`python -m propagation.fuzz.docs FILE`: writes the tables of agreement into a page of the documentation.

The tables stand between the lines `<!-- agreement jaxlib VERSION -->` and `<!-- end -->`, one pair per version of
jaxlib; those of the installed one are replaced.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys

from .compare import VERSION
from .sweep import Tally, sweep

__all__ = ["main", "render"]

STAGES = ("closed", "pipeline", "propagated", "import", "user_priority", "op_priority", "aggressive", "basic")
COLUMNS = 3


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m propagation.fuzz.docs", description=__doc__.split("\n\n")[0])
    parser.add_argument("file", help="the page")
    parser.add_argument("--cases", type=int, default=2000, help="modules of the stage closed (default 2000)")
    parser.add_argument("--others", type=int, default=400, help="modules of each other stage (default 400)")
    args = parser.parse_args(argv)
    logging.getLogger("propagation").setLevel(logging.ERROR)
    tallies = {s: sweep(range(args.cases if s == "closed" else args.others), s) for s in STAGES}
    for stage, tally in tallies.items():
        for case in tally.failures:
            print(f"stage {stage}, seed {case.seed}: {case.found.verdict}: {case.found.detail}", file=sys.stderr)
    with open(args.file) as f:
        page = f.read()
    pattern = rf"(<!-- agreement jaxlib {re.escape(VERSION)} -->\n).*?(<!-- end -->)"
    page, count = re.subn(pattern, lambda m: m[1] + render(tallies) + m[2], page, flags=re.DOTALL)
    if not count:
        print(f"{args.file} has no place for tables of jaxlib {VERSION}", file=sys.stderr)
        return 2
    with open(args.file, "w") as f:
        f.write(page)
    return 0


def render(tallies: dict[str, Tally]) -> str:
    """The tables as Markdown: modules per stage, then operations and features of the first stage."""
    first = next(iter(tallies.values()))
    lines = ["", "| stage | modules that agree | compared | refused by the C++ passes |", "| --- | --: | --: | --: |"]
    for stage, tally in tallies.items():
        refused = tally.verdicts["theirs failed"]
        lines.append(f"| `{stage}` | {tally.verdicts['agree']} | {tally.compared} | {refused} |")
    for title, counts in (("operation", first.operations), ("feature", first.features)):
        cells = [f"{name} | {a} / {n}" for name, (a, n) in sorted(counts.items())]
        cells += [" | "] * (-len(cells) % COLUMNS)
        lines += [
            "",
            "| " + " | ".join([title, "agree"] * COLUMNS) + " |",
            "| " + " | ".join(["---", "--:"] * COLUMNS) + " |",
        ]
        rows = len(cells) // COLUMNS
        lines += ["| " + " | ".join(cells[i::rows]) + " |" for i in range(rows)]
    return "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    sys.exit(main())
