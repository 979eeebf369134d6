"""What the partitioner knows about a value of the global program: the versions of it that the per-device program holds.

A value of the global program may be held by the devices in several layouts at once (a *version* per layout), be
*unreduced* (`Partial`: every device holds an addend, and the reduction over devices is deferred), be a slice, pad or
concatenation that nobody has cut out yet (`View`), or be made by every device for itself in any layout (`make`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from propagation.program import Op

from ..cost import item_bytes
from ..ir.program import LocalValue, Region
from ..layout import Dims

__all__ = [
    "RESHARD", "TRANSPARENT", "Counted", "Joined", "Journal", "Noted", "Partial", "Recipe", "Run", "Source", "Span",
    "State", "Version", "View",
]  # fmt: skip

RESHARD = "reshard"  # the cause of what is sent because an operation takes its operand in another layout


class Run(NamedTuple):
    """Position to + k of the result, for k < length, is position start + k * stride of operand `operand`."""

    operand: int
    start: int
    to: int
    length: int
    stride: int = 1


# Tensors side by side along one dimension: (tensors, their global sizes, runs), as `exchange.assemble` takes them.
Joined = tuple[Sequence[LocalValue], Sequence[int], Sequence[Run]]
# What a value can be made of by a reshard: a layout, and by the atoms still to be reduced over the part to reduce
# (under () what is complete). The part is None for a value that has not been cut out yet.
Source = tuple[Dims, Mapping[tuple[int, ...], LocalValue | None]]

# Operations whose results remember their operation and its operands, for the algebra of `common_factors`.
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
    """A lazy slice or pad: the value is positions [start, start + length) of `base` along `dim`, not cut out yet.

    `x[1:-1]` of an x of 1024 rows over 8 devices is View(base=x, size=1024, dim=0, start=1, length=1022): shifting rows
    between devices waits until somebody asks for it, and an operation that shifts rows itself (a further slice, a
    window) takes them from the base, so that every element travels once.

    base     what is cut; its global size along `dim` is `size`
    dims     the layout of the base, and of the value once `cut()` makes it
    fill     the number at positions outside of the base (a pad's); None if only `cut` knows it
    scalar   the same as a value of the per-device program
    local    what is still to be done to other dimensions (to pad them) once positions have moved
    more     further dimensions along which the value has other positions than the base
    joined   of a concatenation along `dim`, its tensors; `base` then means nothing
    """

    base: LocalValue
    size: int
    dim: int
    start: int
    length: int
    dims: Dims
    cut: Callable[[], LocalValue]
    fill: float | int | bool | None = None
    local: Callable[[LocalValue], LocalValue] | None = None
    scalar: LocalValue | None = None
    more: tuple[Span, ...] = ()
    joined: Joined | None = None

    @property
    def spans(self) -> tuple[Span, ...]:
        """All dimensions along which the value has other positions than the base."""
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
    """An unreduced value: its reduction over devices (a sum, maximum, ...) is deferred.

    The value is the combination, by `kind`, of `parts`: for each tuple of atoms a tensor laid out as `dims` that must
    still be all-reduced over those atoms; the part under `()` is complete. After `dot(a, b) + c` of a contraction split
    over atom 0, parts are {(0,): the local products, (): c}: keeping both lets the add pass before the reduction, so
    that a chain of adds is reduced once.

    masked   parts hold zeros where a device has nothing to add, which must not be multiplied by an infinity
    chosen   each element is on one device of the group and all others hold zeros (a masked lookup): it has to arrive
             bit by bit, see `masked_lookup`
    op       the operation that left the value unreduced, if one did
    placed   a complete addend that was split over the atoms of a part, in its layout: each device has added its piece
             to its own addend there
    """

    kind: str
    dims: Dims
    parts: dict[tuple[int, ...], LocalValue]
    masked: bool = False
    chosen: bool = False
    op: Op | None = None
    placed: tuple[Dims, LocalValue] | None = None


@dataclass(slots=True)
class Recipe:
    """How to recompute a value in another layout from smaller ones, instead of resharding it (see `recompute.py`).

    `operands(dims)` are the layouts of `sources` that a layout of the value needs, None if it cannot be made so;
    `write(refs, dims)` writes the work; `bytes` is the global size of the sources.
    """

    sources: tuple[State, ...]
    operands: Callable[[Dims], tuple[Dims, ...] | None]
    write: Callable[[list[LocalValue], Dims], LocalValue]
    bytes: float


class State:
    """One value of the global program.

    bytes     of the whole value; `itemsize` of one element
    home      the region in which it is defined
    versions  complete versions by layout, visible wherever the value is
    partial   an unreduced version
    make      for values that every device can compute in any layout (constants, iota, ...): the function that does,
              called with the layout
    view      for a lazy slice, pad or concatenation: what it is cut out of
    origin    the operation that made it and the states of its operands, if `common_factors` may look into it
    recipe    for a large value made of small ones: how to recompute it in another layout
    uses      number of uses of the value, those of its names in callees that are written in place included
    hint      for a value carried by a loop: a layout in which the body would rather have it
    type_text MLIR's text of a type that is no tensor's (a token)
    """

    __slots__ = (
        "bytes",
        "dtype",
        "hint",
        "home",
        "itemsize",
        "make",
        "origin",
        "partial",
        "recipe",
        "shape",
        "type_text",
        "uses",
        "versions",
        "view",
    )  # fmt: skip

    def __init__(self, shape: tuple[int, ...], dtype: str, home: Region, uses: int, type_text: str | None = None):
        self.shape = shape
        self.dtype = dtype
        self.itemsize = item_bytes(dtype)
        self.bytes: float = math.prod(shape) * self.itemsize
        self.home = home
        self.uses = uses
        self.versions: dict[Dims, LocalValue] = {}
        self.partial: Partial | None = None
        self.make: Callable[[Dims], LocalValue] | None = None
        self.type_text = type_text
        self.hint: Dims | None = None
        self.view: View | None = None
        self.recipe: Recipe | None = None
        self.origin: tuple[Op, tuple[State, ...]] | None = None

    @property
    def pending(self) -> tuple[int, ...]:
        """All atoms over which the value is unreduced; none if it has a complete version."""
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

    @property
    def layout(self) -> Dims:
        """`dims` of a value that is known to have been made in some layout: to have no `make`."""
        dims = self.dims
        assert dims is not None, f"no layout was chosen for a {self.dtype}{list(self.shape)}, which has no version"
        return dims


class Version(NamedTuple):
    """One of the `versions` of a tensor of a global `shape`, visible in `region`."""

    versions: dict[Dims, LocalValue]
    dims: Dims
    ref: LocalValue
    shape: tuple[int, ...]
    region: Region


class Counted(NamedTuple):
    """Uses of a value that another name of it brought."""

    state: State
    more: int


Noted = Version | Counted


class Journal:
    """The undo log of versions and use counts, in the order in which they were remembered: `loop_carries` writes loops
    for trial and takes back (`forget`) what they left. It also finds the value that a tensor of the per-device program
    belongs to."""

    __slots__ = ("_entries", "_siblings")

    def __init__(self) -> None:
        self._entries: list[Noted] = []
        self._siblings: dict[tuple[LocalValue, tuple[int, ...]], tuple[dict[Dims, LocalValue], Region]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def remember(self, noted: Noted) -> None:
        """Adds a version, unless there is one in that layout; counts uses."""
        if isinstance(noted, Counted):
            noted.state.uses += noted.more
            self._entries.append(noted)
            return
        versions, dims, ref, shape, region = noted
        if dims not in versions:
            versions[dims] = ref
            self._entries.append(noted)
            for other in versions.values():
                self._siblings[other, shape] = versions, region

    def sibling(
        self, ref: LocalValue, shape: tuple[int, ...], have: Dims, dims: Dims, region: Region
    ) -> LocalValue | None:
        """Another version of the same value: given that `ref` is the version laid out as `have` of a value of global
        `shape`, the version laid out as `dims`. None if `ref` was never resharded, or if none is visible in `region`.

        After an all-gather of x from `((0,), ())` to `((), ())`, a consumer that passes x on under another name and
        wants it split again gets the shard from before the gather, instead of a slice of what was gathered.
        (The shape tells apart values that share a tensor, as a slice may whose missing positions are padding.)
        """
        versions, home = self._siblings.get((ref, shape), ({}, region))
        return versions.get(dims) if versions.get(have) is ref and _is_within(region, home) else None

    def more(self, sources: Sequence[Source], shape: tuple[int, ...], region: Region) -> list[Source]:
        """Further sources for a reshard to start from: of each complete one in `sources`, the other versions (visible
        in `region`) of the value that it is a version of, as `sibling` finds them."""
        out: list[Source] = []
        for have, parts in sources:
            ref = parts[()] if tuple(parts) == ((),) else None
            if ref is None:
                continue
            versions, home = self._siblings.get((ref, shape), ({}, region))
            if versions.get(have) is ref and _is_within(region, home):
                out += [(dims, {(): other}) for dims, other in versions.items() if dims != have]
        return out

    def layouts(self, ref: LocalValue, shape: tuple[int, ...]) -> tuple[Dims, ...]:
        """All layouts in which `sibling` may find versions."""
        return tuple(self._siblings.get((ref, shape), ({},))[0])

    def forget(self, mark: int) -> list[Noted]:
        """Takes back what was remembered since the journal was `mark` long, and returns it for `remember`."""
        found = self._entries[mark:]
        del self._entries[mark:]
        for noted in found:
            if isinstance(noted, Counted):
                noted.state.uses -= noted.more
            else:
                del noted.versions[noted.dims]
        return found

    def uncount(self, mark: int) -> None:
        """Takes back the uses counted since the journal was `mark` long; versions stay."""
        found = self._entries[mark:]
        self._entries[mark:] = [noted for noted in found if not isinstance(noted, Counted)]
        for noted in found:
            if isinstance(noted, Counted):
                noted.state.uses -= noted.more


def _is_within(region: Region | None, outer: Region) -> bool:
    while region is not None and region is not outer:
        region = region.parent
    return region is not None
