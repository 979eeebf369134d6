"""Which accelerators this machine has, where the shared objects of their PJRT plugins lie, and how they are called."""

from __future__ import annotations

import importlib.util
import os
import pkgutil
from pathlib import Path
from typing import Any

__all__ = ["cuda_library", "has_nvidia_gpu", "has_tpu", "known_as", "platform_of"]


def has_nvidia_gpu() -> bool:
    """Whether this machine has a GPU of NVIDIA's, and its driver."""
    return os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/nvidia0")


def has_tpu() -> bool:
    """Whether this machine has a TPU."""
    return os.path.exists("/dev/accel0") or os.path.exists("/dev/vfio/0")


def cuda_library() -> str | None:
    """The CUDA plugin's shared object: its wheels put it in `jax_plugins.xla_cuda<version>`."""
    spec = importlib.util.find_spec("jax_plugins")
    if spec is None or spec.submodule_search_locations is None:
        return None
    names = sorted((m.name for m in pkgutil.iter_modules(spec.submodule_search_locations)), reverse=True)
    for name in names:
        if not name.startswith("xla_cuda"):
            continue
        for root in spec.submodule_search_locations:
            library = Path(root) / name / "xla_cuda_plugin.so"
            if library.exists():
                return str(library)
    return None


# The names that users and plugins have for a platform.
_ALIASES = {"gpu": "cuda", "CUDA": "cuda"}


def known_as(platform: str) -> str:
    """The name by which meshrt knows a platform: "cuda" for "gpu", as devices call it.

    >>> from meshrt.runtime import backend
    >>> backend.known_as("gpu"), backend.known_as("cpu")
    ('cuda', 'cpu')
    """
    return _ALIASES.get(platform, platform)


def platform_of(device: Any) -> str:
    """The platform whose compiler a device's programs are for: of a GPU, which says "gpu", "cuda" or "rocm".

    >>> from meshrt.runtime import backend
    >>> backend.platform_of(meshrt.devices()[0])
    'cpu'
    """
    if device.platform != "gpu":
        return known_as(device.platform)
    version = getattr(device.client, "platform_version", "")
    return "rocm" if "rocm" in version.lower() else "cuda"
