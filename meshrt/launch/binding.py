"""Which cores a rank keeps to: ``meshrt launch --bind cores|numa``. Read by bootstrap.py; standard library only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

VARIABLE = "MESHRT_BIND"  # HOW:NUMBER:COUNT, of the processes on one host
WAYS = ("none", "cores", "numa")
_NODES = Path("/sys/devices/system/node")


def bind(told: str) -> None:
    """Has this process and its children run on its share of the host's cores (Linux)."""
    how, number, count = told.split(":")
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, share(how, int(number), int(count), allowed, numa_nodes(_NODES)))


def share(how: str, number: int, count: int, allowed: Sequence[int], nodes: Sequence[frozenset[int]]) -> list[int]:
    """The cores of process `number` of `count`, among those that are `allowed`.

    ``cores``: an equal part of them, in order. ``numa``: all of one memory node, the processes spread evenly over
    nodes; on a host of one node, all.
    """
    if how == "numa":
        groups = [sorted(node & set(allowed)) for node in nodes]
        groups = [group for group in groups if group] or [list(allowed)]
        return groups[number * len(groups) // count]
    first, last = number * len(allowed) // count, (number + 1) * len(allowed) // count
    # With fewer cores than processes, some share one.
    return list(allowed[first:last]) or [allowed[first]]


def numa_nodes(folder: Path) -> list[frozenset[int]]:
    """The cores of each memory node, as Linux lists them (``0-3,8``)."""
    nodes = []
    for path in sorted(folder.glob("node[0-9]*/cpulist"), key=lambda p: int(p.parent.name[4:])):
        cores: set[int] = set()
        for part in filter(None, path.read_text().strip().split(",")):
            low, _, high = part.partition("-")
            cores |= set(range(int(low), int(high or low) + 1))
        nodes.append(frozenset(cores))
    return nodes
