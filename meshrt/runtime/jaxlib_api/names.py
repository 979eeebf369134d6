"""What other rooms call things of jaxlib: its version, its classes, its error."""

from __future__ import annotations

from typing import Any, TypeAlias

import jaxlib._jax as _jax
import jaxlib.version

__all__ = [
    "RELEASE",
    "VERSION",
    "Buffer",
    "Client",
    "Device",
    "XlaError",
    "guard_lib",
]  # fmt: skip

VERSION: tuple[int, ...] = tuple(int(p) for p in jaxlib.version.__version__.split(".")[:3])
RELEASE = ".".join(map(str, VERSION))

Device: TypeAlias = _jax.Device
Buffer: TypeAlias = _jax.ArrayImpl
Client: TypeAlias = _jax.Client
XlaError = _jax.JaxRuntimeError
# What is done where arrays are collected, and where other threads run programs of several processes.
guard_lib: Any = _jax.guard_lib
