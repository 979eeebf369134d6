"""Whole alternatives: another propagation of the same program, compared with the first one by what it sends.

Propagation gives an axis that two dimensions want to the one that it visited first. Where weights are distributed over
the devices that share a batch, and nothing constrains the activations, that may be the weights' embedding dimension:
activations are then split by features, and every layer exchanges them, where a batch-first layout only gathers
weights. No single choice shows that; so a program with such an axis is propagated a second time, in which each
contested axis goes first to the class of dimensions (`propagation.correspondence`) whose tensors hold most bytes:
all that arguments and results say of it for other classes waits until that one is everywhere. Or it waits for the
others, where it has the axis already (`contended_axes.py`). Both are partitioned, and the one that sends less is taken.

Another one is tried where a reshape cuts a split dimension in two, as a batch into microbatches: part of the axes then
stays on the microbatches, and a loop that takes one after the other needs on all devices what few of them hold. In the
alternative the microbatches stay whole, and their rows are moved once.

And one where several results of a split argument's type are whole, as of an optimiser whose parameters and moments are,
beside a gradient that is not: there the argument is gathered before it is used, instead of each result.

And one where loops inside loops gather the rows of a split argument, all of them in each turn of the outer loop: there
the argument is gathered before it is used (`walked_arguments.py`).

And one where operations (contractions, sorts, slices, ...) move over and over what follows from one another: there it
is gathered once, and every device computes all of it (`replicated_chains.py`).

And one of the program rewritten, where a split dimension holds parts that something cuts (`equal_parts.py`).

Another propagation and partition cost as much as the first. So what the first plan sends over an axis is the most that
another place of the axis can save, and what is known of the alternative beforehand is held against it: the partial sums
that contractions of its class leave, the gather of an argument.

Arguments and results keep their shardings. Programs in which somebody set priorities keep them: nothing is tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from propagation.correspondence import correspondence_of
from propagation.model import DimSharding, TensorSharding
from propagation.program import Op, source

from .addresses import addresses
from .annotations import KnownShardings
from .contended_axes import preference
from .cost import item_bytes
from .equal_parts import parted
from .errors import CollectivesError
from .heuristics import ALTERNATIVE_SHARE, DIVISIONS, MEMORY_GROWTH_BYTES, MESSAGE_BYTES
from .module import PartitionedProgram, partition_program
from .options import Options
from .plan.communication import Alternative
from .preferences import Gathered, Kept, Preference
from .reordered import decided_again, is_final
from .replicated_chains import computed_whole
from .topology import Topology
from .walked_arguments import walked_arguments
from .within_memory import divisions, frugal, noted

__all__ = ["cheapest", "preferences"]

FIRST = "layouts as they were propagated"


def cheapest(known: KnownShardings, given: Topology | None, options: Options) -> PartitionedProgram:
    """The program of `known`, or of a whole alternative, whichever sends least (takes least time, with a topology) and
    fits into a device's memory. Where none of them fits, one is looked for that holds less (`within_memory.py`)."""
    first = partition_program(known.program, known, given, options)
    contest = _Contest(known, given, options, first)
    final = is_final(known)
    if first.plan.entries and not final and options.compare:
        for wanted in preferences(known, first, given, options.repeat):
            contest.offer(wanted)
    if contest.best.exceeds_memory and options.compare:
        contest.fit(final)
    return contest.settled()


class _Contest:
    """Programs one after the other, of which the `best` so far is kept: what it was told, and the options and shardings
    that it was made with."""

    def __init__(self, known: KnownShardings, given: Topology | None, options: Options, first: PartitionedProgram):
        self.known, self.given, self.first = known, given, first
        self.best, self.taken, self.options, self.shardings = first, Preference(), options, known
        self.rows: list[Alternative] = []

    def offer(self, wanted: Preference) -> bool:
        """Partitions the program as it is propagated with `wanted`, beside what the best was told; whether that is
        better."""
        wanted = wanted.beside(self.taken)
        again = decided_again(self.known, wanted.annotate)
        if again is None:
            return False
        again.gathered, again.divided = wanted.gathers(again.program), wanted.divides(again.program)
        return self._try(str(wanted), wanted, again, self.options)

    def fit(self, is_final: bool) -> None:
        """Looks for a program that fits, or holds less, where the best does not."""
        late = replace(self.options, memory_growth=0.0)
        if late != self.options:
            self._try("nothing held sooner than it must", self.taken, self.shardings, late)
            if not self.best.exceeds_memory:
                return
        thrifty = frugal(self.options)
        if thrifty != self.options:
            self._try("as little kept as possible", self.taken, self.shardings, thrifty)
        tries, better = (0 if is_final else DIVISIONS), True
        while better and tries > 0 and self.best.exceeds_memory:
            better = False
            for divided in divisions(self.shardings, self.best, self.taken.divided)[:tries]:
                tries -= 1
                better = self.offer(Preference(divided=(divided,))) or better
                if better:
                    break

    def settled(self) -> PartitionedProgram:
        """The best, with what it was compared with, and a finding if it does not fit."""
        best, first = self.best, self.first
        if self.rows:
            compared = any(row.peak is not None for row in self.rows)
            head = _row(FIRST, first, best is first, first.memory.peak if compared else None)
            best.plan = replace(best.plan, alternatives=(head, *self.rows))
        return noted(best)

    def _try(self, what: str, wanted: Preference, shardings: KnownShardings, options: Options) -> bool:
        try:
            other = partition_program(shardings.program, shardings, self.given, options)
        except CollectivesError as e:  # it need not be possible with these layouts, too
            self.rows.append(Alternative(what, False, None, None, None, str(e)))
            return False
        takes, peak = self._is_better(other)
        if other.refused is not None and not takes:
            self.rows.append(Alternative(what, False, None, None, None, str(other.refused)))
            return False
        self.rows = [replace(row, taken=False) for row in self.rows] if takes else self.rows
        self.rows.append(_row(what, other, takes, peak))
        if takes:
            self.best, self.taken, self.shardings, self.options = other, wanted, shardings, options
        return takes

    def _is_better(self, other: PartitionedProgram) -> tuple[bool, float | None]:
        """Whether a program is to be taken in place of the best, and what it holds if that was asked: what does not fit
        gives way to what does, what certainly does not to what may, and else to what holds less; among those that fit
        the cheaper one is taken. Where nobody said what fits, it may hold more by a share, and by little as far as it
        sends less."""
        weigh = lambda p: p.plan.price(MESSAGE_BYTES) if self.given is None else p.plan.seconds
        cheaper = weigh(other) < ALTERNATIVE_SHARE * weigh(self.best)
        if self.best.exceeds_memory:
            held = other.memory.peak
            if (other.refused is None) != (self.best.refused is None):
                return other.refused is None, held
            return not other.exceeds_memory or held < ALTERNATIVE_SHARE * self.best.memory.peak, held
        if not cheaper:
            return False, None
        held, before, share = other.memory.peak, self.first.memory.peak, self.options.memory_growth
        growth = share * before + _worth(self.first, other) if share else 0.0
        return held <= before + growth and not other.exceeds_memory, held


def _worth(first: PartitionedProgram, other: PartitionedProgram) -> float:
    """Bytes of memory that are paid with those that another program does not send: what the first one holds, times the
    share by which it sends more; never much. Fewer messages of as many bytes pay none."""
    sent, before = other.plan.bytes, first.memory.peak
    if sent <= 0.0:
        return MEMORY_GROWTH_BYTES
    return min(MEMORY_GROWTH_BYTES, max(0.0, (first.plan.bytes - sent) / sent * before))


def _sent_over(made: PartitionedProgram) -> dict[str, float]:
    """By the name of an axis: bytes that the busiest device sends in collectives over it."""
    out: dict[str, float] = {}
    for entry in made.plan:
        for axis in {name for name, *_ in entry.mesh_axes}:
            out[axis] = out.get(axis, 0.0) + entry.bytes * (entry.times or 1)
    return out


def _row(what: str, made: PartitionedProgram, taken: bool, peak: float | None) -> Alternative:
    return Alternative(what, taken, made.plan.bytes, made.plan.seconds, peak)


def preferences(
    known: KnownShardings, made: PartitionedProgram, given: Topology | None, may_repeat: bool = True
) -> Iterator[Preference]:  # fmt: skip
    """What may be worth trying, one after the other; nothing for most programs. `made` is the program as it is
    partitioned with the layouts of `known`. Devices compute the same only if they `may_repeat` arithmetic."""
    sent = _sent_over(made)
    kept = _walked_through(known)
    if kept:
        yield Preference(kept=kept)
    gathered = _wanted_whole(known, sent)
    if gathered:
        yield Preference(gathered=gathered)
    walked = walked_arguments(known, made.plan)
    if walked:
        yield Preference(gathered=walked)
    whole = computed_whole(known, made, given) if may_repeat else None
    if whole is not None:
        yield Preference(whole=(whole,))
    parts = parted(known, sent)
    if parts is not None:
        yield Preference(parted=(parts,))
    found = preference(known, sent)
    if found is not None:
        yield found


def _walked_through(known: KnownShardings) -> tuple[Kept, ...]:
    """The reshapes that cut a split dimension (a batch) in two and leave some of its axes on the first (microbatches),
    of which loops or slices take one position at a time: each time, all devices need what a few of them hold."""
    if "stablehlo.dynamic_slice" not in known.program.names:
        return ()
    found = []
    for address, value in addresses(known.program)[1].items():
        op = value.op
        if op is None or op.name != "stablehlo.reshape":
            continue
        before, after = known.sharding(op.operands[0]), known.sharding(op.results[0])
        at = None if before is None else _cut_dimension(op)
        if at is None or after is None or not after.dims[at].axes:
            continue
        dim = DimSharding((*after.dims[at + 1].axes, *after.dims[at].axes))  # in this order one all-to-all leads there
        if op.results[0].type.shape[at + 1] % dim.factor == 0:
            found.append((value, Kept(address, value.type.text, at, dim, after.mesh, source(op))))
    if not found:
        return ()
    joined = correspondence_of(known.program, known.rules)
    sliced = {
        joined.find(op.operands[0], d)
        for op in known.program.ops() if op.name == "stablehlo.dynamic_slice"
        for d, (n, m) in enumerate(zip(op.operands[0].type.shape, op.results[0].type.shape)) if m == 1 < n
    }  # fmt: skip
    return tuple(kept for value, kept in found if joined.find(value, kept.at) in sliced)


def _wanted_whole(known: KnownShardings, sent: Mapping[str, float]) -> tuple[Gathered, ...]:
    """Split arguments (a gradient) beside several results of their type that are whole (parameters and moments): what
    is computed of them by pieces has to be gathered for each of these results."""
    main = known.program.main
    results: dict[str, list[TensorSharding | None]] = {}
    for value, sharding in zip(main.returned, known.results(), strict=True):
        results.setdefault(value.type.text, []).append(sharding)
    found = []
    for number, arg in enumerate(main.args):
        sharding = known.sharding(arg)
        if sharding is None or sharding.is_fully_replicated or not arg.uses:
            continue
        alike = results.get(arg.type.text, ())
        if len(alike) < 2 or not all(s is None or s.is_fully_replicated for s in alike):
            continue
        axes, parts = {a.name for d in sharding.dims for a in d.axes}, math.prod(d.factor for d in sharding.dims)
        if arg.type.size * item_bytes(arg.type.dtype) * (1 - 1 / parts) >= sum(sent.get(axis, 0.0) for axis in axes):
            continue  # that is what its gather sends
        whole = [DimSharding((), not d.axes) for d in sharding.dims]
        found.append(Gathered(number, TensorSharding(sharding.mesh, whole)))
    return tuple(found)


def _cut_dimension(op: Op) -> int | None:
    """The dimension of a reshape's operand that it cuts in two, all others being as they were."""
    before, after = op.operands[0].type.shape, op.results[0].type.shape
    if len(after) != len(before) + 1:
        return None
    at = next((d for d, n in enumerate(before) if after[d] != n), len(before))
    return at if at < len(before) and after[at + 2 :] == before[at + 1 :] else None
