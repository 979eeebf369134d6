"""Operations on references: loads and stores of vectors in VMEM, of scalars in SMEM, and parts of references.

The last step of a view that is an index says what is loaded; the steps before it narrow the memory itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, memref, vector
from jaxlib.mosaic.python import tpu

from meshrt.core.jaxpr import Eqn, Var
from meshrt.core.primitive import Primitive
from meshrt.experimental.kernels import loads
from meshrt.experimental.kernels.mlir.conversions import bits_of
from meshrt.experimental.kernels.mlir.indices import operands_of
from meshrt.experimental.kernels.mlir.walk import Rule, Walk
from meshrt.experimental.kernels.mosaic.alignment import check_starts
from meshrt.experimental.kernels.mosaic.types import (
    STORED_BOOL,
    Place,
    element_type,
    is_counter,
    memory_type,
    reference_type,
)
from meshrt.primitives import state
from meshrt.primitives.elementwise import add_p
from meshrt.primitives.state_indices import Indexer, Slice
from meshrt.primitives.state_steps import Bitcast, Reshape, Step
from meshrt.primitives.state_views import View

__all__ = ["RULES", "load", "narrowed", "read_view", "store"]


# ----------------------------------------------------------------------------------------------------------------------
# Parts of memory


def _index(value: Any) -> ir.Value:
    """An index as `index`: a number or a 32-bit value."""
    if isinstance(value, ir.Value):
        return arith.index_cast(ir.IndexType.get(), value)
    return arith.constant(ir.IndexType.get(), int(value))


def _word(value: Any) -> ir.Value:
    """An index as a 32-bit number."""
    return value if isinstance(value, ir.Value) else arith.constant(ir.IntegerType.get_signless(32), int(value))


class _Window:
    """What an index takes of memory, per dimension of the memory: start, size, stride, and whether it is dropped."""

    def __init__(self, walk: Walk, place: Place, indexer: Indexer):
        if indexer.int_shape:
            walk.refuse("memory is indexed by slices and single numbers, not by arrays of indices; load and select")
        for d, (i, n) in enumerate(zip(indexer.indices, indexer.shape)):
            if type(i) is Slice and i.beyond(n):
                walk.refuse(
                    f"memory is read and written up to its end, also under a mask, and a slice of dimension {d} of "
                    f"{n} elements ends {i.beyond(n)} behind it. Fill the operand up (jnp.pad), or give it blocks"
                )
        given = iter(indexer.indices)
        self.starts: list[Any] = []
        self.sizes: list[int] = []
        self.strides: list[int] = []
        self.dropped: list[bool] = []
        for is_squeezed in place.squeezed:
            index: Any = 0 if is_squeezed else next(given)
            whole = type(index) is Slice
            self.starts.append(index.start if whole else index)
            self.sizes.append(index.size if whole else 1)
            self.strides.append(index.stride if whole else 1)
            self.dropped.append(not whole)

    @property
    def steps(self) -> bool:
        return any(s != 1 for s in self.strides)


def _whole(shape: Sequence[int]) -> Indexer:
    return Indexer(tuple([Slice(0, n) for n in shape]), tuple(shape), ())


def narrowed(walk: Walk, place: Place, view: Sequence[Step], shape: Sequence[int]) -> Place:
    """The part of memory that a view shows, as memory. `shape` is that of the reference."""
    for step in view:
        place = _NARROW.get(type(step), _no_step)(walk, place, step)
    return place


def _no_step(walk: Walk, place: Place, step: Any) -> Place:
    walk.refuse(f"memory has no view {type(step).__name__}; load the value and change that")


def _narrow_index(walk: Walk, place: Place, step: Indexer) -> Place:
    if step.is_trivial:
        return place
    window = _Window(walk, place, step)
    if window.steps:
        walk.refuse("a part of memory cannot leave elements out: slices with a stride are for loads and stores")
    kind = place.kind
    space = place.space
    part = memory_type(window.sizes, kind.element_type, space)
    out = tpu.memref_slice(part, place.memory, list(map(_word, window.starts)), [])
    if any(window.dropped):
        kept = [n for n, dropped in zip(window.sizes, window.dropped) if not dropped]
        out = tpu.memref_squeeze(memory_type(kept, kind.element_type, space), out)
    return Place.whole(out)


def _unsqueezed(walk: Walk, place: Place) -> Place:
    if any(place.squeezed):
        kept = [n for n, hidden in zip(place.kind.shape, place.squeezed) if not hidden]
        kind = memory_type(kept, place.kind.element_type, place.space)
        return Place.whole(tpu.memref_squeeze(kind, place.memory))
    return place


def _narrow_bitcast(walk: Walk, place: Place, step: Bitcast) -> Place:
    place = _unsqueezed(walk, place)
    shape, element = list(place.kind.shape), element_type(np.dtype(step.dtype))
    if element is None or np.dtype(step.dtype) == np.bool_:
        walk.refuse(f"memory cannot be seen as elements of {step.dtype}")
    old, new = _width(place.kind.element_type), _width(element)
    if old != new:
        shape[-2] = shape[-2] * old // new
    return Place.whole(tpu.memref_bitcast(memory_type(shape, element, place.space), place.memory))


def _width(element: ir.Type) -> int:
    bits: int = element.width  # type: ignore[attr-defined]
    return bits


def _narrow_reshape(walk: Walk, place: Place, step: Reshape) -> Place:
    place = _unsqueezed(walk, place)
    kind = memory_type(step.shape, place.kind.element_type, place.space)
    return Place.whole(tpu.memref_reshape(kind, place.memory))


_NARROW: dict[type, Any] = {Indexer: _narrow_index, Bitcast: _narrow_bitcast, Reshape: _narrow_reshape}


def read_view(walk: Walk, place: Place, aval: Any, view: View) -> tuple[Place, _Window]:
    """The memory that a view works on, and what its last index takes of that."""
    before, last = view, None
    if view and isinstance(view[-1], Indexer):
        before, last = view[:-1], view[-1]
    kind = aval.inner_aval
    for step in before:
        kind = step.infer(kind)
    place = narrowed(walk, place, before, aval.shape)
    return place, _Window(walk, place, last or _whole(kind.shape))


# ----------------------------------------------------------------------------------------------------------------------
# Loads and stores


def _refuse_far(walk: Walk, place: Place, what: str) -> None:
    walk.refuse(
        f"{what} {place.space.upper()}: only VMEM and SMEM are read and written directly. Copy the part that is needed "
        "to scratch memory (pltpu.make_async_copy), or give the operand a block"
    )


def _check_starts(walk: Walk, place: Place, window: Any) -> None:
    if not window.steps:
        check_starts(walk, window.starts, place.kind.shape, _width(place.kind.element_type))


def _stored(dtype: Any) -> Any:
    return STORED_BOOL if dtype == np.bool_ else dtype


def _from_memory(walk: Walk, value: ir.Value, shape: Sequence[int], dtype: Any) -> ir.Value:
    if dtype != np.bool_:
        return value
    return arith.cmpi(arith.CmpIPredicate.ne, value, walk.constant(0, shape, STORED_BOOL))


def _to_memory(walk: Walk, value: ir.Value, shape: Sequence[int], dtype: Any) -> ir.Value:
    return arith.extui(walk.like(shape, STORED_BOOL), value) if dtype == np.bool_ else value


def load(walk: Walk, place: Place, window: Any, shape: Sequence[int], dtype: Any) -> ir.Value:
    """What a window shows of memory, as a value of `shape`."""
    starts = list(map(_index, window.starts))
    if place.space == "smem":
        if shape:
            walk.refuse(f"SMEM gives single numbers, not arrays of shape {tuple(shape)}; index it with numbers")
        return _from_memory(walk, memref.load(place.memory, starts), shape, dtype)
    if place.space != "vmem":
        _refuse_far(walk, place, "a load from")
    if not window.sizes:
        walk.refuse("VMEM holds no arrays without dimensions; keep a single number in SMEM, or in an array of (1, 1)")
    kind = walk.like(window.sizes, _stored(dtype))
    _check_starts(walk, place, window)
    if window.steps:
        value = tpu.strided_load(kind, place.memory, starts, window.strides)
    else:
        value = vector.load(kind, place.memory, starts)
    if not shape:
        value = vector.extract(value, [], [0] * len(window.sizes))
    elif list(shape) != window.sizes:
        value = walk.reshaped(value, shape, _stored(dtype))
    return _from_memory(walk, value, shape, dtype)


def store(
    walk: Walk, place: Place, window: Any, value: ir.Value, shape: Sequence[int], dtype: Any, mask: Any = None
) -> None:
    """Writes `value`, of `shape`, where a window shows memory; with a mask only the elements that it has True at."""
    starts = list(map(_index, window.starts))
    value = _to_memory(walk, value, shape, dtype)
    if place.space == "smem":
        if shape or mask is not None:
            walk.refuse(f"SMEM takes single numbers, not arrays of shape {tuple(shape)} or masks")
        memref.store(value, place.memory, starts)
        return
    if place.space != "vmem":
        _refuse_far(walk, place, "a store to")
    if not window.sizes:
        walk.refuse("VMEM holds no arrays without dimensions; keep a single number in SMEM, or in an array of (1, 1)")
    if not shape:
        value = walk.spread(value, window.sizes, _stored(dtype))
    elif list(shape) != window.sizes:
        value = walk.reshaped(value, window.sizes, _stored(dtype))
        mask = None if mask is None else walk.reshaped(mask, window.sizes, np.dtype(bool))
    _check_starts(walk, place, window)
    if not window.steps:
        tpu.vector_store(value, place.memory, starts, mask=mask)
    elif mask is not None:
        walk.refuse("a store with a mask writes neighbouring elements; slices with a stride have no mask")
    else:
        tpu.strided_store(value, place.memory, starts, window.strides)


# ----------------------------------------------------------------------------------------------------------------------
# Rules


def _get(walk: Walk, eqn: Eqn, place: Place, *leaves: Any) -> ir.Value:
    out = eqn.outvars[0].aval
    place, window = read_view(walk, place, eqn.invars[0].aval, operands_of(walk, eqn, leaves))
    return load(walk, place, window, out.shape, out.dtype)


def _swap(walk: Walk, eqn: Eqn, place: Place, value: ir.Value, *leaves: Any) -> ir.Value:
    """What was there is loaded also where nobody asks for it: compilers drop loads that are not used."""
    out = eqn.outvars[0].aval
    place, window = read_view(walk, place, eqn.invars[0].aval, operands_of(walk, eqn, leaves))
    old = load(walk, place, window, out.shape, out.dtype)
    store(walk, place, window, value, out.shape, out.dtype)
    return old


def _addupdate(walk: Walk, eqn: Eqn, place: Place, value: ir.Value, *leaves: Any) -> list[Any]:
    aval = eqn.invars[1].aval
    place, window = read_view(walk, place, eqn.invars[0].aval, operands_of(walk, eqn, leaves))
    old = load(walk, place, window, aval.shape, aval.dtype)
    total = walk.rules[add_p](walk, eqn_of_values(eqn, 2), old, value)
    store(walk, place, window, total, aval.shape, aval.dtype)
    return []


def eqn_of_values(eqn: Eqn, count: int) -> Eqn:
    """The equation as one on `count` operands of the type of the value that it writes."""
    return Eqn(add_p, [eqn.invars[1]] * count, [Var(eqn.invars[1].aval)], {}, eqn.source)


def _masked_load(walk: Walk, eqn: Eqn, place: Place, *leaves: Any) -> ir.Value:
    """All is loaded, and `other` taken where the mask is False."""
    out = eqn.outvars[0].aval
    view, mask, other = operands_of(walk, eqn, leaves)
    place, window = read_view(walk, place, eqn.invars[0].aval, view)
    value = load(walk, place, window, out.shape, out.dtype)
    if mask is None or other is None:
        return value
    return arith.select(_wide_mask(walk, mask, out.shape), value, other)


def _wide_mask(walk: Walk, mask: ir.Value, shape: Sequence[int]) -> ir.Value:
    kind = walk.like(shape, np.dtype(bool))
    return mask if mask.type == kind else vector.broadcast(kind, mask)


def _masked_swap(walk: Walk, eqn: Eqn, place: Place, *leaves: Any) -> ir.Value:
    """Words are stored under the mask; of narrower elements what was there is put back."""
    out = eqn.outvars[0].aval
    view, value, mask = operands_of(walk, eqn, leaves)
    place, window = read_view(walk, place, eqn.invars[0].aval, view)
    old = load(walk, place, window, out.shape, out.dtype)
    mask = None if mask is None else _wide_mask(walk, mask, out.shape)
    if mask is not None and bits_of(out.dtype) != 32:
        value, mask = arith.select(mask, value, old), None
    store(walk, place, window, value, out.shape, out.dtype, mask)
    return old


def _allocate(walk: Walk, eqn: Eqn) -> Place:
    aval: Any = eqn.outvars[0].aval
    kind = reference_type(aval)
    if kind is None:
        walk.refuse(f"no memory of a core has elements of {aval.dtype}")
    return Place.whole(tpu.sem_alloc(kind) if is_counter(aval.dtype) else memref.alloca(kind, [], []))


RULES: dict[Primitive, Rule] = {
    state.get_p: _get,
    state.swap_p: _swap,
    state.addupdate_p: _addupdate,
    state.empty_ref_p: _allocate,
    loads.masked_load_p: _masked_load,
    loads.masked_swap_p: _masked_swap,
    state.free_ref_p: lambda walk, eqn, place: [],
}
