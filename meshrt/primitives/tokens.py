"""Tokens: values that stand for a point in a program's order, and for nothing else.

A token is one scalar where programs are compiled, as the tokens of ordered effects are (`meshrt.transforms.ordering`):
what takes a token comes after what gave it. Its type is high and open, so functions take and give tokens, and inside of
them a token is an object that holds a tracer.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.basic.shapes import zeros
from meshrt.core.high import HiType, register_hitype
from meshrt.core.types import ShapedArray
from meshrt.primitives.elementwise import or_p

__all__ = ["after_all", "create_token"]

_SCALAR = ShapedArray((), np.dtype(np.uint32))


class Token:
    """A point in a program's order; made by `create_token` and `after_all`."""

    __slots__ = ("_scalar",)

    def __init__(self, scalar: Any):
        self._scalar = scalar

    def block_until_ready(self) -> Token:
        """Waits for what comes before the token, and returns it."""
        self._scalar.block_until_ready()
        return self

    def __repr__(self) -> str:
        return "Token()"


class TokenType(HiType):
    """The type of all tokens."""

    __slots__ = ()

    def lo_ty(self) -> list[ShapedArray]:
        return [_SCALAR]

    def lower_val(self, value: Token) -> list[Any]:
        return [value._scalar]

    def raise_val(self, *arrays: Any) -> Token:
        return Token(*arrays)

    def str_short(self, short_dtypes: bool = False, mesh_axis_types: bool = False) -> str:
        return "Tok"

    def __repr__(self) -> str:
        return "Tok"

    def __eq__(self, other: object) -> bool:
        return type(other) is TokenType

    def __hash__(self) -> int:
        return hash(TokenType)


@functools.cache
def _register() -> None:
    """Only programs with tokens pay for looking for high types."""
    register_hitype(Token, lambda token: TokenType())


def create_token(_: Any = None) -> Token:
    """A token that comes after nothing. (The argument is ignored: it was an operand once.)

    >>> meshrt.jit(lambda x: (x + 1, lax.create_token()))(1.0)
    (Array(2., dtype=float32, weak_type=True), Token())
    """
    _register()
    return Token(zeros(_SCALAR))


def after_all(*operands: Any) -> Token:
    """A token that comes after all of `operands`, which are tokens.

    Raises:
      ArgumentTypeError: an operand is no token.

    >>> lax.after_all(lax.create_token(), lax.create_token())
    Token()
    """
    for i, x in enumerate(operands):
        if not isinstance(x, Token):
            raise errors.ArgumentTypeError(
                f"Arguments to after_all must be tokens, made by lax.create_token or lax.after_all; number {i} is of "
                f"type {type(x).__name__}"
            )
    if not operands:
        return create_token()
    return Token(functools.reduce(or_p.bind, [x._scalar for x in operands]))
