"""Walks a kernel's Jaxpr and asks a rule per primitive to write it as MLIR operations.

A rule is `rule(walk, eqn, *operands) -> value` (a sequence of values for primitives with several results). Operands are
`ir.Value`s, and for references what the back end makes of them. What a rule builds goes to the current insertion point
and carries the user's line of the equation. A back end is a subclass of `Walk`: a table of rules, how types are
written, and what nested programs need around them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith

from meshrt import dtypes, errors
from meshrt.core.jaxpr import Eqn, Jaxpr, Literal, Var
from meshrt.core.primitive import Primitive
from meshrt.core.source import Source
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import ShapedArray
from meshrt.primitives.written import PROGRAMS
from meshrt.sharding.mesh import AbstractMesh

__all__ = ["Rule", "Walk", "kind_of", "through", "written"]

Rule = Callable[..., Any]


def kind_of(dtype: Any) -> str:
    """What arithmetic elements have: "f", "i", "u" or "b" (bool); "" for others."""
    if dtype == np.bool_:
        return "b"
    for kind, family in (("f", np.floating), ("i", np.signedinteger), ("u", np.unsignedinteger)):
        if dtypes.issubdtype(dtype, family):
            return kind
    return ""


class Walk:
    """Writes equations at the insertion point. Subclasses give `rules`, `backend` and the types.

    `mesh` is that of the manual region around the kernel, by which other chips are named; None on one device.
    """

    rules: ClassVar[Mapping[Primitive, Rule]]
    backend: ClassVar[str]
    has_wide_scalars: ClassVar[bool] = False  # whether scalars narrower than a word are computed with as words
    passes_masks: ClassVar[bool] = True  # whether arrays of bools cross the edges of loops and branches as such
    branches_on_views: ClassVar[bool] = True  # whether a branch may do nothing but show a part of an array

    def __init__(self, kernel: str, mesh: AbstractMesh | None = None) -> None:
        self.kernel, self.mesh = kernel, mesh
        self._at: Eqn | None = None
        self._used: set[Any] = set()

    # -- types -----------------------------------------------------------------------------------------------------

    def element(self, dtype: Any) -> ir.Type:
        """The type of one element. UnsupportedError for those that the hardware has not."""
        raise NotImplementedError

    def shaped(self, shape: Sequence[int], element: ir.Type) -> ir.Type:
        """The type of an array in registers."""
        raise NotImplementedError

    def like(self, shape: Sequence[int], dtype: Any) -> ir.Type:
        """The type of a value: that of an element for those of no dimension."""
        element = self.element(dtype)
        return self.shaped(shape, element) if shape else element

    def type_of(self, aval: ShapedArray) -> ir.Type:
        return self.like(aval.shape, aval.dtype)

    # -- values ----------------------------------------------------------------------------------------------------

    def constant(self, value: Any, shape: Sequence[int], dtype: Any) -> ir.Value:
        """A value all of whose elements are `value`."""
        element = self.element(dtype)
        attr = _number(value, np.dtype(dtype), element)
        if not shape:
            return arith.constant(element, attr)
        kind = self.shaped(shape, element)
        return arith.constant(kind, ir.DenseElementsAttr.get_splat(kind, attr))

    def i32(self, value: int) -> ir.Value:
        """A 32-bit whole number."""
        return arith.constant(ir.IntegerType.get_signless(32), value)

    def spread(self, value: ir.Value, shape: Sequence[int], dtype: Any) -> ir.Value:
        """An array all of whose elements are a scalar."""
        raise NotImplementedError

    def reshaped(self, value: ir.Value, shape: Sequence[int], dtype: Any) -> ir.Value:
        """The same elements in another shape, neither of which is ()."""
        raise NotImplementedError

    def resized(self, value: ir.Value, kind: ir.Type, old: int, new: int) -> ir.Value:
        """Floats of `old` bits as those of another number of them, `new`."""
        return arith.extf(kind, value) if old < new else arith.truncf(kind, value)

    def alike(self, eqn: Eqn, operands: Sequence[ir.Value]) -> list[ir.Value]:
        """Operands of an elementwise operation in one shape: scalars among them are spread."""
        avals = [a.aval for a in eqn.invars]
        shape: tuple[int, ...] = max([a.shape for a in avals], key=len)
        return [v if a.shape == shape else self.spread(v, shape, a.dtype) for v, a in zip(operands, avals)]

    # -- programs --------------------------------------------------------------------------------------------------

    def jaxpr(self, jaxpr: Jaxpr, args: Sequence[Any]) -> list[Any]:
        """Writes a program applied to `args`; what it gives."""
        env: dict[Var, Any] = dict(zip(jaxpr.invars, args))
        self._used.update([a for eqn in jaxpr.eqns for a in eqn.invars if type(a) is Var])
        self._used.update([a for a in jaxpr.outvars if type(a) is Var])
        read = lambda a: self.constant(a.val, a.aval.shape, a.aval.dtype) if type(a) is Literal else env[a]
        for eqn in jaxpr.eqns:
            env.update(zip(eqn.outvars, self.equation(eqn, read)))
        return [read(a) for a in jaxpr.outvars]

    def equation(self, eqn: Eqn, read: Callable[[Any], Any]) -> Sequence[Any]:
        rule = self.rules.get(eqn.primitive)
        if rule is None and eqn.primitive in PROGRAMS:
            rule = through(PROGRAMS[eqn.primitive])
        outer, self._at = self._at, eqn
        try:
            if rule is None:
                self.refuse(f"there is no such operation in {self.backend} kernels")
            with location(eqn.source, eqn.primitive.name):
                out = rule(self, eqn, *map(read, eqn.invars))
        finally:
            self._at = outer
        return out if eqn.primitive.multiple_results else (out,)

    def is_used(self, v: Var) -> bool:
        """Whether something in the program around reads a variable."""
        return v in self._used

    def nested(self, jaxpr: Jaxpr, args: Sequence[Any]) -> list[Any]:
        """Writes a program inside of a loop's or branch's region."""
        return self.jaxpr(jaxpr, args)

    def refuse(self, why: str) -> NoReturn:
        """Raises the error for something that the back end cannot write.

        Raises:
          UnsupportedError: names kernel, operation and source line.
        """
        eqn = self._at
        what = f"'{eqn.primitive}' of {operands_text(eqn)} at {eqn.source}" if eqn is not None else "its parameters"
        raise errors.UnsupportedError(f"{self.backend}: the kernel {self.kernel} cannot be compiled: {what}: {why}")


def operands_text(eqn: Eqn) -> str:
    """The types of an equation's operands, for messages."""
    return ", ".join(a.aval.short() for a in eqn.invars) or "no operands"


def location(source: Source | None, name: str) -> ir.Location:
    """Where an operation comes from."""
    if source is None or source.code is None:
        return ir.Location.name(name)
    return ir.Location.name(name, ir.Location.file(source.file, max(source.line, 1), 1))


def _number(value: Any, dtype: np.dtype, element: ir.Type) -> ir.Attribute:
    if kind_of(dtype) == "f":
        return ir.FloatAttr.get(element, float(value))
    if dtype == np.bool_:
        return ir.IntegerAttr.get(element, bool(value))
    number = int(value)
    if kind_of(dtype) == "u" and number >= 1 << (8 * dtype.itemsize - 1):  # types have no sign
        number -= 1 << (8 * dtype.itemsize)
    return ir.IntegerAttr.get(element, number)


def written(
    walk: Walk, fun: Callable[..., Sequence[Any]], avals: Sequence[Any], operands: Sequence[Any], name: str
) -> list[Any]:
    """What `fun(*operands)`, a function of arrays of these types, gives, written as the operations that it applies."""
    closed = trace_to_jaxpr(fun, list(avals), name)
    consts = [walk.constant(np.asarray(c)[()], (), np.asarray(c).dtype) for c in closed.consts]
    jaxpr = closed.jaxpr
    return walk.jaxpr(Jaxpr((), (*jaxpr.constvars, *jaxpr.invars), jaxpr.outvars, jaxpr.eqns), [*consts, *operands])


def through(fun: Callable[..., Any]) -> Rule:
    """The rule of an operation that consists of others: `fun(*operands, **params)` applies these."""

    def rule(walk: Walk, eqn: Eqn, *operands: Any) -> Any:
        several = eqn.primitive.multiple_results

        def flat(*args: Any) -> Sequence[Any]:
            out = fun(*args, **eqn.params)
            return list(out) if several else [out]

        outs = written(walk, flat, [a.aval for a in eqn.invars], operands, eqn.primitive.name)
        return outs if several else outs[0]

    return rule
