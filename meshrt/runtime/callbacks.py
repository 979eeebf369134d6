"""What a program hands to a Python function that it calls back, and what it takes from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import config, dtypes, errors
from meshrt.core.types import ShapedArray
from meshrt.runtime import backend
from meshrt.runtime.sub_byte import WIDER
from meshrt.runtime.transfer import from_numpy
from meshrt.sharding.named import SingleDeviceSharding
from meshrt.xla.host_memory import aligned_empty

__all__ = ["HostCallback", "as_arrays", "checked_results", "local_cpu"]


def local_cpu() -> Any:
    """The device on which callbacks get their operands.

    Raises:
      BackendError: this process has no CPU device.
    """
    return backend.local_devices(backend="cpu")[0]


class HostCallback:
    """One call in a program: what it calls, and the types of what it takes and gives.

    Args:
      function: takes Arrays, returns a sequence of results.
      name: what the user called and where, for messages.
      in_avals, out_avals: types of operands and results, without the token.
      takes_token: the first operand is a token, which is the first result as well.
    """

    __slots__ = ("enable_x64", "function", "in_avals", "name", "out_avals", "takes_token")

    def __init__(
        self,
        function: Callable[..., Sequence[Any]],
        name: str,
        in_avals: Sequence[ShapedArray],
        out_avals: Sequence[ShapedArray],
        takes_token: bool,
    ):
        self.function, self.name, self.takes_token = function, name, takes_token
        self.in_avals, self.out_avals = tuple(in_avals), tuple(out_avals)
        self.enable_x64 = config.settings.enable_x64

    def run(self, values: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Calls the function on what a device hands over, with nothing of the caller's context around it."""
        token, values = (values[:1], values[1:]) if self.takes_token else ((), values)
        device = local_cpu()
        with config.override(default_device=device, enable_x64=self.enable_x64):
            results = self.function(*as_arrays(values, self.in_avals, device))
            return (*token, *checked_results(results, self.out_avals))

    def nothing(self, values: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Results for a program that goes on only to come to its end."""
        zeros = [np.zeros(a.physical().shape, a.physical().dtype) for a in self.out_avals]
        return (*(values[:1] if self.takes_token else ()), *zeros)


def as_arrays(values: Sequence[Any], avals: Sequence[ShapedArray], device: Any) -> list[Any]:
    """What a callback gets: Arrays on a CPU device.

    They are copies, as the memory of a running program is its own, and lie such that a device takes them as they are:
    copying them again would take one of XLA's threads, and the devices that wait for this one may hold all of them.
    Types below a byte stay NumPy's for the same reason: making an Array of them takes a program.
    """
    sharding = SingleDeviceSharding(device)
    found: list[Any] = []
    for value, aval in zip(values, avals):
        if aval.dtype in WIDER:
            found.append(np.array(value))
            continue
        host = aligned_empty(value.shape, value.dtype)
        host[...] = value
        key_type = aval.dtype if isinstance(aval.dtype, dtypes.ExtendedDType) else None
        found.append(from_numpy(host, sharding, key_type=key_type, may_alias=True))
    return found


def checked_results(results: Sequence[Any], avals: Sequence[ShapedArray]) -> list[np.ndarray]:
    """What a callback returned as NumPy arrays of the promised types; NumPy's 64-bit defaults become 32-bit ones.

    Raises:
      ArgumentValueError: too many or too few results, or one of another shape or dtype.
    """
    if len(results) != len(avals):
        raise errors.ArgumentValueError(
            f"Mismatched number of outputs from callback. Expected: {len(avals)}, Actual: {len(results)}. Return what "
            "result_shape_dtypes says"
        )
    found = []
    for i, (result, aval) in enumerate(zip(results, avals)):
        value, want = np.asarray(result), aval.physical()
        if value.dtype != want.dtype and dtypes.canonicalize_dtype(value.dtype) == want.dtype:
            value = value.astype(want.dtype)
        if value.shape != want.shape:
            raise errors.ArgumentValueError(
                f"Incorrect output shape for return value #{i}: Expected: {want.shape}, Actual: {value.shape}. Make "
                "the callback return that shape, or change result_shape_dtypes"
            )
        if value.dtype != want.dtype:
            raise errors.ArgumentValueError(
                f"Incorrect output dtype for return value #{i}: Expected: {want.dtype}, Actual: {value.dtype}. "
                "Convert it in the callback, or change result_shape_dtypes"
            )
        found.append(np.require(value, requirements="C"))
    return found
