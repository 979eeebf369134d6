"""Arrays as text, and what is said of those that cannot be read.

Of an array that spans processes each shows what it holds itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import dtypes, errors

__all__ = ["deleted", "long", "not_added_up", "not_addressable", "short"]

# Parts that are shown of an array that spans processes.
_SHOWN_PARTS = 8


def long(array: Any) -> str:
    """`repr` of an Array."""
    weak = ", weak_type=True" if array.weak_type else ""
    array._check()
    name = dtypes.short_dtype_name(array.dtype) if array.aval.is_key else array.dtype.name
    if array.sharding.unreduced_axes:
        return f"Array(shape={array.shape}, dtype={name}{weak}, sharding={array.sharding})"
    try:
        value = array._value
    except errors.NonAddressableError:
        return f"Array(shape={array.shape}, dtype={name}{weak})" + _local(array)
    if array.aval.is_key:
        return f"Array({array.shape}, dtype={name}) overlaying:\n{value}"
    if not array.size:
        return f"Array([], shape={array.shape}, dtype={name}{weak})"
    text = np.array2string(value, prefix="Array(", separator=", ", suffix=",")
    tail = f"dtype={name}{weak})"
    last = len(text) - (text.rfind("\n") + 1)
    fits = last + len(tail) + 2 <= np.get_printoptions()["linewidth"]
    return f"Array({text},{' ' * (1 if fits else len('Array('))}{tail}"  # in one line, as JAX's


def short(array: Any) -> str:
    """`str` of an Array: its elements."""
    if (
        array.aval.is_key
        or array.sharding.unreduced_axes
        or not (array.is_fully_addressable or array.is_fully_replicated)
    ):
        return long(array)
    return str(array.__array__())


def not_added_up(array: Any) -> errors.UnsupportedError:
    """Why the value of an array of addends cannot be read."""
    return errors.UnsupportedError(
        f"the value of an array of type {array.aval.short()} is the sum of what its devices hold over "
        f"{sorted(map(str, array.sharding.unreduced_axes))}, and nobody has added it up: do so with "
        "meshrt.reshard(x, P(...)) to a spec without unreduced axes, or read the parts with `.addressable_shards`"
    )


def not_addressable(array: Any) -> errors.NonAddressableError:
    """Why the value of an array that other processes hold parts of cannot be read."""
    return errors.NonAddressableError(
        "Fetching value for `meshrt.Array` that spans non-addressable (non process local) devices is not "
        f"possible: it has type {array.aval} and sharding {array.sharding}. You can use "
        "`meshrt.experimental.multihost_utils.process_allgather` to have the global array or use "
        "`.addressable_shards` to read this process's parts."
    )


def deleted(array: Any) -> errors.DeletedArrayError:
    """Says how the buffer of an array went away."""
    how = f" It was {array._fate}." if array._fate else " It was deleted, or donated to a computation."
    return errors.DeletedArrayError(
        f"Array has been deleted with shape={str(array.aval).lstrip('~')}.{how} Keep a copy (x.copy()) before, do not "
        "donate it (donate_argnums), or use the result in its place."
    )


def _local(array: Any) -> str:
    """What this process has of an array that spans several, a line for each of the first parts."""
    shards = array.addressable_shards
    process = array.sharding.device_assignment[0].client.process_index()
    if not shards:
        return f", of which process {process} holds nothing"
    lines = [f", of which process {process} holds:"]
    with np.printoptions(threshold=16, edgeitems=2):
        for shard in shards[:_SHOWN_PARTS]:
            bounds = ", ".join("{}:{}".format(*s.indices(n)[:2]) for s, n in zip(shard.index, array.shape))
            value = "" if array.aval.is_key else ": " + " ".join(str(np.asarray(shard.data)).split())
            lines.append(f"  [{bounds}] on device {shard.device.id}{value}")
    if len(shards) > _SHOWN_PARTS:
        lines.append(f"  and {len(shards) - _SHOWN_PARTS} more parts")
    return "\n".join(lines)
