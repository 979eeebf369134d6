"""Programs with kernels as text, for hardware that is not here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from meshrt.core.tracebacks import boundary
from meshrt.export.exporting import export
from meshrt.jit import jit

__all__ = ["lower_as_mlir", "pallas_export_experimental"]


@contextmanager
def pallas_export_experimental(dynamic_shapes: bool) -> Iterator[None]:
    """A block in which programs with kernels are exported. Arrays and grids of symbolic sizes are always taken, blocks
    have sizes that are numbers, so `dynamic_shapes` changes nothing.

    >>> with pallas_export_experimental(dynamic_shapes=True):
    ...     pass
    """
    yield


@boundary
def lower_as_mlir(
    f: Any, *args: Any, dynamic_shapes: bool = False, device: Any = None, static_argnames: Any = (),
    platforms: Sequence[str] | None = None, **kwargs: Any,
) -> str:  # fmt: skip
    """The StableHLO of a function of these arguments, with its kernels compiled as far as Mosaic or Triton.

    Args:
      f: the function.
      args, kwargs: its arguments, or ShapeDtypeStructs, whose sizes may be symbolic.
      static_argnames: arguments that are numbers of the program, as those of `jit`.
      platforms: what it is written for; TPUs by default.

    >>> import meshrt, numpy as np
    >>> from meshrt.experimental import pallas as pl
    >>> def double(x_ref, o_ref):
    ...     o_ref[...] = 2 * x_ref[...]
    >>> x = meshrt.ShapeDtypeStruct((8, 128), np.float32)
    >>> "tpu_custom_call" in lower_as_mlir(pl.pallas_call(double, x), x)
    True

    Raises:
      UnsupportedError: a kernel that the platform's back end cannot write; a message names the line.
    """
    with pallas_export_experimental(dynamic_shapes):
        jitted = jit(f, device=device, static_argnames=static_argnames)
        exported = export(jitted, platforms=["tpu"] if platforms is None else platforms)
        return exported(*args, **kwargs).mlir_module()
