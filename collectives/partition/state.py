"""What the partitioner knows about a value of the global program: in which layouts each device holds it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from propagation.program import Op

from ..cost import item_bytes
from ..emit import Ref, Region
from ..layout import Dims

__all__ = ["TRANSPARENT", "Journal", "Partial", "Recipe", "Span", "State", "Version", "View"]

# Operations whose results remember what they were made of.
TRANSPARENT = frozenset(
    [f"stablehlo.{n}" for n in ("broadcast_in_dim", "divide", "multiply", "negate", "reduce", "reshape", "subtract")]
    + ["chlo.square"]
)


class Span(NamedTuple):
    """Positions [start, start + length) along `dim`, of `size` positions."""

    dim: int
    size: int
    start: int
    length: int

    @property
    def is_all(self) -> bool:
        return self.start == 0 and self.length == self.size

    @property
    def is_inside(self) -> bool:
        return self.start >= 0 and self.start + self.length <= self.size


@dataclass(slots=True)
class View:
    """A value that is positions [start, start + length) of `base` along `dim`, not cut out yet.

    `dims` is the layout of `base` (of global size `size` along `dim`) and of the value once `cut` makes it. Operations
    that move positions themselves use the base, so that elements travel once. Positions outside of the base hold the
    number `fill`; None if only `cut` knows what they hold. What `local` does to other dimensions (pad them) is still
    to be done after positions have moved. `scalar` holds what lies outside, `more` are further dimensions of which the
    value has other positions than the base. A value made of several tensors along `dim` has `joined`: (tensors, their
    sizes, runs) as `intervals.assemble` takes them, and its base means nothing.
    """

    base: Ref
    size: int
    dim: int
    start: int
    length: int
    dims: Dims
    cut: Callable[[], Ref]
    fill: float | int | bool | None = None
    local: Callable[[Ref], Ref] | None = None
    scalar: Ref | None = None
    more: tuple[Span, ...] = ()
    joined: tuple | None = None

    @property
    def spans(self) -> tuple[Span, ...]:
        """All dimensions of which the value has other positions than the base."""
        return (Span(self.dim, self.size, self.start, self.length), *self.more)

    def holds(self, start: int, length: int) -> bool:
        """Whether positions [start, start + length) of the value lie within the base."""
        first = self.start + start
        return self.local is None and first >= 0 and first + length <= self.size

    @property
    def covers(self) -> bool:
        """Whether the value holds the whole base."""
        return self.start <= 0 and self.start + self.length >= self.size


@dataclass(slots=True)
class Partial:
    """A value as a sum (or maximum, ...) that has not been taken yet.

    The value is the combination, by `kind`, of `parts`: for each tuple of atoms a tensor laid out as `dims`
    that must still be reduced over those atoms. The part under `()` is complete already. Keeping several parts
    lets an add of a complete and a partial value wait, so that a chain of adds is reduced once. `masked` parts hold
    zeros that stand for nothing, which must not meet an infinity. Of `chosen` parts, one device's holds an element and
    all others nothing: its bits arrive as they are. `op` is the operation that left the value so, if one did.
    """

    kind: str
    dims: Dims
    parts: dict[tuple[int, ...], Ref]
    masked: bool = False
    chosen: bool = False
    op: Op | None = None


@dataclass(slots=True)
class Recipe:
    """How to make a value once more, in another layout, from smaller ones.

    Masks, one-hot rows and broadcasts are large tensors made of small ones by pointwise work: moving the small ones and
    repeating the work sends less than moving the result. `operands(dims)` are the layouts of the sources for a layout
    of the value, or None; `write(refs, dims)` writes the work; `bytes` is the size of all that it is made of.
    """

    sources: tuple[State, ...]
    operands: Callable[[Dims], tuple[Dims, ...] | None]
    write: Callable[[list[Ref], Dims], Ref]
    bytes: float


class State:
    """One value of the global program.

    bytes     of the whole value
    home      the region in which it is defined
    versions  complete versions by layout, visible wherever the value is
    partial   a version that still has to be reduced
    make      for values that every device can compute in any layout (constants, positions, ...): the function
              that does, called with the layout
    view      for a stretch of another tensor that has not been cut out: where it is
    origin    the operation that made it and the states of its operands, if `factored` may look into it
    recipe    for a large value made of small ones: how to make it in another layout
    uses      number of uses of the value
    hint      for a value carried by a loop: a layout in which the body would rather have it
    """

    __slots__ = (
        "bits", "bytes", "dtype", "hint", "home", "make", "origin", "partial", "recipe", "shape", "type_text", "uses",
        "versions", "view",
    )  # fmt: skip

    def __init__(self, shape: tuple[int, ...], dtype: str, home: Region, uses: int, type_text: str | None = None):
        self.shape = shape
        self.dtype = dtype
        self.bits = item_bytes(dtype)
        self.bytes: float = math.prod(shape) * self.bits
        self.home = home
        self.uses = uses
        self.versions: dict[Dims, Ref] = {}
        self.partial: Partial | None = None
        self.make: Callable[[Dims], Ref] | None = None
        self.type_text = type_text
        self.hint: Dims | None = None
        self.view: View | None = None
        self.recipe: Recipe | None = None
        self.origin: tuple | None = None

    @property
    def pending(self) -> tuple[int, ...]:
        """All atoms over which the value is still to be reduced, if it has no complete version."""
        if self.versions or self.partial is None:
            return ()
        return tuple(sorted({a for part in self.partial.parts for a in part}))

    @property
    def dims(self) -> Dims | None:
        """The layout the value was made in; None if it can be made in any."""
        if self.versions:
            return next(iter(self.versions))
        if self.view is not None:
            return self.view.dims
        return self.partial.dims if self.partial is not None else None


class Version(NamedTuple):
    """One of the `versions` of a tensor of a global `shape`, visible in `region`."""

    versions: dict[Dims, Ref]
    dims: Dims
    ref: Ref
    shape: tuple[int, ...]
    region: Region


class Journal:
    """Versions of values in the order in which they were remembered, so that they can be forgotten again."""

    __slots__ = ("_entries", "_siblings")

    def __init__(self) -> None:
        self._entries: list[Version] = []
        self._siblings: dict[tuple[Ref, tuple[int, ...]], tuple[dict[Dims, Ref], Region]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def remember(self, version: Version) -> None:
        """Adds a version, unless there is one in that layout."""
        versions, dims, ref, shape, region = version
        if dims not in versions:
            versions[dims] = ref
            self._entries.append(version)
            for other in versions.values():
                self._siblings[other, shape] = versions, region

    def sibling(self, ref: Ref, shape: tuple[int, ...], have: Dims, dims: Dims, region: Region) -> Ref | None:
        """The version laid out as `dims` of the value of global `shape` of which `ref` is the version laid out as
        `have`; None if `ref` was never moved, or there is none that is visible in `region`. Values of other shapes may
        have the same pieces, as a slice may have whose missing positions are padding.

        A sum may have taken a value whole and be wanted split, as the value was before it was gathered: nobody has to
        keep it whole, and cut it again.
        """
        versions, home = self._siblings.get((ref, shape), ({}, region))
        return versions.get(dims) if versions.get(have) is ref and _is_within(region, home) else None

    def more(self, sources: Sequence[tuple], shape: tuple[int, ...], region: Region) -> list[tuple]:
        """What else a value of `sources` = [(layout, parts)] can be made of: the versions, visible in `region`, of
        those whose other name it is."""
        out = []
        for have, parts in sources:
            ref = parts[()] if tuple(parts) == ((),) else None
            versions, home = self._siblings.get((ref, shape), ({}, region))
            if versions.get(have) is ref and _is_within(region, home):
                out += [(dims, {(): other}) for dims, other in versions.items() if dims != have]
        return out

    def layouts(self, ref: Ref, shape: tuple[int, ...]) -> tuple[Dims, ...]:
        """All layouts in which `sibling` may have versions."""
        return tuple(self._siblings.get((ref, shape), ({},))[0])

    def forget(self, mark: int) -> list[Version]:
        """Takes back the versions remembered since the journal was `mark` long, and returns them for `remember`."""
        found = self._entries[mark:]
        del self._entries[mark:]
        for version in found:
            del version.versions[version.dims]
        return found


def _is_within(region: Region | None, outer: Region) -> bool:
    while region is not None and region is not outer:
        region = region.parent
    return region is not None
