"""`jax._src.config`: settings as attributes and as contexts, and settings of a program's own."""

from meshrt import config, contexts
from meshrt.compat.layer._src.flags import bool_flag, float_flag, int_flag, string_flag
from meshrt.compat.layer._src.states import (
    State,
    bool_state,
    enum_class_state,
    enum_state,
    float_state,
    int_state,
    optional_enum_state,
    optional_string_state,
    string_or_object_state,
    string_state,
)

__all__ = [
    "State", "bool_flag", "bool_state", "enum_class_state", "enum_state", "float_flag", "float_state", "int_flag",
    "int_state", "optional_enum_state", "optional_string_state", "string_flag", "string_or_object_state",
    "string_state", "trace_context",
]  # fmt: skip

_CONTEXTS = frozenset(contexts.__all__)


def trace_context() -> object:
    """What traces depend on: a key for caches of them."""
    return config.settings.trace_key()


def __getattr__(name: str) -> object:
    if name == "config":
        return config
    if name in config.FIELDS and name not in _CONTEXTS:
        return State(name)
    return getattr(contexts if name in _CONTEXTS else config, name)
