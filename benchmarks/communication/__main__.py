"""`python -m benchmarks.communication [--only TEXT ...] [--json FILE] [--quick] [--reshards] [--scaling]`"""

from __future__ import annotations

import argparse
import bisect
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT = 300  # seconds a program may take


def environment() -> dict[str, str]:
    """Of a process with 8 virtual CPU devices."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MESHRT_", "JAX_"))}
    env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    return env | {"JAX_PLATFORMS": "cpu", "MESHRT_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONHASHSEED": "0"}


def ask(module: str, *arguments: str, timeout: float = TIMEOUT) -> dict[str, Any]:
    """What a module of this package prints as JSON, run in a process of its own; {"failed": ...} if it does not."""
    command = [sys.executable, "-m", f"benchmarks.communication.{module}", *arguments]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {timeout:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"failed": f"exit code {done.returncode}: {done.stderr.strip()[-400:]}"}
    return json.loads(lines[-1])


def mean(ratios: Iterable[float]) -> float:
    """The geometric mean; nan of nothing."""
    logs = [math.log(r) for r in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's: 1 where both have the same order, -1 where it is reversed; equal values share a rank. nan of few."""
    if len(a) < 2:
        return math.nan
    ranks = [_ranks(values) for values in (a, b)]
    return statistics.correlation(*ranks) if all(len(set(r)) > 1 for r in ranks) else math.nan


def predicted_within(share: float, rows: Sequence[dict[str, Any]]) -> int:
    """Of how many programs the plan says the bytes of a device that the compiler counts, up to this share of them."""
    return sum(abs(r["predicted_memory"] - r["ours"]["memory"]) <= share * r["ours"]["memory"] for r in rows)


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [bisect.bisect_left(order, v) + (order.count(v) - 1) / 2 for v in values]


def amount(n: float | None) -> str:
    """Bytes in short."""
    if n is None:
        return "-"
    for unit in ("", "K", "M", "G"):
        if n < 1024 or unit == "G":
            return f"{n:.4g}{unit}"
        n /= 1024
    raise AssertionError


def known_best(row: dict[str, Any]) -> float:
    """The fewest bytes known: derived by hand, or sent by either side."""
    sent = [row["ours"]["bytes"], row["xla"]["bytes"]]
    return min([*sent, row["best"]] if row["best"] is not None else sent)


def fraction(a: float, b: float) -> str:
    """a / b as the table shows it."""
    return f"{a / b:.2f}" if b else ("=" if not a else "inf")


def program_table(rows: list[dict[str, Any]]) -> Table:
    """One line per program."""
    table = Table(title="bytes sent per device, collectives run, peak memory, step time; ours / XLA's partitioner")
    names = (
        "program", "ours", "XLA", "best", "bound", "ours/best", "XLA/best", "ours/XLA", "collectives",
        "memory", "step", "error",
    )  # fmt: skip
    for name in names:
        table.add_column(name, justify="left" if name == "program" else "right", no_wrap=True)
    for r in rows:
        ours, xla, best = r["ours"], r["xla"], known_best(r)
        table.add_row(
            r["name"], amount(ours["bytes"]), amount(xla["bytes"]), amount(best), amount(r["bound"]),
            fraction(ours["bytes"], best), fraction(xla["bytes"], best), fraction(ours["bytes"], xla["bytes"]),
            f"{ours['collectives']}/{xla['collectives']}",
            fraction(ours["memory"], xla["memory"]), fraction(ours["step_seconds"], xla["step_seconds"]),
            f"{r['error']:.0e}",
            style="red" if ours["bytes"] > xla["bytes"] * 1.001 + 8 or r["error"] > 1e-3 else None,
        )  # fmt: skip
    return table


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures over all programs. Ratios of bytes are over the programs that must communicate."""
    must = [r for r in rows if known_best(r) > 0]
    ratio = lambda key, of: mean(r[of][key] / known_best(r) for r in must)
    shrank = [r for r in rows if r["ours"]["bytes"] < r["xla"]["bytes"]]
    step = lambda r: r["ours"]["step_seconds"] / r["xla"]["step_seconds"]
    memory = lambda r: r["ours"]["memory"] / r["xla"]["memory"]
    return {
        "programs": len(rows),
        "must communicate": len(must),
        "ours/best bytes": ratio("bytes", "ours"),
        "XLA/best bytes": ratio("bytes", "xla"),
        "above XLA in bytes": [r["name"] for r in rows if r["ours"]["bytes"] > r["xla"]["bytes"] * 1.001 + 8],
        "above 1.1 of best": [r["name"] for r in must if r["ours"]["bytes"] > 1.1 * known_best(r)],
        "communicate needlessly": [r["name"] for r in rows if not known_best(r) and r["ours"]["bytes"]],
        "step time, ours/XLA": mean(step(r) for r in rows),
        "step time where communication shrank, worst": max(map(step, shrank), default=None),
        "step time, rank correlation of predicted and measured": rank_correlation(
            [r["predicted_seconds"] for r in rows], [r["ours"]["step_seconds"] for r in rows]
        ),
        "memory, ours/XLA": mean(memory(r) for r in rows),
        "memory, predicted within 10 % of the compiler's": predicted_within(0.1, rows),
        "memory, predicted within 25 % of the compiler's": predicted_within(0.25, rows),
        "above XLA in memory": {r["name"]: round(memory(r), 3) for r in rows if memory(r) > 1.01},
        "wrong": [r["name"] for r in rows if r["error"] > 1e-3],
    }


def run_programs(names: list[str], repeats: int, say: Callable[[str], None]) -> tuple[list[dict], dict[str, str]]:
    """Measures each program in a process of its own."""
    rows, failures = [], {}
    for name in names:
        start = time.perf_counter()
        found = ask("measure", name, str(repeats))
        if "failed" in found:
            failures[name] = found["failed"]
            say(f"{name}: {found['failed']}")
            continue
        rows.append(found)
        sent = f"{amount(found['ours']['bytes'])} / {amount(found['xla']['bytes'])}"
        say(f"{name}: {sent} bytes, {time.perf_counter() - start:.0f} s")
    return rows, failures


def show_mapping(console: Console, title: str, values: dict[str, Any]) -> None:
    """Named figures, one a line."""
    console.print(title, style="bold", highlight=False)
    for key, value in values.items():
        text = f"{value:.4g}" if isinstance(value, float) else json.dumps(value)
        console.print(f"  {key}: {text}", markup=False, highlight=False)


def main() -> int:
    """Measures, prints, writes; exit code 1 where a program fails or is wrong."""
    from .library import PROGRAMS

    parser = argparse.ArgumentParser(prog="python -m benchmarks.communication", description=__doc__)
    parser.add_argument("--only", action="append", metavar="TEXT", help="programs whose name has this text; repeatable")
    parser.add_argument("--list", action="store_true", help="print the names of all programs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures there")
    parser.add_argument("--quick", action="store_true", help="as few as two samples of each time")
    parser.add_argument("--reshards", action="store_true", help="only the pairs of shardings")
    parser.add_argument("--scaling", action="store_true", help="only the time of partitioning")
    args = parser.parse_args()
    names = [n for n in PROGRAMS if not args.only or any(t in n for t in args.only)]
    if args.list:
        print("\n".join(names))
        return 0
    console = Console(width=None if sys.stdout.isatty() else 170, soft_wrap=not sys.stdout.isatty())
    figures: dict[str, Any] = {}
    failures: dict[str, str] = {}
    every = not args.reshards and not args.scaling
    if every:
        say = lambda text: console.print(text, markup=False, highlight=False)
        rows, failures = run_programs(names, 2 if args.quick else 9, say)
        console.print(program_table(rows))
        figures |= {"programs": rows, "summary": summary(rows), "failures": failures}
        show_mapping(console, "over all programs", figures["summary"])
    if args.reshards or (every and not args.only):
        figures["reshards"] = ask("reshards", *(["--quick"] if args.quick else []), timeout=3600)
        show_mapping(console, "reshards: bytes over the lower bound", figures["reshards"])
    if args.scaling or (every and not args.only):
        figures["scaling"] = ask("scaling", *(["--quick"] if args.quick else []), timeout=1200)
        show_mapping(console, "seconds of partitioning beside propagation", figures["scaling"])
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))
        console.print(f"written to {args.json}", highlight=False)
    failed = any("failed" in figures.get(k, {}) for k in ("reshards", "scaling"))
    return 1 if failures or failed or figures.get("summary", {}).get("wrong") else 0


if __name__ == "__main__":
    sys.exit(main())
