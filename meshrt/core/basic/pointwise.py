"""What all elementwise primitives share: their type rule, broadcasting of scalars, batching and differentiation.

Operands have equal shapes, except that any of them may be a scalar (rank 0), which stands for an array filled with
it: that keeps `x * 2.0` one equation. Those of one rank may have dimensions of size 1, which are repeated; the
functions of `lax` and NumPy write a broadcast instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.kinds import has_kind, not_accepted
from meshrt.core.basic.shapes import broadcast_in_dim, move_dim, reduce_sum_p, repeated
from meshrt.core.explicit import Policy, Sums, added, copied
from meshrt.core.high import has_high_types
from meshrt.core.jaxpr import Eqn, Literal
from meshrt.core.primitive import NOT_LINEAR, Primitive, is_undefined
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.typed_numbers import TYPED_NUMBERS, plain_number
from meshrt.core.types import ShapedArray, aval_of
from propagation.asm import Ref

__all__ = [
    "add_any_p", "add_p", "add_tangents", "binary_operands", "nary", "reduce_to", "same_dtype", "spread",
    "stretched",
]  # fmt: skip

PYTHON_SCALARS = (bool, int, float, complex, *TYPED_NUMBERS)


def binary_operands(x: Any, y: Any) -> tuple[Any, Any]:
    """Gives a Python scalar the dtype of the other operand."""
    if type(y) in PYTHON_SCALARS:
        return _like(x, y) if type(x) in PYTHON_SCALARS else x, _like(y, x)
    if type(x) in PYTHON_SCALARS:
        return _like(x, y), y
    return x, y


def stretched(name: str, *operands: Any) -> Sequence[Any]:
    """The operands of an elementwise function of `lax`: dimensions of size 1 are repeated to the size of the others'.

    Scalars stay as they are.

    Raises:
      ArgumentTypeError: the ranks (but for scalars) or the sizes of a dimension differ.
    """
    shapes = [aval_of(x).shape for x in operands]
    wide = {s for s in shapes if s}
    if len(wide) < 2:
        return operands
    listed = ", ".join(map(str, shapes))
    if len({len(s) for s in wide}) > 1:
        raise errors.ArgumentTypeError(
            f"{name}: arrays must have the same number of dimensions, got { {len(s) for s in wide} }: shapes {listed}; "
            "add dimensions with lax.expand_dims, or use meshrt.numpy, which aligns them"
        )
    common = tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*wide))
    if any(n not in (1, m) for s in wide for n, m in zip(s, common)):
        raise errors.ArgumentTypeError(
            f"{name} got incompatible shapes for broadcasting: {listed}; each dimension must have one size, or 1"
        )
    return [_repeated_to(x, s, common) for x, s in zip(operands, shapes)]


def _repeated_to(x: Any, shape: tuple[int, ...], common: tuple[int, ...]) -> Any:
    return x if shape in ((), common) else broadcast_in_dim(x, common, range(len(common)))


_RANKS = {bool: 0, int: 1, float: 2, complex: 3}


def _like(scalar: Any, other: Any) -> Any:
    scalar, other = plain_number(scalar), plain_number(other)
    if type(other) in PYTHON_SCALARS:
        return type(other)(scalar) if _RANKS[type(scalar)] < _RANKS[type(other)] else scalar
    aval = aval_of(other)
    if aval.weak_type:
        # A Python scalar of the other's kind (or a narrower one) is weak too.
        rank = {int: "ifc", float: "fc", complex: "c"}.get(type(scalar), "")
        if aval.dtype.kind in rank:
            same: Any = {"i": int, "f": float, "c": complex}[aval.dtype.kind](scalar)
            if aval_of(same).dtype == aval.dtype:
                return same
    return np.asarray(scalar, aval.dtype)[()]


def joint_shape(name: str, avals: Sequence[ShapedArray], kinds: str) -> tuple[int, ...]:
    """The shape that operands of `name` have together; raises if there is none, or for a dtype not among `kinds`."""
    shape: tuple[int, ...] = ()
    for i, a in enumerate(avals):
        if a.shape != shape and a.shape:
            wide = _stretched_shape(shape, a.shape) if shape else a.shape
            if wide is None:
                raise errors.ArgumentTypeError(
                    f"{name} got incompatible shapes for broadcasting: {', '.join(str(x.shape) for x in avals)}; "
                    "broadcast them first with broadcast_in_dim, or use meshrt.numpy, which also adds dimensions"
                )
            shape = wide
        if kinds and not has_kind(a.dtype, kinds):
            raise errors.ArgumentTypeError(not_accepted(name, a.dtype, kinds, i if len(avals) > 1 else None))
    return shape


def _stretched_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of both where dimensions of size 1 are repeated; None if there is none."""
    if len(a) != len(b) or any(m != n and 1 not in (m, n) for m, n in zip(a, b)):
        return None
    return tuple(n if m == 1 else m for m, n in zip(a, b))


def spread(x: Any, shape: tuple[int, ...]) -> Any:
    """A scalar, or an array with dimensions of size 1, broadcast to `shape`; anything else as it is."""
    own = aval_of(x).shape
    if own == shape:
        return x
    return broadcast_in_dim(x, shape, range(len(own)))


def reduce_to(ct: Any, aval: ShapedArray) -> Any:
    """The cotangent of an operand that may have been a scalar, or had dimensions of size 1, and was broadcast."""
    shape = aval_of(ct).shape
    if aval.shape == shape:
        return ct
    if not aval.shape:
        return reduce_sum_p.bind(ct, axes=tuple(range(len(shape))))
    axes = tuple(i for i, (n, m) in enumerate(zip(aval.shape, shape)) if n != m)
    kept = tuple(i for i in range(len(shape)) if i not in axes)
    return broadcast_in_dim(reduce_sum_p.bind(ct, axes=axes), aval.shape, kept)


# What meshrt.numpy calls an operation that promotes its operands.
_PROMOTING = {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "max": "maximum", "min": "minimum",
    "rem": "remainder", "pow": "power", "atan2": "arctan2", "eq": "equal", "ne": "not_equal", "lt": "less",
    "le": "less_equal", "gt": "greater", "ge": "greater_equal", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "nextafter": "nextafter", "shift_left": "left_shift",
}  # fmt: skip


def same_dtype(name: str, avals: Sequence[ShapedArray]) -> None:
    """Raises unless all operands have one dtype."""
    first = avals[0].dtype
    for a in avals:
        if a.dtype != first:
            if any(x.dtype == dtypes.float0 for x in avals):
                raise errors.ArgumentTypeError(
                    f"Called {name} with a float0. float0s do not support any operations by design, as they stand for "
                    "derivatives of integers, which have none"
                )
            tip = f"jnp.{_PROMOTING[name]}" if name in _PROMOTING else "a function of meshrt.numpy"
            raise errors.ArgumentTypeError(
                f"lax.{name} requires arguments to have the same dtypes, got {', '.join(str(x.dtype) for x in avals)}. "
                f"(Tip: {tip} is a similar function that does automatic type promotion on inputs). "
                "Or convert with astype"
            )


class MissingDerivativeError(errors.DifferentiationError, NotImplementedError, ValueError):
    """A derivative in an argument for which there is no formula."""


def no_derivative(function: str, name: str) -> Callable[..., Any]:
    """The derivative of `function` in the argument `name`: MissingDerivativeError."""

    def refuse(*args: Any) -> Any:
        raise MissingDerivativeError(
            f"Differentiation rule for '{function}' not implemented: {function} gradient with respect to {name} is "
            f"not supported; use lax.stop_gradient({name}) if it is meant to be constant"
        )

    return refuse


def nary(
    name: str,
    op: str,
    arity: int,
    *,
    kinds: str = "iufc",
    out_dtype: Callable[..., Any] | None = None,
    attrs: Callable[..., str] | str = "",
    derivatives: Sequence[Callable[..., Any] | None] | None = None,
    jvp: Callable[..., Any] | None = None,
    transpose: Callable[..., Any] | None = None,
    lower: Callable[..., Any] | None = None,
    write: Callable[..., Any] | None = None,
    check: Callable[[str, Sequence[ShapedArray]], None] = same_dtype,
    cheap: bool = False,
    fuses: bool = False,
    finite: bool = False,
    sums: Sums = copied,
    explicit: Policy | None = None,
) -> Primitive:
    """Declares an elementwise primitive lowering to the StableHLO operation `op`.

    `derivatives[i](t, out, *operands, **params)` is the tangent contributed by operand i with tangent t (None if the
    function is constant in it almost everywhere). `out_dtype(*avals, **params)` defaults to the first operand's dtype.
    `write(ctx, eqn, refs)` writes it where `op` is not all: the operands have the shape of the result.
    `check(name, avals)` raises for dtypes that do not go together; by default all have to be one. `cheap`, `fuses`,
    `finite` and `explicit` are the traits of `Primitive`; what is constant almost everywhere is finite.
    """

    def infer(*avals: ShapedArray, **params: Any) -> ShapedArray:
        shape = joint_shape(name, avals, kinds)
        if arity > 1 or check is not same_dtype:
            check(name, avals)
        weak = all(a.weak_type for a in avals)
        return ShapedArray(shape, avals[0].dtype if out_dtype is None else out_dtype(*avals, **params), weak)

    def lower_op(ctx: Any, eqn: Eqn, *operands: Any) -> Any:
        out = eqn.outvars[0].aval
        refs = [
            r if type(r) is Ref and r_var.aval.shape == out.shape else _lower_scalar(ctx, r_var.aval, r, out)
            for r_var, r in zip(eqn.invars, operands)
        ]
        if write is not None:
            return write(ctx, eqn, refs)
        text = attrs(eqn.invars[0].aval, **eqn.params) if callable(attrs) else attrs
        return ctx.op(op, refs, out, text)

    primitive: Primitive

    def get() -> Primitive:
        return primitive

    finite = finite or (jvp is None and derivatives is None)
    if jvp is None:
        jvp = _no_tangent(get) if derivatives is None else _jvp(get, derivatives)
    primitive = Primitive(
        name, infer, lower=lower or lower_op, jvp=jvp, transpose=transpose, batch=_batcher(get),
        literals=lower is None, sums=sums, explicit=explicit, cheap=cheap, fuses=fuses, finite=finite,
        absent=NOT_LINEAR if transpose is None else {},
    )  # fmt: skip
    return primitive


def _lower_scalar(ctx: Any, aval: ShapedArray, ref: Ref | Literal, out: ShapedArray) -> Any:
    """A scalar operand, filled to the shape of the result (a literal becomes one constant); dimensions of size 1 are
    repeated."""
    filled = ShapedArray(out.shape, aval.dtype)
    return ctx.full(ref.val, filled) if type(ref) is Literal else ctx.broadcast(ref, aval, filled)


def _jvp(get: Callable[[], Primitive], derivatives: Sequence[Callable[..., Any] | None]) -> Callable[..., Any]:
    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = get().bind(*primals, **params)
        total = None
        for t, derivative in zip(tangents, derivatives):
            if t is not None and derivative is not None:
                total = add_tangents(total, derivative(t, out, *primals, **params))
        if total is None:
            return out, None
        return out, spread(total, aval_of(out).shape)

    return jvp


def _no_tangent(get: Callable[[], Primitive]) -> Callable[..., Any]:
    return lambda primals, tangents, **params: (get().bind(*primals, **params), None)


def _batcher(get: Callable[[], Primitive]) -> Callable[..., Any]:
    """Moves batch dimensions to a common place and pads ranks of batched scalars."""

    def batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, int]:
        first = next(d for d in dims if d is not None)
        ranks = [aval_of(a).ndim - (d is not None) for a, d in zip(args, dims)]
        rank = max(ranks)
        if all(d == first or (d is None and r == 0) for d, r in zip(dims, ranks)) and all(
            r == rank or d is None for d, r in zip(dims, ranks)
        ):
            return get().bind(*args, **params), first
        full_shape = next(
            tuple(n for i, n in enumerate(aval_of(a).shape) if i != d)
            for a, d, r in zip(args, dims, ranks)
            if r == rank
        )
        aligned = []
        for a, d, r in zip(args, dims, ranks):
            if d is None and r == 0:
                aligned.append(a)
            elif r == 0:
                aligned.append(broadcast_in_dim(a, (size, *full_shape), (0,)))
            elif d is None:
                aligned.append(repeated(size, a, 0))
            else:
                aligned.append(move_dim(a, d, 0))
        return get().bind(*aligned, **params), 0

    return batch


# ---------------------------------------------------------------------------------------------------------------------
# The sum of two arrays


def _add_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    x, y = primals
    tx, ty = tangents
    out = add_p.bind(x, y)
    if tx is None or ty is None:
        return out, spread(ty if tx is None else tx, aval_of(out).shape)
    return out, add_p.bind(tx, ty)


def _add_transpose(ct: Any, x: Any, y: Any) -> list[Any]:
    return [reduce_to(ct, x.aval) if is_undefined(x) else None, reduce_to(ct, y.aval) if is_undefined(y) else None]


add_p = nary("add", "stablehlo.add", 2, jvp=_add_jvp, transpose=_add_transpose, cheap=True, finite=True, sums=added)


def _add_any_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    return add_any_p.bind(*primals), add_tangents(*tangents)


def _write_add_any(ctx: Any, eqn: Eqn, refs: Sequence[Any]) -> Any:
    out = eqn.outvars[0].aval
    if not isinstance(out.dtype, dtypes.ExtendedDType):
        return ctx.op("stablehlo.add", refs, out)
    add, kind = out.dtype.rule("add"), out.strong().bare()
    closed = trace_to_jaxpr(lambda x, y: [add(out.dtype, x, y)], (kind, kind), "add")
    if closed.consts:
        raise errors.UnsupportedError(f"the rule 'add' of {out.dtype} may not capture arrays; make them inside")
    return ctx.jaxpr(closed.jaxpr, refs)[0]


# The sum of derivatives: programs tell it from the sums that they were given. Extended dtypes say what their sum is.
add_any_p: Primitive = nary(
    "add_any", "stablehlo.add", 2, kinds="iufcx", write=_write_add_any,
    jvp=_add_any_jvp, transpose=_add_transpose, cheap=True, finite=True, sums=added,
)  # fmt: skip


def add_tangents(a: Any, b: Any) -> Any:
    """The sum of two tangents or cotangents, either of which may be None."""
    if a is None:
        return b
    if b is None:
        return a
    if has_high_types():
        kind: Any = aval_of(a)
        if kind.is_high:
            return kind.vspace_add(a, b)
    return add_any_p.bind(a, b)
