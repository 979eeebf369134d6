"""The per-device program while it is being built: values, items (operations), regions, functions, the module.

Operations are plain records, which passes look at and rewrite; they become text when the program is printed.
Helper operations (offsets, masks, collectives) are hash-consed: asking for the same operation on the same operands
in a scope that already has it returns the first one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from propagation.program import Func, Op

from ..heuristics import LOOP_CAPTURE_ELEMENTS
from ..kinds import CollectiveKind, kind_of
from ..layout import Dims
from .attributes import NONE, Attribute, Attributes, DeviceLists, Integer, Symbol
from .overlay import Overlay
from .types import tensor_text

__all__ = ["ALIASED", "DONATED", "Collective", "LocalOp", "LocalValue", "ModuleBuilder", "Region", "has_grown"]


# The attributes of arguments whose memory a result takes: one that is named, or any.
ALIASED, DONATED = "tf.aliasing_output", "jax.buffer_donor"


class Collective(NamedTuple):
    """What a communicating item does, for the plan.

    kind     the name of one of `kinds`
    atoms    the atoms whose devices talk; None for groups given by the program itself
    groups   number of groups and devices per group
    bytes    sent by the busiest device, once
    op       the operation of the global program that caused it, or the function whose result did
    cause    why, in words
    senders  the devices that send; None if all do
    members  those that it stands for, if a pass combined several
    crossed  the atoms along which pairs that the program itself gave move something
    """

    kind: str
    atoms: tuple[int, ...] | None
    groups: tuple[int, int]
    bytes: float
    op: Op | Func | None
    cause: str
    senders: np.ndarray | None = None
    members: tuple[Collective, ...] = ()
    crossed: tuple[int, ...] = ()

    @property
    def across(self) -> tuple[int, ...]:
        """The atoms in which devices that talk differ; none where groups of the program itself are not those of any."""
        return self.crossed if self.atoms is None else self.atoms

    @property
    def facts(self) -> CollectiveKind:
        """What holds for every collective of its kind."""
        return kind_of(self.kind)


class LocalValue:
    """A value of the per-device program. `dtype` is MLIR's element text; values that are not tensors (tokens) have
    `type_text` set."""

    __slots__ = ("dtype", "item", "number", "shape", "type_text")

    def __init__(self, shape: tuple[int, ...], dtype: str, type_text: str | None = None):
        self.shape = shape
        self.dtype = dtype
        self.item: LocalOp | None = None
        self.number = 0
        self.type_text = type_text

    @property
    def type(self) -> str:
        return self.type_text or tensor_text(self.shape, self.dtype)

    @property
    def maker(self) -> LocalOp:
        """The item of a value that is known to be no argument."""
        assert self.item is not None, "arguments are made by no item"
        return self.item

    def __repr__(self) -> str:
        return f"<{self.type} of {self.item.name if self.item else 'argument'}>"


class LocalOp:
    """An operation. `attrs` are printed as inherent attributes, `extra` as discardable ones: MLIR takes either for
    what the program gave."""

    __slots__ = ("attrs", "collective", "effect", "extra", "loc", "name", "operands", "region", "regions", "results")

    def __init__(
        self,
        name: str,
        operands: Sequence[LocalValue],
        results: list[LocalValue],
        attrs: Attributes = NONE,
        extra: Attributes = NONE,
        regions: Sequence[Region] = (),
        loc: str = "",
        effect: bool = False,
    ):
        self.name: str = name
        self.operands: list[LocalValue] = list(operands)
        self.results: list[LocalValue] = results
        self.attrs: Attributes = attrs
        self.extra: Attributes = extra
        self.regions: Sequence[Region] = regions
        self.loc: str = loc
        self.effect: bool = effect
        self.collective: Collective | None = None
        self.region: Region | None = None
        if len(results) == 1:
            results[0].item, results[0].number = self, 0
        else:
            for i, r in enumerate(results):
                r.item, r.number = self, i

    def attribute(self, name: str) -> Attribute | None:
        """One of its attributes, wherever it is printed; None if it has none of that name."""
        found = self.attrs.find(name)
        return self.extra.find(name) if found is None else found

    def number(self, name: str) -> int:
        """A number among its attributes: a dimension, a size."""
        found = self.attribute(name)
        assert isinstance(found, Integer), f"{self.name} has no number {name}"
        return found.value

    @property
    def callee(self) -> str:
        """The name of the function that a call calls."""
        found = self.attribute("callee")
        assert isinstance(found, Symbol)
        return found.name

    @property
    def communication(self) -> Collective:
        """What an item does that is known to communicate."""
        assert self.collective is not None, f"{self.name} does not communicate"
        return self.collective

    def __repr__(self) -> str:
        return f"<{self.name} -> {', '.join(r.type for r in self.results)}>"


class Region:
    """A block of items. `kind` is function, loop (body or condition of a while), branch, or body (of a reduction).

    `trips` is how often the region runs per run of its parent: None if that is not known statically.
    `known` holds hash-consed items and resharded values valid inside it.
    `origin` is the region that it is a draft of (see `draft`), else itself.
    """

    __slots__ = ("args", "items", "kind", "known", "origin", "parent", "prologue", "trips")

    def __init__(
        self, kind: str, parent: Region | None, arg_types: Sequence[tuple[Any, ...]] = (), trips: int | None = 1
    ):  # fmt: skip
        self.kind = kind
        self.parent = parent
        self.args = [LocalValue(shape, dtype) for shape, dtype in arg_types]
        self.prologue: list[LocalOp] = []
        self.items: list[LocalOp] = []
        self.known: dict[Hashable, Any] = {}
        self.origin: Region = self
        self.trips = trips

    def draft(self) -> Region:
        """A region that stands for this one, inside drafts of those around it: everything that they know is known, and
        what is written into it is part of no program until this region takes it (`adopt`)."""
        out = Region(self.kind, None if self.parent is None else self.parent.draft(), (), self.trips)
        out.args, out.origin, out.known = self.args, self.origin, Overlay(self.known)
        return out

    def adopt(self, draft: Region, inside: Iterable[Region] = ()) -> None:
        """Takes what was written into a `draft` of this region and into those around it; the regions `inside` the draft
        are inside this one from now on."""
        for region in inside:
            region.parent = self
        for mine, new in ((self.prologue, draft.prologue), (self.items, draft.items)):
            for item in new:
                item.region = self
                for inner in item.regions:
                    inner.parent = self
            mine += new
        self.known.update(draft.known)
        if self.parent is not None and draft.parent is not None:
            self.parent.adopt(draft.parent)

    def forget(self) -> None:
        """Drops what is known here and inside, which nobody asks for once the program has been written."""
        self.known = {}
        for item in self.items:
            if item.regions:
                for inner in item.regions:
                    inner.forget()

    def around(self, origin: Region) -> Region | None:
        """The region, this one or one around it, that is `origin` or a draft of it; None if there is none."""
        region: Region | None = self
        while region is not None and region.origin is not origin:
            region = region.parent
        return region

    @property
    def root(self) -> Region:
        region = self
        while region.parent is not None:
            region = region.parent
        return region

    def add(self, item: LocalOp) -> LocalOp:
        item.region = self
        self.items.append(item)
        return item

    def op(
        self,
        name: str,
        operands: Sequence[LocalValue],
        types: Iterable[tuple[tuple[int, ...], str]],
        attrs: Attributes = NONE,
        extra: Attributes = NONE,
        regions: Sequence[Region] = (),
        loc: str = "",
        effect: bool = False,
    ) -> list[LocalValue]:
        """Appends an operation; `types` are (shape, dtype) pairs of its results."""
        results = [LocalValue(shape, dtype) for shape, dtype in types]
        item = LocalOp(name, operands, results, attrs, extra, regions, loc, effect)
        item.region = self
        self.items.append(item)
        return results

    def one(
        self, name: str, operands: Sequence[LocalValue], shape: tuple[int, ...], dtype: str, attrs: Attributes = NONE,
        extra: Attributes = NONE, loc: str = "",
    ) -> LocalValue:  # fmt: skip
        """Appends an operation of one result without regions: what most are."""
        result = LocalValue(shape, dtype)
        item = LocalOp(name, operands, [result], attrs, extra, (), loc)
        item.region = self
        self.items.append(item)
        return result

    def lookup(self, key: Any, grown: bool = False) -> Any:
        """A fact known here or in an enclosing region. Values that have `grown` are not taken into loops: there they
        would be kept as large as they are, while those made inside become part of what uses them."""
        region: Region | None = self
        while region is not None:
            found = region.known.get(key)
            if found is not None:
                return found
            if grown and region.kind == "loop":
                return None
            region = region.parent
        return None

    def shared(
        self,
        name: str,
        operands: Sequence[LocalValue],
        shape: tuple[int, ...],
        dtype: str,
        attrs: Attributes = NONE,
        loc: str = "",
    ) -> LocalValue:
        """A pure one-result operation, reused if an equal one is visible."""
        key = (name, tuple(map(id, operands)), attrs, shape, dtype)
        found: LocalValue | None = self.lookup(key, has_grown(shape, [x.shape for x in operands]))
        if found is None:
            found = self.known[key] = self.one(name, operands, shape, dtype, attrs, loc=loc)
        return found

    def entry(
        self, name: str, operands: Sequence[LocalValue], shape: tuple[int, ...], dtype: str, attrs: Attributes = NONE
    ) -> LocalValue:
        """Like `shared`, at the start of the function, so that every region sees it."""
        root = self.root
        key = (name, tuple(map(id, operands)), attrs, shape, dtype)
        found = root.known.get(key)
        if found is None:
            found = LocalValue(shape, dtype)
            item = LocalOp(name, operands, [found], attrs)
            item.region = root
            root.prologue.append(item)
            root.known[key] = found
        return found


def has_grown(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> bool:
    """Whether a result is large, and larger than all that it is made of: a broadcast, or positions."""
    size = math.prod(shape)
    return size > LOOP_CAPTURE_ELEMENTS and size > sum(map(math.prod, operands))


class ModuleBuilder:
    """The whole per-device module: functions and the aliases that their text uses, of lists of devices (`aliases`, by
    shape and content) and of locations, from the text that one stands for to its name. `printer.program_text` writes
    it."""

    def __init__(self, name: str, attributes: str):
        self.name = name
        self.attributes = attributes
        self.functions: list[LocalFunction] = []
        self.aliases: dict[tuple[tuple[int, ...], bytes], DeviceLists] = {}
        self._groups: dict[tuple[Any, ...], DeviceLists] = {}
        self.locations: dict[str, str] = {}

    def function(
        self, name: str, arg_types: Sequence[tuple[tuple[int, ...], str]], public: bool, loc: str
    ) -> LocalFunction:
        function = LocalFunction(name, Region("function", None, arg_types), public, loc)
        self.functions.append(function)
        return function

    def dense(self, key: tuple[Any, ...], make: Callable[[], np.ndarray]) -> DeviceLists:
        """Groups or pairs of devices, under a name of the module; `make` is called once per `key`."""
        found = self._groups.get(key)
        if found is None:
            rows = make()
            content = rows.shape, np.ascontiguousarray(rows, dtype="<i8").tobytes()
            found = self.aliases.get(content)
            if found is None:
                found = self.aliases[content] = DeviceLists(f"#groups{len(self.aliases)}", *content)
            self._groups[key] = found
        return found

    def location(self, text: str) -> str:
        """The alias of a location written as MLIR text; the empty text stands for none."""
        if not text:
            return ""
        alias = self.locations.get(text)
        if alias is None:
            alias = self.locations[text] = f"#loc{len(self.locations) + 1}"
        return alias


class LocalFunction:
    """A function being built. `arg_attrs` and `result_attrs` stand beside its arguments and results.

    `layouts` are those of the arguments, as far as they are known.
    """

    __slots__ = ("arg_attrs", "layouts", "loc", "name", "public", "region", "result_attrs", "results")

    def __init__(self, name: str, region: Region, public: bool, loc: str):
        self.name, self.region, self.public, self.loc = name, region, public, loc
        self.results: list[LocalValue] = []
        self.arg_attrs: list[Attributes] = [NONE] * len(region.args)
        self.layouts: Sequence[Dims] = ()
        self.result_attrs: list[Attributes] = []

    @property
    def donated(self) -> list[LocalValue]:
        """The arguments whose memory results may take."""
        pairs = zip(self.region.args, self.arg_attrs)
        return [arg for arg, attrs in pairs if ALIASED in attrs or DONATED in attrs]
