"""What a primitive adds to the factor rule of its operations where mesh axes are Explicit.

The shardings of results follow from the sharding rules of the StableHLO that a primitive lowers to
(`meshrt.lowering.explicit`). Some primitives accept less than those rules, because the rule would leave a choice to
somebody else, and some know more: a slice keeps the sharding of a dimension that it shortens. Their records say so
with the trait `explicit`, a function of an `Application`: it raises, or returns the entries of every result, or None,
which leaves the rest to the rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from meshrt import errors
from meshrt.core import source
from meshrt.core.types import ShapedArray

if TYPE_CHECKING:
    from meshrt.core.primitive import Primitive

__all__ = [
    "Application", "Policy", "Spec", "Sums", "added", "alike", "axes_of", "copied", "each", "has_sums", "joined",
    "keeps", "matrices", "moved", "multiplied", "parts", "reduced_of", "refusal", "shown", "stacks", "unreduced_of",
    "whole",
]  # fmt: skip

# One entry per dimension: None, an axis, or a tuple of axes, major first.
Spec = tuple[Any, ...]
Policy = Callable[["Application"], "Sequence[Spec] | None"]


class Application(NamedTuple):
    """A primitive applied to operands with shardings.

    `avals` are the types of the operands and `types` the bare ones of the results; `specs` has the entries of every
    operand, `sizes` those of the mesh's axes.
    """

    primitive: Primitive
    avals: Sequence[ShapedArray]
    params: dict[str, Any]
    types: Sequence[ShapedArray]
    specs: Sequence[Spec]
    sizes: dict[Any, int]

    def refuse(self, why: str, fixes: str = "") -> NoReturn:
        """Raises ShardingTypeError with the operands' types, the user's line and what to do."""
        raise refusal(self.primitive.name, self.avals, why, fixes)

    def parts(self, entry: Any) -> int:
        """Into how many parts an entry splits a dimension."""
        return parts(entry, self.sizes)


def axes_of(entry: Any) -> tuple[Any, ...]:
    """The axes of one entry, major first."""
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def parts(entry: Any, sizes: dict[Any, int]) -> int:
    """Into how many parts an entry splits a dimension, on a mesh with axes of these sizes."""
    return math.prod([sizes[a] for a in axes_of(entry)])


RESHARD = "`meshrt.sharding.reshard(x, P(...))` an operand before"
AUTO = "let propagation decide here with `meshrt.sharding.auto_axes(f, out_sharding=P(...))`"


def refusal(name: str, avals: Sequence[Any], why: str, fixes: str = "") -> errors.ShardingTypeError:
    """The error for shardings with which `name` cannot be applied; `fixes` says what to do beside the usual."""
    types = ", ".join(a.short() for a in avals)
    first = f"{fixes}, or " if fixes else ""
    return errors.ShardingTypeError(
        f"{why} This is {name} of {types} at {source.capture()}. To go on, {first}{RESHARD}, or {AUTO}"
    )


# ---------------------------------------------------------------------------------------------------------------------
# Policies that several primitives share


def whole(dimensions: Callable[[dict[str, Any]], Sequence[int]], text: str) -> Policy:
    """The dimensions that the params name must not be split; `text` may use {entry}, {spec}, {type} and {dim}."""

    def policy(app: Application) -> None:
        for aval, spec in zip(app.avals, app.specs):
            for d in dimensions(app.params):
                if spec and spec[d] is not None:
                    app.refuse(text.format(entry=spec[d], spec=shown(spec), type=aval.short(), dim=d))

    return policy


def alike(text: str) -> Policy:
    """All operands that are not scalars must be split alike; `text` may use {specs}."""

    def policy(app: Application) -> None:
        specs = [s for a, s in zip(app.avals, app.specs) if a.ndim]
        if any(s != specs[0] for s in specs):
            app.refuse(text.format(specs=", ".join(map(shown, specs))))

    return policy


def keeps(name: str) -> Policy:
    """Results are split as the first operand; where a size changes the parts must still divide it."""

    def policy(app: Application) -> list[Spec]:
        spec, shape = app.specs[0], app.avals[0].shape
        for out in app.types:
            for n, m, entry in zip(shape, out.shape, spec):
                if n != m and entry is not None and m % app.parts(entry):
                    app.refuse(
                        f"{name} on sharded dims where out dim ({m}) is not divisible by mesh axes "
                        f"({app.parts(entry)}) with spec ({shown_entry(entry)}) is not implemented. Got input type="
                        f"{app.avals[0].short()} and output shape={out.shape}."
                    )
        return [spec] * len(app.types)

    return policy


def stacks(*ranks: int) -> Policy:
    """The last dimensions of all operands, as many as `ranks` say, are whole; those before, the batch, split alike."""

    def policy(app: Application) -> list[Spec]:
        name, batches = app.primitive.name, []
        for i, (spec, rank) in enumerate(zip(app.specs, ranks)):
            count = len(spec) - rank
            if any(e is not None for e in spec[count:]):
                app.refuse(f"Input {i} to {name} must be unsharded on non-batch dimensions, but got {shown(spec)}.")
            batches.append(spec[:count])
        if any(b != batches[0] for b in batches):
            app.refuse(f"All inputs to {name} must have the same batch sharding, but got {batches}.")
        return [batches[0] + (None,) * (t.ndim - len(batches[0])) for t in app.types]

    return policy


matrices = stacks(2)


def each(*policies: Policy) -> Policy:
    """All of these, in order; the first that returns entries decides."""

    def policy(app: Application) -> Sequence[Spec] | None:
        for one in policies:
            found = one(app)
            if found is not None:
                return found
        return None

    return policy


# ---------------------------------------------------------------------------------------------------------------------
# Partial sums: (the axes that the result is unreduced over, those that it is reduced over)

Axes = frozenset[Any]
Sums = Callable[["Application"], tuple[Axes, Axes]]
NO_AXES: Axes = frozenset()


def unreduced_of(aval: Any) -> Axes:
    """The axes over which each device holds a part of the sum only."""
    return NO_AXES if aval.explicit is None else aval.explicit.spec.unreduced


def has_sums(aval: Any) -> bool:
    """Whether a type says of some axes that the value is unreduced or reduced over them."""
    return bool(unreduced_of(aval) or reduced_of(aval))


def reduced_of(aval: Any) -> Axes:
    """The axes over which the value is copied and its cotangent a partial sum."""
    return NO_AXES if aval.explicit is None else aval.explicit.spec.reduced


def alike_reduced(app: Application) -> Axes:
    """What the result of a function of values that are copied over the same axes is reduced over."""
    found = {r for a in app.avals if (r := reduced_of(a))}
    if len(found) > 1:
        app.refuse(
            "All inputs should be reduced across the same mesh axes. Got specs: "
            f"{', '.join(str(sorted(r)) for r in found)}."
        )
    reduced = next(iter(found), NO_AXES)
    for a, spec in zip(app.avals, app.specs):
        split = {x for e in spec for x in axes_of(e)}
        if split & reduced:
            app.refuse(
                "Inputs cannot be sharded/varying on the same axes that another input is reduced on. Got input type: "
                f"{a.short()} and reduced spec: {sorted(reduced)}.",
                "reshard the input which is reduced to be sharded on the mesh axes it is reduced on",
            )
        if a.ndim and reduced - split - unreduced_of(a) - reduced_of(a):
            app.refuse(
                "Inputs cannot be replicated on the same axes that another input is reduced on. Got input type: "
                f"{a.short()} and reduced spec: {sorted(reduced)}."
            )
    return reduced


def copied(app: Application) -> tuple[Axes, Axes]:
    """Of functions of copies: copies."""
    if any(unreduced_of(a) for a in app.avals):
        raise errors.UnsupportedError(
            f"unreduced rule for {app.primitive.name} is not implemented: it is not linear, so a partial sum has to be "
            f"added up before, with meshrt.sharding.reshard. Got {', '.join(a.short() for a in app.avals)} at "
            f"{source.capture()}"
        )
    return NO_AXES, alike_reduced(app)


def moved(app: Application) -> tuple[Axes, Axes]:
    """Of functions that only move the elements of their first operand: what it is."""
    return unreduced_of(app.avals[0]), reduced_of(app.avals[0])


def joined(app: Application) -> tuple[Axes, Axes]:
    """Of functions that put values side by side: all are partial sums over the same axes."""
    found = {unreduced_of(a) for a in app.avals if a.ndim}
    if len(found) > 1:
        app.refuse(
            f"All operands of {app.primitive.name} should be unreduced along the same mesh axes. Got "
            f"{', '.join(a.short() for a in app.avals)}."
        )
    return next(iter(found), NO_AXES), alike_reduced(app)


def added(app: Application) -> tuple[Axes, Axes]:
    """Of sums: both are partial sums over the same axes, or none is."""
    lhs, rhs = map(unreduced_of, app.avals)
    reduced = alike_reduced(app)
    if lhs and rhs and lhs != rhs:
        app.refuse(
            f"lhs and rhs to `{app.primitive.name}` must be unreduced along the same mesh axes. Got lhs={set(lhs)}, "
            f"rhs={set(rhs)}."
        )
    if bool(lhs) != bool(rhs):
        partial, whole = ("lhs", "rhs") if lhs else ("rhs", "lhs")
        app.refuse(
            f"{partial} is unreduced while {whole} is not. `{app.primitive.name}` operation does not allow this "
            f"because there will be implicit communication. Please reduce {partial} via `reshard` before calling "
            f"`{app.primitive.name}`."
        )
    return lhs, reduced


def multiplied(app: Application) -> tuple[Axes, Axes]:
    """Of products: one is a partial sum, the other copied over the same axes."""
    (x, y), name = app.avals, app.primitive.name
    lhs, rhs = unreduced_of(x), unreduced_of(y)
    if lhs and rhs:
        app.refuse(
            f"lhs and rhs to `{name}` cannot be unreduced since {name} is bilinear. Got lhs={set(lhs)}, rhs={set(rhs)}."
        )
    if not lhs and not rhs:
        return NO_AXES, alike_reduced(app)
    other, first, second = (y, "RHS", "LHS") if lhs else (x, "LHS", "RHS")
    partial = lhs or rhs
    if other.ndim and partial != reduced_of(other):
        app.refuse(
            f"{first} should be reduced along the same axes {second} is unreduced on. Got lhs={x.short()} and "
            f"rhs={y.short()}."
        )
    return partial, NO_AXES


def shown_entry(entry: Any) -> str:
    """`x`, or `('x', 'y')`."""
    return str(entry)


def shown(spec: Spec) -> str:
    """`('x', None)`."""
    return str(tuple(spec))
