"""Semaphores: counters that a kernel signals, here or on another chip, and waits for.

    semaphore_signal[tree device_id_type]  semaphore view... count device... core
    semaphore_wait[tree]                   semaphore view... count
    n = semaphore_read[tree]               semaphore view...
    r = get_barrier_semaphore

In a loop of array operations steps run one after the other, so a wait only counts down; a signal for another chip is
a collective of the manual region around, which all chips have to reach.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors, tree_util
from meshrt.core.primitive import Primitive
from meshrt.core.references import ALLOC, READ, WRITE, AbstractRef, is_ref_type
from meshrt.core.tracebacks import boundary
from meshrt.core.types import ShapedArray, aval_of
from meshrt.experimental.kernels.devices import COMMUNICATION, chip_and_core, is_sent_here, logical_id
from meshrt.experimental.kernels.memory import (
    BarrierSemaphoreType,
    DmaSemaphoreType,
    SemaphoreDType,
    TpuMemorySpace,
)
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.elementwise import add, sub_p
from meshrt.primitives.references import RefView
from meshrt.primitives.state_views import View, read, view_of, view_type, write
from meshrt.transforms.discharge import Cell

__all__ = [
    "DeviceIdType", "get_barrier_semaphore", "semaphore_read", "semaphore_signal", "semaphore_wait",
]  # fmt: skip


class DeviceIdType(enum.Enum):
    """How a chip is named: by its indices along the axes of the mesh, or by its number in the program."""

    MESH = "mesh"
    LOGICAL = "logical"


def ref_and_view(ref: Any) -> tuple[Any, View]:
    """A reference and what is seen of it, of a reference or a view of one."""
    return (ref.ref, ref.steps) if type(ref) is RefView else (ref, ())


def need_semaphore(what: str, ref: Any, view: View, dma: bool = False) -> None:
    """ArgumentValueError unless a reference, of this type, is to one semaphore that `what` may use."""
    if not is_ref_type(ref):
        raise errors.ArgumentValueError(f"Cannot {what} on a non-semaphore Ref: {ref}")
    shape = view_type(view, ref.inner_aval).shape
    if shape:
        raise errors.ArgumentValueError(f"Cannot {what} on a non-()-shaped semaphore: {shape}. Index it: sem.at[i]")
    if not isinstance(ref.dtype, SemaphoreDType) or (isinstance(ref.dtype, DmaSemaphoreType) and not dma):
        kinds = "semaphore, barrier_semaphore" + (", dma_sem" if dma else "")
        raise errors.ArgumentValueError(f"Must {what} semaphores of the following types: {{{kinds}}}. Got {ref.dtype}.")


def count_up(cell: Cell, view: View, count: Any) -> None:
    """Adds to a semaphore in a cell."""
    cell.value = write(cell.value, view, add(read(cell.value, view), count))


def count_down(cell: Cell, view: View, count: Any) -> None:
    cell.value = write(cell.value, view, sub_p.bind(read(cell.value, view), count))


def _int32(value: Any, what: str) -> Any:
    if isinstance(value, int | np.integer):
        return np.int32(value)
    if aval_of(value).dtype != np.int32:
        raise errors.ArgumentValueError(f"Must {what} an int32 value, but got {aval_of(value).dtype}")
    return value


# ----------------------------------------------------------------------------------------------------------------------
# What users call


@boundary
def semaphore_signal(
    sem_or_view: Any,
    inc: Any = 1,
    *,
    device_id: Any = None,
    device_id_type: DeviceIdType = DeviceIdType.MESH,
    core_index: Any = None,
) -> None:
    """Adds `inc` to a semaphore; with `device_id` to that of another chip, with `core_index`, or an index along the
    axis of the mesh of cores in `device_id={"core": ...}`, to that of another core.

    Raises:
      ArgumentValueError: it is no semaphore, an array of several, or one that copies count on.
    """
    ref, view = ref_and_view(sem_or_view)
    chip, named = chip_and_core(device_id)
    ids = tree_util.tree_map(_device_index, chip)
    core_index = named if core_index is None else core_index
    core = None if core_index is None else _int32(core_index, "signal a core by")
    leaves, tree = tree_util.tree_flatten((view, _int32(inc, "signal"), ids, core))
    semaphore_signal_p.bind(ref, *leaves, tree=tree, device_id_type=device_id_type)


def _device_index(value: Any) -> Any:
    if isinstance(value, int | np.integer):
        return np.int32(value)
    if aval_of(value).dtype != np.int32:
        raise errors.ArgumentValueError(f"`device_id`s must be an int32 value, but got {aval_of(value).dtype}")
    return value


@boundary
def semaphore_wait(sem_or_view: Any, value: Any = 1, *, decrement: bool = True) -> None:
    """Waits until a semaphore has reached `value`, and takes that away from it (unless `decrement` is False)."""
    ref, view = ref_and_view(sem_or_view)
    leaves, tree = tree_util.tree_flatten((view, _int32(value, "wait")))
    semaphore_wait_p.bind(ref, *leaves, tree=tree, decrement=bool(decrement))


@boundary
def semaphore_read(sem_or_view: Any) -> Any:
    """The present count of a semaphore: an int32 scalar."""
    ref, view = ref_and_view(sem_or_view)
    leaves, tree = tree_util.tree_flatten(view)
    return semaphore_read_p.bind(ref, *leaves, tree=tree)


@boundary
def get_barrier_semaphore() -> Any:
    """The semaphore at which all chips that run the kernel meet: that of the `collective_id` in its compiler params.

    It has to be waited down to 0 before the kernel ends.
    """
    return get_barrier_semaphore_p.bind()


# ----------------------------------------------------------------------------------------------------------------------
# Types, meaning


def _signal_infer(ref: Any, *leaves: Any, tree: Any, device_id_type: DeviceIdType) -> list[Any]:
    need_semaphore("signal", ref, tree_util.tree_unflatten(tree, leaves)[0])
    return []


def _signal_effects(ref: Any, *leaves: Any, tree: Any, device_id_type: DeviceIdType) -> frozenset[Any]:
    is_remote = tree_util.tree_unflatten(tree, leaves)[2] is not None
    return frozenset([READ, WRITE, COMMUNICATION] if is_remote else [READ, WRITE])


def _signal_discharge(args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    cell, *leaves = args
    view, count, device, core = tree_util.tree_unflatten(params["tree"], leaves)
    if core is not None:
        raise errors.UnsupportedError(
            "semaphore_signal to another core (core_index, or an axis of cores in device_id) needs several cores that "
            "run at the same time: a loop of array operations has one; use interpret=pltpu.InterpretParams()"
        )
    if device is not None:
        count = is_sent_here(logical_id(device, params["device_id_type"].value), count).total
    count_up(cell, view, count)
    return []


def _wait_infer(ref: Any, *leaves: Any, tree: Any, decrement: bool) -> list[Any]:
    need_semaphore("wait", ref, tree_util.tree_unflatten(tree, leaves)[0])
    return []


def _wait_discharge(args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    cell, *leaves = args
    view, count = tree_util.tree_unflatten(params["tree"], leaves)
    if params["decrement"]:
        count_down(cell, view, count)
    return []


def _read_infer(ref: Any, *leaves: Any, tree: Any) -> ShapedArray:
    need_semaphore("read", ref, view_of(tree, leaves), dma=True)
    return ShapedArray((), np.dtype(np.int32))


def _read_discharge(args: Sequence[Any], params: dict[str, Any]) -> Any:
    cell, *leaves = args
    return convert_element_type(read(cell.value, view_of(params["tree"], leaves)), np.dtype(np.int32))


def only_in_kernels(ctx: Any, eqn: Any, *operands: Any) -> Any:
    """The lowering of operations that nothing but a kernel may contain."""
    raise errors.UnsupportedError(
        f"`{eqn.primitive}` at {eqn.source} is outside of a kernel: it works on the memories of a chip's core, which "
        "only the functions that pallas_call runs see"
    )


KERNEL_ONLY = dict.fromkeys(
    ("jvp", "transpose", "batch"), "derivatives and batches of kernels are those of the loop that they mean"
)

semaphore_signal_p = Primitive(
    "semaphore_signal", _signal_infer, multiple_results=True, typed=True, discharge=_signal_discharge,
    effects=_signal_effects, lower=only_in_kernels, absent=KERNEL_ONLY,
)  # fmt: skip
semaphore_wait_p = Primitive(
    "semaphore_wait", _wait_infer, multiple_results=True, typed=True, discharge=_wait_discharge,
    effects=lambda *avals, **params: frozenset([READ, WRITE]), lower=only_in_kernels, absent=KERNEL_ONLY,
)  # fmt: skip
semaphore_read_p = Primitive(
    "semaphore_read", _read_infer, typed=True, discharge=_read_discharge,
    effects=lambda *avals, **params: frozenset([READ]), lower=only_in_kernels, absent=KERNEL_ONLY,
)  # fmt: skip
get_barrier_semaphore_p = Primitive(
    "get_barrier_semaphore",
    lambda: AbstractRef(ShapedArray((), BarrierSemaphoreType()), TpuMemorySpace.SEMAPHORE),
    typed=True, allocates=True, discharge=lambda args, params: Cell(np.zeros((), np.int32)[()]),
    effects=lambda *avals: frozenset([ALLOC]), lower=only_in_kernels, absent=KERNEL_ONLY,
)  # fmt: skip
