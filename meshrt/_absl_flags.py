"""Settings as flags of programs that read their command line with absl: `--jax_enable_x64=true`.

absl is imported when flags are asked for, and is no requirement of meshrt's.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

__all__ = ["parse", "register"]

_PREFIX = "jax_"


class Setting(Protocol):
    """What is read of a setting."""

    @property
    def default(self) -> Any: ...
    @property
    def doc(self) -> str: ...
    @property
    def choices(self) -> tuple[Any, ...]: ...
    @property
    def type(self) -> type: ...
    def parse(self, text: str) -> Any: ...


def register(fields: Mapping[str, Setting], update: Callable[[str, Any], None]) -> None:
    """Defines a flag for each setting that can be written as text; `absl.app.run` hands those given to `update`."""
    from absl import app  # an optional wheel

    _define(fields)
    app.call_after_init(lambda: _hand_over(fields, update))


def parse(fields: Mapping[str, Setting], update: Callable[[str, Any], None]) -> None:
    """Defines the flags and hands over those in `sys.argv` now, for programs that `absl.app` does not run."""
    from absl import flags  # an optional wheel

    _define(fields)
    own = itertools.takewhile(lambda arg: arg != "--", sys.argv[1:])
    flags.FLAGS(["", *(arg for arg in own if arg.startswith(f"--{_PREFIX}"))], known_only=True)
    _hand_over(fields, update)


def _define(fields: Mapping[str, Setting]) -> None:
    from absl import flags  # an optional wheel

    for name, field in fields.items():
        flag = _PREFIX + name
        if flag in flags.FLAGS or field.type is object:
            continue
        if field.type is bool:
            flags.DEFINE_bool(flag, field.default, field.doc)
        else:
            flags.DEFINE_string(flag, None, field.doc)


def _hand_over(fields: Mapping[str, Setting], update: Callable[[str, Any], None]) -> None:
    from absl import flags  # an optional wheel

    for name, field in fields.items():
        flag = _PREFIX + name
        if flag in flags.FLAGS and flags.FLAGS[flag].present:
            value = flags.FLAGS[flag].value
            update(name, field.parse(value) if isinstance(value, str) else value)
