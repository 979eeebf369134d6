"""`jax.experimental.pjit`: the older names of `meshrt.jit` and of `meshrt.lax.with_sharding_constraint`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshrt.jit import jit
from meshrt.primitives.sharding import with_sharding_constraint

__all__ = ["pjit", "with_sharding_constraint"]


def pjit(
    fun: Callable[..., Any],
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: Any = None,
    static_argnames: Any = None,
    donate_argnums: Any = None,
    donate_argnames: Any = None,
    keep_unused: bool = False,
    device: Any = None,
    backend: str | None = None,
    inline: bool = False,
    compiler_options: dict[str, Any] | None = None,
) -> Any:
    """`meshrt.jit` as it was called when shardings were its first arguments: they may be given by position.

    Raises what `meshrt.jit` raises.

    >>> from meshrt.experimental.pjit import pjit
    >>> double = pjit(lambda x: 2 * x, None, None)
    """
    return jit(
        fun, in_shardings=in_shardings, out_shardings=out_shardings, static_argnums=static_argnums,
        static_argnames=static_argnames, donate_argnums=donate_argnums, donate_argnames=donate_argnames,
        keep_unused=keep_unused, device=device, backend=backend, inline=inline, compiler_options=compiler_options,
    )  # fmt: skip
