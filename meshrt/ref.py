"""References to arrays that programs write to: see docs/refs.md.

>>> import meshrt, meshrt.numpy as jnp
>>> total = new_ref(jnp.zeros(()))
>>> @meshrt.jit
... def add(x):
...     total[...] += x
>>> add(1.0); add(2.0)
>>> freeze(total)
Array(3., dtype=float32)
"""

from __future__ import annotations

from meshrt.core.references import AbstractRef
from meshrt.primitives.references import (
    empty_ref,
    free_ref,
    freeze,
    new_ref,
)
from meshrt.primitives.references import ref_addupdate as addupdate
from meshrt.primitives.references import ref_get as get
from meshrt.primitives.references import ref_set as set
from meshrt.primitives.references import ref_swap as swap
from meshrt.runtime.reference import Ref

__all__ = ["AbstractRef", "Ref", "addupdate", "empty_ref", "free_ref", "freeze", "get", "new_ref", "set", "swap"]
