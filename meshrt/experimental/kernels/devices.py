"""Which chip a kernel's communication is for, and what that means as collectives of the manual region around.

A chip's number in the program (its logical id) is its place in row-major order along the region's axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from meshrt import errors, lax
from meshrt import numpy as jnp
from meshrt.core.axes import NamedAxis, axes_in_scope
from meshrt.core.effects import Effect
from meshrt.core.types import aval_of

__all__ = ["COMMUNICATION", "Arrivals", "chip_and_core", "chip_axes", "is_sent_here", "logical_id", "own_id"]

# Of operations that reach another chip's memory or semaphores.
COMMUNICATION = Effect("Communication")


def chip_axes() -> tuple[NamedAxis, ...]:
    """The axes of the manual region around, outermost first."""
    found = {a.name: a for a in axes_in_scope() if a.is_manual}
    return tuple(found.values())


def own_id() -> Any:
    """The number of the chip that runs the program: an int32 scalar."""
    return linear_id([lax.axis_index(a.name) for a in chip_axes()])


def linear_id(indices: Sequence[Any]) -> Any:
    """The number of the chip with these indices along the axes."""
    sizes = [a.size for a in chip_axes()]
    number: Any = np.int32(0)
    for d, index in enumerate(indices):
        number = number + index * np.int32(math.prod(sizes[d + 1 :]))
    return number


def logical_id(device: Any, kind: str) -> Any:
    """The number of a chip that users named: by it ("logical"), or by its indices ("mesh"), in a tuple or, for some
    axes only, in a dictionary.

    Raises:
      ArgumentValueError: indices that are not those of the region's axes.
    """
    axes = chip_axes()
    if not axes:
        raise errors.ArgumentValueError(
            "a kernel names another chip (device_id), but is called outside of a manual region: call it inside of "
            "meshrt.shard_map"
        )
    if isinstance(device, dict):
        return linear_id(_from_names(device, axes))
    if kind == "logical":
        return device
    given = list(device) if isinstance(device, tuple | list) else [device]
    if len(given) != len(axes):
        raise errors.ArgumentValueError(
            f"Number of device ids must match the number of mesh axes, but got {len(given)} ids for a {len(axes)}D "
            "mesh."
        )
    return linear_id(given)


def chip_and_core(device: Any) -> tuple[Any, Any]:
    """What a kernel on several cores names in a dictionary, apart: indices along the axes of chips, and the number of a
    core, from indices along the axes of cores (those that are not named are the core's own). None for those here.
    """
    cores = [a for a in axes_in_scope() if a.here is not None]
    if not isinstance(device, dict) or not any(a.name in device for a in cores):
        return device, None
    number: Any = np.int32(0)
    for a in cores:
        number = number * np.int32(a.size) + (device[a.name] if a.name in device else lax.axis_index(a.name))
    names = {a.name for a in cores}
    return {name: index for name, index in device.items() if name not in names} or None, number


def _from_names(device: dict[Any, Any], axes: Sequence[NamedAxis]) -> list[Any]:
    """Indices along all axes, of those that `device` names; along the others the chip's own."""
    found: dict[Any, Any] = {}
    sizes = {a.name: a.size for a in axes}
    for name, index in device.items():
        names = name if isinstance(name, tuple) else (name,)
        unknown = [n for n in names if n not in sizes]
        if unknown:
            raise errors.ArgumentValueError(
                f"device_id names the axis {unknown[0]!r}, but the axes of the manual region are {tuple(sizes)}"
            )
        rest = index
        for n in reversed(names):
            found[n] = rest % sizes[n] if len(names) > 1 else rest
            rest = rest // sizes[n]
    return [found[a.name] if a.name in found else lax.axis_index(a.name) for a in axes]


class Arrivals(NamedTuple):
    """What chips sent to this one: whether any did, which one (the first), and the sum of their counts."""

    some: Any
    sender: Any
    total: Any


def is_sent_here(target: Any, count: Any = 1) -> Arrivals:
    """What arrives where each chip sends to the chip with the number `target`. All chips have to ask."""
    names = tuple(a.name for a in chip_axes())
    targets = lax.all_gather(jnp.asarray(target, np.int32), names).reshape(-1)
    mine = targets == own_id()
    counts = lax.all_gather(jnp.asarray(count, np.int32), names).reshape(-1)
    return Arrivals(mine.any(), jnp.argmax(mine), jnp.where(mine, counts, 0).sum().astype(np.int32))


def from_sender(x: Any, arrivals: Arrivals) -> Any:
    """The value that the sending chip has of `x`."""
    names = tuple(a.name for a in chip_axes())
    x = jnp.asarray(x)
    every = lax.all_gather(x, names).reshape(-1, *aval_of(x).shape)
    return lax.dynamic_index_in_dim(every, arrivals.sender, 0, keepdims=False)
