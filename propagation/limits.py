"""What is checked of MLIR text before MLIR's parser sees it, and how much of anything is read at all.

The C++ parser and the destructors of what it makes recurse over nested text, so deep nesting overflows the stack and
ends the process; it also allocates what a result number or a literal asks for. None of this happens in a program that
a compiler wrote, so the limits here are far above those, and far below what breaks.
"""

from __future__ import annotations

import re

import numpy as np

from . import errors

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_OPERATIONS", "check_text"]

MAX_BYTES = 1 << 30  # of a module's text or bytecode
MAX_DEPTH = 128  # of brackets, of regions, of calls, of `-` before an affine expression
MAX_ALIAS_DEPTH = 512  # of aliases that refer to aliases, as locations do
MAX_TOKEN = 1 << 14  # characters of one literal or name; parsing a number takes the square of its length
MAX_RANK = 256
MAX_OPERATIONS = 10_000_000  # with every call inlined
# Functions that call others twice, level upon level, are short to write and endless to work on: above this many
# operations with calls inlined, there may be so many for each that is written.
MAX_INLINED = 50_000
MAX_GROWTH = 1000

_QUOTED = re.compile(rb'"(?:[^"\\\n]|\\.)*"|//[^\n]*')
_STRING = re.compile(rb'"(?:[^"\\\n]|\\.)*"')
_HIGH = re.compile(rb"\\[89A-Fa-f][0-9A-Fa-f]|[\x80-\xff]")
_ESCAPE = re.compile(rb"\\\\|\\([0-9A-Fa-f]{2})")
_COUNT = re.compile(rb"(?:%[\w.$-]+\s*:|#)\s*\d{7}")
_ALIAS = re.compile(rb"([#!][\w.$-]+)\s*=")
_REFERENCE = re.compile(rb"[#!][\w.$-]+")


def _class_of(code: int) -> int:
    char = chr(code)
    if char.isdigit():
        return ord("9")
    return ord("a") if char.isalpha() or char in "_." else code


_STEPS = bytes(1 if c in b"([{<" else 255 if c in b")]}>" else 0 for c in range(256))
_CLASSES = bytes(_class_of(c) if c < 128 else c for c in range(256))
_WORDS = bytes(ord("a") if _CLASSES[c] in b"9a" else ord(" ") for c in range(256))


def check_text(text: str | bytes) -> None:
    """Raises `LimitError`, or `ModuleParseError`, for text that MLIR's parser should not be given."""
    try:
        data = text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError:
        raise errors.ModuleParseError("the module's text has lone surrogates, which UTF-8 cannot say") from None
    if len(data) > MAX_BYTES:
        raise errors.LimitError(f"the module has {len(data):,} bytes; at most {MAX_BYTES:,} are read")
    if _HIGH.search(data):
        _check_names(data)
    bare = _without_strings(data)
    _check_depth(bare)
    if b"a" * (MAX_TOKEN + 1) in bare.translate(_WORDS):
        raise errors.LimitError(f"a number or name has more than {MAX_TOKEN:,} characters")
    classes = bare.translate(_CLASSES, b" \t\r\n")
    if b"-" * MAX_DEPTH in classes:
        raise errors.LimitError(f"more than {MAX_DEPTH} minus signs follow each other")
    if b"#9999999" in classes or b":9999999" in classes:
        found = _COUNT.search(bare)
        if found:
            raise errors.LimitError("a result number or count has more than six digits", _place(bare, found.start()))
    if bare.count(b"#") + bare.count(b"!") > MAX_ALIAS_DEPTH:
        _check_aliases(bare)


def _check_names(data: bytes) -> None:
    """Raises `ModuleParseError` for strings that stand where names do and are not UTF-8: MLIR's bindings end the
    process when they make Python text of some of them. Values may hold any bytes."""
    for found in _STRING.finditer(data):
        text = found[0]
        if not _HIGH.search(text):
            continue
        try:
            _ESCAPE.sub(lambda m: bytes([int(m[1] or b"5C", 16)]), text).decode()
        except UnicodeDecodeError:
            before = data[max(found.start() - 64, 0) : found.start()].rstrip()[-1:]
            after = data[found.end() : found.end() + 64].lstrip()
            if before in (b"{", b",", b"@") or after[:1] in (b"=", b"(") or _is_location(data, found.start(), after):
                raise errors.ModuleParseError("a name is not UTF-8", _place(data, found.start())) from None


def _is_location(data: bytes, start: int, after: bytes) -> bool:
    """Whether a string is a file (a line follows) or a name (alone in brackets) of a location."""
    return bool(re.match(rb":\s*\d", after)) or data[max(start - 64, 0) : start].rstrip().endswith(b"loc(")


def _without_strings(data: bytes) -> bytes:
    """`data` without the contents of its strings, and without its comments."""
    if b"\\" in data or b"//" in data:
        return _QUOTED.sub(b'""', data)
    return b'"'.join(data.split(b'"')[::2])


def _check_depth(bare: bytes) -> None:
    steps = np.frombuffer(bare.replace(b"->", b"  ").translate(_STEPS), np.int8)
    places = np.flatnonzero(steps)
    depth = np.cumsum(steps[places], dtype=np.int32)
    if depth.size and depth.max() > MAX_DEPTH:
        where = int(places[np.argmax(depth > MAX_DEPTH)])
        raise errors.LimitError(f"brackets are nested more than {MAX_DEPTH} deep", _place(bare, where))


def _place(data: bytes, offset: int) -> str:
    line = data.count(b"\n", 0, offset) + 1
    return f"-:{line}"


def _check_aliases(bare: bytes) -> None:
    """What an alias stands for is nested as deeply as aliases refer to aliases."""
    found = [*_ALIAS.finditer(bare)]
    if len(found) <= MAX_ALIAS_DEPTH:
        return
    ends = [m.start() for m in found[1:]] + [len(bare)]
    names = {m[1] for m in found}
    # What stands behind the last alias before the operations is taken for part of it; that adds one level at most.
    refers = {m[1]: names.intersection(_REFERENCE.findall(bare, m.end(), end)) for m, end in zip(found, ends)}
    depth: dict[bytes, int] = {}
    for start in refers:
        stack = [] if start in depth else [(start, iter(refers[start]))]
        active = {start}
        while stack:
            name, rest = stack[-1]
            inner = next((n for n in rest if n not in depth and n not in active), None)
            if inner is None:
                stack.pop()
                active.discard(name)
                depth[name] = 1 + max((depth.get(n, 0) for n in refers[name]), default=0)
            elif len(stack) <= MAX_ALIAS_DEPTH:
                stack.append((inner, iter(refers[inner])))
                active.add(inner)
            if len(stack) > MAX_ALIAS_DEPTH or depth.get(name, 0) > MAX_ALIAS_DEPTH:
                raise errors.LimitError(f"aliases refer to each other more than {MAX_ALIAS_DEPTH} deep")
