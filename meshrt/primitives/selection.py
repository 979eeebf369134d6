"""Elementwise choice among arrays: select_n."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.basic.shapes import bring_to_front, broadcast_in_dim, broadcast_in_dim_p, instantiate, zeros
from meshrt.core.completion import OUT_SHARDING
from meshrt.core.explicit import Application, Spec, joined, shown
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive, is_undefined
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext


def _listed(avals: Sequence[ShapedArray], field: str) -> str:
    return ", ".join(str(getattr(a, field)) for a in avals)


def _select_infer(which: ShapedArray, *cases: ShapedArray) -> ShapedArray:
    shape = cases[0].shape
    for c in cases:
        if c.shape != shape:
            raise errors.ArgumentTypeError(f"select cases must have the same shapes, got [{_listed(cases, 'shape')}].")
        if c.dtype != cases[0].dtype:
            raise errors.ArgumentTypeError(
                f"lax.select requires arguments to have the same dtypes, got {_listed(cases, 'dtype')}. Convert one of "
                "them with astype, or use meshrt.numpy.where, which promotes"
            )
    if which.shape != shape and which.shape:
        raise errors.ArgumentTypeError(
            f"select `which` must be scalar or have the same shape as cases, got `which` shape {which.shape} but case "
            f"shape {shape}"
        )
    if which.dtype == np.bool_ and len(cases) > 2:
        raise errors.ArgumentTypeError(
            f"select with boolean `which` cannot have > 2 cases, got {len(cases)}; use int32 for more"
        )
    if which.dtype not in (np.dtype(bool), np.dtype(np.int32)):
        raise errors.ArgumentTypeError(
            f"select `which` must be boolean or integer type, got {which.dtype}; of integers it takes int32"
        )
    return ShapedArray(shape, cases[0].dtype, all(c.weak_type for c in cases))


def _select_lower(ctx: LoweringContext, eqn: Eqn, which: Any, *cases: Any) -> Any:
    if all(c is cases[0] for c in cases):  # the choice is for the derivative's sake
        return cases[0]
    out = eqn.outvars[0].aval
    kind = eqn.invars[0].aval
    if out.is_extended and kind.ndim:
        kind, which = (
            ShapedArray(out.physical().shape, kind.dtype),
            ctx.broadcast(which, kind, ShapedArray(out.physical().shape, kind.dtype), range(kind.ndim)),
        )
    if kind.dtype == np.bool_:
        return ctx.op("stablehlo.select", [which, cases[-1], cases[0]], out) if len(cases) == 2 else cases[0]
    return _select_tree(ctx, which, kind, cases, 0, out)


def _select_tree(ctx: LoweringContext, which: Any, kind: Any, cases: Any, offset: Any, out: Any) -> Any:
    """A binary tree of selects on an integer index."""
    if len(cases) == 1:
        return cases[0]
    middle = len(cases) // 2
    attrs = (
        "comparison_direction = #stablehlo<comparison_direction LT>, compare_type = #stablehlo<comparison_type SIGNED>"
    )
    less = ctx.op(
        "stablehlo.compare",
        [which, ctx.full(offset + middle, kind.strong())],
        ShapedArray(kind.shape, np.dtype(bool)),
        attrs,
    )
    low = _select_tree(ctx, which, kind, cases[:middle], offset, out)
    high = _select_tree(ctx, which, kind, cases[middle:], offset + middle, out)
    return ctx.op("stablehlo.select", [less, low, high], out)


def _select_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    which, *cases = primals
    out = select_n_p.bind(which, *cases)
    if all(t is None for t in tangents[1:]):
        return out, None
    return out, select_n_p.bind(which, *[instantiate(t, c) for t, c in zip(tangents[1:], cases)])


def _select_transpose(ct: Any, which: Any, *cases: Any) -> list[Any]:
    zero = zeros(aval_of(ct))
    return [None] + [
        select_n_p.bind(which, *[ct if i == j else zero for j in range(len(cases))]) if is_undefined(c) else None
        for i, c in enumerate(cases)
    ]


def _select_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    which, *cases = args
    if dims[0] is None and aval_of(which).ndim == 0:
        return select_n_p.bind(which, *_cases_alike(size, cases, dims[1:])), 0
    cases = _cases_alike(size, cases, dims[1:])
    which = bring_to_front(size, which, dims[0])
    if aval_of(which).ndim == 1 and aval_of(cases[0]).ndim > 1:
        which = broadcast_in_dim(which, aval_of(cases[0]).shape, (0,))
    return select_n_p.bind(which, *cases), 0


def _cases_alike(size: int, cases: Sequence[Any], dims: Sequence[Any]) -> list[Any]:
    """The cases with the mapped dimension first; those without it that nobody has split are split as the others are.

    Else they would be split along the mapped dimension alone, and no longer pass for values that are not split.
    """
    out = [None if d is None else bring_to_front(size, c, d) for c, d in zip(cases, dims)]
    known = next((aval_of(c).explicit for c in out if c is not None and aval_of(c).explicit is not None), None)
    for i, c in enumerate(cases):
        if out[i] is not None:
            continue
        aval = aval_of(c)
        if known is None or (aval.explicit is not None and aval.explicit.spec.axes):
            out[i] = bring_to_front(size, c, None)
            continue
        dimensions = tuple(range(1, aval.ndim + 1))
        out[i] = broadcast_in_dim_p.bind(
            c, shape=(size, *aval.shape), broadcast_dimensions=dimensions, **{OUT_SHARDING: known}
        )
    return out


def _select_explicit(app: Application) -> list[Spec]:
    """Split cases are split alike, and `which` as they are.

    Those that are not split at all are cut to match: a type does not say whether they are meant to be whole, or are
    zeros that nobody has split yet.
    """
    which, *cases = app.specs
    split = [c for c in cases if any(c)]
    if any(c != split[0] for c in split):
        app.refuse(f"select cases must have the same shardings, got [{', '.join(map(shown, cases))}].")
    if any(which) and split and which != split[0]:
        app.refuse(
            "select `which` must be scalar or have the same sharding as cases, got `which` sharding "
            f"{shown(which)} but case sharding {shown(split[0])}."
        )
    return [split[0] if split else which if app.avals[0].ndim else cases[0]]


def _select_sums(app: Application) -> tuple[Any, Any]:
    return joined(app._replace(avals=app.avals[1:], specs=app.specs[1:]))


select_n_p = Primitive(
    "select_n",
    _select_infer,
    lower=_select_lower,
    jvp=_select_jvp,
    transpose=_select_transpose,
    batch=_select_batch,
    explicit=_select_explicit,
    sums=_select_sums,
    fuses=True,
    finite=True,
)


def select_n(which: Any, *cases: Any) -> Any:
    """Chooses elementwise among `cases` by `which` (bool: False takes the first).

    Args:
      which: booleans or integers.
      cases: arrays of one shape and dtype; ArgumentValueError if there is none.

    >>> lax.select_n(jnp.array([0, 1]), jnp.array([1, 2]), jnp.array([3, 4]))
    Array([1, 4], dtype=int32)
    """
    if not cases:
        raise errors.ArgumentValueError("select_n() must have at least one case to choose")
    return select_n_p.bind(which, *cases)
