"""MLIR modules from and to text and bytecode."""

from __future__ import annotations

import io

from jaxlib.mlir import ir

from meshrt import errors

__all__ = ["bytecode", "expanded", "parse", "pretty", "run_passes"]


def parse(text: str | bytes) -> ir.Module:
    """A module from text or bytecode.

    Raises:
      CompileError: it is not a valid module; the message gives line and column.
    """
    # Start-up time: the dialects' classes take 30 ms, and a program that is found on disk needs none.
    from propagation.contexts import context

    try:
        with context(len(text)):
            return ir.Module.parse(text)
    except ir.MLIRError as e:
        raise errors.CompileError(f"not a valid MLIR module: {e}") from None


def pretty(text: str | bytes, *, debug_info: bool = False) -> str:
    """A module's text in MLIR's own formatting, with source locations if `debug_info`."""
    return str(parse(text).operation.get_asm(enable_debug_info=debug_info))


def run_passes(text: str | bytes, pipeline: str) -> str:
    """The module after a pass pipeline (`builtin.module(sdy-propagation-pipeline)`), with source locations.

    A broken invariant inside a pass aborts the process: call this in a child process.
    """
    module = parse(text)
    _run(module, pipeline)
    return str(module.operation.get_asm(enable_debug_info=True))


_EXPANSIONS = {
    "chlo": "chlo-legalize-to-stablehlo",
    "shape": "shape-legalize-to-stablehlo",
    "composite": "stablehlo-legalize-composite-to-call",
}


def expanded(module: ir.Module, *kinds: str) -> ir.Module:
    """A copy of the module in which operations of these kinds ("chlo", "shape", "composite") are written out as
    others of StableHLO."""
    from jaxlib.mlir.dialects import stablehlo  # start-up time: the dialects' classes take 30 ms

    stablehlo.register_stablehlo_passes()
    with module.context:
        copy: ir.Module = ir.Module.parse(bytecode(module))
    _run(copy, f"builtin.module(func.func({','.join(_EXPANSIONS[kind] for kind in kinds)}))")
    return copy


def _run(module: ir.Module, pipeline: str) -> None:
    from jaxlib.mlir.passmanager import PassManager  # start-up time: few programs need passes of MLIR's own

    try:
        with module.context:
            PassManager.parse(pipeline).run(module.operation)
    except ir.MLIRError as e:
        raise errors.CompileError(f"the pass pipeline {pipeline} failed: {e}") from None


def bytecode(module: ir.Module) -> bytes:
    """A module as MLIR bytecode."""
    out = io.BytesIO()
    module.operation.write_bytecode(out)
    return out.getvalue()
