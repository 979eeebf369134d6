"""The options of an engine, from ``[launch.options]`` of a file and ``-o NAME=VALUE``, in a checked dataclass.

An engine's module has a frozen dataclass `Options`; its fields are the options, their types what is taken:
``str | None``, ``int | None``, ``bool``, ``tuple[str, ...]`` (a list, or words as a shell splits them) or
``dict[str, str]`` (a table, or ``a=b,c=d``).
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_type_hints

from meshrt.errors import ConfigError, did_you_mean

__all__ = ["read"]

_Options = TypeVar("_Options")


def read(kind: type[_Options], engine: str, given: Mapping[str, Any]) -> _Options:
    """`given` as a `kind`. ConfigError for a name that the engine does not know, or a value of another type."""
    hints = get_type_hints(kind)
    if unknown := sorted(set(given) - set(hints)):
        raise ConfigError(
            f"option {', '.join(unknown)}: the engine {engine!r} has no such option; its options are: "
            f"{', '.join(hints) or 'none'}{did_you_mean(unknown[0], hints)}"
        )
    return kind(**{name: _value(engine, name, hints[name], value) for name, value in given.items()})


def _value(engine: str, name: str, hint: Any, value: Any) -> Any:
    convert, words = _KINDS[str(hint)] if str(hint) in _KINDS else _KINDS[hint.__name__]
    try:
        return convert(value)
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(f"option {name} = {value!r}: the engine {engine!r} takes {words}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError
    return value


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str) or int(value) < 0:
        raise ValueError
    return int(value)


def _truth(value: Any) -> bool:
    return value if isinstance(value, bool) else {"true": True, "false": False}[value]


def _words(value: Any) -> tuple[str, ...]:
    return tuple(_text(v) for v in (shlex.split(value) if isinstance(value, str) else value))


def _table(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        value = dict(pair.split("=", 1) for pair in value.split(","))
    return {_text(k): _text(v if isinstance(v, str) else str(v)) for k, v in value.items()}


_KINDS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "str": (_text, "text"),
    "str | None": (_text, "text"),
    "int | None": (_number, "a whole number, at least 0"),
    "int": (_number, "a whole number, at least 0"),
    "bool": (_truth, "true or false"),
    "tuple[str, ...]": (_words, "a list of words"),
    "dict[str, str]": (_table, "a table, or NAME=VALUE,NAME=VALUE"),
}


def fields(kind: type[Any]) -> list[str]:
    """The names of an engine's options."""
    return [f.name for f in dataclasses.fields(kind)]
