"""From the import of a package to the end of the first training step, in a process of its own.

python -m benchmarks.start meshrt|jax [MODEL MESH [DIRECTORY]]    (models and meshes as JSON; prints seconds)

With a directory, compiled programs are kept in it; without a model it is the import alone.
"""

from __future__ import annotations

import importlib
import json
import sys
import time

START = time.perf_counter()


def main(package: str, model: str | None = None, mesh: str = "{}", directory: str | None = None) -> float:
    """Seconds of import, and with a model of initialisation and the first step, its result awaited."""
    frontend = importlib.import_module(package)
    for name in ("numpy", "sharding"):
        importlib.import_module(f"{package}.{name}")
    if model is None:
        return time.perf_counter() - START
    if directory is not None:
        frontend.config.update("jax_compilation_cache_dir", directory)
        frontend.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        frontend.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    from benchmarks.tasks import Tasks

    Tasks(frontend).first_step(json.loads(model), json.loads(mesh))
    return time.perf_counter() - START


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
