"""Convolutions with strides, dilations, padding and feature or batch groups.

Both derivatives of a convolution are convolutions with the roles of dimensions exchanged, and so is its batching: a
mapped dimension joins the batch or the feature dimension, or becomes a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from meshrt import errors
from meshrt.core.basic.pointwise import add_tangents
from meshrt.core.basic.shapes import reshape, transpose
from meshrt.core.completion import OUT_SHARDING, undeclared
from meshrt.core.explicit import Application, Spec, keeps, shown
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive, also, is_undefined
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.axis_types import unsplit
from meshrt.primitives.concatenate import rev_p
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.precision import precision_attribute
from meshrt.primitives.windowing import (
    dilated,
    operand_gradient_pads,
    pairs_attribute,
    window_gradient_pads,
    window_positions,
)
from propagation.asm import i64_array

__all__: list[str] = []


class ConvDimensionNumbers(NamedTuple):
    """Positions of (batch, feature, spatial...) in operand and result, and of (out, in, spatial...) in the kernel."""

    lhs_spec: Sequence[int]
    rhs_spec: Sequence[int]
    out_spec: Sequence[int]


def _swapped(spec: Sequence[int]) -> tuple[int, ...]:
    return (spec[1], spec[0], *spec[2:])


def taken(shape: Sequence[int], dims: Sequence[int]) -> list[int]:
    """The sizes at these dimensions."""
    return [shape[d] for d in dims]


# ----------------------------------------------------------------------------------------------------------
# Types and lowering


def _check(lhs: ShapedArray, rhs: ShapedArray, p: dict[str, Any]) -> None:
    n, features, batches = p["dimension_numbers"], p["feature_group_count"], p["batch_group_count"]
    spatial = lhs.ndim - 2
    whole = list(range(lhs.ndim))
    problems = [
        (
            lhs.ndim == rhs.ndim,
            "conv_general_dilated lhs and rhs must have the same number of dimensions, but have "
            f"{lhs.ndim} and {rhs.ndim}",
        ),
        (
            lhs.ndim >= 2,
            "lhs and rhs need at least 2 dimensions, of the batch and of features",
        ),
        (all(sorted(s) == whole for s in n), f"dimension_numbers {tuple(n)} must permute the dimensions"),
        (
            all(len(p[k]) == spatial for k in ("window_strides", "padding", "lhs_dilation", "rhs_dilation")),
            f"strides, padding and dilations need {spatial} entries, one per spatial dimension",
        ),
        (
            features >= 1 and batches >= 1 and min(features, batches) == 1,
            "At most one of batch_group_count and feature_group_count may be > 1, got "
            f"batch_group_count={batches} and feature_group_count={features}",
        ),
        (
            all(v >= 1 for k in ("window_strides", "lhs_dilation", "rhs_dilation") for v in p[k]),
            "All dilations must be positive, and all strides: strides and dilations must be positive",
        ),
        (
            p["preferred_element_type"] is not None or lhs.dtype == rhs.dtype,
            f"lax.conv_general_dilated requires arguments to have the same dtypes, got {lhs.dtype}, {rhs.dtype}",
        ),
    ]
    if all(ok for ok, _ in problems[:3]):
        problems += _group_problems(lhs, rhs, n, features, batches)
    for ok, text in problems:
        if not ok:
            raise errors.ArgumentShapeError(f"{text} (conv_general_dilated of {lhs.short()} with kernel {rhs.short()})")


def _group_problems(lhs: ShapedArray, rhs: ShapedArray, n: Any, features: int, batches: int) -> list[tuple[bool, str]]:
    """Whether features and the batch divide into groups, with what is said where they do not."""
    channels, kernel_in = lhs.shape[n.lhs_spec[1]], rhs.shape[n.rhs_spec[1]]
    out_channels, batch = rhs.shape[n.rhs_spec[0]], lhs.shape[n.lhs_spec[0]]
    return [
        (
            channels % max(features, 1) == 0,
            "conv_general_dilated feature_group_count must divide lhs feature dimension size, but "
            f"{features} does not divide {channels}",
        ),
        (
            channels == kernel_in * features,
            "conv_general_dilated lhs feature dimension size divided by feature_group_count must equal the rhs "
            f"input feature dimension size, but {channels} // {features} != {kernel_in}",
        ),
        (
            out_channels % features == 0,
            "conv_general_dilated rhs output feature dimension size must be a multiple of feature_group_count, "
            f"but {out_channels} is not a multiple of {features}",
        ),
        (
            batch % batches == 0,
            "conv_general_dilated batch_group_count must divide lhs batch dimension size, but "
            f"{batches} does not divide {batch}",
        ),
        (
            out_channels % batches == 0,
            "conv_general_dilated rhs output feature dimension size must be a multiple of batch_group_count, but "
            f"{out_channels} is not a multiple of {batches}",
        ),
    ]


def _infer(lhs: ShapedArray, rhs: ShapedArray, **p: Any) -> ShapedArray:
    _check(lhs, rhs, p)
    n = p["dimension_numbers"]
    shape = [0] * lhs.ndim
    shape[n.out_spec[0]] = lhs.shape[n.lhs_spec[0]] // p["batch_group_count"]
    shape[n.out_spec[1]] = rhs.shape[n.rhs_spec[0]]
    for i, (a, b, o) in enumerate(zip(n.lhs_spec[2:], n.rhs_spec[2:], n.out_spec[2:])):
        size = dilated(lhs.shape[a], p["lhs_dilation"][i]) + sum(p["padding"][i])
        shape[o] = window_positions(size, dilated(rhs.shape[b], p["rhs_dilation"][i]), p["window_strides"][i])
    preferred = p["preferred_element_type"]
    weak = lhs.weak_type and rhs.weak_type and preferred is None
    return ShapedArray(tuple(shape), lhs.dtype if preferred is None else preferred, weak)


def _spelled(spec: Sequence[int], first: str, second: str) -> str:
    names: list[Any] = [None] * len(spec)
    for i, d in enumerate(spec):
        names[d] = (first, second)[i] if i < 2 else str(i - 2)
    return f"[{', '.join(names)}]"


def _lower(ctx: LoweringContext, eqn: Eqn, lhs: Any, rhs: Any) -> Any:
    p, out = eqn.params, eqn.outvars[0].aval
    avals = [v.aval for v in eqn.invars]
    if 0 in taken(avals[1].shape, p["dimension_numbers"].rhs_spec[2:]):
        return ctx.full(0, out)  # sums over nothing (StableHLO has no empty windows), as gradients of no windows are
    if avals[0].dtype != avals[1].dtype:
        lhs, rhs = (ctx.convert(r, a, out.dtype) for r, a in zip((lhs, rhs), avals))
    n = p["dimension_numbers"]
    numbers = (
        f"#stablehlo.conv<{_spelled(n.lhs_spec, 'b', 'f')}x{_spelled(n.rhs_spec, 'o', 'i')}"
        f"->{_spelled(n.out_spec, 'b', 'f')}>"
    )
    attrs = (
        f"batch_group_count = {p['batch_group_count']} : i64, dimension_numbers = {numbers}, "
        f"feature_group_count = {p['feature_group_count']} : i64, lhs_dilation = {i64_array(p['lhs_dilation'])}, "
        f"padding = {pairs_attribute(p['padding'])}, "
        f"precision_config = {precision_attribute(p['precision'])}, "
        f"rhs_dilation = {i64_array(p['rhs_dilation'])}, window_strides = {i64_array(p['window_strides'])}"
    )
    return ctx.op("stablehlo.convolution", [lhs, rhs], out, attrs)


# ----------------------------------------------------------------------------------------------------------
# Derivatives


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    lhs, rhs = primals
    out = conv_general_dilated_p.bind(lhs, rhs, **params)
    total = None
    if tangents[0] is not None:
        total = conv_general_dilated_p.bind(tangents[0], rhs, **params)
    if tangents[1] is not None:
        total = add_tangents(total, conv_general_dilated_p.bind(lhs, tangents[1], **params))
    return out, total


def merge(x: Any, source: int, target: int) -> Any:
    """`x` with dimension `source` merged into dimension `target` (numbered without `source`): [4, 8] to [32]."""
    shape = list(aval_of(x).shape)
    size = shape.pop(source)
    order = [i for i in range(len(shape) + 1) if i != source]
    order.insert(target, source)
    shape[target] *= size
    return reshape(transpose(x, order), shape)


def unmerge(x: Any, dim: int, size: int) -> Any:
    """The inverse of `merge`: dimension `dim` split into (`size`, rest), [32] to [4, 8] for size 4."""
    shape = aval_of(x).shape
    return reshape(x, (*shape[:dim], size, shape[dim] // size, *shape[dim + 1 :]))


def _pull_lhs(ct: Any, lhs: ShapedArray, rhs: Any, p: dict[str, Any]) -> Any:
    n, features, batches = p["dimension_numbers"], p["feature_group_count"], p["batch_group_count"]
    rhs_shape, groups = aval_of(rhs).shape, max(features, batches)
    pads = operand_gradient_pads(
        taken(lhs.shape, n.lhs_spec[2:]), taken(rhs_shape, n.rhs_spec[2:]), p["window_strides"],
        taken(aval_of(ct).shape, n.out_spec[2:]), p["padding"], p["lhs_dilation"], p["rhs_dilation"],
    )  # fmt: skip
    if groups > 1:
        rhs = merge(unmerge(rhs, n.rhs_spec[0], groups), n.rhs_spec[0], n.rhs_spec[1])
    kernel = rev_p.bind(rhs, dimensions=tuple(n.rhs_spec[2:]))
    out = conv_general_dilated_p.bind(
        ct, kernel, window_strides=p["lhs_dilation"], padding=tuple(pads), lhs_dilation=p["window_strides"],
        rhs_dilation=p["rhs_dilation"], feature_group_count=groups, batch_group_count=1,
        dimension_numbers=ConvDimensionNumbers(n.out_spec, _swapped(n.rhs_spec), n.lhs_spec),
        precision=p["precision"], preferred_element_type=None,
    )  # fmt: skip
    if batches > 1:
        out = merge(unmerge(out, n.lhs_spec[1], batches), n.lhs_spec[1], n.lhs_spec[0])
    return convert_element_type(out, lhs.dtype)


def _pull_rhs(ct: Any, lhs: Any, rhs: ShapedArray, p: dict[str, Any]) -> Any:
    n, features, batches = p["dimension_numbers"], p["feature_group_count"], p["batch_group_count"]
    if features > 1:
        features, batches = 1, features
    elif batches > 1:
        features, batches = batches, 1
    pads = window_gradient_pads(
        taken(aval_of(lhs).shape, n.lhs_spec[2:]), taken(rhs.shape, n.rhs_spec[2:]), p["window_strides"],
        taken(aval_of(ct).shape, n.out_spec[2:]), p["padding"], p["lhs_dilation"], p["rhs_dilation"],
    )  # fmt: skip
    numbers = ConvDimensionNumbers(_swapped(n.lhs_spec), _swapped(n.out_spec), _swapped(n.rhs_spec))
    out = conv_general_dilated_p.bind(
        lhs, ct, window_strides=p["rhs_dilation"], padding=tuple(pads), lhs_dilation=p["lhs_dilation"],
        rhs_dilation=p["window_strides"], feature_group_count=features, batch_group_count=batches,
        dimension_numbers=numbers, precision=p["precision"], preferred_element_type=None,
    )  # fmt: skip
    return convert_element_type(out, rhs.dtype)


def _transpose(ct: Any, lhs: Any, rhs: Any, **p: Any) -> list[Any]:
    known = rhs if is_undefined(lhs) else lhs
    known = convert_element_type(known, aval_of(ct).dtype)
    p = undeclared(p)
    if is_undefined(lhs):
        return [unsplit(lambda ct, rhs: _pull_lhs(ct, lhs.aval, rhs, p), lhs.aval, ct, known), None]
    return [None, unsplit(lambda ct, lhs: _pull_rhs(ct, lhs, rhs.aval, p), rhs.aval, ct, known)]


# ----------------------------------------------------------------------------------------------------------
# Batching


def _batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    if dims[0] is not None and dims[1] is not None:
        return _batch_both(size, args, dims, params)
    return _batch_lhs(size, args, dims[0], params) if dims[1] is None else _batch_rhs(size, args, dims[1], params)


def _batch_both(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    """Every element of the batch becomes a group of its own."""
    (lhs, rhs), n = args, params["dimension_numbers"]
    if params["batch_group_count"] > 1:
        lhs = merge(lhs, dims[0], n.lhs_spec[0])
        params = {**params, "batch_group_count": params["batch_group_count"] * size}
    else:
        lhs = merge(lhs, dims[0], n.lhs_spec[1])
        params = {**params, "feature_group_count": params["feature_group_count"] * size}
    out = conv_general_dilated_p.bind(lhs, merge(rhs, dims[1], n.rhs_spec[0]), **params)
    return unmerge(out, n.out_spec[1], size), n.out_spec[1]


def _batch_lhs(size: int, args: Sequence[Any], dim: Any, params: dict[str, Any]) -> tuple[Any, Any]:
    (lhs, rhs), n, groups = args, params["dimension_numbers"], params["batch_group_count"]
    batch = n.lhs_spec[0]
    if groups == 1:
        lhs = merge(lhs, dim, batch)
    else:
        # Groups stay outermost in the batch dimension: group, mapped, rest.
        at = batch + (dim <= batch)
        lhs = unmerge(lhs, at, groups)
        lhs = merge(lhs, dim + (at < dim), batch + 1)
        lhs = merge(lhs, batch, batch)
    out = conv_general_dilated_p.bind(lhs, rhs, **params)
    return unmerge(out, n.out_spec[0], size), n.out_spec[0]


def _batch_rhs(size: int, args: Sequence[Any], dim: Any, params: dict[str, Any]) -> tuple[Any, Any]:
    (lhs, rhs), n = args, params["dimension_numbers"]
    groups = max(params["feature_group_count"], params["batch_group_count"])
    outs, channels = n.rhs_spec[0], n.out_spec[1]
    if groups == 1:
        out = conv_general_dilated_p.bind(lhs, merge(rhs, dim, outs), **params)
        return unmerge(out, channels, size), channels
    # Groups stay outermost in the output features: group, mapped, rest.
    at = outs + (dim <= outs)
    rhs = unmerge(rhs, at, groups)
    rhs = merge(rhs, dim + (at < dim), outs + 1)
    rhs = merge(rhs, outs, outs)
    out = conv_general_dilated_p.bind(lhs, rhs, **params)
    out = unmerge(out, channels, groups)
    out = unmerge(out, channels + 1, size)
    return merge(out, channels, channels + 1), channels


def _explicit(app: Application) -> Sequence[Spec] | None:
    """Kernels are whole, and so are the features of images; what splits anything else is said by `out_sharding`."""
    if OUT_SHARDING in app.params:
        return None
    numbers = app.params["dimension_numbers"]
    lhs, rhs = app.specs
    if any(e is not None for e in rhs) or lhs[numbers.lhs_spec[1]] is not None:
        app.refuse(
            "Please specify the output sharding via `out_sharding` parameter of `conv_general_dilated`: the kernel "
            f"and the features of its input must be unsharded. Got lhs {shown(lhs)} and rhs {shown(rhs)}.",
            "give `out_sharding=P(...)`",
        )
    return keeps("conv_general_dilated")(app)


conv_general_dilated_p = Primitive(
    "conv_general_dilated",
    _infer,
    shown=also("out_sharding", "precision", "preferred_element_type"),
    lower=_lower,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    explicit=_explicit,
    contraction=True,
    finite=True,
)
