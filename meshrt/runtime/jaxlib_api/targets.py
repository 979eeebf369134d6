"""Functions that compiled programs call by name: registered ones, and LAPACK's."""

from __future__ import annotations

import functools
import os
from typing import Any

import jaxlib._jax as _jax
import jaxlib.version
import numpy as np
from jaxlib import xla_client as _xc

from meshrt import errors
from meshrt.runtime.jaxlib_api.names import XlaError

__all__ = [
    "approximate_top_k_size", "include_dir", "lapack_kernel", "prepare_cpu_kernels", "register_batch_partitionable",
    "register_target", "register_type",
]  # fmt: skip


def approximate_top_k_size(size: int, rank: int, k: int, recall_target: float, size_override: int) -> int:
    """How many candidates among `size` elements XLA's approximate top-k keeps for `recall_target` of k to be right."""
    return int(_jax.approx_top_k_reduction_output_size(size, rank, k, recall_target, False, size_override)[0])


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
    return os.path.join(os.path.dirname(jaxlib.version.__file__), "include")


@functools.cache
def _register_cpu_kernels() -> None:
    """Makes jaxlib's LAPACK kernels known to the CPU compiler; JAX may have done so before."""
    from jaxlib import lapack  # start-up time: loads LAPACK's kernels

    for platform, targets in lapack.registrations().items():
        for name, value, api_version in targets:
            try:
                _xc.register_custom_call_target(name, value, platform=platform, api_version=api_version)
            except XlaError as e:
                if "already" not in str(e).lower():
                    raise


def prepare_cpu_kernels(program: str | bytes) -> None:
    """Makes ready what a program (a module, or compiled code) calls by name on CPUs.

    jaxlib's kernels know where LAPACK is only once somebody has looked for it. A program from a file calls them in a
    process in which nobody has, and jumps to address 0.
    """
    # How the names of these kernels begin, or end. Bytecode and compiled code hold names as they are.
    if b"lapack_" in program if isinstance(program, bytes) else "lapack_" in program:
        _register_cpu_kernels()
        _find_lapack()
    elif b"_perturbed_ffi" in program if isinstance(program, bytes) else "_perturbed_ffi" in program:
        _register_cpu_kernels()


@functools.cache
def _find_lapack() -> None:
    from jaxlib import lapack  # start-up time: loads LAPACK's kernels

    lapack.prepare_lapack_call("getrf_ffi", np.dtype(np.float32))


def lapack_kernel(name: str, dtype: Any) -> str:
    """The custom-call target of a LAPACK routine ("geqrf", ...) for a dtype, ready to be called on CPU."""
    from jaxlib import lapack  # start-up time: loads LAPACK's kernels

    _register_cpu_kernels()
    return lapack.prepare_lapack_call(f"{name}_ffi", np.dtype(dtype))
