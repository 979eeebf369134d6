"""`vmap` of calls of exported functions.

What a function for one device computes is read out of its module as operations of ours (`meshrt.export.raising`), which
are mapped as any others. A module with something that cannot be said so, a call of LAPACK for example, is called for
one member of the batch after another, in a loop of the program; so is a function that is split over devices itself.
Where the mapped dimension is split over mesh axes of which the function knows nothing, as one exported for a single
device, each device does either for the members that it has; else every device gets all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import config, dtypes, errors
from meshrt.core.basic.shapes import move_dim
from meshrt.core.dimensions.expression import is_symbolic_shape
from meshrt.core.jaxpr import ClosedJaxpr
from meshrt.core.spaces import DEVICE
from meshrt.core.trace import eval_jaxpr, trace_to_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from meshrt.export.embedding import calls_of, check_calls, specialised_for
from meshrt.export.raising import NotRaised, function_of
from meshrt.export.record import Record, result_types
from meshrt.export.splits import Over, explicit_mesh
from meshrt.jit import jit
from meshrt.pipeline.keys import keep_latest
from meshrt.primitives import control
from meshrt.primitives.callback_mapping import whole_along
from meshrt.shape_dtype import ShapeDtypeStruct
from meshrt.shard_map import shard_map
from meshrt.sharding.context import get_abstract_mesh
from meshrt.sharding.spec import PartitionSpec, axes_of
from meshrt.transforms.batching import MappedAxis
from meshrt.transforms.vmap import vmap

__all__ = ["mapped_call"]


def mapped_call(
    call: Callable[..., Any], axis: MappedAxis, args: Sequence[Any], dims: Sequence[int | None], params: dict[str, Any]
) -> tuple[list[Any], list[int]]:
    """The batching rule of a call: `call(*args, exported=, splits=)` for every member."""
    exported: Record = params["exported"]
    stacked = [a if d is None else move_dim(a, d, 0) for a, d in zip(args, dims)]
    is_mapped = [d is not None for d in dims]

    def loop(*args: Any) -> Any:
        here = {**params, "splits": _inside(exported, params["splits"])}
        at_once = _at_once(exported, args, is_mapped, here["splits"])
        if at_once is not None:
            return tuple(at_once(*args))

        def one(members: Sequence[Any]) -> Any:
            rest = iter(members)
            return tuple(call(*[next(rest) if m else a for a, m in zip(args, is_mapped)], **here))

        return control.map(one, [a for a, m in zip(args, is_mapped) if m])

    mesh, axes = _split_over(axis)
    if exported.split_mesh is None and axes:
        over = PartitionSpec(axes)
        specs = tuple(over if m else PartitionSpec() for m in is_mapped)
        outs = jit(shard_map(loop, mesh=mesh, in_specs=specs, out_specs=over, axis_names=set(axes)))(*stacked)
    else:
        outs = loop(*[whole_along(a, 0) if m else a for a, m in zip(stacked, is_mapped)])
    return list(outs), [0] * len(outs)


def _at_once(exported: Record, args: Sequence[Any], is_mapped: Sequence[bool], splits: Sequence[Any]) -> Any:
    """What computes all members together; None where the module cannot be read so."""
    avals = [aval_of(x) for x in args]
    members = [a.update(shape=a.shape[1:]) if m else a for a, m in zip(avals, is_mapped)]
    if not _is_plain(exported, members) or any(s is not None for s in splits) or explicit_mesh(args) is not None:
        return None
    types = tuple(ShapedArray(a.shape, a.dtype) for a in members)
    key = types, tuple(is_mapped), config.trace_key()
    if key not in exported.at_once:
        program = _program(exported, types)
        mapped = None if program is None else _mapped(exported, program, is_mapped)
        exported.at_once[key] = mapped if mapped is not None and _may_be_mapped(mapped, avals) else None
        keep_latest(exported.at_once, config.settings.cached_traces)
    return exported.at_once[key]


def _mapped(exported: Record, program: ClosedJaxpr, is_mapped: Sequence[bool]) -> Any:
    kept = exported.module_kept_var_idx

    def member(*args: Any) -> Any:
        return eval_jaxpr(program.jaxpr, program.consts, [args[i] for i in kept])

    member.__name__ = member.__qualname__ = exported.fun_name
    return jit(vmap(member, [0 if m else None for m in is_mapped]))


def _may_be_mapped(mapped: Any, avals: Sequence[ShapedArray]) -> bool:
    """Whether every operation has a rule for how its operands are mapped: reductions have none for initial values."""
    try:
        mapped.eval_shape(*[ShapeDtypeStruct(a.shape, a.dtype) for a in avals])
    except (errors.UnsupportedError, errors.MissingRuleError):
        return False
    return True


def _is_plain(exported: Record, avals: Sequence[ShapedArray]) -> bool:
    """Whether it is a function for one device and one platform, of and to arrays of known sizes, that only computes."""
    kinds = (*avals, *exported.out_avals)
    return (
        exported.split_mesh is None
        and len(exported.platforms) == 1
        and not (exported.ordered_effects or exported.unordered_effects)
        and not any(is_symbolic_shape(a.shape) for a in avals)
        and not any(isinstance(a.dtype, dtypes.ExtendedDType) or a.dtype == dtypes.float0 for a in kinds)
        and all(a.memory_space is DEVICE for a in kinds)
    )


def _program(exported: Record, avals: Sequence[ShapedArray]) -> ClosedJaxpr | None:
    """What the module does with a member, in operations of ours."""
    args = [avals[i] for i in exported.module_kept_var_idx]
    outs = result_types(exported, avals)
    module = exported.mlir_module(serialized=False)
    if exported.uses_global_constants:
        module = specialised_for(exported, module, args, outs, None)
    check_calls(calls_of(module))
    try:
        found = trace_to_jaxpr(function_of(module), args, exported.fun_name)
    except NotRaised:
        return None
    if [(a.shape, a.dtype) for a in found.out_avals] != [(a.shape, a.dtype) for a in outs]:
        raise errors.InternalError(f"{exported.fun_name} read out of its module gives {found.out_avals}, not {outs}")
    return found


def _split_over(axis: MappedAxis) -> tuple[Over, tuple[Any, ...]]:
    """The mesh axes that the mapped dimension is split over, of which mesh."""
    if axis.along is not None:
        return axis.along.mesh, axes_of(axis.along.spec.partitions[0])
    mesh = get_abstract_mesh()
    return mesh, tuple(a for a in axis.mesh_axes if a in mesh.axis_names and a not in mesh.manual_axes)


def _inside(exported: Record, splits: Sequence[Any]) -> tuple[Any, ...]:
    """The shardings of result types in the region that this is traced in."""
    mesh = get_abstract_mesh()
    types = (ShapedArray(a.shape, a.dtype, sharding=s) for a, s in zip(exported.out_avals, splits))
    return tuple(a.inside(mesh).explicit for a in types) if mesh.manual_axes else tuple(splits)
