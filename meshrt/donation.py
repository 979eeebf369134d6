"""Donated arguments whose memory no result can take over: a warning, once per compiled program.

What XLA reuses is a matter of bytes on one device, so it is known once every boundary sharding is: an argument gives
its memory to a result of equal local shape and dtype if there is one, else to any of equal size.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from meshrt.core.source import user_stacklevel
from meshrt.core.types import ShapedArray
from meshrt.errors import DonationWarning

if TYPE_CHECKING:
    from meshrt.stages import Program

__all__ = ["unusable", "warn_of_unusable"]


class _Local(NamedTuple):
    """An argument or result on one device."""

    shape: tuple[int, ...]
    dtype: Any

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return ShapedArray(self.shape, self.dtype).str_short()


def _local(aval: ShapedArray, sharding: Any) -> _Local:
    physical = aval.physical()
    if sharding is None:
        return _Local(physical.shape, physical.dtype)
    tiling = sharding.tiling(physical.ndim)
    return _Local(tuple(-(-size // parts) for size, parts in zip(physical.shape, tiling)), physical.dtype)


def unusable(program: Program) -> list[tuple[int, str]]:
    """(position among the flat arguments, what it is and why it is of no use) for donated arguments in vain.

    Arguments that the program does not take at all are not counted: nothing happens to them.
    """
    lowered, request = program.lowered, program.lowered.request
    offset = len(program.consts)
    donated = {}
    for k, i in enumerate(program.kept):
        if request.donated[i]:
            sharding = program.arg_shardings[offset + k] if program.arg_shardings else None
            donated[i] = _local(lowered.in_avals[i], sharding)
    if not donated:
        return []
    shardings = program.out_shardings or [None] * len(lowered.out_avals)
    results = Counter(_local(a, s) for a, s in zip(lowered.out_avals, shardings))
    left = dict(donated)
    for i, local in donated.items():
        if results[local]:
            results[local] -= 1
            del left[i]
    sizes = Counter(local.nbytes for local in results.elements())
    for i, local in list(left.items()):
        if sizes[local.nbytes]:
            sizes[local.nbytes] -= 1
            del left[i]
    taken = {local.nbytes for i, local in donated.items() if i not in left}
    return [(i, _reason(lowered.in_avals[i], local, local.nbytes in taken)) for i, local in left.items()]


def _reason(aval: ShapedArray, local: _Local, others: bool) -> str:
    size = f"{local.nbytes} bytes"
    if local.shape != aval.physical().shape:
        size += f" per device, {local}"
    why = "every result of that size takes over another donated argument" if others else "no result has that size"
    return f"{aval.str_short()}, {size}: {why}"


def warn_of_unusable(program: Program) -> None:
    """A DonationWarning at the user's line if `program` cannot reuse some of what is donated to it."""
    if not any(program.lowered.request.donated):
        return
    found = unusable(program)
    if found:
        paths = program.lowered.record.arg_paths()
        listed = "; ".join(f"argument {paths[i]} ({why})" for i, why in found)
        warnings.warn(
            f"Some donated buffers of {program.lowered.fun_name} were not usable: {listed}. Such a buffer is kept, as "
            "if it had not been donated: leave it out of donate_argnums, or return a result of its size and sharding",
            DonationWarning,
            stacklevel=user_stacklevel(),
        )
