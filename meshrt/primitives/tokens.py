"""Tokens: values that stand for a point in a program's order, and for nothing else.

A token is one scalar where programs are compiled, as the tokens of ordered effects are (`meshrt.transforms.ordering`):
what takes a token comes after what gave it. Its type is high, and closed: Jaxprs have tokens and the two operations on
them, and lowering makes the scalar and the operations on it of these. A token has no derivative, and a batch has one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.shapes import zeros
from meshrt.core.high import HiType, register_hitype
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.elementwise import or_p

__all__ = ["after_all", "after_all_p", "create_token", "create_token_p"]

_SCALAR = ShapedArray((), np.dtype(np.uint32))
_NO_DERIVATIVE = ShapedArray((), dtypes.float0)


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


class AbstractToken(HiType):
    """The type of all tokens."""

    __slots__ = ()

    def lo_ty(self) -> list[ShapedArray]:
        return [_SCALAR]

    def lower_val(self, value: Token) -> list[Any]:
        return [value._scalar]

    def raise_val(self, *arrays: Any) -> Token:
        return Token(*arrays)

    def to_tangent_aval(self) -> Any:
        return _NO_DERIVATIVE

    def str_short(self, short_dtypes: bool = False, mesh_axis_types: bool = False) -> str:
        return "Tok"

    def __repr__(self) -> str:
        return "AbstractToken()"

    def __eq__(self, other: object) -> bool:
        return type(other) is AbstractToken

    def __hash__(self) -> int:
        return hash(AbstractToken)


@functools.cache
def _register() -> None:
    """Only programs with tokens pay for looking for high types."""
    register_hitype(Token, lambda token: AbstractToken())


def _after_all_types(*tokens: Any) -> Any:
    for i, t in enumerate(tokens):
        if type(t) is not AbstractToken:
            raise errors.ArgumentTypeError(
                f"Arguments to after_all must be tokens, made by lax.create_token or lax.after_all; number {i} is of "
                f"type {t.short()}"
            )
    return AbstractToken()


def _after_all_values(*tokens: Token) -> Token:
    _after_all_types(*map(aval_of, tokens))
    return Token(functools.reduce(or_p.bind, [t._scalar for t in tokens])) if tokens else Token(zeros(_SCALAR))


def _no_arrays(*_: Any) -> Any:
    raise errors.InternalError("a token reached the lowering of a program, which is one over arrays")


def _token(name: str, infer: Callable[..., Any], to_lojax: Callable[..., Any]) -> Primitive:
    """An operation on tokens alone, of which there is one however often a program is mapped."""
    primitive = Primitive(
        name, infer, lower=_no_arrays, jvp=lambda primals, tangents: (primitive.bind(*primals), None),
        batch=lambda size, args, dims, params: (primitive.bind(*args), None), to_lojax=to_lojax, cache_types=False,
        absent={"transpose": "tokens have no derivatives"},
    )  # fmt: skip
    return primitive


create_token_p = _token("create_token", AbstractToken, lambda: Token(zeros(_SCALAR)))
after_all_p = _token("after_all", _after_all_types, _after_all_values)


def create_token(_: Any = None) -> Any:
    """A token that comes after nothing. (The argument is ignored: it was an operand once.)

    >>> meshrt.jit(lambda x: (x + 1, lax.create_token()))(1.0)
    (Array(2., dtype=float32, weak_type=True), Token())
    """
    _register()
    return create_token_p.bind()


def after_all(*operands: Any) -> Any:
    """A token that comes after all of `operands`, which are tokens.

    Raises:
      ArgumentTypeError: an operand is no token.

    >>> lax.after_all(lax.create_token(), lax.create_token())
    Token()
    """
    _register()
    return after_all_p.bind(*operands)
