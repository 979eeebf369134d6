"""How long a job waits for one of its processes, in seconds. By itself, as the launcher knows these and no roster."""

from __future__ import annotations

__all__ = ["LEAST_SILENT_S", "REPORT_S", "SILENT_S", "STALL_S"]

# Silence after which a process is lost; waiting in a program after which it is named, and after which it is lost.
SILENT_S, REPORT_S, STALL_S = 8.0, 6.0, 300.0
LEAST_SILENT_S = 2.0  # members say something once a second, the door every other one
