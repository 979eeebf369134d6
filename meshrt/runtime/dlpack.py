"""DLPack, the exchange of arrays between libraries without copying (https://dmlc.github.io/dlpack), and CUDA's
array interface."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from meshrt import dtypes, errors
from meshrt.runtime import backend
from meshrt.runtime.signature import Signature
from meshrt.xla import jaxlib_api
from meshrt.xla.host_memory import HostMemory, is_aligned

__all__ = ["array_interface", "capsule_of", "device_of", "gpu_buffer", "host_view", "is_supported_dtype"]

_CPU, _CUDA, _CUDA_HOST, _ROCM = 1, 2, 3, 10
_GPUS = {_CUDA: "cuda", _ROCM: "rocm"}
# Those whose codes DLPack has, of NumPy and beyond.
_SUPPORTED = {
    np.dtype(t)
    for t in (
        np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.float16, np.float32,
        np.float64, np.complex64, np.complex128, np.bool_, ml_dtypes.bfloat16,
    )
}  # fmt: skip
# What NumPy cannot read itself: (DLPack's code, bits) -> dtype.
_BEYOND_NUMPY = {(4, 16): np.dtype(ml_dtypes.bfloat16)}


def is_supported_dtype(dtype: Any) -> bool:
    """Whether arrays of this dtype can be exchanged by DLPack.

    >>> meshrt.dlpack.is_supported_dtype(np.dtype("float32"))
    True
    """
    return np.dtype(dtype) in _SUPPORTED


# ---------------------------------------------------------------------------------------------------------------------
# Out


def device_of(sig: Signature) -> tuple[int, int]:
    """(kind, number) of the device that holds an array, by DLPack's numbers.

    Raises:
      ExchangeError: the array is on several devices, or on one that DLPack has no number for.
    """
    if sig.sharding.num_devices != 1:
        raise errors.ExchangeError(
            f"__dlpack__ only supported for unsharded arrays: this one is on {sig.sharding.num_devices} devices. "
            "Exchange its parts, x.addressable_data(i), or gather it with device_put first"
        )
    device = sig.sharding.device_assignment[0]
    if device.platform == "cpu":
        return _CPU, 0
    if device.platform in ("gpu", "cuda", "rocm"):
        pinned = sig.sharding.memory_kind == "pinned_host"
        gpu = _ROCM if backend.platform_of(device) == "rocm" else _CUDA
        return (_CUDA_HOST if pinned else gpu), device.local_hardware_id
    raise errors.ExchangeError(
        f"__dlpack__ device only supported for CPU and GPU, got platform: {device.platform}; move the array to a CPU "
        "first"
    )


def capsule_of(buffer: Any, sig: Signature, stream: Any, dl_device: Any, copy: bool | None) -> Any:
    """A DLPack capsule of an array's buffer; it keeps the memory alive.

    Raises:
      ExchangeError: several devices, another device than the array's asked for, or a dtype that DLPack has not.
    """
    if sig.sharding.num_devices != 1:
        raise errors.ExchangeError(
            "to_dlpack can only pack a dlpack tensor from an array on a singular device, but an array with a Sharding "
            f"over {sig.sharding.num_devices} devices was provided. Exchange its parts, x.addressable_data(i), or "
            "gather it with device_put first"
        )
    if sig.aval.is_key or sig.physical.dtype not in _SUPPORTED:
        raise errors.ExchangeError(
            f"DLPack has no code for the dtype {sig.aval.dtype} of this array ({sig.aval.short()}); convert it "
            "with .astype, or of keys exchange meshrt.random.key_data(keys)"
        )
    here = device_of(sig)
    if dl_device is not None and (int(dl_device[0]), int(dl_device[1])) != here:
        raise errors.ExchangeError(
            f"__dlpack__(dl_device={tuple(map(int, dl_device))}) asks for another device than {here}, where the array "
            "lies; move it there with meshrt.device_put first"
        )
    if stream is not None and here[0] == _CPU:
        raise errors.ExchangeError(f"__dlpack__(stream={stream!r}): only GPUs have streams; leave stream out")
    if copy:
        (buffer,) = jaxlib_api.copy_to_devices([buffer], [sig.sharding.device_assignment], [sig.native])
    buffer.block_until_ready()
    return jaxlib_api.to_dlpack(buffer, stream)


def array_interface(buffer: Any, sig: Signature) -> dict[str, Any]:
    """The value of `__cuda_array_interface__`. AttributeError where there is none."""
    device = sig.sharding.device_assignment[0]
    if sig.sharding.num_devices != 1 or device.platform not in ("gpu", "cuda"):
        what = device.platform if sig.sharding.num_devices == 1 else f"{sig.sharding.num_devices} devices"
        raise errors.MissingFunctionError(
            f"__cuda_array_interface__ is only defined for GPU buffers, of arrays on one GPU; this one is on {what}. "
            "Use __dlpack__, or numpy.asarray"
        )
    buffer.block_until_ready()
    return {
        "shape": sig.physical.shape, "typestr": sig.physical.dtype.str, "strides": None, "version": 2,
        "data": (jaxlib_api.buffer_address(buffer), False),
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# In


def gpu_buffer(external: Any) -> tuple[Any, Any] | None:
    """The buffer, and its device, of an object that lies in a GPU's memory, shared with it; None of others.

    Raises:
      UnsupportedError: this process does not use that GPU. ExchangeError: jaxlib refuses what the object hands over.
    """
    if not hasattr(external, "__dlpack__") or not hasattr(external, "__dlpack_device__"):
        return None
    kind, number = map(int, external.__dlpack_device__())
    if kind not in _GPUS:
        return None
    platform = _GPUS[kind]
    devices = backend.local_devices(backend=platform) if backend.is_here(platform) else ()
    device = next((d for d in devices if d.local_hardware_id == number), None)
    if device is None:
        raise errors.UnsupportedError(
            f"from_dlpack of an array on the {platform} device {number}, which meshrt does not use in this process: "
            f"its devices are {backend.local_devices()}; copy it to the host in its own library first"
        )
    try:
        return jaxlib_api.from_dlpack(external, device), device
    except (jaxlib_api.XlaError, BufferError, RuntimeError, TypeError) as e:
        raise errors.ExchangeError(
            f"from_dlpack cannot take over a {type(external).__name__} of dtype {getattr(external, 'dtype', '?')}: {e}"
        ) from e


def host_view(external: Any) -> tuple[np.ndarray, bool]:
    """What an object that speaks DLPack has in host memory, not copied, and whether CPU devices can use that memory.

    Raises:
      ArgumentTypeError: it does not speak DLPack. UnsupportedError: it is not in host memory. ExchangeError: it
        refuses.
    """
    if not hasattr(external, "__dlpack__") or not hasattr(external, "__dlpack_device__"):
        raise errors.ArgumentTypeError(
            "The array passed to from_dlpack must have __dlpack__ and __dlpack_device__ methods. Got a value of type "
            f"{type(external).__name__}; use meshrt.numpy.asarray for other values"
        )
    kind, number = external.__dlpack_device__()
    if kind not in (_CPU, _CUDA_HOST):
        raise errors.UnsupportedError(
            f"from_dlpack of an array on device ({int(kind)}, {int(number)}) is not implemented, only of arrays in "
            "host memory and on GPUs; copy it to the host in its own library first"
        )
    try:
        value = np.from_dlpack(external)
    except (BufferError, RuntimeError, TypeError) as e:
        beyond = _beyond_numpy(external)
        if beyond is None:
            raise errors.ExchangeError(
                f"from_dlpack cannot take over a {type(external).__name__} of dtype {getattr(external, 'dtype', '?')}: "
                f"{e}"
            ) from e
        value = beyond
    usable = bool(value.flags.c_contiguous and is_aligned(value) and value.size)
    return value, usable and dtypes.canonicalize_dtype(value.dtype) == value.dtype


def _beyond_numpy(external: Any) -> np.ndarray | None:
    """The array if its dtype is one of ours that NumPy's reader does not know."""
    if getattr(external, "dtype", None) is None:
        return None
    dtype = next((d for d in _BEYOND_NUMPY.values() if str(external.dtype).endswith(d.name)), None)
    return None if dtype is None else np.asarray(HostMemory(external.__dlpack__(), dtype.itemsize)).view(dtype)
