"""`jax._src.deprecations`: what is warned of, and what has been made an error before its time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from meshrt import errors

__all__ = [
    "accelerate", "accelerate_getattr_deprecation", "deprecation_getattr", "is_accelerated", "is_accelerated_attribute",
    "register", "unregister", "warn",
]  # fmt: skip

# Whether a deprecation, by its name, is an error by now. JAX's own, which libraries ask about, are all known.
_is_error = dict.fromkeys(
    (
        "jax-array-numpy-dtype", "jax-array-positional-args", "jax-nn-one-hot-float-input",
        "jax-numpy-astype-complex-to-real", "jax-pallas-call-mgpu", "jax-pallas-mgpu-shapes-types",
    ),
    False,
)  # fmt: skip


def register(deprecation_id: str) -> None:
    """Makes a name known, as one that is warned of."""
    _is_error[deprecation_id] = False


def unregister(deprecation_id: str) -> None:
    """Forgets a name. ValueError if it is not known."""
    is_accelerated(deprecation_id)
    del _is_error[deprecation_id]


def accelerate(deprecation_id: str) -> None:
    """Makes what would be warned of an error. ValueError if the name is not known."""
    is_accelerated(deprecation_id)
    _is_error[deprecation_id] = True


def is_accelerated(deprecation_id: str) -> bool:
    """Whether it is an error by now. ValueError if the name is not known."""
    if deprecation_id not in _is_error:
        raise errors.ArgumentValueError(f"{deprecation_id!r} is not registered as the name of a deprecation")
    return _is_error[deprecation_id]


def warn(deprecation_id: str, message: str, stacklevel: int, *, error_class: type[Exception] = ValueError) -> None:
    """Warns, or raises an error of the class."""
    if is_accelerated(deprecation_id):
        raise error_class(message)
    warnings.warn(message, DeprecationWarning, stacklevel + 1)


# Attributes of modules: their names, each with what is said of it and its value, None where it is an error by now.
Deprecated = dict[str, tuple[str, Any]]


def deprecation_getattr(module: str, deprecations: Deprecated) -> Callable[[str], Any]:
    """A `__getattr__` of a module some of whose attributes are deprecated."""

    def __getattr__(name: str) -> Any:
        said, value = deprecations.get(name, (f"module {module!r} has no attribute {name!r}", None))
        if value is None:
            raise AttributeError(said)
        warnings.warn(said, DeprecationWarning, 2)
        return value

    return __getattr__


def accelerate_getattr_deprecation(module: ModuleType, name: str) -> None:
    """Makes a deprecated attribute of a module (listed in its `_deprecations`) an error."""
    module._deprecations[name] = (module._deprecations[name][0], None)


def is_accelerated_attribute(module: ModuleType, name: str) -> bool:
    """Whether a deprecated attribute of a module is an error by now. KeyError if it is not deprecated."""
    return module._deprecations[name][1] is None
