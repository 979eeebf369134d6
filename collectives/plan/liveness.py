"""When the buffers of a per-device program live: what a compiler fuses away, computes in place and keeps.

The rules are those of XLA's pipeline, as far as they do not depend on the machine: elementwise operations and
rearrangements become part of what reads them, cheap ones of several readers; the result of an elementwise operation or
of an update takes the memory of an operand that nothing reads later; values carried by a loop stay in one buffer;
contractions read matrices, so operands whose dimensions are in another order are copied, unless they are computed for
one contraction alone, in whatever order it reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from propagation.ops import CONSTANTS, POINTWISE, REARRANGING, having

from ..heuristics import FUSED_VALUES
from ..ir.program import LocalFunction, LocalOp, LocalValue, Region
from ..ir.walker import inputs
from ..machine import dot_dimensions, ref_bytes
from .breadth import ENDING, by_breadth
from .work import is_cut_in_blocks

__all__ = ["Liveness", "Span", "totals"]

_named = lambda *names: frozenset(f"stablehlo.{n}" for n in names)
# What takes no memory of its own when what reads it can compute it.
_FUSIBLE = (POINTWISE | REARRANGING | CONSTANTS | having("joining")) - having("library") - _named("rng_bit_generator")
# What computes its operands while it reads them.
_FUSING = _FUSIBLE | _named("reduce", "dynamic_update_slice", "broadcast_in_dim", "iota")
# Too dear to be computed once for each of several readers.
_DEAR = _named(
    "atan2", "cbrt", "cosine", "divide", "exponential", "exponential_minus_one", "log", "log_plus_one", "logistic",
    "power", "remainder", "rsqrt", "sine", "sqrt", "tan", "tanh",
) | _named("concatenate", "gather", "dynamic_slice", "reduce")  # fmt: skip
_CONTRACTIONS = having("contraction")
_ALIAS = _named("reshape", "optimization_barrier", "bitcast_convert")
# Each result may take the memory of the operand of its number.
_SAME_PLACE = _named("dynamic_update_slice", "scatter", "sort", "while")
# Whose elements each attribute of a collective orders.
_CUT = {"all_gather_dim": "result", "scatter_dimension": "operand", "split_dimension": "operand"}


class Span(NamedTuple):
    """A buffer that lives from item `first` of a region to item `last`, both included: that of a value, or of a copy of
    one in another order of dimensions."""

    value: LocalValue
    bytes: float
    first: int
    last: int
    is_copy: bool = False


def totals(spans: Sequence[Span], items: int) -> list[float]:
    """Bytes that live while each of a region's items runs."""
    change = [0.0] * (items + 1)
    for span in spans:
        change[span.first] += span.bytes
        change[span.last + 1] -= span.bytes
    return list(itertools.accumulate(change))[:items]


class Liveness:
    """Buffers of the regions of a program, found once each. `functions` are those that calls may name; with
    `in_breadth` items run in the order of XLA's compiler for CPUs, else in that of the program."""

    def __init__(self, functions: dict[str, LocalFunction], in_breadth: bool = False):
        self._functions = functions
        self.in_breadth = in_breadth
        self._returned = {f.region: f.results for f in functions.values()}
        self._blocks: dict[Region, _Block] = {}
        self._found: dict[Region, tuple[list[Span], list[float]]] = {}

    def spans(self, region: Region, results: Sequence[LocalValue] | None = None) -> tuple[list[Span], list[float]]:
        """The buffers that a region makes, and per item the most bytes that live within it. Arguments and what comes
        from outside are left out; `results` (by default those of the function
        whose region it is) live to the end of the region."""
        if region not in self._found:
            self._found[region] = self._block(region, results).spans()
        return self._found[region]

    def kept(self, region: Region) -> frozenset[LocalValue]:
        """The values of a region that are written to memory, rather than computed where they are read."""
        return frozenset(self._block(region).kept)

    def items(self, region: Region) -> Sequence[LocalOp]:
        """The items of a region in the order in which they run."""
        return self._block(region, None).items

    def _block(self, region: Region, results: Sequence[LocalValue] | None = None) -> _Block:
        if region not in self._blocks:
            if results is None:
                results = self._returned.get(region, ())
            self._blocks[region] = _Block(self, region, results)
        return self._blocks[region]

    def loads(self, region: Region) -> list[float]:
        """Bytes that live while each item of a region runs, those within it included."""
        spans, insides = self.spans(region)
        return [live + inner for live, inner in zip(totals(spans, len(insides)), insides)]

    def inner(self, item: LocalOp) -> list[Region]:
        """The regions that an item runs."""
        if item.name == "func.call":
            return [self._functions[item.callee].region]
        return [r for r in item.regions if r.kind != "body"]

    def crest(self, region: Region) -> float:
        """The most bytes that live at once in an inner region."""
        return max(self.loads(region), default=0.0)


class _Block:
    """One region: who reads what, what becomes a buffer, until when it is needed."""

    def __init__(self, program: Liveness, region: Region, results: Sequence[LocalValue]):
        self.program, self.region = program, region
        self.items: Sequence[LocalOp] = region.items
        self.returned = set(results)
        self.readers = self._readers()
        self.made: dict[LocalValue, int] = {}
        self.end = self._ends()
        if program.in_breadth:
            self.items = by_breadth(region, self.readers, self._is_run)
            self.readers = self._readers()
            self.made = {value: i for i, item in enumerate(self.items) for value in item.results}
            self.end = self._ends()
        self.carried = self._carried()

    def _readers(self) -> dict[LocalValue, list[int]]:
        """Per value the items that read it."""
        readers: dict[LocalValue, list[int]] = {}
        for i, item in enumerate(self.items):
            for value in dict.fromkeys(inputs(item)):
                readers.setdefault(value, []).append(i)
        return readers

    def _is_run(self, item: LocalOp) -> bool:
        """Whether an item runs by itself, rather than as part of what reads it."""
        return item.effect or item.collective is not None or any(value in self.kept for value in item.results)

    def _is_buffer(self, item: LocalOp, value: LocalValue) -> bool:
        """Whether a value is written to memory rather than computed where it is read."""
        if value in self.returned or item.name not in _FUSIBLE or item.collective is not None:
            return True
        readers = self.readers.get(value, ())
        if any(self.items[i].name not in _FUSING or self.items[i].collective is not None for i in readers):
            return True
        if any(reader.name in _CONTRACTIONS for reader in self._read_by(value)):  # under another name
            return True
        return len(readers) > 1 and item.name in _DEAR

    def _read_by(self, value: LocalValue) -> Iterator[LocalOp]:
        """The items that read a value, under its other names too."""
        for i in self.readers.get(value, ()):
            item = self.items[i]
            if item.name in _ALIAS:
                for operand, other in zip(item.operands, item.results):
                    if operand is value:
                        yield from self._read_by(other)
            else:
                yield item

    def _copied(self, item: LocalOp, i: int) -> list[Span]:
        """The copies that item `i` reads in place of its operands. Where items run by breadth, one for a contraction is
        made as soon as its operand is there."""
        if item.collective is not None:
            return [Span(value, size, i, i, True) for value, size in _copies(item)]
        if is_cut_in_blocks(item):
            return [Span(value, ref_bytes(value), i, i, True) for value in item.results]
        early = self.program.in_breadth
        return [
            Span(value, size, min(self.made.get(_origin(value), -1) + 1, i) if early else i, i, True)
            for value, size in _copies(item)
            if not self._is_written_for(value, item)
        ]

    def _is_written_for(self, value: LocalValue, reader: LocalOp) -> bool:
        """Whether a value is computed for `reader` alone, which is then given it in the order that it reads."""
        origin = _origin(value)
        maker = origin.item
        if maker is None or maker.name not in _FUSIBLE or not self.returned.isdisjoint((value, origin)):
            return False
        return all(each is reader for each in self._read_by(origin))

    def _ends(self) -> dict[LocalValue, int]:
        """The last item that needs each value: what is computed where it is read needs its operands there."""
        end: dict[LocalValue, int] = dict.fromkeys(self.returned, len(self.items) - 1)
        self.kept: set[LocalValue] = set()
        for i in range(len(self.items) - 1, -1, -1):
            item = self.items[i]
            until = i
            for value in item.results:
                end.setdefault(value, i)
                if item.name in _ALIAS or not self._is_buffer(item, value):
                    until = max(until, end[value])
                else:
                    self.kept.add(value)
            # A copy that is made early is what reads its operand.
            early = {span.value: span.first for span in self._copied(item, i)} if self.made else {}
            for value in inputs(item):
                end[value] = max(end.get(value, 0), early.get(value, until))
        return end

    def spans(self) -> tuple[list[Span], list[float]]:
        live: dict[LocalValue, Span] = {}
        done: list[Span] = []
        insides = []
        for i, item in enumerate(self.items):
            insides.append(max((self.program.crest(r) for r in self.program.inner(item)), default=0.0))
            for value in item.results:
                if value not in self.kept:
                    continue
                size = ref_bytes(value)
                given = self._in_place(item, value, i, size, live)
                if given is not None:
                    old = live.pop(given)
                    done.append(old._replace(last=i - 1))
                if not self._is_carried(value, i):
                    live[value] = Span(value, size, i, self.end[value])
            done += self._copied(item, i)
        return [*done, *live.values()], insides

    def _in_place(
        self, item: LocalOp, value: LocalValue, i: int, size: float, live: dict[LocalValue, Span]
    ) -> LocalValue | None:
        """A buffer that nothing reads after item `i`, and whose memory its result takes."""
        candidates: Sequence[LocalValue]
        if item.name in _SAME_PLACE:
            candidates = [item.operands[value.number]]
        elif item.name in POINTWISE:
            candidates = self._read(item)
        else:
            return None
        for c in map(_origin, candidates):
            span = live.get(c)
            if span is not None and self.end[c] <= i and span.bytes == size and span.first < i:
                return c
        return None

    def _overwrites(self, item: LocalOp, value: LocalValue, argument: LocalValue) -> bool:
        """Whether an item may write a result over an argument that it reads: each element where it stood."""
        if item.name in _SAME_PLACE:
            return _origin(item.operands[value.number]) is argument
        return item.name in POINTWISE and not self._is_moved(item, argument)

    def _is_moved(self, item: LocalOp, argument: LocalValue) -> bool:
        """Whether an elementwise operation reads elements of an argument at other positions than it writes."""
        todo, seen = list(item.operands), set()
        while todo:
            value = _origin(todo.pop())
            if value in seen or value.item is None or value in self.kept:
                continue
            seen.add(value)
            if value.item.name not in POINTWISE and argument in map(_origin, value.item.operands):
                return True
            todo += value.item.operands
        return False

    def _read(self, item: LocalOp) -> list[LocalValue]:
        """The buffers that an elementwise operation reads, itself or through what is computed in it."""
        seen: set[LocalValue] = set()
        found, todo = [], list(item.operands)
        while todo and len(seen) < FUSED_VALUES:
            value = _origin(todo.pop())
            if value in seen:
                continue
            seen.add(value)
            if value.item is None or value in self.kept:
                found.append(value)
            elif value.item.name in POINTWISE:
                todo += value.item.operands
        return found

    def _is_carried(self, value: LocalValue, i: int) -> bool:
        """Whether a value that an inner region returns is written where the region around has room for it."""
        position = self.carried.get(value)
        if position is None or self.region.kind != "loop":
            return position is not None
        argument = self.region.args[position]
        until = self.end.get(argument, -1)
        return until < i or (until == i and self._overwrites(self.items[i], value, argument))

    def _carried(self) -> dict[LocalValue, int]:
        """The values that an inner region returns, under the names of their buffers too, with their positions."""
        if self.region.kind == "function" or not self.items or self.items[-1].name not in ENDING:
            return {}
        found: dict[LocalValue, int] = {}
        for position, value in enumerate(self.items[-1].operands):
            found.setdefault(value, position)
            found.setdefault(_origin(value), position)
        return found


def _origin(value: LocalValue) -> LocalValue:
    """The value whose buffer another name of it stands for."""
    while value.item is not None and value.item.name in _ALIAS:
        value = value.item.operands[value.number]
    return value


def _copies(item: LocalOp) -> list[tuple[LocalValue, float]]:
    """Operands that a contraction has to copy, because their dimensions are not those of a batch of matrices."""
    if item.collective is not None:
        return _copied_to_send(item)
    if item.name != "stablehlo.dot_general":
        return []
    lhs_batch, rhs_batch, lhs_contracted, rhs_contracted = dot_dimensions(item)
    out = []
    for value, batch, contracted, last in (
        (item.operands[0], lhs_batch, lhs_contracted, True),
        (item.operands[1], rhs_batch, rhs_contracted, False),
    ):
        rank = len(value.shape)
        free = [d for d in range(rank) if d not in batch and d not in contracted]
        if tuple(batch) == tuple(range(len(batch))) and len(contracted) == 1 and len(free) <= 1:
            continue
        order = [*batch, *free, *contracted] if last else [*batch, *contracted, *free]
        moved = [d for d in order if value.shape[d] > 1]
        if moved != sorted(moved):
            out.append((value, ref_bytes(value)))
    return out


def _copied_to_send(item: LocalOp) -> list[tuple[LocalValue, float]]:
    """Collectives cut and join along the outermost dimension: others are moved there before or from there after."""
    values = {"operand": item.operands[0], "result": item.results[0]}
    out = []
    for name in item.attrs:
        if name not in _CUT:
            continue
        value = values[_CUT[name]]
        if any(n > 1 for n in value.shape[: item.number(name)]):
            out.append((value, ref_bytes(value)))
    return out
