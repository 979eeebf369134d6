"""From a launched program to arrays: handlers of its result buffers, and the search for NaNs and infinities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import config, dtypes, errors
from meshrt.runtime import jaxlib_api
from meshrt.runtime.array import Array, Signature, arrays
from meshrt.runtime.executable import LoadedExecutable
from meshrt.runtime.signature import handlers

__all__ = ["execute", "runner"]

Run = Callable[[Sequence[Any]], list[Any]]


def execute(executable: LoadedExecutable, buffers: Sequence[Any], signatures: Sequence[Signature]) -> list[Array]:
    """Launches a program on laid-out buffers; the results, of these signatures, may not be computed yet.

    Raises:
      ExecutionError: the runtime refused the launch.
    """
    try:
        return arrays(executable.runner(handlers(signatures))(buffers), signatures)
    except jaxlib_api.XlaError as e:
        raise errors.ExecutionError(f"the program could not be run: {e}") from e


def runner(executable: LoadedExecutable, signatures: Sequence[Signature]) -> Run:
    """`run(buffers) -> buffers` for results of these signatures, with everything that can be prepared done.

    With the setting `debug_nans` or `debug_infs` it waits for the results and looks at them.
    """
    run = executable.runner(handlers(signatures))
    if config.settings.debug_nans or config.settings.debug_infs:
        return _checking(run, signatures, config.settings.debug_nans, config.settings.debug_infs)
    return run


def _checking(run: Run, signatures: Sequence[Signature], nans: bool, infs: bool) -> Run:
    floating = [i for i, s in enumerate(signatures) if dtypes.issubdtype(s.dtype, np.inexact)]

    def run_and_check(buffers: Sequence[Any]) -> list[Any]:
        out = run(buffers)
        for i in floating:
            array = Array(out[i], signatures[i])
            for shard in range(len(signatures[i].local_devices)):
                value = array._shard_numpy(shard)
                found = "a NaN" if nans and np.isnan(value).any() else None
                found = found or ("an infinity" if infs and np.isinf(value).any() else None)
                if found:
                    raise errors.NonFiniteError(
                        f"a program returned {found} in result {i} of type {array.aval} (settings debug_nans, "
                        "debug_infs). Run "
                        "the function with meshrt.config.override(disable_jit=True) to find the operation that made it."
                    )
        return out

    return run_and_check
