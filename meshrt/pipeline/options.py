"""The arguments of `jit` as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from meshrt import errors
from meshrt.runtime.backend import local_devices

__all__ = ["CompilerOptions", "JitOptions", "compiler_option_items"]

# Names and values of XLA options, sorted: part of the key of a compiled program.
CompilerOptions = tuple[tuple[str, Any], ...]


class JitOptions(NamedTuple):
    """The arguments of `jit`; and whether the function `is_operation` of the library, whose results lie where its
    operands do, also where the program has no need of these."""

    in_shardings: Any = None
    out_shardings: Any = None
    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()
    donate_argnums: tuple[int, ...] = ()
    donate_argnames: tuple[str, ...] = ()
    keep_unused: bool = False
    compiler_options: CompilerOptions = ()
    device: Any = None
    backend: str | None = None
    max_traces: int | None = None
    inline: bool = False
    is_operation: bool = False

    @property
    def place(self) -> Any:
        """The one device that the function runs on: `device`, or of `backend` the first one of this process; None where
        neither says.

        BackendError for a platform that is not here.
        """
        return local_devices(backend=self.backend)[0] if self.backend is not None else self.device


def compiler_option_items(options: Mapping[str, Any] | None) -> CompilerOptions:
    """XLA options as a hashable key. ArgumentTypeError for names or values that XLA cannot take."""
    for name, value in (options or {}).items():
        if not isinstance(name, str) or not isinstance(value, bool | int | float | str):
            raise errors.ArgumentTypeError(
                f"compiler_options maps names of XLA options to bools, numbers or strings, got {name!r}: {value!r}"
            )
    return tuple(sorted((options or {}).items()))
