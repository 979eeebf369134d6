"""Axes that several classes of dimensions want, and which of them may better have it first, or last.

Where weights are distributed over the devices that share a batch, the batch and the embedding dimension of weights want
one axis. The class whose tensors hold most bytes gets it first in one alternative. Where that class has it already (the
tokens of a residual stream), it gets it last in another one: tokens are then gathered once for all weights whose
features are split, instead of these weights.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from propagation.axis_conflicts import meeting
from propagation.correspondence import Correspondence, correspondence_of
from propagation.func_edges import callers_first
from propagation.functions import callee_of
from propagation.model import DimSharding, FactorType, OpRule, TensorSharding
from propagation.ops import SHARDING_ATTRIBUTE
from propagation.program import Block, Op, Program, TensorType, Value
from propagation.shardings import Shardings

from .annotations import KnownShardings
from .cost import item_bytes
from .heuristics import CONTESTED_SHARE, DEFERRED_STEPS, SCATTERED_AND_GATHERED
from .ops.control import trip_count
from .preferences import Preference
from .replicated_chains import Whole, whole_over

__all__ = ["preference"]

# Values of one type, sharding and classes of dimensions: how many there are.
_Alike: TypeAlias = Mapping[tuple[TensorType, TensorSharding | None, tuple[int, ...]], int]

_ADDING = frozenset(("stablehlo.add", "stablehlo.subtract"))


class _End(NamedTuple):
    """A split dimension of an argument or result of @main."""

    value: Value
    is_result: bool
    number: int
    dim: int
    split: DimSharding

    def __str__(self) -> str:
        return f"dimension {self.dim} of {'result' if self.is_result else 'argument'} {self.number}"


class _Contest(NamedTuple):
    """Axes that several classes of dimensions want, some of which meet.

    ends      the split dimensions at the boundary
    classes   by axis: those that have it at the boundary, with the first dimension there
    sizes     by axis that several have: bytes of all values that have a dimension of the class
    lost      by axis: bytes of those of the largest class that are split otherwise
    summing   the operations of the program that sum over some dimension, with their rules and how often they run
    held      the classes to which constraints inside the program give an axis, whatever waits at its boundary
    """

    ends: list[_End]
    joined: Correspondence
    classes: dict[str, dict[int, str]]
    sizes: dict[str, dict[int, float]]
    lost: dict[str, float]
    summing: list[tuple[Op, OpRule, int]]
    held: set[tuple[str, int]]

    @property
    def first(self) -> dict[str, int]:
        """By axis: the largest class."""
        return {axis: max(found, key=lambda root: found[root]) for axis, found in self.sizes.items()}

    def is_lost(self, axis: str) -> bool:
        """Whether many values of the largest class are split otherwise."""
        return self.lost[axis] > CONTESTED_SHARE * self.sizes[axis][self.first[axis]]

    def waiting(self, waits: Callable[[str, int], bool], told: Preference) -> Preference:
        """`told`, in which the axes of the classes that `waits` says come later."""
        late: tuple[set[tuple[int, int]], set[tuple[int, int]]] = set(), set()
        for end in self.ends:
            if any(waits(a.name, self.joined.find(end.value, end.dim)) for a in end.split.axes):
                late[end.is_result].add((end.number, end.dim))
        return replace(told, waits=frozenset(late[0]), results_wait=frozenset(late[1]))


def _contest(known: KnownShardings, sent: Mapping[str, float]) -> _Contest | None:
    """None for most programs: where no axis over which bytes are `sent` is contested, or where somebody set
    priorities."""
    program, shardings = known.program, known.shardings
    main = program.main
    ends = [*_ends(main.args, map(known.sharding, main.args), False), *_ends(main.returned, known.results(), True)]
    places = Counter(axis.name for end in ends for axis in end.split.axes)
    axes = {axis for axis, count in places.items() if count > 1 and sent.get(axis)}
    if not axes or any(end.split.priority for end in ends):
        return None
    axes = meeting(known.apart, axes)
    if not axes:
        return None
    joined = correspondence_of(program, known.rules)
    classes: dict[str, dict[int, str]] = {}
    for end in ends:
        for axis in (axis for axis in end.split.axes if axis.name in axes):
            classes.setdefault(axis.name, {}).setdefault(joined.find(end.value, end.dim), str(end))
    contested = {a: set(roots) for a, roots in classes.items() if len(roots) > 1}
    among = frozenset(itertools.chain(*contested.values()))
    alike = _alike(program, shardings, joined, among) if contested else {}
    sizes = _sizes(alike, contested)
    times = _times(program)
    summing = [(op, rule, times[op.block]) for op, rule in joined.summing if times[op.block]]
    held = _held(program, shardings, joined) if contested else set()
    found = _Contest(ends, joined, classes, sizes, {}, summing, held)
    return found._replace(lost=_lost(alike, held, found.first))


def preference(known: KnownShardings, sent: Mapping[str, float]) -> Preference | None:
    """What may be worth trying; None for most programs: where no axis over which bytes are `sent` is contested, or the
    alternatives are known to send as much, or somebody set priorities."""
    contest = _contest(known, sent)
    return contest and (_largest_first(known, contest, sent) or _largest_last(known, contest, sent))


def _largest_first(known: KnownShardings, contest: _Contest, sent: Mapping[str, float]) -> Preference | None:
    """That each contested axis goes to the largest class first. None where that has its axes nearly everywhere already,
    or would leave as much to be summed as is sent now."""
    first = contest.first
    wanted = [axis for axis in first if sent.get(axis) and contest.is_lost(axis)]
    left = _left_to_sum(known, contest, {axis: first[axis] for axis in wanted})
    if all(SCATTERED_AND_GATHERED * left[axis] >= sent[axis] for axis in wanted):
        return None
    told = tuple((axis, contest.classes[axis][root]) for axis, root in first.items())
    return contest.waiting(lambda axis, root: first.get(axis, root) != root, Preference(first=told))


def _largest_last(known: KnownShardings, contest: _Contest, sent: Mapping[str, float]) -> Preference | None:
    """That an axis which the largest class has (tokens) goes to all others first (the features of weights): tokens are
    then gathered once for all of these, instead of the weights of each. None where that sends as much as is sent now,
    or constraints inside the program hold the largest."""
    last: dict[str, int] = {}
    axes: dict[Value, set[str]] = {}  # over which values are gathered
    for axis, root in contest.first.items():
        if sent.get(axis) and not contest.is_lost(axis) and (axis, root) not in contest.held:
            gathers, sums = _sent_last(known, contest, axis, root)
            if sum(gathers.values()) + sums < sent[axis]:
                last[axis] = root
                for value in gathers:
                    axes.setdefault(value, set()).add(axis)
    if not last:
        return None
    told = tuple((axis, contest.classes[axis][root]) for axis, root in last.items())
    early = Whole.of(known.program, axes, {v: whole_over(known, v, over) for v, over in axes.items()}, ())
    return contest.waiting(lambda axis, root: last.get(axis) == root, Preference(last=told, whole=(early,)))


def _ends(values: Iterable[Value], shardings: Iterable[TensorSharding | None], is_result: bool) -> Iterator[_End]:
    for number, (value, sharding) in enumerate(zip(values, shardings, strict=True)):
        for d, split in enumerate(() if sharding is None else sharding.dims):
            if split.axes:
                yield _End(value, is_result, number, d, split)


def _bytes(value: Value) -> float:
    return value.type.size * item_bytes(value.type.dtype)


def _alike(program: Program, shardings: Shardings, joined: Correspondence, among: Collection[int]) -> _Alike:
    """How many values there are of one type, sharding and classes of dimensions, some of which are `among` these.
    The sharding of arguments of @main does not count: they keep what they have."""
    out: dict[tuple[TensorType, TensorSharding | None, tuple[int, ...]], int] = defaultdict(int)
    table: list[TensorSharding | None] = [*shardings.table, *[None] * (len(program.values) - len(shardings.table))]
    for arg in program.main.args:
        table[arg.index] = None
    for value, roots in joined.having(program.values, among):
        kind = value.type
        if isinstance(kind, TensorType):
            out[kind, table[value.index], roots] += 1
    return out


def _sizes(alike: _Alike, contested: dict[str, set[int]]) -> dict[str, dict[int, float]]:
    """By axis and class that wants it: bytes of all values that have a dimension of the class."""
    out = {axis: dict.fromkeys(sorted(roots), 0.0) for axis, roots in contested.items()}
    bytes_of: dict[tuple[int, ...], float] = defaultdict(float)  # by the classes of values' dimensions
    for (kind, _, roots), count in alike.items():
        bytes_of[roots] += count * kind.size * item_bytes(kind.dtype)
    for found in out.values():
        for roots, size in bytes_of.items():
            for root in found.keys() & roots:
                found[root] += size
    return out


def _held(program: Program, shardings: Shardings, joined: Correspondence) -> set[tuple[str, int]]:
    """Classes to which constraints inside the program give an axis, whatever waits at its boundary."""
    return {
        (axis.name, joined.find(result, d))
        for op in (program.ops() if SHARDING_ATTRIBUTE.keys() & program.names else ()) if op.name in SHARDING_ATTRIBUTE
        for result in op.results if (said := shardings.get(result)) is not None
        for d, dim in enumerate(said.dims) for axis in dim.axes
    }  # fmt: skip


def _lost(alike: _Alike, held: set[tuple[str, int]], first: dict[str, int]) -> dict[str, float]:
    """By axis: bytes of the values with a dimension of the class that is to have it first, in which it splits another
    one that may have to wait: arguments of @main keep what they have, and constraints what they say."""
    out = dict.fromkeys(first, 0.0)
    roots_first = frozenset(first.values())
    for (kind, sharding, roots), count in alike.items():
        if sharding is None or roots_first.isdisjoint(roots):
            continue
        at = {axis.name: root for root, dim in zip(roots, sharding.dims) for axis in dim.axes}
        for axis, root in first.items():
            if root in roots and at.get(axis, root) != root and (axis, at[axis]) not in held:
                out[axis] += count * kind.size * item_bytes(kind.dtype)
    return out


def _left_to_sum(known: KnownShardings, contest: _Contest, first: dict[str, int]) -> dict[str, float]:
    """By axis: bytes that a device sends, at least, to add up what operations leave that sum over dimensions of
    the class that is to have it: each sum is reduced and scattered. Loops of unknown length count once."""
    out = dict.fromkeys(first, 0.0)
    for op, rule, times in contest.summing:
        summed = _summed(rule, op, contest.joined)
        for axis, root in first.items():
            if root in summed:
                out[axis] += times * sum(_scattered(r, known.shardings.get(r), axis) for r in op.results)
    return out


def _sent_last(known: KnownShardings, contest: _Contest, axis: str, root: int) -> tuple[dict[Value, float], float]:
    """Bytes that a device sends, at least, if every other class has an axis before `root`: by value, for operands of
    contractions with features that are split, which are gathered once; and to scatter sums over split features, of
    those that are added to each other the largest."""
    classes, others = contest.joined.classes, contest.sizes[axis].keys() - {root}
    gathers: dict[Value, float] = {}
    sums: dict[Value, float] = {}
    for op, rule, times in contest.summing:
        if len(op.results) != 1 or not op.operands:
            continue
        result = op.results[0]
        at = classes(result)
        if not others.isdisjoint(_summed(rule, op, contest.joined)):
            total = _total(result)
            scattered = times * _scattered(result, known.shardings.get(result), axis)
            sums[total] = max(sums.get(total, 0.0), scattered)
        for v in op.operands:
            here = classes(v)
            if root in here and root in at and not others.isdisjoint(at) and others.isdisjoint(here):
                gathers[v] = times * _scattered(v, known.shardings.get(v), axis)
    return {v: n for v, n in gathers.items() if n}, sum(sums.values())


def _total(value: Value) -> Value:
    """The last of the sums that a value is added to, one after the other."""
    for _ in range(DEFERRED_STEPS):
        if len(value.uses) != 1 or value.uses[0].op.name not in _ADDING:
            break
        value = value.uses[0].op.results[0]
    return value


def _summed(rule: OpRule, op: Op, joined: Correspondence) -> set[int]:
    """The classes of the dimensions that an operation sums over."""
    return {
        joined.find(value, d)
        for value, dims in zip(op.operands, rule.operands) for d, factors in enumerate(dims)
        if factors and rule.types[factors[0]] is FactorType.REDUCTION
    }  # fmt: skip


def _scattered(value: Value, sharding: TensorSharding | None, axis: str) -> float:
    """Bytes that a device sends to reduce and scatter a value over an axis, which is split as it is over others."""
    if sharding is None:
        return 0.0
    others = math.prod(a.size for d in sharding.dims for a in d.axes if a.name != axis)
    return _bytes(value) / others * (1 - 1 / sharding.mesh.axis(axis).size)


def _times(program: Program) -> dict[Block, int]:
    """How often each block runs in a run of the program, all calls of its function together. Loops of unknown length
    count once, and so do all branches."""
    times: dict[Block, int] = defaultdict(int)
    times[program.main.body] = 1
    for func in callers_first(program).values():
        for op in func.body.walk():  # each before those in its regions
            if op.name == "func.call":
                times[program.funcs[callee_of(op)].body] += times[op.block]
            elif op.regions:
                inside = (trip_count(op) or 1) if op.name == "stablehlo.while" else 1
                times.update((region, inside * times[op.block]) for region in op.regions)
    return times
