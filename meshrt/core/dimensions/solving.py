"""The values of dimension variables, found from the sizes of arguments, and what has to hold of these.

For arguments of shapes `(a + 2*b, a)` the sizes that arrive are variables too, named `args[0].shape[0]`, ...:
`a` is `args[0].shape[1]`, then `b` is `floordiv(args[0].shape[0] - args[0].shape[1], 2)`, and the remainder of that
division has to be 0. Equations in one variable that is not known yet are solved, until no equation is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from meshrt import errors
from meshrt.core.dimensions.expression import Dim, DimExpr, build, is_symbolic_shape, term_value
from meshrt.core.dimensions.terms import Factor, Term

__all__ = ["Requirement", "Solution", "Unknown", "solve"]

# A message, in parts: texts, and sizes to be filled in.
Message: TypeAlias = "tuple[str | Dim, ...]"
# The page that says how these are solved, here as there.
_PAGE = "https://docs.jax.dev/en/latest/export/shape_poly.html"
_MORE = f". Please see {_PAGE}#shape-assertion-errors for more details."
_MISMATCH = "Input shapes do not match the polymorphic shapes specification. "


class Unknown(NamedTuple):
    """The size of one dimension of an argument: its name, the argument's number and the dimension."""

    name: str
    argument: int
    dim: int


class Requirement(NamedTuple):
    """`left >= right`, or `==`, over the unknowns, and what is to be said where it does not hold."""

    is_equality: bool
    left: Dim
    right: Dim
    message: Message

    def check(self, values: Mapping[str, Any]) -> None:
        """Raises ArgumentValueError unless it holds for these sizes, which may be symbolic ones themselves."""
        left, right = (_value(side, values) for side in (self.left, self.right))
        try:
            holds = left == right if self.is_equality else left >= right
        except errors.InconclusiveDimensionOperation as e:
            raise errors.ArgumentValueError(self.said(values)) from e
        if not holds:
            raise errors.ArgumentValueError(self.said(values))

    def said(self, values: Mapping[str, Any]) -> str:
        """The message for these sizes."""
        return "".join(m if isinstance(m, str) else str(_value(m, values)) for m in self.message)


class Solution(NamedTuple):
    """Each variable's value, over the unknowns; requirements in the order in which they are to be checked."""

    unknowns: tuple[Unknown, ...]
    values: Mapping[str, Dim]
    requirements: tuple[Requirement, ...]

    def of(self, shapes: Sequence[Sequence[Dim]]) -> dict[str, Dim]:
        """The variables' values for arguments of these shapes.

        Raises:
          ArgumentValueError: the shapes do not meet the requirements.
        """
        sizes = {u.name: shapes[u.argument][u.dim] for u in self.unknowns}
        for requirement in self.requirements:
            requirement.check(sizes)
        return {name: _value(value, sizes) for name, value in self.values.items()}


def _value(size: Dim, values: Mapping[str, Any]) -> Any:
    return size.evaluate(values) if isinstance(size, DimExpr) else size


def solve(shapes: Sequence[Sequence[Dim]], names: Sequence[str]) -> Solution:
    """Solves for the variables in the shapes of arguments, which messages call by `names`.

    Raises:
      UnsolvableDimensionError: a variable's value does not follow from the sizes.
      ArgumentValueError: variables of several scopes.
    """
    equations = [
        (size, Unknown(f"{names[i]}.shape[{k}]", i, k))
        for i, shape in enumerate(shapes)
        for k, size in enumerate(shape)
        if isinstance(size, DimExpr)
    ]
    if not equations:
        return Solution((), {}, ())
    specs = ",".join(
        f"{names[i]}.shape = {_shape_text(shape)}" for i, shape in enumerate(shapes) if is_symbolic_shape(shape)
    )
    solver = _Solver(equations[0][0], f" Using the following polymorphic shapes specifications: {specs}.")
    left = equations
    while left:
        remaining = [e for e in left if not solver.take(*e)]
        if len(remaining) == len(left):
            raise solver.unsolvable(remaining)
        left = remaining
    solver.add_constraints()
    return Solution(tuple(u for _, u in equations), solver.values, tuple(solver.requirements))


def _shape_text(shape: Sequence[Dim]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


class _Solver:
    """What is solved so far. `specs` is the sentence about the specifications that all messages have."""

    def __init__(self, first: DimExpr, specs: str):
        self.scope, self.specs = first.scope, specs
        self.values: dict[str, Dim] = {}
        self.requirements: list[Requirement] = []
        self.obtained: Message = (" Obtained dimension variables: ",)

    def take(self, size: DimExpr, unknown: Unknown) -> bool:
        """Uses the equation `size == unknown`; False if it has more than one variable that is not known yet."""
        self.scope.require(size, "when solving for the dimension variables")
        given = build({Term({Factor(unknown.name): 1}): 1}, self.scope)
        found, rest = None, given
        for term, k in size.terms:
            try:
                rest = rest - k * term_value(term, self.values, self.scope)
            except KeyError:
                factor = term.factor
                if found is not None or factor is None or not factor.is_variable:
                    return False
                found = factor.name, k
        if found is None:
            self.require_equal(size, unknown, given)
        else:
            self.define(*found, rest, size, unknown, given)
        return True

    def define(self, name: str, k: int, rest: Dim, size: DimExpr, unknown: Unknown, given: Dim) -> None:
        """`k * name == rest`."""
        value = rest
        if k != 1:
            value, remainder = divmod(rest, k)
            said = (f"{_MISMATCH}Division had remainder ", remainder, f" when computing the value of '{name}'.")
            self.require(True, remainder, 0, said)
        self.values[name] = value
        self.obtained += (
            f"'{name}' = ", value, f" from specification '{size}' for dimension {unknown.name} (= ", given, "), ",
        )  # fmt: skip
        self.require(False, value, 1, (f"{_MISMATCH}Expected value >= 1 for dimension variable '{name}'.",))

    def require_equal(self, size: DimExpr, unknown: Unknown, given: Dim) -> None:
        value = size.evaluate(self.values)
        said = (
            f"{_MISMATCH}Found inconsistency between dimension size {unknown.name} (= ", given,
            f") and the specification '{size}' (= ", value, ").",
        )  # fmt: skip
        self.require(True, given, value, said)

    def require(self, is_equality: bool, left: Dim, right: Dim, said: Message) -> None:
        message = (*said, self.specs, *self.obtained, _MORE)
        self.requirements.append(Requirement(is_equality, left, right, message))

    def add_constraints(self) -> None:
        """What the user said of the variables has to hold."""
        for constraint in self.scope.constraints:
            try:
                found = _value(constraint.difference, self.values)
            except KeyError:
                continue  # it speaks of variables that these arguments do not have
            word = "equal" if constraint.is_equality else "greater or equal"
            said = (
                f"Input shapes do not match the symbolic shape constraint {constraint.text}. Expected "
                f"'{constraint.difference}' to be {word} to 0, but found ", found, ". ",
            )  # fmt: skip
            self.require(constraint.is_equality, found, 0, said)

    def unsolvable(self, equations: Sequence[tuple[DimExpr, Unknown]]) -> errors.UnsolvableDimensionError:
        missing = set().union(*[size.variables() for size, _ in equations]) - set(self.values)
        listed = ", ".join(f"'{size}' for dimension size {unknown.name}" for size, unknown in equations)
        shown = "{" + ", ".join(repr(name) for name in sorted(missing)) + "}"
        return errors.UnsolvableDimensionError(
            f"Cannot solve for values of dimension variables {shown}. We can only solve linear uni-variate "
            f"constraints.{self.specs} Unprocessed specifications: {listed}. Please see "
            f"{_PAGE}#dimension-variables-must-be-solvable-from-the-input-shapes for more details. Add an argument of "
            "which such a variable is a dimension"
        )
