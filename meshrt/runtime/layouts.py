"""Other orders of the elements in a device's memory than row-major.

Programs take and return row-major parts. An array in another layout is brought into row-major order where it enters a
program, and a result for which another one is asked, or that is constrained to one, is brought into it behind the
program, by a copy on its devices.
"""

from __future__ import annotations

from meshrt import errors
from meshrt.runtime.array import Array, signature
from meshrt.runtime.pieces import relaid
from meshrt.sharding.layout import Layout

__all__ = ["relayout"]


def relayout(array: Array, layout: Layout | None) -> Array:
    """The array with its elements in another order in memory; None is row-major.

    Raises:
      ArgumentValueError: the layout is for another rank. UnsupportedError: the platform does not follow it, the array
        holds keys, or it lies in another memory than the devices' own.
    """
    array._check()
    if layout is not None:
        layout.check_rank(array.shape, "an array")
        layout = None if layout.is_default else layout
    if layout == array._sig.layout:
        return array
    if array.aval.is_key:
        raise errors.UnsupportedError(
            f"an array of random keys ({array.aval.str_short()}) in the layout {layout}: keys lie row-major only"
        )
    if not array.sharding.is_in_default_memory:
        raise errors.UnsupportedError(
            f"an array in the memory {array.sharding.memory_kind!r} in the layout {layout}: programs lay elements out "
            "anew in the devices' own memory only; leave out the layout, or the memory kind"
        )
    sig = signature(array.aval, array.sharding, array.committed, layout)
    out = Array(relaid(array._buf, array._sig, sig), sig)
    found = out.layout
    if layout is not None and (found is None or not layout.agrees(found)):
        raise errors.UnsupportedError(
            f"{sig.local_devices[0].platform} devices do not follow the layout {layout}: they gave {found}. "
            "Leave the layout out, or use Layout.AUTO"
        )
    return out
