"""The training text: the source files of this Python's standard library, as bytes."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from meshrt.errors import ConfigError

__all__ = ["standard_library", "windows"]


def standard_library() -> np.ndarray:
    """All `*.py` files directly in the standard library's folder, in order of name, as one uint8 array."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = b"".join(file.read_bytes() for file in sorted(folder.glob("*.py")))
    if not text:
        raise ConfigError(f"{folder} has no Python sources to train on; this Python's library is not on disk as text")
    return np.frombuffer(text, np.uint8)


def windows(text: np.ndarray, batch: int, length: int, seed: int) -> Iterator[np.ndarray]:
    """Endless random windows of the text: int32[batch, length]. The same seed gives the same windows everywhere."""
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(0, len(text) - length, batch)
        yield text[starts[:, None] + np.arange(length)].astype(np.int32)
