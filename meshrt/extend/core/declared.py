"""Primitives that are declared rule by rule, as libraries written for JAX do.

The record of a primitive (`meshrt.core.primitive`) is the same as that of meshrt's own; what differs is that its rules
come one after the other, from several modules (`def_impl` here, `meshrt.interpreters.ad.primitive_jvps`, ...), in
JAX's conventions. `meshrt.interpreters` translates those.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, TypeVar

from meshrt import errors
from meshrt.core.primitive import Primitive as Record

__all__ = ["Primitive", "declared", "give"]

F = TypeVar("F", bound=Callable[..., Any])


class _AnyPrimitive(type):
    """Of `isinstance(eqn.primitive, Primitive)` every primitive is one, however it was declared."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, Record) if cls is Primitive else super().__instancecheck__(value)


class Primitive(Record, metaclass=_AnyPrimitive):
    """An operation of a library's own, whose rules are given one by one.

    >>> scale_p = Primitive("scale")
    >>> _ = scale_p.def_impl(lambda x, *, factor: x * factor)
    >>> _ = scale_p.def_abstract_eval(lambda x, *, factor: x)
    >>> scale_p.bind(2.0, factor=3.0)
    6.0

    Further rules: `meshrt.interpreters.ad.primitive_jvps[scale_p]` and `.primitive_transposes`,
    `meshrt.interpreters.batching.primitive_batchers`, `meshrt.interpreters.mlir.register_lowering`. A rule that is not
    given raises UnsupportedError where it is needed. Subclasses may have `impl` and `abstract_eval`, which returns
    (types, effects), as methods.

    Args:
      name: stands in printed programs and in messages.

    Set `multiple_results = True` if `bind` is to return a list; do so before anything is bound.
    """

    __slots__ = ("given",)

    def __init__(self, name: str):
        kind: Any = type(self)
        own = _of_subclasses(kind)
        several = bool(kind.multiple_results) if "multiple_results" in own else False
        super().__init__(name, cache_types=False, typed=False, multiple_results=several)
        # Rules as they were given, in JAX's conventions, by kind.
        self.given: dict[str, Callable[..., Any]] = {}
        if "impl" in own:
            self.def_impl(types.MethodType(kind.impl, self))
        if "abstract_eval" in own:
            self.def_effectful_abstract_eval(self.abstract_eval)

    def def_impl(self, impl: F) -> F:
        """Says how the operation is evaluated on arrays: `impl(*operands, **params)`. Returns `impl`."""
        self.set_rule("impl", impl)
        return impl

    def def_abstract_eval(self, rule: F) -> F:
        """Says of which types results are: `rule(*types, **params)` returns a type, or one for each result."""
        self.set_rule("infer_rule", rule)
        return rule

    def def_effectful_abstract_eval(self, rule: F) -> F:
        """As `def_abstract_eval`, for a rule that returns (types, effects)."""
        self.set_rule("infer_rule", lambda *avals, **params: rule(*avals, **params)[0])
        self.set_rule("effects_rule", lambda *avals, **params: frozenset(rule(*avals, **params)[1]))
        return rule

    def set_rule(self, kind: str, rule: Callable[..., Any], given: Callable[..., Any] | None = None) -> None:
        """Puts a rule of meshrt's convention into the record; `given` is what the library gave."""
        object.__setattr__(self, kind, rule)
        self.given[kind] = rule if given is None else given


def _of_subclasses(kind: type) -> set[str]:
    """The names that classes below `Primitive` define."""
    own = kind.__mro__[: kind.__mro__.index(Primitive)]
    return {name for cls in own for name in vars(cls)}


def declared(primitive: Any, rule: str) -> Primitive:
    """`primitive`, if it may be given a rule; those of meshrt have theirs.

    Raises ArgumentTypeError for what is no primitive, UnsupportedError for one of meshrt's own.
    """
    if type(primitive) is Primitive or Primitive in type(primitive).__mro__:
        found: Primitive = primitive
        return found
    if not isinstance(primitive, Record):
        raise errors.ArgumentTypeError(f"a {rule} rule belongs to a Primitive, got {primitive!r}")
    raise errors.UnsupportedError(
        f"the primitive '{primitive.name}' is meshrt's own, and its rules are not changed; give the {rule} rule to a "
        "primitive of yours, meshrt.extend.core.Primitive(name), that is bound in its place"
    )


def give(primitive: Any, kind: str, rule: Callable[..., Any], given: Callable[..., Any]) -> None:
    """Puts a rule into the record of a library's primitive, or of one of meshrt's that has none of this kind.

    `rule` is in meshrt's convention, `given` what the library gave. Raises as `declared`.
    """
    library = Primitive in type(primitive).__mro__
    if not library and isinstance(primitive, Record) and getattr(primitive, kind) is None:
        object.__setattr__(primitive, kind, rule)
    else:
        declared(primitive, kind).set_rule(kind, rule, given)
