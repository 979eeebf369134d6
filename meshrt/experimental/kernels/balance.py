"""What the semaphores of a kernel count, as far as that is known while it is traced.

The kernel is gone through step by step of its grid, with numbers where they are known (indices of the grid, counters of
loops) and nothing where they are not: what memory holds, which chip this is. So is known of each semaphore how far it
has counted, until

    a step, branch or loop that is not known signals it or waits for it, unless it is then where it was before
    another chip or core counts on it too

A wait that such a count shows to be in vain is refused, and so is a kernel that leaves a count behind: compilers notice
neither, a chip stands still, and the next kernel begins with what is left.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshrt import errors, tree_util
from meshrt.core.jaxpr import Eqn, Jaxpr, Literal, Var
from meshrt.core.naming import body_name
from meshrt.core.references import is_ref_type
from meshrt.experimental.kernels.mapping import GridMapping
from meshrt.experimental.kernels.memory import copied_bytes, is_semaphore
from meshrt.experimental.kernels.simulator.arithmetic import computed, is_computed
from meshrt.experimental.kernels.simulator.machine import Semaphores
from meshrt.primitives.state_views import view_type

__all__ = ["check_balance"]

# Chosen: some tenths of a second in Python. Of longer loops single turns are looked at, longer kernels no further.
EQUATIONS = 20_000


class _Exhausted(Exception):
    """More operations than are looked at have been: of what follows nothing is said."""


@dataclass(eq=False)
class _Counter:
    """An array of semaphores: how far each has counted, None for all where that is not known."""

    semaphores: Semaphores
    counts: np.ndarray | None
    last: dict[int, Any] = field(default_factory=dict)  # the line that signalled each

    def forget(self) -> None:
        self.counts = None


class _Walk:
    """One walk through a kernel; `external` are the semaphores on which other chips or cores count too."""

    def __init__(self, kernel: str, external: frozenset[Var]):
        self.kernel, self.external, self.left = kernel, external, EQUATIONS
        self.counters: list[_Counter] = []

    def counter(self, var: Var, name: str) -> _Counter:
        """The counter of new semaphores, which begin at zero."""
        kind: Any = var.aval
        inner = kind.inner_aval
        made = Semaphores(inner, name, name)
        found = _Counter(made, None if var in self.external else np.zeros(inner.size, np.int64))
        self.counters.append(found)
        return found

    # -- programs

    def run(self, jaxpr: Jaxpr, args: Sequence[Any]) -> list[Any]:
        """The results of a program; None for what is not known."""
        env: dict[Any, Any] = dict(zip(jaxpr.invars, args))
        read = lambda a: np.asarray(a.val, a.aval.dtype) if type(a) is Literal else env[a]
        for eqn in jaxpr.eqns:
            self.left -= 1
            if self.left < 0:
                raise _Exhausted
            env.update(zip(eqn.outvars, self._results(eqn, [read(a) for a in eqn.invars])))
        return [read(a) for a in jaxpr.outvars]

    def _results(self, eqn: Eqn, operands: list[Any]) -> list[Any]:
        rule = _RULES.get(eqn.primitive.name)
        if rule is not None:
            return rule(self, eqn, operands)
        inner = eqn.params.get(body_name(eqn.params))
        if isinstance(inner, Jaxpr) and len(inner.invars) == len(operands):
            return self.run(inner, operands)
        for x in operands:
            if isinstance(x, _Counter):  # an operation that is not known
                x.forget()
        known = all(isinstance(x, np.ndarray | np.generic) and not np.ndim(x) for x in operands)
        small = all(not is_ref_type(v.aval) and not v.aval.is_high and not v.aval.shape for v in eqn.outvars)
        if known and small and operands and is_computed(eqn):
            return computed(eqn, operands)
        return [None] * len(eqn.outvars)

    def perhaps(self, programs: Sequence[tuple[Jaxpr, Sequence[Any]]]) -> None:
        """Runs programs of which one runs, nobody knows which: what they do not leave alike is not known then."""
        before = self._state()
        after = []
        for jaxpr, args in programs:
            self._restore(before)
            try:
                self.run(jaxpr, args)
            except errors.KernelError:  # it may be that this one never runs
                for x in args:
                    if isinstance(x, _Counter):
                        x.forget()
            after.append(self._state())
        self._restore(after[0])
        for other in after[1:]:
            for c, counts in zip(self.counters, other):
                if c.counts is not None and (counts is None or not np.array_equal(c.counts, counts)):
                    c.forget()

    def repeatedly(self, jaxpr: Jaxpr, args: Sequence[Any]) -> None:
        """Runs a program that runs any number of times: what one turn changes is not known then."""
        nothing = Jaxpr((), jaxpr.invars, (), (), name=jaxpr.name)
        self.perhaps([(nothing, args), (jaxpr, args)])

    def _state(self) -> list[np.ndarray | None]:
        return [None if c.counts is None else c.counts.copy() for c in self.counters]

    def _restore(self, state: Sequence[np.ndarray | None]) -> None:
        for c, counts in zip(self.counters, state):
            c.counts = None if counts is None else counts.copy()

    # -- counting

    def up(self, counter: _Counter, view: Any, count: Any, where: Any) -> None:
        found = self._place(counter, view, count, where)
        if found is not None:
            counts, at = found
            counts[at] += int(count)
            counter.last[at] = where

    def down(self, counter: _Counter, view: Any, count: Any, where: Any, what: str, takes: bool = True) -> None:
        """A wait. KernelDeadlockError if nobody will count that far."""
        found = self._place(counter, view, count, where)
        if found is None:
            return
        counts, at = found
        have = int(counts[at])
        if have < int(count):
            before = f", the last at {counter.last[at]}" if at in counter.last else ""
            raise errors.KernelDeadlockError(
                f"the kernel {self.kernel} waits for ever at {where}: {what} waits until {counter.semaphores.name} has "
                f"counted {int(count)}, and what is started or signalled before makes {have}{before}. Start the copy, "
                "or signal, once for each wait"
            )
        counts[at] -= int(count) if takes else 0

    def _place(self, counter: Any, view: Any, count: Any, where: Any) -> tuple[np.ndarray, int] | None:
        """The counts of which a view shows one, and its number; None, and nothing is known any more, if that is not
        known."""
        if not isinstance(counter, _Counter) or counter.counts is None:
            return None
        leaves = tree_util.tree_leaves(view, is_leaf=lambda x: x is None)
        if count is None or any(x is None for x in leaves):
            counter.forget()
            return None
        return counter.counts, counter.semaphores.place(view, where)

    def finish(self, counter: _Counter, where: str) -> None:
        """MissingWaitError if semaphores that are no more, or stay for the next kernel, have counted something."""
        if counter.counts is None or not counter.counts.any():
            return
        at = int(np.flatnonzero(counter.counts)[0])
        raise errors.MissingWaitError(
            f"the kernel {self.kernel} leaves {counter.semaphores.name} at {int(counter.counts[at])} {where}: what is "
            f"started or signalled at {counter.last.get(at)} is not waited for, or not as often. Wait for each copy "
            "and each signal before the kernel ends"
        )


# ----------------------------------------------------------------------------------------------------------------------
# Operations


def _cond(walk: _Walk, eqn: Eqn, operands: list[Any]) -> list[Any]:
    branches, index = eqn.params["branches"], operands[0]
    if index is not None:
        return walk.run(branches[min(max(int(index), 0), len(branches) - 1)], operands[1:])
    walk.perhaps([(b, operands[1:]) for b in branches])
    return [None] * len(eqn.outvars)


def _scan(walk: _Walk, eqn: Eqn, operands: list[Any]) -> list[Any]:
    p = eqn.params
    first, last = p["num_consts"], p["num_consts"] + p["num_carry"]
    consts, carry, xs = operands[:first], list(operands[first:last]), operands[last:]
    if not any(isinstance(x, _Counter) for x in operands):
        return [None] * len(eqn.outvars)
    body, length = p["jaxpr"], p["length"]
    if not isinstance(length, int) or length * len(body.eqns) > walk.left:
        refs = [x if isinstance(x, _Counter) else None for x in carry]
        walk.repeatedly(body, [*consts, *refs, *[None] * len(xs)])
        return [*refs, *[None] * (len(eqn.outvars) - len(carry))]
    for _ in range(length):
        carry = walk.run(body, [*consts, *carry, *[None] * len(xs)])[: p["num_carry"]]
    return [*carry, *[None] * (len(eqn.outvars) - len(carry))]


def _while(walk: _Walk, eqn: Eqn, operands: list[Any]) -> list[Any]:
    p = eqn.params
    first, second = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
    before, consts, carry = operands[:first], operands[first:second], list(operands[second:])
    if not any(isinstance(x, _Counter) for x in operands):
        return [None] * len(eqn.outvars)
    while True:
        (going,) = walk.run(p["cond_jaxpr"], [*before, *carry])
        if going is None:
            break
        if not going:
            return carry
        carry = walk.run(p["body_jaxpr"], [*consts, *carry])
    refs = [x if isinstance(x, _Counter) else None for x in carry]
    walk.repeatedly(p["body_jaxpr"], [*consts, *refs])
    return refs


def _signal(walk: _Walk, eqn: Eqn, operands: list[Any]) -> list[Any]:
    semaphores, *leaves = operands
    view, count, *_ = _unflattened(eqn, leaves)
    _, _, device, core = _unflattened(eqn, [a.aval for a in eqn.invars[1:]])
    if device is None and core is None:
        walk.up(semaphores, view, count, eqn.source)
    return []


def _wait(walk: _Walk, eqn: Eqn, operands: list[Any]) -> list[Any]:
    semaphores, *leaves = operands
    view, count = _unflattened(eqn, leaves)
    walk.down(semaphores, view, count, eqn.source, "semaphore_wait", eqn.params["decrement"])
    return []


def _unflattened(eqn: Eqn, leaves: Sequence[Any]) -> Any:
    return tree_util.tree_unflatten(eqn.params["tree"], leaves)


def _size(pair: tuple[Any, Any]) -> int:
    """How many bytes the view of a reference of this type shows."""
    ref, view = pair
    shown = view_type(view, ref.inner_aval)
    return copied_bytes(shown.size, shown.dtype)


def _dma_start(walk: _Walk, eqn: Eqn, operands: list[Any]) -> list[Any]:
    copy, types = _unflattened(eqn, operands), _unflattened(eqn, [a.aval for a in eqn.invars])
    count = _size(types.source)
    if not types.is_remote:
        walk.up(copy.arrived[0], copy.arrived[1], count, eqn.source)
    if types.sent is not None:
        walk.up(copy.sent[0], copy.sent[1], count, eqn.source)
    return []


def _dma_wait(walk: _Walk, eqn: Eqn, operands: list[Any]) -> list[Any]:
    copy, types = _unflattened(eqn, operands), _unflattened(eqn, [a.aval for a in eqn.invars])
    of_send = eqn.params["of_send"]
    count = _size(types.source if of_send else types.destination)
    semaphores, view = copy.sent if of_send else copy.arrived
    walk.down(semaphores, view, count, eqn.source, "the wait for a copy")
    return []


def _made(walk: _Walk, eqn: Eqn, operands: list[Any]) -> list[Any]:
    made = eqn.outvars[0]
    return [walk.counter(made, f"the semaphore made at {eqn.source}") if is_semaphore(made.aval) else None]


def _freed(walk: _Walk, eqn: Eqn, operands: list[Any]) -> list[Any]:
    if isinstance(operands[0], _Counter):
        walk.finish(operands[0], "where it ends")
        walk.counters.remove(operands[0])
    return []


def _barrier(walk: _Walk, eqn: Eqn, operands: list[Any]) -> list[Any]:
    found = walk.counter(eqn.outvars[0], "the barrier semaphore")
    found.forget()
    return [found]


_RULES: dict[str, Callable[[_Walk, Eqn, list[Any]], list[Any]]] = {
    "cond": _cond, "scan": _scan, "while": _while, "semaphore_signal": _signal, "semaphore_wait": _wait,
    "semaphore_read": lambda walk, eqn, operands: [None], "dma_start": _dma_start, "dma_wait": _dma_wait,
    "empty_ref": _made, "free_ref": _freed, "get_barrier_semaphore": _barrier,
}  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------------
# The kernel


def check_balance(jaxpr: Jaxpr, mapping: GridMapping, kernel: str, external: frozenset[Var]) -> None:
    """Checks what the semaphores of a kernel count.

    Args:
      jaxpr, mapping: as back ends read them.
      kernel: function and line, for messages.
      external: the semaphores, as variables of `jaxpr` and the programs inside, on which other chips or cores count.

    Raises:
      KernelDeadlockError: a wait for more than is started or signalled before.
      MissingWaitError: less is waited for than is started or signalled.
    """
    with contextlib.suppress(_Exhausted):
        _check(_Walk(kernel, external), jaxpr, mapping)


def _check(walk: _Walk, jaxpr: Jaxpr, mapping: GridMapping) -> None:
    lead = mapping.num_leading
    first = len(jaxpr.invars) - len(mapping.scratch_avals)
    named = [(v, f"the semaphore scratch_shapes[{i - first}]") for i, v in enumerate(jaxpr.invars)]
    own = [walk.counter(v, name) if is_semaphore(v.aval) else None for v, name in named[lead:]]
    dims = [mapping.grid[d] for d in mapping.kernel_dims]
    steps = math.prod(dims) if all(isinstance(n, int) for n in dims) else None
    unknown = [None] * (lead - len(dims))
    if steps is None or steps * len(jaxpr.eqns) > walk.left:
        walk.repeatedly(jaxpr, [*[None] * lead, *own])
    else:
        for point in itertools.product(*map(range, dims)):
            walk.run(jaxpr, [*map(np.int32, point), *unknown, *own])
    for counter in own:
        if counter is not None:
            walk.finish(counter, "when it ends")
