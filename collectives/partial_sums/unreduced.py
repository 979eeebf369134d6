"""Values that the program declares unreduced (`P(unreduced={"x"})`): every device along some axes holds an addend.

Arguments enter as partial sums, whose reduction is deferred (`deferred_reduction`). Results declared unreduced leave as
addends: partial sums over these axes as they are; of any other value the first device along these axes returns the
value, and the others zeros."""

from __future__ import annotations

from collections.abc import Mapping

from propagation.model import TensorSharding
from propagation.program import Value

from ..ir.operations import attributes
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context

__all__ = ["addend", "atoms_of"]


def atoms_of(ctx: Context, sharding: TensorSharding | None) -> tuple[int, ...]:
    """The atoms over which a sharding is unreduced, in the order of the mesh."""
    return () if sharding is None else tuple(sorted(ctx.atoms.of_axes(sharding.unreduced)))


def addend(ctx: Context, value: Value, dims: Dims, atoms: tuple[int, ...]) -> LocalValue:
    """A tensor laid out as `dims` on each device, whose sum over `atoms` is the value."""
    state = ctx.state(value)
    partial = None if state.versions else state.partial
    parts: Mapping[tuple[int, ...], LocalValue | None] = {(): None}
    if partial is not None and (partial.kind, partial.dims) == ("add", dims):
        if all(set(pending) <= set(atoms) for pending in partial.parts):
            parts = partial.parts
    total: LocalValue | None = None
    for pending, part in parts.items():
        ref = ctx.get(value, dims) if part is None else part
        ref = _on_first(ctx, ref, tuple(a for a in atoms if a not in pending))
        total = ref if total is None else ctx.combine("add", total, ref)
    assert total is not None
    return total


def _on_first(ctx: Context, ref: LocalValue, atoms: tuple[int, ...]) -> LocalValue:
    """`ref` on the first devices along `atoms`, zeros on the others."""
    if not atoms:
        return ref
    realiser, region = ctx.realiser, ctx.region
    attrs = attributes("stablehlo.compare", "EQ")
    place = realiser.coordinate(region, atoms)
    is_first = region.shared("stablehlo.compare", (place, realiser.index(region, 0)), (), "i1", attrs)
    zero = realiser.zero(region, ref.shape, ref.dtype)
    return region.shared("stablehlo.select", (is_first, ref, zero), ref.shape, ref.dtype, loc=ctx.loc)
