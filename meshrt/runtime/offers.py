"""Compiled code that a file brought along, found by the content of the program that it was compiled from.

A program that is about to be compiled looks here first. What it is called and what its results are called makes no
other code, so calls of one function under several names find the same.
"""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from meshrt.runtime import backend, compile_cache, events
from meshrt.xla import jaxlib_api, jaxlib_plugins

__all__ = ["Offer", "bound", "key_of", "offer"]

_log = logging.getLogger("meshrt.compile")

_NAMES = re.compile(r'^module @\S+|(?:, )?jax\.result_info = "(?:[^"\\]|\\.)*"', re.MULTILINE)


class Program(Protocol):
    """A program with what decides its code."""

    fingerprint: str
    module: str | bytes
    num_devices: int
    mode: str
    shardy: bool
    xla_options: tuple[tuple[str, object], ...]
    ynnpack: str


class Offer:
    """Code for a key; it stands for as long as this object is kept."""

    __slots__ = ("__weakref__", "code", "key")

    def __init__(self, key: str, code: bytes):
        self.key, self.code = key, code


# Several may stand for one key, as several files may hold code for one program.
_offers: weakref.WeakSet[Offer] = weakref.WeakSet()
_lock = threading.Lock()


def offer(key: str, code: bytes) -> Offer:
    """Offers code to programs of this key, for as long as the result is kept."""
    made = Offer(key, code)
    with _lock:
        _offers.add(made)
    return made


def bound(program: Program, kind: str, devices: Sequence[Any], options: Any) -> tuple[Any, bytes] | None:
    """A program bound to devices of this kind from code that is offered to it, and that code; None where none is that
    the runtime takes."""
    if not _offers:
        return None
    key = key_of(program, kind)
    with _lock:
        standing = list(_offers)
    for code in {o.code for o in standing if o.key == key}:
        try:
            found = jaxlib_plugins.deserialize(backend.platform_of(devices[0]), code, devices, options)
        except jaxlib_api.XlaError as e:
            _log.warning(
                "code that a file brought along for program %s is refused by the runtime (%s); it is compiled here "
                "unless another file has some",
                program.fingerprint[:12],
                e,
            )
            continue
        events.record("offered", program=program)
        events.record("rebind", program=program, devices=devices)
        return found, code
    return None


def key_of(program: Program, kind: str) -> str:
    """What code must be of to be a program's: its module, without names and lines, its options, its devices."""
    content = compile_cache.content(program.module)
    if isinstance(content, str):
        content = _NAMES.sub("", content)
    decided = jaxlib_api.options_fingerprint(program.mode, program.shardy, program.xla_options, program.ynnpack)
    return compile_cache.fingerprint(content, str(program.num_devices), decided, kind)
