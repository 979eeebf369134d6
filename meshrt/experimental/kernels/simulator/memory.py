"""What the memories of simulated chips hold, element by element, and who has touched what.

An access is ordered before another if a chain of signals and waits leads from one to the other: each actor (a core, or
a copy in flight) has a vector clock, semaphores carry clocks on. Two accesses to one element of which one is a write
and which nothing orders are a race.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.types import ShapedArray
from meshrt.primitives.state_indices import Indexer, Slice
from meshrt.primitives.state_steps import Bitcast, Reshape, Transpose
from meshrt.primitives.state_views import View

__all__ = ["Access", "Actor", "Clock", "Memory", "unwritten_value"]

OUTSIDE = -1  # stands for elements that do not exist

Clock = dict[Any, int]


def join(one: Clock, other: Clock) -> None:
    """Makes `one` know what `other` knows."""
    for name, count in other.items():
        if one.get(name, 0) < count:
            one[name] = count


@dataclass
class Actor:
    """Who touches memory: a name, and what it knows of the others."""

    name: Any
    clock: Clock

    def advance(self) -> None:
        """What it does from now on is not known to those it has signalled."""
        self.clock[self.name] = self.clock.get(self.name, 0) + 1


@dataclass(frozen=True)
class Access:
    """That an actor read or wrote some elements."""

    is_write: bool
    elements: np.ndarray
    actor: Any
    stamp: int
    where: Any


def unwritten_value(dtype: Any) -> Any:
    """What memory shows that nobody has written."""
    if dtypes.issubdtype(dtype, np.inexact):
        return np.asarray(np.nan).astype(dtype)[()]
    if dtypes.issubdtype(dtype, np.integer):
        return np.asarray(dtypes.iinfo(dtype).max).astype(dtype)[()]
    return np.zeros((), dtype)[()]


@dataclass(eq=False)
class Memory:
    """An array in some memory of a chip. `name` is for messages."""

    aval: ShapedArray
    name: str
    key: Any
    checks: Any  # what is to be found: InterpretParams
    data: np.ndarray = field(init=False)
    written: np.ndarray = field(init=False)
    accesses: list[Access] = field(default_factory=list)

    def __post_init__(self) -> None:
        kind = self.aval.physical()
        is_zero = self.checks.uninitialized_memory == "zero"
        self.data = np.full(kind.shape, 0 if is_zero else unwritten_value(kind.dtype), kind.dtype)
        self.written = np.zeros(kind.shape, bool)
        self._numbers = np.arange(self.data.size, dtype=np.int64).reshape(kind.shape)

    def fill(self, values: Any) -> None:
        """Begins as an array."""
        self.data = np.array(values, self.data.dtype).reshape(self.data.shape)
        self.written[...] = True

    # -- places

    def elements(self, view: View) -> np.ndarray:
        """The numbers of the elements that a view shows, up to where it reads them as another type."""
        numbers = self._numbers
        for step in view:
            if isinstance(step, Bitcast):
                break
            numbers = _shown(step, numbers)
        return numbers

    def named(self, view: View) -> tuple[np.ndarray, np.ndarray] | None:
        """The numbers of the elements that a view shows, and all elements, of the type that it reads them as. None if
        it makes elements of several, or parts, of others."""
        numbers, held = self._numbers, self.data.reshape(-1)
        for step in view:
            if not isinstance(step, Bitcast):
                numbers = _shown(step, numbers)
            elif np.dtype(step.dtype).itemsize == held.dtype.itemsize:
                held = held.view(step.dtype)
            else:
                return None
        return numbers, held

    def _mask(self, numbers: np.ndarray, view: View, mask: Any) -> Any:
        """Which of the elements that a view shows a mask names: those of which a part is seen where it is True."""
        as_bits = _from_bitcast(view)
        if mask is None or not as_bits:
            return mask
        none = np.zeros(numbers.shape, self.data.dtype)
        shown = _values(none, as_bits)
        every = np.frombuffer(b"\xff" * shown.itemsize, shown.dtype)[0]
        bits = _with_bits(none, as_bits, np.where(mask, every, shown)).tobytes()
        return np.frombuffer(bits, np.uint8).reshape(*numbers.shape, none.itemsize).any(-1)

    def _check_bounds(self, numbers: np.ndarray, what: str, view: View, where: Any, mask: Any) -> None:
        outside = numbers == OUTSIDE
        if mask is not None:
            outside = outside & np.broadcast_to(mask, outside.shape)
        if outside.any() and (what == "write" or self.checks.out_of_bounds_reads == "raise"):
            raise errors.KernelBoundsError(
                f"a {what} at {where} reaches beyond the end of {self.name}, of shape {self.aval.shape}: "
                f"{_described(view)}. Mask what lies beyond, or pad the array"
            )

    # -- reading and writing

    def read(self, view: View, actor: Actor, where: Any, mask: Any = None) -> np.ndarray:
        """What a view shows; where `mask` is False anything.

        Raises:
          KernelBoundsError: elements that do not exist.
          UninitializedReadError: elements that nobody has written, if that is looked for.
          KernelRaceError: another actor may be writing them, if that is looked for.
        """
        numbers = self.elements(view)
        mask = self._mask(numbers, view, mask)
        self._check_bounds(numbers, "read", view, where, mask)
        inside = numbers[self._counted(numbers, mask)]
        if self.checks.uninitialized_memory == "raise" and not self.written.reshape(-1)[inside].all():
            raise errors.UninitializedReadError(
                f"a read at {where} of {self.name}{_described(view)}, of which nobody has written all elements: write "
                "them before, or mask them"
            )
        self._note(False, inside, actor, where)
        found = self.data.reshape(-1)[np.where(numbers == OUTSIDE, 0, numbers)] if self.data.size else self.data
        found = np.where(numbers == OUTSIDE, unwritten_value(self.data.dtype), found).astype(self.data.dtype)
        return _values(found, _from_bitcast(view))

    def write(self, view: View, value: Any, actor: Actor, where: Any, mask: Any = None) -> None:
        """Replaces what a view shows, where `mask` is True. Raises as `read`."""
        numbers = self.elements(view)
        as_bits = _from_bitcast(view)
        if as_bits:
            held = self.data.reshape(-1)[numbers]
            value = _with_bits(held, as_bits, value if mask is None else np.where(mask, value, _values(held, as_bits)))
            mask = self._mask(numbers, view, mask)
        self._check_bounds(numbers, "write", view, where, mask)
        counted = self._counted(numbers, mask)
        inside = numbers[counted]
        self._note(True, inside, actor, where)
        self.data.reshape(-1)[inside] = np.broadcast_to(np.asarray(value, self.data.dtype), numbers.shape)[counted]
        self.written.reshape(-1)[inside] = True

    def update(
        self, view: View, change: Callable[..., Any], operands: Sequence[Any], actor: Actor, where: Any, mask: Any
    ) -> np.ndarray:
        """Writes `change(what a view shows, *operands)` where `mask` is True; returns what was there. An element that
        the view shows several times is changed as often, and each change finds what the one before it left. Raises as
        `read`."""
        found = self.read(view, actor, where, mask)
        self.write(view, change(found, *operands), actor, where, mask)
        named = self.named(view)
        if named is None:
            return found
        numbers, held = named
        counted = self._counted(numbers, mask)
        if np.unique(numbers[counted]).size == counted.sum():
            return found
        held[numbers[counted][::-1]] = found[counted][::-1]  # as it was
        found, values = found.copy(), [np.broadcast_to(x, found.shape) for x in operands]
        for i in map(tuple, np.argwhere(counted)):
            found[i] = held[numbers[i]]
            held[numbers[i]] = change(found[i], *[x[i] for x in values])
        return found

    @staticmethod
    def _counted(numbers: np.ndarray, mask: Any) -> np.ndarray:
        counted = numbers != OUTSIDE
        return counted if mask is None else counted & np.broadcast_to(mask, counted.shape)

    # -- races

    def _note(self, is_write: bool, elements: np.ndarray, actor: Actor, where: Any) -> None:
        if not self.checks.detect_races:
            return
        touched = np.unique(elements)
        kept: list[Access] = []
        for past in self.accesses:
            is_ordered = past.actor == actor.name or past.stamp <= actor.clock.get(past.actor, 0)
            if not is_ordered and (is_write or past.is_write) and np.intersect1d(past.elements, touched).size:
                kinds = ["write" if w else "read" for w in (past.is_write, is_write)]
                raise errors.KernelRaceError(
                    f"a race on {self.name}: the {kinds[0]} of {past.actor} at {past.where} and the {kinds[1]} of "
                    f"{actor.name} at {where} touch the same elements, and nothing says which comes first. Let one "
                    "wait for a semaphore that the other signals"
                )
            covered = is_ordered and (is_write or not past.is_write) and np.isin(past.elements, touched).all()
            if not covered:
                kept.append(past)
        kept.append(Access(is_write, touched, actor.name, actor.clock.get(actor.name, 0), where))
        self.accesses = kept


# ----------------------------------------------------------------------------------------------------------------------
# Views of arrays of numbers


def _shown(step: Any, numbers: np.ndarray) -> np.ndarray:
    if isinstance(step, Reshape):
        return numbers.reshape(step.shape)
    if isinstance(step, Transpose):
        return numbers.transpose(step.permutation)
    if not isinstance(step, Indexer):
        raise errors.UnsupportedError(f"the simulator does not know views {type(step).__name__}")
    columns, exists = [], np.asarray(True)
    rank = len(step.out_shape())
    position = step._position()
    sliced = [d for d in range(rank) if not position <= d < position + len(step.int_shape)]
    axes = iter(sliced)
    for index, size in zip(step.indices, step.shape):
        if type(index) is Slice:
            found = int(index.start) + np.arange(index.size) * index.stride
            placed = [1] * rank
            placed[next(axes)] = index.size
        else:
            found = np.asarray(index, np.int64)
            found = np.where((found < 0) & bool(step.int_shape), found + size, found)
            found = np.broadcast_to(found, step.int_shape)
            placed = [1] * position + list(step.int_shape) + [1] * (rank - position - len(step.int_shape))
        found = found.reshape(placed)
        here = (found >= 0) & (found < size)
        exists = exists & here
        columns.append(np.where(here, found, 0))
    picked = np.asarray(numbers[tuple(columns)]) if numbers.size else np.zeros(step.out_shape(), np.int64)
    return np.where(exists, picked, OUTSIDE).reshape(step.out_shape())


def _cast(x: np.ndarray, dtype: Any) -> np.ndarray:
    """The same bytes as elements of `dtype`: rows of a narrower type lie beside one another in one row of the wider."""
    old, new = x.dtype.itemsize, np.dtype(dtype).itemsize
    *lead, rows, columns = x.shape if x.ndim > 1 else (1, x.size)
    if old == new:
        return np.ascontiguousarray(x).view(dtype).reshape(x.shape)
    if old < new:
        packed = np.swapaxes(x.reshape(*lead, rows * old // new, new // old, columns), -1, -2)
        return np.ascontiguousarray(packed).view(dtype)[..., 0]
    parts = np.ascontiguousarray(x)[..., None].view(dtype)
    return np.swapaxes(parts, -1, -2).reshape(*lead, rows * old // new, columns)


def _from_bitcast(view: View) -> View:
    """The steps of a view from where it reads elements as those of another type."""
    at = next((i for i, step in enumerate(view) if isinstance(step, Bitcast)), len(view))
    return view[at:]


def _values(x: np.ndarray, view: View) -> np.ndarray:
    for step in view:
        x = _cast(x, step.dtype) if isinstance(step, Bitcast) else x.reshape(-1)[_shown(step, _numbered(x))]
    return x


def _numbered(x: np.ndarray) -> np.ndarray:
    return np.arange(x.size).reshape(x.shape)


def _with_bits(x: np.ndarray, view: View, value: Any) -> np.ndarray:
    """`x` with what `view` (that begins with a Bitcast) shows of it replaced."""
    cast = _cast(x, view[0].dtype).copy()  # type: ignore[attr-defined]
    numbers = _numbered(cast)
    for step in view[1:]:
        numbers = _shown(step, numbers)
    cast.reshape(-1)[numbers] = value
    return _cast(cast, x.dtype)


def _described(view: View) -> str:
    return "".join(step.show(str) for step in view)
