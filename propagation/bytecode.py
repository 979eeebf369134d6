"""Reading MLIR bytecode without trusting it.

MLIR's bytecode reader ends the process on some malformed input, so bytecode is turned into text in a child process,
and the text is read here. On other input it asks for memory without end (a changed byte can announce millions of
values), so the child's is bounded.
"""

from __future__ import annotations

import os
import subprocess
import sys

from . import errors
from .heuristics import (
    BYTECODE_MEMORY_BYTES,
    BYTECODE_MEMORY_PER_BYTE,
    BYTECODE_SECONDS,
    BYTECODE_SECONDS_PER_BYTE,
)

__all__ = ["CHECK", "MAGIC", "REFUSED", "allowed_memory", "check", "to_text"]

MAGIC = b"ML\xefR"
CHECK = "check"  # argument of the child: no text is wanted
REFUSED = 3  # exit status: the reader said what is wrong


def to_text(data: bytes, timeout_s: float | None = None) -> str:
    """The module that `data` encodes (plain bytecode or a portable artifact) as generic text with locations.

    Raises `ModuleParseError` if it encodes none, `LimitError` if reading takes longer than `timeout_s` (default:
    a minute, and five seconds for each MiB).
    """
    return _child(data, timeout_s)


def check(data: bytes, timeout_s: float | None = None) -> None:
    """Whether `data` encodes a module, of which nothing is written: quicker than `to_text`, with its errors."""
    _child(data, timeout_s, CHECK)


def _child(data: bytes, timeout_s: float | None, *arguments: str) -> str:
    timeout_s = BYTECODE_SECONDS + BYTECODE_SECONDS_PER_BYTE * len(data) if timeout_s is None else timeout_s
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]))
    command = [sys.executable, "-m", f"{__package__}.bytecode_child", *arguments]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=timeout_s, check=False, env=env)
    except subprocess.TimeoutExpired:
        raise errors.LimitError(f"reading {len(data):,} bytes of bytecode took more than {timeout_s:.0f} s") from None
    if done.returncode == 0:
        return done.stdout.decode()
    if done.returncode == REFUSED:
        raise errors.ModuleParseError(done.stderr.decode(errors="replace").strip().splitlines()[-1])
    raise errors.ModuleParseError(
        f"not a module: MLIR's reader ended with code {done.returncode} on these {len(data):,} bytes of bytecode, "
        f"for which it may take {allowed_memory(len(data)) >> 20:,} MiB"
    )


def allowed_memory(size: int) -> int:
    """Bytes that the child may allocate to read `size` bytes."""
    return BYTECODE_MEMORY_BYTES + BYTECODE_MEMORY_PER_BYTE * size
