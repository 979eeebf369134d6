"""Sizes of dimensions that are not known yet: polynomials over named variables, with floordiv, mod, max and min.

>>> from meshrt.core.dimensions.shapes import symbolic_shape
>>> a, b = symbolic_shape("a, b")
>>> 2 * a + b - a, (4 * a) // 2, (a + b) % 3
(b + a, 2*a, mod(b + a, 3))

The normal form that they are kept in is that of `terms.py`. Whatever is known to be a number is an int, so sizes that
are known cost nothing here.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from meshrt import errors
from meshrt.core.dimensions.terms import Factor, Sum, Term, terms_of
from meshrt.heuristics import SYMBOLIC_SIZE

if TYPE_CHECKING:
    from meshrt.core.dimensions.scope import SymbolicScope

__all__ = [
    "Dim", "DimExpr", "as_size", "build", "guessed", "is_symbolic_dim", "is_symbolic_shape", "max_dim", "min_dim",
    "non_negative_dim", "operation", "set_value_of", "term_value", "variable",
]  # fmt: skip

Dim: TypeAlias = "int | DimExpr"
FLOORDIV, MOD, MAX, MIN = "floordiv", "mod", "max", "min"
OPERATIONS = frozenset([FLOORDIV, MOD, MAX, MIN])


def term_value(term: Term, values: Mapping[str, Any], scope: SymbolicScope) -> Any:
    """A term where variables have `values`; KeyError naming one that has none."""
    product: Any = 1
    for factor, n in term.factors:
        value = _factor_value(factor, values, scope)
        for _ in range(n):
            product = value if type(product) is int and product == 1 else product * value
    return product


def _factor_value(factor: Factor, values: Mapping[str, Any], scope: SymbolicScope) -> Any:
    if not factor.is_variable:
        x, y = [o.evaluate(values) if isinstance(o, DimExpr) else o for o in factor.operands]
        return _APPLY[factor.name](x, y)
    if factor.name in values:
        return values[factor.name]
    known = variable(factor.name, scope)  # an equality of the scope may say what it is
    if isinstance(known, DimExpr):
        if known.name == factor.name:
            raise KeyError(factor.name)
        return known.evaluate(values)
    return known


# Makes an array of a size, for arithmetic with arrays: handed in by `meshrt.core.basic.sizes`.
_value_of: Callable[[DimExpr], Any] | None = None


def set_value_of(make: Callable[[DimExpr], Any]) -> None:
    """For `meshrt.core.basic.sizes`: how a size becomes an array."""
    global _value_of
    _value_of = make


class DimExpr(Sum):
    """The size of a dimension as an expression in named variables, all of which stand for sizes of at least 1.

    Arithmetic with ints and with sizes of the same scope gives sizes, an int where the result is one. Comparisons are
    decided where they hold, or fail, for all values that the scope's constraints allow.

    Raises:
      InconclusiveDimensionOperation: a comparison that depends on the variables' values, or a use as a number.
      ArgumentValueError: operands of two scopes.
    """

    __slots__ = ("_hash", "scope")
    # Before NumPy's: `np.int64(2) * a` asks here.
    __array_priority__ = 1000

    scope: SymbolicScope

    def __init__(self, terms: tuple[tuple[Term, int], ...], scope: SymbolicScope):
        super().__init__(terms)
        self.scope = scope
        self._hash: int | None = None

    @property
    def plain(self) -> DimExpr:
        """What stands in types: without what a subclass says beside the size."""
        return self

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """The expression where variables have `values`: ints, sizes, or anything with their arithmetic.

        KeyError, with the name, for a variable that has none.
        """
        total: Any = 0
        for term, k in self.terms:
            value = term_value(term, values, self.scope)
            value = value if k == 1 else value * k
            total = value if type(total) is int and total == 0 else total + value
        return total

    # -- arithmetic ----------------------------------------------------------------------------------------------------

    def _with(self, other: Any, when: str) -> Dim | None:
        """An operand as a size: an int or an expression of this scope; None if it is something else."""
        if type(other) is int:
            return other
        if isinstance(other, DimExpr):
            self.scope.require(other, when)
            return other
        if hasattr(other, "aval"):  # a tracer, or an array: computed with, not thought about
            return None
        try:
            return operator.index(other)
        except TypeError:
            if isinstance(other, list | tuple | str | bytes):
                raise errors.InconclusiveDimensionOperation(
                    f"Symbolic dimension '{self}' used {when} with a {type(other).__name__}, which needs a number"
                ) from None
            return None

    def _sum(self, k: int, other: Dim, j: int) -> Dim:
        """`k * self + j * other`."""
        totals = {t: k * c for t, c in self.terms}
        for t, c in terms_of(other):
            totals[t] = totals.get(t, 0) + j * c
        return build(totals, self.scope)

    def __add__(self, other: Any) -> Any:
        size = self._with(other, "for linear combination")
        return self._as_array() + other if size is None else self._sum(1, size, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        size = self._with(other, "for linear combination")
        return self._as_array() - other if size is None else self._sum(1, size, -1)

    def __rsub__(self, other: Any) -> Any:
        size = self._with(other, "for linear combination")
        return other - self._as_array() if size is None else self._sum(-1, size, 1)

    def __neg__(self) -> Dim:
        return self._sum(-1, 0, 0)

    def __pos__(self) -> DimExpr:
        return self

    def __mul__(self, other: Any) -> Any:
        size = self._with(other, "for operation mul")
        if size is None:
            return self._as_array() * other
        totals: dict[Term, int] = {}
        for (t, k), (s, j) in itertools.product(self.terms, terms_of(size)):
            term = t.times(s)
            totals[term] = totals.get(term, 0) + k * j
        return build(totals, self.scope)

    __rmul__ = __mul__

    def __pow__(self, power: Any) -> Any:
        if isinstance(power, DimExpr) or hasattr(power, "aval"):
            return self._as_array() ** power
        if power != int(power) or power < 0:
            kind = "negative" if power < 0 else "non-integer"
            raise errors.ArgumentValueError(
                f"Symbolic dimension cannot be raised to {kind} powers: '{self}' ** '{power}'. Convert it to an array "
                "to compute with it: jnp.array(size)"
            )
        result: Dim = 1
        for _ in range(int(power)):
            result = self * result
        return result

    def __rpow__(self, base: Any) -> Any:
        return base ** self._as_array()

    def __divmod__(self, other: Any) -> Any:
        size = self._with(other, "for operation divmod")
        return divmod(self._as_array(), other) if size is None else _divided(self, size, self.scope)

    def __rdivmod__(self, other: Any) -> Any:
        size = self._with(other, "for operation divmod")
        return divmod(other, self._as_array()) if size is None else _divided(size, self, self.scope)

    def __floordiv__(self, other: Any) -> Any:
        size = self._with(other, "for operation floordiv")
        return self._as_array() // other if size is None else _divided(self, size, self.scope)[0]

    def __rfloordiv__(self, other: Any) -> Any:
        size = self._with(other, "for operation floordiv")
        return other // self._as_array() if size is None else _divided(size, self, self.scope)[0]

    def __mod__(self, other: Any) -> Any:
        size = self._with(other, "for operation mod")
        return self._as_array() % other if size is None else _divided(self, size, self.scope)[1]

    def __rmod__(self, other: Any) -> Any:
        size = self._with(other, "for operation mod")
        return other % self._as_array() if size is None else _divided(size, self, self.scope)[1]

    def __truediv__(self, other: Any) -> Any:
        return self._as_array() / (other._as_array() if isinstance(other, DimExpr) else other)

    def __rtruediv__(self, other: Any) -> Any:
        return other / self._as_array()

    def __int__(self) -> int:
        raise errors.InconclusiveDimensionOperation(
            f"Symbolic dimension '{self}' used in a context that requires a constant: its value is not known before "
            "the exported program is called. Give the dimension a number, or compute with jnp.array(size)"
        )

    def __index__(self) -> int:
        """Asked by range(), len(), NumPy's functions of shapes."""
        raise errors.InconclusiveDimensionOperation(
            f"Symbolic dimension '{self}' used in a context that requires a constant: it cannot be interpreted as an "
            "integer, as its value is not known before the exported program is called. Give the dimension a number"
        )

    def __float__(self) -> float:
        return float(int(self))

    # -- comparisons ---------------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DimExpr):
            return self is other or (self.scope is other.scope and self.key == other.key)
        return False  # what equals an int is an int

    def __hash__(self) -> int:
        if self._hash is None:
            # By the scope as well: programs without number have a size called `batch`, none of which are equal.
            self._hash = hash((self.key, id(self.scope)))
        return self._hash

    def __bool__(self) -> bool:
        low, high = self.scope.bounds(self)
        if low > 0 or high < 0:
            return True
        raise self.scope.inconclusive(f"'{self}' != '0'", self, "!=", 0)

    def __ge__(self, other: Any) -> Any:
        return self._compare(other, ">=", _at_least)

    def __le__(self, other: Any) -> Any:
        return self._compare(other, "<=", lambda x, y: _at_least(y, x))

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, ">", lambda x, y: _not(_at_least(y, x)))

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, "<", lambda x, y: _not(_at_least(x, y)))

    def _compare(self, other: Any, sign: str, decide: Callable[[Dim, Dim], bool | None]) -> Any:
        size = self._with(other, f"when comparing '{self}' {sign} '{other}'")
        if size is None:
            return _COMPARE[sign](self._as_array(), other)
        decided = decide(self, size)
        if decided is None:
            raise self.scope.inconclusive(f"'{self}' {sign} '{size}'", self, sign, size)
        return decided

    # -- arrays --------------------------------------------------------------------------------------------------------

    def _as_array(self) -> Any:
        if _value_of is None:
            raise errors.InternalError("no primitive makes arrays of sizes")
        return _value_of(self)

    def __jax_array__(self) -> Any:
        """The size as a scalar in the program being traced."""
        return self._as_array()

    def __reduce__(self) -> Any:
        raise errors.UnsupportedError(
            f"the symbolic dimension '{self}' cannot be pickled, as its scope would be another one; write "
            "str(size) and read it with export.symbolic_shape(text, scope=...)"
        )

    def __copy__(self) -> DimExpr:
        return self

    def __deepcopy__(self, memo: Any) -> DimExpr:
        return self


_COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


def _not(decided: bool | None) -> bool | None:
    return None if decided is None else not decided


def _at_least(x: Dim, y: Dim) -> bool | None:
    """Whether `x >= y` for all values of the variables; None if that depends on them."""
    difference = x - y
    if not isinstance(difference, DimExpr):
        return difference >= 0
    low, high = difference.scope.bounds(difference)
    return True if low >= 0 else False if high < 0 else None


def build(totals: Mapping[Term, int], scope: SymbolicScope) -> Dim:
    """The expression of these terms with their coefficients, in normal form; an int if it is one."""
    if scope.equalities:
        totals = scope.rewritten(totals)
    present = [(t, k) for t, k in totals.items() if k]
    if not present:
        return 0
    if len(present) > 1:
        present.sort(key=lambda p: p[0].key, reverse=True)
    elif not present[0][0].factors:
        return present[0][1]
    return DimExpr(tuple(present), scope)


def variable(name: str, scope: SymbolicScope) -> Dim:
    """The variable of this name, or what the scope's constraints say that it equals."""
    return build({Term({Factor(name): 1}): 1}, scope)


def operation(name: str, x: Dim, y: Dim, scope: SymbolicScope) -> Dim:
    """The operation on two sizes as a factor; nothing is simplified."""
    return build({Term({Factor(name, (x, y)): 1}): 1}, scope)


def is_symbolic_dim(size: object) -> TypeGuard[DimExpr]:
    """Whether the size of a dimension is an expression in variables.

    >>> from meshrt.core.dimensions.shapes import symbolic_shape
    >>> [is_symbolic_dim(d) for d in symbolic_shape("a, 3")]
    [True, False]
    """
    return isinstance(size, DimExpr)


def as_size(size: Any) -> Any:
    """A size as it stands in shapes: a symbolic one itself, all others as ints. TypeError for what is no integer."""
    return size if isinstance(size, DimExpr) else operator.index(size)


def guessed(size: Dim) -> int:
    """A size for judging costs by: where it is symbolic, that of variables as they may be. No result depends on it."""
    if not isinstance(size, DimExpr):
        return size
    found = size.evaluate(dict.fromkeys(size.variables(), SYMBOLIC_SIZE))
    return int(found)


def is_symbolic_shape(shape: Sequence[Any]) -> bool:
    """Whether some size in a shape is an expression in variables."""
    return any(isinstance(d, DimExpr) for d in shape)


# ---------------------------------------------------------------------------------------------------------------------
# Division, the larger and the smaller


def _divided(dividend: Dim, divisor: Dim, scope: SymbolicScope) -> tuple[Dim, Dim]:
    """Quotient and remainder, as Python's divmod has them: polynomials where the division comes out even."""
    if isinstance(divisor, int) and divisor == 0:
        raise ZeroDivisionError(f"integer division or modulo by zero: of the symbolic dimension '{dividend}'")
    found = _exact(dividend, divisor, scope)
    if found is not None:
        return found
    return operation(FLOORDIV, dividend, divisor, scope), operation(MOD, dividend, divisor, scope)


def _exact(dividend: Dim, divisor: Dim, scope: SymbolicScope) -> tuple[Dim, Dim] | None:
    quotient: Dim = 0
    rest = dividend
    lead, lead_k = terms_of(divisor)[0]
    while isinstance(rest, DimExpr):
        term, k = rest.terms[0]
        part = term.over(lead)
        if part is None or k % lead_k:
            return None
        step = build({part: k // lead_k}, scope)
        quotient, previous = quotient + step, rest
        rest = rest - step * divisor
        if isinstance(rest, DimExpr) and rest.terms[0][0].key >= previous.terms[0][0].key:
            return None  # an equality of the scope brought the term back
    if isinstance(divisor, DimExpr):
        return (quotient, 0) if rest == 0 else None
    more, rest = divmod(rest, divisor)
    return quotient + more, rest


def max_dim(x: Dim, y: Dim) -> Dim:
    """The larger of two sizes."""
    return _extreme(MAX, x, y)


def min_dim(x: Dim, y: Dim) -> Dim:
    """The smaller of two sizes."""
    return _extreme(MIN, x, y)


def non_negative_dim(size: Dim) -> Dim:
    """`max(size, 0)`."""
    return max_dim(size, 0)


def _extreme(name: str, x: Dim, y: Dim) -> Dim:
    difference = x - y
    if not isinstance(difference, DimExpr):
        return x if (difference >= 0) == (name == MAX) else y
    low, high = difference.scope.bounds(difference)
    if low >= 0:
        return x if name == MAX else y
    if high <= 0:
        return y if name == MAX else x
    if Term({Factor(name, (y, x)): 1}) in difference.scope.equalities:
        x, y = y, x  # as the constraint that says what it equals has it
    return operation(name, x, y, difference.scope)


def _applied(name: str, plain: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def apply(x: Any, y: Any) -> Any:
        if isinstance(x, DimExpr) or isinstance(y, DimExpr):
            return _extreme(name, x, y)
        return plain(x, y)

    return apply


_APPLY: dict[str, Callable[[Any, Any], Any]] = {
    FLOORDIV: operator.floordiv,
    MOD: operator.mod,
    MAX: _applied(MAX, max),
    MIN: _applied(MIN, min),
}
