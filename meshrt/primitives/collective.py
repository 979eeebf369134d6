"""Collectives that combine: psum, pmean, pmax, pmin.

    psum[axes axis_index_groups] x -> x       pmax, pmin likewise

An axis is a mapped dimension (`vmap(axis_name=...)`) or a Manual axis (`shard_map`); `meshrt.core.axes` knows which. A
collective over both is split into one over each. Over mapped dimensions, and over Manual axes of regions whose types
are not checked (`check_vma=False`), psum is its own transpose: nothing says whether a result is used by all as one
value or by each as its own, and it is taken to be the latter. In regions whose types are checked they do say, and psum
(`psum_invariant`) and pvary are each other's transpose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.kinds import has_kind
from meshrt.core.basic.pointwise import binary_operands
from meshrt.core.basic.shapes import canonical_axis, linear_jvp, reduce_sum_p
from meshrt.core.basic.sums import unreduced_psum_p
from meshrt.core.basic.varying import psum_invariant
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive, also
from meshrt.core.trace import Tracer
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.lowering.groups import IndexGroups
from meshrt.primitives import conversion
from meshrt.primitives import elementwise as ew
from meshrt.primitives.collective_axes import axis_index
from meshrt.primitives.collective_names import (
    Call,
    Names,
    over_leaves,
    refuse_groups,
    spread_out,
    taken,
    without,
)
from meshrt.primitives.concatenate import concatenate
from meshrt.primitives.dynamic_slice import dynamic_index_in_dim
from meshrt.primitives.reduce import reduce_max_p, reduce_min_p
from meshrt.primitives.reshape import broadcast_in_dim
from meshrt.primitives.selection import select_n
from meshrt.transforms.batching import MappedAxis

__all__ = ["pargmax", "pargmin", "pmax", "pmean", "pmin", "psum"]


# ---------------------------------------------------------------------------------------------------------------------
# The primitives psum, pmax, pmin


def _infer(name: str, kinds: str) -> Callable[..., ShapedArray]:
    def infer(x: ShapedArray, *, axes: Names, axis_index_groups: IndexGroups | None) -> ShapedArray:
        if not has_kind(x.dtype, kinds):
            raise errors.ArgumentTypeError(f"{name} does not accept dtype {x.dtype}; convert with astype")
        return x

    return infer


def _lower(combine: str) -> Callable[..., Any]:
    def lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
        p = eqn.params
        op = "stablehlo.or" if combine == "stablehlo.add" and eqn.outvars[0].aval.dtype == np.bool_ else combine
        return ctx.all_reduce(op, x, eqn.outvars[0].aval, p["axes"], p["axis_index_groups"])

    return lower


def _batch(
    get: Callable[[], Primitive], reduce: Primitive, same: Callable[[Any, int], Any]
) -> Callable[..., tuple[Any, Any]]:
    """Over the mapped dimension that is named, a reduction of it. `same(x, n)` is that of n equal values."""

    def batch(
        axis: MappedAxis, args: Sequence[Any], dims: Sequence[int | None], params: dict[str, Any]
    ) -> tuple[Any, int | None]:
        (x,), (d,), axes, groups = args, dims, params["axes"], params["axis_index_groups"]
        if axis.name not in axes or axis.name is None:
            return get().bind(x, **params), d
        refuse_groups(get().name, groups, axes)
        if groups is not None:
            return _reduced_groups(reduce, *spread_out(x, d, axis.size), groups)
        out = same(x, axis.size) if d is None else reduce.bind(x, axes=(d,))
        rest = without(axes, axis.name)
        return (get().bind(out, axes=rest, axis_index_groups=None) if rest else out), None

    return batch


def _reduced_groups(reduce: Primitive, x: Any, d: int, groups: IndexGroups) -> tuple[Any, int]:
    """Every row of `x` along `d` is the reduction of the rows of its group."""
    shape = aval_of(x).shape
    parts = []
    for group in groups:
        one = reduce.bind(taken(x, group, d), axes=(d,))
        kept = [i for i in range(len(shape)) if i != d]
        parts.append(broadcast_in_dim(one, (*shape[:d], len(group), *shape[d + 1 :]), kept))
    order = [i for group in groups for i in group]
    return taken(concatenate(parts, d), np.argsort(order).tolist(), d), d


def times(x: Any, n: int) -> Any:
    return ew.mul(x, np.asarray(n).astype(aval_of(x).dtype)[()])


def _names(params: dict[str, Any]) -> Names:
    axes: Names = params["axes"]
    return axes


def _chooser_jvp(get: Callable[[], Primitive]) -> Callable[..., Any]:
    """The tangents of those that have the result, shared evenly among ties: as that of the maximum of a dimension."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        (x,), (t,) = primals, tangents
        out = get().bind(x, **params)
        if t is None:
            return out, None
        aval = aval_of(x)
        chosen = ew.convert_element_type(ew.eq_p.bind(x, out), aval.dtype)
        total = lambda y: psum_over(y, aval, params["axes"], params["axis_index_groups"])
        return out, ew.div_p.bind(total(ew.mul_p.bind(t, chosen)), total(chosen))

    return jvp


def psum_over(y: Any, operand: ShapedArray, axes: Names, groups: IndexGroups | None = None) -> Any:
    """The sum in the manner of a collective that took an operand of this type."""
    if any(n in operand.vma for n in axes):
        mapped = tuple(n for n in axes if n not in operand.vma)
        y = psum_p.bind(y, axes=mapped, axis_index_groups=None) if mapped else y
        return psum_invariant(y, tuple(n for n in axes if n in operand.vma))
    return psum_p.bind(y, axes=axes, axis_index_groups=groups)


def _extremum(name: str, op: str, reduce: Primitive) -> Primitive:
    def infer(x: ShapedArray, *, axes: Names, axis_index_groups: IndexGroups | None) -> ShapedArray:
        if not has_kind(x.dtype, "biuf"):
            raise errors.ArgumentTypeError(f"{name} does not accept dtype {x.dtype}; convert with astype")
        return x.update(vma=x.vma.difference(axes))

    primitive = Primitive(
        name, infer, lower=_lower(op), jvp=_chooser_jvp(lambda: primitive), absent=NOT_LINEAR,
        batch=_batch(lambda: primitive, reduce, lambda x, n: x), batch_axis=True, typed=True, finite=True, names=_names,
        alike=True,
    )  # fmt: skip
    return primitive


psum_p: Primitive = Primitive(
    "psum",
    _infer("psum", "biufc"),
    shown=also("axis_index_groups"),
    lower=_lower("stablehlo.add"),
    jvp=linear_jvp(lambda: psum_p),
    transpose=lambda ct, x, **params: [psum_p.bind(ct, **params)],
    batch=_batch(lambda: psum_p, reduce_sum_p, times),
    batch_axis=True,
    typed=True,
    finite=True,
    names=_names,
    alike=True,
)
pmax_p = _extremum("pmax", "stablehlo.maximum", reduce_max_p)
pmin_p = _extremum("pmin", "stablehlo.minimum", reduce_min_p)


# ---------------------------------------------------------------------------------------------------------------------
# psum, pmean, pmax, pmin


def psum(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The sum over the axis `axis_name`, or axes, of each array of the pytree `x`; every member gets it.

    Booleans are counted, as int32. What is no traced value is the same for all: its sum is a multiple of it, without
    communication. An int in `axis_name` is a dimension of the arrays.

    Args:
      axis_index_groups: sums within groups of indices along the axes instead, `[[0, 1], [2, 3]]`; each index in one
        group. Not in a `shard_map` that checks what values vary over (`check_vma=True`).

    Raises:
      UnboundAxisError: nothing around binds the name.

    >>> meshrt.vmap(lambda x: x / lax.psum(x, "i"), axis_name="i")(jnp.arange(4.0))   # doctest: +SKIP
    Array([0., 0.16666667, 0.33333334, 0.5], dtype=float32)
    """
    names, dims = _split(axis_name, axis_index_groups)
    call = Call("psum", names, axis_index_groups)
    return over_leaves(x, lambda leaf: _psum_leaf(call, _over_dims(leaf, dims, reduce_sum_p)))


def _split(axis_name: Any, groups: Any) -> tuple[tuple[Any, ...], list[int]]:
    """The names in `axis_name`, and the ints, which are dimensions."""
    given = tuple(axis_name) if isinstance(axis_name, tuple | list) else (axis_name,)
    dims = [a for a in given if isinstance(a, int)]
    if dims and groups is not None:
        raise errors.ArgumentValueError("axis_index_groups only supported for sums over just named axes")
    return tuple(a for a in given if not isinstance(a, int)), dims


def _over_dims(x: Any, dims: Sequence[int], reduce: Primitive) -> Any:
    if not dims:
        return x
    ndim = aval_of(x).ndim
    return reduce.bind(x, axes=tuple(sorted({canonical_axis(d, ndim) for d in dims})))


def _psum_leaf(call: Call, x: Any) -> Any:
    if not call.names:
        return x
    aval = aval_of(x)
    if aval.dtype == np.bool_:
        x = x.astype(np.int32) if isinstance(x, np.ndarray | np.generic) else ew.convert_element_type(x, np.int32)
    even = call.groups is None or len({len(g) for g in call.groups}) == 1
    if not isinstance(x, Tracer) and even:
        return x * call.size if isinstance(x, int | float | complex) else times(x, call.size)
    if call.is_partial(x):
        return unreduced_psum_p.bind(x, axes=call.names, mesh=call.mesh)
    if call.groups is not None:
        if call.is_checked:
            raise _grouped(call)
        return psum_p.bind(x, axes=call.names, axis_index_groups=call.groups)
    if call.unchecked:
        x = psum_p.bind(x, axes=call.unchecked, axis_index_groups=None)
    return psum_invariant(call.vary(x), call.checked)


def _grouped(call: Call) -> errors.UnsupportedError:
    return errors.UnsupportedError(
        f"{call.caller} with axis_index_groups over {call.names} in a shard_map that checks what values vary over: its "
        "result would be equal within each group only, which no type can say; use check_vma=False"
    )


def pmean(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The mean over the axis `axis_name`, or axes, of each array of `x`: `psum` divided by the number of members.

    Integers give floats. Raises as `psum`.

    Args:
      x: an array.
      axis_name: the name of a mapped axis, or a tuple of names.
      axis_index_groups: groups of indices along the axis that each communicate among themselves.

    >>> meshrt.vmap(lambda x: lax.pmean(x, "i"), axis_name="i")(jnp.array([1.0, 5.0]))
    Array([3., 3.], dtype=float32)
    """
    call = Call("pmean", axis_name, axis_index_groups)
    sums = psum(x, axis_name, axis_index_groups=axis_index_groups)
    if call.groups is None or len({len(g) for g in call.groups}) == 1:
        return over_leaves(sums, lambda s: _quotient(s, call.size))
    counts = np.empty(call.full_size, np.int32)
    for group in call.groups:
        counts[list(group)] = len(group)
    mine = dynamic_index_in_dim(counts, axis_index(call.names), 0, keepdims=False)
    return over_leaves(sums, lambda s: _quotient(s, mine))


def _quotient(x: Any, n: Any) -> Any:
    if isinstance(x, int | float | complex):
        return x / n
    aval = aval_of(x)
    dtype = dtypes.to_inexact_dtype(aval.dtype)
    x = conversion.convert_element_type(x, dtype, aval.weak_type)
    return ew.div(x, n if isinstance(n, int) else ew.convert_element_type(n, dtype))


def pmax(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The maximum over the axis `axis_name`, or axes, of each array of the pytree `x`; every member gets it.

    Its derivative goes to the members that have the maximum, in equal parts, as that of the maximum of a dimension.
    Arguments and errors are those of `psum`.

    Args:
      x: an array.
      axis_name: the name of a mapped axis, or a tuple of names.
      axis_index_groups: groups of indices along the axis that each communicate among themselves.

    >>> meshrt.vmap(lambda x: lax.pmax(x, "i"), axis_name="i")(jnp.array([1, 5, 3]))
    Array([5, 5, 5], dtype=int32)
    """
    return _extremum_of(x, pmax_p, reduce_max_p, axis_name, axis_index_groups)


def pmin(x: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """The minimum over the axis `axis_name`, or axes: see `pmax`.

    Args:
      x: an array.
      axis_name: the name of a mapped axis, or a tuple of names.
      axis_index_groups: groups of indices along the axis that each communicate among themselves.

    >>> meshrt.vmap(lambda x: lax.pmin(x, "i"), axis_name="i")(jnp.array([1, 5, 3]))
    Array([1, 1, 1], dtype=int32)
    """
    return _extremum_of(x, pmin_p, reduce_min_p, axis_name, axis_index_groups)


def _extremum_of(x: Any, primitive: Primitive, reduce: Primitive, axis_name: Any, axis_index_groups: Any) -> Any:
    names, dims = _split(axis_name, axis_index_groups)
    call = Call(primitive.name, names, axis_index_groups)
    if call.groups is not None and call.is_checked:
        raise _grouped(call)

    def leaf(x: Any) -> Any:
        x = _over_dims(x, dims, reduce)
        for names in (call.unchecked, call.checked):
            if names:
                x = primitive.bind(call.vary(x), axes=names, axis_index_groups=call.groups)
        return x

    return over_leaves(x, leaf)


def pargmax(x: Any, axis_name: Any) -> Any:
    """The smallest index along the axis `axis_name` at which `x` is largest: int32, of the shape of `x`.

    Args:
      x: an array.
      axis_name: the name of a mapped axis, or a tuple of names.

    >>> meshrt.vmap(lambda x: lax.pargmax(x, "i"), axis_name="i")(jnp.array([1, 5, 3]))
    Array([1, 1, 1], dtype=int32)
    """
    return _index_of(x, pmax(x, axis_name), axis_name, "pargmax")


def pargmin(x: Any, axis_name: Any) -> Any:
    """The smallest index along the axis `axis_name` at which `x` is smallest: int32, of the shape of `x`.

    Args:
      x: an array.
      axis_name: the name of a mapped axis, or a tuple of names.

    >>> meshrt.vmap(lambda x: lax.pargmin(x, "i"), axis_name="i")(jnp.array([1, 5, 3]))
    Array([0, 0, 0], dtype=int32)
    """
    return _index_of(x, pmin(x, axis_name), axis_name, "pargmin")


def _index_of(x: Any, found: Any, axis_name: Any, caller: str) -> Any:
    if isinstance(axis_name, tuple | list):
        raise errors.ArgumentTypeError(f"{caller} only accepts a single axis, got {axis_name}")
    aval = aval_of(x)
    index = broadcast_in_dim(axis_index(axis_name), aval.shape, ())
    never = broadcast_in_dim(np.int32(np.iinfo(np.int32).max), aval.shape, ())
    return pmin(select_n(ew.eq_p.bind(*binary_operands(x, found)), never, index), axis_name)
