"""`python -m benchmarks [--only NAME ...] [--json FILE] [--quick]`"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.figures import FIGURES, Effort, Result
from benchmarks.peers import PeerError
from benchmarks.report import show, show_communication


def main() -> int:
    """Measures, prints, writes; exit code 1 when a figure cannot be measured or does not reach what it must."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measures meshrt beside JAX of the same jaxlib."
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=list(FIGURES),
        metavar="NAME",
        help=f"one of {', '.join(FIGURES)}; repeatable",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures there")
    parser.add_argument("--quick", action="store_true", help="two pairs each, to see that all runs")
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 150, soft_wrap=not sys.stdout.isatty())
    results: list[Result] = []
    failures: dict[str, str] = {}
    for name in args.only or FIGURES:
        chosen, start = FIGURES[name], time.perf_counter()
        console.print(f"[bold]{name}[/bold]: {chosen.about} ...", highlight=False)
        try:
            found = chosen.run(Effort(args.quick))
        except PeerError as e:
            failures[name] = str(e)
            console.print(f"  could not be measured: {e}", style="red", markup=False, highlight=False)
            continue
        results += found
        for result in found:
            show_communication(console, result)
        console.print(f"  {len(found)} figures in {time.perf_counter() - start:.0f} s", highlight=False)
    show(console, results)
    if args.json:
        args.json.write_text(
            json.dumps(
                {"machine": machine(), "figures": [r.as_json() for r in results], "failures": failures}, indent=1
            )
        )
        console.print(f"written to {args.json}", highlight=False)
    return 1 if failures or any(r.reached is False for r in results) else 0


def machine() -> dict[str, Any]:
    """Where the figures were taken."""
    return {
        "python": platform.python_version(), "platform": platform.platform(), "cpus": os.cpu_count(),
        "load": os.getloadavg(), **{name: metadata.version(name) for name in ("jaxlib", "jax", "numpy")},
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
