"""Who listens to events, for `jax._src.monitoring`."""

from __future__ import annotations

from typing import Any

from meshrt import monitoring

__all__ = ["get_event_duration_listeners", "get_event_listeners"]


def get_event_listeners() -> list[Any]:
    """The functions that hear of events."""
    return list(monitoring._events.all)


def get_event_duration_listeners() -> list[Any]:
    """The functions that hear how long something took."""
    return list(monitoring._durations.all)
