"""`jax._src.deprecations`: what is warned of, by name, and what has been made an error before its time."""

from __future__ import annotations

import warnings

from meshrt import errors

__all__ = ["accelerate", "is_accelerated", "register", "unregister", "warn"]

_accelerated: dict[str, bool] = {}


def register(deprecation_id: str) -> None:
    """Makes a name known."""
    _accelerated.setdefault(deprecation_id, False)


def unregister(deprecation_id: str) -> None:
    """Forgets a name. ValueError if it is not known."""
    _known(deprecation_id)
    del _accelerated[deprecation_id]


def accelerate(deprecation_id: str) -> None:
    """Makes what would be warned of an error."""
    _known(deprecation_id)
    _accelerated[deprecation_id] = True


def is_accelerated(deprecation_id: str) -> bool:
    """Whether it is an error by now."""
    return _known(deprecation_id)


def _known(deprecation_id: str) -> bool:
    if deprecation_id not in _accelerated:
        raise errors.ArgumentValueError(f"deprecation_id={deprecation_id!r} not registered")
    return _accelerated[deprecation_id]


def warn(deprecation_id: str, message: str, stacklevel: int) -> None:
    """Warns, or raises ValueError."""
    if is_accelerated(deprecation_id):
        raise errors.ArgumentValueError(message)
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel + 1)
