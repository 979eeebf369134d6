"""What a bug report says of the installation, and older names for the processes of a job."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import warnings
from typing import Any

import numpy as np

from meshrt import version
from meshrt.runtime import backend
from meshrt.xla.jaxlib_api import VERSION

__all__ = ["host_count", "host_id", "host_ids", "print_environment_info"]

_OURS = ("MESHRT_", "JAX_", "XLA_")


def print_environment_info(return_string: bool = False) -> str | None:
    """Prints versions, devices and the environment variables that matter: what a bug report should hold.

    Args:
      return_string: return the text instead.
    """
    first = backend.devices()[0]
    lines = [
        f"meshrt: {version.__version__}",
        f"jaxlib: {'.'.join(map(str, VERSION))}",
        f"numpy:  {np.__version__}",
        f"python: {' '.join(sys.version.split())}",
        f"device info: {first.device_kind}-{backend.device_count()}, {backend.local_device_count()} local devices",
        f"process_count: {backend.process_count()}",
        f"platform: {platform.uname()}",
        *(f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(_OURS)),
        *_nvidia(),
    ]
    text = "\n".join(lines)
    if return_string:
        return text
    print(text)
    return None


def _nvidia() -> list[str]:
    """What the driver's own tool says; nothing where there is none, or no driver for it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    done = subprocess.run([tool], capture_output=True, text=True, check=False)
    return ["", "$ nvidia-smi", done.stdout] if done.returncode == 0 else []


def _renamed(old: str, new: str) -> Any:
    warnings.warn(f"meshrt.{old} has been renamed to meshrt.{new}", DeprecationWarning, stacklevel=3)
    return getattr(backend, new)


def host_id(backend: str | None = None) -> int:
    """The older name of :func:`meshrt.process_index`."""
    return _renamed("host_id", "process_index")(backend)


def host_count(backend: str | None = None) -> int:
    """The older name of :func:`meshrt.process_count`."""
    return _renamed("host_count", "process_count")(backend)


def host_ids(backend: str | None = None) -> list[int]:
    """The older name of :func:`meshrt.process_indices`."""
    return _renamed("host_ids", "process_indices")(backend)
