"""Settings that a program reads once, for `jax._src.config`."""

from __future__ import annotations

from typing import Any

__all__ = ["Flag", "bool_flag", "float_flag", "int_flag", "string_flag"]


class Flag:
    """A setting of a program's own: `flag.value`."""

    def __init__(self, name: str, value: Any):
        self.name, self.value = name, value


def string_flag(name: str, default: str, *_: object, **__: object) -> Flag:
    """A flag that holds text."""
    return Flag(name, default)


def int_flag(name: str, default: int, *_: object, **__: object) -> Flag:
    """A flag that holds a whole number."""
    return Flag(name, default)


def bool_flag(name: str, default: bool, *_: object, **__: object) -> Flag:
    """A flag that is on or off."""
    return Flag(name, default)


def float_flag(name: str, default: float, *_: object, **__: object) -> Flag:
    """A flag that holds a number."""
    return Flag(name, default)
