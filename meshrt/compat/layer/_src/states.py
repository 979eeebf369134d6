"""Settings that a program declares for itself, for `jax._src.config`: `mode = enum_state("my_mode", ["a", "b"], "a")`.

They are settings as meshrt's own: `config.update("my_mode", "b")`, `config.my_mode`, `with mode("b"):`, `mode.value`,
and an environment variable of the name in capitals initialises them. Those that enter the keys of traces have
functions traced again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors
from meshrt.config import Field, settings
from meshrt.contexts import SettingContext

__all__ = [
    "State", "bool_state", "enum_class_state", "enum_state", "float_state", "int_state", "optional_enum_state",
    "optional_string_state", "string_or_object_state", "string_state",
]  # fmt: skip


class State(SettingContext):
    """A setting of a program's own, which is a context manager too."""

    __slots__ = ()

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def _name(self) -> str:
        return self.name

    def get_local(self) -> Any:
        """The value in this thread."""
        return self.value


def _declared(
    name: str, kind: type, default: Any, help: str, *, choices: tuple[Any, ...] = (), optional: bool = False,
    check: Callable[[Any], Any] | None = None, include_in_jit_key: bool = False,
    include_in_trace_context: bool = False, update_global_hook: Callable[[Any], None] | None = None,
    update_thread_local_hook: Callable[[Any], None] | None = None,
) -> State:  # fmt: skip
    """A setting; `check` gives the value that it has when it is set to another, or raises."""
    name = name.lower()
    cache = "trace" if include_in_jit_key or include_in_trace_context else "none"
    field = Field(name, kind, default, cache, " ".join(help.split()), choices, optional, variable=name.upper())
    text = os.environ.get(field.env)
    if choices and (default if text is None else text) not in (*choices, *([None] if optional else [])):
        raise errors.ConfigError(f'Invalid value "{default if text is None else text}" for JAX flag {name}')
    if text is not None:
        field = field._replace(default=text if kind is object else field.parse(text))
    if check is not None:
        field = field._replace(default=check(field.default))
    settings.declare(field)
    if check is not None:
        settings.on_check(name, lambda _, value: check(value))
    if update_global_hook is not None:
        settings.on_update(name, update_global_hook)
        update_global_hook(field.default)
    if update_thread_local_hook is not None:
        settings.on_local(name, update_thread_local_hook)
    return State(name)


def _need(default: Any, kind: type, *, optional: bool = False) -> None:
    """TypeError for a default of another type."""
    if not isinstance(default, kind) and not (optional and default is None):
        wanted = f"{kind.__name__} or None" if optional else kind.__name__
        raise TypeError(f"Default value must be of type {wanted}, got {default} of type {type(default).__name__}")


def _passing(validator: Callable[[Any], None] | None) -> Callable[[Any], Any] | None:
    """A function that raises for what must not be, as one that gives what may."""

    def check(value: Any) -> Any:
        assert validator is not None
        validator(value)
        return value

    return None if validator is None else check


def bool_state(
    name: str, default: bool, help: str, *, upgrade: bool = False, extra_description: str = "",
    validator: Callable[[Any], None] | None = None, **more: Any,
) -> State:  # fmt: skip
    """A setting that is on or off; TypeError for a default that is neither."""
    _need(default, bool)
    return _declared(name, bool, default, help, check=_passing(validator), **more)


def enum_state(
    name: str, enum_values: Sequence[str], default: str, help: str, *,
    extra_validator: Callable[[str], None] | None = None, **more: Any,
) -> State:  # fmt: skip
    """A setting that is one of several words; TypeError for a default that is none, ValueError for another one."""
    _need(default, str)
    return _declared(name, str, default, help, choices=tuple(enum_values), check=_passing(extra_validator), **more)


def optional_enum_state(name: str, enum_values: Sequence[str], default: str | None, help: str, **more: Any) -> State:
    """A setting that is None or one of several words."""
    _need(default, str, optional=True)
    return _declared(name, str, default, help, choices=tuple(enum_values), optional=True, **more)


def enum_class_state(
    name: str, enum_class: type, default: Any, help: str, *, extra_validator: Callable[[Any], None] | None = None,
    **more: Any,
) -> State:  # fmt: skip
    """A setting that is a member of an enumeration, or the value of one."""

    def check(value: Any) -> Any:
        member = enum_class(value)
        if extra_validator is not None:
            extra_validator(member)
        return member

    return _declared(name, object, default, help, check=check, **more)


def int_state(
    name: str, default: int, help: str, *, validator: Callable[[Any], None] | None = None, **more: Any
) -> State:
    """A setting that is a whole number, or None; TypeError for a default that is none."""
    _need(default, int)
    return _declared(name, int, default, help, optional=True, check=_passing(validator), **more)


def float_state(name: str, default: float, help: str, **more: Any) -> State:
    """A setting that is a number, or None; TypeError for a default that is none."""
    _need(default, float)
    return _declared(name, float, default, help, optional=True, **more)


def string_state(name: str, default: str, help: str, **more: Any) -> State:
    """A setting that is text; TypeError for anything else."""
    _need(default, str)
    return _declared(name, object, default, help, check=_text(False), **more)


def optional_string_state(name: str, default: str | None, help: str, **more: Any) -> State:
    """A setting that is text or None; TypeError for anything else."""
    _need(default, str, optional=True)
    return _declared(name, object, default, help, check=_text(True), **more)


def _text(optional: bool) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not isinstance(value, str) and not (optional and value is None):
            wanted = "None or of type str" if optional else "of type str"
            raise TypeError(f"new string config value must be {wanted}, got {value} of type {type(value)}.")
        return value

    return check


def string_or_object_state(
    name: str, default: Any, help: str, *, validator: Callable[[Any], None] | None = None, **more: Any
) -> State:
    """A setting that is anything."""
    return _declared(name, object, default, help, check=_passing(validator), **more)
