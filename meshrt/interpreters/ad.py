"""Rules for derivatives, as libraries give them. Names are ``jax.interpreters.ad``'s.

JAX's rules see `Zero(type)` where a tangent or cotangent is zero, and take `UndefinedPrimal(type)` for the operands of
a transpose rule that are to be given a cotangent; meshrt's see None and `Undefined`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np

from meshrt import errors, tree_util
from meshrt.core.basic.pointwise import add_any_p as add_jaxvals_p
from meshrt.core.basic.pointwise import add_tangents as _add
from meshrt.core.basic.shapes import zeros
from meshrt.core.primitive import Primitive as _Record
from meshrt.core.primitive import Undefined as UndefinedPrimal
from meshrt.core.primitive import is_undefined as is_undefined_primal
from meshrt.core.types import aval_of
from meshrt.dtypes import float0
from meshrt.extend.core.declared import give
from meshrt.interpreters.accumulators import GradAccum, NullAccum, RefAccum, ValAccum
from meshrt.transforms.jvp import JVPTrace, JVPTracer

__all__ = [
    "GradAccum", "JVPTrace", "JVPTracer", "NullAccum", "RefAccum", "UndefinedPrimal", "ValAccum", "Zero",
    "add_jaxvals", "add_jaxvals_p", "add_tangents", "defbilinear", "defjvp", "defjvp2", "deflinear", "deflinear2",
    "get_primitive_transpose", "instantiate_zeros", "is_undefined_primal", "primitive_jvps", "primitive_transposes",
    "zeros_like_aval",
]  # fmt: skip

Rule = Callable[..., Any]


class Zero:
    """A tangent or cotangent of type `aval` that is zero, without an array of zeros."""

    __slots__ = ("aval",)

    def __init__(self, aval: Any):
        self.aval = aval

    @staticmethod
    def from_primal_value(value: Any) -> Zero:
        """The zero tangent of a value."""
        return Zero(aval_of(value).to_tangent_aval())

    def instantiate(self) -> Any:
        """An array of zeros: NumPy's, of dtype float0, for what has no derivative."""
        return np.zeros(self.aval.shape, float0) if self.aval.dtype == float0 else zeros(self.aval)

    def __repr__(self) -> str:
        return f"Zero({self.aval})"


tree_util.register_pytree_node(Zero, lambda zero: ((), zero.aval), lambda aval, _: Zero(aval))
tree_util.register_pytree_node(UndefinedPrimal, lambda u: ((), u.aval), lambda aval, _: UndefinedPrimal(aval))


def _shown(value: Any, aval: Any) -> Any:
    """A (co)tangent as JAX's rules see it."""
    return Zero(aval) if value is None else value


def _taken(value: Any) -> Any:
    """A (co)tangent as JAX's rules give it, in meshrt's form."""
    if value is None or type(value) is Zero or getattr(value, "dtype", None) == float0:
        return None
    return value


def instantiate_zeros(tangent: Any) -> Any:
    """An array of zeros for a `Zero`, anything else as it is."""
    return tangent.instantiate() if type(tangent) is Zero else tangent


def zeros_like_aval(aval: Any) -> Any:
    """An array of zeros of a type."""
    return zeros(aval)


def add_jaxvals(x: Any, y: Any) -> Any:
    """The sum of two (co)tangents of one type."""
    return _add(x, y)


def add_tangents(x: Any, y: Any) -> Any:
    """The sum of two (co)tangents, either of which may be a `Zero`."""
    return y if type(x) is Zero else x if type(y) is Zero else add_jaxvals(x, y)


class Rules(MutableMapping[Any, Rule]):
    """The rules of one kind, by primitive: what was given for a library's own, those of meshrt's in JAX's form."""

    def __init__(self, kind: str, translate: Callable[[Any, Rule], Rule], show: Callable[[Any, Rule], Rule]):
        self._kind, self._translate, self._show = kind, translate, show
        self._primitives: list[Any] = []

    def __setitem__(self, primitive: Any, rule: Rule) -> None:
        give(primitive, self._kind, self._translate(primitive, rule), rule)
        self._primitives.append(primitive)

    def __getitem__(self, primitive: Any) -> Rule:
        found = getattr(primitive, self._kind, None) if isinstance(primitive, _Record) else None
        if found is None:
            raise KeyError(primitive)
        given: dict[str, Rule] = getattr(primitive, "given", {})
        return given[self._kind] if self._kind in given else self._show(primitive, found)

    def __delitem__(self, primitive: Any) -> None:
        raise errors.UnsupportedError(f"rules are not taken back ({self._kind} of {primitive})")

    def __iter__(self) -> Iterator[Any]:
        return iter(self._primitives)

    def __len__(self) -> int:
        return len(self._primitives)


def _jvp_of(primitive: Any, rule: Rule) -> Rule:
    """A rule of JAX's form as the record takes it."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        shown = [_shown(t, aval_of(p).to_tangent_aval()) for p, t in zip(primals, tangents)]
        outs, tangents_out = rule(tuple(primals), tuple(shown), **params)
        if primitive.multiple_results:
            return list(outs), [_taken(t) for t in tangents_out]
        return outs, _taken(tangents_out)

    return jvp


def _jvp_shown(primitive: Any, rule: Rule) -> Rule:
    """A rule of a record in JAX's form."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        outs, tangents_out = rule(list(primals), [_taken(t) for t in tangents], **params)
        zero = lambda t, o: _shown(t, aval_of(o).to_tangent_aval())
        if primitive.multiple_results:
            return outs, [zero(t, o) for t, o in zip(tangents_out, outs)]
        return outs, zero(tangents_out, outs)

    return jvp


def _transpose_of(primitive: Any, rule: Rule) -> Rule:
    def transpose(cotangents: Any, *operands: Any, **params: Any) -> Sequence[Any]:
        types = primitive.infer(tuple(x.aval if is_undefined_primal(x) else aval_of(x) for x in operands), params)
        given = cotangents if primitive.multiple_results else [cotangents]
        shown = [_shown(ct, aval.to_tangent_aval()) for ct, aval in zip(given, types)]
        pulled = rule(shown if primitive.multiple_results else shown[0], *operands, **params)
        return [None] * len(operands) if pulled is None else [_taken(ct) for ct in pulled]

    return transpose


def _transpose_shown(primitive: Any, rule: Rule) -> Rule:
    def transpose(cotangents: Any, *operands: Any, **params: Any) -> Sequence[Any]:
        taken = [_taken(ct) for ct in cotangents] if primitive.multiple_results else _taken(cotangents)
        return list(rule(taken, *operands, **params))

    return transpose


primitive_jvps = Rules("jvp", _jvp_of, _jvp_shown)
primitive_transposes = Rules("transpose", _transpose_of, _transpose_shown)


def get_primitive_transpose(primitive: Any) -> Rule:
    """The transpose rule of a primitive. UnsupportedError if it has none."""
    try:
        return primitive_transposes[primitive]
    except KeyError:
        raise errors.UnsupportedError(f"the primitive '{primitive}' has no transpose rule") from None


def _sum(primitive: Any, out: Any, terms: Sequence[Any]) -> Any:
    return functools.reduce(add_tangents, terms, Zero.from_primal_value(out))


def defjvp(primitive: Any, *rules: Rule | None) -> None:
    """Gives one rule per operand: `rule(tangent, *primals, **params)`; None where the derivative is zero."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = primitive.bind(*primals, **params)
        pairs = [(r, t) for r, t in zip(rules, tangents) if r is not None and type(t) is not Zero]
        return out, _sum(primitive, out, [r(t, *primals, **params) for r, t in pairs])

    primitive_jvps[primitive] = jvp


def defjvp2(primitive: Any, *rules: Rule | None) -> None:
    """As `defjvp`, of rules that are given the result as well: `rule(tangent, result, *primals, **params)`."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = primitive.bind(*primals, **params)
        pairs = [(r, t) for r, t in zip(rules, tangents) if r is not None and type(t) is not Zero]
        return out, _sum(primitive, out, [r(t, out, *primals, **params) for r, t in pairs])

    primitive_jvps[primitive] = jvp


def _linear_jvp(primitive: Any, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    out = primitive.bind(*primals, **params)
    if all(type(t) is Zero for t in tangents):
        zero = Zero.from_primal_value
        return out, [zero(o) for o in out] if primitive.multiple_results else zero(out)
    return out, primitive.bind(*map(instantiate_zeros, tangents), **params)


def _linear_transpose(primitive: Any, rule: Rule) -> Rule:
    def transpose(cotangents: Any, *operands: Any, **params: Any) -> Any:
        given = cotangents if primitive.multiple_results else [cotangents]
        if all(type(ct) is Zero for ct in given):
            return [None] * len(operands)
        return rule(cotangents, *operands, **params)

    return transpose


def deflinear(primitive: Any, transpose_rule: Rule) -> None:
    """Says that a primitive is linear in all its operands; `transpose_rule(cotangent, **params)` pulls back."""
    deflinear2(primitive, lambda ct, *operands, **params: transpose_rule(ct, **params))


def deflinear2(primitive: Any, transpose_rule: Rule) -> None:
    """As `deflinear`, of a rule that gets the operands as well: `transpose_rule(cotangent, *operands, **params)`."""
    primitive_jvps[primitive] = functools.partial(_linear_jvp, primitive)
    primitive_transposes[primitive] = _linear_transpose(primitive, transpose_rule)


def defbilinear(primitive: Any, lhs_rule: Rule, rhs_rule: Rule) -> None:
    """Says that a primitive is linear in each of its two operands; the rules pull back to either:
    `rule(cotangent, x, y, **params)`."""
    defjvp(
        primitive,
        lambda t, x, y, **params: primitive.bind(t, y, **params),
        lambda t, x, y, **params: primitive.bind(x, t, **params),
    )

    def transpose(cotangent: Any, x: Any, y: Any, **params: Any) -> Any:
        left = is_undefined_primal(x)
        if type(cotangent) is Zero:
            return [None, None]
        return [lhs_rule(cotangent, x, y, **params), None] if left else [None, rhs_rule(cotangent, x, y, **params)]

    primitive_transposes[primitive] = transpose


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise errors.MissingFunctionError(f"module {__name__!r} has no attribute {name!r}: it is not implemented")
