"""`jax._src.config`: settings as attributes, and as contexts."""

from typing import Any

from meshrt import config, contexts

_CONTEXTS = frozenset(contexts.__all__)


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


def __getattr__(name: str) -> object:
    return getattr(contexts if name in _CONTEXTS else config, name)
