"""Loads and stores under a mask, and atomic updates.

    a = masked_load[tree caching]  r view... mask other  elements where the mask is False are those of `other`, if given
    a = masked_swap[tree caching]  r view... value mask  what was there; elements where the mask is False stay
    a = atomic_update[tree kind]  r view... operands...  what was there

Elements beyond the end of a reference may be named where the mask is False, and are not touched. `caching` is what a
GPU is told of its caches (`Caching`); results do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt import dtypes, errors, tree_util
from meshrt import numpy as jnp
from meshrt.core.dimensions.arithmetic import broadcast_shapes
from meshrt.core.primitive import Primitive
from meshrt.core.references import READ, WRITE, inner_type, is_ref_type
from meshrt.core.tracebacks import boundary
from meshrt.core.types import ShapedArray, aval_of
from meshrt.experimental.kernels.in_turn import Change, at_once, in_turn
from meshrt.experimental.kernels.semaphores import KERNEL_ONLY, only_in_kernels, ref_and_view
from meshrt.primitives.gather import scatter_add_p
from meshrt.primitives.references import RefView
from meshrt.primitives.scatter import scatter_and_p, scatter_max_p, scatter_min_p, scatter_or_p, scatter_xor_p
from meshrt.primitives.slice import pad
from meshrt.primitives.slice import slice as static_slice
from meshrt.primitives.state import uninitialized
from meshrt.primitives.state_indices import Indexer, Slice
from meshrt.primitives.state_steps import Step
from meshrt.primitives.state_views import View, by_number, need_one_width, on_numbers, read, view_type, write

__all__ = [
    "Caching", "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or", "atomic_xchg",
    "atomic_xor", "load", "store", "swap",
]  # fmt: skip


def _place(ref: Any, idx: Any = None) -> tuple[Any, View]:
    whole, view = ref_and_view(ref)
    if not is_ref_type(aval_of(whole)):
        raise errors.ArgumentValueError(f"Can only load from and store to a `Ref`: {ref}.")
    if idx is None:
        return whole, view
    return ref_and_view(RefView(whole, view).at[idx])


@dataclass(frozen=True)
class Caching:
    """What a GPU is told of its caches with a load or store: `modifier` ".ca" (all levels) or ".cg" (not the first),
    `eviction` "evict_first" or "evict_last", `volatile` that others write the memory meanwhile."""

    modifier: str | None = None
    eviction: str | None = None
    volatile: bool = False

    def __post_init__(self) -> None:
        for given, known, what in (
            (self.modifier, (".ca", ".cg"), "cache_modifier"),
            (self.eviction, ("evict_first", "evict_last"), "eviction_policy"),
        ):
            if given is not None and given not in known:
                raise errors.ArgumentValueError(f"unsupported {what}: {given!r}; it is one of {known}, or None")


# ----------------------------------------------------------------------------------------------------------------------
# What users call


@boundary
def load(
    ref: Any, *, mask: Any = None, other: Any = None, cache_modifier: str | None = None,
    eviction_policy: str | None = None, volatile: bool = False,
) -> Any:  # fmt: skip
    """What a reference, or a view of one, shows; where `mask` is False anything, or `other` if that is given.

    Args:
      ref: a reference or view. Where `mask` is False it may show elements beyond the end.
      mask: a bool array that broadcasts to what is shown.
      other: values of what is shown where `mask` is False.
      cache_modifier: ".ca" or ".cg", for the caches of a GPU; nothing elsewhere.
      eviction_policy: "evict_first" or "evict_last", likewise.
      volatile: whether others may write the memory while the kernel runs, likewise.

    Raises:
      ArgumentValueError: no reference, a mask that does not fit, elements beyond the end without a mask, or an unknown
        modifier or policy.
    """
    whole, view = _place(ref)
    kind = view_type(view, inner_type(whole), masked=mask is not None)
    if other is not None:
        other = jnp.broadcast_to(jnp.asarray(other, kind.dtype), kind.shape)
    leaves, tree = tree_util.tree_flatten((view, _mask(mask), other))
    return masked_load_p.bind(whole, *leaves, tree=tree, caching=Caching(cache_modifier, eviction_policy, volatile))


@boundary
def swap(ref: Any, val: Any, *, mask: Any = None, eviction_policy: str | None = None) -> Any:
    """Replaces what a reference shows, where `mask` is True, and returns what was there. Raises as `load`."""
    whole, view = _place(ref)
    leaves, tree = tree_util.tree_flatten((view, jnp.asarray(val), _mask(mask)))
    return masked_swap_p.bind(whole, *leaves, tree=tree, caching=Caching(eviction=eviction_policy))


@boundary
def store(ref: Any, val: Any, *, mask: Any = None, eviction_policy: str | None = None) -> None:
    """Replaces what a reference shows, where `mask` is True. Arguments and errors are those of `load`."""
    swap(ref, val, mask=mask, eviction_policy=eviction_policy)


def _mask(mask: Any) -> Any:
    return None if mask is None else jnp.asarray(mask)


def _operand(value: Any, dtype: Any) -> Any:
    """What is combined with elements of `dtype`: a number of Python's becomes one of them, if its kind fits; arrays
    stay what they are, of that dtype or refused."""
    value = value if isinstance(value, int | float | complex) else jnp.asarray(value)
    given = aval_of(value)
    fits = given.weak_type and dtypes.promote_dtypes((given.dtype, True), (dtype, False))[0] == dtype
    return jnp.asarray(value, dtype if fits else None)


def _atomic(kind: str) -> Any:
    @boundary
    def update(x_ref_or_view: Any, idx: Any, val: Any, *, mask: Any = None) -> Any:
        ref, view = _place(x_ref_or_view, idx)
        shown = view_type(view, inner_type(ref), masked=mask is not None)
        value = jnp.broadcast_to(_operand(val, shown.dtype), shown.shape)
        leaves, tree = tree_util.tree_flatten((view, (value,), _mask(mask)))
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

# Those whose order does not matter.
_SCATTERS: dict[str, Primitive] = {
    "add": scatter_add_p, "max": scatter_max_p, "min": scatter_min_p, "and": scatter_and_p, "or": scatter_or_p,
    "xor": scatter_xor_p,
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
    operands = tuple([_operand(v, inner.dtype) for v in (cmp, val)])
    for v in operands:
        if v.shape:
            raise errors.ArgumentValueError(f"atomic_cas: cmp and val must be scalars, got shape {v.shape}")
    leaves, tree = tree_util.tree_flatten((view, operands, None))
    return atomic_update_p.bind(whole, *leaves, tree=tree, kind="cas")


# ----------------------------------------------------------------------------------------------------------------------
# Types


def _shown(ref: Any, view: View, mask: Any) -> ShapedArray:
    inner: ShapedArray = view_type(view, ref.inner_aval, masked=mask is not None)
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


def _load_infer(ref: Any, *leaves: Any, tree: Any, caching: Caching) -> ShapedArray:
    view, mask, _ = tree_util.tree_unflatten(tree, leaves)
    kind = _shown(ref, view, mask)
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


def _swap_infer(ref: Any, *leaves: Any, tree: Any, caching: Caching) -> ShapedArray:
    view, value, mask = tree_util.tree_unflatten(tree, leaves)
    kind = _shown(ref, view, mask)
    _check_value(kind, value)
    _check_mask("store", mask, kind.shape)
    return kind


_NOT_ATOMIC = tuple(map(np.dtype, ("bool", "int8", "int16", "bfloat16")))


def _atomic_infer(ref: Any, *leaves: Any, tree: Any, kind: str) -> ShapedArray:
    view, operands, mask = tree_util.tree_unflatten(tree, leaves)
    shown = _shown(ref, view, mask)
    if kind != "cas" and (shown.dtype in _NOT_ATOMIC or (shown.dtype == np.float16 and kind != "add")):
        raise errors.ArgumentValueError(f"`atomic_{kind}` does not support {shown.dtype}.")
    for x in operands:
        _check_value(shown, x)
    _check_mask("store", mask, shown.shape)
    return shown


# ----------------------------------------------------------------------------------------------------------------------
# Meaning


def _padded(x: Any, step: Step) -> tuple[Any, Step]:
    """`x` with all that a step of a view may reach, also beyond its end, and the step as one of that."""
    if type(step) is not Indexer:
        return x, step
    slices = [(i, n) if type(i) is Slice else None for i, n in zip(step.indices, step.shape)]
    edges = [0 if s is None else s[0].beyond(s[1]) if s[0].is_static else s[0].extent for s in slices]
    if not any(edges):
        return x, step
    whole = pad(x, uninitialized(ShapedArray((), aval_of(x).dtype)), [(0, n, 0) for n in edges])
    return whole, Indexer(step.indices, aval_of(whole).shape, step.int_shape)


def _read(x: Any, view: View) -> Any:
    """What a view shows of `x`; elements beyond the end are anything."""
    for step in view:
        whole, within = _padded(x, step)
        x = within.read(whole)
    return x


def _places(step: Step, numbers: Any) -> Any:
    whole, within = _padded(numbers, step)
    return within.places(whole)


def _changed(x: Any, view: View, change: Callable[[Any, View], Any]) -> Any:
    """`x` with what a view shows changed by `change(part, last step)`; elements beyond the end are dropped."""
    if not view:
        return change(x, ())
    if by_number(view, aval_of(x).dtype):
        return on_numbers(x, view, lambda flat, at: change(flat, (at,)), _places)
    shape = aval_of(x).shape
    whole, first = _padded(x, view[0])
    rest = view[1:]
    whole = first.write(whole, _changed(first.read(whole), rest, change)) if rest else change(whole, (first,))
    return static_slice(whole, [0] * len(shape), shape) if aval_of(whole).shape != shape else whole


def _load_discharge(args: Sequence[Any], params: dict[str, Any]) -> Any:
    cell, *leaves = args
    view, mask, other = tree_util.tree_unflatten(params["tree"], leaves)
    shown = _read(cell.value, view)
    return shown if mask is None or other is None else jnp.where(mask, shown, other)


def _replaced(
    cell: Any, view: View, change: Change, operands: Sequence[Any], mask: Any, scatter: Primitive | None = None
) -> Any:
    """Writes `change(what is there, *operands)` where `mask` is True; returns what was there. An array of indices may
    name an element several times: one index after another is done. With `scatter`, which combines like `change`, that
    is only for what each of them finds, and left out as dead code where nobody asks for it."""
    need_one_width(view, aval_of(cell.value).dtype)
    found: list[Any] = []

    def update(part: Any, last: View) -> Any:
        step = last[0] if last else None
        if type(step) is Indexer and step.int_shape:
            after, before = in_turn(part, step, change, operands, mask)
            part = after if scatter is None else at_once(part, step, scatter, operands[0], mask)
        else:
            before = read(part, last)
            after = change(before, *operands)
            part = write(part, last, after if mask is None else jnp.where(mask, after, before))
        found.append(before)
        return part

    cell.value = _changed(cell.value, view, update)
    return found[0]


def _swap_discharge(args: Sequence[Any], params: dict[str, Any]) -> Any:
    cell, *leaves = args
    view, value, mask = tree_util.tree_unflatten(params["tree"], leaves)
    if mask is None:
        before = _read(cell.value, view)
        cell.value = _changed(cell.value, view, lambda part, last: write(part, last, value))
        return before
    return _replaced(cell, view, _COMBINE["xchg"], [value], mask)


def _atomic_discharge(args: Sequence[Any], params: dict[str, Any]) -> Any:
    cell, *leaves = args
    view, operands, mask = tree_util.tree_unflatten(params["tree"], leaves)
    if params["kind"] == "cas":
        return _replaced(cell, view, lambda old, cmp, val: jnp.where(old == cmp, val, old), operands, mask)
    kind = params["kind"]
    return _replaced(cell, view, _COMBINE[kind], operands, mask, _SCATTERS.get(kind))


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
