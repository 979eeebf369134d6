"""The MLIR contexts into which modules are read.

MLIR keeps every attribute that a context has seen, constants too, until the context goes. So a context takes modules up
to a bound, and then the next module gets a new one; programs keep the one that they were read into.
"""

from __future__ import annotations

import threading

from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, sdy, stablehlo

from .heuristics import CONTEXT_BYTES, CONTEXT_MODULES

__all__ = ["context", "new_context", "note_read"]


class _Shared:
    """The context that modules are read into, with what was."""

    def __init__(self) -> None:
        self.context: ir.Context | None = None
        self.bytes = self.modules = 0
        self.lock = threading.Lock()


_shared = _Shared()


def context(size: int | None = None) -> ir.Context:
    """The MLIR context in which text is parsed. With a `size`, the one for a module of so many bytes more: a new one if
    enough was read into the last."""
    with _shared.lock:
        is_full = _shared.bytes >= CONTEXT_BYTES or _shared.modules >= CONTEXT_MODULES
        if _shared.context is None or (is_full and size is not None):
            _shared.context, _shared.bytes, _shared.modules = new_context(), 0, 0
        if size is not None:
            _shared.bytes += size
            _shared.modules += 1
        return _shared.context


def note_read(size: int) -> None:
    """So many bytes more were read into the last context."""
    with _shared.lock:
        _shared.bytes += size


def new_context() -> ir.Context:
    """A context that knows StableHLO, CHLO, func, sdy and what jaxlib registers."""
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    made = ir.Context()
    made.append_dialect_registry(registry)
    made.load_all_available_dialects()
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(made)
    made.enable_multithreading(False)
    made.allow_unregistered_dialects = True
    return made
