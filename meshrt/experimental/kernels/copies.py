"""Copies between memories that a kernel starts and waits for, to another chip too.

    dma_start[tree device_id_type priority add]  source view... destination view... semaphores... device
    dma_wait[tree device_id_type of_send]        likewise

A copy counts the elements that have arrived on a semaphore of the destination, and those that have left on one of the
source's where it goes to another chip; a wait takes away what one copy counts. In a loop of array operations a copy is
done when it is started.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from meshrt import errors, tree_util
from meshrt import numpy as jnp
from meshrt.core.primitive import Primitive
from meshrt.core.references import READ, WRITE, is_ref, is_ref_type
from meshrt.core.tracebacks import boundary
from meshrt.core.types import aval_of
from meshrt.experimental.kernels.devices import (
    COMMUNICATION,
    chip_and_core,
    from_sender,
    is_sent_here,
    logical_id,
)
from meshrt.experimental.kernels.memory import SemaphoreType, is_semaphore
from meshrt.experimental.kernels.scopes import run_scoped
from meshrt.experimental.kernels.semaphores import (
    KERNEL_ONLY,
    DeviceIdType,
    count_down,
    count_up,
    need_semaphore,
    only_in_kernels,
    ref_and_view,
)
from meshrt.primitives.control_branches import switch
from meshrt.primitives.references import RefView
from meshrt.primitives.state_views import View, accumulate, read, view_type, write
from meshrt.transforms.discharge import Cell

__all__ = [
    "AsyncCopyDescriptor", "CopyOperands", "SelectedRef", "async_copy", "async_remote_copy", "make_async_copy",
    "make_async_remote_copy", "sync_copy",
]  # fmt: skip


class CopyOperands(NamedTuple):
    """What a copy takes: references with views of them, the number or indices of a chip, the number of a core. Those
    that it has not are None. Copies on one core count on `arrived` alone."""

    source: tuple[Any, View]
    destination: tuple[Any, View]
    arrived: tuple[Any, View]
    sent: tuple[Any, View] | None = None
    device: Any = None
    core: Any = None

    @property
    def is_remote(self) -> bool:
        return self.device is not None or self.core is not None


class SelectedRef:
    """One of several references, or views of some, chosen by a number; made by `pl.select_ref`."""

    __slots__ = ("idx", "refs")

    def __init__(self, idx: Any, refs: Sequence[Any]):
        if len(refs) < 2:
            raise errors.ArgumentValueError(
                f"At least two refs are required for pl.select_ref, got {len(refs)}: one alone needs no choice"
            )
        self.idx, self.refs = idx, tuple(refs)
        kinds = [str(_part_type(ref)) for ref in self.refs]
        if len(set(kinds)) > 1:
            raise errors.ArgumentTypeError(f"Cannot select from Refs of different types: {', '.join(kinds)}")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(_part_type(self.refs[0]).shape)

    @property
    def dtype(self) -> Any:
        return _part_type(self.refs[0]).dtype

    @property
    def at(self) -> _SelectedAt:
        """`selected.at[index]` is the choice among these parts."""
        return _SelectedAt(self)


class _SelectedAt:
    __slots__ = ("selected",)

    def __init__(self, selected: SelectedRef):
        self.selected = selected

    def __getitem__(self, index: Any) -> SelectedRef:
        return SelectedRef(self.selected.idx, [ref.at[index] for ref in self.selected.refs])


def _part_type(ref: Any) -> Any:
    return ref.type if type(ref) is RefView else aval_of(ref)


@dataclass
class AsyncCopyDescriptor:
    """A copy that is to be started and waited for."""

    src_ref: Any
    dst_ref: Any
    dst_sem: Any
    src_sem: Any | None = None
    device_id: Any = None
    device_id_type: DeviceIdType = DeviceIdType.MESH

    def __post_init__(self) -> None:
        if (self.src_sem is None) is not (self.device_id is None):
            raise errors.ArgumentValueError(
                "Either both or neither `src_sem` and `device_id` can be set: a copy to another chip counts on a "
                "semaphore of each"
            )

    @property
    def is_remote(self) -> bool:
        """Whether it goes to another chip."""
        return self.src_sem is not None

    def _each(self, do: Callable[[AsyncCopyDescriptor], None]) -> None:
        """Applies `do` to the copy; where source or destination are a choice, to that of the reference chosen."""
        for name in ("src_ref", "dst_ref"):
            chosen = getattr(self, name)
            if type(chosen) is SelectedRef:
                turns = [functools.partial(dataclasses.replace(self, **{name: r})._each, do) for r in chosen.refs]
                switch(chosen.idx, turns)
                return
        do(self)

    def _operands(self) -> tuple[list[Any], Any]:
        chip, core = chip_and_core(self.device_id)
        device = tree_util.tree_map(lambda x: np.int32(x) if isinstance(x, int) else x, chip)
        sent = None if self.src_sem is None else ref_and_view(self.src_sem)
        operands = CopyOperands(
            ref_and_view(self.src_ref), ref_and_view(self.dst_ref), ref_and_view(self.dst_sem), sent, device, core
        )
        return tree_util.tree_flatten(operands)

    @boundary
    def start(self, priority: int = 0, *, add: bool = False) -> None:
        """Starts it; with `add` elements are added to those of the destination."""
        if priority < 0:
            raise errors.ArgumentValueError(f"DMA start priority must be non-negative: {priority}")
        self._each(lambda copy: copy._start(priority, add))

    def _start(self, priority: int, add: bool) -> None:
        leaves, tree = self._operands()
        dma_start_p.bind(*leaves, tree=tree, device_id_type=self.device_id_type, priority=priority, add=add)

    @boundary
    def wait(self) -> None:
        """Waits until all has arrived, and, of a copy to another chip, all has left."""
        if self.is_remote:
            self.wait_send()
        self.wait_recv()

    @boundary
    def wait_recv(self) -> None:
        """Waits until all has arrived: of a copy to another chip, what another chip sends here in the same way."""
        self._each(lambda copy: copy._wait(of_send=False))

    def _wait(self, of_send: bool) -> None:
        leaves, tree = self._operands()
        dma_wait_p.bind(*leaves, tree=tree, device_id_type=self.device_id_type, of_send=of_send)

    @boundary
    def wait_send(self) -> None:
        """Waits until all has left for the other chip, so that the source may be written again."""
        if not self.is_remote:
            raise errors.ArgumentValueError("Cannot `wait_send` on a local copy.")
        self._each(lambda copy: copy._wait(of_send=True))


@boundary
def make_async_copy(src_ref: Any, dst_ref: Any, sem: Any) -> AsyncCopyDescriptor:
    """A copy on this chip, not started yet; `sem` is a DMA semaphore."""
    return AsyncCopyDescriptor(src_ref, dst_ref, sem)


@boundary
def async_copy(src_ref: Any, dst_ref: Any, sem: Any, *, priority: int = 0, add: bool = False) -> AsyncCopyDescriptor:
    """Starts a copy on this chip; `.wait()` of what it returns waits for it."""
    copy = make_async_copy(src_ref, dst_ref, sem)
    copy.start(priority, add=add)
    return copy


@boundary
def make_async_remote_copy(
    src_ref: Any, dst_ref: Any, send_sem: Any, recv_sem: Any, device_id: Any,
    device_id_type: DeviceIdType = DeviceIdType.MESH,
) -> AsyncCopyDescriptor:  # fmt: skip
    """A copy to another chip, not started yet: `dst_ref` and `recv_sem` name what the receiver has there.

    Args:
      device_id: indices along the mesh's axes in a tuple, along some in a dictionary, or the chip's number if
        `device_id_type` is LOGICAL. In a kernel on several cores a dictionary may name their axes: `{"core": 1}`.
    """
    if device_id_type is DeviceIdType.LOGICAL and isinstance(device_id, tuple | dict):
        raise errors.ArgumentValueError(
            "LOGICAL device_id_type does not support device_id as a tuple or dict: give the chip's number"
        )
    return AsyncCopyDescriptor(src_ref, dst_ref, recv_sem, send_sem, device_id, device_id_type)


@boundary
def async_remote_copy(
    src_ref: Any, dst_ref: Any, send_sem: Any, recv_sem: Any, device_id: Any,
    device_id_type: DeviceIdType = DeviceIdType.MESH,
) -> AsyncCopyDescriptor:  # fmt: skip
    """Starts a copy to another chip; `.wait()` of what it returns waits for both sides."""
    copy = make_async_remote_copy(src_ref, dst_ref, send_sem, recv_sem, device_id, device_id_type)
    copy.start()
    return copy


@boundary
def sync_copy(src_ref: Any, dst_ref: Any, *, add: bool = False) -> None:
    """Copies a pytree of references to another, and waits for it."""
    is_view = lambda x: type(x) in (RefView, SelectedRef) or is_ref(x)
    sources = tree_util.tree_leaves(src_ref, is_leaf=is_view)
    if not sources:
        return
    targets = tree_util.tree_leaves(dst_ref, is_leaf=is_view)

    def run(sem: Any) -> None:
        copies = [make_async_copy(s, d, sem) for s, d in zip(sources, targets, strict=True)]
        for copy in copies:
            copy.start(add=add)
        for copy in copies:
            copy.wait()

    run_scoped(run, SemaphoreType.DMA(()))


# ----------------------------------------------------------------------------------------------------------------------
# Types


def _check(*avals: Any, tree: Any, **params: Any) -> list[Any]:
    operands: CopyOperands = tree_util.tree_unflatten(tree, avals)
    for ref, _ in (operands.source, operands.destination):
        if not is_ref_type(ref):
            raise errors.ArgumentValueError("DMA source/destination/semaphore arguments must be Refs.")
    types = [view_type(view, ref.inner_aval) for ref, view in (operands.source, operands.destination)]
    if types[0].shape != types[1].shape or types[0].dtype != types[1].dtype:
        raise errors.ArgumentValueError(
            f"a copy from {types[0].short()} to {types[1].short()}: source and destination must have the same "
            "shape and element type; take views of them, ref.at[index]"
        )
    for sem in filter(None, (operands.arrived, operands.sent)):
        if not is_ref_type(sem[0]):
            raise errors.ArgumentValueError("DMA source/destination/semaphore arguments must be Refs.")
        if not is_semaphore(sem[0]):
            raise errors.ArgumentValueError(f"a copy counts on a DMA semaphore, got {sem[0]}")
        need_semaphore("signal", *sem, dma=True)
    return []


def _effects(*avals: Any, tree: Any, **params: Any) -> frozenset[Any]:
    leaves_chip = tree_util.tree_unflatten(tree, avals).device is not None
    return frozenset([READ, WRITE, COMMUNICATION] if leaves_chip else [READ, WRITE])


# ----------------------------------------------------------------------------------------------------------------------
# Meaning: done at once


def _start_discharge(args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    operands: CopyOperands = tree_util.tree_unflatten(params["tree"], args)
    if operands.core is not None:
        raise errors.UnsupportedError(
            "a copy to another core needs several cores that run at the same time: a loop of array operations has one; "
            "use interpret=pltpu.InterpretParams()"
        )
    source, source_view = operands.source
    target, view = operands.destination
    held = source.value if type(source) is Cell else source
    values = read(held, source_view)
    count = np.int32(values.size)
    put = accumulate if params["add"] else write
    if not operands.is_remote:
        target.value = put(target.value, view, values)
        count_up(operands.arrived[0], operands.arrived[1], count)
        return []
    arrivals = is_sent_here(logical_id(operands.device, params["device_id_type"].value))
    there = tree_util.tree_map(lambda x: from_sender(x, arrivals), view)
    changed = put(target.value, there, from_sender(values, arrivals))
    target.value = jnp.where(arrivals.some, changed, target.value)
    sem, sem_view = operands.arrived
    sem_there = tree_util.tree_map(lambda x: from_sender(x, arrivals), sem_view)
    count_up(sem, sem_there, jnp.where(arrivals.some, count, np.int32(0)))
    if operands.sent is not None:
        count_up(*operands.sent, count)
    return []


def _wait_discharge(args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    operands: CopyOperands = tree_util.tree_unflatten(params["tree"], args)
    waited = operands.sent if params["of_send"] else operands.arrived
    ref, view = operands.source if params["of_send"] else operands.destination
    shown = read(ref.value if type(ref) is Cell else ref, view)
    count_down(waited[0], waited[1], np.int32(shown.size))  # type: ignore[index]
    return []


dma_start_p = Primitive(
    "dma_start", _check, multiple_results=True, typed=True, discharge=_start_discharge, effects=_effects,
    lower=only_in_kernels, absent=KERNEL_ONLY,
)  # fmt: skip
dma_wait_p = Primitive(
    "dma_wait", _check, multiple_results=True, typed=True, discharge=_wait_discharge,
    effects=lambda *avals, **params: frozenset([READ, WRITE]), lower=only_in_kernels, absent=KERNEL_ONLY,
)  # fmt: skip
