"""The child process of `propagation.bytecode`: a module as bytecode in, as text out.

Run as a program, so that MLIR's reader of bytecode, which ends the process on some malformed input, ends this one.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from . import errors
from .bytecode import CHECK, REFUSED, allowed_memory
from .parsing import parse


def _bound_memory(allowed: int) -> None:
    """Lets this process allocate `allowed` bytes more; no bound where the system does not say what it has."""
    status = Path("/proc/self/statm")
    if status.exists():
        taken = int(status.read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = taken + allowed if hard == resource.RLIM_INFINITY else min(taken + allowed, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _main() -> int:
    data = sys.stdin.buffer.read()
    _bound_memory(allowed_memory(len(data)))
    try:
        module = parse(data, trusted=True)
        wanted = CHECK not in sys.argv[1:]
        text = str(module.operation.get_asm(enable_debug_info=True, print_generic_op_form=True)) if wanted else ""
    except errors.PropagationError as e:
        print(str(e), file=sys.stderr)
        return REFUSED
    except MemoryError:
        print(f"not a module: reading it takes more than {allowed_memory(len(data)) >> 20:,} MiB", file=sys.stderr)
        return REFUSED
    except (UnicodeDecodeError, RuntimeError, ValueError) as e:
        print(f"not a module: {' '.join(str(e).split())[:300]}", file=sys.stderr)
        return REFUSED
    sys.stdout.buffer.write(text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(_main())
