"""Between which numbers an expression lies: elimination of terms with what is known to be at least zero.

To bound `e = k*t + rest` above or below, each known `c = j*t + ... >= 0` is added with the multiplier that makes `t`
vanish; what is left has only terms that come before `t` in the order of `meshrt.core.dimensions.terms`, so the
search ends. What operations mean (`0 <= mod(x, y) < y`, `max(x, y) >= x`, ...) is known of every one that is asked
for, and combined with the constraints once when it is learnt. The answer is always right and not always the tightest.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from meshrt import errors
from meshrt.core.dimensions.expression import FLOORDIV, MAX, MIN, MOD, Dim, DimExpr, build, operation
from meshrt.core.dimensions.terms import ONE, Factor, Term

if TYPE_CHECKING:
    from meshrt.core.dimensions.scope import SymbolicScope

__all__ = ["Facts"]

Range: TypeAlias = "tuple[float, float]"
# A sum of terms, the largest first; a constant stands last. Unlike an expression it may contradict the equalities.
Form: TypeAlias = "tuple[tuple[Term, int], ...]"
ANYTHING: Range = (-math.inf, math.inf)


_IMPLIED = "sizes are at least 1"  # what is known without a constraint


class Facts:
    """What is known of terms: of some a range, and relations between several, by their leading term."""

    def __init__(self, scope: SymbolicScope):
        self._scope = scope
        self._ranges: dict[Term, Range] = {}
        self._relations: dict[Term, dict[tuple[Form, bool], None]] = {}
        self._met: set[Term] = set()

    def copy(self) -> Facts:
        """The same facts, to be added to apart."""
        new = Facts(self._scope)
        new._ranges, new._met = dict(self._ranges), set(self._met)
        new._relations = {t: dict(r) for t, r in self._relations.items()}
        return new

    # -- learning ------------------------------------------------------------------------------------------------------

    def assume(self, expression: DimExpr, is_equality: bool, text: str) -> None:
        """Learns that an expression is at least zero, or zero.

        Raises:
          ArgumentValueError: it contradicts what is known.
        """
        self._meet(expression)
        self._learn(expression, is_equality, text)

    def _learn(self, difference: Dim, is_equality: bool = False, text: str = "") -> None:
        if not isinstance(difference, DimExpr):
            self._check(difference, is_equality, text)
            return
        self._add(difference.terms, is_equality, text)
        for form, equal in self._consequences(difference, is_equality, text):
            self._add(form, equal, text)

    def _check(self, constant: int, is_equality: bool, text: str) -> None:
        if constant < 0 or (is_equality and constant):
            raise errors.ArgumentValueError(f"Unsatisfiable constraint: {text or _IMPLIED}. It contradicts the others")

    def _add(self, form: Form, is_equality: bool, text: str) -> None:
        (term, k), *rest = form
        if len(rest) > 1 or (rest and rest[0][0].factors):
            self._relations.setdefault(term, {})[form, is_equality] = None
            return
        n = rest[0][1] if rest else 0  # k * term + n >= 0
        low, high = self._ranges.get(term, ANYTHING)
        if is_equality and n % k:
            raise errors.ArgumentValueError(f"Unsatisfiable constraint: {text or _IMPLIED}. No integer meets it")
        if is_equality or k > 0:
            low = max(low, -(n // k))
        if is_equality or k < 0:
            high = min(high, n // -k)
        if low > high:
            raise errors.ArgumentValueError(f"Unsatisfiable constraint: {text or _IMPLIED}. It contradicts the others")
        self._ranges[term] = (low, high)

    def _consequences(self, new: DimExpr, is_equality: bool, text: str) -> list[tuple[Form, bool]]:
        """What follows from a new fact and one of the known ones, by eliminating a term."""
        found: dict[tuple[Form, bool], None] = {}
        for term, k in new.terms:
            if not term.factors:
                continue
            for known, equal in [*self._known_of(term), *self._relations_with(term)]:
                j = dict(known)[term]
                scale, other = _scales(k, j)
                if scale < 0 and not is_equality:
                    continue
                both = is_equality and equal
                combined = build(dict(_combined(new.terms, scale, known, other)), self._scope)
                if isinstance(combined, DimExpr):
                    found[combined.terms, both] = None
                else:
                    self._check(combined, both, text)
        return list(found)

    # -- what operations mean ------------------------------------------------------------------------------------------

    def _meet(self, size: Dim) -> None:
        """Learns what the terms of an expression mean."""
        if isinstance(size, DimExpr):
            for term, _ in size.terms:
                if term.factors and term not in self._met:
                    self._met.add(term)
                    self._explain(term)

    def _explain(self, term: Term) -> None:
        factor = term.factor
        value = DimExpr(((term, 1),), self._scope)
        if factor is None:
            self._between(value, *self._product_range(term))
        elif factor.is_variable:
            self._learn(value - 1)
        else:
            for operand in factor.operands:
                self._meet(operand)
            {MOD: self._explain_mod, FLOORDIV: self._explain_floordiv}.get(factor.name, self._explain_extreme)(
                value, factor
            )

    def _between(self, value: DimExpr, low: float, high: float) -> None:
        if low > -math.inf:
            self._learn(value - int(low))
        if high < math.inf:
            self._learn(int(high) - value)

    def _product_range(self, term: Term) -> Range:
        corners = []
        for factor, n in term.factors:
            single = build({Term({factor: 1}): 1}, self._scope)
            self._meet(single)
            low, high = self.bounds(single)
            # Even powers of what may be negative are bounded by those of both ends, and by zero.
            ends = [low**n, high**n] + ([0] if low < 0 < high else [])
            corners.append((min(ends), max(ends)))
        return functools.reduce(_product, corners)

    def _explain_mod(self, value: DimExpr, factor: Factor) -> None:
        divisor = factor.operands[1]
        low, high = self.bounds(divisor)
        if low > 0:
            self._learn(value)
            self._learn(divisor - 1 - value)
            self._between(value, 0, high - 1)
        elif high < 0:
            self._learn(value - divisor - 1)
            self._between(value, low + 1, 0)

    def _explain_floordiv(self, value: DimExpr, factor: Factor) -> None:
        dividend, divisor = factor.operands
        (low, high), (least, most) = self.bounds(dividend), self.bounds(divisor)
        if least <= 0 <= most:
            raise errors.InconclusiveDimensionOperation(
                f"Possible division by 0 in division by {divisor}, which lies between {least} and {most}. A constraint "
                f"rules it out: symbolic_shape(..., constraints=['{divisor} >= 1'])"
            )
        corners = [_floor(x, y) for x in (low, high) for y in (least, most)]
        self._between(value, min(corners), max(corners))
        if least > 0:
            rest = operation(MOD, dividend, divisor, self._scope)
            self._meet(rest)
            self._learn(dividend - (divisor * value + rest), is_equality=True)

    def _explain_extreme(self, value: DimExpr, factor: Factor) -> None:
        x, y = factor.operands
        pick, sign = (max, 1) if factor.name == MAX else (min, -1)
        lows, highs = zip(self.bounds(x), self.bounds(y))
        self._between(value, pick(lows), pick(highs))
        self._learn(sign * (value - x))
        self._learn(sign * (value - y))

    # -- asking --------------------------------------------------------------------------------------------------------

    def bounds(self, size: Dim) -> Range:
        """The range of an expression."""
        if not isinstance(size, DimExpr):
            return size, size
        self._meet(size)
        low, high = self._range(size.terms)
        for factor in _shared_factors(size):
            below, above = self._grouped(size, factor)
            low, high = max(low, below), min(high, above)
        return low, high

    def _grouped(self, size: DimExpr, factor: Factor) -> Range:
        """The range of `factor * x + rest`: what a product of sizes is at least does not follow from its terms alone,
        as in `n*n - n`, which is `n * (n - 1)`."""
        single = Term({factor: 1})
        parts = [(t.over(single), t, k) for t, k in size.terms]
        inside = build({over: k for over, _, k in parts if over is not None}, self._scope)
        rest = build({t: k for over, t, k in parts if over is None}, self._scope)
        product = _product(self.bounds(build({single: 1}, self._scope)), self.bounds(inside))
        more = self.bounds(rest)
        return product[0] + more[0], product[1] + more[1]

    def _range(self, form: Form) -> Range:
        if not form:
            return 0, 0
        (term, k), rest = form[0], form[1:]
        if not term.factors:
            return k, k
        low, high = ANYTHING
        relations = self._relations.get(term, {})
        for known, equal in [*self._known_of(term), *relations]:
            scale, other = _scales(k, dict(known)[term])
            below, above = self._range(_combined(form, scale, known, other))
            # scale * form = combined - other * known, where known is at least zero, or zero.
            if above < math.inf:
                low, high = _narrowed(low, high, int(above), scale)
            if equal and below > -math.inf:
                low, high = _narrowed(low, high, -int(below), -scale)
        factor = term.factor
        if factor is not None and factor.name in (MAX, MIN) and factor.operands:
            lows, highs = zip(*[self._range(_combined(rest, 1, _form(o), k)) for o in factor.operands])
            pick = max if (k > 0) == (factor.name == MAX) else min
            low, high = max(low, pick(lows)), min(high, pick(highs))
        return low, high

    def _known_of(self, term: Term) -> Iterator[tuple[Form, bool]]:
        """The range of a term as relations."""
        low, high = self._ranges.get(term, ANYTHING)
        if low == high:
            yield _with_constant(term, 1, -int(low)), True
            return
        if low > -math.inf:
            yield _with_constant(term, 1, -int(low)), False
        if high < math.inf:
            yield _with_constant(term, -1, int(high)), False

    def _relations_with(self, term: Term) -> Iterator[tuple[Form, bool]]:
        for relations in self._relations.values():
            for form, equal in relations:
                if any(t == term for t, _ in form):
                    yield form, equal


def _product(x: Range, y: Range) -> Range:
    """The range of products; nothing times whatever is nothing, also where that has no bound."""
    corners = [a * b if a and b else 0 for a in x for b in y]
    return min(corners), max(corners)


def _shared_factors(size: DimExpr) -> list[Factor]:
    """The factors that several terms have, at least one of them in a product."""
    products = [t for t, _ in size.terms if t.factors and t.factor is None]
    found = dict.fromkeys(f for t in products for f, _ in t.factors)
    return [f for f in found if sum(any(f == g for g, _ in t.factors) for t, _ in size.terms) > 1]


def _form(size: Dim) -> Form:
    return size.terms if isinstance(size, DimExpr) else ((ONE, size),) if size else ()


def _with_constant(term: Term, k: int, n: int) -> Form:
    return ((term, k), (ONE, n)) if n else ((term, k),)


def _scales(k: int, j: int) -> tuple[int, int]:
    """Multipliers `(s, o)` with `s*k + o*j == 0` and `o > 0`."""
    common = math.gcd(k, j)
    return (-j if k > 0 else j) // common, abs(k) // common


def _combined(x: Sequence[tuple[Term, int]], i: int, y: Sequence[tuple[Term, int]], j: int) -> Form:
    """`i*x + j*y`."""
    totals = {t: i * k for t, k in x}
    for t, k in y:
        totals[t] = totals.get(t, 0) + j * k
    return tuple(sorted(((t, k) for t, k in totals.items() if k), key=lambda p: p[0].key, reverse=True))


def _narrowed(low: float, high: float, limit: int, scale: int) -> Range:
    """What is left of the range of `e` where `scale * e <= limit`."""
    if scale > 0:
        return low, min(high, limit // scale)
    return max(low, -(limit // -scale)), high


def _floor(x: float, y: float) -> float:
    """`x // y`, or the limit where one of them is infinite."""
    if math.isinf(y):
        negative = (x >= 0) != (y >= 0)
        if math.isinf(x):
            return -math.inf if negative else math.inf
        return -1 if negative else 0
    if math.isinf(x):
        return -math.inf if (x >= 0) != (y >= 0) else math.inf
    return int(x) // int(y)
