"""The coordination service's process, run by path: service.py without the rest of meshrt.

Workers start only when the service listens, so each start and restart waits for this process. Importing the library
would be most of that time, and none of it is used: the package is entered here without running its ``__init__``.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path


def _main() -> None:
    package = types.ModuleType("meshrt")
    package.__path__ = [str(Path(__file__).resolve().parents[1])]
    sys.modules["meshrt"] = package
    errors = importlib.import_module("meshrt.errors")
    try:
        importlib.import_module("meshrt.launch.service").main()
    except errors.DistributedError as error:
        sys.exit(f"meshrt: the coordination service: {error}")


if __name__ == "__main__":
    _main()
