"""Operations on references: loads and stores through tensors of pointers.

A reference is a pointer to a whole array and where the program's block of it begins. What lies outside of the array,
in the blocks at its edges, is not written, and reads as NaN or the least integer, as on other platforms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith
from jaxlib.triton import dialect as tt

from meshrt import dtypes
from meshrt.core.jaxpr import Eqn, Var
from meshrt.core.primitive import Primitive
from meshrt.experimental.kernels import loads
from meshrt.experimental.kernels.mlir.conversions import converted
from meshrt.experimental.kernels.mlir.indices import operands_of
from meshrt.experimental.kernels.mlir.walk import Rule, Walk, kind_of
from meshrt.experimental.kernels.triton.filled import counted, filled, is_filled
from meshrt.primitives import state
from meshrt.primitives.elementwise import add_p
from meshrt.primitives.state_indices import Indexer, Slice
from meshrt.primitives.state_steps import Reshape, Step, Transpose

__all__ = ["RULES", "Block", "element_bytes", "load", "outside", "store"]

_I32, _I64 = np.dtype(np.int32), np.dtype(np.int64)
STORED_BOOL = np.dtype(np.int8)
# What indices are that need no look: numbers that are written (`indexer` has counted them from the front), counters.
_NEVER_NEGATIVE = ("arith.constant", "tt.get_program_id", "tt.make_range")


_Taken = tuple[Step, tuple[int, ...]]  # a step of a view, and the shape of what it is taken of


@dataclass(frozen=True)
class Block:
    """A program's part of an array of `shape` and `dtype`: per dimension of the array its first element and its size;
    in dimensions that are `hidden` it has one element and the kernel does not see them.

    `ragged` are dimensions in which a block may reach over the array's end.
    """

    pointer: ir.Value
    shape: tuple[int, ...]
    starts: tuple[Any, ...]  # ints or 32-bit values
    sizes: tuple[int, ...]
    hidden: tuple[bool, ...]
    ragged: tuple[bool, ...]
    dtype: Any


def element_bytes(dtype: Any) -> int:
    """How much memory an element takes."""
    return 1 if dtype == np.bool_ else np.dtype(dtype).itemsize


class _Target:
    """The pointers to what a view shows of a block, as a tensor of `shape`, and where they lie inside of the array."""

    def __init__(self, walk: Walk, block: Block, view: Sequence[_Taken], indexer: Indexer, shape: tuple[int, ...]):
        """`indexer` is the last step of a view, `view` those before it."""
        self.walk, self.block, self.shape = walk, block, shape
        self.wide = math.prod(block.shape) * element_bytes(block.dtype) >= 2**31
        indices = zip(indexer.indices, self._dims(indexer), indexer.shape)
        places = [self._positions(index, dims, size) for index, dims, size in indices]
        for step, of in reversed(view):
            places = self._before(step, of, places)
        given = iter(places)
        self.inside: ir.Value | None = None
        for d, n in enumerate(shape):
            if filled((n,)) != (n,):  # what the tensor has beyond the array that the view shows
                self._bound(counted(walk, shape, d), n)
        total: ir.Value | None = None
        for d, hidden in enumerate(block.hidden):
            at = self._spread(0) if hidden else next(given)
            if block.starts[d] is not None and not _is_zero(block.starts[d]):
                at = self._sum(at, self._spread(block.starts[d]))
            if block.ragged[d]:
                self._bound(at, block.shape[d])
            stride = math.prod(block.shape[d + 1 :])
            at = self._widened(at)
            at = at if stride == 1 else arith.muli(at, walk.constant(stride, shape, self.dtype))
            total = at if total is None else arith.addi(total, at)
        pointer = self._pointers()
        if total is None:
            self.pointers = pointer
        else:
            self.pointers = tt.addptr(pointer.type, pointer, total)

    @property
    def dtype(self) -> np.dtype:
        return _I64 if self.wide else _I32

    def _pointers(self) -> ir.Value:
        pointer = self.block.pointer
        if not self.shape:
            return pointer
        return tt.splat(ir.RankedTensorType.get(list(filled(self.shape)), pointer.type), pointer)

    def _dims(self, indexer: Indexer) -> Any:
        """Of each index the dimensions of the value that it is seen along: one of a slice, those of arrays, none."""
        at, count = indexer._position(), len(indexer.int_shape)
        free = [d for d in range(len(self.shape)) if not at <= d < at + count]
        slices = iter(free)
        for index in indexer.indices:
            if type(index) is Slice:
                yield (next(slices),)
            else:
                yield tuple(range(at, at + count)) if count else ()

    def _positions(self, index: Any, dims: tuple[int, ...], size: int) -> ir.Value:
        """The elements that an index takes of a dimension of this size, as a tensor of the whole shape."""
        walk = self.walk
        if type(index) is Slice:
            count = tt.make_range(walk.like((index.size,), _I32), 0, *filled((index.size,)))
            if index.stride != 1:
                count = arith.muli(count, walk.constant(index.stride, (index.size,), _I32))
            whole = self._along(count, (index.size,), dims)
            return whole if _is_zero(index.start) else self._sum(whole, self._spread(index.start))
        if dims:
            kind = tuple([self.shape[d] for d in dims])
            return self._along(self._from_the_end(index, kind, size), kind, dims)
        return self._spread(self._from_the_end(index, (), size))

    def _from_the_end(self, index: Any, shape: tuple[int, ...], size: int) -> Any:
        """Indices, one or an array of them, of which negative ones count from the end."""
        if not isinstance(index, ir.Value):
            return index
        if not isinstance(index.owner, ir.Block) and index.owner.name in _NEVER_NEGATIVE:
            return index
        constant = lambda n: self.walk.constant(n, shape, _I32)
        is_negative = arith.cmpi(arith.CmpIPredicate.slt, index, constant(0))
        return arith.select(is_negative, arith.addi(index, constant(size)), index)

    def _before(self, step: Step, of: tuple[int, ...], places: list[ir.Value]) -> list[ir.Value]:
        """Where elements lie in what a step of a view is taken of, by where they lie in what it gives."""
        if isinstance(step, Reshape):
            return self._unraveled(self._raveled(places, step.shape), of)
        if isinstance(step, Transpose):
            return [places[step.permutation.index(d)] for d in range(len(places))]
        if isinstance(step, Indexer) and not step.int_shape:
            left = iter(places)
            return [
                self._within(i, next(left)) if type(i) is Slice else self._spread(self._from_the_end(i, (), n))
                for i, n in zip(step.indices, of)
            ]
        self.walk.refuse(
            "a view of a part that an array of indices names, or of elements as another type: index the reference by "
            "the array last, and convert what is loaded"
        )

    def _raveled(self, places: Sequence[ir.Value], shape: Sequence[int]) -> ir.Value:
        """The numbers of elements, in order, of an array of `shape`."""
        total = self._spread(0)
        for d, place in enumerate(places):
            total = self._sum(total, arith.muli(place, self._spread(math.prod(shape[d + 1 :]))))
        return total

    def _unraveled(self, number: ir.Value, shape: Sequence[int]) -> list[ir.Value]:
        whole = [arith.divui(number, self._spread(math.prod(shape[d + 1 :]))) for d in range(len(shape))]
        return [place if d == 0 else arith.remui(place, self._spread(shape[d])) for d, place in enumerate(whole)]

    def _within(self, index: Slice, place: ir.Value) -> ir.Value:
        if index.stride != 1:
            place = arith.muli(place, self.walk.constant(index.stride, self.shape, _I32))
        return place if _is_zero(index.start) else self._sum(place, self._spread(index.start))

    def _along(self, value: ir.Value, sizes: tuple[int, ...], dims: Sequence[int]) -> ir.Value:
        middle = [1] * len(self.shape)
        for d, n in zip(dims, sizes):
            middle[d] = n
        value = self.walk.reshaped(value, middle, _I32)
        kind = self.walk.like(self.shape, _I32)
        return value if value.type == kind else tt.broadcast(kind, value)

    def _spread(self, value: Any) -> ir.Value:
        value = value if isinstance(value, ir.Value) else self.walk.i32(int(value))
        return self.walk.spread(value, self.shape, _I32) if self.shape else value

    def _sum(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return arith.addi(x, y)

    def _widened(self, at: ir.Value) -> ir.Value:
        return converted(self.walk, at, self.shape, _I32, _I64) if self.wide else at

    def _bound(self, at: ir.Value, size: int) -> None:
        here = arith.cmpi(arith.CmpIPredicate.slt, at, self.walk.constant(size, self.shape, _I32))
        self.inside = here if self.inside is None else arith.andi(self.inside, here)


def _is_zero(value: Any) -> bool:
    return isinstance(value, int) and value == 0


def _target(walk: Walk, block: Block, aval: Any, view: Sequence[Any], shape: tuple[int, ...]) -> _Target:
    kind, taken = aval.inner_aval, []
    for step in view:
        taken.append((step, kind.shape))
        kind = step.infer(kind)
    if view and isinstance(view[-1], Indexer):
        return _Target(walk, block, taken[:-1], view[-1], shape)
    whole = Indexer(tuple([Slice(0, n) for n in shape]), shape, ())
    return _Target(walk, block, taken, whole, shape)


def outside(dtype: Any) -> Any:
    """What stands where nobody has written: NaN, the least integer, False."""
    if dtypes.issubdtype(dtype, np.floating):
        return np.nan
    return dtypes.iinfo(dtype).min if dtypes.issubdtype(dtype, np.integer) else 0


def load(
    walk: Walk, block: Block, aval: Any, view: Sequence[Any], shape: tuple[int, ...], mask: Any = None,
    other: Any = None, **how: Any,
) -> ir.Value:  # fmt: skip
    """What a view shows of a block; where `mask` is False, `other`."""
    target = _target(walk, block, aval, view, shape)
    kind = STORED_BOOL if block.dtype == np.bool_ else block.dtype
    inside = target.inside if mask is None else mask if target.inside is None else arith.andi(mask, target.inside)
    if inside is not None and other is None:
        other = walk.constant(outside(block.dtype), shape, kind)
    elif other is not None and block.dtype == np.bool_:
        other = converted(walk, other, shape, block.dtype, kind)
    value = tt.load(target.pointers, mask=inside, other=other, **how)
    return converted(walk, value, shape, kind, block.dtype)


def store(
    walk: Walk, block: Block, aval: Any, view: Sequence[Any], value: ir.Value, shape: tuple[int, ...],
    mask: Any = None, **how: Any,
) -> None:  # fmt: skip
    """Writes `value` where a view shows a block and `mask` is True."""
    target = _target(walk, block, aval, view, shape)
    if block.dtype == np.bool_:
        value = converted(walk, value, shape, block.dtype, STORED_BOOL)
    inside = target.inside if mask is None else mask if target.inside is None else arith.andi(mask, target.inside)
    tt.store(target.pointers, value, mask=inside, **how)


# ----------------------------------------------------------------------------------------------------------------------
# Rules


def _get(walk: Walk, eqn: Eqn, block: Block, *leaves: Any) -> ir.Value:
    return load(walk, block, eqn.invars[0].aval, operands_of(walk, eqn, leaves), eqn.outvars[0].aval.shape)


def _swap(walk: Walk, eqn: Eqn, block: Block, value: ir.Value, *leaves: Any) -> ir.Value | None:
    """What was there is read only where somebody asks for it: a load is not dropped when a store follows."""
    view, aval, shape = operands_of(walk, eqn, leaves), eqn.invars[0].aval, eqn.outvars[0].aval.shape
    old = load(walk, block, aval, view, shape) if walk.is_used(eqn.outvars[0]) else None
    store(walk, block, aval, view, value, shape)
    return old


def _addupdate(walk: Walk, eqn: Eqn, block: Block, value: ir.Value, *leaves: Any) -> list[Any]:
    view, (aval, kind) = operands_of(walk, eqn, leaves), (eqn.invars[0].aval, eqn.invars[1].aval)
    old = load(walk, block, aval, view, kind.shape)
    sum_of = Eqn(add_p, [eqn.invars[1]] * 2, [Var(kind)], {}, eqn.source)
    store(walk, block, aval, view, walk.rules[add_p](walk, sum_of, old, value), kind.shape)
    return []


def _masked_load(walk: Walk, eqn: Eqn, block: Block, *leaves: Any) -> ir.Value:
    out = eqn.outvars[0].aval
    view, mask, other = operands_of(walk, eqn, leaves)
    mask = _wide_mask(walk, mask, out.shape)
    return load(walk, block, eqn.invars[0].aval, view, out.shape, mask, other, **_caching(eqn))


def _caching(eqn: Eqn) -> dict[str, Any]:
    """What Triton is told of caches with a load or store; nothing where the user says nothing."""
    told: loads.Caching = eqn.params["caching"]
    modifiers = {".ca": tt.CacheModifier.CA, ".cg": tt.CacheModifier.CG}
    policies = {"evict_first": tt.EvictionPolicy.EVICT_FIRST, "evict_last": tt.EvictionPolicy.EVICT_LAST}
    how: dict[str, Any] = {} if told.modifier is None else {"cache": modifiers[told.modifier]}
    if told.eviction is not None:
        how["evict"] = policies[told.eviction]
    return how | ({"is_volatile": True} if told.volatile else {})


def _wide_mask(walk: Walk, mask: ir.Value | None, shape: tuple[int, ...]) -> ir.Value | None:
    kind = walk.like(shape, np.dtype(bool))
    if mask is None or mask.type == kind:
        return mask
    if not isinstance(mask.type, ir.RankedTensorType):
        return tt.splat(kind, mask)
    old = tuple(ir.RankedTensorType(mask.type).shape)
    return tt.broadcast(kind, walk.reshaped(mask, (1,) * (len(shape) - len(old)) + old, np.dtype(bool)))


def _masked_swap(walk: Walk, eqn: Eqn, block: Block, *leaves: Any) -> ir.Value | None:
    aval, out = eqn.invars[0].aval, eqn.outvars[0].aval
    view, value, mask = operands_of(walk, eqn, leaves)
    mask = _wide_mask(walk, mask, out.shape)
    old = load(walk, block, aval, view, out.shape, mask) if walk.is_used(eqn.outvars[0]) else None
    store(walk, block, aval, view, value, out.shape, mask, **_caching(eqn))
    return old


def _atomic(walk: Walk, eqn: Eqn, block: Block, *leaves: Any) -> ir.Value:
    """One step that other programs see whole."""
    view, operands, mask = operands_of(walk, eqn, leaves)
    out, kind = eqn.outvars[0].aval, eqn.params["kind"]
    target = _target(walk, block, eqn.invars[0].aval, view, out.shape)
    how = (tt.MemSemantic.ACQUIRE_RELEASE, tt.MemSyncScope.GPU)
    if kind == "cas":
        if is_filled(out.shape) or target.inside is not None:
            walk.refuse("a compare-and-swap has no mask: its elements are a power of two, in a block within the array")
        return tt.atomic_cas(walk.type_of(out), target.pointers, *operands, *how)
    sort = kind_of(out.dtype)
    name = {"f": {"add": "FADD", "xchg": "XCHG"}, "u": {"max": "UMAX", "min": "UMIN"}}.get(sort, {}).get(kind)
    if name is None and sort == "f":
        walk.refuse(f"GPUs have no atomic {kind} of floats; use atomic_cas in a loop")
    name = name or kind.upper()
    mask = _wide_mask(walk, mask, out.shape)
    if target.inside is not None:
        mask = target.inside if mask is None else arith.andi(mask, target.inside)
    return tt.atomic_rmw(walk.type_of(out), getattr(tt.RMWOp, name), target.pointers, operands[0], *how, mask=mask)


def _allocate(walk: Walk, eqn: Eqn) -> Any:
    walk.refuse("a GPU's programs have no memory of their own to index; carry values through loops instead")


RULES: dict[Primitive, Rule] = {
    state.get_p: _get,
    state.swap_p: _swap,
    state.addupdate_p: _addupdate,
    state.empty_ref_p: _allocate,
    loads.masked_load_p: _masked_load,
    loads.masked_swap_p: _masked_swap,
    loads.atomic_update_p: _atomic,
}
