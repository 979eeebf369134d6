"""What one device holds while a partitioned program runs: its time line, its peak, and what is alive at the peak.

An estimate by liveness (`liveness` says of what), in the order in which the program is written, or in that of XLA's
compiler for CPUs (`breadth`). A compiler may order, fuse and reuse more; `Compiled.memory_analysis()` has its figures.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from propagation.parsing import written_location_text

from ..heuristics import ROOMS_TRIED
from ..ir.program import LocalFunction, LocalOp, LocalValue, Region
from ..machine import ref_bytes
from .liveness import Liveness
from .spans import Span, totals

__all__ = ["Held", "MemoryPlan", "Moment", "memory_of"]


@dataclass(frozen=True, slots=True)
class Held:
    """A buffer that is alive at the peak. `what` is `argument`, `result` or the operation that made it; `number` counts
    arguments and results, and is None for what operations made; `type` is one device's part, `tensor<4x128xf32>`. See
    `MemoryPlan.alive`."""

    what: str
    number: int | None
    type: str
    bytes: float
    where: str | None


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes that a device holds while an operation of the program runs, arguments and results included; of a loop, a
    branch or a call the most that it holds at once. See `MemoryPlan.moments`."""

    what: str
    where: str | None
    bytes: float


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes per device over the course of a program.

    peak       the most at once
    arguments  of all arguments, which stay for the whole program
    results    of the results that do not take the memory of a donated argument
    moments    what is held while each operation of the program's main function runs, in order
    alive      what is held at the peak, the largest first

    >>> mesh = meshrt.sharding.AbstractMesh((4,), ("x",))
    >>> x = meshrt.ShapeDtypeStruct((8, 4), jnp.float32, sharding=meshrt.NamedSharding(mesh, meshrt.P("x")))
    >>> memory = meshrt.jit(lambda x: x + 1).lower(x).partition().result.memory
    >>> memory.peak, memory.arguments, [held.what for held in memory.alive], [m.bytes for m in memory.moments][-1]
    (64.0, 32.0, ['argument', 'result'], 64.0)
    """

    peak: float
    arguments: float
    results: float
    moments: tuple[Moment, ...]
    alive: tuple[Held, ...]

    @property
    def temporaries(self) -> float:
        """The part of the peak that is neither argument nor result."""
        return self.peak - self.arguments - self.results


def memory_of(
    functions: Sequence[LocalFunction], locations: dict[str, str], in_breadth: bool = False, with_library: bool = True
) -> MemoryPlan:
    """The memory plan of a per-device program, whose first function is its main one.

    Args:
      locations: MLIR texts by the aliases that operations name.
      in_breadth: it is run as XLA's compiler for CPUs orders it, else as it is written.
      with_library: that compiler hands reductions to a library of kernels.
    """
    main, by_name = functions[0], {f.name: f for f in functions}
    lives = Liveness(by_name, in_breadth, with_library)
    written = _written(main)
    spans, insides = lives.spans(main.region, written)
    items = lives.items(main.region)
    inner = [
        Span(value, size, i, i, True)
        for i, (item, load) in enumerate(zip(items, insides)) if load
        for value, size in _alive_within(item, lives)
    ]  # fmt: skip
    buffers = [lives.origin(main.region, value) for value in written]
    spans, insides = _outside_of_results(spans, buffers, inner, insides)
    held, results = sum(map(ref_bytes, main.region.args)), sum(map(ref_bytes, written))
    places = _Places(locations)
    loads = [held + results + n + inner for n, inner in zip(totals(spans, len(insides)), insides)]
    moments = tuple(Moment(item.name, places.of(item), n) for item, n in zip(items, loads))
    alive = [Held("argument", i, a.type, ref_bytes(a), None) for i, a in enumerate(main.region.args)]
    alive += [Held("result", main.results.index(v), v.type, ref_bytes(v), places.of(v.maker)) for v in written]
    if loads:
        at = max(range(len(loads)), key=loads.__getitem__)
        alive += [_made(v, n, places) for v, n in _alive(spans, at)]
    peak = max(loads, default=held + results)
    return MemoryPlan(peak, held, results, moments, tuple(sorted(alive, key=lambda h: -h.bytes)))


def _made(value: LocalValue, size: float, places: _Places) -> Held:
    if value.item is None:
        return Held("copy of an argument", None, value.type, size, None)
    return Held(value.item.name, None, value.type, size, places.of(value.item))


def _written(main: LocalFunction) -> list[LocalValue]:
    """The results that have memory of their own: not those that are arguments, nor as many as donated arguments make
    room for."""
    given = [ref_bytes(a) for a in main.donated]
    kept = []
    for result in dict.fromkeys(main.results):
        if ref_bytes(result) in given:
            given.remove(ref_bytes(result))
        elif result.item is not None:
            kept.append(result)
    return kept


def _outside_of_results(
    spans: Sequence[Span], written: Sequence[LocalValue], inner: Sequence[Span], insides: Sequence[float]
) -> tuple[list[Span], list[float]]:
    """The temporaries that need memory besides that of the results: one that is no larger than a result may lie there
    until the result is written. The largest choose first, the smallest place that they fit.

    Args:
      spans: the temporaries of the main function, and its results.
      written: the buffers of the results that have memory of their own.
      inner: what is alive within loops, branches and calls when they hold most, while the item runs that they are.
      insides: the most bytes that live within each item.

    Returns:
      The temporaries that are left, those within items too, and `insides` of which these are taken.
    """
    own = set(written)
    places = {s.value: [(s.first, s.last)] for s in spans if s.value in own and not s.is_copy}
    rooms = sorted(places, key=ref_bytes)
    left, rest = [], list(insides)
    for span in inner:
        rest[span.first] -= span.bytes
    temporaries = [*(s for s in spans if s.is_copy or s.value not in places), *inner]
    for span in sorted(temporaries, key=lambda s: -s.bytes):
        first_fit = bisect_left(rooms, span.bytes, key=ref_bytes)
        for room in rooms[first_fit : first_fit + ROOMS_TRIED]:
            if _take(places[room], span.first, span.last):
                break
        else:
            left.append(span)
    return left, rest


def _take(taken: list[tuple[int, int]], first: int, last: int) -> bool:
    """Whether nobody had taken any of `first` to `last`; they are taken then. `taken` are pairs in order."""
    at = bisect_left(taken, (first, last))
    if (at and taken[at - 1][1] >= first) or (at < len(taken) and taken[at][0] <= last):
        return False
    taken.insert(at, (first, last))
    return True


def _alive(spans: Sequence[Span], at: int) -> list[tuple[LocalValue, float]]:
    return [(s.value, s.bytes) for s in spans if s.first <= at <= s.last]


def _alive_within(item: LocalOp, lives: Liveness) -> list[tuple[LocalValue, float]]:
    """What is alive within a loop, a branch or a call when it holds most."""
    region: Region | None = max(lives.inner(item), key=lives.crest, default=None)
    if region is None or not region.items:
        return []
    loads = lives.loads(region)
    at = max(range(len(loads)), key=loads.__getitem__)
    return _alive(lives.spans(region)[0], at) + _alive_within(lives.items(region)[at], lives)


class _Places:
    """Source lines of items, each location read once."""

    def __init__(self, locations: dict[str, str]):
        self._texts = {alias: text for text, alias in locations.items()}
        self._known: dict[str, str | None] = {}

    def of(self, item: LocalOp) -> str | None:
        if item.loc not in self._known:
            text = self._texts.get(item.loc, item.loc)
            self._known[item.loc] = written_location_text(text) if text else None
        return self._known[item.loc]
