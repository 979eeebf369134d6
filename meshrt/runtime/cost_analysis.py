"""What a program computes, as its compiler estimates it."""

from __future__ import annotations

from typing import Any

__all__ = ["CostAnalysis"]


class CostAnalysis(dict[str, float]):
    """Estimates per device by name: `flops`, `bytes accessed`, ...

    The list of one such dict that JAX once gave is indexed by 0, so `analysis[0]` is the analysis itself.
    """

    def __missing__(self, key: Any) -> CostAnalysis:
        if key == 0 and not isinstance(key, str):
            return self
        raise KeyError(key)
