"""The primitive `pallas_call` and its rules.

Derivatives are those of the loop that the kernel means (`loop`). A vmap adds a dimension to the grid, in front; where
the mapped operands are sizes or scalars that index maps read, it is a loop over calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.basic.shapes import bring_to_front, insert, move_dim
from meshrt.core.jaxpr import Eqn, Jaxpr
from meshrt.core.primitive import Primitive
from meshrt.core.references import (
    AbstractRef,
    AccumEffect,
    RefEffect,
    WriteEffect,
    effects_by_position,
    is_ref_type,
)
from meshrt.core.trace import eval_jaxpr, trace_to_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from meshrt.experimental.kernels.backends import backend_for
from meshrt.experimental.kernels.checks import check_kernel
from meshrt.experimental.kernels.devices import COMMUNICATION
from meshrt.experimental.kernels.loop import loop_program, lower_loop
from meshrt.experimental.kernels.mapping import INDEX, BlockMapping, GridMapping
from meshrt.experimental.kernels.memory import MemorySpace
from meshrt.experimental.kernels.specs import Blocked, squeezed
from meshrt.primitives.call import jit_p
from meshrt.primitives.control import scan
from meshrt.primitives.state import whole_read, whole_write
from meshrt.transforms.batching import MappedAxis
from meshrt.transforms.discharge import Cell
from meshrt.transforms.linear import LinearTrace

__all__ = ["pallas_call_p"]


# ----------------------------------------------------------------------------------------------------------------------
# Types and effects


def _num_refs(avals: Sequence[Any]) -> int:
    return sum(map(is_ref_type, avals))


def _infer(*avals: Any, out_avals: tuple[ShapedArray, ...], **params: Any) -> Sequence[ShapedArray]:
    return out_avals


def _effects(*avals: Any, jaxpr: Jaxpr, **params: Any) -> frozenset[Any]:
    count = _num_refs(avals)
    own = {e for e in jaxpr.effects if not isinstance(e, RefEffect) and e is not COMMUNICATION}
    return frozenset(own | {type(e)() for e in effects_by_position(jaxpr) if e.input_index < count})  # type: ignore[operator]


# ----------------------------------------------------------------------------------------------------------------------
# Lowering


def _lower(ctx: Any, eqn: Eqn, *operands: Any) -> Sequence[Any]:
    interpret = eqn.params["interpret"]
    if hasattr(interpret, "lower"):
        written: Sequence[Any] = interpret.lower(ctx, eqn, operands)
        return written
    if interpret or ctx.module.platform == "cpu":
        return lower_loop(ctx, eqn, operands)
    check_kernel(eqn.params)
    return backend_for(ctx.module.platform, eqn.params["kernel"])(ctx, eqn, operands)


# ----------------------------------------------------------------------------------------------------------------------
# Derivatives: of the loop


def _as_call(operands: Sequence[Any], params: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The loop that a call means as a call of a Jaxpr: what it captured, and the parameters of `jit`."""
    program = loop_program(params, [aval_of(x) for x in operands])
    return list(program.consts), {"jaxpr": program.jaxpr, "name": params["name"]}


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    consts, call = _as_call(primals, params)
    return jit_p.jvp([*consts, *primals], [*[None] * len(consts), *tangents], **call)  # type: ignore[misc]


def _linearize(linear: LinearTrace, primals: Sequence[Any], tangents: Sequence[Any], params: dict[str, Any]) -> Any:
    consts, call = _as_call(primals, params)
    return jit_p.linearize(linear, [*consts, *primals], [*[None] * len(consts), *tangents], call)  # type: ignore[misc]


# ----------------------------------------------------------------------------------------------------------------------
# Batching


def _batch(axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    mapping: GridMapping = params["grid_mapping"]
    count = _num_refs([aval_of(a) for a in args])
    if count:
        return _batch_captured(axis, args, dims, params, count)
    first = mapping.num_dynamic + mapping.num_scalars
    if any(d is not None for d in dims[:first]):
        return _batch_by_loop(axis, args, dims, params)
    args, dims = list(args), list(dims)
    for i, _ in params["input_output_aliases"]:
        at = mapping.num_dynamic + i
        args[at], dims[at] = bring_to_front(axis.extent, args[at], dims[at]), 0
    block_dims = [*dims[first:], *[0] * mapping.num_outputs]
    blocks = [_batched_block(b, d, axis.size, mapping) for b, d in zip(mapping.blocks, block_dims)]
    batched = mapping.replace(
        grid=(axis.size, *mapping.grid), blocks=tuple(blocks), vmapped_dims=(0, *[d + 1 for d in mapping.vmapped_dims]),
        grid_names=None if mapping.grid_names is None else (None, *mapping.grid_names),
    )  # fmt: skip
    cost = params["cost_estimate"]
    outs = pallas_call_p.bind(
        *args, **{
            **params, "grid_mapping": batched, "cost_estimate": None if cost is None else cost.times(axis.size),
            "out_avals": tuple([a.batched(axis.size, axis.along) for a in params["out_avals"]]),
        },
    )  # fmt: skip
    return outs, [0] * len(outs)


def _batch_captured(
    axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any], count: int
) -> tuple[Any, Any]:
    """Of a kernel that captured references: what they hold are arrays for it, and is written back behind it."""
    effects = [e for e in effects_by_position(params["jaxpr"]) if isinstance(e, WriteEffect | AccumEffect)]
    written = {i for i in range(count) if any(e.input_index == i for e in effects)}
    for i, (ref, d) in enumerate(zip(args[:count], dims)):
        if i in written and d is None:
            raise errors.ArgumentValueError(
                f"the kernel {params['kernel']} is mapped, and writes to an array reference of type {aval_of(ref)}, "
                "which all members of the batch share. Move the reference to be an argument of the mapped function, "
                "or make it inside of it"
            )
    held = [whole_read(ref) for ref in args[:count]]
    inner = [aval_of(x) if d is None else aval_of(x).without(d) for x, d in zip(held, dims)]
    widened = _without_captures(inner, params)
    first = params["grid_mapping"].num_dynamic + params["grid_mapping"].num_scalars
    order = lambda refs, rest: [*rest[:first], *refs, *rest[first:]]
    outs, out_dims = _batch(axis, order(held, args[count:]), order(dims[:count], dims[count:]), widened)
    for i in sorted(written):
        whole_write(args[i], move_dim(outs[i], out_dims[i], dims[i]))
    return outs[count:], out_dims[count:]


def _batched_block(block: BlockMapping, dim: int | None, size: int, mapping: GridMapping) -> BlockMapping:
    """The mapping of an array with a mapped dimension at `dim`, of which each step sees one member."""
    place = None if dim is None else sum(2 if _has_bound(b) else 1 for b in block.block_shape[:dim])

    def index_map(new: Any, *rest: Any) -> list[Any]:
        out = eval_jaxpr(block.index_map, (), rest)
        return list(out) if place is None else list(insert(out, place, new))

    traced = trace_to_jaxpr(index_map, [INDEX, *block.index_map.in_avals], block.index_map.name)
    if dim is None:
        return block.replace(index_map=traced.jaxpr)
    array = block.array_aval
    return block.replace(
        index_map=traced.jaxpr, block_shape=insert(block.block_shape, dim, squeezed),
        array_aval=array.update(shape=insert(array.shape, dim, size)),
    )  # fmt: skip


def _has_bound(dim: Any) -> bool:
    return type(dim).__name__ == "BoundedSlice"


def _batch_by_loop(
    axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]
) -> tuple[Any, Any]:
    """A call per member of the batch, one after the other."""
    moved = [a if d is None else bring_to_front(axis.extent, a, d) for a, d in zip(args, dims)]
    mapped = [a for a, d in zip(moved, dims) if d is not None]

    def one(carry: None, members: Sequence[Any]) -> tuple[None, list[Any]]:
        rest = iter(members)
        given = [a if d is None else next(rest) for a, d in zip(moved, dims)]
        return None, pallas_call_p.bind(*given, **params)

    _, outs = scan(one, None, mapped)
    return outs, [0] * len(outs)


# ----------------------------------------------------------------------------------------------------------------------
# References from outside: arrays that are inputs, and results that begin as these


def _discharge(args: Sequence[Any], params: dict[str, Any]) -> Any:
    mapping: GridMapping = params["grid_mapping"]
    count = sum(type(a) is Cell for a in args)
    cells, operands = args[:count], args[count:]
    first = mapping.num_dynamic + mapping.num_scalars
    outs = pallas_call_p.bind(
        *operands[:first], *[c.value for c in cells], *operands[first:],
        **_without_captures([aval_of(c.value) for c in cells], params),
    )  # fmt: skip
    for cell, value in zip(cells, outs):
        cell.value = value
    return outs[count:]


def _without_captures(held: Sequence[ShapedArray], params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the call in which the captured references, which hold arrays of types `held`, are inputs in
    front of all others, and results in front of all others."""
    mapping: GridMapping = params["grid_mapping"]
    count = len(held)
    blocks = tuple([_whole(a.bare(), mapping) for a in held])
    widened = mapping.replace(
        blocks=(*blocks, *mapping.in_blocks, *blocks, *mapping.out_blocks),
        num_inputs=mapping.num_inputs + count, num_outputs=mapping.num_outputs + count,
    )  # fmt: skip
    aliases = [(mapping.num_scalars + k, k) for k in range(count)]
    for i, o in params["input_output_aliases"]:
        aliases.append((i if i < mapping.num_scalars else i + count, o + count))
    return {
        **params, "grid_mapping": widened, "jaxpr": _on_outputs(params["jaxpr"], count, widened),
        "input_output_aliases": tuple(aliases), "out_avals": (*held, *params["out_avals"]),
    }  # fmt: skip


def _whole(aval: ShapedArray, mapping: GridMapping) -> BlockMapping:
    indices = [*[INDEX] * len(mapping.grid), *mapping.scalar_avals]
    traced = trace_to_jaxpr(lambda *_: [np.int32(0)] * aval.ndim, indices, "whole")  # type: ignore[arg-type]
    return BlockMapping(
        tuple(map(Blocked, aval.shape)), aval, AbstractRef(aval, MemorySpace.ANY), traced.jaxpr, "captured reference"
    )


def _on_outputs(jaxpr: Jaxpr, count: int, widened: GridMapping) -> Jaxpr:
    """The kernel that works on results in the places of the references that it captured."""
    lead = widened.num_leading
    scalars, ins, outs = widened.num_scalars, widened.num_inputs, widened.num_outputs

    def flat(*args: Any) -> list[Any]:
        leading, refs = args[:lead], args[lead:]
        given, results = refs[scalars : scalars + ins], refs[scalars + ins : scalars + ins + outs]
        rest = refs[scalars + ins + outs :]
        return eval_jaxpr(
            jaxpr, (), [*results[:count], *leading, *refs[:scalars], *given[count:], *results[count:], *rest]
        )

    return trace_to_jaxpr(flat, [*[INDEX] * lead, *widened.ref_avals], jaxpr.name, requires_low=False).jaxpr  # type: ignore[list-item]


def _facts(params: dict[str, Any]) -> Any:
    # Start-up time: only reports ask.
    from meshrt.experimental.kernels.facts import kernel_facts

    return kernel_facts(params)


pallas_call_p: Primitive = Primitive(
    "pallas_call", _infer, lower=_lower, jvp=_jvp, linearize=_linearize, batch=_batch, batch_axis=True,
    discharge=_discharge, effects=_effects, kernel_facts=_facts, multiple_results=True, typed=True, cache_types=False,
    absent={"transpose": "derivatives are those of the loop that it means"},
)  # fmt: skip
