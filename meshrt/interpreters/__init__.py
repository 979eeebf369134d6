"""Rules of primitives that libraries declare, in JAX's conventions. Names are ``jax.interpreters``'.

    ad        derivatives: `primitive_jvps`, `primitive_transposes`, `defjvp`, `deflinear`, `Zero`
    batching  vmap: `primitive_batchers`, `defvectorized`
    mlir      programs: `register_lowering`, `lower_fun`

Each translates between JAX's form of a rule and the one that a record holds (`meshrt.core.primitive`).
"""

from __future__ import annotations

from meshrt.numpy.names import submodules as _submodules

__all__ = ["ad", "batching", "mlir", "partial_eval", "xla"]

__getattr__ = _submodules(__name__, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
