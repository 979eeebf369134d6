"""Transfer guards: which transfers of data between the host and devices, and between devices, are logged or forbidden.

Explicit transfers are those that a program asks for by `device_put`, `device_get`, `copy_to_host_async` or
`from_dlpack`; all others are implicit: a NumPy value or a number among the arguments of a compiled function, an
argument that has to move to where the function runs, `numpy.asarray(x)`. What shares memory is no transfer, so none
goes from a CPU device to the host.

| level | implicit transfers | explicit ones |
| --- | --- | --- |
| `allow` | allowed | allowed |
| `log` | logged | allowed |
| `disallow` | forbidden | allowed |
| `log_explicit` | logged | logged |
| `disallow_explicit` | forbidden | forbidden |
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

from meshrt import errors
from meshrt.config import GUARDED, Field, settings
from meshrt.xla import jaxlib_api

__all__ = ["check", "explicitly"]

_log = logging.getLogger("meshrt.transfer")

# Whether a guard was ever set in this process: read where values move, on the path of every call that moves some.
active = False

_FIX = {
    "host_to_device": "Put the value on its devices with meshrt.device_put before",
    "device_to_device": "Move the array with meshrt.device_put before",
    "device_to_host": "Fetch it with meshrt.device_get",
}


class _Explicit(threading.local):
    now = False


_explicit = _Explicit()


@contextlib.contextmanager
def explicitly() -> Iterator[None]:
    """Transfers in the block are asked for."""
    saved, _explicit.now = _explicit.now, True
    try:
        yield
    finally:
        _explicit.now = saved


def check(direction: str, aval: Any, sharding: Any, explicit: bool) -> None:
    """What the guards of this thread say of a transfer about to happen (call it where `active`).

    Raises:
      TransferGuardError: they forbid it.
    """
    level = settings.read(f"transfer_guard_{direction}") or settings.read("transfer_guard") or "allow"
    if level == "allow" or ((explicit or _explicit.now) and not level.endswith("_explicit")):
        return
    name = direction.replace("_", "-")
    what = f"{name} transfer: aval={aval}, {'sharding' if direction == 'device_to_host' else 'dst_sharding'}={sharding}"
    if level.startswith("log"):
        _log.warning("%s", what)
        return
    advice = "" if level.endswith("_explicit") else f"{_FIX[direction]}, or allow"
    raise errors.TransferGuardError(
        f"Disallowed {what}. {advice or 'Allow'} it with meshrt.transfer_guard_{direction}('allow')"
    )


def _noticed(field: Field | None, value: Any) -> Any:
    global active
    if value not in (None, "allow"):
        active = True
    return value


def _spread(level: Any) -> None:
    """The general guard is that of every direction, until one is set by itself."""
    for direction in GUARDED:
        settings.update(f"transfer_guard_{direction}", level)


for _name in ("transfer_guard", *(f"transfer_guard_{d}" for d in GUARDED)):
    settings.on_check(_name, _noticed)
    _noticed(None, settings.read(_name))  # what the environment says
settings.on_update("transfer_guard", _spread)


# --- guards that jaxlib itself watches


def _collection_guard(state: Any) -> Any:
    """Sets the level in a state of jaxlib's."""

    def set_level(value: str | None) -> None:
        levels = jaxlib_api.guard_lib.GarbageCollectionGuardLevel
        state().garbage_collect_array = None if value is None else getattr(levels, value.upper())

    return set_level


def _thread_guard(value: bool | None) -> None:
    jaxlib_api.guard_lib.update_thread_guard_global_state(bool(settings.thread_guard if value is None else value))


settings.on_update("array_garbage_collection_guard", _collection_guard(jaxlib_api.guard_lib.global_state))
settings.on_local("array_garbage_collection_guard", _collection_guard(jaxlib_api.guard_lib.thread_local_state))
settings.on_update("thread_guard", _thread_guard)
settings.on_local("thread_guard", _thread_guard)
for _name in ("array_garbage_collection_guard", "thread_guard"):
    if _given := settings.read(_name):  # what the environment says
        settings.update(_name, _given)
