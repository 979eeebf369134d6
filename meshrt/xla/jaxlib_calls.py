"""Functions that programs call by name: jaxlib's kernels of linear algebra, those of its GPU plugins, users' own.

One of the doors to jaxlib's private modules. A compiler knows a name once it is registered for its platform: CPUs'
kernels when a program first names one, those of a GPU plugin when the plugin is loaded (`jaxlib_plugins`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from typing import Any

import jaxlib
import numpy as np
from jaxlib import xla_client as _xc

from meshrt import errors
from meshrt.xla.jaxlib_api import XlaError

__all__ = [
    "include_dir", "lapack_kernel", "prepare_kernels", "register_batch_partitionable", "register_gpu_calls",
    "register_target", "register_type",
]  # fmt: skip


def register_target(name: str, function: Any, platform: str, api_version: int, **more: Any) -> None:
    """Makes a function known to a platform's compiler as a custom call."""
    try:
        _xc.register_custom_call_target(name, function, platform, api_version, **more)
    except XlaError as e:
        raise errors.CompileError(f"XLA does not register {name!r} for {platform}: {e}") from None


def register_type(name: str, registration: Any, platform: str) -> None:
    """Makes a type of values known that foreign functions keep between their stages."""
    try:
        _xc.register_custom_type(name, registration, platform=platform)
    except XlaError as e:
        raise errors.CompileError(f"XLA does not register the type {name!r} for {platform}: {e}") from None


def register_batch_partitionable(name: str) -> None:
    """Tells XLA's partitioner that a custom call may be split along its leading dimensions."""
    _xc.register_custom_call_as_batch_partitionable(name)


def include_dir() -> str:
    """jaxlib's C++ headers."""
    return os.path.join(os.path.dirname(jaxlib.__file__), "include")


def _register_all(targets: Iterable[tuple[str, Any, int]], platform: str) -> None:
    """Registers (name, function, version of the interface); JAX may have done so before in the same process."""
    for name, function, api_version in targets:
        try:
            _xc.register_custom_call_target(name, function, platform=platform, api_version=api_version)
        except XlaError as e:
            if "already" not in str(e).lower():
                raise


# ----------------------------------------------------------------------------------------------------------
# CPUs: LAPACK.

_LAPACK_CALLS = ("lapack_", "_perturbed_ffi")  # what the names of jaxlib's calls of LAPACK contain


def prepare_kernels(platform: str, program: str | bytes) -> None:
    """Makes ready what a program (a module, or compiled code) calls by name on a platform.

    jaxlib's kernels know where LAPACK is only once somebody has looked for it. A program from a file calls them in a
    process in which nobody has, and jumps to address 0.
    """
    if platform == "cpu" and _calls(program, _LAPACK_CALLS):
        lapack_kernel("getrf", np.float32)
    elif platform in _GPUS and _calls(program, ("hybrid_",)):  # kernels that compute on the host in part
        _initialize_hybrid_kernels()


def _calls(program: str | bytes, names: Iterable[str]) -> bool:
    if isinstance(program, bytes):  # bytecode and compiled code hold names as they are
        return any(name.encode() in program for name in names)
    return any(name in program for name in names)


@functools.cache
def _initialize_hybrid_kernels() -> None:
    from jaxlib import gpu_solver  # start-up time: loads CUDA's libraries

    gpu_solver.initialize_hybrid_kernels()


@functools.cache
def _register_cpu_kernels() -> None:
    """Makes jaxlib's LAPACK kernels known to the CPU compiler."""
    from jaxlib import lapack  # start-up time: loads LAPACK's kernels

    for platform, targets in lapack.registrations().items():
        _register_all(targets, platform)


def lapack_kernel(name: str, dtype: Any) -> str:
    """The custom-call target of a LAPACK routine ("geqrf", ...) for a dtype, ready to be called on CPU."""
    from jaxlib import lapack  # start-up time: loads LAPACK's kernels

    _register_cpu_kernels()
    return lapack.prepare_lapack_call(f"{name}_ffi", np.dtype(dtype))


# ----------------------------------------------------------------------------------------------------------
# GPUs: what the Python half of a plugin brings (`jax_cuda13_plugin` and its kin).

_GPUS = {"cuda": "CUDA", "rocm": "ROCM"}


def register_gpu_calls(platform: str, api: Any) -> None:
    """Makes known to a GPU's compiler what the plugin brings for its programs: the calls of Python functions, the
    kernels of linear algebra, of sparse matrices, of random bits. Nothing for other platforms, and where the Python
    half of the plugin is not installed or is of another release than jaxlib (jaxlib warns then).

    Args:
      platform: "cuda", "rocm" or the name of another plugin.
      api: the C API of the loaded plugin.
    """
    known_as = _GPUS.get(platform)
    if known_as is None:
        return
    # start-up time: they load CUDA's libraries
    from jaxlib import gpu_linalg, gpu_prng, gpu_solver, gpu_sparse
    from jaxlib.plugin_support import import_from_plugin

    extension = import_from_plugin(platform, f"{platform}_plugin_extension")
    if extension is None:
        return
    # JAX's are kept where it has loaded the plugin: the shared object has one table of calls for both.
    _xc.register_custom_type_handler(known_as, functools.partial(extension.register_custom_type, api))
    _xc.register_custom_call_handler(known_as, functools.partial(extension.register_custom_call_target, api))
    for name, kind in extension.ffi_types().items():
        register_type(name, kind, known_as)
    _register_all(((name, call, 1) for name, call in extension.ffi_handlers().items()), known_as)
    for module in (gpu_linalg, gpu_prng, gpu_solver, gpu_sparse):
        _register_all(module.registrations().get(known_as, ()), known_as)
