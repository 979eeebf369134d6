"""The judge of these tests; it belongs to the product, see `propagation.fuzz`."""

from __future__ import annotations

from propagation.fuzz.oracle import Oracle, passes, run_batch

__all__ = ["Oracle", "passes", "run_batch"]
