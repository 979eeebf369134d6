"""The normal form of sizes that are not known: sums of terms, which are products of factors.

An expression is a sum of terms with whole coefficients, a term a product of factors with exponents, a factor a
variable or an operation on two expressions. All are kept in one normal form, sorted by `key` with the largest first,
so that equal expressions are written alike: `a + b - b` is `a`, and `a - a` is the int 0. What is computed with them,
and decided about them, stands in `expression.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshrt.core.dimensions.expression import Dim

__all__ = ["ONE", "Factor", "Sum", "Term", "terms_of", "variables_of"]


class Factor:
    """A variable, or an operation on two sizes. `key` orders factors: smaller ones first, then by name."""

    __slots__ = ("key", "name", "operands")

    def __init__(self, name: str, operands: tuple[Dim, ...] = ()):
        self.name, self.operands = name, operands
        keys = tuple(_key(o) for o in operands)
        self.key: tuple[Any, ...] = (1 + sum(k[0] for k in keys), name, keys)

    @property
    def is_variable(self) -> bool:
        return not self.operands

    def variables(self) -> set[str]:
        return set().union(*map(variables_of, self.operands)) if self.operands else {self.name}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Factor) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(_shown, self.operands))})" if self.operands else self.name


def _shown(operand: Dim) -> str:
    """An operand as a sum of terms, which a number is as well: `- 3`."""
    return f"- {-operand}" if isinstance(operand, int) and operand < 0 else str(operand)


class Term:
    """A product of factors with positive exponents, the largest first; without any it is the number 1."""

    __slots__ = ("factors", "key")

    def __init__(self, powers: Mapping[Factor, int]):
        self.factors = tuple(sorted(powers.items(), key=lambda p: p[0].key, reverse=True))
        size = sum(1 + n * f.key[0] for f, n in self.factors)
        self.key: tuple[Any, ...] = (size, tuple((f.key, n) for f, n in self.factors))

    def times(self, other: Term) -> Term:
        powers = dict(self.factors)
        for f, n in other.factors:
            powers[f] = powers.get(f, 0) + n
        return Term(powers)

    def over(self, other: Term) -> Term | None:
        """The quotient; None if it is no term."""
        powers = dict(self.factors)
        for f, n in other.factors:
            left = powers.get(f, 0) - n
            if left < 0:
                return None
            if left:
                powers[f] = left
            else:
                del powers[f]
        return Term(powers)

    @property
    def factor(self) -> Factor | None:
        """The factor that the term is; None if it is a product."""
        return self.factors[0][0] if len(self.factors) == 1 and self.factors[0][1] == 1 else None

    def variables(self) -> set[str]:
        return set().union(*[f.variables() for f, _ in self.factors])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Term) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return "*".join(str(f) if n == 1 else f"{f}^{n}" for f, n in reversed(self.factors))


ONE = Term({})


class Sum:
    """A sum of terms with whole coefficients, the largest first: an expression, apart from its arithmetic."""

    __slots__ = ("key", "terms")

    terms: tuple[tuple[Term, int], ...]

    def __init__(self, terms: tuple[tuple[Term, int], ...]):
        self.terms = terms
        self.key = _terms_key(terms)

    @property
    def term(self) -> Term | None:
        """The term that the expression is, None if it is a sum or a multiple."""
        return self.terms[0][0] if len(self.terms) == 1 and self.terms[0][1] == 1 else None

    @property
    def name(self) -> str | None:
        """The variable that the expression is, None if it is none."""
        factor = None if self.term is None else self.term.factor
        return factor.name if factor is not None and factor.is_variable else None

    def variables(self) -> set[str]:
        """The names of the variables in it."""
        return set().union(*[t.variables() for t, _ in self.terms])

    def __str__(self) -> str:
        text = ""
        for i, (term, k) in enumerate(self.terms):
            sign = "- " if k < 0 else "+ " if i else ""
            size = abs(k)
            shown = str(size) if term is ONE or not term.factors else f"{term}" if size == 1 else f"{size}*{term}"
            text += f"{' ' if i else ''}{sign}{shown}"
        return text

    __repr__ = __str__


def _terms_key(terms: Sequence[tuple[Term, int]]) -> tuple[Any, ...]:
    return (sum(1 + abs(k) * t.key[0] for t, k in terms), tuple((t.key, k) for t, k in terms))


def terms_of(size: Dim) -> Sequence[tuple[Term, int]]:
    """The terms of a size with their coefficients, those of an int too."""
    return size.terms if isinstance(size, Sum) else ((ONE, size),)


def _key(size: Dim) -> tuple[Any, ...]:
    return size.key if isinstance(size, Sum) else _terms_key(((ONE, size),))


def variables_of(size: object) -> set[str]:
    """The variables in a size: none in an int."""
    return size.variables() if isinstance(size, Sum) else set()
