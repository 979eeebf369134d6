"""The primitives that put together and take apart: all_gather, reduce_scatter, all_to_all.

    all_gather[all_gather_dimension ... tiled]  [6]    -> [4, 6], tiled [24]       each gets the values of all n = 4
    reduce_scatter[scatter_dimension ... tiled] [4, 6] -> [6], tiled [24] -> [6]   each gets its part of the sum
    all_to_all[split_axis concat_axis ...]      [8, 6] -> [2, 24]                  part j of i becomes part i of j

`sizes` are those of the axes in `axis_name`, `axis_size` how many values meet: their product, or the size of groups.
Over a mapped dimension all of them are transpositions of it; over one among several axes, an operation over the others
and such a transposition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.basic.kinds import has_kind
from meshrt.core.basic.shapes import linear_jvp, move_dim, reduce_sum_p, transpose
from meshrt.core.basic.varying import in_order, vary
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.lowering.groups import IndexGroups
from meshrt.primitives import elementwise as ew
from meshrt.primitives.collective import times
from meshrt.primitives.collective_axes import index_of
from meshrt.primitives.collective_names import (
    Names,
    merge_dims,
    refuse_groups,
    split_dim,
    spread_out,
    taken,
    without,
)
from meshrt.primitives.concatenate import concatenate
from meshrt.primitives.dynamic_slice import dynamic_slice_in_dim
from meshrt.primitives.reshape import squeeze
from meshrt.transforms.batching import MappedAxis

# `meshrt.primitives.collective_functions` has the public functions.
__all__: list[str] = []


def _names(params: dict[str, Any]) -> Names:
    names: Names = params["axis_name"]
    return names


def _like(ct: Any, x: Any) -> Any:
    return vary(ct, in_order(x.aval.vma))


def _parts(names: Names, sizes: Sequence[int], name: Any) -> tuple[int, int, Names, tuple[int, ...]]:
    """Sizes of the axes before and after `name`, and the names and sizes of all others."""
    i = names.index(name)
    others = (*sizes[:i], *sizes[i + 1 :])
    return math.prod(sizes[:i]), math.prod(sizes[i + 1 :]), without(names, name), others


# ---------------------------------------------------------------------------------------------------------------------
# all_gather


def gather_type(is_invariant: bool) -> Callable[..., ShapedArray]:
    def infer(
        x: ShapedArray, *, all_gather_dimension: int, axis_name: Names, sizes: tuple[int, ...],
        axis_index_groups: IndexGroups | None, axis_size: int, tiled: bool,
    ) -> ShapedArray:  # fmt: skip
        d, shape = all_gather_dimension, list(x.shape)
        if tiled:
            shape[d] *= axis_size
        else:
            shape.insert(d, axis_size)
        vma = x.vma.difference(axis_name) if is_invariant else x.vma
        return x.update(shape=tuple(shape), vma=vma, sharding=resharded(x, d, is_new=not tiled))

    return infer


def resharded(x: ShapedArray, dim: int, is_new: bool = False, is_gone: bool = False) -> Any:
    """The sharding over Explicit axes of a type after dimension `dim` has been put in, taken out or changed in size."""
    if x.explicit is None:
        return None
    entries = list(x.explicit.spec.padded(x.ndim))
    if is_new:
        entries.insert(dim, None)
    elif is_gone:
        del entries[dim]
    while entries and entries[-1] is None:
        entries.pop()
    return x.explicit.update(spec=type(x.explicit.spec)(*entries)) if entries else None


def _gather_lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    p, out = eqn.params, eqn.outvars[0].aval
    d, physical = p["all_gather_dimension"], eqn.invars[0].aval
    if not p["tiled"]:
        shape = (*physical.shape[:d], 1, *physical.shape[d:])
        x = ctx.op("stablehlo.reshape", [x], ShapedArray(shape, physical.dtype))
    groups = ctx.groups(p["axis_name"], p["axis_index_groups"])
    if groups.shape[1] == 1:
        return x
    return ctx.collective("stablehlo.all_gather", x, out, groups, f"all_gather_dim = {d} : i64, use_global_device_ids")


def _gather_batch(get: Callable[[], Primitive]) -> Callable[..., Any]:
    def batch(
        axis: MappedAxis, args: Sequence[Any], dims: Sequence[int | None], params: dict[str, Any]
    ) -> tuple[Any, int | None]:
        (x,), (d,), at, names = args, dims, params["all_gather_dimension"], params["axis_name"]
        if axis.name is None or axis.name not in names:
            if d is None:
                return get().bind(x, **params), None
            moved = {**params, "all_gather_dimension": at + (d <= at)}
            return get().bind(x, **moved), d + (at < d and not params["tiled"])
        refuse_groups("all_gather", params["axis_index_groups"], names)
        x, d = spread_out(x, d, axis.size)
        x = move_dim(x, d, 0)
        if params["axis_index_groups"] is not None:
            return _gather_in_groups(x, at, params["axis_index_groups"], params["tiled"]), 0
        before, after, rest, sizes = _parts(names, params["sizes"], axis.name)
        if rest:  # [rest, mapped, ...], then the places in the order of the names
            x = get().bind(
                x, all_gather_dimension=0, axis_name=rest, sizes=sizes, axis_index_groups=None,
                axis_size=before * after, tiled=False,
            )  # fmt: skip
            x = merge_dims(move_dim(split_dim(x, 0, (before, after)), 2, 1), 0, 3)
        x = move_dim(x, 0, at)
        return (merge_dims(x, at, 2) if params["tiled"] else x), None

    return batch


def _gather_in_groups(x: Any, at: int, groups: IndexGroups, tiled: bool) -> Any:
    """Each row of `x` gets the rows of its group."""
    of = {i: group for group in groups for i in group}
    rows = [j for i in range(len(of)) for j in of[i]]
    x = split_dim(taken(x, rows, 0), 0, (len(of), len(groups[0])))
    x = move_dim(x, 1, at + 1)
    return merge_dims(x, at + 1, 2) if tiled else x


def _gather_transpose(ct: Any, x: Any, *, all_gather_dimension: int, **params: Any) -> list[Any]:
    return [reduce_scatter_p.bind(_like(ct, x), scatter_dimension=all_gather_dimension, **params)]


def _own_part(ct: Any, x: Any, *, all_gather_dimension: int, axis_name: Names, tiled: bool, **params: Any) -> list[Any]:
    """The part of a cotangent, which all devices have, that belongs to this one's operand."""
    ct = _like(ct, x)
    d = all_gather_dimension
    size = aval_of(ct).shape[d] // params["axis_size"]
    start = ew.mul(index_of(axis_name, params["sizes"], x.aval.vma), np.int32(size))
    part = dynamic_slice_in_dim(ct, start, size, d)
    return [part if tiled else squeeze(part, (d,))]


all_gather_p: Primitive = Primitive(
    "all_gather",
    gather_type(False),
    shown=lambda eqn: {"axis_index_groups": None, **{k: v for k, v in eqn.params.items() if k != "sizes"}},
    lower=_gather_lower,
    jvp=linear_jvp(lambda: all_gather_p),
    transpose=_gather_transpose,
    batch=_gather_batch(lambda: all_gather_p),
    batch_axis=True,
    typed=True,
    finite=True,
    names=_names,
    alike=True,
)
all_gather_invariant_p: Primitive = Primitive(
    "all_gather_invariant",
    gather_type(True),
    lower=_gather_lower,
    jvp=linear_jvp(lambda: all_gather_invariant_p),
    transpose=_own_part,
    batch=_gather_batch(lambda: all_gather_invariant_p),
    batch_axis=True,
    typed=True,
    finite=True,
    names=_names,
    alike=True,
)

# ---------------------------------------------------------------------------------------------------------------------
# psum_scatter


def scatter_type(
    x: ShapedArray, *, scatter_dimension: int, axis_name: Names, sizes: tuple[int, ...],
    axis_index_groups: IndexGroups | None, axis_size: int, tiled: bool,
) -> ShapedArray:  # fmt: skip
    d, shape = scatter_dimension, list(x.shape)
    if not has_kind(x.dtype, "biufc"):
        raise errors.ArgumentTypeError(f"psum_scatter does not accept dtype {x.dtype}; convert with astype")
    if tiled:
        shape[d] //= axis_size
    else:
        del shape[d]
    return x.update(shape=tuple(shape), sharding=resharded(x, d, is_gone=not tiled))


def _scatter_lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    p, out, aval = eqn.params, eqn.outvars[0].aval, eqn.invars[0].aval
    d = p["scatter_dimension"]
    groups = ctx.groups(p["axis_name"], p["axis_index_groups"])
    if groups.shape[1] > 1:
        shape = (*aval.shape[:d], aval.shape[d] // p["axis_size"], *aval.shape[d + 1 :])
        op = "stablehlo.or" if aval.dtype == np.bool_ else "stablehlo.add"
        attrs = f"scatter_dimension = {d} : i64, use_global_device_ids"
        x = ctx.collective("stablehlo.reduce_scatter", x, ShapedArray(shape, aval.dtype), groups, attrs, op)
    return x if p["tiled"] else ctx.op("stablehlo.reshape", [x], out)


def _scatter_batch(
    axis: MappedAxis, args: Sequence[Any], dims: Sequence[int | None], params: dict[str, Any]
) -> tuple[Any, int | None]:
    (x,), (d,), at, names = args, dims, params["scatter_dimension"], params["axis_name"]
    if axis.name is None or axis.name not in names:
        if d is None:
            return reduce_scatter_p.bind(x, **params), None
        moved = {**params, "scatter_dimension": at + (d <= at)}
        return reduce_scatter_p.bind(x, **moved), d - (at < d and not params["tiled"])
    refuse_groups("psum_scatter", params["axis_index_groups"], names)
    if params["axis_index_groups"] is not None:
        x = move_dim(*spread_out(x, d, axis.size), 0)
        return _scatter_in_groups(x, at, params["axis_index_groups"], params["tiled"]), 0
    x = times(x, axis.size) if d is None else reduce_sum_p.bind(x, axes=(d,))
    before, after, rest, sizes = _parts(names, params["sizes"], axis.name)
    size = aval_of(x).shape[at] // params["axis_size"]
    # The part of each place of the mapped dimension; the others' parts stay together.
    x = merge_dims(move_dim(split_dim(x, at, (before, axis.size, after, size)), at + 1, 0), at + 1, 3)
    if rest:
        x = reduce_scatter_p.bind(
            x, scatter_dimension=at + 1, axis_name=rest, sizes=sizes, axis_index_groups=None, axis_size=before * after,
            tiled=True,
        )  # fmt: skip
    return (x if params["tiled"] else squeeze(x, (at + 1,))), 0


def _scatter_in_groups(x: Any, at: int, groups: IndexGroups, tiled: bool) -> Any:
    """Each row of `x` gets its part of the sum of the rows of its group."""
    parts = []
    for group in groups:
        total = reduce_sum_p.bind(taken(x, group, 0), axes=(0,))
        size = aval_of(total).shape[at] // len(group)
        parts.append(move_dim(split_dim(total, at, (len(group), size)), at, 0))
    order = [i for group in groups for i in group]
    x = taken(concatenate(parts, 0), np.argsort(order).tolist(), 0)
    return x if tiled else squeeze(x, (at + 1,))


def _scatter_transpose(ct: Any, x: Any, *, scatter_dimension: int, **params: Any) -> list[Any]:
    return [all_gather_p.bind(_like(ct, x), all_gather_dimension=scatter_dimension, **params)]


reduce_scatter_p: Primitive = Primitive(
    "reduce_scatter",
    scatter_type,
    lower=_scatter_lower,
    jvp=linear_jvp(lambda: reduce_scatter_p),
    transpose=_scatter_transpose,
    batch=_scatter_batch,
    batch_axis=True,
    typed=True,
    finite=True,
    names=_names,
)


# ---------------------------------------------------------------------------------------------------------------------
# all_to_all


def _exchange_infer(
    x: ShapedArray, *, split_axis: int, concat_axis: int, axis_name: Names, sizes: tuple[int, ...],
    axis_index_groups: IndexGroups | None, axis_size: int,
) -> ShapedArray:  # fmt: skip
    shape = list(x.shape)
    shape[split_axis] //= axis_size
    shape[concat_axis] *= axis_size
    return x.update(shape=tuple(shape), weak_type=False, sharding=x.explicit)


def _exchange_lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    p = eqn.params
    groups = ctx.groups(p["axis_name"], p["axis_index_groups"])
    if groups.shape[1] == 1:
        return x
    attrs = (
        f"concat_dimension = {p['concat_axis']} : i64, split_count = {groups.shape[1]} : i64, "
        f"split_dimension = {p['split_axis']} : i64"
    )
    return ctx.collective("stablehlo.all_to_all", x, eqn.outvars[0].aval, groups, attrs)


def _exchange_batch(
    axis: MappedAxis, args: Sequence[Any], dims: Sequence[int | None], params: dict[str, Any]
) -> tuple[Any, int | None]:
    (x,), (d,), names = args, dims, params["axis_name"]
    split, concat = params["split_axis"], params["concat_axis"]
    if axis.name is None or axis.name not in names:
        if d is None:
            return all_to_all_p.bind(x, **params), None
        moved = {**params, "split_axis": split + (d <= split), "concat_axis": concat + (d <= concat)}
        return all_to_all_p.bind(x, **moved), d
    refuse_groups("all_to_all", params["axis_index_groups"], names)
    x = move_dim(*spread_out(x, d, axis.size), 0)
    n = params["axis_size"]
    size = aval_of(x).shape[split + 1] // n
    if params["axis_index_groups"] is not None:
        x = _exchange_in_groups(split_dim(x, split + 1, (n, size)), split + 1, params["axis_index_groups"])
        return _joined(x, split + 1, concat + 1), 0
    before, after, rest, sizes = _parts(names, params["sizes"], axis.name)
    x = split_dim(x, split + 1, (before, axis.size, after, size))
    order = list(range(aval_of(x).ndim))
    order[0], order[split + 2] = split + 2, 0  # who sends, and to whom
    x = transpose(x, order)
    place = names.index(axis.name)
    for part, at in ((slice(0, place), split + 1), (slice(place, None), split + 3)):
        if rest[part]:
            x = all_to_all_p.bind(
                x, split_axis=at, concat_axis=at, axis_name=rest[part], sizes=sizes[part], axis_index_groups=None,
                axis_size=math.prod(sizes[part]),
            )  # fmt: skip
    return _joined(merge_dims(x, split + 1, 3), split + 1, concat + 1), 0


def _exchange_in_groups(x: Any, at: int, groups: IndexGroups) -> Any:
    """Row i gets of every member of its group the part at `at` that is meant for it."""
    order = [i for group in groups for i in group]
    x = split_dim(taken(x, order, 0), 0, (len(groups), len(groups[0])))
    swapped = list(range(aval_of(x).ndim))
    swapped[1], swapped[at + 1] = at + 1, 1
    x = merge_dims(transpose(x, swapped), 0, 2)
    return taken(x, np.argsort(order).tolist(), 0)


def _joined(x: Any, parts: int, concat: int) -> Any:
    """The dimension `parts`, which stands before the one it was split from, joined into dimension `concat`, whose
    number is that without `parts`."""
    return merge_dims(move_dim(x, parts, concat), concat, 2)


all_to_all_p: Primitive = Primitive(
    "all_to_all",
    _exchange_infer,
    lower=_exchange_lower,
    jvp=linear_jvp(lambda: all_to_all_p),
    transpose=lambda ct, x, *, split_axis, concat_axis, **params: [
        all_to_all_p.bind(_like(ct, x), split_axis=concat_axis, concat_axis=split_axis, **params)
    ],
    batch=_exchange_batch,
    batch_axis=True,
    typed=True,
    finite=True,
    names=_names,
)
