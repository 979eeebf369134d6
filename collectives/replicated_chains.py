"""What every device may as well compute by itself: chains of operations that gather their operands over and over.

An optimiser that orthogonalises a split matrix multiplies it with itself many times, and each product of a split matrix
with a split matrix gathers one. If the first operand is gathered once, and all devices compute all that follows from it
alone, nothing more is sent. The same holds where an array is sorted, sliced and turned, and each of these operations
moves it. That takes more arithmetic, so it is worth trying only where less time goes into what devices do in common
than into the bytes that are saved. Without a topology that is known of no device: it is reckoned for the default of
`Topology`, where arithmetic is cheap. Virtual CPU devices, which share cores, are slower by it.

Found are *roots*, operands of an operation that gathers, and the *cone* of each: all that is computed from them and
from what is whole already, through loops and calls. Where the operations of a cone send more than its roots' gathers
would, its values are to be whole in another propagation of the program.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from propagation.attributes import symbol
from propagation.model import DimSharding, TensorSharding
from propagation.ops import CONTROL, POINTWISE
from propagation.program import Block, Func, Op, Program, Value, source
from propagation.shardings import Shardings

from .addresses import Address, addresses
from .annotations import KnownShardings
from .cost import item_bytes
from .heuristics import CONE_OPERATIONS, MESSAGE_BYTES
from .ir.program import LocalOp, LocalValue
from .layouts.given_attributes import GivenAttributes
from .module import PartitionedProgram
from .ops.control import trip_count
from .plan.work import work
from .topology import Topology

__all__ = ["Whole", "computed_whole", "whole_over"]

_RENAMING = frozenset(("stablehlo.transpose", "stablehlo.reshape", "stablehlo.convert"))


@dataclass(frozen=True, slots=True)
class Whole:
    """Values that all devices compute from `roots`, with what is left of their shardings. `counts` has how many
    operations of each name the functions have, as far as addresses depend on that, and `where` the source lines of the
    operations for which the roots are gathered."""

    roots: frozenset[Address]
    values: tuple[tuple[Address, str, TensorSharding], ...]
    counts: tuple[tuple[tuple[str, str], int], ...]
    where: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.where) - 1} more" if len(self.where) > 1 else ""
        return f"every device computes what follows from the operands at {self.where[0] if self.where else '?'}{more}"

    @classmethod
    def of(
        cls, program: Program, roots: Iterable[Value], shardings: Mapping[Value, TensorSharding], where: tuple[str, ...]
    ) -> Whole:
        """Of values of one reading, with their shardings once they are whole."""
        counts, values = addresses(program)
        places = {value: address for address, value in values.items()}
        return cls(
            frozenset(places[root] for root in roots if root in places),
            tuple((places[v], v.type.text, sharding) for v, sharding in shardings.items() if v in places),
            tuple({key: counts[key] for v in shardings if v in places for key in [places[v][:2]]}.items()),
            where,
        )

    def annotate(self, program: Program, shardings: Shardings) -> None:
        """Gives the values their shardings where nobody said anything else."""
        for _, value, sharding in self._found(program):
            if not value.is_argument and shardings.get(value) is None:
                shardings.set(value, sharding)

    def gathered(self, program: Program) -> dict[Value, TensorSharding]:
        """The roots in another reading of the module, with their shardings once they are gathered."""
        return {value: sharding for address, value, sharding in self._found(program) if address in self.roots}

    def _found(self, program: Program) -> Iterator[tuple[Address, Value, TensorSharding]]:
        """Nothing of functions that this reading does not have, or has otherwise: propagation copies functions whose
        calls are sharded differently."""
        counts, values = addresses(program)
        other = {key for key, count in self.counts if counts[key] != count}
        for address, text, sharding in self.values:
            value = None if address[:2] in other else values.get(address)
            if value is not None and value.type.text == text:
                yield address, value, sharding


def computed_whole(known: KnownShardings, made: PartitionedProgram, given: Topology | None) -> Whole | None:
    """All that sends less if every device computes it; None where there is no such thing. `made` is the program as it
    is partitioned now."""
    sent: dict[Op, float] = defaultdict(float)
    for each in made.sent():
        if isinstance(each.collective.op, Op):
            sent[each.collective.op] += each.bytes
    search = _Search(known, sent, given)
    found = list(search.found())
    return search.told(found) if found else None


@dataclass
class _Cone:
    """What follows from `roots` alone if they are whole over `axes`.

    first   the operation that gathers the roots now
    times   how often they are gathered
    values  all that is whole then, the roots among it
    ops     the operations that compute these, with how often each runs
    called  what is whole in functions, by call
    among   the operations that may be looked at; None: all
    """

    axes: frozenset[str]
    first: Op
    times: int
    roots: list[Value] = field(default_factory=list)
    values: dict[Value, None] = field(default_factory=dict)
    ops: Counter[Op] = field(default_factory=Counter)
    called: dict[str, dict[Op, dict[Value, None]]] = field(default_factory=lambda: defaultdict(dict))
    among: Collection[Op] | None = None

    def inside(self, values: Iterable[Value]) -> _Cone:
        """Of a body or function, of whose values these are whole."""
        return _Cone(self.axes, self.first, self.times, [], dict.fromkeys(values), among=self.among)

    def join(self, inner: _Cone) -> None:
        """Adds what was found in a body or function, but for the values."""
        self.ops.update(inner.ops)
        for name, calls in inner.called.items():
            self.called[name].update(calls)


class _Search:
    """For cones of one program, given what each of its operations sends."""

    def __init__(self, known: KnownShardings, sent: dict[Op, float], given: Topology | None):
        self.known, self.sent, self.topology, self.is_given = known, sent, given or Topology(), given is not None
        self.ops = ops = known.program.ops()
        self.sites: dict[str, list[Op]] = defaultdict(list)  # the calls of each function
        for op in ops if "func.call" in known.program.names else ():
            if op.name == "func.call":
                self.sites[symbol(op.attrs["callee"])].append(op)
        self.left = CONE_OPERATIONS * max(1, len(ops))  # operations that may still be looked at
        self.attributes = GivenAttributes()
        self.places = dict(zip(ops, range(len(ops))))
        names: dict[TensorSharding | None, frozenset[str]] = {None: frozenset()}  # the axes of shardings
        table = known.shardings.table
        for sharding in set(table):
            if sharding is not None:
                names[sharding] = frozenset(a.name for d in sharding.dims for a in d.axes)
        # The axes of values, by their indices.
        self._split_by = split_by = [*map(names.__getitem__, table)]
        split_by += [names[None]] * (len(known.program.values) - len(table))
        self.free: set[Value] = set()  # split values of what is whole alone: broadcast constants, positions, ...
        free = self.free
        for op in ops:
            for v in op.operands:
                if split_by[v.index] and v not in free:
                    break
            else:
                if op.name not in CONTROL:
                    free.update([v for v in op.results if split_by[v.index]])
        self.leading = self._leading()

    def found(self) -> Iterator[_Cone]:
        """The cones that send less; no operation is in two of them."""
        taken: set[Op] = set()
        for op in self._gathering():
            if self.left <= 0:
                return  # no cone would be more than its roots, which all users of a weight would be looked through for
            roots = self._roots(op)
            if op in taken or not roots or any(isinstance(r.owner, Op) and r.owner in taken for r in roots):
                continue
            cone = self._cone(roots, op, self.leading)
            if cone is None or self._saved(cone) <= 0:
                continue
            cone = self._cone(roots, op)
            if cone is not None and self._saves(cone):
                taken.update(cone.ops)
                yield cone

    def _leading(self) -> set[Op]:
        """The operations that send something, and those from which one that does may follow. An optimiser's arithmetic,
        which is most of what follows from weights, is not among them."""
        out: set[Op] = set()
        used: set[Value] = set()  # by these
        main, sent = self.known.program.main.body.terminator, self.sent
        for op in reversed(self.ops):
            results = op.results
            if (
                not used.isdisjoint(results)
                or op.regions
                or sent.get(op)
                or op.name == "func.call"
                or (not results and op is not main)
            ):
                out.add(op)
                used.update(op.operands)
        return out

    def told(self, cones: Iterable[_Cone]) -> Whole:
        """Cones as another reading of the module can be told of them."""
        split = {
            v: whole_over(self.known, v, cone.axes) for cone in cones for v in cone.values if self._axes(v) & cone.axes
        }
        where = dict.fromkeys(where for cone in cones if (where := source(cone.first)) is not None)
        return Whole.of(self.known.program, [root for cone in cones for root in cone.roots], split, tuple(where))

    def _gathering(self) -> list[Op]:
        """The operations that send something, in program order, contractions before all others: what follows from them
        is most. Not those that one of the program's operations was partitioned as."""
        sending = (op for op, n in self.sent.items() if n and op in self.places)
        return sorted(sending, key=lambda op: (op.name != "stablehlo.dot_general", self.places[op]))

    def _axes(self, value: Value) -> frozenset[str]:
        return self._split_by[value.index]

    def _roots(self, op: Op) -> list[Value]:
        """What the operands of an operation are other forms of, of the same size; of what a loop carries, what it
        starts from; of a function's argument, what each of its calls gives."""
        found: dict[Value, None] = {}
        todo, seen = list(reversed(op.operands)), set()
        while todo:
            value = todo.pop()
            if value in seen or not self._axes(value):
                continue
            seen.add(value)
            inside = value.argument_of
            if value.op is not None and value.op.name in _RENAMING:
                todo.append(value.op.operands[0])
            elif isinstance(inside, Op) and inside.name == "stablehlo.while":
                todo.append(inside.operands[value.number])
            elif isinstance(inside, Func) and self.sites[inside.name]:
                todo.extend(site.operands[value.number] for site in reversed(self.sites[inside.name]))
            else:
                found[value] = None
        return list(found)

    def _cone(self, roots: list[Value], first: Op, among: Collection[Op] | None = None) -> _Cone | None:
        """What follows from roots, as far as it is `among` some operations. None where they lie in different blocks."""
        blocks = {r.owner if isinstance(r.owner, Block) else r.owner.block for r in roots}
        if len(blocks) != 1:
            return None
        block = blocks.pop()
        times = self._times(block)
        cone = _Cone(frozenset(a for r in roots for a in self._axes(r)), first, times, among=among)
        for root in roots:
            if root not in cone.values:
                cone.roots.append(root)
                cone.values[root] = None
                self._follow(block, cone, times, [root])
        for name, calls in cone.called.items():
            if all(site in calls for site in self.sites[name]):
                cone.values.update(
                    dict.fromkeys(v for v in next(iter(calls.values())) if all(v in c for c in calls.values()))
                )
        return cone

    def _times(self, block: Block) -> int:
        """How often a block runs; in a loop of unknown length, or a function that such a one calls, once."""
        times, owner = 1, block.owner
        while isinstance(owner, Op):
            times *= (trip_count(owner) or 1) if owner.name == "stablehlo.while" else 1
            owner = owner.parent_op
        return times if owner is None else times * max(1, len(self.sites[owner.name]))

    def _follow(self, block: Block, cone: _Cone, times: int, reached: Iterable[Value]) -> None:
        """Adds to a cone what a block computes from the values `reached` of it and from what is whole, in order."""
        todo: list[tuple[int, Op]] = []
        seen: set[Op] = set()
        among = cone.among

        def reach(values: Iterable[Value]) -> None:
            for v in values:
                for use in v.uses:
                    user = use.op if use.op.parent is block else _in_block(use.op, block)
                    if user is not None and user not in seen and (among is None or user in among):
                        seen.add(user)
                        heapq.heappush(todo, (self.places[user], user))

        reach(reached)
        while todo and self.left > 0:
            self.left -= 1
            _, op = heapq.heappop(todo)
            if op.name == "stablehlo.while":
                self._loop(op, cone, times)
            elif op.name == "func.call":
                self._call(op, cone, times)
            elif op.results and op.name not in CONTROL and self._is_reached(op.operands, cone):
                cone.values.update(dict.fromkeys(op.results))
                cone.ops[op] += times
            reach(r for r in op.results if r in cone.values)

    def _is_whole(self, value: Value, cone: _Cone) -> bool:
        return value in cone.values or value in self.free or self._axes(value).isdisjoint(cone.axes)

    def _is_reached(self, values: Sequence[Value], cone: _Cone) -> bool:
        """Whether all are whole, some of them because of the cone."""
        return all(self._is_whole(v, cone) for v in values) and any(v in cone.values for v in values)

    def _call(self, op: Op, cone: _Cone, times: int) -> None:
        """A call whose operands are whole: so are its results, if they follow from these."""
        callee = self.known.program.funcs.get(symbol(op.attrs["callee"]))
        if callee is None or not self._is_reached(op.operands, cone):
            return
        inside = cone.inside(a for a, v in zip(callee.args, op.operands) if v in cone.values)
        self._follow(callee.body, inside, times, list(inside.values))
        if all(self._is_whole(v, inside) for v in callee.returned):
            cone.values.update(dict.fromkeys(op.results))
            cone.join(inside)
            cone.called[callee.name][op] = inside.values

    def _loop(self, op: Op, cone: _Cone, times: int) -> None:
        """What a loop carries stays whole if it is so at first, and what the body makes of it is."""
        test, body = op.regions
        whole = {i for i, v in enumerate(op.operands) if self._is_whole(v, cone)}
        while True:
            entering = [body.args[i] for i in whole if op.operands[i] in cone.values]
            inside = cone.inside([*cone.values, *entering])
            self._follow(body, inside, times * (trip_count(op) or 1), [*inside.values])
            stay = {i for i in whole if self._is_whole(body.terminator.operands[i], inside)}
            if stay == whole or self.left <= 0:
                break
            whole = stay
        for i in whole:
            if op.operands[i] in cone.values or body.terminator.operands[i] in inside.values:
                inside.values.update(dict.fromkeys((op.results[i], body.args[i], test.args[i])))
        cone.values.update(inside.values)
        cone.join(inside)

    def _saved(self, cone: _Cone) -> float:
        """Bytes that the operations of a cone send, less those of the roots' gathers."""
        gathers = cone.times * sum(self._gathered(root, cone.axes) for root in cone.roots)
        return sum([self.sent.get(op, 0.0) for op in cone.ops]) - gathers

    def _saves(self, cone: _Cone) -> bool:
        """Whether the operations of a cone send more than the roots' gathers, and it takes longer to send that than to
        compute on every device what they compute together."""
        saved = self._saved(cone)
        if saved <= 0:
            return False
        link = self.topology.default
        messages = sum(n for op, n in cone.ops.items() if self.sent.get(op)) - cone.times * len(cone.roots)
        each = link.latency if self.is_given else MESSAGE_BYTES / link.bandwidth
        gained = saved / link.bandwidth + max(0, messages) * each
        return sum(n * self._seconds(op, cone.axes) for op, n in cone.ops.items()) < gained

    def _gathered(self, value: Value, axes: frozenset[str]) -> float:
        """Bytes that a device sends in the gather of a value over some axes."""
        sharding = self.known.sharding(value)
        assert sharding is not None, "roots are split"
        parts = [(a.name in axes, a.size) for d in sharding.dims for a in d.axes]
        others = math.prod(size for gathered, size in parts if not gathered)
        over = math.prod(size for gathered, size in parts if gathered)
        return _bytes(value) / others * (1 - 1 / over)

    def _seconds(self, op: Op, axes: frozenset[str]) -> float:
        """How much longer an operation takes if it is not split over some axes. Pointwise ones are taken as part of
        others."""
        if op.name in POINTWISE:
            return 0.0
        parts = [self._parts(v, axes) for v in (*op.results, *op.operands)]
        saved = 1 - 1 / max(parts, default=1)
        memory = sum(_bytes(v) for v in (*op.results, *op.operands) if v.type.is_tensor)
        taken, made = (
            [LocalValue(v.type.shape, v.type.dtype) for v in side if v.type.is_tensor]
            for side in (op.operands, op.results)
        )
        arithmetic = work(LocalOp(op.name, taken, made, self.attributes.of(op)), tiles=False)
        return saved * max(arithmetic / self.topology.flops, memory / self.topology.memory_bandwidth)

    def _parts(self, value: Value, axes: frozenset[str]) -> int:
        sharding = self.known.sharding(value)
        dims = () if sharding is None else sharding.dims
        return math.prod(a.size for d in dims for a in d.axes if a.name in axes)


def whole_over(known: KnownShardings, value: Value, axes: Collection[str]) -> TensorSharding:
    """The sharding of a split value once it is gathered over some axes."""
    sharding = known.sharding(value)
    assert sharding is not None, "the value is split"
    dims = []
    for dim in sharding.dims:
        kept = next((i for i, a in enumerate(dim.axes) if a.name in axes), len(dim.axes))
        dims.append(DimSharding(dim.axes[:kept], False))
    return TensorSharding(sharding.mesh, dims)


def _in_block(op: Op, block: Block) -> Op | None:
    """The operation of a block that an operation is, or lies in; None if it is elsewhere."""
    while op.parent is not block:
        outer = op.parent_op
        if not isinstance(outer, Op):
            return None
        op = outer
    return op


def _bytes(value: Value) -> float:
    return value.type.size * item_bytes(value.type.dtype)
