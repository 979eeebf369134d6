"""broadcast_in_dim, reshape, transpose and reduce_sum: each one's transpose rule is written with the others.

PRNG key arrays are `uint32[..., 2]` buffers: lowering appends the physical dimension, which never moves.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.linear import linear_jvp
from meshrt.core.basic.memory import in_space
from meshrt.core.basic.reducer import reducer
from meshrt.core.basic.varying import in_order, vary
from meshrt.core.completion import OUT_SHARDING, asked, batched_asked, declared, moved_as
from meshrt.core.dimensions.expression import DimExpr, as_size
from meshrt.core.explicit import Application, Spec, axes_of, moved, unreduced_of
from meshrt.core.jaxpr import Eqn, Literal
from meshrt.core.primitive import Primitive, also
from meshrt.core.spaces import DEVICE
from meshrt.core.types import ShapedArray, aval_of, in_program
from propagation.asm import i64_array

__all__ = [
    "SplitDim",
    "SplitSize",
    "batch_together",
    "bring_to_front",
    "broadcast_in_dim",
    "broadcast_in_dim_p",
    "canonical_axis",
    "canonical_shape",
    "insert",
    "instantiate",
    "keep_dims",
    "linear_jvp",
    "move_dim",
    "no_derivatives",
    "reduce_sum_p",
    "repeated",
    "reshape",
    "reshape_p",
    "transpose",
    "transpose_p",
    "zeros",
]  # fmt: skip


def canonical_shape(shape: Any, what: str = "shape") -> tuple[int, ...]:
    """`shape` as a tuple of non-negative ints; ArgumentTypeError otherwise."""
    if isinstance(shape, int | np.integer | DimExpr):
        shape = (shape,)
    try:
        result = tuple([as_size(d) for d in shape])
    except TypeError:
        raise errors.ArgumentTypeError(
            f"{what.capitalize()}s must be 1D sequences of concrete values of integer type, got {shape!r}; mark "
            "arguments that determine shapes as static (jit(..., static_argnums=...))"
        ) from None
    if any(d < 0 for d in result):
        raise errors.ArgumentTypeError(
            f"{what} must have every element be nonnegative, got {result}. Negative dimensions are not allowed"
        )
    return result


def canonical_axis(axis: Any, ndim: int) -> int:
    """A dimension number in [0, ndim); AxisError if out of range."""
    axis = operator.index(axis)
    if not -ndim <= axis < ndim:
        raise errors.AxisError(f"axis {axis} is out of bounds for array of dimension {ndim}")
    return int(axis % ndim)


# ---------------------------------------------------------------------------------------------------------------------
# broadcast_in_dim


def not_negative(name: str, shape: Sequence[int]) -> None:
    """Raises for a size below zero in the shape of a result of `name`."""
    if any(n < 0 for n in shape):
        raise errors.ArgumentShapeError(
            f"{name} shape must have every element be nonnegative, got {tuple(shape)}. Negative dimensions are not "
            "allowed"
        )


def _broadcast_infer(x: ShapedArray, *, shape: tuple[int, ...], broadcast_dimensions: tuple[int, ...]) -> ShapedArray:
    dims = broadcast_dimensions
    not_negative("broadcast_in_dim", shape)
    if len(dims) != x.ndim:
        problem = (
            f"broadcast_dimensions must have length equal to operand ndim; got broadcast_dimensions {dims} for operand "
            f"ndim {x.ndim}"
        )
    elif len(shape) < x.ndim:
        problem = (
            "target broadcast shape must have equal or higher rank to the operand shape; got operand ndim "
            f"{x.ndim} and target broadcast ndim {len(shape)}"
        )
    elif any(d < 0 for d in dims):
        problem = f"broadcast_dimensions must have every element be nonnegative, got {dims}"
    elif any(d >= len(shape) for d in dims):
        problem = (
            f"broadcast_dimensions must be a subset of output dimensions, got {dims} for operand ndim {x.ndim} and "
            f"shape {shape}"
        )
    elif any(n not in (1, shape[d]) for n, d in zip(x.shape, dims)):
        problem = (
            "operand dimension sizes must either be 1, or be equal to their corresponding dimensions in the target "
            f"broadcast shape; got operand of shape {x.shape}, target broadcast shape {shape}, broadcast_dimensions "
            f"{dims}"
        )
    elif any(a >= b for a, b in itertools.pairwise(dims)):
        problem = f"broadcast_dimensions must be strictly increasing; got broadcast_dimensions {dims}"
    else:
        return ShapedArray(shape, x.dtype, x.weak_type)
    raise errors.ArgumentTypeError(f"broadcast_in_dim {problem}.")


def _broadcast_lower(ctx: Any, eqn: Eqn, x: Any) -> Any:
    out = eqn.outvars[0].aval
    if type(x) is Literal:
        return ctx.full(x.val, out)
    dims = list(eqn.params["broadcast_dimensions"])
    if out.is_extended:
        dims += range(out.ndim, out.physical().ndim)
    return ctx.op("stablehlo.broadcast_in_dim", [x], out, f"broadcast_dimensions = {i64_array(dims)}")


def _broadcast_transpose(
    ct: Any, x: Any, *, shape: tuple[int, ...], broadcast_dimensions: tuple[int, ...], out_sharding: Any = None
) -> list[Any]:
    aval = x.aval
    new = tuple(d for d in range(len(shape)) if d not in broadcast_dimensions)
    grown = tuple(d for i, d in enumerate(broadcast_dimensions) if aval.shape[i] == 1 and shape[d] != 1)
    axes = tuple(sorted((*new, *grown)))
    out = reduce_sum_p.bind(ct, axes=axes) if axes else ct
    return [reshape(out, aval.shape) if grown else out]


def _broadcast_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, int]:
    x = move_dim(args[0], dims[0], 0)
    shape = (size, *params["shape"])
    broadcast = (0, *(d + 1 for d in params["broadcast_dimensions"]))
    return broadcast_in_dim_p.bind(x, shape=shape, broadcast_dimensions=broadcast, **batched_asked(params, x)), 0


broadcast_in_dim_p: Primitive = Primitive(
    "broadcast_in_dim", _broadcast_infer, lower=_broadcast_lower, jvp=linear_jvp(lambda: broadcast_in_dim_p),
    transpose=_broadcast_transpose, batch=_broadcast_batch, sums=moved, literals=True, cheap=True, finite=True,
    shown=lambda eqn: {k: v for k, v in eqn.params.items() if k == "broadcast_dimensions" and v},
    optional=("sharding",),
)  # fmt: skip


# Operands that are to become arrays even where there is nothing to do.
_NO_ARRAYS = int | float | bool | complex | np.ndarray


def broadcast_in_dim(
    operand: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int], *, out_sharding: Any = None
) -> Any:
    """Maps dimension i of `operand` to dimension `broadcast_dimensions[i]` of a result of `shape`, replicating.

    Dimensions that are named in another order than they have are brought into it first.

    Args:
      operand: an array.
      shape: sizes of the result.
      broadcast_dimensions: which dimension of the result each dimension of the operand is.
      out_sharding: the sharding of the result over Explicit axes.

    >>> lax.broadcast_in_dim(jnp.array([1, 2]), (2, 3), (0,))
    Array([[1, 1, 1],
           [2, 2, 2]], dtype=int32)
    """
    shape = canonical_shape(shape)
    dims = tuple(broadcast_dimensions)
    wanted = asked(out_sharding, len(shape), "broadcast_in_dim")
    aval = aval_of(operand)
    ordered = tuple(sorted(dims))
    if dims != ordered and len(dims) == aval.ndim:
        operand = transpose(operand, sorted(range(len(dims)), key=dims.__getitem__))
        aval, dims = aval_of(operand), ordered
    if shape == aval.shape and dims == tuple(range(len(shape))) and not isinstance(operand, _NO_ARRAYS) and not wanted:
        return operand
    return broadcast_in_dim_p.bind(operand, shape=shape, broadcast_dimensions=dims, **wanted)


def constant(value: Any, dtype: Any, weak_type: bool = False) -> Any:
    """A scalar of a dtype; weakly typed where it meets values that are, as derivatives are of the type of what they are
    of."""
    scalar = np.asarray(value).astype(dtype)[()]
    if weak_type and aval_of(scalar.item()).dtype == dtype:  # Python's scalars are weak, in the default dtypes
        return scalar.item()
    return scalar


def zeros(aval: ShapedArray) -> Any:
    """An array of zeros of a type, its sharding, varying axes and memory included, in the current trace."""
    if aval.is_high:
        return aval.vspace_zero()  # type: ignore[attr-defined]
    aval = in_program(aval)
    dtype = dtypes.canonicalize_dtype(dtypes.dtype(aval.dtype))
    extended = isinstance(dtype, dtypes.ExtendedDType) and not aval.is_key
    zero = dtype.rule("zero")(dtype) if extended else constant(0, dtype, aval.weak_type)
    out = broadcast_in_dim_p.bind(zero, shape=aval.shape, broadcast_dimensions=(), **declared(aval, ()))
    if aval.memory_space is not DEVICE:
        out = in_space(out, aval.memory_space)
    return vary(out, in_order(aval.vma)) if aval.vma else out


def no_derivatives(shape: Sequence[Any]) -> Any:
    """What stands for derivatives that there are none of: an array of float0, of NumPy's where its sizes are known."""
    nothing = np.zeros(tuple(n for n in shape if not isinstance(n, DimExpr)), dtypes.float0)
    if nothing.ndim == len(shape):
        return nothing
    return broadcast_in_dim_p.bind(np.zeros((), dtypes.float0), shape=tuple(shape), broadcast_dimensions=())


def instantiate(tangent: Any, primal: Any) -> Any:
    """`tangent`, or zeros of the tangent type of `primal` where it is None."""
    return zeros(aval_of(primal).to_tangent_aval()) if tangent is None else tangent


# ---------------------------------------------------------------------------------------------------------------------
# reshape


def _reshape_infer(x: ShapedArray, *, new_sizes: tuple[int, ...]) -> ShapedArray:
    if math.prod(new_sizes) != x.size:
        raise errors.ArgumentTypeError(
            f"reshape cannot turn {x.short()} ({x.size} elements) into shape {new_sizes} ({math.prod(new_sizes)} "
            "elements)"
        )
    return ShapedArray(new_sizes, x.dtype, x.weak_type)


def _reshape_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, int]:
    x = move_dim(args[0], dims[0], 0)
    return reshape_p.bind(x, new_sizes=(size, *params["new_sizes"]), **batched_asked(params, x)), 0


def _reshape_explicit(app: Application) -> list[Spec] | None:
    """One dimension is taken apart, or several are joined to one; all others stay, but for those of size 1."""
    if OUT_SHARDING in app.params:
        return None
    (spec,), old, new = app.specs, app.avals[0].shape, app.types[0].shape
    if [n for n in old if n != 1] == [n for n in new if n != 1]:
        rest = iter([e for n, e in zip(old, spec) if n != 1])
        return [tuple(None if n == 1 else next(rest) for n in new)]
    coarse, fine = (old, new) if len(new) > len(old) else (new, old)
    first = next(i for i, (n, m) in enumerate(zip(coarse, fine)) if n != m) if coarse else 0
    last = 0
    while last < len(coarse) - first - 1 and coarse[-1 - last] == fine[-1 - last]:
        last += 1
    if len(coarse) - first - last != 1 or len(old) == len(new):
        _refuse_reshape(app)
    if len(new) > len(old):
        return None
    joined = list(spec[first : len(spec) - last])
    while joined and joined[-1] is None:
        joined.pop()
    axes = tuple(a for e in joined for a in axes_of(e))
    if None in joined or coarse[first] % app.parts(axes):
        _refuse_reshape(app)
    entry = None if not axes else axes[0] if len(axes) == 1 else axes
    return [(*spec[:first], entry, *spec[len(spec) - last :])]


def _refuse_reshape(app: Application) -> NoReturn:
    app.refuse(
        "This reshape is not supported. Please specify the sharding of the output via the `out_sharding` argument of "
        f"meshrt.lax.reshape. Got operand type: {app.avals[0].short()}, new sizes: {app.types[0].shape}.",
        "give `out_sharding=P(...)`",
    )


def _reshape_transpose(ct: Any, x: Any, *, new_sizes: tuple[int, ...], out_sharding: Any = None) -> list[Any]:
    return [reshape_p.bind(ct, new_sizes=x.aval.shape, **moved_as(x.aval, aval_of(ct)))]


reshape_p: Primitive = Primitive(
    "reshape", _reshape_infer, shown=also("dimensions", "sharding"), jvp=linear_jvp(lambda: reshape_p),
    batch=_reshape_batch, cheap=True,
    lower=lambda ctx, eqn, x: ctx.op("stablehlo.reshape", [x], eqn.outvars[0].aval),
    transpose=_reshape_transpose, explicit=_reshape_explicit, sums=moved, finite=True,
    optional=("dimensions", "sharding"),
)  # fmt: skip


def reshape(
    operand: Any, new_sizes: Sequence[int], dimensions: Sequence[int] | None = None, *, out_sharding: Any = None
) -> Any:
    """`operand` with shape `new_sizes` (row-major order); `dimensions` permutes it first.

    Args:
      operand: an array.
      new_sizes: sizes of the result.
      dimensions: dimension numbers.
      out_sharding: the sharding of the result over Explicit axes.

    >>> lax.reshape(jnp.arange(4), (2, 2))
    Array([[0, 1],
           [2, 3]], dtype=int32)
    """
    new_sizes = canonical_shape(new_sizes)
    wanted = asked(out_sharding, len(new_sizes), "reshape")
    if dimensions is not None and tuple(dimensions) != tuple(range(aval_of(operand).ndim)):
        operand = transpose(operand, dimensions)
    if aval_of(operand).shape == new_sizes and not isinstance(operand, _NO_ARRAYS) and not wanted:
        return operand
    return reshape_p.bind(operand, new_sizes=new_sizes, **wanted)


# ---------------------------------------------------------------------------------------------------------------------
# transpose


def _transpose_infer(x: ShapedArray, *, permutation: tuple[int, ...]) -> ShapedArray:
    if sorted(permutation) != list(range(x.ndim)):
        raise errors.ArgumentTypeError(
            f"transpose permutation isn't a permutation of operand dimensions, got permutation {tuple(permutation)} "
            f"for operand shape {x.shape}."
        )
    return ShapedArray(tuple(x.shape[p] for p in permutation), x.dtype, x.weak_type)


def _transpose_lower(ctx: Any, eqn: Eqn, x: Any) -> Any:
    permutation = list(eqn.params["permutation"])
    if (out := eqn.outvars[0].aval).is_extended:
        permutation += range(out.ndim, out.physical().ndim)
    return ctx.op("stablehlo.transpose", [x], out, f"permutation = {i64_array(permutation)}")


def _transpose_transpose(ct: Any, x: Any, *, permutation: tuple[int, ...]) -> list[Any]:
    inverse = [0] * len(permutation)
    for i, p in enumerate(permutation):
        inverse[p] = i
    return [transpose_p.bind(ct, permutation=tuple(inverse))]


def _transpose_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, int]:
    d = dims[0]
    permutation = (d, *(p if p < d else p + 1 for p in params["permutation"]))
    return transpose_p.bind(args[0], permutation=permutation), 0


transpose_p: Primitive = Primitive(
    "transpose", _transpose_infer, lower=_transpose_lower, jvp=linear_jvp(lambda: transpose_p),
    transpose=_transpose_transpose, batch=_transpose_batch, sums=moved, cheap=True, finite=True,
)  # fmt: skip


def transpose(operand: Any, permutation: Sequence[int]) -> Any:
    """Dimension i of the result is dimension `permutation[i]` of `operand`.

    Args:
      operand: an array.
      permutation: the dimensions of the operand in the order of the result.

    >>> lax.transpose(jnp.ones((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    permutation = tuple(operator.index(p) for p in permutation)
    if permutation == tuple(range(aval_of(operand).ndim)) and not isinstance(operand, np.ndarray):
        return operand
    return transpose_p.bind(operand, permutation=permutation)


def move_dim(value: Any, source: int, target: int) -> Any:
    """`value` with dimension `source` moved to position `target`."""
    if source == target:
        return value
    order = [i for i in range(aval_of(value).ndim) if i != source]
    order.insert(target, source)
    return transpose(value, tuple(order))


class SplitSize(int):
    """The size of a mapped dimension that Explicit axes split: `along` is the sharding of a value of it alone."""

    along: Any

    def __new__(cls, size: int, along: Any) -> SplitSize:
        made = super().__new__(cls, size)
        made.along = along
        return made


class SplitDim(DimExpr):
    """The same of a symbolic size, which is `plain` in types."""

    __slots__ = ("_plain", "along")

    def __init__(self, size: DimExpr, along: Any):
        super().__init__(size.terms, size.scope)
        self._plain, self.along = size.plain, along

    @property
    def plain(self) -> DimExpr:
        return self._plain


def split_size(size: Any, along: Any) -> Any:
    """A size that says how the dimension is split."""
    return SplitDim(size, along) if isinstance(size, DimExpr) else SplitSize(size, along)


def repeated(size: int, value: Any, position: int) -> Any:
    """`value` along a new dimension at `position`: that of a batch of `size`, split as the batch is."""
    aval = aval_of(value)
    dims = tuple(i if i < position else i + 1 for i in range(aval.ndim))
    wanted = {}
    if isinstance(size, SplitSize | SplitDim):
        own = aval.explicit if aval.explicit is not None else size.along.replicated(aval.ndim)
        entries = insert(own.spec.partitions, position, size.along.spec.partitions[0])
        wanted = {OUT_SHARDING: own.update(spec=own.spec.update(partitions=entries))}
    # What says how it is split says more than types do.
    plain = size.plain if isinstance(size, DimExpr) else int(size)
    return broadcast_in_dim_p.bind(
        value, shape=insert(aval.shape, position, plain), broadcast_dimensions=dims, **wanted
    )


def bring_to_front(size: int, value: Any, dim: int | None) -> Any:
    """`value` with its batch dimension first, broadcast to `size` if it has none."""
    return repeated(size, value, 0) if dim is None else move_dim(value, dim, 0)


def batch_together(size: int, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[list[Any], int]:
    """All operands with a batch dimension at one common position; unbatched ones are broadcast."""
    present = {d for d in dims if d is not None}
    target = present.pop() if len(present) == 1 else 0
    out = []
    for x, d in zip(args, dims):
        if d is not None:
            out.append(move_dim(x, d, target))
            continue
        out.append(repeated(size, x, target))
    return out, target


def insert(values: Sequence[Any], position: int, value: Any) -> tuple[Any, ...]:
    """`values` with `value` before `position`."""
    return (*values[:position], value, *values[position:])


# ---------------------------------------------------------------------------------------------------------------------
# reduce_sum


def keep_dims(x: Any, axes: Sequence[int], aval: ShapedArray) -> Any:
    """An array that was reduced over `axes`, broadcast back to the shape and sharding of `aval`."""
    dims = tuple(i for i in range(aval.ndim) if i not in axes)
    if not axes:
        return x
    return broadcast_in_dim_p.bind(x, shape=aval.shape, broadcast_dimensions=dims, **moved_as(aval, aval_of(x)))


def _sum_explicit(app: Application) -> None:
    """A sum over split dimensions may be left to be added up later, or the parts that there were already."""
    if OUT_SHARDING not in app.params:
        return
    unreduced = app.params[OUT_SHARDING].spec.unreduced
    x, axes = app.avals[0], app.params["axes"]
    summed = {a for i in axes for a in axes_of(app.specs[0][i])} | unreduced_of(x)
    if unreduced - summed:
        app.refuse(
            "out_sharding's unreduced axes should be in operand's specs that were summed over. Got operand="
            f"{x.short()}, axes={axes}, unreduced_spec={sorted(unreduced)}."
        )


reduce_sum_p: Primitive = reducer(
    "reduce_sum", "stablehlo.add", lambda dtype: 0, "iufc", jvp=linear_jvp(lambda: reduce_sum_p),
    shown=also("out_sharding"),
    transpose=lambda ct, x, *, axes, out_sharding=None: [keep_dims(ct, axes, x.aval)], finite=True,
    explicit=_sum_explicit, sums=moved,
)  # fmt: skip
