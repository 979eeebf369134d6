"""Chips that run a kernel together: their memories and semaphores, copies in flight, cores that take turns.

A core is a generator: it runs until it has to wait, and yields what for. Copies are done when they are started, or,
as on hardware that takes its time, when somebody waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.types import ShapedArray
from meshrt.experimental.kernels.memory import copied_bytes
from meshrt.experimental.kernels.simulator.memory import Actor, Clock, Memory, join
from meshrt.primitives.state_views import View

__all__ = ["Copy", "Core", "Machine", "Semaphores", "Wait"]


@dataclass(frozen=True)
class Wait:
    """What a core waits for: `is_over` says whether it may go on."""

    is_over: Callable[[], bool]
    what: str
    where: Any


@dataclass(eq=False)
class Semaphores:
    """An array of counters, each with what those that signalled it knew."""

    aval: ShapedArray
    name: str
    key: Any
    counts: np.ndarray = field(init=False)
    clocks: dict[int, Clock] = field(default_factory=dict)
    last: dict[int, Any] = field(default_factory=dict)  # the line that signalled each

    def __post_init__(self) -> None:
        self.counts = np.zeros(self.aval.size, np.int64)
        self.places = Memory(ShapedArray(self.aval.shape, np.dtype(np.int32)), self.name, self.key, _NO_CHECKS)

    def place(self, view: View, where: Any) -> int:
        """The number of the semaphore that a view shows."""
        numbers = self.places.elements(view)
        self.places._check_bounds(numbers, "write", view, where, None)
        return int(numbers.reshape(()))

    def signal(self, at: int, count: int, clock: Clock, where: Any) -> None:
        self.counts[at] += count
        self.last[at] = where
        join(self.clocks.setdefault(at, {}), clock)

    def take(self, at: int, count: int, actor: Actor) -> None:
        self.counts[at] -= count
        join(actor.clock, self.clocks.get(at, {}))


class _NoChecks:
    uninitialized_memory = "zero"
    out_of_bounds_reads = "raise"
    detect_races = False


_NO_CHECKS = _NoChecks()


@dataclass(eq=False)
class Copy:
    """A copy in flight."""

    source: tuple[Memory, View]
    target: tuple[Memory, View]
    arrived: tuple[Semaphores, int]
    sent: tuple[Semaphores, int] | None
    actor: Actor
    adds: bool
    where: Any

    def counts_on(self, semaphores: Semaphores, at: int) -> bool:
        return self.arrived == (semaphores, at) or self.sent == (semaphores, at)

    def run(self) -> None:
        values = self.source[0].read(self.source[1], self.actor, self.where)
        if self.adds:
            values = values + self.target[0].read(self.target[1], self.actor, self.where)
        self.target[0].write(self.target[1], values, self.actor, self.where)
        for semaphores, at in filter(None, (self.sent, self.arrived)):
            semaphores.signal(at, copied_bytes(values.size, values.dtype), self.actor.clock, self.where)


@dataclass(eq=False)
class Core:
    """One core of one chip."""

    machine: Machine
    device: int
    number: int
    actor: Actor
    memories: dict[Any, Any] = field(default_factory=dict)
    expected: dict[Any, Any] = field(default_factory=dict)  # semaphores that others signalled before they are made here
    has_begun: bool = False
    scoped: int = 0
    random: Any = field(default_factory=lambda: np.random.Generator(np.random.Philox(0)))

    @property
    def name(self) -> str:
        return f"core {self.number} of device {self.device}"

    def allocate(self, aval: Any, name: str, key: Any) -> Any:
        """New memory, or semaphores, of the core's own."""
        made = self.expected.get(key)
        if made is not None and made.aval == aval.inner_aval:
            del self.expected[key]
            made.name = name
        else:
            made = self.machine.allocate(aval.inner_aval, name, key)
        self.memories[key] = made
        return made


class Machine:
    """`num_devices` chips of `num_cores` cores each, along the mesh axes with `sizes`."""

    def __init__(self, checks: Any, axes: Sequence[Any], num_cores: int, kernel: str, debug_checks: bool = False):
        self.checks, self.kernel, self.debug_checks = checks, kernel, debug_checks
        self.axes = [(a.name, a.size) for a in axes]
        self.num_devices = int(np.prod([size for _, size in self.axes], dtype=int))
        self.shared: dict[tuple[int, Any], Any] = {}
        self.copies: list[Copy] = []
        self.started = 0
        self.cores = [
            Core(self, d, c, Actor(f"core {c} of device {d}", {f"core {c} of device {d}": 1}))
            for d in range(self.num_devices) for c in range(num_cores)
        ]  # fmt: skip
        self._of = {(core.device, core.number): core for core in self.cores}

    # -- memory

    def allocate(self, aval: ShapedArray, name: str, key: Any) -> Any:
        is_semaphore = aval.is_extended and aval.dtype.counts
        return Semaphores(aval, name, key) if is_semaphore else Memory(aval, name, key, self.checks)

    def share(self, device: int, key: Any, make: Callable[[], Any]) -> Any:
        """Memory that the cores of a chip share; made when it is first asked for."""
        found = self.shared.get((device, key))
        if found is None:
            found = self.shared[device, key] = make()
        return found

    def there(self, mine: Any, device: int, core: int, where: Any) -> Any:
        """What another chip, or core, has where this one has `mine`."""
        if not 0 <= device < self.num_devices:
            raise errors.KernelBoundsError(
                f"the kernel {self.kernel} names device {device} at {where}, but there are {self.num_devices} (0 to "
                f"{self.num_devices - 1})"
            )
        other = self._of.get((device, core))
        found = self.shared.get((device, mine.key))
        if found is None and other is not None:
            found = other.memories.get(mine.key)
        if found is None and other is not None and other.has_begun and isinstance(mine, Semaphores):
            # A chip in the kernel has its semaphores, those too of `run_scoped` that it comes to later.
            found = other.expected.setdefault(mine.key, Semaphores(mine.aval, mine.name, mine.key))
        if found is None:
            raise errors.KernelDeadlockError(
                f"{mine.name} of core {core} of device {device}, which the kernel {self.kernel} names at {where}, does "
                "not exist (yet): let the chips meet at the barrier semaphore first"
            )
        return found

    def coordinates(self, device: int) -> dict[Any, int]:
        """The indices of a chip along the axes."""
        out, rest = {}, device
        for name, size in reversed(self.axes):
            out[name] = rest % size
            rest //= size
        return out

    # -- copies

    def start(self, copy: Copy) -> None:
        self.started += 1
        if self.checks.dma_execution_mode == "eager":
            copy.run()
        else:
            self.copies.append(copy)

    def deliver(self, semaphores: Semaphores, at: int, count: int) -> None:
        """Does copies that count on a semaphore until it has reached `count`, or there are none."""
        while semaphores.counts[at] < count:
            copy = next((c for c in self.copies if c.counts_on(semaphores, at)), None)
            if copy is None:
                return
            self.copies.remove(copy)
            copy.run()

    # -- cores

    def run(self, programs: Sequence[Iterator[Wait]]) -> None:
        """Runs all cores to their ends.

        Raises:
          KernelDeadlockError: all that have not ended wait for something that nobody will do.
        """
        waiting: dict[int, Wait | None] = dict.fromkeys(range(len(programs)))
        while waiting:
            moved = False
            for i in list(waiting):
                wait = waiting[i]
                if wait is not None and not wait.is_over():
                    continue
                moved = True
                try:
                    waiting[i] = next(programs[i])
                except StopIteration:
                    del waiting[i]
            if not moved:
                lines = "; ".join(f"{self.cores[i].name} {w.what} at {w.where}" for i, w in waiting.items() if w)
                raise errors.KernelDeadlockError(
                    f"the kernel {self.kernel} waits for ever: {lines}. Nobody is left who could signal"
                )
        self._check_end()

    def _check_end(self) -> None:
        if self.copies:
            copy = self.copies[0]
            raise errors.MissingWaitError(
                f"the copy to {copy.target[0].name} that the kernel {self.kernel} starts at {copy.where} is not waited "
                "for: call .wait() of it before the kernel ends"
            )
        owned = [m for core in self.cores for m in (*core.memories.values(), *core.expected.values())]
        for memory in (*owned, *self.shared.values()):
            if isinstance(memory, Semaphores) and memory.counts.any():
                at = int(np.flatnonzero(memory.counts)[0])
                raise errors.MissingWaitError(
                    f"{memory.name} is at {int(memory.counts[at])} when the kernel {self.kernel} ends, signalled last "
                    f"at {memory.last.get(at)}: it has to be waited down to 0, as the next kernel begins with it"
                )
