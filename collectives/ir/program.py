"""The per-device program while it is being built: items (operations) in regions, printed as StableHLO text at the end.

Operations are plain records, so that the passes of `optimize.py` can look at them and dead code never becomes text.
Helper operations (offsets, masks, collectives) are hash-consed: asking for the same operation on the same operands
in a scope that already has it returns the first one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from propagation.program import Func, Op

from ..heuristics import LOOP_CAPTURE_ELEMENTS
from ..kinds import CollectiveKind, kind_of
from ..layout import Dims

__all__ = ["Collective", "LocalOp", "LocalValue", "ModuleBuilder", "Region", "has_grown", "tensor_text"]

_TYPES: dict[tuple, str] = {}


def tensor_text(shape: tuple[int, ...], dtype: str) -> str:
    """`tensor<2x4xf32>`."""
    key = (shape, dtype)
    text = _TYPES.get(key)
    if text is None:
        if len(_TYPES) > 1 << 16:
            _TYPES.clear()
        text = _TYPES[key] = "tensor<" + "".join([f"{n}x" for n in shape]) + dtype + ">"
    return text


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
    """

    kind: str
    atoms: tuple[int, ...] | None
    groups: tuple[int, int]
    bytes: float
    op: Op | Func | None
    cause: str
    senders: np.ndarray | None = None
    members: tuple[Collective, ...] = ()

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
    """An operation. `attrs` are inherent attributes, `extra` discardable ones, both as text."""

    __slots__ = ("attrs", "collective", "effect", "extra", "loc", "name", "operands", "region", "regions", "results")

    def __init__(
        self,
        name: str,
        operands: Sequence[LocalValue],
        results: list[LocalValue],
        attrs: str = "",
        extra: str = "",
        regions: Sequence[Region] = (),
        loc: str = "",
        effect: bool = False,
    ):
        self.name: str = name
        self.operands: list[LocalValue] = list(operands)
        self.results: list[LocalValue] = results
        self.attrs: str = attrs
        self.extra: str = extra
        self.regions: Sequence[Region] = regions
        self.loc: str = loc
        self.effect: bool = effect
        self.collective: Collective | None = None
        self.region: Region | None = None
        for i, r in enumerate(results):
            r.item, r.number = self, i

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
    """

    __slots__ = ("args", "items", "kind", "known", "parent", "prologue", "trips")

    def __init__(self, kind: str, parent: Region | None, arg_types: Sequence[tuple] = (), trips: int | None = 1):
        self.kind = kind
        self.parent = parent
        self.args = [LocalValue(shape, dtype) for shape, dtype in arg_types]
        self.prologue: list[LocalOp] = []
        self.items: list[LocalOp] = []
        self.known: dict = {}
        self.trips = trips

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
        attrs: str = "",
        extra: str = "",
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
        attrs: str = "",
        loc: str = "",
    ) -> LocalValue:
        """A pure one-result operation, reused if an equal one is visible."""
        key = (name, tuple(map(id, operands)), attrs, shape, dtype)
        found = self.lookup(key, has_grown(shape, [x.shape for x in operands]))
        if found is None:
            found = self.known[key] = self.op(name, operands, [(shape, dtype)], attrs, loc=loc)[0]
        return found

    def entry(
        self, name: str, operands: Sequence[LocalValue], shape: tuple[int, ...], dtype: str, attrs: str = ""
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
    """The whole per-device module: functions and the aliases that their text uses, of attributes (`aliases`) and of
    locations, each from the text it stands for to its name. `printing.program_text` writes it."""

    def __init__(self, name: str, attributes: str):
        self.name = name
        self.attributes = attributes
        self.functions: list[LocalFunction] = []
        self.aliases: dict[str, str] = {}
        self._groups: dict[tuple, str] = {}
        self.locations: dict[str, str] = {}

    def function(
        self, name: str, arg_types: Sequence[tuple[tuple[int, ...], str]], public: bool, loc: str
    ) -> LocalFunction:
        function = LocalFunction(name, Region("function", None, arg_types), public, loc)
        self.functions.append(function)
        return function

    def alias(self, text: str) -> str:
        """A name for a long attribute, written once per module."""
        name = self.aliases.get(text)
        if name is None:
            name = self.aliases[text] = f"#groups{len(self.aliases)}"
        return name

    def dense(self, key: tuple, make: Callable[[], np.ndarray]) -> str:
        """The alias of a dense i64 attribute; `make` is called once per `key`."""
        name = self._groups.get(key)
        if name is None:
            name = self._groups[key] = self.alias(_dense_text(make()))
        return name

    def location(self, text: str) -> str:
        """The alias of a location written as MLIR text; the empty text stands for none."""
        if not text:
            return ""
        alias = self.locations.get(text)
        if alias is None:
            alias = self.locations[text] = f"#loc{len(self.locations) + 1}"
        return alias


def _dense_text(array: np.ndarray) -> str:
    dims = "x".join(map(str, array.shape))
    if array.size > 64:
        data = np.ascontiguousarray(array, dtype="<i8").tobytes().hex().upper()
        return f'dense<"0x{data}"> : tensor<{dims}xi64>'
    return f"dense<{array.tolist()}> : tensor<{dims}xi64>"


class LocalFunction:
    """A function being built. `results` are set by `ret`; the attribute texts stand beside arguments and results.

    `layouts` are those of the arguments, as far as they are known.
    """

    __slots__ = ("arg_attrs", "layouts", "loc", "name", "public", "region", "result_attrs", "results")

    def __init__(self, name: str, region: Region, public: bool, loc: str):
        self.name, self.region, self.public, self.loc = name, region, public, loc
        self.results: list[LocalValue] = []
        self.arg_attrs = [""] * len(region.args)
        self.layouts: Sequence[Dims] = ()
        self.result_attrs: list[str] = []
