"""What a dialect says against a module, as an error of ours."""

from __future__ import annotations

from jaxlib.mlir import ir

from meshrt import errors

__all__ = ["verify"]


def verify(module: ir.Module, backend: str, kernel: str) -> None:
    """UnsupportedError, with every complaint and its place, if a kernel's module is not valid."""
    try:
        module.operation.verify()
    except ir.MLIRError as e:
        found = "; ".join(f"{d.message} ({d.location})" for d in e.error_diagnostics) or str(e)
        raise errors.UnsupportedError(
            f"{backend}: the kernel {kernel} is not one that this dialect takes: {found}"
        ) from None
