"""Operations on references: new_ref, get, swap, addupdate, freeze.

    r = new_ref[memory_space kind] x            a <- r[view]     get[tree] r leaves...
    a = freeze r                                a, r[view] <- r[view], b     swap[tree] r b leaves...
    free_ref r                                  r[view] += b     addupdate[tree] r b leaves...

`tree` and `leaves` are a view (`meshrt.primitives.state_views`). What an operation means is told by its discharge rule,
on the value in a cell. Forward mode pairs a reference with a cell that holds the tangent; there are no references to
tangents, so that linear programs are pure and are transposed like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors, tree_util
from meshrt.core.basic.parts import batch_front, in_front
from meshrt.core.basic.shapes import broadcast_in_dim, instantiate, move_dim, repeated, zeros
from meshrt.core.basic.varying import in_order, vary
from meshrt.core.jaxpr import Eqn
from meshrt.core.leaks import leaked
from meshrt.core.primitive import Primitive, also
from meshrt.core.references import ACCUM, ALLOC, READ, WRITE, AbstractRef, HighRef, inner_type
from meshrt.core.trace import Tracer
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.device_put import device_put
from meshrt.primitives.state_indices import Indexer
from meshrt.primitives.state_types import (
    addupdate_type,
    free_type,
    freeze_type,
    get_type,
    new_type,
    swap_type,
    written_type,
)
from meshrt.primitives.state_views import View, accumulate, read, view_of, write
from meshrt.runtime.array import copy_array
from meshrt.runtime.reference import Ref
from meshrt.transforms.batching import MappedAxis, batch_flat
from meshrt.transforms.discharge import Cell, apply_rule, set_access
from meshrt.transforms.jvp import jvp_flat
from meshrt.transforms.references import set_moved_ref

__all__: list[str] = []

_NO_VIEW = tree_util.tree_structure(())


# ----------------------------------------------------------------------------------------------------------------------
# Meaning


def _get_discharge(args: Sequence[Any], params: dict[str, Any]) -> Any:
    cell, *leaves = args
    return read(cell.value, view_of(params["tree"], leaves))


def uninitialized(aval: ShapedArray) -> Any:
    """What stands in memory that nobody has written: NaN, the least integer, False; 0 in semaphores."""
    if isinstance(aval.dtype, dtypes.ExtendedDType):
        return zeros(aval.physical())
    if dtypes.issubdtype(aval.dtype, np.inexact):
        fill = np.asarray(np.nan).astype(aval.dtype)[()]
    elif dtypes.issubdtype(aval.dtype, np.integer):
        fill = np.asarray(dtypes.iinfo(aval.dtype).min).astype(aval.dtype)[()]
    else:
        return zeros(aval)
    return broadcast_in_dim(fill, aval.shape, ()) if aval.shape else fill


def _empty(*, ty: ShapedArray, memory_space: Any) -> Any:
    """What a reference holds that nobody has written: zeros, in a kernel's memories what shows that."""
    return zeros(ty) if memory_space is None or ty.is_key else uninitialized(ty)


def _swap_discharge(args: Sequence[Any], params: dict[str, Any]) -> Any:
    cell, value, *leaves = args
    view = view_of(params["tree"], leaves)
    old = cell.value
    cell.value = _as_before(write(old, view, value), old)
    return read(old, view)


def _addupdate_discharge(args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    cell, value, *leaves = args
    cell.value = _as_before(accumulate(cell.value, view_of(params["tree"], leaves), value), cell.value)
    return []


def _as_before(value: Any, old: Any) -> Any:
    """`value` of the type of what a reference held before, which does not change: weak, or varying over Manual axes."""
    kind, wanted = aval_of(value), aval_of(old)
    if wanted.is_high:
        return value
    if not kind.vma.issuperset(wanted.vma):
        value = vary(value, in_order(wanted.vma.difference(kind.vma)))
    if kind.weak_type == wanted.weak_type:
        return value
    return convert_element_type(value, wanted.dtype, wanted.weak_type)


# ----------------------------------------------------------------------------------------------------------------------
# Forward mode: a reference has the tangent of what it holds in a cell, whose value is None while that is zero


def _tangent_cell(ref: Any, tangent: Any) -> Cell | None:
    """The cell beside a new reference; None if what it holds has no derivative."""
    aval = aval_of(ref)
    inner: ShapedArray = aval.inner_aval  # type: ignore[attr-defined]
    return Cell(tangent) if inner.is_differentiable and aval.kind is None else None  # type: ignore[attr-defined]


def _new_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    ref = new_ref_p.bind(*primals, **params)
    return ref, _tangent_cell(ref, tangents[0])


def _empty_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    ref = empty_ref_p.bind(**params)
    return ref, _tangent_cell(ref, None)


def _get_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, tree: Any) -> tuple[Any, Any]:
    out = get_p.bind(*primals, tree=tree)
    cell = tangents[0]
    if cell is None or cell.value is None:
        return out, None
    return out, read(cell.value, view_of(tree, primals[1:]))


def _refuse_tangent(operation: str, ref: Any) -> None:
    aval: Any = aval_of(ref)
    if aval.kind == "no_grad_no_remat":
        return
    raise errors.ArgumentValueError(
        f"performing {operation} with a differentiated value on a non-differentiated array reference of type {aval}. "
        "Move the array reference to be an argument of the differentiated function? Or make it inside of it; or write "
        "meshrt.lax.stop_gradient of the value, which is kept without its derivative"
    )


def _may_repeat(view: View) -> bool:
    """Whether a view may show an element twice."""
    return any(type(step) is Indexer and step.int_shape for step in view)


def _held(cell: Cell, ref: Any) -> Any:
    """The tangent in a cell as an array."""
    if cell.value is not None:
        return cell.value
    inner: ShapedArray = inner_type(ref)
    return zeros(inner.to_tangent_aval())


def _swap_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, tree: Any) -> tuple[Any, Any]:
    (ref, value, *leaves), (cell, tangent, *_) = primals, tangents
    view = view_of(tree, leaves)
    before = whole_read(ref) if cell is not None and _may_repeat(view) else None
    out = swap_p.bind(*primals, tree=tree)
    if cell is None:
        if tangent is not None:
            _refuse_tangent("a set/swap operation", ref)
        return out, None
    old = None if cell.value is None else read(cell.value, view)
    if tangent is None and (cell.value is None or not view):
        cell.value = None
    elif before is not None:  # the derivative has to know which value won
        _, (cell.value,) = jvp_flat(lambda x, v: [write(x, view, v)], [before, value], [cell.value, tangent])
    else:
        cell.value = write(_held(cell, ref), view, instantiate(tangent, value))
    return out, old


def _addupdate_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, tree: Any) -> tuple[Any, Any]:
    addupdate_p.bind(*primals, tree=tree)
    (ref, _, *leaves), (cell, tangent, *_) = primals, tangents
    if tangent is not None:
        if cell is None:
            _refuse_tangent("an addupdate operation", ref)
        elif cell.value is None and not leaves and tree == _NO_VIEW:
            cell.value = tangent
        else:
            cell.value = accumulate(_held(cell, ref), view_of(tree, leaves), tangent)
    return [], []


def _freeze_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    cell = tangents[0]
    return freeze_p.bind(*primals), None if cell is None else cell.value


def _free_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    return free_ref_p.bind(*primals), []


# ----------------------------------------------------------------------------------------------------------------------
# Batching: a new reference to a batch holds it with the mapped dimension in front; one from outside stays as it is, and
# is read and written along the dimension that it has


def _new_batch(axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    # Also where all members begin alike: what they write may differ.
    held = in_front(axis.extent, args[0], dims[0])
    return new_ref_p.bind(held, **params), batch_front(aval_of(held))


def _empty_batch(axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    return empty_ref_p.bind(**{**params, "ty": params["ty"].batched(axis.size, axis.along)}), 0


def _like_held(axis: MappedAxis, value: Any, dim: Any, place: Any) -> Any:
    """A batch of values as a reference holds it, whose mapped dimension is at `place`."""
    if not isinstance(place, int) or aval_of(value).is_high:
        return in_front(axis.extent, value, dim)
    return repeated(axis.extent, value, place) if dim is None else move_dim(value, dim, place)


def _on_values(primitive: Primitive, axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], params: Any) -> Any:
    """Maps what an operation means over the value that the reference holds."""
    ref, *operands = args
    cell = Cell(whole_read(ref))
    results: list[Any] = []

    def flat(held: Any, *mapped: Any) -> list[Any]:
        inner = Cell(held)
        out = apply_rule(primitive, [inner, *mapped], params)
        results.append(inner.written)
        return [inner.value, *(out if primitive.multiple_results else [out])]

    (held, *outs), (held_dim, *out_dims) = batch_flat(flat, axis, [cell.value, *operands], dims)
    if results[0]:
        whole_write(ref, _like_held(axis, held, held_dim, dims[0]))
    return (outs, out_dims) if primitive.multiple_results else (outs[0], out_dims[0])


def _get_batch(axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    if len(args) == 1 and not view_of(params["tree"], ()):
        return get_p.bind(*args, **params), dims[0]
    out: tuple[Any, Any] = _on_values(get_p, axis, args, dims, params)
    return out


def _refuse_unmapped(operation: str, ref: Any) -> None:
    raise errors.ArgumentValueError(
        f"performing {operation} with vmapped value on an unbatched array reference of type {aval_of(ref)}. Move the "
        "array reference to be an argument to the vmapped function? Or make it inside of it"
    )


def _swap_batch(axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    if dims[0] is None:
        _refuse_unmapped("a set/swap operation", args[0])
    if len(args) == 2 and not view_of(params["tree"], ()):
        value = _like_held(axis, args[1], dims[1], dims[0])
        return swap_p.bind(args[0], value, **params), dims[0]
    out: tuple[Any, Any] = _on_values(swap_p, axis, args, dims, params)
    return out


def _addupdate_batch(
    axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]
) -> tuple[Any, Any]:
    if dims[0] is None:
        _refuse_unmapped("an addupdate operation", args[0])
    if len(args) == 2 and not view_of(params["tree"], ()):
        addupdate_p.bind(args[0], _like_held(axis, args[1], dims[1], dims[0]), **params)
        return [], []
    out: tuple[Any, Any] = _on_values(addupdate_p, axis, args, dims, params)
    return out


# ----------------------------------------------------------------------------------------------------------------------
# As programs show them


def _place(printer: Any, eqn: Eqn, leaves: Sequence[Any]) -> str:
    view = view_of(eqn.params["tree"], leaves)
    steps = "".join(step.show(printer.index) for step in view) if view else "[...]"
    return f"{printer.atom(eqn.invars[0])}{steps}"


def _get_printed(printer: Any, eqn: Eqn) -> str:
    place = _place(printer, eqn, eqn.invars[1:])
    return f"{printer.typed(eqn.outvars[0])} <- {place}"


def _swap_printed(printer: Any, eqn: Eqn) -> str:
    place, value = _place(printer, eqn, eqn.invars[2:]), printer.atom(eqn.invars[1])
    if not printer.is_used(eqn.outvars[0]):
        return f"{place} <- {value}"
    return f"{printer.typed(eqn.outvars[0])}, {place} <- {place}, {value}"


def _addupdate_printed(printer: Any, eqn: Eqn) -> str:
    return f"{_place(printer, eqn, eqn.invars[2:])} += {printer.atom(eqn.invars[1])}"


# ----------------------------------------------------------------------------------------------------------------------
# Outside of traces: a reference is an object. (The others run as programs of one operation.)


def _new_now(init: Any, *, memory_space: Any, kind: Any) -> Ref:
    aval = aval_of(init)
    if isinstance(init, Tracer):
        raise leaked(init, new_ref_p)
    if memory_space is not None:
        raise errors.UnsupportedError(
            f"new_ref(memory_space={memory_space}): a memory space for a reference only works inside of a `jit`"
        )
    made = new_ref_p.infer((aval,), {"memory_space": memory_space, "kind": kind})[0]
    array = device_put(init)
    return Ref(made, copy_array(array) if array is init else array)  # type: ignore[arg-type]


def _empty_now(*, ty: Any, memory_space: Any) -> Ref:
    return _new_now(np.zeros(ty.shape, ty.dtype), memory_space=memory_space, kind=None)


def _free_now(ref: Ref) -> list[Any]:
    ref._held()
    ref._hold(None)
    return []


# ----------------------------------------------------------------------------------------------------------------------
# A reference to a value of a high type consists of references to the value's arrays


class _RefPrimitive(Primitive):
    """An operation on references: one on a value of a high type, or a reference to one, is one on each of its parts."""

    __slots__ = ()

    def is_high(self, *avals: Any, **params: Any) -> bool:
        return bool(avals) and bool(avals[0].is_high)


def _new_low(init: Any, *, memory_space: Any, kind: Any) -> HighRef:
    held: Any = aval_of(init)
    made: Any = new_ref_p.infer((held,), {"memory_space": memory_space, "kind": kind})[0]
    return HighRef(made, [new_ref_p.bind(x, memory_space=None, kind=kind) for x in held.lower_val(init)])


def _get_low(ref: HighRef, *, tree: Any) -> Any:
    inner: Any = inner_type(ref)
    return inner.raise_val(*map(whole_read, ref.parts))


def _swap_low(ref: HighRef, value: Any, *, tree: Any) -> Any:
    inner: Any = written_type("swap", aval_of(ref), aval_of(value), (), tree)
    return inner.raise_val(*map(whole_write, ref.parts, inner.lower_val(value)))


def _addupdate_low(ref: HighRef, value: Any, *, tree: Any) -> list[Any]:
    written_type("addupdate", aval_of(ref), aval_of(value), (), tree)
    whole_write(ref, accumulate(whole_read(ref), (), value))
    return []


def _freeze_low(ref: HighRef) -> Any:
    inner: Any = inner_type(ref)
    return inner.raise_val(*map(freeze_p.bind, ref.parts))


def _free_low(ref: HighRef) -> list[Any]:
    for part in ref.parts:
        free_ref_p.bind(part)
    return []


# ----------------------------------------------------------------------------------------------------------------------
# Records

_DISCHARGED = {"transpose": "linear programs have no references: what one holds is a value in them"}


def _not_lowered(ctx: Any, eqn: Eqn, *operands: Any) -> Any:
    raise errors.InternalError(
        f"the reference operation '{eqn.primitive}' at {eqn.source} was not discharged before its program was lowered"
    )


new_ref_p = _RefPrimitive(
    "new_ref", new_type, shown=also("kind", "memory_space"),
    to_lojax=_new_low, impl=_new_now, jvp=_new_jvp, batch=_new_batch, batch_axis=True,
    typed=True, on_cells=True, allocates=True, discharge=lambda args, params: Cell(args[0]),
    effects=lambda *avals, **params: frozenset([ALLOC]),
    lower=_not_lowered,
    absent=_DISCHARGED,
)  # fmt: skip
empty_ref_p = Primitive(
    "empty_ref", lambda *, ty, memory_space: AbstractRef(ty, memory_space), impl=_empty_now,
    jvp=_empty_jvp, batch=_empty_batch, batch_axis=True, typed=True, on_cells=True, allocates=True,
    discharge=lambda args, params: Cell(_empty(**params)),
    effects=lambda *avals, **params: frozenset([ALLOC]), lower=_not_lowered,
    absent=_DISCHARGED,
)  # fmt: skip
get_p = _RefPrimitive(
    "get", get_type, to_lojax=_get_low, jvp=_get_jvp, batch=_get_batch, batch_axis=True, typed=True, on_cells=True,
    discharge=_get_discharge,
    effects=lambda *avals, tree: frozenset([READ]), printed=_get_printed, lower=_not_lowered,
    absent=_DISCHARGED,
)  # fmt: skip
swap_p = _RefPrimitive(
    "swap", swap_type, to_lojax=_swap_low, jvp=_swap_jvp, batch=_swap_batch, batch_axis=True, typed=True,
    on_cells=True, discharge=_swap_discharge,
    effects=lambda *avals, tree: frozenset([WRITE]), printed=_swap_printed, lower=_not_lowered,
    absent=_DISCHARGED,
)  # fmt: skip
addupdate_p = _RefPrimitive(
    "addupdate", addupdate_type, to_lojax=_addupdate_low, jvp=_addupdate_jvp, batch=_addupdate_batch,
    batch_axis=True, typed=True, on_cells=True, multiple_results=True, discharge=_addupdate_discharge,
    effects=lambda *avals, tree: frozenset([ACCUM]),
    printed=_addupdate_printed, lower=_not_lowered,
    absent=_DISCHARGED,
)  # fmt: skip
freeze_p: Primitive = _RefPrimitive(
    "freeze", freeze_type, to_lojax=_freeze_low, jvp=_freeze_jvp,
    batch=lambda axis, args, dims, params: (freeze_p.bind(*args), dims[0]), batch_axis=True,
    typed=True, on_cells=True, discharge=lambda args, params: args[0].value,
    effects=lambda *avals: frozenset([READ]), lower=_not_lowered,
    absent=_DISCHARGED,
)  # fmt: skip
free_ref_p: Primitive = _RefPrimitive(
    "free_ref", free_type, to_lojax=_free_low, impl=_free_now, jvp=_free_jvp, multiple_results=True,
    batch=lambda axis, args, dims, params: (free_ref_p.bind(*args), []), batch_axis=True, typed=True, on_cells=True,
    discharge=lambda args, params: [], effects=lambda *avals: frozenset([WRITE]), lower=_not_lowered,
    absent=_DISCHARGED,
)  # fmt: skip


def whole_read(ref: Any) -> Any:
    """All that a reference holds."""
    return get_p.bind(ref, tree=_NO_VIEW)


def whole_write(ref: Any, value: Any) -> Any:
    """Replaces all that a reference holds."""
    return swap_p.bind(ref, value, tree=_NO_VIEW)


set_access(whole_read, whole_write)


def _moved(ref: Any, dim: int, place: int) -> tuple[Any, Callable[[], None]]:
    kind: Any = aval_of(ref)
    other = new_ref_p.bind(move_dim(whole_read(ref), dim, place), memory_space=None, kind=kind.kind)
    return other, lambda: whole_write(ref, move_dim(whole_read(other), place, dim))


set_moved_ref(_moved)
