"""Which processor of a device computes (`jax.experimental.compute_on`).

    with compute_on("device_host"):     # beside the accelerator, by the host's processor
        y = jnp.sin(x) * 2

says so of every operation inside, in derivatives too. It is for the compilers of TPUs and GPUs: on a CPU, which is its
own host, the same program runs as if nothing had been said. What computes is no matter of where values lie: for that
see `meshrt.device_put` and `meshrt.memory.Space`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from meshrt import config, errors, tree_util
from meshrt.core.naming import wraps
from meshrt.core.source import computed_on
from meshrt.jit import jit
from meshrt.lowering.processors import is_compute_type
from meshrt.primitives.device_put import device_put

__all__ = ["compute_on", "compute_on2"]


@contextmanager
def compute_on(compute_type: str) -> Iterator[None]:
    """Operations inside of the `with` are computed by another processor of each device; also a decorator.

    >>> with compute_on("device_host"):
    ...     y = jnp.sin(1.0) * 2

    `compute_type` is "device_host", "device" (against an outer one), "tpu_sparsecore" or "gpu_stream:N".

    Raises:
      ArgumentTypeError: `compute_type` is no string. ArgumentValueError: an unknown one.
    """
    _check(compute_type)
    with config.override(compute_type=compute_type), computed_on(compute_type):
        yield


def compute_on2(
    f: Callable[..., Any] | None = None,
    *,
    compute_type: str,
    out_memory_spaces: Any,
    compiler_options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """`f` as one call that another processor of each device computes, with its results put into memory spaces.

    >>> @compute_on2(compute_type="device_host", out_memory_spaces=meshrt.memory.Space.Device)
    ... def f(x):
    ...     return x * 2

    Args:
      f: a function of pytrees, by position; without it the result is a decorator.
      compute_type: see `compute_on`.
      out_memory_spaces: a `meshrt.memory.Space`, or a tree of them that is a prefix of the result.
      compiler_options: for the compiler of that processor; not implemented.

    Raises:
      ArgumentTypeError, ArgumentValueError: see `compute_on`. UnsupportedError: `compiler_options` are given.
    """
    _check(compute_type)
    if compiler_options is not None:
        raise errors.UnsupportedError(
            f"compute_on2(compiler_options={dict(compiler_options)!r}) is not implemented: one compiler makes the "
            "whole program; leave them out, or give them to jit(..., compiler_options=...)"
        )
    if f is None:
        return functools.partial(compute_on2, compute_type=compute_type, out_memory_spaces=out_memory_spaces)
    called = jit(f)

    @wraps(f)
    def wrapped(*args: Any) -> Any:
        with compute_on(compute_type):
            out = called(*args)
        spaces = tree_util.broadcast_prefix(out_memory_spaces, out)
        leaves, tree = tree_util.tree_flatten(out)
        return tree.unflatten([device_put(x, space) for x, space in zip(leaves, spaces)])

    return wrapped


def _check(compute_type: Any) -> None:
    if not isinstance(compute_type, str):
        raise errors.ArgumentTypeError(
            f"`compute_on`'s compute_type argument must be a string. Got {compute_type!r} of type "
            f"{type(compute_type).__name__}"
        )
    if not is_compute_type(compute_type):
        raise errors.ArgumentValueError(
            f"Invalid compute type {compute_type}. Current supported values are `device_host`, `device`, "
            "`tpu_sparsecore`, and `gpu_stream:#`."
        )
