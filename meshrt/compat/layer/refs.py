"""References to arrays that programs write to: names that libraries look for. meshrt has no references."""

from __future__ import annotations

from typing import Any, NoReturn

from meshrt import errors

__all__ = ["Ref", "new_ref"]


class Ref:
    """The class of references. Nothing is one."""


def new_ref(init_val: Any, *, memory_space: Any = None) -> NoReturn:
    """Raises UnsupportedError."""
    raise errors.UnsupportedError(
        "jax.new_ref: meshrt has no references to arrays that programs write to; pass the array and return the new one"
    )
