"""What the partitioner knows about a value of the global program: the versions of it that the per-device program holds.

A value of the global program may be held by the devices in several layouts at once (a *version* per layout), be
*unreduced* (`Partial`: every device holds an addend, and the reduction over devices is deferred), be a slice, pad or
concatenation that nobody has cut out yet (`View`), or be made by every device for itself in any layout (`make`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from propagation.program import Op

from ..cost import item_bytes
from ..ir.program import LocalValue, Region
from ..layout import Dims

__all__ = [
    "NONE_YET", "RESHARD", "TRANSPARENT", "Changed", "Held", "Joined", "Partial", "Recipe", "Run", "Source", "Span",
    "State", "View",
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

NONE_YET: Mapping[Dims, LocalValue] = MappingProxyType({})
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


class Held(NamedTuple):
    """What changes about a value after it was made; each change makes a new one.

    versions  complete versions by layout, visible wherever the value is
    uses      number of uses of the value, those of its names in callees that are written in place included
    hint      for a value carried by a loop: a layout in which the body would rather have it
    """

    versions: Mapping[Dims, LocalValue]
    uses: int
    hint: Dims | None = None


_new = tuple.__new__


class Changed:
    """What a draft (see `drafts`) changes about values that are older than it: `draft`, None outside of drafts."""

    __slots__ = ("draft",)

    def __init__(self) -> None:
        self.draft: dict[State, Held] | None = None


class State:
    """One value of the global program.

    bytes     of the whole value; `itemsize` of one element
    home      the region in which it is defined
    versions, uses, hint   see `Held`
    partial   an unreduced version
    make      for values that every device can compute in any layout (constants, iota, ...): the function that does,
              called with the layout
    view      for a lazy slice, pad or concatenation: what it is cut out of
    origin    the operation that made it and the states of its operands, if `common_factors` may look into it
    recipe    for a large value made of small ones: how to recompute it in another layout
    type_text MLIR's text of a type that is no tensor's (a token)
    """

    __slots__ = (
        "_changed",
        "_draft",
        "_held",
        "bytes",
        "dtype",
        "home",
        "itemsize",
        "make",
        "origin",
        "partial",
        "recipe",
        "shape",
        "type_text",
        "view",
    )  # fmt: skip

    def __init__(
        self, shape: tuple[int, ...], dtype: str, home: Region, uses: int, changed: Changed,
        type_text: str | None = None, versions: Mapping[Dims, LocalValue] = NONE_YET,
    ):  # fmt: skip
        self.shape = shape
        self.dtype = dtype
        self.itemsize = itemsize = item_bytes(dtype)
        self.bytes: float = math.prod(shape) * itemsize
        self.home = home.origin
        self._held = _new(Held, (versions, uses, None))  # as the class makes it, which takes three times as long
        self._changed = changed
        self._draft = changed.draft  # that it was made in
        self.partial: Partial | None = None
        self.make: Callable[[Dims], LocalValue] | None = None
        self.type_text = type_text
        self.view: View | None = None
        self.recipe: Recipe | None = None
        self.origin: tuple[Op, tuple[State, ...]] | None = None

    @property
    def held(self) -> Held:
        """What holds in the draft being written."""
        draft = self._changed.draft
        return self._held if draft is self._draft or draft is None else draft.get(self, self._held)

    def hold(self, held: Held) -> None:
        """Changes what holds in the draft being written, and for good outside of drafts."""
        draft = self._changed.draft
        if draft is self._draft or draft is None:
            self._held = held
        else:
            draft[self] = held

    @property
    def versions(self) -> Mapping[Dims, LocalValue]:
        draft = self._changed.draft
        return (self._held if draft is self._draft or draft is None else draft.get(self, self._held)).versions

    @property
    def uses(self) -> int:
        return self.held.uses

    @property
    def hint(self) -> Dims | None:
        return self.held.hint

    def remember(self, dims: Dims, ref: LocalValue) -> None:
        """Adds a version."""
        held = self.held
        self.hold(Held({**held.versions, dims: ref}, held.uses, held.hint))

    def use(self, more: int) -> None:
        """Counts `more` uses: those of another name of the value."""
        if more:
            held = self.held
            self.hold(Held(held.versions, held.uses + more, held.hint))

    def prefer(self, hint: Dims) -> None:
        """Notes the layout that a loop's body would rather have it in."""
        self.hold(self.held._replace(hint=hint))

    @property
    def pending(self) -> tuple[int, ...]:
        """All atoms over which the value is unreduced; none if it has a complete version."""
        if self.partial is None or self.versions:
            return ()
        return tuple(sorted({a for part in self.partial.parts for a in part}))

    @property
    def dims(self) -> Dims | None:
        """The layout the value was made in; None if it can be made in any."""
        versions = self.versions
        if versions:
            return next(iter(versions))
        if self.view is not None:
            return self.view.dims
        return self.partial.dims if self.partial is not None else None

    @property
    def layout(self) -> Dims:
        """`dims` of a value that is known to have been made in some layout: to have no `make`."""
        dims = self.dims
        assert dims is not None, f"no layout was chosen for a {self.dtype}{list(self.shape)}, which has no version"
        return dims
