"""What `jax._src.lax.parallel` has beside `jax.lax`."""

from __future__ import annotations

from typing import Any

from meshrt.primitives.collective_functions import all_gather

__all__ = ["all_gather_reduced"]


def all_gather_reduced(x: Any, axis_name: Any, *, axis: int = 0, tiled: bool = False) -> Any:
    """`all_gather` whose result all devices have, and whose cotangents are partial sums."""
    return all_gather(x, axis_name, axis=axis, tiled=tiled, to="reduced")
