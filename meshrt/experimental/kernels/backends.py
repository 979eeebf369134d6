"""Who lowers a kernel on which platform.

A back end is a function `lower(ctx, eqn, operands)` that writes the call of a kernel into the program: `ctx` is the
`LoweringContext`, `eqn` the equation of `pallas_call` (its parameters: `meshrt.experimental.kernels.call`), `operands`
what the context has written for its operands. It returns a value per result.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors

__all__ = ["Lower", "backend_for", "register_backend"]

Lower = Callable[[Any, Any, Sequence[Any]], Sequence[Any]]

_backends: dict[str, Lower] = {}

# Rooms that register a back end when they are imported, which is when a kernel is lowered for their platform.
_ROOMS = {
    "cpu": "meshrt.experimental.kernels.loop",
    "tpu": "meshrt.experimental.kernels.mosaic",
    "cuda": "meshrt.experimental.kernels.triton",
    "rocm": "meshrt.experimental.kernels.triton",
}


def register_backend(platform: str, lower: Lower) -> None:
    """Makes `lower` the back end for `platform` ("cpu", "tpu", "cuda", "rocm")."""
    _backends[platform] = lower


def backend_for(platform: str, kernel: str) -> Lower:
    """The back end for a platform.

    Raises:
      UnsupportedError: it has none; `kernel` names what was to be lowered.
    """
    found = _backends.get(platform)
    if found is None and platform in _ROOMS:
        try:
            importlib.import_module(_ROOMS[platform])
        except ModuleNotFoundError as e:
            if e.name != _ROOMS[platform]:
                raise
        found = _backends.get(platform)
    if found is None:
        raise errors.UnsupportedError(
            f"Cannot lower pallas_call on platform: {platform}. The kernel {kernel} has no back end there; "
            "interpret=True runs it as a loop of array operations on any platform"
        )
    return found
