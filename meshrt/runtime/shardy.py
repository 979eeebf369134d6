"""Propagation by the C++ Shardy passes inside jaxlib, for comparison and as a way out (`config.propagator = "shardy"`).

Those passes abort the process when an invariant breaks, so they run in a child process.
"""

from __future__ import annotations

import subprocess
import sys

from meshrt import errors
from meshrt.xla import mlir

__all__ = ["propagate"]

_PIPELINE = "builtin.module(sdy-propagation-pipeline)"


def propagate(text: str, timeout_s: float = 600.0) -> str:
    """The module with every sharding decided and closed, as text with source locations.

    Raises:
      CompileError: the passes failed, crashed or took longer than `timeout_s`.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "meshrt.runtime.shardy"],
            input=text.encode(), capture_output=True, timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise errors.CompileError(f"Shardy's propagation took longer than {timeout_s:.0f} s") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        last = lines[-1] if lines else "no message"
        reason = next((line for line in reversed(lines) if "error" in line.lower()), last)
        raise errors.CompileError(
            f"Shardy's propagation passes ended with code {done.returncode}: {reason}; use config.propagator = 'meshrt'"
        )
    return done.stdout.decode()


def _child() -> None:
    sys.stdout.write(mlir.run_passes(sys.stdin.read(), _PIPELINE))


if __name__ == "__main__":
    _child()
