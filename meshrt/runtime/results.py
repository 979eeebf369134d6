"""From a launched program to arrays: handlers of its result buffers, and the search for NaNs and infinities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import config, dtypes, errors
from meshrt.core.source import capture
from meshrt.runtime import process_groups
from meshrt.runtime.array import Array, Signature, arrays
from meshrt.runtime.executable import LoadedExecutable
from meshrt.runtime.signature import handlers
from meshrt.xla import jaxlib_api

__all__ = ["Explain", "NonFinite", "execute", "find_nonfinite", "runner"]

Run = Callable[[Sequence[Any]], list[Any]]


def execute(executable: LoadedExecutable, buffers: Sequence[Any], signatures: Sequence[Signature]) -> list[Array]:
    """Launches a program on laid-out buffers; the results, of these signatures, may not be computed yet.

    Raises:
      ExecutionError: the runtime refused the launch.
    """
    try:
        return arrays(executable.runner(handlers(signatures))(buffers), signatures)
    except jaxlib_api.XlaError as e:
        error = process_groups.explained(e, "the program could not be run")
        raise error from error.__cause__


class NonFinite(str):
    """What was found in a value: "nan" or "inf"."""

    __slots__ = ()

    @classmethod
    def of(cls, value: np.ndarray, nans: bool, infs: bool) -> NonFinite | None:
        """What `value` has of what is looked for."""
        if nans and np.isnan(value).any():
            return cls("nan")
        return cls("inf") if infs and np.isinf(value).any() else None


def find_nonfinite(array: Array, nans: bool, infs: bool) -> NonFinite | None:
    """What the parts of `array` on this process's devices have of what is looked for; None for whole numbers."""
    if not dtypes.issubdtype(array.dtype, np.inexact):
        return None
    for shard in range(len(array._sig.local_devices)):
        found = NonFinite.of(array._shard_numpy(shard), nans, infs)
        if found is not None:
            return found
    return None


def require_finite(results: list[Array], operation: str) -> list[Array]:
    """The results of an operation that no program ran. NonFiniteError where settings ask for one."""
    nans, infs = config.settings.debug_nans, config.settings.debug_infs
    for array in results if nans or infs else ():
        what = find_nonfinite(array, nans, infs)
        if what is not None:
            raise errors.NonFiniteError(
                f"invalid value ({what}) encountered in {operation} at {capture()}, in its result of type "
                f"{array.aval.short()} (settings debug_nans, debug_infs)"
            )
    return results


# Makes the error for a result that is not finite, from the buffers of the call, what was found, the number of the
# result and its signature.
Explain = Callable[[Sequence[Any], NonFinite, int, Signature], errors.NonFiniteError]


def runner(executable: LoadedExecutable, signatures: Sequence[Signature], explain: Explain | None = None) -> Run:
    """`run(buffers) -> buffers` for results of these signatures, with everything that can be prepared done.

    With `explain` it waits for the results and looks for what the settings `debug_nans` and `debug_infs` ask for.
    """
    run = executable.runner(handlers(signatures))
    if explain is None:
        return run
    return _checking(run, signatures, config.settings.debug_nans, config.settings.debug_infs, explain)


def _checking(run: Run, signatures: Sequence[Signature], nans: bool, infs: bool, explain: Explain) -> Run:
    floating = [i for i, s in enumerate(signatures) if dtypes.issubdtype(s.dtype, np.inexact)]

    def run_and_check(buffers: Sequence[Any]) -> list[Any]:
        out = run(buffers)
        for i in floating:
            found = find_nonfinite(Array(out[i], signatures[i]), nans, infs)
            if found is not None:
                raise explain(buffers, found, i, signatures[i])
        return out

    return run_and_check
