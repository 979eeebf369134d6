"""`jax.experimental.pjit`: the older names of `meshrt.jit` and of `meshrt.lax.with_sharding_constraint`."""

from __future__ import annotations

from meshrt.jit import jit as pjit
from meshrt.primitives.sharding import with_sharding_constraint

__all__ = ["pjit", "with_sharding_constraint"]
