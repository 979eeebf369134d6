"""Looks at its host, and prints what it finds as one line of JSON. Run by path; standard library only.

Its stdin is one line of JSON that says what to look at, then lines ``t``, each of which it answers by the time, so that
clocks can be compared, then another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("meshrt", "jaxlib", "numpy", "grpcio")
_TELLING = ("MESHRT_", "JAX_", "XLA_", "NCCL_", "CUDA_VISIBLE", "OMP_NUM", "TPU_", "LD_LIBRARY_PATH")
_PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY")
_SECRET = ("SECRET", "TOKEN", "PASSWORD", "KEY")
_DEVICES = """\
import collections, json, meshrt
kinds = collections.Counter(f"{d.platform}" for d in meshrt.local_devices())
print("devices", json.dumps(kinds))
"""
_DEVICES_S = 120.0
_REACH_S = 5.0


def main() -> None:
    """Prints the facts, and answers for the clock."""
    told = json.loads(sys.stdin.readline() or "{}")
    for line in sys.stdin:
        if not line.startswith("t"):
            break
        print(json.dumps({"now": time.time()}), flush=True)
    print(json.dumps(look(told)), flush=True)


def look(told: dict[str, Any]) -> dict[str, Any]:
    """What there is to know; a fact that cannot be found is ``{"error": why}``."""
    facts: dict[str, Callable[[], Any]] = {
        "name": socket.gethostname,
        "python": platform.python_version,
        "packages": _packages,
        "devices": _devices if told.get("devices", True) else dict,
        "accelerators": lambda: (
            sorted(p.name for p in Path("/dev").glob("nvidia[0-9]*"))
            + sorted(p.name for p in Path("/dev").glob("accel[0-9]*"))
        ),
        "cores": lambda: len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": _memory,
        "open_files": lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "temporary": lambda: {"folder": tempfile.gettempdir(), "free": shutil.disk_usage(tempfile.gettempdir()).free},
        "port": _port,
        "own_name": lambda: socket.gethostbyname(socket.gethostname()),
        "environment": _environment,
        "proxies": lambda: sorted(name for name in _PROXIES if os.environ.get(name)),
        "reach": lambda: _reach(told.get("reach")),
    }
    return {name: _found(find) for name, find in facts.items()}


def _found(find: Callable[[], Any]) -> Any:
    try:
        return find()
    except (OSError, ValueError, subprocess.SubprocessError) as e:
        return {"error": str(e)}


def _packages() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in _PACKAGES:
        found[name] = None
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _devices() -> Any:
    """In a process of its own, since whatever is wrong with devices tends to end the process."""
    done = subprocess.run(
        [sys.executable, "-c", _DEVICES], capture_output=True, text=True, timeout=_DEVICES_S, stdin=subprocess.DEVNULL,
        check=False,
    )  # fmt: skip
    for line in done.stdout.splitlines():
        if line.startswith("devices "):
            return json.loads(line.removeprefix("devices "))
    why = [line for line in done.stderr.splitlines() if line.strip()]
    return {"error": why[-1][:300] if why else f"the process ended with {done.returncode}"}


def _memory() -> dict[str, int]:
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return {name: 1024 * int(lines[key].split()[0]) for name, key in (("all", "MemTotal"), ("free", "MemAvailable"))}


def _port() -> bool:
    """Whether a process can listen, and another one reach it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        socket.create_connection(listener.getsockname(), _REACH_S).close()
    return True


def _environment() -> dict[str, str]:
    told = {n: v for n, v in os.environ.items() if n.startswith(_TELLING)}
    return {n: "********" if any(word in n for word in _SECRET) else v for n, v in sorted(told.items())}


def _reach(address: list[Any] | None) -> float | None:
    """Seconds to connect to whoever examines; None if there is nobody to reach."""
    if address is None:
        return None
    began = time.monotonic()
    socket.create_connection((address[0], address[1]), _REACH_S).close()
    return time.monotonic() - began


if __name__ == "__main__":
    main()
