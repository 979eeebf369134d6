"""When the buffers of a per-device program live: what a compiler fuses away, computes in place and keeps.

The rules are those of XLA's pipeline, as far as they do not depend on the machine: elementwise operations and
rearrangements become part of what reads them, cheap ones of several readers; the result of an elementwise operation or
of an update takes the memory of an operand that nothing reads later; values carried by a loop stay in one buffer;
contractions read matrices, so operands whose dimensions are in another order are copied, unless they are computed for
one contraction alone, in whatever order it reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from propagation.ops import POINTWISE, having

from ..heuristics import FUSED_VALUES
from ..ir.program import LocalFunction, LocalOp, LocalValue, Region
from ..ir.walker import inputs
from ..machine import dot_dimensions, ref_bytes
from .breadth import ENDING, by_breadth
from .carried import Needs
from .combined import combined
from .copies import is_cut, is_joined, is_of_argument, is_one, loses_dimension, parts, reordered, updated_again
from .fusible import FUSIBLE, FUSING, NARROW, WIDENING, bytes_in, is_dear, is_identity, is_spread, is_widened, name_of
from .invariant import computed_before
from .kernels import kernels
from .narrowed import narrowed
from .repeated import Repeats, may_repeat
from .spans import Span, totals
from .work import is_cut_in_blocks, is_reduced_in_blocks, positions

__all__ = ["Liveness"]

_named = lambda *names: frozenset(f"stablehlo.{n}" for n in names)
_CONTRACTIONS = having("contraction")
_ALIAS = _named("reshape", "optimization_barrier", "bitcast_convert")
# Each result may take the memory of the operand of its number.
_SAME_PLACE = _named("dynamic_update_slice", "scatter", "sort", "while")


class Liveness:
    """Buffers of the regions of a program, found once each. `functions` are those that calls may name; with
    `in_breadth` items run in the order of XLA's compiler for CPUs, which may hand reductions to a library
    (`with_library`), else in that of the program."""

    def __init__(self, functions: dict[str, LocalFunction], in_breadth: bool = False, with_library: bool = True):
        self._functions = functions
        self.in_breadth = in_breadth
        self.with_library = in_breadth and with_library
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

    def origin(self, region: Region, value: LocalValue) -> LocalValue:
        """The value of a region whose buffer another name of it stands for."""
        return self._block(region).origin(value)

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
        self.returned = set(results)
        self.narrowed = narrowed(region.items, self.returned.__contains__)
        self.items: Sequence[LocalOp] = self.narrowed.items
        self.readers = self._readers()
        self.aliases = {item for item in self.items if self._is_alias(item)}
        self.returned |= set(map(self.origin, results))
        self.kernels: dict[LocalOp, LocalOp] = {}
        if program.with_library:
            self.kernels = kernels(self.items, self.readers, self.returned.__contains__)
        self.before = computed_before(region, self.items) if program.in_breadth else {}
        self.together: dict[LocalOp, list[LocalOp]] = {}
        self.place: dict[LocalOp, int] = {}
        self.made: dict[LocalValue, int] = {}
        self.ordered: dict[LocalValue, bool] = {}
        self.kept = self._written()
        if program.in_breadth:
            self.together = combined(region.items)
            self.items = by_breadth(
                self.items, region.args, self.readers, self._is_run, self.together, self._turns, self._inputs
            )
            self.readers = self._readers()
            self.place = {item: i for i, item in enumerate(self.items)}
            self.made = {value: i for i, item in enumerate(self.items) for value in item.results}
        self.end = self._ends()
        self.carried = self._carried()
        is_loop = program.in_breadth and region.kind == "loop" and self.carried
        self.needs = Needs(region.args, self.items, self._is_run) if is_loop else None

    def _readers(self) -> dict[LocalValue, list[int]]:
        """Per value the items that read it."""
        readers: dict[LocalValue, list[int]] = {}
        for i, item in enumerate(self.items):
            for value in dict.fromkeys(self._inputs(item)):
                readers.setdefault(value, []).append(i)
        return readers

    def _inputs(self, item: LocalOp) -> Sequence[LocalValue]:
        """Everything an item needs."""
        value = self.narrowed.reads.get(item)
        return inputs(item) if value is None else (value,)

    def _is_run(self, item: LocalOp) -> bool:
        """Whether an item runs by itself, rather than as part of what reads it."""
        return item.effect or item.collective is not None or any(value in self.kept for value in item.results)

    def _turns(self, item: LocalOp) -> int:
        """How many operations an item is: one may copy its operand before, one its result after; a loop takes a tuple
        apart, and puts one together, as several arrays that are sorted are one."""
        if item.collective is None:
            tuples = 2 * (item.name == "stablehlo.while") + (item.name == "stablehlo.sort" and len(item.results) > 1)
            return 1 + tuples + any(not self._is_written_for(v, item) for v in reordered(item) if v not in item.results)
        return 1 + is_cut(item) + any(self._is_put_in_order(item, value) for value in item.results)

    def _is_buffer(self, item: LocalOp, value: LocalValue) -> bool:
        """Whether a value is written to memory rather than computed where it is read."""
        if value in self.returned or item.collective is not None or self._is_read_in_loop(item, value):
            return True
        if name_of(item) not in FUSIBLE and item not in self.kernels:
            return True
        return self._is_read_whole(item, value) or (is_dear(item) and self._readings(value) > 1)

    def _is_read_in_loop(self, item: LocalOp, value: LocalValue) -> bool:
        """Whether a value that is computed before a loop is read in it."""
        if item not in self.before:
            return False
        return any(self.items[i] not in self.before for i in self.readers.get(value, ()))

    def _is_read_whole(self, item: LocalOp, value: LocalValue) -> bool:
        """Whether readers of an item's result take it from memory, rather than compute it where they read it."""
        readers = [self.items[i] for i in self.readers.get(value, ())]
        if self.kernels:
            others = {self.kernels.get(reader) for reader in readers}
            if item in self.kernels:
                return others != {self.kernels[item]}
            if others - {None}:
                return True
        if not all(map(self._fuses, readers)):
            return True
        return any(name_of(reader) in _CONTRACTIONS for reader in self._read_by(value))  # under another name

    def _readings(self, value: LocalValue) -> int:
        """How many operations read a value: a collective reads it once for each part that it sends."""
        readers = [self.items[i] for i in self.readers.get(value, ())]
        return sum(1 if r.collective is None else len(parts(r, value)) for r in readers)

    def _fuses(self, item: LocalOp) -> bool:
        """Whether an item computes its operands while it reads them."""
        if item.collective is not None:
            return self.program.in_breadth and is_cut(item)
        if name_of(item) not in FUSING or item in self.kernels:
            return False
        return not (self.program.in_breadth and is_reduced_in_blocks(item))

    def _read_by(self, value: LocalValue) -> Iterator[LocalOp]:
        """The items that read a value, under its other names too."""
        for i in self.readers.get(value, ()):
            item = self.items[i]
            if item in self.aliases:
                for operand, other in zip(self._inputs(item), item.results):
                    if operand is value:
                        yield from self._read_by(other)
            else:
                yield item

    def _copied(self, item: LocalOp, i: int) -> list[Span]:
        """The copies that item `i` reads in place of its operands, or makes before its results are in order. Where
        items run by breadth, one for a contraction is made as soon as its operand is there."""
        if item.collective is not None:
            sent = [item.operands[0]] if is_cut(item) else []
            arrived = [v for v in item.results if self._is_put_in_order(item, v)]
            spans = [Span(value, size, i, i, True) for value in sent for size in parts(item, value)]
            return spans + [
                Span(v, size, i, max(i, self._read_as_it_came(v)), True) for v in arrived for size in parts(item, v)
            ]
        if is_cut_in_blocks(item):
            return [Span(value, ref_bytes(value), i, i, True) for value in item.results]
        early = self.program.in_breadth
        if early and item.name == "stablehlo.select_and_scatter":
            ready, selected = positions(item)  # what depends on nothing is made first of all, the last in its place
            spans = [Span(item.results[0], size, 0, i, True) for size in ready[:-1]]
            spans += [Span(item.results[0], size, 0, i - 1, True) for size in ready[-1:] if i]
            return spans + [Span(item.results[0], size, i, i, True) for size in selected]
        again = updated_again(item, self.returned.__contains__) if early else []
        turned = reordered(item) + again
        if not turned:
            return []
        made = lambda value: min(self.made.get(self.origin(value), -1) + 1, i) if early else i
        read = [v for v in turned if v not in item.results and not self._is_written_for(v, item)]
        spans = [Span(value, ref_bytes(value), made(value), i, True) for value in read]
        spans += [Span(v, 2 * ref_bytes(v), 0, 0, True) for v in again if is_of_argument(v)]
        if item.results and item.results[0] in turned:  # once it is there, the copies of operands are not
            ends = [span._replace(last=i - 1) for span in spans if span.first < i]
            left = ref_bytes(item.results[0]) - sum(span.bytes for span in spans if span.first == i)
            spans = [*ends, *(span for span in spans if span.first == i)]
            spans += [Span(item.results[0], left, i, i, True)] if left > 0 else []
        return spans

    def _is_put_in_order(self, item: LocalOp, value: LocalValue) -> bool:
        """Whether what arrives at a collective is copied by itself, rather than by what reads it."""
        if not is_joined(item) or value in self.returned:
            return is_joined(item)
        if value not in self.ordered:
            turned = all(self._fuses(r) or value in reordered(r) for r in self._read_by(value))
            self.ordered[value] = is_one(item) and not turned and self._is_read_whole(item, value)
        return self.ordered[value]

    def _read_as_it_came(self, value: LocalValue) -> int:
        """The last item that reads what arrived at a collective before it is put in order: it computes where to find
        each element."""
        if not self.program.in_breadth or value in self.returned:
            return -1
        readers = [self.items[i] for i in self.readers.get(value, ())]
        return max((self.until[r] for r in readers if self._fuses(r) and r not in self.aliases), default=-1)

    def _is_in_parts(self, item: LocalOp, value: LocalValue) -> bool:
        """Whether what arrives at a collective stays in the parts that it came in, for those who read it."""
        if item.collective is None or is_one(item) or value in self.returned:
            return False
        return self.program.in_breadth and not self._is_read_whole(item, value)

    def _is_written_for(self, value: LocalValue, reader: LocalOp) -> bool:
        """Whether a value is computed for `reader` alone, which is then given it in the order that it reads."""
        origin = self.origin(value)
        maker = origin.item
        if maker is None or name_of(maker) not in FUSIBLE or not self.returned.isdisjoint((value, origin)):
            return False
        return all(each is reader for each in self._read_by(origin))

    def _written(self) -> set[LocalValue]:
        """The values that become buffers. Readers are asked before what they read."""
        kept: set[LocalValue] = set()
        repeats = Repeats() if self.program.in_breadth and may_repeat(self.items) else None
        for item in reversed(self.items):
            for value in item.results:
                is_buffer = item not in self.aliases and self._is_buffer(item, value)
                if not is_buffer and repeats is not None:
                    readers = [self.items[i] for i in self.readers.get(value, ())]
                    is_buffer = repeats.is_too_often(value, readers, kept) and item not in self.aliases
                if is_buffer:
                    kept.add(value)
        return kept

    def _ends(self) -> dict[LocalValue, int]:
        """The last item that needs each value: what is computed where it is read needs its operands there."""
        end: dict[LocalValue, int] = dict.fromkeys(self.returned, len(self.items) - 1)
        again: dict[LocalValue, int] = {}  # the last item that computes a value which is written as well
        self.until: dict[LocalOp, int] = {}  # by item the last one that it is computed for
        for i in range(len(self.items) - 1, -1, -1):
            item = self.items[i]
            until = self._joint_end(item, i)
            for value in item.results:
                end.setdefault(value, i)
                if value not in self.kept:
                    until = max(until, end[value])
                until = max(until, again.get(value, i))
            self.until[item] = until
            # A copy that is made early is what reads its operand.
            early = self._read_early(item, i) if self.made else {}
            fuses = self.program.in_breadth and self._fuses(item)
            for value in self._inputs(item):
                ends = again if fuses and self._is_computed_again(value) else end
                ends[value] = max(ends.get(value, 0), early.get(value, until))
        return end

    def _joint_end(self, item: LocalOp, i: int) -> int:
        """Until when an item needs its operands: an all-reduce as long as those run that it is one with."""
        members = self.together.get(item)
        return max(map(self.place.__getitem__, members)) if members and self.made else i

    def _read_early(self, item: LocalOp, i: int) -> dict[LocalValue, int]:
        """When copies for item `i` are made of its operands: those for a collective right before it."""
        if item.collective is None:
            return {span.value: span.first for span in self._copied(item, i)}
        first = lambda value: max(self.made.get(self.origin(value), -1) + 1, i - 1)
        return {value: min(first(value), i) for value in item.operands[:1] if is_cut(item)}

    def _is_computed_again(self, value: LocalValue) -> bool:
        """Whether readers that can compute a value do so, although it is written for others: one of its operands at
        most is as large, and it takes little to compute."""
        maker = value.item
        if maker is None or name_of(maker) not in FUSIBLE or maker in self.kernels or is_dear(maker):
            return False
        rank = _true_rank(value)
        large = [v for v in dict.fromkeys(maker.operands) if _true_rank(v) >= rank and not is_spread(v)]
        return len(large) <= 1 or sum(map(_elements, dict.fromkeys(maker.operands))) <= _elements(value)

    def _is_alias(self, item: LocalOp) -> bool:
        """Whether an item gives a buffer another name; contractions of matrices read them in either order."""
        if item in self.narrowed.whole or is_identity(item):
            return True
        return item.name in _ALIAS or (self.program.in_breadth and self._is_folded(item))

    def _is_folded(self, item: LocalOp) -> bool:
        """Whether an item only turns matrices round for contractions."""
        if item.name != "stablehlo.transpose" or item.results[0] in self.returned:
            return False
        readers = [self.items[i] for i in self.readers.get(item.results[0], ())]
        return bool(readers) and all(_reads_either_way(reader, item.results[0]) for reader in readers)

    def origin(self, value: LocalValue) -> LocalValue:
        """The value whose buffer another name of it stands for."""
        while value.item is not None and value.item in self.aliases:
            value = self._inputs(value.item)[value.number]
        return value

    def spans(self) -> tuple[list[Span], list[float]]:
        live: dict[LocalValue, Span] = {}
        done: list[Span] = []
        insides = []
        for i, item in enumerate(self.items):
            insides.append(max((self.program.crest(r) for r in self.program.inner(item)), default=0.0))
            for value in item.results:
                if value not in self.kept or self._is_dropped(item, value):
                    continue
                size = self._size(value)
                given = self._in_place(item, value, i, size, live)
                if given is not None:
                    old = live.pop(given)
                    done.append(old._replace(last=i - 1))
                if not self._is_carried(value, i):
                    first = i if given is not None else self._copied_at(item, value, i)
                    live[value] = Span(value, size, first, self.end[value])
                    if item in self.before:
                        size *= self.before[item][value.number] / max(_elements(value), 1)
                        done.append(live.pop(value)._replace(bytes=size, first=0, last=len(self.items) - 1))
                        continue
                    if self._is_in_parts(item, value):
                        span = live.pop(value)
                        done += [span._replace(bytes=part) for part in parts(item, value)]
            done += [*self._copied(item, i), *self._widened(item, i)]
        return [*done, *live.values()], insides

    def _size(self, value: LocalValue) -> float:
        """Bytes of a buffer. What operations read and give that XLA's compiler for CPUs does on wider floats is written
        so."""
        size = ref_bytes(value)
        if not self.program.in_breadth or value.dtype not in NARROW or value in self.returned:
            return size
        made = size if value.item is None else bytes_in(value.item, value)
        return max(made, min((bytes_in(reader, value) for reader in self._read_by(value)), default=size))

    def _widened(self, item: LocalOp, i: int) -> list[Span]:
        """The copies in wider floats that item `i` is the last to read, of what others read as it is, and what it gives
        in wider floats where they have a place as they are."""
        spans: list[Span] = []
        if item.name not in WIDENING:
            return spans
        for value in dict.fromkeys(map(self.origin, item.operands)) if self.program.in_breadth else ():
            outside = value.item is None or value.item not in self.place
            is_as_it_is = outside or (value in self.kept and self._size(value) == ref_bytes(value))
            if not is_widened(item, value) or not is_as_it_is:
                continue
            if max((self.place[r] for r in self._read_by(value) if is_widened(r, value)), default=-1) == i:
                spans.append(Span(value, bytes_in(item, value), self.made.get(value, -1) + 1, i, True))
        for value in item.results if self.program.in_breadth else ():
            if is_widened(item, value) and (value in self.returned or self._is_carried(value, i)):
                spans.append(Span(value, bytes_in(item, value), i, i, True))
        return spans

    def _copied_at(self, item: LocalOp, value: LocalValue, i: int) -> int:
        """From when a result has memory: where item `i` may not write over its operand, it writes over a copy, which
        is made as soon as the operand is there where items run by breadth."""
        if not self.program.in_breadth or item.name not in _SAME_PLACE or item.name == "stablehlo.while":
            return i
        return min(i, self.made.get(self.origin(item.operands[value.number]), -1) + 1)

    def _is_dropped(self, item: LocalOp, value: LocalValue) -> bool:
        """Whether nothing reads a result of a branch, which the compiler then leaves out."""
        branches = bool(item.regions) and item.regions[0].kind == "branch"
        return branches and value not in self.readers and value not in self.returned

    def _in_place(
        self, item: LocalOp, value: LocalValue, i: int, size: float, live: dict[LocalValue, Span]
    ) -> LocalValue | None:
        """A buffer that nothing reads after item `i`, and whose memory its result takes."""
        candidates: Sequence[LocalValue]
        if item in self.kernels:
            return None
        if item.name in _SAME_PLACE:
            candidates = [item.operands[value.number]]
        elif name_of(item) in POINTWISE:
            candidates = self._read(item)
        else:
            return None
        for c in map(self.origin, candidates):
            span = live.get(c)
            fits = span is not None and self.end[c] == i and span.bytes == size and span.first < i
            if fits and (item.name in _SAME_PLACE or not self.program.in_breadth or not loses_dimension(c)):
                return c
        return None

    def _overwrites(self, item: LocalOp, value: LocalValue, argument: LocalValue) -> bool:
        """Whether an item may write a result over an argument that it reads: each element where it stood."""
        if item.name in _SAME_PLACE:
            return self.origin(item.operands[value.number]) is argument
        return name_of(item) in POINTWISE and not self._is_moved(item, argument)

    def _is_moved(self, item: LocalOp, argument: LocalValue) -> bool:
        """Whether an elementwise operation reads elements of an argument at other positions than it writes."""
        todo, seen = list(item.operands), set()
        while todo:
            value = self.origin(todo.pop())
            if value in seen or value.item is None or value in self.kept:
                continue
            seen.add(value)
            if name_of(value.item) not in POINTWISE and argument in map(self.origin, value.item.operands):
                return True
            todo += value.item.operands
        return False

    def _read(self, item: LocalOp) -> list[LocalValue]:
        """The buffers that an elementwise operation reads, itself or through what is computed in it."""
        seen: set[LocalValue] = set()
        found, todo = [], list(item.operands)
        while todo and len(seen) < FUSED_VALUES:
            value = self.origin(todo.pop())
            if value in seen:
                continue
            seen.add(value)
            if value.item is None or value in self.kept:
                found.append(value)
            elif name_of(value.item) in POINTWISE:
                todo += value.item.operands
        return found

    def _is_carried(self, value: LocalValue, i: int) -> bool:
        """Whether a value that an inner region returns is written where the region around has room for it."""
        position = self.carried.get(value)
        if position is None or self.region.kind != "loop":
            return position is not None
        argument, item = self.region.args[position], self.items[i]
        if self.needs is not None and not self.needs.all_before(argument, item):
            return False
        until = self.end.get(argument, -1)
        return until < i or (until == i and self._overwrites(self.items[i], value, argument))

    def _carried(self) -> dict[LocalValue, int]:
        """The values that an inner region returns, under the names of their buffers too, with their positions."""
        if self.region.kind == "function" or not self.items or self.items[-1].name not in ENDING:
            return {}
        found: dict[LocalValue, int] = {}
        for position, value in enumerate(self.items[-1].operands):
            found.setdefault(value, position)
            found.setdefault(self.origin(value), position)
        return found


def _elements(value: LocalValue) -> int:
    return math.prod(value.shape)


def _true_rank(value: LocalValue) -> int:
    return sum(n > 1 for n in value.shape)


def _reads_either_way(reader: LocalOp, value: LocalValue) -> bool:
    """Whether an item is a contraction of matrices, which are read by rows or by columns."""
    return name_of(reader) == "stablehlo.dot_general" and len(value.shape) == 2 and not dot_dimensions(reader)[0]
