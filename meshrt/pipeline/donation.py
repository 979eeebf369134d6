"""Donation: which arguments give their memory away, and a warning, once per program, where no result can take it.

What XLA reuses is a matter of bytes on one device, so it is known once every boundary sharding is: an argument gives
its memory to a result of equal local shape and dtype if there is one, else to any of equal size.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from typing import Any, NamedTuple, cast

from meshrt import config, errors, tree_util
from meshrt.core.source import user_stacklevel
from meshrt.core.types import ShapedArray
from meshrt.errors import DonationWarning
from meshrt.pipeline.options import JitOptions
from meshrt.pipeline.program import CompiledProgram
from meshrt.pipeline.static_arguments import Static
from meshrt.pipeline.traced import LoweringRequest, TraceRecord

__all__ = ["check_layouts", "donated_leaves", "unusable", "warn_of_unusable"]


def check_layouts(record: TraceRecord, request: LoweringRequest) -> None:
    """ArgumentValueError if the compiler is to choose the layout of a donated argument or of the result that would take
    over its memory, but not of both: the memory has one layout."""
    if not (request.auto_args or request.auto_outs) or not any(request.donated):
        return
    outs = [(a.shape, a.dtype, i in request.auto_outs) for i, a in enumerate(record.out_avals)]
    for i, aval in enumerate(record.in_avals):
        mine = (aval.shape, aval.dtype, i in request.auto_args)
        other = (*mine[:2], not mine[2])
        if request.donated[i] and mine not in outs and other in outs:
            words = ("AUTO", "None") if mine[2] else ("None", "AUTO")
            of, name = ("out", record.out_paths()[outs.index(other)]) if mine[2] else ("in", record.arg_paths()[i])
            raise errors.ArgumentValueError(
                f"Input layout being donated was {words[0]} while output layout was {words[1]}: argument "
                f"{record.arg_paths()[i]} of {record.fun_name}, {aval.str_short()}, is donated, and the result of its "
                f"type takes over its memory. Give {name} Format(Layout.AUTO) in {of}_shardings too, or don't donate "
                "the argument"
            )


def donated_leaves(options: JitOptions, tree: Any, static: Static) -> tuple[bool, ...]:
    """Which of the flat arguments of a call `donate_argnums` and `donate_argnames` name.

    None where results are searched for NaNs: whoever finds some runs the program again, for the operation that made it.
    """
    if config.settings.debug_nans or not (options.donate_argnums or options.donate_argnames):
        count: int = tree.num_leaves
        return (False,) * count
    args, kwargs = tree_util.treedef_children(tree)
    _, names = cast(tuple[type, Any], kwargs.node_data())  # a dict's
    named = dict(zip(names, tree_util.treedef_children(kwargs)))
    given = tree_util.treedef_children(args)
    fixed = {i for i, _ in static.positions}
    total = len(given) + len(fixed)
    positions = [i for i in range(total) if i not in fixed]
    nums = {n % total for n in options.donate_argnums if -total <= n < total}
    chosen = [(i in nums, part) for i, part in zip(positions, given)]
    chosen += [(name in options.donate_argnames, part) for name, part in named.items()]
    return tuple([is_donated for is_donated, part in chosen for _ in range(part.num_leaves)])


class _Local(NamedTuple):
    """An argument or result on one device."""

    shape: tuple[int, ...]
    dtype: Any
    memory: str

    @property
    def nbytes(self) -> int:
        itemsize: int = self.dtype.itemsize
        return math.prod(self.shape) * itemsize

    @property
    def room(self) -> tuple[int, str]:
        """What a result needs to have to take its memory over."""
        return self.nbytes, self.memory

    def __str__(self) -> str:
        return ShapedArray(self.shape, self.dtype).short()


def _local(aval: ShapedArray, sharding: Any, memory: str) -> _Local:
    physical = aval.physical()
    if sharding is None:
        return _Local(physical.shape, physical.dtype, memory)
    tiling = sharding.tiling(physical.ndim)
    return _Local(tuple(-(-size // parts) for size, parts in zip(physical.shape, tiling)), physical.dtype, memory)


def unusable(program: CompiledProgram) -> list[tuple[int, str]]:
    """(position among the flat arguments, what it is and why it is of no use) for donated arguments in vain.

    Arguments that the program does not take at all are not counted: nothing happens to them.
    """
    request = program.request
    offset = len(program.consts)
    donated = {}
    for k, i in enumerate(program.kept):
        if request.donated[i]:
            sharding = program.arg_shardings[offset + k] if program.arg_shardings else None
            memory = program.arg_memories[offset + k] if program.arg_memories else "device"
            donated[i] = _local(program.in_avals[i], sharding, memory)
    if not donated:
        return []
    shardings = program.out_shardings or [None] * len(program.out_avals)
    memories = program.out_memories or ["device"] * len(program.out_avals)
    outs = [_local(*of) for of in zip(program.out_avals, shardings, memories)]
    results = Counter(outs)
    left = dict(donated)
    for i, local in donated.items():
        if results[local]:
            results[local] -= 1
            del left[i]
    sizes = Counter(local.room for local in results.elements())
    for i, local in list(left.items()):
        if sizes[local.room]:
            sizes[local.room] -= 1
            del left[i]
    taken = {local.room for i, local in donated.items() if i not in left}
    elsewhere = {local.nbytes: local.memory for local in outs}
    return [
        (i, _reason(program.in_avals[i], local, local.room in taken, elsewhere.get(local.nbytes, local.memory)))
        for i, local in left.items()
    ]


def _reason(aval: ShapedArray, local: _Local, others: bool, memory: str) -> str:
    size = f"{local.nbytes} bytes"
    if local.shape != aval.physical().shape:
        size += f" per device, {local}"
    why = "every result of that size takes over another donated argument" if others else "no result has that size"
    if not others and memory != local.memory:
        why = f"the result of that size lies in the memory {memory!r}, the argument in {local.memory!r}"
    return f"{aval.short()}, {size}: {why}"


def warn_of_unusable(program: CompiledProgram) -> None:
    """A DonationWarning at the user's line if `program` cannot reuse some of what is donated to it."""
    if not any(program.request.donated):
        return
    found = unusable(program)
    if found:
        paths = program.record.arg_paths()
        listed = "; ".join(f"argument {paths[i]} ({why})" for i, why in found)
        warnings.warn(
            f"Some donated buffers were not usable, in {program.record.fun_name}: {listed}. Such a buffer is kept, as "
            "if it had not been donated: leave it out of donate_argnums, or return a result of its size and sharding",
            DonationWarning,
            stacklevel=user_stacklevel(),
        )
