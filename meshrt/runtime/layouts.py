"""Other orders of the elements in a device's memory than row-major.

Programs take and return row-major parts, but for those whose layout they were compiled to choose. An array in another
layout is brought into row-major order where it enters a program, and a result for which another one is asked, or that
is constrained to one, is brought into it behind the program, by a copy on its devices.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshrt import errors
from meshrt.runtime.array import Array, Signature, signature
from meshrt.runtime.executable import LoadedExecutable
from meshrt.runtime.pieces import relaid
from meshrt.sharding.layout import Layout
from meshrt.xla import jaxlib_api, jaxlib_executables

__all__ = ["chosen_layouts", "relayout"]


def chosen_layouts(
    executable: LoadedExecutable, args: Mapping[int, Signature], outs: Mapping[int, Signature]
) -> tuple[dict[int, Layout], dict[int, Layout]]:
    """What the compiler chose for arguments and results, by their numbers in the program, where it is another layout
    than arrays have unless asked otherwise. `args` and `outs` are the signatures of those that it chose for.

    UnsupportedError where the platform does not tell.
    """
    sides = zip(executable.layouts(), (args, outs))
    its_args, its_outs = ({i: s[i] for i, sig in m.items() if s[i] != _default(sig)} for s, m in sides)
    return its_args, its_outs


def _default(sig: Signature) -> Layout:
    device = sig.local_devices[0]
    try:
        minor, tiling, bits = jaxlib_executables.default_layout(sig.stored.dtype, sig.shard_shape, device)
    except jaxlib_api.XlaError as e:
        raise errors.UnsupportedError(
            f"the runtime of {device.platform} does not tell in what layout an array of type {sig.aval.short()} lies "
            f"({e}), so what Layout.AUTO chose cannot be told from it: give a layout in its place, or none"
        ) from e
    return Layout(minor[::-1], tiling, bits)


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
            f"an array of random keys ({array.aval.short()}) in the layout {layout}: keys lie row-major only"
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
