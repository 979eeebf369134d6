"""What is known of the variables of one family of sizes: constraints, and the decisions that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from meshrt import errors
from meshrt.core import source
from meshrt.core.dimensions.bounds import Facts
from meshrt.core.dimensions.expression import FLOORDIV, MOD, Dim, DimExpr, build
from meshrt.core.dimensions.grammar import parse_constraint
from meshrt.core.dimensions.terms import Factor, Term

__all__ = ["Constraint", "SymbolicScope"]


class Constraint(NamedTuple):
    """`difference >= 0`, or `== 0` for an equality; `text` is what the user wrote, if it `is_given` and does not follow
    from another one."""

    text: str
    difference: Dim
    is_equality: bool
    is_given: bool = True

    def __str__(self) -> str:
        return self.text


class SymbolicScope:
    """The scope of dimension variables: sizes that meet in one program have to be of one scope.

    Args:
      constraints_str: what is known of the variables beside that each is at least 1: strings such as ``"a >= 8"``,
        ``"a <= 2*b"``, ``"mod(a, 4) == 0"``. The left side of an equality is one term, which is replaced by the right
        side wherever it occurs.

    >>> from meshrt.core.dimensions.shapes import symbolic_shape
    >>> a, b = symbolic_shape("a, b", scope=SymbolicScope(["a >= b"]))
    >>> a >= b, a - b >= 0
    (True, True)

    Raises:
      ArgumentValueError: constraints that are no sequence of strings, cannot be read, or cannot be met.
      UnsupportedError: two equalities with the same left side.
    """

    def __init__(self, constraints_str: Sequence[str] = ()):
        if isinstance(constraints_str, str):
            raise errors.ArgumentValueError(
                f"The symbolic constraints should be a sequence of strings. Got {constraints_str!r}; "
                f"write [{constraints_str!r}]"
            )
        self._where = source.capture()
        self.constraints: list[Constraint] = []
        # A term with a coefficient and what they equal.
        self.equalities: dict[Term, tuple[int, Dim]] = {}
        self._facts: Facts | None = None
        self._bounds: dict[DimExpr, tuple[float, float]] = {}
        for text in constraints_str:
            self._add(text)

    # -- constraints ---------------------------------------------------------------------------------------------------

    def _add(self, text: str) -> None:
        left, sign, right = parse_constraint(text, self)
        if sign == "==":
            self._add_equality(text, left, right)
        else:
            self._note(Constraint(text, left - right if sign == ">=" else right - left, is_equality=False))

    def _note(self, constraint: Constraint) -> bool:
        """Notes a constraint if it says something; ArgumentValueError if nothing can meet it."""
        difference = constraint.difference
        if not isinstance(difference, DimExpr):
            if difference < 0 or (constraint.is_equality and difference):
                raise errors.ArgumentValueError(
                    f"Unsatisfiable explicit constraint: {constraint.text}. Leave it out or correct it"
                )
            return False
        self.constraints.append(constraint)
        self._facts = None
        self._bounds.clear()
        self._known()  # raises where it contradicts the others
        return True

    def _add_equality(self, text: str, left: Dim, right: Dim, is_given: bool = True) -> None:
        difference = left - right
        constraint = Constraint(text, difference, True, is_given)
        if isinstance(difference, DimExpr):
            if not isinstance(left, DimExpr) or len(left.terms) != 1:
                raise errors.ArgumentValueError(
                    f"Invalid equality constraint: {text}. The left-hand-side must be of the form `term * coefficient`"
                )
            term, k = left.terms[0]
            if term in self.equalities:
                raise errors.UnsupportedError(
                    f"Found multiple equality constraints with the same left-hand-side: {term}; keep one of them"
                )
            self.equalities[term] = (k, right)
        if self._note(constraint):
            self._add_divisibility(term, k, right)

    def _add_divisibility(self, term: Term, k: int, right: Dim) -> None:
        """`mod(e, n) == 0` says that `n * floordiv(e, n) == e` as well."""
        factor = term.factor
        if right != 0 or k != 1 or factor is None or factor.name != MOD:
            return
        dividend, divisor = factor.operands
        if not isinstance(divisor, int):
            return
        quotient = Term({Factor(FLOORDIV, (dividend, divisor)): 1})
        self._add_equality(
            f"{divisor}*floordiv({dividend}, {divisor}) == {dividend}", build({quotient: divisor}, self), dividend,
            is_given=False,
        )  # fmt: skip

    def rewritten(self, totals: Mapping[Term, int]) -> Mapping[Term, int]:
        """Terms with coefficients, where the first one that an equality speaks of is replaced by what it equals."""
        for term in sorted((t for t, k in totals.items() if k), key=lambda t: t.key, reverse=True):
            k = totals[term]
            for part, (part_k, equal) in self.equalities.items():
                rest = term.over(part) if term == part or _has_whole(term, part) else None
                if rest is None or k % part_k:
                    continue
                new = dict(totals)
                del new[term]
                for t, c in equal.terms if isinstance(equal, DimExpr) else ((Term({}), equal),):
                    product = t.times(rest)
                    new[product] = new.get(product, 0) + c * (k // part_k)
                return new
        return totals

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _known(self) -> Facts:
        if self._facts is None:
            self._facts = Facts(self)
            for constraint in self.constraints:
                if isinstance(constraint.difference, DimExpr):
                    self._facts.assume(constraint.difference, constraint.is_equality, constraint.text)
        return self._facts

    def bounds(self, size: Dim) -> tuple[float, float]:
        """Between which numbers a size lies for all values of the variables; infinities where nothing is known."""
        if not isinstance(size, DimExpr):
            return size, size
        found = self._bounds.get(size)
        if found is None:
            found = self._bounds[size] = self._known().copy().bounds(size)
        return found

    def inconclusive(self, comparison: str, left: Dim, sign: str, right: Dim) -> errors.InconclusiveDimensionOperation:
        """The error for a comparison that depends on the variables."""
        low, high = self.bounds(left - right)
        opposite = {">=": "<=", "<=": ">=", ">": "<=", "<": ">=", "!=": "=="}[sign]
        other = right if sign in (">", "<", "!=") else right - 1 if sign == ">=" else right + 1
        holding = {">": f"{left} >= {right + 1}", "<": f"{left} <= {right - 1}", "!=": f"{left} >= {right + 1}"}
        holds = holding.get(sign, f"{left} {sign} {right}")
        given = f"\nUsing symbolic scope {self}" if self.constraints else ""
        return errors.InconclusiveDimensionOperation(
            f"Symbolic dimension comparison {comparison} is inconclusive: '{left - right}' lies between {low} and "
            f"{high}. A constraint decides it, such as symbolic_shape(..., constraints=['{holds}']) or "
            f"'{left} {opposite} {other}'.{given}"
        )

    # -- scopes --------------------------------------------------------------------------------------------------------

    def require(self, size: DimExpr, when: str = "", mine: str = "", theirs: str = "unknown") -> None:
        """Raises ArgumentValueError if `size` is of another scope; `mine` and `theirs` say where they come from."""
        if size.scope is not self:
            raise errors.ArgumentValueError(
                f"Invalid mixing of symbolic scopes {when}.\nExpected {mine} scope {self}\nand found for '{size}' "
                f"({theirs}) scope {size.scope}.\nMake both with one scope: symbolic_shape(..., scope=scope)"
            )

    def __str__(self) -> str:
        lines = "\n".join(f"  {c.text}" for c in self.constraints)
        said = f" with constraints:\n{lines}" if lines else ""
        return f"{id(self)} created at {self._where}{said}"

    __repr__ = __str__

    def __deepcopy__(self, memo: object) -> SymbolicScope:
        return self


def _has_whole(term: Term, part: Term) -> bool:
    """Whether one factor of a product, with its exponent, is `part`."""
    return len(part.factors) == 1 and len(term.factors) > 1 and part.factors[0] in term.factors
