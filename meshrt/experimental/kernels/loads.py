"""Loads and stores under a mask, and atomic updates.

    a = masked_load[tree]  r view... mask other         elements where the mask is False are those of `other`, if given
    a = masked_swap[tree]  r view... value mask         what was there; elements where the mask is False stay
    a = atomic_update[tree kind]  r view... operands...  what was there

Elements beyond the end of a reference may be named where the mask is False, and are not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors, tree_util
from meshrt import numpy as jnp
from meshrt.core.dimensions.arithmetic import broadcast_shapes
from meshrt.core.primitive import Primitive
from meshrt.core.references import READ, WRITE, inner_type, is_ref_type
from meshrt.core.tracebacks import boundary
from meshrt.core.types import ShapedArray, aval_of
from meshrt.experimental.kernels.semaphores import KERNEL_ONLY, only_in_kernels, ref_and_view
from meshrt.primitives.references import RefView
from meshrt.primitives.slice import pad
from meshrt.primitives.slice import slice as static_slice
from meshrt.primitives.state import uninitialized
from meshrt.primitives.state_indices import Indexer, Slice
from meshrt.primitives.state_views import View, accumulate, read, view_type, write

__all__ = [
    "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or", "atomic_xchg", "atomic_xor",
    "load", "store", "swap",
]  # fmt: skip


def _place(ref: Any, idx: Any = None) -> tuple[Any, View]:
    whole, view = ref_and_view(ref)
    if not is_ref_type(aval_of(whole)):
        raise errors.ArgumentValueError(f"Can only load from and store to a `Ref`: {ref}.")
    if idx is None:
        return whole, view
    return ref_and_view(RefView(whole, view).at[idx])


# ----------------------------------------------------------------------------------------------------------------------
# What users call


@boundary
def load(ref: Any, *, mask: Any = None, other: Any = None) -> Any:
    """What a reference, or a view of one, shows; where `mask` is False anything, or `other` if that is given."""
    whole, view = _place(ref)
    kind = view_type(view, inner_type(whole))
    if other is not None:
        other = jnp.broadcast_to(jnp.asarray(other, kind.dtype), kind.shape)
    leaves, tree = tree_util.tree_flatten((view, _mask(mask), other))
    return masked_load_p.bind(whole, *leaves, tree=tree)


@boundary
def swap(ref: Any, val: Any, *, mask: Any = None) -> Any:
    """Replaces what a reference shows, where `mask` is True, and returns what was there."""
    whole, view = _place(ref)
    leaves, tree = tree_util.tree_flatten((view, jnp.asarray(val), _mask(mask)))
    return masked_swap_p.bind(whole, *leaves, tree=tree)


@boundary
def store(ref: Any, val: Any, *, mask: Any = None) -> None:
    """Replaces what a reference shows, where `mask` is True."""
    swap(ref, val, mask=mask)


def _mask(mask: Any) -> Any:
    return None if mask is None else jnp.asarray(mask)


def _atomic(kind: str) -> Any:
    @boundary
    def update(x_ref_or_view: Any, idx: Any, val: Any, *, mask: Any = None) -> Any:
        ref, view = _place(x_ref_or_view, idx)
        value = jnp.asarray(val, inner_type(ref).dtype)
        shape = view_type(view, inner_type(ref)).shape
        leaves, tree = tree_util.tree_flatten((view, (jnp.broadcast_to(value, shape),), _mask(mask)))
        return atomic_update_p.bind(ref, *leaves, tree=tree, kind=kind)

    update.__name__ = update.__qualname__ = f"atomic_{kind}"
    update.__doc__ = (
        f"Replaces elements by {_MEANT[kind]}, as one step of which no other program sees a part; returns what was "
        "there."
    )
    return update


_MEANT = {
    "add": "their sums with `val`", "max": "the greater of them and `val`", "min": "the lesser of them and `val`",
    "and": "their common bits with `val`", "or": "their bits and those of `val`",
    "xor": "the bits that differ from `val`", "xchg": "`val`",
}  # fmt: skip

_COMBINE = {
    "add": lambda x, y: x + y, "max": jnp.maximum, "min": jnp.minimum, "and": jnp.bitwise_and, "or": jnp.bitwise_or,
    "xor": jnp.bitwise_xor, "xchg": lambda x, y: y,
}  # fmt: skip

atomic_add, atomic_max, atomic_min = _atomic("add"), _atomic("max"), _atomic("min")
atomic_and, atomic_or, atomic_xor, atomic_xchg = _atomic("and"), _atomic("or"), _atomic("xor"), _atomic("xchg")


@boundary
def atomic_cas(ref: Any, cmp: Any, val: Any) -> Any:
    """Replaces a scalar by `val` if it equals `cmp`, as one step that no other program sees a part of; returns what was
    there."""
    whole, view = _place(ref)
    inner = view_type(view, inner_type(whole))
    if inner.shape:
        raise errors.ArgumentValueError(f"ref must be scalar, got one of shape {inner.shape}")
    operands = tuple([jnp.asarray(v, inner.dtype) for v in (cmp, val)])
    for v in operands:
        if v.shape:
            raise errors.ArgumentValueError(f"atomic_cas: cmp and val must be scalars, got shape {v.shape}")
    leaves, tree = tree_util.tree_flatten((view, operands, None))
    return atomic_update_p.bind(whole, *leaves, tree=tree, kind="cas")


# ----------------------------------------------------------------------------------------------------------------------
# Types


def _shown(ref: Any, view: View) -> ShapedArray:
    inner: ShapedArray = view_type(view, ref.inner_aval)
    return inner.update(weak_type=False)


def _check_mask(what: str, mask: Any, shape: Sequence[int]) -> None:
    if mask is None:
        return
    try:
        fits = broadcast_shapes(tuple(shape), mask.shape) == tuple(shape)
    except (ValueError, TypeError):
        fits = False
    if not fits:
        raise errors.ArgumentValueError(f"Cannot broadcast mask shape {mask.shape} to {what} shape {tuple(shape)}")


def _load_infer(ref: Any, *leaves: Any, tree: Any) -> ShapedArray:
    view, mask, _ = tree_util.tree_unflatten(tree, leaves)
    kind = _shown(ref, view)
    _check_mask("load", mask, kind.shape)
    return kind


def _check_value(kind: ShapedArray, value: Any) -> None:
    if kind.shape != value.shape:
        raise errors.ArgumentValueError(
            f"Invalid shape for `swap`. Ref shape: {kind.shape}. Value shape: {value.shape}."
        )
    if kind.dtype != value.dtype:
        raise errors.ArgumentValueError(
            f"Invalid dtype for `swap`. Ref dtype: {kind.dtype}. Value dtype: {value.dtype}. Convert it with astype"
        )


def _swap_infer(ref: Any, *leaves: Any, tree: Any) -> ShapedArray:
    view, value, mask = tree_util.tree_unflatten(tree, leaves)
    kind = _shown(ref, view)
    _check_value(kind, value)
    _check_mask("store", mask, kind.shape)
    return kind


_NOT_ATOMIC = tuple(map(np.dtype, ("bool", "int8", "int16", "bfloat16")))


def _atomic_infer(ref: Any, *leaves: Any, tree: Any, kind: str) -> ShapedArray:
    view, operands, mask = tree_util.tree_unflatten(tree, leaves)
    shown = _shown(ref, view)
    if kind != "cas" and (shown.dtype in _NOT_ATOMIC or (shown.dtype == np.float16 and kind != "add")):
        raise errors.ArgumentValueError(f"`atomic_{kind}` does not support {shown.dtype}.")
    for x in operands:
        _check_value(shown, x)
    _check_mask("store", mask, shown.shape)
    return shown


# ----------------------------------------------------------------------------------------------------------------------
# Meaning


def _overhang(x: Any, view: View) -> list[tuple[int, int, int]] | None:
    """How much has to be added to `x` so that slices with starts that are computed reach no further than its end."""
    if not view or type(view[0]) is not Indexer or view[0].int_shape:
        return None
    sizes = [i.extent if type(i) is Slice and not i.is_static else 0 for i in view[0].indices]
    return [(0, n, 0) for n in sizes] if any(sizes) else None


def _padded(x: Any, view: View) -> tuple[Any, View]:
    """`x` with all that a view may reach, and the view of it."""
    edges = _overhang(x, view)
    if edges is None:
        return x, view
    kind = aval_of(x)
    whole = pad(x, uninitialized(ShapedArray((), kind.dtype)), edges)
    first: Any = view[0]
    return whole, (Indexer(first.indices, aval_of(whole).shape, first.int_shape), *view[1:])


def _load_discharge(args: Sequence[Any], params: dict[str, Any]) -> Any:
    cell, *leaves = args
    view, mask, other = tree_util.tree_unflatten(params["tree"], leaves)
    shown = read(*_padded(cell.value, view))
    return shown if mask is None or other is None else jnp.where(mask, shown, other)


def _replaced(cell: Any, view: View, change: Any, mask: Any) -> Any:
    """Writes `change(what is there)` where `mask` is True; returns what was there."""
    x = cell.value
    whole, within = _padded(x, view)
    before = read(whole, within)
    after = change(before)
    if mask is not None:
        after = jnp.where(mask, after, before)
    whole = write(whole, within, after)
    cell.value = static_slice(whole, [0] * x.ndim, x.shape) if whole.shape != x.shape else whole
    return before


def _swap_discharge(args: Sequence[Any], params: dict[str, Any]) -> Any:
    cell, *leaves = args
    view, value, mask = tree_util.tree_unflatten(params["tree"], leaves)
    return _replaced(cell, view, lambda before: value, mask)


def _atomic_discharge(args: Sequence[Any], params: dict[str, Any]) -> Any:
    cell, *leaves = args
    view, operands, mask = tree_util.tree_unflatten(params["tree"], leaves)
    if params["kind"] == "cas":
        expected, value = operands
        return _replaced(cell, view, lambda before: jnp.where(before == expected, value, before), mask)
    if any(type(step) is Indexer and step.int_shape for step in view) and params["kind"] == "add":
        before = read(cell.value, view)
        value = operands[0] if mask is None else jnp.where(mask, operands[0], jnp.zeros_like(operands[0]))
        cell.value = accumulate(cell.value, view, value)
        return before
    return _replaced(cell, view, lambda before: _COMBINE[params["kind"]](before, operands[0]), mask)


def _both(*avals: Any, **params: Any) -> frozenset[Any]:
    return frozenset([READ, WRITE])


masked_load_p = Primitive(
    "masked_load", _load_infer, typed=True, discharge=_load_discharge, lower=only_in_kernels, absent=KERNEL_ONLY,
    effects=lambda *avals, **params: frozenset([READ]),
)  # fmt: skip
masked_swap_p = Primitive(
    "masked_swap", _swap_infer, typed=True, discharge=_swap_discharge, lower=only_in_kernels, absent=KERNEL_ONLY,
    effects=_both,
)  # fmt: skip
atomic_update_p = Primitive(
    "atomic_update", _atomic_infer, typed=True, discharge=_atomic_discharge, lower=only_in_kernels, absent=KERNEL_ONLY,
    effects=_both,
)  # fmt: skip
