"""The gather primitive: windows of an array at positions held in an index array.

The index vector is always the last dimension of the indices. Dimensions in `operand_batching_dims` pair with
`start_indices_batching_dims`; vmap uses them, so that a batch dimension stays a plain batch dimension for
propagation and partitioning.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.reshape import broadcast_in_dim, canonical_shape, i64_array
from meshrt.transforms.tools import zeros

__all__ = ["GatherDimensionNumbers", "GatherScatterMode", "gather"]


class GatherDimensionNumbers(NamedTuple):
    """How the dimensions of operand, indices and result of a gather relate.

    `offset_dims`: dimensions of the result that come from the window; the others come from the indices.
    `collapsed_slice_dims`: operand dimensions of window size 1 that the result lacks.
    `start_index_map`: the operand dimension that each entry of an index vector positions.
    `operand_batching_dims`, `start_indices_batching_dims`: dimensions walked in step.
    """

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()


class GatherScatterMode(enum.Enum):
    """What becomes of windows that reach out of bounds.

    CLIP moves them inside. FILL_OR_DROP fills the whole gathered window with a constant, or drops the scattered one.
    PROMISE_IN_BOUNDS leaves it to the compiler (which clips gathers and drops scatters).
    """

    CLIP = enum.auto()
    FILL_OR_DROP = enum.auto()
    PROMISE_IN_BOUNDS = enum.auto()

    @staticmethod
    def from_any(mode: str | GatherScatterMode | None) -> GatherScatterMode:
        """The mode for "clip", "fill", "drop", "promise_in_bounds", a mode, or None (FILL_OR_DROP)."""
        if isinstance(mode, GatherScatterMode):
            return mode
        if mode is None:
            return GatherScatterMode.FILL_OR_DROP
        try:
            return _MODES[mode]
        except (KeyError, TypeError):
            raise errors.ArgumentValueError(
                f"unknown mode {mode!r} for out-of-bounds indices; known: {', '.join(map(repr, _MODES))}"
            ) from None


_MODES = {
    "clip": GatherScatterMode.CLIP,
    "fill": GatherScatterMode.FILL_OR_DROP,
    "drop": GatherScatterMode.FILL_OR_DROP,
    "promise_in_bounds": GatherScatterMode.PROMISE_IN_BOUNDS,
}


def check_indices(name: str, indices: ShapedArray, count: int) -> None:
    """Raises unless `indices` are integers whose last dimension has `count` entries."""
    if indices.is_key or not dtypes.issubdtype(indices.dtype, np.integer):
        raise errors.ArgumentTypeError(f"{name} needs integer indices but got {indices.str_short()}")
    if indices.ndim < 1 or indices.shape[-1] != count:
        raise errors.ArgumentTypeError(
            f"{name} needs index vectors of {count} entries (one per mapped dimension) in the last dimension of the "
            f"indices but got {indices.str_short()}"
        )


def _distinct(dims: Sequence[int], ndim: int) -> bool:
    return len(set(dims)) == len(dims) and all(0 <= d < ndim for d in dims)


def _increasing(dims: Sequence[int], ndim: int) -> bool:
    return _distinct(dims, ndim) and list(dims) == sorted(dims)


def check_dimension_numbers(
    name: str,
    operand: ShapedArray,
    indices: ShapedArray,
    window: Sequence[int],
    window_rank: int,
    dropped: Sequence[int],
    index_map: Sequence[int],
    operand_batching: Sequence[int],
    indices_batching: Sequence[int],
) -> None:
    """The conditions that gather and scatter share; `window` lies in an array of rank `window_rank`."""
    check_indices(name, indices, len(index_map))
    problems = [
        (
            _increasing(window, window_rank),
            f"window dimensions {window} must increase and lie below {window_rank}",
        ),
        (
            _increasing(dropped, operand.ndim),
            f"dropped dimensions {dropped} must increase and be the operand's",
        ),
        (
            _distinct(index_map, operand.ndim),
            f"indexed dimensions {index_map} must be distinct and the operand's",
        ),
        (
            _increasing(operand_batching, operand.ndim),
            f"batching dimensions {operand_batching} must increase",
        ),
        (
            _distinct(indices_batching, indices.ndim - 1),
            f"indices batching dimensions {indices_batching} must differ",
        ),
        (
            not set(operand_batching) & {*dropped, *index_map},
            f"batching dimensions {operand_batching} must be neither dropped nor indexed",
        ),
        (
            len(window) + len(dropped) + len(operand_batching) == operand.ndim,
            f"window {window}, dropped {dropped} and batching {operand_batching} dimensions must make up its rank",
        ),
        (
            len(operand_batching) == len(indices_batching)
            and all(operand.shape[a] == indices.shape[b] for a, b in zip(operand_batching, indices_batching)),
            f"batching dimensions {operand_batching} of it and {indices_batching} of the indices must agree in size",
        ),
    ]
    for holds, text in problems:
        if not holds:
            raise errors.ArgumentTypeError(f"{name} of {operand.str_short()} at indices {indices.str_short()}: {text}")


def _infer(operand, indices, *, dimension_numbers, slice_sizes, unique_indices, indices_are_sorted, mode, fill_value):
    d = dimension_numbers
    rank = len(d.offset_dims) + indices.ndim - 1
    check_dimension_numbers(
        "gather", operand, indices, d.offset_dims, rank, d.collapsed_slice_dims, d.start_index_map,
        d.operand_batching_dims, d.start_indices_batching_dims,
    )  # fmt: skip
    hidden = {*d.collapsed_slice_dims, *d.operand_batching_dims}
    if len(slice_sizes) != operand.ndim or any(
        not 0 <= s <= n or (i in hidden and s > 1) for i, (s, n) in enumerate(zip(slice_sizes, operand.shape))
    ):
        raise errors.ArgumentTypeError(
            f"gather of {operand.str_short()} needs a slice size for each dimension, at most the dimension's (and 1 "
            f"for collapsed and batching dimensions {sorted(hidden)}), but got {slice_sizes}"
        )
    window = iter([s for i, s in enumerate(slice_sizes) if i not in hidden])
    batch = iter(indices.shape[:-1])
    shape = tuple([next(window) if i in d.offset_dims else next(batch) for i in range(rank)])
    return ShapedArray(shape, operand.dtype, operand.weak_type)


# ----------------------------------------------------------------------------------------------------------
# Lowering


def _lower(ctx, eqn, operand, indices):
    p, out = eqn.params, eqn.outvars[0].aval
    gathered = _lower_gather(ctx, p, operand, indices, eqn.invars[1].aval, out)
    if p["mode"] is not GatherScatterMode.FILL_OR_DROP:
        return gathered
    mask = _lower_in_bounds(ctx, p, eqn.invars[0].aval, eqn.invars[1].aval, indices)
    physical = out.physical()
    offset = p["dimension_numbers"].offset_dims
    mask_aval = ShapedArray(eqn.invars[1].aval.shape[:-1], np.dtype(bool))
    spread_aval = ShapedArray(physical.shape, np.dtype(bool))
    mask = ctx.broadcast(mask, mask_aval, spread_aval, [i for i in range(out.ndim) if i not in offset])
    return ctx.op("stablehlo.select", [mask, gathered, ctx.full(p["fill_value"], physical)], out)


def _lower_gather(ctx, p, operand, indices, indices_aval, out):
    d, sizes, offset = p["dimension_numbers"], p["slice_sizes"], p["dimension_numbers"].offset_dims
    if out.is_key:
        sizes, offset = (*sizes, *out.dtype.physical_suffix), (*offset, out.ndim)
    numbers = (
        f"#stablehlo.gather<offset_dims = {list(offset)}, collapsed_slice_dims = {list(d.collapsed_slice_dims)}, "
        f"operand_batching_dims = {list(d.operand_batching_dims)}, "
        f"start_indices_batching_dims = {list(d.start_indices_batching_dims)}, "
        f"start_index_map = {list(d.start_index_map)}, index_vector_dim = {indices_aval.ndim - 1}>"
    )
    attrs = (
        f"dimension_numbers = {numbers}, indices_are_sorted = {str(p['indices_are_sorted']).lower()}, "
        f"slice_sizes = {i64_array(sizes)}"
    )
    return ctx.op("stablehlo.gather", [operand, indices], out, attrs)


def index_bounds(shape: Sequence[int], sizes: Sequence[int], index_map: Sequence[int], dtype: Any) -> np.ndarray:
    """The largest index in each indexed dimension for which a window lies inside, as `dtype`."""
    limit = int(dtypes.iinfo(dtype).max)
    return np.asarray([min(shape[i] - sizes[i], limit) for i in index_map], dtype)


def _lower_in_bounds(ctx, p, operand, aval, indices):
    """A mask over the index vectors: whether the whole window lies inside."""
    from meshrt.primitives.reduce import lower_reduce

    dtype = aval.dtype
    upper = index_bounds(operand.shape, p["slice_sizes"], p["dimension_numbers"].start_index_map, dtype)
    signed = "UNSIGNED" if dtypes.issubdtype(dtype, np.unsignedinteger) else "SIGNED"
    flags = ShapedArray(aval.shape, np.dtype(bool))
    out = ShapedArray(aval.shape[:-1], np.dtype(bool))

    def compare(direction, bound):
        attrs = (
            f"comparison_direction = #stablehlo<comparison_direction {direction}>, "
            f"compare_type = #stablehlo<comparison_type {signed}>"
        )
        return ctx.op("stablehlo.compare", [indices, bound], flags, attrs)

    if not upper.size:
        return ctx.full(True, out)
    if (upper == upper[0]).all():
        bound = ctx.full(upper[0], aval)
    else:
        bound = ctx.broadcast(ctx.array(upper), ShapedArray(upper.shape, dtype), aval, [aval.ndim - 1])
    inside = compare("LE", bound)
    if signed == "SIGNED":
        inside = ctx.op("stablehlo.and", [compare("GE", ctx.full(0, aval)), inside], flags)
    if aval.shape[-1] == 1:
        return ctx.op("stablehlo.reshape", [inside], out)
    return lower_reduce(ctx, "stablehlo.and", inside, flags, out, (aval.ndim - 1,), True)


# ----------------------------------------------------------------------------------------------------------
# Derivatives and batching


def _tangent_params(params):
    fill = 0 if params["mode"] is GatherScatterMode.FILL_OR_DROP else None
    return {**params, "fill_value": fill}


def _jvp(primals, tangents, **params):
    operand, indices = primals
    out = gather_p.bind(operand, indices, **params)
    t = tangents[0]
    return out, None if t is None else gather_p.bind(t, indices, **_tangent_params(params))


def _transpose(ct, operand, indices, *, dimension_numbers, unique_indices, indices_are_sorted, mode, **_):
    from meshrt.primitives.scatter import ScatterDimensionNumbers, scatter_add_p

    d = dimension_numbers
    numbers = ScatterDimensionNumbers(
        d.offset_dims,
        d.collapsed_slice_dims,
        d.start_index_map,
        d.operand_batching_dims,
        d.start_indices_batching_dims,
    )
    base = zeros(ShapedArray(operand.aval.shape, aval_of(ct).dtype))
    out = scatter_add_p.bind(
        base, indices, ct, dimension_numbers=numbers, indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices, mode=mode,
    )  # fmt: skip
    return [out, None]


def shifted(dims: Sequence[int]) -> tuple[int, ...]:
    """Dimension numbers after a dimension was added in front."""
    return tuple([d + 1 for d in dims])


def _batch(size, args, dims, params):
    from meshrt.transforms.batching import move_dim

    (operand, indices), n, sizes = args, params["dimension_numbers"], params["slice_sizes"]
    if dims[0] is not None:
        operand = move_dim(operand, dims[0], 0)
        n = n._replace(
            collapsed_slice_dims=shifted(n.collapsed_slice_dims), start_index_map=shifted(n.start_index_map),
            operand_batching_dims=shifted(n.operand_batching_dims),
        )  # fmt: skip
    if dims[1] is not None:
        indices = move_dim(indices, dims[1], 0)
        n = n._replace(start_indices_batching_dims=shifted(n.start_indices_batching_dims))
    offset = shifted(n.offset_dims)
    if dims[1] is None:
        n, sizes = n._replace(offset_dims=(0, *offset)), (size, *sizes)
    elif dims[0] is None:
        n = n._replace(offset_dims=offset)
    else:
        sizes = (min(size, 1), *sizes)
        n = n._replace(
            offset_dims=offset, operand_batching_dims=(0, *n.operand_batching_dims),
            start_indices_batching_dims=(0, *n.start_indices_batching_dims),
        )  # fmt: skip
    return gather_p.bind(operand, indices, **{**params, "dimension_numbers": n, "slice_sizes": sizes}), 0


gather_p = Primitive("gather", _infer, lower=_lower, jvp=_jvp, transpose=_transpose, batch=_batch)


def _default_fill(dtype: Any) -> Any:
    """NaN for inexact types, the most negative value for signed integers, the largest for unsigned, True for bool."""
    if isinstance(dtype, dtypes.KeyType):
        return np.iinfo(np.uint32).max
    if dtypes.issubdtype(dtype, np.inexact):
        return np.nan
    if dtype == np.bool_:
        return True
    info = dtypes.iinfo(dtype)
    return int(info.max if dtypes.issubdtype(dtype, np.unsignedinteger) else info.min)


def gather(
    operand: Any,
    start_indices: Any,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: str | GatherScatterMode | None = None,
    fill_value: Any = None,
) -> Any:
    """Windows of `operand` of shape `slice_sizes` at the positions in `start_indices` (see GatherDimensionNumbers).

    `mode` says what happens out of bounds (None: PROMISE_IN_BOUNDS). `fill_value` is used by FILL_OR_DROP; its default
    is NaN for inexact types, the smallest value of signed integers, the largest of unsigned ones, True for bool.
    `unique_indices` and `indices_are_sorted` are promises that help the compiler.
    """
    mode = GatherScatterMode.PROMISE_IN_BOUNDS if mode is None else GatherScatterMode.from_any(mode)
    if mode is not GatherScatterMode.FILL_OR_DROP:
        fill_value = None
    elif fill_value is None:
        fill_value = _default_fill(aval_of(operand).dtype)
    elif aval_of(fill_value).ndim or not isinstance(fill_value, bool | int | float | complex | np.generic | np.ndarray):
        raise errors.ArgumentTypeError(f"fill_value must be a scalar known while tracing but got {fill_value!r}")
    else:
        fill_value = fill_value.item() if isinstance(fill_value, np.generic | np.ndarray) else fill_value
    numbers = GatherDimensionNumbers(*(tuple(map(int, d)) for d in dimension_numbers))
    return gather_p.bind(
        operand, start_indices, dimension_numbers=numbers, slice_sizes=canonical_shape(slice_sizes, "slice size"),
        unique_indices=bool(unique_indices), indices_are_sorted=bool(indices_are_sorted), mode=mode,
        fill_value=fill_value,
    )  # fmt: skip


def take_along(operand: Any, positions: Any, axis: int) -> Any:
    """`operand[..., positions, ...]` along `axis`, element by element; other dimensions agree in size.

    `positions` (integers, in bounds) has the operand's rank. All other dimensions are batching dimensions.
    """
    shape, out = aval_of(operand).shape, aval_of(positions).shape
    others = tuple([i for i in range(len(shape)) if i != axis])
    numbers = GatherDimensionNumbers((), (axis,), (axis,), others, others)
    indices = broadcast_in_dim(positions, (*out, 1), range(len(out)))
    return gather(operand, indices, numbers, [min(n, 1) for n in shape])
