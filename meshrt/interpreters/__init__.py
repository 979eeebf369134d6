"""Rules of primitives that libraries declare, in JAX's conventions. Names are ``jax.interpreters``'.

    ad        derivatives: `primitive_jvps`, `primitive_transposes`, `defjvp`, `deflinear`, `Zero`
    batching  vmap: `primitive_batchers`, `defvectorized`
    mlir      programs: `register_lowering`, `lower_fun`

Each translates between JAX's form of a rule and the one that a record holds (`meshrt.core.primitive`).
"""

from __future__ import annotations

import importlib
from types import ModuleType

from meshrt import errors as _errors

__all__ = ["ad", "batching", "mlir", "partial_eval", "xla"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    if name.startswith("__"):
        raise AttributeError(name)
    raise _errors.MissingFunctionError(f"meshrt.interpreters.{name} is not implemented; there is {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
