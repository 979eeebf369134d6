"""The grammar of sizes, symbolic shapes and constraints.

shape       dim, dim, ...        in parentheses or not; `_` and `...` stand for sizes of a shape given as `like`
dim         [+-] term {(+|-) term}
term        factor[^number] {* factor[^number]}
factor      number | variable | floordiv(dim, dim) | mod(dim, dim) | max(dim, dim) | min(dim, dim)
            | non_negative(dim)
constraint  dim (>=|<=|==) dim
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meshrt import errors
from meshrt.core.dimensions.expression import (
    FLOORDIV,
    MAX,
    MIN,
    MOD,
    Dim,
    DimExpr,
    max_dim,
    min_dim,
    operation,
    variable,
)

if TYPE_CHECKING:
    from meshrt.core.dimensions.scope import SymbolicScope

__all__ = ["parse_constraint", "parse_shape"]

_TOKEN = re.compile(r"\s*(?:(?P<number>\d+)(?![\w.])|(?P<name>[^\W\d]\w*)|(?P<mark>\.\.\.|[-+*^(),]))")
_MAX_TEXT = 1 << 16
_MAX_DEPTH = 64
_MAX_POWER = 64


def parse_shape(text: str, shown: str, scope: SymbolicScope, like: Sequence[int | None] | None) -> tuple[Any, ...]:
    """The sizes in a text; `shown` is the text in messages. ArgumentValueError if it is no shape."""
    return _Reader(text, shown, scope, like).read_shape()


def parse_constraint(text: str, scope: SymbolicScope) -> tuple[Dim, str, Dim]:
    """Left side, sign and right side of a constraint."""
    if not isinstance(text, str):
        raise errors.ArgumentValueError(
            f"SymbolicScope constraint must be a string: got {text!r}; write it as text, such as 'a >= 2'"
        )
    for sign in ("==", ">=", "<="):
        left, found, right = text.partition(sign)
        if found:
            sides = [parse_shape(side, repr(side), scope, None) for side in (left, right)]
            if any(len(side) != 1 for side in sides):
                break
            return sides[0][0], sign, sides[1][0]
    raise errors.ArgumentValueError(
        f"Constraint parsing error: must contain one of '==' or '>=' or '<=' between two expressions, got {text!r}"
    )


class _Reader:
    """Reads one text. `like` gives the sizes for placeholders."""

    def __init__(self, text: str, shown: str, scope: SymbolicScope, like: Sequence[int | None] | None):
        self.text, self.shown, self.scope, self.like = text, shown, scope, like
        self.dims: list[Any] = []
        self.depth = 0
        self.at = self.next_at = 0
        self.kind = self.token = ""
        if len(text) > _MAX_TEXT:
            raise self.error(f"{len(text)} characters, above {_MAX_TEXT}")
        self.advance()

    # -- tokens --------------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        self.at = self.next_at
        match = _TOKEN.match(self.text, self.at)
        if match is not None:
            self.kind, self.token, self.next_at = str(match.lastgroup), match[0].strip(), match.end()
        elif self.text[self.at :].strip():
            raise self.error("no size begins here")
        else:
            self.kind = self.token = ""

    def error(self, detail: str) -> errors.ArgumentValueError:
        return errors.ArgumentValueError(
            f"syntax error in symbolic shape {self.shown} in dimension {len(self.dims)}: {detail}. Parsed "
            f"'{self.text[: self.at]}', remaining '{self.text[self.at :][:80]}'"
        )

    def take(self, mark: str) -> None:
        if self.token != mark:
            raise self.error(f"expected '{mark}' and found '{self.token or 'the end'}'")
        self.advance()

    # -- shapes --------------------------------------------------------------------------------------------------------

    def read_shape(self) -> tuple[Any, ...]:
        enclosed = 0
        while self.token == "(":
            self.advance()
            enclosed += 1
        while self.token not in ("", ")"):
            if self.token == "...":
                self.fill()
                self.advance()
                break
            self.add(self.placeholder() if self.token == "_" else self.read_sum())
            if self.token in ("", ")"):
                break
            self.take(",")
        for _ in range(enclosed):
            self.take(")")
        if self.token:
            raise self.error(f"unexpected '{self.token}'")
        return tuple(self.dims)

    def sizes_left(self, least: int) -> Sequence[int | None]:
        if self.like is None:
            raise self.error(f"spec contains {self.token} but no 'like' shape was given")
        if len(self.like) < least:
            raise self.error(
                f"cannot resolve placeholder '{self.token}' because we parsed {len(self.dims)} already and 'like' "
                f"shape has only {len(self.like)} dimensions"
            )
        return self.like[len(self.dims) :]

    def fill(self) -> None:
        for size in self.sizes_left(len(self.dims)):
            self.add(size)

    def placeholder(self) -> int | None:
        size = self.sizes_left(len(self.dims) + 1)[0]
        self.advance()
        return size

    def add(self, size: Dim | None) -> None:
        if size is None:
            raise self.error(f"unexpected placeholder for unknown dimension; like={self.like}")
        if self.like is not None and not isinstance(size, DimExpr):
            known = self.like[len(self.dims)] if len(self.dims) < len(self.like) else None
            if size != known:
                raise self.error(f"different size {size} for known dimension; like={self.like}")
        self.dims.append(size)

    # -- expressions ---------------------------------------------------------------------------------------------------

    def read_sum(self) -> Dim:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.error(f"expressions nested deeper than {_MAX_DEPTH}")
        total: Dim = 0
        sign = self.sign() or 1
        while sign:
            total = total + sign * self.read_term()
            sign = self.sign()
        self.depth -= 1
        return total

    def sign(self) -> int:
        sign = {"+": 1, "-": -1}.get(self.token, 0)
        if sign:
            self.advance()
        return sign

    def read_term(self) -> Dim:
        product = self.read_power()
        while self.token == "*":
            self.advance()
            product = product * self.read_power()
        return product

    def read_power(self) -> Dim:
        base = self.read_factor()
        if self.token != "^":
            return base
        self.advance()
        if self.kind != "number" or len(self.token) > 2 or int(self.token) > _MAX_POWER:
            raise self.error(f"an exponent is a number up to {_MAX_POWER}")
        power = int(self.token)
        self.advance()
        raised: Dim = base**power
        return raised

    def read_factor(self) -> Dim:
        sign = 1
        if self.token == "-":
            sign = -1
            self.advance()
            if self.kind != "number":
                raise self.error("expected a number after '-'")
        kind, token = self.kind, self.token
        if kind not in ("number", "name"):
            raise self.error(f"expected a number or a name and found '{token or 'the end'}'")
        if kind == "name" and token == "_":
            raise self.error("'_' stands for a whole size")
        self.advance()
        if kind == "number":
            if len(token) > 19:
                raise self.error("a number of more than 19 digits")
            return sign * int(token)
        if token == "non_negative" and self.token == "(":
            return max_dim(self.arguments(1)[0], 0)
        if token in (FLOORDIV, MOD, MAX, MIN):
            x, y = self.arguments(2)
            if token in (MAX, MIN):
                return (max_dim if token == MAX else min_dim)(x, y)
            return self.division(token, x, y)
        return variable(token, self.scope)

    def division(self, name: str, x: Dim, y: Dim) -> Dim:
        if y == 0:
            raise self.error(f"division by zero in {name}")
        if isinstance(x, DimExpr) or isinstance(y, DimExpr):
            return operation(name, x, y, self.scope)
        return divmod(x, y)[0 if name == FLOORDIV else 1]

    def arguments(self, count: int) -> list[Dim]:
        self.take("(")
        found = [self.read_sum()]
        for _ in range(count - 1):
            self.take(",")
            found.append(self.read_sum())
        self.take(")")
        return found
