"""A call as far as its trace and the devices of its arguments tell, before anything is lowered.

Arguments may lie on devices on which no program runs together. Types need no devices, so the function is traced all the
same, and what its program does not need may lie anywhere, as in JAX. Only if that does not help is the call refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from meshrt import config, errors
from meshrt.pipeline.keys import TraceKey
from meshrt.pipeline.options import JitOptions
from meshrt.pipeline.placement import Placement, Wanted
from meshrt.pipeline.traced import LoweringRequest, TraceRecord
from meshrt.pipeline.written import Written
from meshrt.runtime.array import Array
from meshrt.runtime.reference import places_told
from meshrt.shape_dtype import ShapeDtypeStruct
from meshrt.sharding.mesh import AbstractMesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.typed import abstract

__all__ = [
    "APART", "Staged", "StagedCall", "Taken", "only", "trace_key", "type_alone", "types_alone", "where_needed",
]  # fmt: skip


class StagedCall(NamedTuple):
    """A call before it is compiled: its trace, what is asked of it, where it runs, and the shardings as written."""

    record: TraceRecord
    request: LoweringRequest
    placement: Placement
    written: Written


# The last is None of a program over references, which finds out by itself where it runs.
Staged = tuple[Wanted, TraceRecord, StagedCall | None]
Found = TypeVar("Found")
Record = TypeVar("Record", TraceRecord, TraceRecord | None)
Taken = Sequence[bool] | None  # of which arguments it counts where they lie; of all of them

APART = (errors.DeviceAssignmentMismatchError, errors.MeshMismatchError)


def trace_key(wanted: Wanted, placed: bool = False) -> TraceKey:
    """The key of a call's trace; with the places of arguments if the function asked for them and they are `placed`."""
    avals = places_told(wanted.avals, wanted.arg_shardings) if placed else tuple(wanted.avals)
    return TraceKey(wanted.tree, wanted.static, avals, config.trace_key(), wanted.traced_for, within=wanted.within)


def where_needed(
    look: Callable[[Sequence[Any], Taken], tuple[Wanted, Record]], then: Callable[[Wanted, Record], Found],
    leaves: Sequence[Any], options: JitOptions,
) -> Found:  # fmt: skip
    """`then` of what a call of these arguments asks for and of its trace, where the places count of those only that the
    program needs.

    `look` finds both for values of which the places count that are taken; a trace of None is not there. What is raised
    in the end is what was raised first, which names the places as they are.
    """

    def attempt(taken: Taken) -> Found:
        wanted, record = look(leaves, taken)
        if taken is None and record is not None and _passes_over(record, leaves, options):
            wanted, record = look(leaves, record.needed)
        return then(wanted, record)

    def needed(leaves: Sequence[Any], taken: Taken) -> Taken:
        record = None if options.keep_unused else look(leaves, taken)[1]
        return None if record is None else record.needed

    try:
        return attempt(None)
    except APART as e:
        why = e
    try:
        taken: Taken = None
        # The axes of a mesh that nobody needs may not be those in context, where the function is traced without them.
        for types, placed in ((types_alone(leaves), None), (leaves, (False,) * len(leaves))):
            try:
                taken = needed(types, placed)
                break
            except (errors.ShardingError, errors.MeshError):
                pass  # types over several meshes
        if taken is not None and not all(taken):
            try:
                return attempt(taken)
            except (errors.ShardingError, errors.MeshError):
                pass  # places that the needed ones, too, do not agree on
        raise why
    finally:
        del why  # its traceback leads here, and so to the arguments: a circle would keep them


def _passes_over(record: TraceRecord, leaves: Sequence[Any], options: JitOptions) -> bool:
    """Whether the program of a trace does not need some argument that was put somewhere: that says nothing of where it
    runs, as in JAX. (One that is passed all the same is to be where the others are; operations of the library lie where
    their operands do. And one is needed whose mesh the function asked for, or whose devices alone tell where the mesh
    is that the program itself names.)"""
    if options.keep_unused or options.is_operation or record.takes_refs or record.asked:
        return False
    if any(isinstance(place, AbstractMesh) for place in record.places):
        return False
    unneeded = [x for x, n in zip(leaves, record.needed, strict=True) if not n]
    return any(x.committed if type(x) is Array else getattr(x, "sharding", None) is not None for x in unneeded)


def only(leaves: Sequence[Any], taken: Taken) -> Sequence[Any]:
    """The arguments that are taken, and in the place of others None, which is nowhere."""
    return leaves if taken is None else [x if t else None for x, t in zip(leaves, taken, strict=True)]


def types_alone(leaves: Sequence[Any]) -> list[Any]:
    """Of values that lie apart what a trace is told; over the names of one mesh, and its types of axes, that is what it
    is told of them all."""
    shardings = [getattr(x, "sharding", None) for x in leaves]
    over_one = len({s.mesh.abstract_mesh for s in shardings if isinstance(s, NamedSharding)}) == 1
    return [(_over_names if over_one else type_alone)(x) for x in leaves]


def type_alone(x: Any) -> Any:
    """Of an array, or what stands for one, its type, without the devices that it is on; anything else as it is."""
    if isinstance(x, ShapeDtypeStruct):
        known = abstract(x)
        return ShapeDtypeStruct(
            x.shape, x.dtype, sharding=known.explicit, weak_type=x.weak_type, manual_axis_type=x.manual_axis_type,
            is_ref=x.is_ref,
        )  # fmt: skip
    if type(x) is not Array:
        return x
    return ShapeDtypeStruct(x.shape, x.dtype, sharding=x.aval.explicit, weak_type=x.weak_type)


def _over_names(x: Any) -> Any:
    """As `type_alone`, split over the names and sizes of the axes of its mesh as it is over that."""
    sharding = getattr(x, "sharding", None) if isinstance(x, Array | ShapeDtypeStruct) else None
    if not isinstance(sharding, NamedSharding):
        return type_alone(x)
    return ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding.abstract(), weak_type=x.weak_type)
