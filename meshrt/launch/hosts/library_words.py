"""What gRPC's C++ prints of strangers, told in the launcher's own lines.

It writes to the descriptor of stderr, and has no hook: of connections that fail before there is a call, and with bytes
that came from whoever connected. On a terminal these could be control characters, or pass for lines of somebody else.
So while a coordinator runs, that descriptor is a pipe whose lines are shown as what they are, and seldom; Python's own
`sys.stderr`, and the launcher's, go where it led before. A process that is aborted reads no pipe any more: where it was
then is told by faulthandler.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator

from meshrt.launch.hosts.messages import plain
from meshrt.launch.output import Console

__all__ = ["apart", "told"]

_STDERR = 2
_READ = 1 << 16
_LINE = 4000  # bytes; a stranger's goodbye may be longer
_WORDS = 300  # characters
_HEAD = re.compile(r"[IWEF]\d{4} [\d:.]+ +\d+ [\w./+-]+:\d+\] ")
_TLS = "OPENSSL_internal:"


@contextlib.contextmanager
def apart(console: Console, tell: Callable[[str], None]) -> Iterator[None]:
    """Has what is printed on the descriptor of stderr, but by Python, told by `tell`, line by line. Where `sys.stderr`
    is something else nothing is done."""
    former = sys.stderr
    if not isinstance(former, io.TextIOWrapper) or _number(former) != _STDERR:
        yield
        return
    former.flush()
    own = os.fdopen(os.dup(_STDERR), "wb")
    read_end, write_end = os.pipe()
    os.dup2(write_end, _STDERR)
    os.close(write_end)
    faulty = faulthandler.is_enabled()
    faulthandler.enable(own)
    sys.stderr = io.TextIOWrapper(own, former.encoding, former.errors, line_buffering=True)
    console.move(former.buffer, own)
    reader = threading.Thread(target=_read, args=(read_end, tell), name="meshrt-grpc-words", daemon=True)
    reader.start()
    try:
        yield
    finally:
        os.dup2(own.fileno(), _STDERR)  # the last writer's end of the pipe
        reader.join(1.0)
        console.move(own, former.buffer)
        faulthandler.disable()
        if faulty:
            faulthandler.enable(former)
        moved, sys.stderr = sys.stderr, former
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            moved.close()


def _number(stream: io.TextIOWrapper) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def _read(read_end: int, tell: Callable[[str], None]) -> None:
    rest = b""
    with open(read_end, "rb", buffering=0) as source:
        while data := source.read(_READ):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                _tell(line, tell)
            rest = rest[:_LINE]
    _tell(rest, tell)


def _tell(line: bytes, tell: Callable[[str], None]) -> None:
    if words := told(line[:_LINE].decode("utf-8", "replace").strip()):
        tell(words)


def told(line: str) -> str:
    """A line of gRPC's in words that may stand on a terminal; empty if there is nothing in it."""
    text = _HEAD.sub("", line, count=1)
    if text.startswith("Handshake failed") and _TLS in text:
        return f"somebody was not let in, as the TLS handshake failed: {plain(text.rpartition(_TLS)[2], _WORDS)}"
    return f"gRPC says: {plain(text, _WORDS)}" if text else ""
