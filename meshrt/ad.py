"""Where `vjp(f, *args)[1].with_refs(*targets)` delivers cotangents: see docs/refs.md.

>>> import meshrt, meshrt.numpy as jnp
>>> total = meshrt.new_ref(jnp.zeros(2))
>>> _, pull = meshrt.vjp(lambda w, x: (w * x).sum(), jnp.ones(2), jnp.array([3.0, 4.0]))
>>> for _ in range(2): out = pull.with_refs(total, DontWant())(1.0)
>>> out, total[...]
((GradRef(), DidntWant()), Array([6., 8.], dtype=float32))
"""

from __future__ import annotations

from meshrt.primitives.gradient_refs import DidntWant, DontWant, GradRef, GradValue

__all__ = ["DidntWant", "DontWant", "GradRef", "GradValue"]
