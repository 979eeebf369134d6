"""Processes of this host as the system sees them: a silent one may be computing under the interpreter's lock."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

__all__ = ["cpu_seconds", "where"]


@functools.cache
def where() -> str:
    """Names the running system in which this process's number means something; empty where there is no /proc."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def cpu_seconds(about: Mapping[str, Any]) -> float | None:
    """How long a process (`pid`, `where`) has computed; None of one that has ended or runs on another system."""
    if not where() or about.get("where") != where():
        return None
    try:
        with open(f"/proc/{int(about['pid'])}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except (OSError, KeyError, TypeError, ValueError):
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
