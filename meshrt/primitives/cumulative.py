"""Cumulative reductions along one axis, and the associative scan that their derivatives use.

Each lowers to one `reduce_window` whose window covers the whole axis. XLA turns that into a tree of linear work on
every platform, and a partitioner sees at once that no other dimension is involved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import errors, tree_util
from meshrt.core.basic.kinds import has_kind, not_accepted
from meshrt.core.basic.shapes import canonical_axis, linear_jvp, move_dim, reshape, zeros
from meshrt.core.dimensions.expression import is_symbolic_dim, max_dim
from meshrt.core.explicit import whole
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives import control
from meshrt.primitives import elementwise as ew
from meshrt.primitives.computation import combining_region
from meshrt.primitives.concatenate import concatenate, rev
from meshrt.primitives.control_branches import cond
from meshrt.primitives.neutral import highest, lowest
from meshrt.primitives.reshape import expand_dims
from meshrt.primitives.slice import pad, slice_in_dim
from meshrt.primitives.windowing import reduce_window_attributes

__all__ = ["associative_scan", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum"]

Combine = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]

# ----------------------------------------------------------------------------------------------------------
# Associative scan


def _interleave(even: Any, odd: Any, axis: int) -> Any:
    """The elements of two arrays in turn; `even` has as many as `odd`, or one more."""
    ndim, extra = aval_of(even).ndim, aval_of(even).shape[axis] - aval_of(odd).shape[axis]

    def spaced(x: Any, low: Any, high: Any) -> Any:
        config = [(0, 0, 0)] * ndim
        config[axis] = (low, high, 1)
        return pad(x, np.zeros((), aval_of(x).dtype)[()], config)

    join = ew.or_p if aval_of(even).dtype == np.bool_ else ew.add_p
    return join.bind(spaced(even, 0, 1 - extra), spaced(odd, 1, extra))


def scan_lists(combine: Combine, xs: Sequence[Any], axis: int) -> list[Any]:
    """All prefixes of `xs` under the associative `combine` on lists of arrays, in 2 log2(n) combinations.

    Combines neighbours, scans the half as long list, and fills in the even positions (Ladner and Fischer 1980).
    """
    n = aval_of(xs[0]).shape[axis]
    if n < 2:
        return list(xs)
    firsts = [slice_in_dim(x, 0, n - 1, 2, axis) for x in xs]
    seconds = [slice_in_dim(x, 1, None, 2, axis) for x in xs]
    odd = scan_lists(combine, combine(firsts, seconds), axis)
    if n == 2:
        even = [slice_in_dim(x, 0, 1, 1, axis) for x in xs]
    else:
        before = [slice_in_dim(o, 0, (n - 1) // 2, 1, axis) for o in odd]
        rest = combine(before, [slice_in_dim(x, 2, None, 2, axis) for x in xs])
        even = [concatenate([slice_in_dim(x, 0, 1, 1, axis), r], axis) for x, r in zip(xs, rest)]
    return [_interleave(e, o, axis) for e, o in zip(even, odd)]


def _one_by_one(combine: Combine, xs: Sequence[Any], reverse: bool, axis: int) -> list[Any]:
    """All prefixes in n - 1 combinations, one after another: the depth of a tree over a symbolic size is not known."""
    rows = [move_dim(expand_dims(x, (axis + 1,)), axis, 0) for x in xs]

    def step(carry: tuple[Any, list[Any]], row: list[Any]) -> tuple[Any, list[Any]]:
        is_first, before = carry
        here = cond(is_first, lambda before, row: row, lambda *pair: list(combine(*pair)), before, row)
        return (np.False_, here), here

    nothing = [zeros(aval_of(x).update(shape=aval_of(x).shape[1:])) for x in rows]
    _, found = control.scan(step, (np.True_, nothing), rows, reverse=reverse)
    return [reshape(move_dim(y, 0, axis), aval_of(x).shape) for y, x in zip(found, xs)]


def scan_flat(combine: Combine, xs: Sequence[Any], reverse: bool, axis: int) -> list[Any]:
    """`scan_lists` from the other end if `reverse`."""
    if is_symbolic_dim(aval_of(xs[0]).shape[axis]):
        return _one_by_one(combine, xs, reverse, axis)
    if not reverse:
        return scan_lists(combine, xs, axis)
    return [rev(o, [axis]) for o in scan_lists(combine, [rev(x, [axis]) for x in xs], axis)]


def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """All prefixes of a pytree of arrays along `axis` under an associative function of two such trees.

    Takes 2 log2(n) applications of `fn`, each on many elements at once. `reverse` gives the suffixes.

    Args:
      fn: an associative function of two elements.
      elems: arrays, whose elements along the axis are combined.
      reverse: from the last element to the first.
      axis: a dimension number.

    >>> lax.associative_scan(jnp.add, jnp.array([1, 2, 3]))
    Array([1, 3, 6], dtype=int32)
    """
    if not callable(fn):
        raise errors.ArgumentTypeError(f"lax.associative_scan: fn argument should be callable. It is {fn!r}")
    leaves, tree = tree_util.tree_flatten(elems)
    if not leaves:
        return elems
    axis = canonical_axis(axis, aval_of(leaves[0]).ndim)
    sizes = {aval_of(x).shape[axis : axis + 1] for x in leaves}
    if len(sizes) > 1:
        raise errors.ArgumentValueError(
            f"Array inputs to associative_scan must have the same {'first ' if axis == 0 else ''}dimension along axis "
            f"{axis}. (saw: {[aval_of(x).shape for x in leaves]})"
        )

    def combine(a: Any, b: Any) -> Any:
        out, found = tree_util.tree_flatten(fn(tree_util.tree_unflatten(tree, a), tree_util.tree_unflatten(tree, b)))
        if len(out) != len(leaves):
            raise errors.ArgumentTypeError(
                f"associative_scan: fn must return a pytree like its operands, {tree}, but returned {found}"
            )
        return out

    return tree_util.tree_unflatten(tree, scan_flat(combine, leaves, bool(reverse), axis))


# ----------------------------------------------------------------------------------------------------------
# The primitives


def _infer(name: str, kinds: str) -> Callable[..., ShapedArray]:
    def infer(x: ShapedArray, *, axis: int, reverse: bool) -> Any:
        if not has_kind(x.dtype, kinds):
            raise errors.ArgumentTypeError(not_accepted(name, x.dtype, kinds))
        if not 0 <= axis < x.ndim:
            raise errors.ArgumentTypeError(f"{name} of {x.short()} got axis {axis}")
        return x

    return infer


def _lower(identity: Callable[[Any], Any], region: Callable[..., Any]) -> Callable[..., Any]:
    def lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
        aval, axis = eqn.outvars[0].aval, eqn.params["axis"]
        n = max_dim(aval.shape[axis], 1)  # no window is empty, also where a symbolic size turns out to be zero
        if aval.size == 0 or n == 1:
            return x
        window: list[Any] = [1] * aval.ndim
        padding: list[Any] = [(0, 0)] * aval.ndim
        window[axis] = n
        padding[axis] = (0, n - 1) if eqn.params["reverse"] else (n - 1, 0)
        init = ctx.scalar(identity(aval.dtype), aval.dtype)
        return ctx.op(
            "stablehlo.reduce_window",
            [x, init],
            aval,
            reduce_window_attributes(window, padding=padding),
            [region(ctx, aval.dtype)],
        )

    return lower


def _batch(get: Callable[[], Primitive]) -> Callable[..., Any]:
    def batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
        d, axis = dims[0], params["axis"]
        return get().bind(args[0], axis=axis + (d <= axis), reverse=params["reverse"]), d

    return batch


def _dual_jvp(
    get: Callable[[], Primitive], weights: Callable[[Any, Any, Any], tuple[Any, Any]], combine: Any
) -> Callable[..., Any]:
    """The jvp by a scan of (value, tangent) pairs; `weights(a, b, out)` are the partial derivatives of `combine`."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], *, axis: int, reverse: bool) -> tuple[Any, Any]:
        (x,), (t,) = primals, tangents
        if t is None:
            return get().bind(x, axis=axis, reverse=reverse), None

        def pairs(left: Any, right: Any) -> Any:
            (a, ta), (b, tb) = left, right
            out = combine(a, b)
            wa, wb = weights(a, b, out)
            return [out, ew.add_p.bind(ew.mul_p.bind(ta, wa), ew.mul_p.bind(tb, wb))]

        out, t_out = scan_flat(pairs, [x, t], reverse, axis)
        return out, t_out

    return jvp


def _extremum_weights(better: Primitive) -> Callable[..., Any]:
    def weights(a: Any, b: Any, out: Any) -> tuple[Any, Any]:
        dtype = aval_of(a).dtype
        equal = ew.eq_p.bind(a, b)
        if dtype.kind == "c":  # the order of complex numbers is that of max and min
            larger = ew.and_p.bind(ew.eq_p.bind(a, out), ew.not_p.bind(equal))
        else:
            larger = better.bind(a, b)
        wins = ew.convert_element_type(larger, dtype)
        ties = ew.mul(ew.convert_element_type(equal, dtype), 0.5)
        mine = ew.add_p.bind(wins, ties)
        return mine, ew.sub(1, mine)

    return weights


def logaddexp(a: Any, b: Any) -> Any:
    """log(exp(a) + exp(b)) without overflow; right for equal infinities."""
    delta = ew.sub_p.bind(a, b)
    same_infinity = ew.ne_p.bind(delta, delta)
    if aval_of(a).dtype.kind == "c":
        return ew.select_n(same_infinity, _complex_logaddexp(a, b, delta), ew.add_p.bind(a, b))
    out = ew.add_p.bind(ew.max_p.bind(a, b), ew.log1p_p.bind(ew.exp_p.bind(ew.neg_p.bind(ew.abs_p.bind(delta)))))
    return ew.select_n(same_infinity, out, ew.add_p.bind(a, b))


def _complex_logaddexp(a: Any, b: Any, delta: Any) -> Any:
    """The number with the larger real part plus what the other adds; its imaginary part lies within [-pi, pi)."""
    larger = ew.gt_p.bind(ew.real_p.bind(a), ew.real_p.bind(b))
    top, apart = ew.select_n(larger, b, a), ew.select_n(larger, delta, ew.neg_p.bind(delta))
    out = ew.add_p.bind(top, ew.log1p_p.bind(ew.exp_p.bind(apart)))
    angle = ew.imag_p.bind(out)
    turns = ew.floor_p.bind(ew.mul(ew.add(angle, np.pi), 0.5 / np.pi))
    return ew.complex_p.bind(ew.real_p.bind(out), ew.sub_p.bind(angle, ew.mul(turns, 2 * np.pi)))


def _logaddexp_weights(a: Any, b: Any, out: Any) -> tuple[Any, Any]:
    """The softmax of the pair; equal infinities share evenly."""
    delta = ew.sub_p.bind(a, b)
    zero = ew.mul(ew.convert_element_type(ew.eq_p.bind(a, b), aval_of(a).dtype), 0.0)
    mine = ew.logistic_p.bind(ew.select_n(ew.eq_p.bind(a, b), delta, zero))
    return mine, ew.sub(1, mine)


def _logaddexp_region(ctx: LoweringContext, dtype: Any) -> Any:
    """The region of `logaddexp` on scalars."""
    scalar = ShapedArray((), dtype)
    return ctx.region(trace_to_jaxpr(lambda a, b: [logaddexp(a, b)], [scalar, scalar], "logaddexp").jaxpr)


def _operation(name: str, extremum: Primitive | None = None) -> Callable[..., Any]:
    return lambda ctx, dtype: combining_region(ctx, name, dtype, extremum)


_unsplit = whole(
    lambda params: (params["axis"],),
    "Input should be unsharded over the axis being reduced. Got input type={type} and axis={dim}.",
)


def _primitive(
    name: str,
    kinds: str,
    identity: Callable[[Any], Any],
    region: Callable[..., Any],
    jvp: Callable[..., Any],
    transpose: Callable[..., Any] | None = None,
) -> Primitive:
    primitive = Primitive(
        name, _infer(name, kinds), lower=_lower(identity, region), jvp=jvp, transpose=transpose,
        batch=_batch(lambda: primitive), explicit=_unsplit, absent=NOT_LINEAR if transpose is None else {},
    )  # fmt: skip
    return primitive


cumsum_p: Primitive = _primitive(
    "cumsum", "iufc", lambda d: 0, _operation("stablehlo.add"), linear_jvp(lambda: cumsum_p),
    lambda ct, x, *, axis, reverse: [cumsum_p.bind(ct, axis=axis, reverse=not reverse)],
)  # fmt: skip
cumprod_p: Primitive = _primitive(
    "cumprod", "iufc", lambda d: 1, _operation("stablehlo.multiply"),
    _dual_jvp(lambda: cumprod_p, lambda a, b, out: (b, a), ew.mul_p.bind),
)  # fmt: skip
cummax_p: Primitive = _primitive(
    "cummax", "iufc", lowest, _operation("stablehlo.maximum", ew.max_p),
    _dual_jvp(lambda: cummax_p, _extremum_weights(ew.gt_p), ew.max_p.bind),
)  # fmt: skip
cummin_p: Primitive = _primitive(
    "cummin", "iufc", highest, _operation("stablehlo.minimum", ew.min_p),
    _dual_jvp(lambda: cummin_p, _extremum_weights(ew.lt_p), ew.min_p.bind),
)  # fmt: skip
cumlogsumexp_p: Primitive = _primitive(
    "cumlogsumexp", "fc", lambda d: -np.inf if d.kind == "c" else lowest(d), _logaddexp_region,
    _dual_jvp(lambda: cumlogsumexp_p, _logaddexp_weights, logaddexp),
)  # fmt: skip


def _public(primitive: Primitive, what: str, example: str) -> Callable[..., Any]:
    def function(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
        ndim = aval_of(operand).ndim
        if not 0 <= axis < ndim:
            raise errors.ArgumentValueError(
                f"axis {axis} is out of bounds for array of shape {aval_of(operand).shape}: XLA operations do not "
                f"allow negative axes ({primitive.name}); meshrt.numpy counts negative ones from the end"
            )
        return primitive.bind(operand, axis=int(axis), reverse=bool(reverse))

    function.__name__ = function.__qualname__ = primitive.name
    function.__doc__ = (
        f"At every position, the {what} of the elements up to it along `axis` (from it on if `reverse`); same shape "
        f"and dtype as `operand`.\n\n{example}\n"
    )
    return function


cumsum = _public(cumsum_p, "sum", ">>> print(lax.cumsum(jnp.array([1, 3, 2])))\n[1 4 6]")
cumprod = _public(cumprod_p, "product", ">>> print(lax.cumprod(jnp.array([1, 3, 2])))\n[1 3 6]")
cummax = _public(cummax_p, "maximum", ">>> print(lax.cummax(jnp.array([1, 3, 2])))\n[1 3 3]")
cummin = _public(cummin_p, "minimum", ">>> print(lax.cummin(jnp.array([1, 3, 2])))\n[1 1 1]")
cumlogsumexp = _public(
    cumlogsumexp_p,
    "logarithm of the sum of exponentials",
    ">>> print(lax.cumlogsumexp(jnp.zeros(3)))\n[0.        0.6931472 1.0986123]",
)
