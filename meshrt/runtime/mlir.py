"""MLIR modules: contexts that know the dialects in use, and modules from and to text and bytecode."""

from __future__ import annotations

import functools
import io
import threading

from jaxlib.mlir import ir

from meshrt import errors

__all__ = ["bytecode", "mlir_context", "new_mlir_context", "parse", "pretty", "run_passes"]


@functools.cache
def _registry() -> ir.DialectRegistry:
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext

    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    return registry


class _Contexts(threading.local):
    context: ir.Context | None = None
    uses: int = 0


_contexts = _Contexts()
# A context keeps every constant it has seen, so it is replaced now and then.
_CONTEXT_USES = 64


def new_mlir_context() -> ir.Context:
    """A context that knows StableHLO, CHLO, Shardy and the dialects of jaxlib."""
    from jaxlib.mlir.dialects import chlo, sdy, stablehlo

    context = ir.Context()
    context.append_dialect_registry(_registry())
    context.enable_multithreading(False)
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    context.load_all_available_dialects()
    return context


def mlir_context() -> ir.Context:
    """This thread's context, renewed after a number of uses; modules keep the one they were made in alive."""
    if _contexts.context is None or _contexts.uses >= _CONTEXT_USES:
        _contexts.context, _contexts.uses = new_mlir_context(), 0
    _contexts.uses += 1
    return _contexts.context


def parse(text: str | bytes) -> ir.Module:
    """A module from text or bytecode.

    Raises:
      CompileError: it is not a valid module; the message gives line and column.
    """
    try:
        with mlir_context():
            return ir.Module.parse(text)
    except ir.MLIRError as e:
        raise errors.CompileError(f"not a valid MLIR module: {e}") from None


def pretty(text: str | bytes, *, debug_info: bool = False) -> str:
    """A module's text in MLIR's own formatting, with source locations if `debug_info`."""
    return parse(text).operation.get_asm(enable_debug_info=debug_info)


def run_passes(text: str | bytes, pipeline: str) -> str:
    """The module after a pass pipeline (`builtin.module(sdy-propagation-pipeline)`), with source locations.

    A broken invariant inside a pass aborts the process: call this in a child process.
    """
    from jaxlib.mlir.passmanager import PassManager

    module = parse(text)
    try:
        with module.context:
            PassManager.parse(pipeline).run(module.operation)
    except ir.MLIRError as e:
        raise errors.CompileError(f"the pass pipeline {pipeline} failed: {e}") from None
    return module.operation.get_asm(enable_debug_info=True)


def bytecode(module: ir.Module) -> bytes:
    """A module as MLIR bytecode."""
    out = io.BytesIO()
    module.operation.write_bytecode(out)
    return out.getvalue()
