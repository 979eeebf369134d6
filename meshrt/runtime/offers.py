"""Compiled code that a file brought along, found by the content of the program that it was compiled from.

A program that is about to be compiled looks here first. What it is called and what its results are called makes no
other code, so calls of one function under several names find the same.
"""

from __future__ import annotations

import re
import weakref
from typing import Protocol

from meshrt.runtime import compile_cache, events, jaxlib_api

__all__ = ["Offer", "code_for", "key_of", "offer"]

_NAMES = re.compile(r'^module @\S+|(?:, )?jax\.result_info = "(?:[^"\\]|\\.)*"', re.MULTILINE)


class Program(Protocol):
    """What of a program decides its code."""

    module: str | bytes
    num_devices: int
    mode: str
    shardy: bool
    xla_options: tuple[tuple[str, object], ...]
    ynnpack: bool


class Offer:
    """Code for a key; it stands for as long as this object is kept."""

    __slots__ = ("__weakref__", "code")

    def __init__(self, code: bytes):
        self.code = code


_offers: weakref.WeakValueDictionary[str, Offer] = weakref.WeakValueDictionary()


def offer(key: str, code: bytes) -> Offer:
    """Offers code to programs of this key, for as long as the result is kept."""
    made = _offers[key] = Offer(code)
    return made


def code_for(program: Program, kind: str) -> bytes | None:
    """The code that is offered to a program for devices of this kind."""
    found = _offers.get(key_of(program, kind)) if _offers else None
    if found is None:
        return None
    events.record("offered", program=program)
    return found.code


def key_of(program: Program, kind: str) -> str:
    """What code must be of to be a program's: its module, without names and lines, its options, its devices."""
    content = compile_cache.content(program.module)
    if isinstance(content, str):
        content = _NAMES.sub("", content)
    decided = jaxlib_api.options_fingerprint(program.mode, program.shardy, program.xla_options, program.ynnpack)
    return compile_cache.fingerprint(content, str(program.num_devices), decided, kind)
