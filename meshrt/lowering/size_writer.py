"""Writing operations that compute sizes from the variables of an exported program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshrt import errors
from meshrt.core.dimensions.expression import FLOORDIV, MAX, MIN, MOD, Dim, DimExpr
from meshrt.core.dimensions.terms import Factor, Term
from propagation.asm import Body, Ref

__all__ = ["SizeWriter"]


class SizeWriter:
    """Writes operations that compute sizes, each size once, into a body where the variables are `values`."""

    def __init__(self, body: Body, values: Mapping[str, Ref], integer: str):
        self.body, self.values, self.kind, self.integer = body, values, f"tensor<{integer}>", integer
        self._sizes: dict[Dim, Ref] = {}
        self._vectors: dict[tuple[Any, ...], Ref] = {}

    def size(self, dim: Dim) -> Ref:
        """A scalar."""
        found = self._sizes.get(dim)
        if found is None:
            found = self._sizes[dim] = self._expression(dim) if isinstance(dim, DimExpr) else self.constant(dim)
        return found

    def vector(self, dims: Sequence[Dim]) -> Ref:
        """A vector of sizes."""
        key = tuple(dims)
        found = self._vectors.get(key)
        if found is None:
            one = f"tensor<1x{self.integer}>"
            parts = [self.body.op("stablehlo.reshape", [self.size(d)], [one]) for d in dims]
            whole = f"tensor<{len(dims)}x{self.integer}>"
            found = parts[0] if len(parts) == 1 else (
                self.body.op("stablehlo.concatenate", parts, [whole], "dimension = 0 : i64") if parts else
                self.body.op("stablehlo.constant", (), [whole], f"value = dense<> : {whole}")
            )  # fmt: skip
            self._vectors[key] = found
        return found

    def constant(self, n: int) -> Ref:
        limit = 1 << (int(self.integer[1:]) - 1)
        if not -limit <= n < limit:
            raise errors.IntegerOverflowError(
                f"Python integer {n} out of bounds for int{self.integer[1:]}, in which programs compute with sizes: "
                "set meshrt.config.update('enable_x64', True), or multiply by floats"
            )
        return self.body.op("stablehlo.constant", (), [self.kind], f"value = dense<{n}> : {self.kind}")

    def op(self, name: str, *operands: Ref) -> Ref:
        return self.body.op(f"stablehlo.{name}", operands, [self.kind])

    def compare(self, x: Ref, y: Ref, direction: str) -> Ref:
        attrs = (
            f"comparison_direction = #stablehlo<comparison_direction {direction}>, "
            "compare_type = #stablehlo<comparison_type SIGNED>"
        )
        return self.body.op("stablehlo.compare", [x, y], ["tensor<i1>"], attrs)

    def _expression(self, dim: DimExpr) -> Ref:
        total: Ref | None = None
        for term, k in dim.terms:
            value = self._term(term, k)
            total = value if total is None else self.op("add", total, value)
        assert total is not None  # an expression has terms
        return total

    def _term(self, term: Term, k: int) -> Ref:
        product = None if k == 1 and term.factors else self.size(k)
        for factor, n in term.factors:
            value = self._factor(factor)
            for _ in range(n):
                product = value if product is None else self.op("multiply", product, value)
        assert product is not None  # a factor, or the coefficient
        return product

    def _factor(self, factor: Factor) -> Ref:
        if factor.is_variable:
            try:
                return self.values[factor.name]
            except KeyError:
                raise errors.UnsolvableDimensionError(
                    f"Encountered dimension variable '{factor.name}' that is not appearing in the shapes of the "
                    f"function arguments. Those that are: {sorted(self.values)}. Add an argument of which it is a "
                    "dimension"
                ) from None
        x, y = (self.size(o) for o in factor.operands)
        if factor.name in (MAX, MIN):
            return self.op("maximum" if factor.name == MAX else "minimum", x, y)
        return self._division(factor.name, x, y)

    def _division(self, name: str, x: Ref, y: Ref) -> Ref:
        """Rounds down, where StableHLO's operations round towards zero."""
        rest, zero = self.op("remainder", x, y), self.size(0)
        differs = self.compare(self.op("sign", rest), self.op("sign", y), "NE")
        is_off = self.body.op("stablehlo.and", [self.compare(rest, zero, "NE"), differs], ["tensor<i1>"])
        if name == FLOORDIV:
            whole = self.op("divide", x, y)
            return self.op("select", is_off, self.op("subtract", whole, self.size(1)), whole)
        assert name == MOD
        return self.op("select", is_off, self.op("add", rest, y), rest)
