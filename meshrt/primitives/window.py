"""Reductions over sliding windows: reduce_window and what its derivatives need.

`reduce_window_sum`, `reduce_window_max` and `reduce_window_min` are differentiable; any other computation becomes the
generic `reduce_window`, in forward mode only. The derivative of max and min of reals picks the tangent of the winner of
each window (`select_and_gather_add`), whose transpose adds cotangents at the winners (`select_and_scatter_add`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshrt import dtypes, errors, tree_util
from meshrt.core.basic.shapes import batch_together, constant, insert, instantiate, linear_jvp, zeros
from meshrt.core.dimensions.expression import as_size
from meshrt.core.jaxpr import Eqn, Jaxpr
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.trace import eval_jaxpr, trace_to_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.lowering.types import mlir_type
from meshrt.primitives import elementwise as ew
from meshrt.primitives.axis_types import unsplit
from meshrt.primitives.computation import combining_region, is_of_lax, only_operation, scalar_jaxpr, starts_from
from meshrt.primitives.neutral import highest, lowest
from meshrt.primitives.selection import select_n_p
from meshrt.primitives.slice import pad_p, slice
from meshrt.primitives.windowing import (
    canonical_pads,
    dilated,
    operand_gradient_pads,
    padtype_to_pads,
    pairs_attribute,
    reduce_window_attributes,
    window_positions,
)
from meshrt.transforms.jvp import jvp_jaxpr
from propagation.asm import i64_array

__all__ = ["reduce_window"]

_KEYS = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")


class _Window(NamedTuple):
    """The parameters that all window primitives share, one entry per dimension."""

    window_dimensions: tuple[int, ...]
    window_strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    base_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]

    def inserted(self, dim: int) -> dict[str, Any]:
        """With a dimension that no window extends over."""
        return {k: insert(v, dim, (0, 0) if k == "padding" else 1) for k, v in self._asdict().items()}


def _window(params: dict[str, Any]) -> _Window:
    return _Window(*(params[k] for k in _KEYS))


def _check_window(x: ShapedArray, window: Sequence[int], others: dict[str, Sequence[int]]) -> None:
    """Raises unless there is a positive number per dimension of `x` in the window's sizes, steps and dilations."""
    if len(window) != x.ndim:
        raise errors.ArgumentTypeError(
            "reduce_window got the wrong number of window_dimensions for operand: got operand shape "
            f"{x.shape} with window_dimensions {tuple(window)}."
        )
    for key, values in others.items():
        if len(values) != len(window):
            raise errors.ArgumentTypeError(
                f"reduce_window got inconsistent {key} and window_dimensions: got {key} {tuple(values)} and "
                f"window_dimensions {tuple(window)}."
            )
    for key, values in {"window_dimensions": window, **others}.items():
        if any(n < 1 for n in values):
            raise errors.ArgumentTypeError(
                f"reduce_window {key} must have every element be strictly positive, got {tuple(values)}."
            )


def _output_shape(name: str, x: ShapedArray, w: _Window) -> tuple[int, ...]:
    if any(len(v) != x.ndim for v in w):
        raise errors.ArgumentTypeError(
            f"{name} of {x.short()} needs one entry per dimension in {', '.join(_KEYS)}, but got {tuple(w)}"
        )
    for key in ("window_dimensions", "window_strides", "base_dilation", "window_dilation"):
        values = getattr(w, key)
        if any(n < 1 for n in values):
            raise errors.ArgumentTypeError(
                f"{name} {key} must have every element be strictly positive, got {tuple(values)}"
            )
    shape = []
    for n, window, stride, (low, high), base, spread in zip(x.shape, *w):
        shape.append(window_positions(dilated(n, base) + low + high, dilated(window, spread), stride))
    return tuple(shape)


def _check_numeric(name: str, x: ShapedArray) -> None:
    if x.is_extended or (dtypes.issubdtype(x.dtype, np.complexfloating) and not name.startswith("reduce_window_")):
        raise errors.ArgumentTypeError(f"{name} does not accept dtype {x.dtype}; convert with astype")


# ----------------------------------------------------------------------------------------------------------
# Sum, max, min


def _reducer(
    name: str,
    op: str,
    identity: Callable[[Any], Any],
    jvp: Callable[..., Any],
    transpose: Callable[..., Any] | None = None,
    extremum: Primitive | None = None,
) -> Primitive:
    def infer(x: ShapedArray, **params: Any) -> ShapedArray:
        _check_numeric(name, x)
        return ShapedArray(_output_shape(name, x, _window(params)), x.dtype, x.weak_type)

    def lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
        out = eqn.outvars[0].aval
        init = ctx.scalar(identity(out.dtype), out.dtype)
        attrs, combine = reduce_window_attributes(*_window(eqn.params)), combining_region(ctx, op, out.dtype, extremum)
        return ctx.op("stablehlo.reduce_window", [x, init], out, attrs, [combine])

    def batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
        return primitive.bind(args[0], **_window(params).inserted(dims[0])), dims[0]

    absent = NOT_LINEAR if transpose is None else {}
    primitive = Primitive(name, infer, lower=lower, jvp=jvp, transpose=transpose, batch=batch, absent=absent)
    return primitive


def _sum_transpose(ct: Any, x: Any, **params: Any) -> list[Any]:
    return [unsplit(lambda ct: _sum_pulled(ct, x, params), x.aval, ct)]


def _sum_pulled(ct: Any, x: Any, params: dict[str, Any]) -> Any:
    """The windows that cover an element are again a window, over the dilated and padded cotangent."""
    w = _window(params)
    pads = operand_gradient_pads(
        x.aval.shape, w.window_dimensions, w.window_strides, aval_of(ct).shape, w.padding, w.base_dilation,
        w.window_dilation,
    )  # fmt: skip
    config = tuple((low, high, stride - 1) for (low, high), stride in zip(pads, w.window_strides))
    aval = aval_of(ct)
    padded = pad_p.bind(ct, constant(0, aval.dtype, aval.weak_type), padding_config=config)
    ones = (1,) * len(config)
    return reduce_window_sum_p.bind(
        padded, window_dimensions=w.window_dimensions, window_strides=w.base_dilation,
        padding=((0, 0),) * len(config), base_dilation=ones, window_dilation=w.window_dilation,
    )  # fmt: skip


def _chooser_jvp(get: Callable[[], Primitive], direction: str) -> Callable[..., Any]:
    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = get().bind(*primals, **params)
        if tangents[0] is None:
            return out, None
        return out, select_and_gather_add_p.bind(tangents[0], primals[0], direction=direction, **params)

    return jvp


reduce_window_sum_p: Primitive = _reducer(
    "reduce_window_sum", "stablehlo.add", lambda d: 0, linear_jvp(lambda: reduce_window_sum_p), _sum_transpose
)
reduce_window_max_p: Primitive = _reducer(
    "reduce_window_max", "stablehlo.maximum", lowest, _chooser_jvp(lambda: reduce_window_max_p, "GE"), None, ew.max_p
)
reduce_window_min_p: Primitive = _reducer(
    "reduce_window_min", "stablehlo.minimum", highest, _chooser_jvp(lambda: reduce_window_min_p, "LE"), None, ew.min_p
)

# ----------------------------------------------------------------------------------------------------------
# The winners' tangents, and back


def _pair_infer(name: str) -> Callable[..., ShapedArray]:
    def infer(tangents: ShapedArray, operand: ShapedArray, *, direction: str, **params: Any) -> ShapedArray:
        _check_numeric(name, operand)
        if tangents.shape != operand.shape:
            raise errors.ArgumentTypeError(
                f"{name} needs tangents of the operand's shape: {tangents.short()}, {operand.short()}"
            )
        return ShapedArray(_output_shape(name, operand, _window(params)), tangents.dtype)

    return infer


def _compare(ctx: LoweringContext, direction: str, x: Any, y: Any, dtype: Any) -> Any:
    is_float = dtypes.issubdtype(dtype, np.floating)
    unsigned = dtype == np.bool_ or dtypes.issubdtype(dtype, np.unsignedinteger)
    kind = "FLOAT" if is_float else "UNSIGNED" if unsigned else "SIGNED"
    attrs = (
        f"comparison_direction = #stablehlo<comparison_direction {direction}>, "
        f"compare_type = #stablehlo<comparison_type {kind}>"
    )
    return ctx.op("stablehlo.compare", [x, y], ShapedArray((), np.dtype(bool)), attrs)


def _start(direction: str, dtype: Any) -> Any:
    """The value that loses against every other one."""
    return lowest(dtype) if direction == "GE" else highest(dtype)


def _gather_lower(ctx: LoweringContext, eqn: Eqn, tangents: Any, operand: Any) -> Any:
    direction, out = eqn.params["direction"], eqn.outvars[0].aval
    t_aval, x_aval = (v.aval for v in eqn.invars)
    value, tangent = ShapedArray((), x_aval.dtype), ShapedArray((), t_aval.dtype)
    body = ctx.body.body([mlir_type(value), mlir_type(tangent)] * 2)
    inner = ctx.nested(body)
    a, ta, b, tb = body.args
    wins = _compare(inner, direction, a, b, x_aval.dtype)
    body.ret([inner.op("stablehlo.select", [wins, p, q], kind) for p, q, kind in ((a, b, value), (ta, tb, tangent))])
    inits = [ctx.scalar(_start(direction, x_aval.dtype), x_aval.dtype), ctx.scalar(0, t_aval.dtype)]
    attrs = reduce_window_attributes(*_window(eqn.params))
    values = ShapedArray(out.shape, x_aval.dtype)
    return ctx.ops("stablehlo.reduce_window", [operand, tangents, *inits], [values, out], attrs, [body])[1]


def _gather_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    t, operand = primals
    out = select_and_gather_add_p.bind(t, operand, **params)
    return out, None if tangents[0] is None else select_and_gather_add_p.bind(tangents[0], operand, **params)


def _gather_transpose(ct: Any, t: Any, operand: Any, *, direction: str, **params: Any) -> list[Any]:
    w = _window(params)
    if any(n != 1 for n in w.window_dilation):
        raise errors.UnsupportedError(
            "VJP not implemented for select_and_gather (MaxPool) with window dilation, got "
            f"window_dilation={w.window_dilation}: take strided slices of the operand before, or forward mode"
        )
    spread = any(n != 1 for n in w.base_dilation)
    if spread:  # what stands between the elements loses
        least = constant(_start(direction, aval_of(operand).dtype), aval_of(operand).dtype)
        operand = pad_p.bind(operand, least, padding_config=tuple((0, 0, n - 1) for n in w.base_dilation))
    out = select_and_scatter_add_p.bind(
        ct, operand, direction=direction, window_dimensions=w.window_dimensions, window_strides=w.window_strides,
        padding=w.padding,
    )  # fmt: skip
    return [slice(out, (0,) * aval_of(out).ndim, aval_of(out).shape, w.base_dilation) if spread else out, None]


def _gather_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    args, d = batch_together(size, args, dims)
    inserted = _window(params).inserted(d)
    return select_and_gather_add_p.bind(*args, direction=params["direction"], **inserted), d


select_and_gather_add_p = Primitive(
    "select_and_gather_add", _pair_infer("select_and_gather_add"), lower=_gather_lower, jvp=_gather_jvp,
    transpose=_gather_transpose, batch=_gather_batch,
)  # fmt: skip


def _scatter_infer(
    source: ShapedArray,
    operand: ShapedArray,
    *,
    direction: str,
    window_dimensions: tuple[int, ...],
    window_strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
) -> ShapedArray:
    ones = (1,) * operand.ndim
    expected = _output_shape(
        "select_and_scatter_add", operand, _Window(window_dimensions, window_strides, padding, ones, ones)
    )
    if source.shape != expected:
        raise errors.ArgumentTypeError(
            f"select_and_scatter_add needs a source of shape {expected} for windows over {operand.short()}, "
            f"but got {source.short()}"
        )
    return ShapedArray(operand.shape, source.dtype)


def _scatter_lower(ctx: LoweringContext, eqn: Eqn, source: Any, operand: Any) -> Any:
    """Padding is explicit: not every backend pads a select_and_scatter right."""
    p, out = eqn.params, eqn.outvars[0].aval
    s_aval, x_aval = (v.aval for v in eqn.invars)
    low, high = zip(*p["padding"]) if p["padding"] else ((), ())
    padded_shape = tuple(n + a + b for n, a, b in zip(x_aval.shape, low, high))
    zeros = i64_array([0] * out.ndim)
    start = ctx.scalar(_start(p["direction"], x_aval.dtype), x_aval.dtype)
    attrs = f"edge_padding_low = {i64_array(low)}, edge_padding_high = {i64_array(high)}, interior_padding = {zeros}"
    padded = ctx.op("stablehlo.pad", [operand, start], ShapedArray(padded_shape, x_aval.dtype), attrs)
    kind = mlir_type(ShapedArray((), x_aval.dtype))
    select = ctx.body.body([kind, kind])
    x, y = select.args
    select.ret([_compare(ctx.nested(select), p["direction"], x, y, x_aval.dtype)])
    attrs = (
        f"padding = {pairs_attribute([(0, 0)] * out.ndim)}, window_dimensions = {i64_array(p['window_dimensions'])}, "
        f"window_strides = {i64_array(p['window_strides'])}"
    )
    regions = [select, ctx.scalar_region("stablehlo.add", s_aval.dtype)]
    if s_aval.dtype != x_aval.dtype:
        raise errors.UnsupportedError("select_and_scatter_add needs a source of the operand's dtype")
    full = ctx.op("stablehlo.select_and_scatter", [padded, source, ctx.scalar(0, s_aval.dtype)],
                  ShapedArray(padded_shape, s_aval.dtype), attrs, regions)  # fmt: skip
    limits = [a + n for a, n in zip(low, out.shape)]
    attrs = (
        f"start_indices = {i64_array(low)}, limit_indices = {i64_array(limits)}, strides = {i64_array([1] * out.ndim)}"
    )
    return ctx.op("stablehlo.slice", [full], out, attrs)


def _scatter_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    source, operand = primals
    out = select_and_scatter_add_p.bind(source, operand, **params)
    return out, None if tangents[0] is None else select_and_scatter_add_p.bind(tangents[0], operand, **params)


def _scatter_transpose(ct: Any, source: Any, operand: Any, *, direction: str, **params: Any) -> list[Any]:
    ones = (1,) * aval_of(operand).ndim
    out = select_and_gather_add_p.bind(
        ct, operand, direction=direction, base_dilation=ones, window_dilation=ones, **params
    )
    return [out, None]


def _scatter_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    args, d = batch_together(size, args, dims)
    new = {k: insert(params[k], d, (0, 0) if k == "padding" else 1) for k in _KEYS[:3]}
    return select_and_scatter_add_p.bind(*args, direction=params["direction"], **new), d


select_and_scatter_add_p = Primitive(
    "select_and_scatter_add", _scatter_infer, lower=_scatter_lower, jvp=_scatter_jvp, transpose=_scatter_transpose,
    batch=_scatter_batch, explicit=lambda app: [app.specs[1]],
)  # fmt: skip

# ----------------------------------------------------------------------------------------------------------
# Any other computation


def _generic_infer(*args: ShapedArray, jaxpr: Jaxpr, **params: Any) -> Any:
    operands = args[: len(args) // 2]
    return [ShapedArray(_output_shape("reduce_window", x, _window(params)), x.dtype) for x in operands]


def _generic_lower(ctx: LoweringContext, eqn: Eqn, *args: Any) -> Any:
    attrs = reduce_window_attributes(*_window(eqn.params))
    outs = [v.aval for v in eqn.outvars]
    return ctx.ops("stablehlo.reduce_window", args, outs, attrs, [ctx.region(eqn.params["jaxpr"])])


def _generic_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Jaxpr, **params: Any) -> tuple[Any, Any]:
    """The same windows over pairs of numbers and tangents, combined by the computation's own derivative."""
    count = len(primals) // 2
    operands, inits = primals[:count], primals[count:]
    if any(t is not None for t in tangents[count:]):
        raise errors.ArgumentTypeError(
            "reduce_window jvp does not support non-zero init_value_tangent: the initial value must be constant"
        )
    moving = [t is not None for t in tangents[:count]]
    if not any(moving):
        return reduce_window_p.bind(*primals, jaxpr=jaxpr, **params), [None] * count
    operation = only_operation(jaxpr) if count == 1 else None
    if operation in _MONOIDS:
        (out,) = reduce_window_p.bind(*primals, jaxpr=jaxpr, **params)
        return [out], [_monoid_tangent(_MONOIDS[operation][0], out, operands[0], tangents[0], params)]
    inexact = [i for i, x in enumerate(operands) if aval_of(x).is_differentiable]
    pair = _pair_jaxpr(jaxpr, count, tuple(inexact))
    moved = [instantiate(tangents[i], operands[i]) for i in inexact]
    starts = [zeros(aval_of(inits[i]).strong()) for i in inexact]
    outs = reduce_window_p.bind(*operands, *moved, *inits, *starts, jaxpr=pair, **params)
    found = dict(zip(inexact, outs[count:]))
    return outs[:count], [found.get(i) for i in range(count)]


def _monoid_tangent(primitive: Primitive, out: Any, x: Any, t: Any, params: dict[str, Any]) -> Any:
    """Of one operation from an initial value that only the running program knows (`jnp.asarray(0.0)` under jit): that
    of the windows alone, linear in `t`, but where a maximum or minimum is the initial value, which has no tangent."""
    assert primitive.jvp is not None  # of sums, maxima and minima of windows
    alone, t_alone = primitive.jvp((x,), (t,), **params)
    if primitive is reduce_window_sum_p:
        return t_alone
    return select_n_p.bind(ew.eq_p.bind(out, alone), zeros(aval_of(t_alone)), t_alone)


def _pair_jaxpr(jaxpr: Jaxpr, count: int, inexact: tuple[int, ...]) -> Jaxpr:
    """(a, da, b, db) -> (c, dc) of a computation (a, b) -> c on `count` scalars, of which these have tangents."""
    flags = tuple(i % count in inexact for i in range(2 * count))
    closed, _ = jvp_jaxpr(jaxpr, flags, True)
    n = len(inexact)

    def ordered(*xs: Any) -> list[Any]:
        a, da, b, db = xs[:count], xs[count : count + n], xs[count + n : 2 * count + n], xs[2 * count + n :]
        return eval_jaxpr(closed.jaxpr, closed.consts, [*a, *b, *da, *db])

    avals = jaxpr.in_avals[:count]
    half = [*avals, *[avals[i].to_tangent_aval() for i in inexact]]
    return trace_to_jaxpr(ordered, [*half, *half], "reduce_window").jaxpr


def _generic_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    count = len(args) // 2
    if any(d is not None for d in dims[count:]):
        raise errors.UnsupportedError("reduce_window cannot be mapped over its init_value")
    operands, d = batch_together(size, args[:count], dims[:count])
    inserted = _window(params).inserted(d)
    outs = reduce_window_p.bind(*operands, *args[count:], jaxpr=params["jaxpr"], **inserted)
    return outs, [d] * count


reduce_window_p = Primitive(
    "reduce_window",
    _generic_infer,
    lower=_generic_lower,
    jvp=_generic_jvp,
    batch=_generic_batch,
    multiple_results=True,
    cache_types=False,
    absent=NOT_LINEAR,
)

_MONOIDS = {
    ew.add_p: (reduce_window_sum_p, lambda d: 0),
    ew.max_p: (reduce_window_max_p, lowest),
    ew.min_p: (reduce_window_min_p, highest),
}


def _monoid(jaxpr: Jaxpr, init: Any, dtype: Any) -> Primitive | None:
    """The differentiable primitive for a computation of one operation that starts from its identity."""
    operation = only_operation(jaxpr)
    if operation not in _MONOIDS:
        return None
    primitive, identity = _MONOIDS[operation]
    return primitive if starts_from(init, identity(dtype), dtype) else None


def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Callable[[Any, Any], Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """Reduces every window of an array (or of several of one shape, as a pytree) by `computation(a, b)` of scalars.

    `init_value` (same structure) is the computation's identity and fills the padding, which is "SAME", "SAME_LOWER",
    "VALID" or a (low, high) pair per dimension. Addition from 0, maximum from the smallest and minimum from the largest
    value are differentiable.

    Args:
      operand: an array.
      init_value: a scalar, neutral for the computation.
      computation: a function of two scalars.
      window_dimensions: sizes of the window.
      window_strides: the step of the window along each dimension.
      padding: "SAME", "VALID", or (low, high) for each dimension.
      base_dilation: the distance between elements of the operand.
      window_dilation: the distance between elements of the window.

    >>> lax.reduce_window(jnp.array([1.0, 3.0, 2.0]), -jnp.inf, lax.max, (2,), (1,), "VALID")
    Array([3., 3.], dtype=float32)
    """
    operands, tree = tree_util.tree_flatten(operand)
    inits, init_tree = tree_util.tree_flatten(init_value)
    if not operands or tree != init_tree:
        raise errors.ArgumentTypeError(
            f"reduce_window needs one init_value for each of its operands, but got {init_tree} for {tree}"
        )
    avals = [aval_of(x) for x in operands]
    shapes = [aval_of(i).shape for i in inits]
    if any(shapes):
        raise errors.ArgumentShapeError(
            f"reduce_window expected init_values to be scalars but init_values have shapes {shapes}."
        )
    ndim, window = avals[0].ndim, tuple(map(as_size, window_dimensions))
    ones = (1,) * ndim
    strides = ones if window_strides is None else tuple(map(int, window_strides))
    base = ones if base_dilation is None else tuple(map(int, base_dilation))
    spread = ones if window_dilation is None else tuple(map(int, window_dilation))
    _check_window(avals[0], window, {"window_strides": strides, "base_dilation": base, "window_dilation": spread})
    if isinstance(padding, str):
        extents = [dilated(n, s) for n, s in zip(window, spread)]
        padding = padtype_to_pads(avals[0].shape, extents, strides, padding)
    params = dict(zip(_KEYS, (window, strides, canonical_pads(padding, ndim), base, spread)))
    jaxpr = scalar_jaxpr("reduce_window", computation, [a.strong() for a in avals], tree)
    is_one = len(operands) == 1 and (aval_of(inits[0]).dtype == avals[0].dtype or is_of_lax(computation))
    primitive = _monoid(jaxpr, inits[0], avals[0].dtype) if is_one else None
    if primitive is not None:
        return tree_util.tree_unflatten(tree, [primitive.bind(operands[0], **params)])
    kinds = [str(aval_of(i).dtype) for i in inits]
    if kinds != [str(a.dtype) for a in avals]:
        raise errors.ArgumentTypeError(
            "reduce_window got inconsistent dtypes for operands and init_values: operands "
            f"{[a.short() for a in avals]} and init_values of {kinds}; give each init_value the dtype of its operand"
        )
    return tree_util.tree_unflatten(tree, reduce_window_p.bind(*operands, *inits, jaxpr=jaxpr, **params))
