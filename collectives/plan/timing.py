"""How long one device takes for a partitioned program on a machine, predicted: a roofline over fused operations.

What a compiler fuses (`plan.liveness`) moves through memory once: a buffer is written when it is made, and what
it is made of is read. Contractions take their arithmetic at the machine's peak rate, or their memory if that takes
longer (Williams et al.: "Roofline", 2009); sorts, windows and decompositions theirs at lower rates (`plan.work`). Rates
and the least time of a kernel that were measured on a device (`Topology.measured`) stand for its peak rates.
Collectives take what the network's links take; machines with a network of their own compute meanwhile, until something
needs a result. Loops count their trips, and of branches the longest counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.program import LocalFunction, LocalOp, LocalValue, Region
from ..ir.walker import inputs
from ..machine import Machine, ref_bytes
from .liveness import Liveness
from .work import seconds

__all__ = ["Timing", "timing_of"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one run of a program on one device.

    seconds    from begin to end
    computing  of them spent computing: `arithmetic` where the rate of arithmetic bounds it, `memory` where that of
               memory does
    sending    what the collectives take one after the other; `seconds - computing` of it is not hidden
    """

    seconds: float
    arithmetic: float
    memory: float
    sending: float

    @property
    def computing(self) -> float:
        """Seconds spent computing."""
        return self.arithmetic + self.memory

    @property
    def exposed(self) -> float:
        """Seconds in which the device waits for messages."""
        return max(0.0, self.seconds - self.computing)


def timing_of(functions: Sequence[LocalFunction], machine: Machine) -> Timing:
    """The predicted times of a per-device program, whose first function is its main one."""
    return _Clock(machine, Liveness({f.name: f for f in functions})).region(functions[0].region)


class _Clock:
    def __init__(self, machine: Machine, lives: Liveness):
        self.machine, self.lives = machine, lives
        self._known: dict[Region, Timing] = {}

    def region(self, region: Region) -> Timing:
        """One run of a region."""
        found = self._known.get(region)
        if found is None:
            found = self._known[region] = self._run(region)
        return found

    def _run(self, region: Region) -> Timing:
        kept = self.lives.kept(region)
        clock = network = arithmetic = memory = sending = 0.0
        arrives: dict[LocalOp, float] = {}
        for item in [*region.prologue, *region.items]:
            if arrives:
                clock = max([clock, *[arrives[r.item] for r in inputs(item) if r.item in arrives]])
            if item.collective is not None:
                seconds = self.machine.collective(item.collective)
                sending += seconds
                if self.machine.overlaps:
                    network = arrives[item] = max(clock, network) + seconds
                else:
                    clock += seconds
                continue
            inner = self._inside(item)
            if inner is not None:
                clock += inner.seconds
                arithmetic, memory = arithmetic + inner.arithmetic, memory + inner.memory
                sending += inner.sending
                continue
            by_rate, by_memory = self._computing(item, kept)
            arithmetic, memory = arithmetic + by_rate, memory + by_memory
            clock += by_rate + by_memory
        return Timing(max(clock, network), arithmetic, memory, sending)

    def _inside(self, item: LocalOp) -> Timing | None:
        """What the regions of an item take together; None if it has none that run."""
        regions = self.lives.inner(item)
        if not regions:
            return None
        each = [(r.trips or 1, self.region(r)) for r in regions]
        if regions[0].kind == "branch":
            return max((t for _, t in each), key=lambda t: t.seconds)
        total = lambda name: sum(n * getattr(t, name) for n, t in each)
        return Timing(total("seconds"), total("arithmetic"), total("memory"), total("sending"))

    def _computing(self, item: LocalOp, kept: frozenset[LocalValue]) -> tuple[float, float]:
        """(seconds of arithmetic, seconds of memory) of an item, of which one is zero: what it writes, and the buffers
        that this is made of. What is computed where it is read costs there."""
        written = [value for value in item.results if value in kept]
        if not written and not item.effect:
            return 0.0, 0.0
        topology = self.machine.topology
        moved = self._read(item, kept)
        moved += ref_bytes(item.operands[1]) if item.name in _IN_PLACE else sum(map(ref_bytes, written))
        rate = seconds(item, self.machine)
        memory = moved / topology.measured.get("memory_bandwidth", topology.memory_bandwidth)
        memory = max(memory, topology.measured.get("kernel", 0.0))
        return (rate, 0.0) if rate >= memory else (0.0, memory)

    def _read(self, item: LocalOp, kept: frozenset[LocalValue]) -> float:
        """Bytes that an item reads of buffers, itself or through what is computed in it; of what takes a part of one,
        that part."""
        total = 0.0
        seen: set[LocalValue] = set()
        todo = inputs(item)[1:] if item.name in _IN_PLACE else list(inputs(item))
        if item.name in _TAKING:
            total, todo = ref_bytes(item.results[0]), todo[1:]
        while todo:
            value = todo.pop()
            if value in seen:
                continue
            seen.add(value)
            maker = value.item
            if maker is None or value in kept or maker.collective is not None:
                total += ref_bytes(value)
            elif maker.name in _TAKING:
                total += ref_bytes(value)
                todo += inputs(maker)[1:]
            else:
                todo += inputs(maker)
        return total


# Which read no more of their first operand than they give, and which write no more of it than the second one.
_TAKING = frozenset(f"stablehlo.{n}" for n in ("slice", "dynamic_slice", "gather"))
_IN_PLACE = frozenset(("stablehlo.dynamic_update_slice",))
