"""`jax._src.compiler`: the function that compiles programs, which libraries put another one around."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from meshrt.numpy.names import missing as _missing
from meshrt.xla import jaxlib_api

__all__ = ["backend_compile_and_load"]

_compile = jaxlib_api.compile_and_load


def backend_compile_and_load(backend: Any, module: Any, devices: Sequence[Any], options: Any, callbacks: Any) -> Any:
    """Compiles a module with a client for devices of it."""
    return _compile(module, devices, options, callbacks)


class _Compiler(ModuleType):
    """Has programs compiled by what is assigned to `backend_compile_and_load`."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "backend_compile_and_load":
            jaxlib_api.compile_and_load = _compile if value is _own else _calls(value)


def _calls(function: Callable[..., Any]) -> Callable[..., Any]:
    def compile_and_load(module: Any, devices: Sequence[Any], options: Any, host_callbacks: Any = ()) -> Any:
        return function(devices[0].client, module, devices, options, host_callbacks)

    return compile_and_load


_own = backend_compile_and_load
__getattr__ = _missing("jax._src.compiler", __all__)
sys.modules[__name__].__class__ = _Compiler
