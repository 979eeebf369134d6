"""Tables of the figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Result

__all__ = ["amount", "show", "show_communication"]


def amount(value: float | None, unit: str) -> str:
    """`12.3 ms`, `1.2 MiB`; seconds and bytes."""
    if value is None:
        return "-"
    if unit == "B":
        for name in ("B", "KiB", "MiB", "GiB"):
            if value < 1024 or name == "GiB":
                return f"{value:.4g} {name}"
            value /= 1024
    for name, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * scale >= 1 or name == "µs":
            return f"{value * scale:.3g} {name}"
    raise AssertionError


def show(console: Console, results: Sequence[Result]) -> None:
    """All figures; the spread is that of the pairs' ratios, `first` the ratio with cold caches."""
    table = Table(title="meshrt / JAX, medians of alternating pairs", title_justify="left")
    for name in ("figure", "meshrt", "JAX", "ratio", "spread", "first", "pairs", "must", "goal", ""):
        table.add_column(name, justify="left" if name in ("figure", "") else "right")
    for r in results:
        spread = "-" if r.spread is None else f"{r.spread[0]:.3g} to {r.spread[1]:.3g}"
        bound = lambda x: "-" if x is None else f"{x:g}"
        first = r.details.get("first")
        mark = {True: "[green]reached[/green]", False: "[red]missed[/red]", None: ""}[r.reached]
        table.add_row(
            r.name, amount(r.ours, r.unit), amount(r.theirs, r.unit), "-" if r.ratio is None else f"{r.ratio:.3g}",
            spread, f"{first[0] / first[1]:.3g}" if first else "-", str(r.pairs), bound(r.must), bound(r.goal), mark,
        )  # fmt: skip
    console.print(table)


def show_communication(console: Console, result: Result) -> None:
    """Both programs' collectives, where the result has them."""
    for who in ("meshrt", "jax"):
        rows: list[dict[str, Any]] | None = result.details.get(who)
        if not isinstance(rows, list):
            continue
        table = Table(title=f"{result.name}: {who}", title_justify="left")
        for name in ("kind", "axes", "bytes", "times", "shapes", "operation"):
            table.add_column(name, justify="right" if name in ("bytes", "times") else "left", overflow="fold")
        for row in rows:
            times = "?" if row["times"] is None else str(row["times"])
            table.add_row(
                row["kind"], row["axes"] or "-", amount(row["bytes"], "B"), times, " ".join(row["shapes"]), row["cause"]
            )
        total = sum(row["bytes"] * (row["times"] or 1) for row in rows)
        table.caption = f"{amount(total, 'B')} sent per device and step"
        console.print(table)
    if "planned bytes" in result.details:
        planned = result.details["planned bytes"]
        console.print(
            f"  meshrt's plan says {amount(planned, 'B')}, its compiled HLO {amount(result.ours, 'B')}", highlight=False
        )
