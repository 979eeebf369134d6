"""What `importlib.metadata` says of the package `jax` where meshrt stands for it."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

from meshrt.compat.modules import VERSION

__all__ = ["JaxDistribution"]


class JaxDistribution(importlib.metadata.Distribution):
    """The distribution `jax`, in the version whose interface meshrt follows. It has no files of its own."""

    def read_text(self, filename: str) -> str | None:
        """The text of a file of the distribution's metadata, None for those that it does not have."""
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: jax\nVersion: {VERSION}\nSummary: meshrt under the name of JAX\n"

    def locate_file(self, path: Any) -> Path:
        """Where a file of the package would lie: beside meshrt's."""
        return Path(__file__).resolve().parents[2].joinpath(path)
