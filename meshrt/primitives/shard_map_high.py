"""Values of high types at the boundary of a `shard_map`.

Those whose derivatives consist of the derivatives of their arrays cross it as these arrays. Others, such as a quantized
matrix, whose tangents are floating, stay whole: an operand of the region is the value, and so is what the body sees.

    value of type q8[4,6], spec QSpec("x")      ->  a value of type q8[2,6] on each device of x=2
    tangent f32[4,6], spec QSpec("x").to_tangent_spec() = P("x", None)      ->  f32[2,6]

So do both cross it again as residuals, and cotangents with `to_ct_spec`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from meshrt import errors, tree_util
from meshrt.core.basic.parts import has_parts_derivatives, made_of, packed, parts_of
from meshrt.core.high import HiType, has_high_types, is_mutable
from meshrt.core.trace import Tracer
from meshrt.core.types import aval_of, in_program
from meshrt.primitives.shard_map_region import Region, inserted
from meshrt.sharding.high_spec import HiPspec
from meshrt.sharding.spec import PartitionSpec
from meshrt.transforms.custom_jvp import custom_jvp
from meshrt.transforms.high import TakenApart, is_high, kept_apart, leaf_paths, taken_apart

# Nothing for `meshrt.lax`.
__all__: list[str] = []


@dataclass(frozen=True)
class WholeSpec:
    """How a value of a high type that crosses the boundary whole is split: a PartitionSpec for each of its arrays, and
    what says how its derivatives are, the HiPspec that the user gave or else the type."""

    arrays: tuple[PartitionSpec, ...]
    said: Any
    lead: int = 0  # dimensions that `vmap` has put in front

    def __str__(self) -> str:
        return str(self.said) if isinstance(self.said, HiPspec) else ", ".join(map(str, self.arrays))

    @property
    def axes(self) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(a for s in self.arrays for a in s.axes))

    @property
    def unreduced(self) -> frozenset[Any]:
        return frozenset[Any]().union(*[s.unreduced for s in self.arrays])

    @property
    def reduced(self) -> frozenset[Any]:
        return frozenset[Any]().union(*[s.reduced for s in self.arrays])

    def inserted(self) -> WholeSpec:
        """The spec of a batch, whose arrays have it in front."""
        return WholeSpec(tuple(inserted(s, 0, None) for s in self.arrays), self.said, self.lead + 1)

    def of_derivative(self, ct: bool = False) -> Any:
        """The spec of tangents, or of cotangents.

        Raises:
          UnsupportedError: arrays are split, and neither the spec nor the type says how derivatives are.
        """
        if isinstance(self.said, HiPspec):
            spec: Any = self.said.to_ct_spec() if ct else self.said.to_tangent_spec()
        elif not any(s.partitions for s in self.arrays):
            return PartitionSpec()
        else:
            spec = self.said.tangent_spec(*[PartitionSpec(*s.partitions[self.lead :]) for s in self.arrays])
        if not isinstance(spec, PartitionSpec):
            spec = WholeSpec(tuple(spec.to_lo()), spec)
        for _ in range(self.lead):
            spec = with_batch(spec)
        return spec


def with_batch(spec: Any) -> Any:
    """The spec of a value with a mapped dimension, which is whole on all devices, in front of what `spec` speaks of."""
    return spec.inserted() if type(spec) is WholeSpec else inserted(spec, 0, None)


def tangents(specs: Sequence[Any], kinds: Sequence[Any]) -> tuple[Any, ...]:
    """The specs of the tangents of values of these types, which have the specs `specs`."""
    return tuple(_fitting(s.of_derivative(), k, "to_tangent_spec") if type(s) is WholeSpec else s
                 for s, k in zip(specs, kinds))  # fmt: skip


def duals(specs: Sequence[Any]) -> tuple[Any, ...]:
    """The specs of cotangents of values that have the specs `specs`: what is unreduced has reduced ones, and back."""
    return tuple(
        s.of_derivative(ct=True) if type(s) is WholeSpec else s.to_ct_spec() if s.unreduced or s.reduced else s
        for s in specs
    )


def _fitting(spec: Any, kind: Any, method: str) -> Any:
    tangent = kind.to_tangent_aval()
    if tangent.is_high == (type(spec) is WholeSpec):
        return spec
    what = "a HiPspec, as that type is high" if tangent.is_high else "a PartitionSpec"
    raise errors.ArgumentTypeError(
        f"a value of type {kind.short()} has derivatives of type {tangent.short()}, and the spec with which it crosses "
        f"the boundary of a shard_map says that they are split by {spec}: its method `{method}` must give {what}"
    )


def lo_specs(specs: Sequence[Any], parts: Sequence[Sequence[Any]], avals: Sequence[Any]) -> list[Any]:
    """A spec for each array where those values that `parts` has more types for are taken apart; mutable ones perhaps
    into contents of high types."""
    out: list[Any] = []
    for s, types, aval in zip(specs, parts, avals):
        if type(s) is WholeSpec:
            out += [s] if list(types) == [aval] else s.arrays
        else:
            out += [content_spec(t, s) for t in types] if aval.mutable else [s] * len(types)
    return out


def content_spec(kind: Any, spec: PartitionSpec) -> Any:
    """The spec of what a mutable value holds, all of whose arrays have the spec `spec`."""
    return WholeSpec((spec,) * len(kind.lo_ty()), kind) if kind.is_high else spec


# ---------------------------------------------------------------------------------------------------------------------
# Types


def stays_whole(kind: Any) -> bool:
    """Whether values of a type cross the boundary as they are: those of a closed type with derivatives of another kind
    than their arrays."""
    return isinstance(kind, HiType) and not (kind.mutable or kind.opens or has_parts_derivatives(kind))


def local(region: Region, spec: Any, kind: Any) -> Any:
    """The type inside of a value that enters with `spec`."""
    if type(spec) is not WholeSpec:
        return region.local(spec, kind)
    if isinstance(spec.said, HiPspec) and type(kind).shard is not HiType.shard:
        return kind.shard(region.mesh, frozenset(region.manual_axes), region.check_vma, spec.said)
    return made_of(kind, [region.local(s, in_program(t)) for s, t in zip(spec.arrays, kind.lo_ty(), strict=True)])


def whole(region: Region, spec: Any, kind: Any) -> Any:
    """The type outside of a value that leaves with `spec`."""
    if type(spec) is not WholeSpec:
        return region.whole(spec, kind)
    if isinstance(spec.said, HiPspec) and type(kind).unshard is not HiType.unshard:
        return kind.unshard(region.mesh, region.check_vma, spec.said)
    return made_of(kind, [region.whole(s, in_program(t)) for s, t in zip(spec.arrays, kind.lo_ty(), strict=True)])


# ---------------------------------------------------------------------------------------------------------------------
# Values


class Outline(NamedTuple):
    """A pytree that crosses the boundary: its leaves, which are arrays, values that stay whole (flagged), mutable ones
    and whatever is no array; and `full`, the tree with the types of arrays in the places of those that stay whole."""

    leaves: list[Any]
    structure: Any
    flags: list[bool]
    full: Any

    @property
    def counts(self) -> list[int]:
        """How many arrays each leaf stands for."""
        return [len(aval_of(x).lo_ty()) if f else 1 for x, f in zip(self.leaves, self.flags)]

    @property
    def paths(self) -> list[Any]:
        """Where each leaf stands in the tree: arrays of a value that was taken apart by their numbers in it."""
        return leaf_paths(self.structure)

    def types(self, leaves: Sequence[Any], own: Callable[[int, Any], Any]) -> list[Any]:
        """The type of each array, `own(number of the array, leaf)` of a leaf that is not whole."""
        out: list[Any] = []
        for x, f in zip(leaves, self.flags):
            kind: Any = aval_of(x) if f else None
            out += map(in_program, kind.lo_ty()) if f else [own(len(out), x)]
        return out


def outline(tree: Any, keeps: bool = True) -> Outline:
    """`tree` with high values taken apart, but for mutable ones and, if `keeps`, those that stay whole."""
    whole = lambda kind: keeps and stays_whole(kind)
    apart = taken_apart(tree, boxes=False, whole=whole)
    leaves, structure = tree_util.tree_flatten(apart)
    flags = [has_high_types() and is_high(x) and not is_mutable(x) for x in leaves]
    if any(flags):
        apart = full_of(structure, flags, [aval_of(x) if f else x for x, f in zip(leaves, flags)])
    return Outline(leaves, structure, flags, apart)


def full_of(structure: Any, flags: Sequence[bool], leaves: Sequence[Any]) -> Any:
    """A tree with the types of its arrays in the place of each flagged type among its leaves."""
    return kept_apart(structure, [TakenApart(x, map(in_program, x.lo_ty())) if f else x for x, f in zip(leaves, flags)])


def moved(value: Any, spec: WholeSpec, move: Callable[[Any, PartitionSpec], Any]) -> Any:
    """A value each of whose arrays becomes `move(array, its spec)`, and whose tangent becomes likewise."""
    value = packed(value)
    kind: Any = aval_of(value)

    @custom_jvp
    def through(v: Any) -> Any:
        return packed(kind.raise_val(*[move(x, s) for x, s in zip(parts_of(v), spec.arrays)]))

    if not isinstance(value, Tracer):
        return through.fun(value)

    def derivative(primals: Any, given: Any) -> Any:
        (own,) = tangents([spec], [kind])
        tangent = given[0]
        return through(*primals), moved(tangent, own, move) if type(own) is WholeSpec else move(tangent, own)

    through.defjvp(derivative)
    return through(value)


def grouped(
    flags: Sequence[bool], counts: Sequence[int], values: Sequence[Any], said: Sequence[Any], flat: Sequence[Any]
) -> list[Any]:
    """A spec for each value from one for each of its arrays (`flat`; `said` has what the user gave in its place).
    Flagged are the values, or types, that stay whole, of `counts` arrays."""
    given, arrays, out = iter(said), iter(flat), []
    for is_whole, count, value in zip(flags, counts, values):
        own, specs = list(islice(given, count)), tuple(islice(arrays, count))
        kind = value if isinstance(value, HiType) else aval_of(value) if is_whole else None
        out.append(WholeSpec(specs, own[0] if isinstance(own[0], HiPspec) else kind) if is_whole else specs[0])
    return out
