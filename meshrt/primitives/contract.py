"""Contractions: dot_general."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.kinds import not_accepted
from meshrt.core.basic.pointwise import add_tangents
from meshrt.core.basic.shapes import transpose
from meshrt.core.completion import OUT_SHARDING, asked, batched_asked, declared
from meshrt.core.dimensions.expression import guessed
from meshrt.core.explicit import Application, Spec, axes_of, unreduced_of
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive, is_undefined
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.conversion import cotangent_of
from meshrt.primitives.precision import (
    DotAlgorithm,
    DotAlgorithmPreset,
    algorithm_attribute,
    canonical_precision,
    compute_types,
    precision_attribute,
)

__all__ = ["DotDimensionNumbers", "batch_matmul", "dot", "dot_general"]

DotDimensionNumbers = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]


def _free(ndim: int, contracting: Sequence[int], batch: Sequence[int]) -> list[int]:
    used = {*contracting, *batch}
    return [i for i in range(ndim) if i not in used]


def _dot_infer(
    x: ShapedArray, y: ShapedArray, *, dimension_numbers: Any, precision: Any, preferred_element_type: Any
) -> ShapedArray:
    (xc, yc), (xb, yb) = dimension_numbers
    for name, dims, other in (("contracting", xc, yc), ("batch", xb, yb)):
        if len(dims) != len(other) or any(x.shape[i] != y.shape[j] for i, j in zip(dims, other)):
            named = "lhs batch dimensions and rhs batch dimensions" if name == "batch" else "contracting dimensions"
            raise errors.ArgumentShapeError(
                f"dot_general requires {named} to have the same shape, got {tuple(x.shape[i] for i in dims)} and "
                f"{tuple(y.shape[j] for j in other)}. They are the dimensions {tuple(dims)} of {x.short()} and "
                f"{tuple(other)} of {y.short()}"
            )
    dtype = _element_type(x, y, preferred_element_type, isinstance(precision, DotAlgorithm | DotAlgorithmPreset))
    shape = [x.shape[i] for i in xb]
    shape += [x.shape[i] for i in _free(x.ndim, xc, xb)] + [y.shape[i] for i in _free(y.ndim, yc, yb)]
    return ShapedArray(tuple(shape), dtype, x.weak_type and y.weak_type and preferred_element_type is None)


def _element_type(x: ShapedArray, y: ShapedArray, preferred: Any, by_algorithm: bool) -> Any:
    """The dtype of a contraction: the more precise of the operands', unless another is preferred."""
    for position, aval in enumerate((x, y)):
        if aval.is_extended:
            raise errors.ArgumentTypeError(not_accepted("dot_general", aval.dtype, "iufcb", position))
    ranks = _precision_rank(x.dtype), _precision_rank(y.dtype)
    if ranks[0] == ranks[1] and x.dtype != y.dtype:
        raise errors.ArgumentTypeError(
            f"dot_general cannot tell which of the dtypes of {x.short()} and {y.short()} is the more precise; "
            "convert one with astype"
        )
    dtype = x.dtype if ranks[0] >= ranks[1] else y.dtype
    if preferred is None or preferred == dtype:
        return dtype
    if not by_algorithm and not dtypes.issubdtype(dtype, np.floating) and _bits(preferred) < _bits(dtype):
        raise errors.ArgumentTypeError(
            f"dot_general: `preferred_element_type` must not be narrower than the original type, got "
            f"preferred_element_type of {preferred} for result type of {dtype}; convert the result with astype"
        )
    return preferred


@lru_cache(maxsize=256)
def _precision_rank(dtype: Any) -> tuple[Any, ...]:
    """What orders dtypes: complex after real, floating after whole numbers, then range, precision, size, sign."""
    is_complex = dtypes.issubdtype(dtype, np.complexfloating)
    part = np.empty((), dtype).real.dtype if is_complex else dtype
    floating = dtypes.issubdtype(part, np.floating)
    info = dtypes.finfo(part) if floating else None
    span = (info.maxexp, info.nmant) if info is not None else (-1, -1)
    return is_complex, *span, _bits(part), not dtypes.issubdtype(part, np.unsignedinteger)


def _bits(dtype: Any) -> int:
    """How many bits a number has; of a complex one, each of its parts."""
    part = np.empty((), dtype).real.dtype if dtypes.issubdtype(dtype, np.complexfloating) else dtype
    return 1 if part == np.bool_ else dtypes.itemsize_bits(part)


def _dot_lower(ctx: LoweringContext, eqn: Eqn, x: Any, y: Any) -> Any:
    (xc, yc), (xb, yb) = eqn.params["dimension_numbers"]
    avals = [v.aval for v in eqn.invars]
    out = eqn.outvars[0].aval
    precision, result = eqn.params["precision"], out
    algorithm = ""
    if isinstance(precision, DotAlgorithm | DotAlgorithmPreset):
        types = compute_types(precision, avals[0].dtype, avals[1].dtype, out.dtype)
        algorithm = algorithm_attribute(precision, types, ctx.module.platform)
        x, y = (ctx.convert(r, a, t) for r, a, t in zip((x, y), avals, types))
        result = ShapedArray(out.shape, types.out)
    elif avals[0].dtype != avals[1].dtype:
        # Operands of two dtypes meet in the result's.
        x, y = (ctx.convert(r, a, out.dtype) for r, a in zip((x, y), avals))
    parts = []
    for key, dims in (
        ("lhs_batching_dimensions", xb),
        ("rhs_batching_dimensions", yb),
        ("lhs_contracting_dimensions", xc),
        ("rhs_contracting_dimensions", yc),
    ):
        if dims:
            parts.append(f"{key} = [{', '.join(map(str, dims))}]")
    attrs = f"dot_dimension_numbers = #stablehlo.dot<{', '.join(parts)}>"
    attrs += f", precision_config = {precision_attribute(precision)}"
    if algorithm:
        attrs += f", algorithm = {algorithm}"
    return ctx.convert(ctx.op("stablehlo.dot_general", [x, y], result, attrs), result, out.dtype)


def _dot_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    x, y = primals
    out = dot_general_p.bind(x, y, **params)
    total = None
    if tangents[0] is not None:
        total = dot_general_p.bind(tangents[0], y, **params)
    if tangents[1] is not None:
        total = add_tangents(total, dot_general_p.bind(x, tangents[1], **params))
    return out, total


def _dot_explicit(app: Application) -> list[Spec] | None:
    """Where both operands are split along the contraction, whether to add up is for the user to say."""
    (xc, yc), (xb, yb) = app.params["dimension_numbers"]
    x, y = app.specs
    lhs_contracting_spec, rhs_contracting_spec = tuple(x[i] for i in xc), tuple(y[i] for i in yc)
    asked = app.params.get(OUT_SHARDING)
    if asked is not None:
        _check_unreduced(app, asked.spec, lhs_contracting_spec, rhs_contracting_spec)
        return None
    lhs_batch, rhs_batch = tuple(x[i] for i in xb), tuple(y[i] for i in yb)
    if any(p is not None and q is not None and p != q for p, q in zip(lhs_batch, rhs_batch)):
        app.refuse(
            "dot_general requires lhs batch dimensions and rhs batch dimensions to have the consistent sharding, got "
            f"{lhs_batch} and {rhs_batch}.",
            _OUT,
        )
    pairs = list(zip(lhs_contracting_spec, rhs_contracting_spec))
    if any(p is not None and q is not None and p != q for p, q in pairs):
        app.refuse(
            "dot_general requires contracting dimensions to have consistent sharding, got "
            f"{lhs_contracting_spec} and {rhs_contracting_spec}.",
            _OUT,
        )
    if any(p is not None and q is not None for p, q in pairs):
        app.refuse(
            "Contracting dimensions are sharded and it is ambiguous how the output should be sharded. Please specify "
            f"the output sharding via the `out_sharding` parameter. Got {lhs_contracting_spec=} and "
            f"{rhs_contracting_spec=}.",
            _OUT,
        )
    free = [[e for i, e in enumerate(s) if i not in (*c, *b)] for s, c, b in ((x, xc, xb), (y, yc, yb))]
    return [(*lhs_batch, *free[0], *free[1])]


_OUT = "give `out_sharding=P(...)`, for example with the contracted axes dropped (they are summed over)"


def _dot_sums(app: Application) -> tuple[Any, Any]:
    if any(unreduced_of(a) for a in app.avals):
        app.refuse(
            "lhs or rhs passed to dot_general cannot be unreduced. Got "
            f"lhs={app.avals[0].short()} and rhs={app.avals[1].short()}."
        )
    return frozenset(), frozenset()


def _check_unreduced(app: Application, spec: Any, lhs_contracting_spec: Any, rhs_contracting_spec: Any) -> None:
    if not spec.unreduced:
        return
    if lhs_contracting_spec != rhs_contracting_spec:
        app.refuse(
            "lhs and rhs contracting dims should be sharded identically when out_sharding provided to dot_general "
            f"mentions unreduced_axes. Got {lhs_contracting_spec=}, {rhs_contracting_spec=}."
        )
    if spec.unreduced != {a for e in lhs_contracting_spec for a in axes_of(e)}:
        app.refuse(
            "out_sharding's unreduced axes should be equal to the contracting specs. Got unreduced axes="
            f"{set(spec.unreduced)} and contracting spec={lhs_contracting_spec}."
        )


def _dot_transpose(
    ct: Any, x: Any, y: Any, *, dimension_numbers: Any, precision: Any, preferred_element_type: Any,
    out_sharding: Any = None,
) -> list[Any]:  # fmt: skip
    (xc, yc), (xb, yb) = dimension_numbers
    if is_undefined(x):
        return [_pull(ct, x.aval, y, xc, yc, xb, yb, precision, preferred_element_type, left=True), None]
    return [None, _pull(ct, y.aval, x, yc, xc, yb, xb, precision, preferred_element_type, left=False)]


def _pull(
    ct: Any,
    aval: ShapedArray,
    other: Any,
    mine_c: Any,
    other_c: Any,
    mine_b: Any,
    other_b: Any,
    precision: Any,
    preferred: Any,
    left: bool,
) -> Any:
    """The cotangent of one operand: contract `ct` with the other operand over its free dimensions, then permute.

    The operands stand in the order that leaves the least to permute, for libraries that want the left operand's
    contracting dimensions last: for `x @ w` the cotangent of `w` is `xᵀ ct`.
    """
    other_aval = aval_of(other)
    n_batch = len(mine_b)
    mine_free = _free(aval.ndim, mine_c, mine_b)
    other_free = _free(other_aval.ndim, other_c, other_b)
    start = n_batch + (len(mine_free) if left else 0)
    ct_contract = tuple(range(start, start + len(other_free)))
    batch = tuple(range(n_batch))
    # Of ct my free dimensions are left, of the other operand its contracting ones, in its own order.
    by_other = [mine_c[k] for k in sorted(range(len(other_c)), key=lambda k: other_c[k])]
    ct_aval = aval_of(ct)
    orders = [*mine_b, *mine_free, *by_other], [*mine_b, *by_other, *mine_free]
    moved = [
        _moved(a, contract) + (0 if order == sorted(order) else aval.size)
        for a, contract, order in zip((ct_aval, other_aval), (ct_contract, other_free), orders)
    ]
    ct_first = guessed(moved[0]) <= guessed(moved[1])
    order = orders[0 if ct_first else 1]
    if type(precision) is tuple and ct_first != left:
        precision = (precision[1], precision[0])
    if ct_aval.dtype != other_aval.dtype:
        preferred = preferred or aval.dtype
    pair = ((ct, ct_contract, batch), (other, tuple(other_free), tuple(other_b)))
    (a, a_contract, a_batch), (b, b_contract, b_batch) = pair if ct_first else pair[::-1]
    wanted = declared(aval, (ct_aval, other_aval))
    if wanted:
        wanted = {OUT_SHARDING: _cotangent_sharding(wanted[OUT_SHARDING], order)}
    out = dot_general_p.bind(
        a, b, dimension_numbers=((a_contract, b_contract), (a_batch, b_batch)), precision=precision,
        preferred_element_type=preferred, **wanted,
    )  # fmt: skip
    permutation = [0] * len(order)
    for position, dim in enumerate(order):
        permutation[dim] = position
    out = transpose(out, permutation)
    return cotangent_of(out, aval) if aval_of(out).dtype != aval.dtype else out


def _cotangent_sharding(sharding: Any, order: Sequence[int]) -> Any:
    """That of the cotangent of an operand, with its dimensions in this order: where it is reduced, of partial sums."""
    spec = sharding.spec
    entries = [spec.partitions[d] for d in order]
    return sharding.update(spec=spec.update(partitions=entries, unreduced=spec.reduced, reduced=spec.unreduced))


def _moved(left: ShapedArray, contracting: Sequence[int]) -> int:
    """How many elements of a left operand are permuted before the contraction."""
    return 0 if list(contracting) == list(range(left.ndim))[left.ndim - len(contracting) :] else left.size


def _shift(dims: Sequence[int], d: int | None) -> tuple[int, ...]:
    return tuple(dims) if d is None else tuple(i if i < d else i + 1 for i in dims)


def _dot_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    (xc, yc), (xb, yb) = params["dimension_numbers"]
    dx, dy = dims
    rest = {k: params[k] for k in ("precision", "preferred_element_type")}
    mapped = 0 if dx is not None else 1
    xc, xb, yc, yb = _shift(xc, dx), _shift(xb, dx), _shift(yc, dy), _shift(yb, dy)
    if dx is not None and dy is not None:
        numbers = ((xc, yc), ((dx, *xb), (dy, *yb)))
        rest.update(batched_asked(params, args[0], dx))
        return dot_general_p.bind(*args, dimension_numbers=numbers, **rest), 0
    x_free = _free(aval_of(args[0]).ndim, xc, xb)
    if dx is not None:
        out = len(xb) + x_free.index(dx)
    else:
        out = len(xb) + len(x_free) + _free(aval_of(args[1]).ndim, yc, yb).index(dy)
    rest.update(batched_asked(params, args[mapped], dims[mapped], out))
    return dot_general_p.bind(*args, dimension_numbers=((xc, yc), (xb, yb)), **rest), out


def _dot_shown(eqn: Eqn) -> dict[str, Any]:
    numbers = tuple(tuple(list(dims) for dims in pair) for pair in eqn.params["dimension_numbers"])
    dtype = eqn.outvars[0].aval.dtype
    given = {k: v for k, v in eqn.params.items() if v is not None}
    return {"preferred_element_type": dtype, **given, "dimension_numbers": numbers}


dot_general_p = Primitive(
    "dot_general", _dot_infer, shown=_dot_shown, lower=_dot_lower, jvp=_dot_jvp, transpose=_dot_transpose,
    batch=_dot_batch,
    explicit=_dot_explicit, sums=_dot_sums, contraction=True, finite=True,
    batch_dimensions=lambda params: params["dimension_numbers"][1][0], optional=("out_sharding",),
)  # fmt: skip


def _dimensions(side: str, aval: ShapedArray, contracting: Sequence[int], batch: Sequence[int]) -> Any:
    """The dimension numbers of one operand: whole, distinct, contracting or of the batch."""
    contracting, batch = tuple(map(int, contracting)), tuple(map(int, batch))
    if any(not 0 <= d < aval.ndim for d in (*contracting, *batch)):
        raise errors.ArgumentShapeError(
            f"dot_general requires {side} dimension numbers to be nonnegative and less than the number of axes of the "
            f"{side} value, got {side}_batch of {batch} and {side}_contracting of {contracting} for {side} of rank "
            f"{aval.ndim}"
        )
    for name, dims in (("batch", batch), ("contracting", contracting)):
        if len(set(dims)) < len(dims):
            raise errors.ArgumentShapeError(
                f"dot_general requires {side} {name} dimensions to be distinct, got {side}_{name} {dims}."
            )
    if set(batch) & set(contracting):
        raise errors.ArgumentShapeError(
            f"dot_general requires {side} batch dimensions to be disjoint from contracting dimensions, got "
            f"{side}_batch {batch} and {side}_contracting {contracting}."
        )
    return contracting, batch


def dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: DotDimensionNumbers,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out_sharding: Any = None,
) -> Any:
    """A batched contraction; the result has the batch, the left free, then the right free dimensions.

    `dimension_numbers` is ((lhs contracting, rhs contracting), (lhs batch, rhs batch)).

    Args:
      lhs: the left array.
      rhs: the right array.
      dimension_numbers: ((contracted of lhs, contracted of rhs), (batch of lhs, batch of rhs)).
      precision: a `Precision`, its name, or one for each operand.
      preferred_element_type: the dtype to accumulate in and return.
      out_sharding: the sharding of the result over Explicit axes.

    Returns:
      An array of the batch dimensions, then what is left of `lhs`, then of `rhs`.

    Raises:
      TypeError: dimensions or sizes that do not fit.

    >>> lax.dot_general(jnp.ones((5, 2, 3)), jnp.ones((5, 3, 4)), (((2,), (1,)), ((0,), (0,)))).shape
    (5, 2, 4)
    """
    (xc, yc), (xb, yb) = dimension_numbers
    x, y = aval_of(lhs), aval_of(rhs)
    (xc, xb), (yc, yb) = _dimensions("lhs", x, xc, xb), _dimensions("rhs", y, yc, yb)
    numbers = ((xc, yc), (xb, yb))
    if preferred_element_type is not None:
        preferred_element_type = dtypes.canonicalize_dtype(dtypes.dtype(preferred_element_type))
        if preferred_element_type == x.dtype == y.dtype:
            preferred_element_type = None
    (contracting, _), (batch, _) = numbers
    wanted = asked(out_sharding, x.ndim + y.ndim - 2 * len(contracting) - len(batch), "dot_general")
    return dot_general_p.bind(
        lhs, rhs, dimension_numbers=numbers, precision=canonical_precision(precision),
        preferred_element_type=preferred_element_type, **wanted,
    )  # fmt: skip


def dot(
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: DotDimensionNumbers | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:
    """Vector or matrix product (lax.dot); with `dimension_numbers`, dot_general.

    Args:
      lhs: the left array.
      rhs: the right array.
      dimension_numbers: as for `dot_general`; by default the last dimension of `lhs` and the first of `rhs`.
      precision: a `Precision`, its name, or one for each operand.
      preferred_element_type: the dtype to accumulate in and return.
      out_sharding: the sharding of the result over Explicit axes.

    >>> lax.dot(jnp.array([[1, 2], [3, 4]]), jnp.array([1, 1]))
    Array([3, 7], dtype=int32)
    """
    if dimension_numbers is None:
        x, y = aval_of(lhs), aval_of(rhs)
        if not (1 <= x.ndim <= 2 and 1 <= y.ndim <= 2 and x.shape[-1] == y.shape[0]):
            raise errors.ArgumentShapeError(
                "meshrt.lax.dot: dimension_numbers must be specified when not performing simple un-batched "
                f"matrix-matrix, matrix-vector, or vector-vector products; got lhs_shape={x.shape} rhs_shape={y.shape}"
            )
        dimension_numbers = (((x.ndim - 1,), (0,)), ((), ()))
    return dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type, out_sharding=out_sharding)


def batch_matmul(lhs: Any, rhs: Any, precision: Any = None) -> Any:
    """Matrix products over leading batch dimensions.

    Args:
      lhs: the left array.
      rhs: the right array.
      precision: a `Precision`, its name, or one for each operand.

    >>> lax.batch_matmul(jnp.ones((5, 2, 3)), jnp.ones((5, 3, 4))).shape
    (5, 2, 4)
    """
    n, m = aval_of(lhs).ndim, aval_of(rhs).ndim
    if n < 2 or m < 2:
        raise errors.ArgumentValueError(f"Arguments to batch_matmul must be at least 2D, got {n}, {m}")
    if n != m:
        raise errors.ArgumentValueError(f"Arguments to batch_matmul must have same ndim, got {n}, {m}")
    batch = tuple(range(n - 2))
    return dot_general(lhs, rhs, (((n - 1,), (n - 2,)), (batch, batch)), precision)
