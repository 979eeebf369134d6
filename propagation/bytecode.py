"""Reading MLIR bytecode without trusting it.

MLIR's bytecode reader ends the process on some malformed input, so bytecode is turned into text in a child process,
and the text is read here. On other input it asks for memory without end (a changed byte can announce millions of
values), so the child's is bounded. Run as a program, this file is the child: bytecode in, text out.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

from . import errors

__all__ = ["MAGIC", "to_text"]

MAGIC = b"ML\xefR"
_TIMEOUT_S, _TIMEOUT_PER_BYTE = 60.0, 5.0 / (1 << 20)  # some ten times what a quiet machine takes
_REFUSED = 3  # exit status: the reader said what is wrong
# What the child may allocate: modules take up to some 100 bytes in memory and as text for one of bytecode.
_MEMORY_BYTES, _MEMORY_PER_BYTE = 2 << 30, 200


def to_text(data: bytes, timeout_s: float | None = None) -> str:
    """The module that `data` encodes (plain bytecode or a portable artifact) as generic text with locations.

    Raises `ModuleParseError` if it encodes none, `LimitError` if reading takes longer than `timeout_s` (default:
    a minute, and five seconds for each MiB).
    """
    timeout_s = _TIMEOUT_S + _TIMEOUT_PER_BYTE * len(data) if timeout_s is None else timeout_s
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]))
    command = [sys.executable, "-m", f"{__package__}.bytecode"]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=timeout_s, check=False, env=env)
    except subprocess.TimeoutExpired:
        raise errors.LimitError(f"reading {len(data):,} bytes of bytecode took more than {timeout_s:.0f} s") from None
    if done.returncode == 0:
        return done.stdout.decode()
    if done.returncode == _REFUSED:
        raise errors.ModuleParseError(done.stderr.decode(errors="replace").strip().splitlines()[-1])
    raise errors.ModuleParseError(
        f"not a module: MLIR's reader ended with code {done.returncode} on these {len(data):,} bytes of bytecode, "
        f"for which it may take {_allowed(len(data)) >> 20:,} MiB"
    )


def _allowed(size: int) -> int:
    return _MEMORY_BYTES + _MEMORY_PER_BYTE * size


def _bound_memory(allowed: int) -> None:
    """Lets this process allocate `allowed` bytes more; no bound where the system does not say what it has."""
    status = Path("/proc/self/statm")
    if status.exists():
        taken = int(status.read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = taken + allowed if hard == resource.RLIM_INFINITY else min(taken + allowed, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _main() -> int:
    from .program import parse

    data = sys.stdin.buffer.read()
    _bound_memory(_allowed(len(data)))
    try:
        module = parse(data, trusted=True)
        text = module.operation.get_asm(enable_debug_info=True, print_generic_op_form=True)
    except errors.PropagationError as e:
        print(str(e), file=sys.stderr)
        return _REFUSED
    except MemoryError:
        print(f"not a module: reading it takes more than {_allowed(len(data)) >> 20:,} MiB", file=sys.stderr)
        return _REFUSED
    except (UnicodeDecodeError, RuntimeError, ValueError) as e:
        print(f"not a module: {' '.join(str(e).split())[:300]}", file=sys.stderr)
        return _REFUSED
    sys.stdout.buffer.write(text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(_main())
