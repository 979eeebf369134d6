"""Functions of other languages in programs, by XLA's foreign function interface (`jax.ffi`)."""

from __future__ import annotations

import ctypes
from typing import Any

from meshrt.primitives.ffi import ffi_call
from meshrt.runtime import jaxlib_api

__all__ = ["ffi_call", "include_dir", "pycapsule", "register_ffi_target"]


def register_ffi_target(name: str, fn: Any, platform: str = "cpu", api_version: int = 1, **kwargs: Any) -> None:
    """Makes a function known to the compiler of a platform, once per process and name.

    `fn` is a PyCapsule that holds its address (`pycapsule`), or a dictionary of them by stage ("execute", ...);
    `api_version` is 1 for the typed interface, 0 for the one before. Raises CompileError where XLA refuses it, as for a
    name that is taken by another function.
    """
    jaxlib_api.register_target(name, fn, platform, api_version, **kwargs)


def pycapsule(funcptr: Any) -> Any:
    """A PyCapsule around the address of a function that was loaded with ctypes."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return make(ctypes.cast(funcptr, ctypes.c_void_p), None, ctypes.c_void_p(0))


def include_dir() -> str:
    """The folder with the headers that functions are compiled with."""
    return jaxlib_api.include_dir()
