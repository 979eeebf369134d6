"""Matrix products and einsum: each contraction is one ``dot_general``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.basic.shapes import reduce_sum_p, reshape_p, transpose_p
from meshrt.core.operators import ArrayOperators
from meshrt.core.source import capture
from meshrt.dispatch import at_once
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray, promoted
from meshrt.numpy.einsum_plan import EinsumPlan, Pair, Reduce, described_path, from_sublists, plan_einsum
from meshrt.numpy.filled import zeros_like
from meshrt.numpy.joining import stack
from meshrt.numpy.operands import ShapeError, canonical_axes, equal_sizes, operand, unsupported_argument
from meshrt.numpy.shapes import moveaxis
from meshrt.primitives.axis_types import in_auto_mode
from meshrt.primitives.contract import dot_general_p
from meshrt.primitives.precision import canonical_precision
from meshrt.primitives.reduce import reduce_or_p
from meshrt.primitives.reshape import iota_p
from meshrt.sharding.spec import PartitionSpec
from meshrt.sharding.typed import asked, check_out_sharding

__all__ = [
    "cross", "dot", "einsum", "einsum_path", "inner", "kron", "matmul", "matvec", "outer", "tensordot", "vdot",
    "vecdot", "vecmat",
]  # fmt: skip


def _operands(name: str, *xs: Any) -> list[Any]:
    return [x if isinstance(x, ArrayOperators) else asarray(x) for x in (operand(name, x, i) for i, x in enumerate(xs))]


def result_dtype(name: str, xs: Sequence[Any], preferred: Any) -> tuple[Any, bool]:
    """``(dtype, weak_type)`` of a product of operands; ``preferred_element_type`` decides if it is given."""
    if preferred is not None:
        return dtypes.check_user_dtype(preferred, name), False
    first = xs[0].aval
    if all(x.aval.dtype == first.dtype and not x.aval.weak_type for x in xs):
        return first.dtype, False
    return dtypes.promote_dtypes(*((x.aval.dtype, x.aval.weak_type) for x in xs))


def contract(
    x: Any, y: Any, contracting: tuple, batch: tuple, dtype: Any, precision: Any, out_sharding: Any = None
) -> Any:
    """``dot_general`` with a result of ``dtype``; operands of two dtypes first come to their common one."""
    numbers = (contracting, batch)
    if out_sharding is not None:
        return lax.dot_general(x, y, numbers, precision, dtype, out_sharding=out_sharding)
    return dot_general_p.bind(
        x, y, dimension_numbers=numbers, precision=canonical_precision(precision),
        preferred_element_type=None if x.dtype == dtype else dtype,
    )  # fmt: skip


def _finish(out: Any, dtype: Any, weak: bool) -> Any:
    aval = out.aval
    return out if aval.dtype == dtype and aval.weak_type == weak else el.convert_element_type(out, dtype, weak)


# ----------------------------------------------------------------------------------------------------------
# Products.


@at_once(2)
def matmul(
    a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None, out_sharding: Any = None
) -> Any:
    """The matrix product over the last two dimensions; leading ones broadcast. Vectors are rows and columns.

    Args:
      precision: a ``lax.Precision``, its name, or one for each operand.
      preferred_element_type: dtype to accumulate in and return.

    >>> jnp.matmul(jnp.ones((2, 3)), jnp.ones((3, 4))).shape
    (2, 4)
    """
    a, b = _operands("matmul", a, b)
    for i, x in enumerate((a, b)):
        if x.ndim == 0:
            raise ShapeError(f"matmul input operand {i} must have ndim at least 1, but it has ndim 0; use multiply")
    n, m = a.shape[-1], b.shape[-2 if b.ndim > 1 else 0]
    if n != m:
        raise ShapeError(
            f"matmul: dot_general requires contracting dimensions to have the same shape, got ({n},) and ({m},). The "
            f"operands have shapes {a.shape} and {b.shape}"
        )
    dtype, weak = result_dtype("matmul", (a, b), preferred_element_type)
    out = _matmul(a, b, dtype, precision, out_sharding)
    return _finish(out, dtype, weak)


def _matmul(a: Any, b: Any, dtype: Any, precision: Any, out_sharding: Any) -> Any:
    if b.ndim <= 2:
        return contract(a, b, ((a.ndim - 1,), (0,)), ((), ()), dtype, precision, out_sharding)
    if a.ndim == b.ndim and a.shape[:-2] == b.shape[:-2]:
        batch = tuple(range(a.ndim - 2))
        return contract(a, b, ((a.ndim - 1,), (b.ndim - 2,)), (batch, batch), dtype, precision, out_sharding)
    a_names, b_names = _matmul_names(a, b)
    plan = plan_einsum(f"{a_names},{b_names}->{_matmul_result(a_names, b_names)}", (a.shape, b.shape))
    return run_einsum(plan, [a, b], dtype, precision, out_sharding)


def _matmul_names(a: Any, b: Any) -> tuple[str, str]:
    """Subscripts of a matrix product whose leading dimensions broadcast."""
    leading = "".join(chr(ord("A") + i) for i in range(max(a.ndim, b.ndim) - 2))
    a_names = leading[len(leading) - max(a.ndim - 2, 0) :] if a.ndim > 2 else ""
    b_names = leading[len(leading) - max(b.ndim - 2, 0) :] if b.ndim > 2 else ""
    for m, n in zip(a.shape[:-2][::-1], b.shape[:-2][::-1]):
        if m != n and 1 not in (m, n):
            raise ShapeError(f"matmul: leading dimensions of {a.shape} and {b.shape} do not broadcast")
    return a_names + ("ik" if a.ndim > 1 else "k"), b_names + ("kj" if b.ndim > 1 else "k")


def _matmul_result(a_names: str, b_names: str) -> str:
    leading = max((a_names.rstrip("ik"), b_names.rstrip("kj")), key=len)
    return leading + ("i" if "i" in a_names else "") + ("j" if "j" in b_names else "")


@at_once(2)
def dot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None, out_sharding: Any = None) -> Any:
    """The product over the last dimension of ``a`` and the last but one of ``b``; nothing is batched.

    Args:
      a: an array.
      b: an array.
      precision: a `lax.Precision`, its name, or one for each operand.
      preferred_element_type: the dtype to accumulate in and return.
      out_sharding: the sharding of the result over Explicit axes.

    Returns:
      An array without the contracted dimensions, of the promoted dtype.

    Raises:
      TypeError: the contracted sizes differ.

    >>> jnp.dot(jnp.array([1, 2]), jnp.array([3, 4]))
    Array(11, dtype=int32)
    """
    a, b = _operands("dot", a, b)
    dtype, weak = result_dtype("dot", (a, b), preferred_element_type)
    if a.ndim == 0 or b.ndim == 0:
        dims: tuple = ((), ())
    else:
        dims = ((a.ndim - 1,), (max(b.ndim - 2, 0),))
        if a.shape[dims[0][0]] != b.shape[dims[1][0]]:
            raise ShapeError(
                "dot: dot_general requires contracting dimensions to have the same shape, got "
                f"({a.shape[dims[0][0]]},) and ({b.shape[dims[1][0]]},). The operands have shapes {a.shape} and "
                f"{b.shape}"
            )
    return _finish(contract(a, b, dims, ((), ()), dtype, precision, out_sharding), dtype, weak)


@at_once(2)
def vdot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The inner product of flattened arrays, the first conjugated.

    Args:
      a: an array, or what `asarray` makes one of.
      b: a second array.
      precision: a `lax.Precision`, its name, or one for each operand.
      preferred_element_type: the dtype to accumulate in and return.

    >>> jnp.vdot(jnp.array([1j, 2]), jnp.array([1j, 2]))
    Array(5.+0.j, dtype=complex64)
    """
    a, b = _operands("vdot", a, b)
    a = el.conj(a)
    flat = [lax.reshape(x, (x.size,)) for x in (a, b)]
    return dot(*flat, precision=precision, preferred_element_type=preferred_element_type)


@at_once(2)
def vecdot(x1: Any, x2: Any, /, *, axis: int = -1, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """Inner products along ``axis``, the first operand conjugated; other dimensions broadcast.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.
      axis: the dimension to work along; negative numbers count from the end.
      precision: a `lax.Precision`, its name, or one for each operand.
      preferred_element_type: the dtype to accumulate in and return.

    >>> jnp.vecdot(jnp.array([[1, 2], [3, 4]]), jnp.array([[1, 1], [2, 2]]))
    Array([ 3, 14], dtype=int32)
    """
    a, b = (moveaxis(x, axis, -1) for x in _operands("vecdot", x1, x2))
    equal_sizes("vecdot", a, -1, b, -1)
    return einsum("...i,...i->...", el.conj(a), b, precision=precision, preferred_element_type=preferred_element_type)


def matvec(x1: Any, x2: Any, /) -> Any:
    """Products of matrices and vectors; leading dimensions broadcast.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.

    >>> jnp.matvec(jnp.array([[1, 2], [3, 4]]), jnp.array([1, 1]))
    Array([3, 7], dtype=int32)
    """
    a, b = _operands("matvec", x1, x2)
    equal_sizes("matvec", a, -1, b, -1)
    return einsum("...ij,...j->...i", a, b)


def vecmat(x1: Any, x2: Any, /) -> Any:
    """Products of (conjugated) vectors and matrices; leading dimensions broadcast.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.

    >>> jnp.vecmat(jnp.array([1, 1]), jnp.array([[1, 2], [3, 4]]))
    Array([4, 6], dtype=int32)
    """
    a, b = _operands("vecmat", x1, x2)
    equal_sizes("vecmat", a, -1, b, -2)
    return einsum("...i,...ij->...j", el.conj(a), b)


@at_once(2)
def tensordot(
    a: Any, b: Any, axes: Any = 2, *, precision: Any = None, preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:  # fmt: skip
    """The sum over products along ``axes``: a number of dimensions, or the dimensions of each operand.

    Args:
      a: an array, or what `asarray` makes one of.
      b: a second array.
      axes: how many dimensions are contracted, or a pair of lists of them.
      precision: a `lax.Precision`, its name, or one for each operand.
      preferred_element_type: the dtype to accumulate in and return.
      out_sharding: the sharding of the result over Explicit axes.

    >>> jnp.tensordot(jnp.ones((2, 3)), jnp.ones((3, 4)), axes=1).shape
    (2, 4)
    """
    a, b = _operands("tensordot", a, b)
    dims = _summed_axes(axes, a, b)
    if any(a.shape[i] != b.shape[j] for i, j in zip(*dims)):
        raise ShapeError(
            "dot_general requires contracting dimensions to have the same shape, got "
            f"{tuple(a.shape[i] for i in dims[0])} and {tuple(b.shape[i] for i in dims[1])}. (in "
            f"tensordot of shapes {a.shape} and {b.shape})"
        )
    dtype, weak = result_dtype("tensordot", (a, b), preferred_element_type)
    return _finish(contract(a, b, dims, ((), ()), dtype, precision, out_sharding), dtype, weak)


def _summed_axes(axes: Any, a: Any, b: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dimensions of each operand that ``tensordot`` sums over."""
    if isinstance(axes, int):
        if axes > min(a.ndim, b.ndim):
            raise errors.ArgumentTypeError(
                f"Number of tensordot axes (axes {axes}) exceeds input ranks ({a.shape} and {b.shape})"
            )
        return tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes))
    if not isinstance(axes, (tuple, list, np.ndarray)) or len(axes) != 2:
        raise errors.ArgumentTypeError(
            f"tensordot axes argument must be an int, a pair of ints, or a pair of lists of ints, got {axes!r}"
        )
    left, right = axes
    if isinstance(left, str) or isinstance(right, str):
        raise errors.ArgumentTypeError(
            f"tensordot requires both axes lists to be either ints, tuples or lists, got {left!r} and {right!r}"
        )
    left, right = (x if isinstance(x, (tuple, list)) else (x,) for x in (left, right))
    if len(left) != len(right):
        raise errors.ArgumentTypeError(f"tensordot requires axes lists to have equal length, got {left} and {right}")
    return canonical_axes(tuple(left), a.ndim, "tensordot"), canonical_axes(tuple(right), b.ndim, "tensordot")


@at_once(2)
def inner(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The sum over products along the last dimensions.

    Args:
      a: an array, or what `asarray` makes one of.
      b: a second array.
      precision: a `lax.Precision`, its name, or one for each operand.
      preferred_element_type: the dtype to accumulate in and return.

    >>> jnp.inner(jnp.array([1, 2]), jnp.array([3, 4]))
    Array(11, dtype=int32)
    """
    a, b = _operands("inner", a, b)
    axes = 0 if a.ndim == 0 or b.ndim == 0 else (-1, -1)
    return tensordot(a, b, axes, precision=precision, preferred_element_type=preferred_element_type)


@at_once(2)
def outer(a: Any, b: Any, out: None = None) -> Any:
    """All products of elements of two (flattened) arrays.

    Args:
      a: an array, or what `asarray` makes one of.
      b: a second array.
      out: must be None: arrays are not written to.

    >>> jnp.outer(jnp.array([1, 2]), jnp.array([3, 4]))
    Array([[3, 4],
           [6, 8]], dtype=int32)
    """
    unsupported_argument("outer", "out", out)
    a, b = _operands("outer", a, b)
    # Flattened first: types along Explicit axes follow through each of the two steps, but not through both at once.
    a, b = (lax.reshape(x, (x.size,)) for x in (a, b))
    return reshape_p.bind(a, new_sizes=(a.size, 1)) * reshape_p.bind(b, new_sizes=(1, b.size))


def kron(a: Any, b: Any) -> Any:
    """The Kronecker product.

    Args:
      a: an array, or what `asarray` makes one of.
      b: a second array.

    >>> jnp.kron(jnp.array([1, 10]), jnp.array([1, 2]))
    Array([ 1,  2, 10, 20], dtype=int32)
    """
    a, b = promoted("kron", a, b)
    rank = max(a.ndim, b.ndim)
    own = [(1,) * (rank - x.ndim) + x.shape for x in (a, b)]
    left = reshape_p.bind(a, new_sizes=tuple(v for n in own[0] for v in (n, 1)))
    right = reshape_p.bind(b, new_sizes=tuple(v for n in own[1] for v in (1, n)))
    return reshape_p.bind(lax.mul(left, right), new_sizes=tuple(m * n for m, n in zip(*own)))


def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Any:
    """The cross product of vectors of two or three components along the given dimensions.

    Args:
      a: an array, or what `asarray` makes one of.
      b: a second array.
      axisa: the dimension of the vectors in the first operand.
      axisb: that in the second operand.
      axisc: that in the result.
      axis: one dimension for all three.

    >>> jnp.cross(jnp.array([1, 0, 0]), jnp.array([0, 1, 0]))
    Array([0, 0, 1], dtype=int32)
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = _operands("cross", a, b)
    a, b = moveaxis(a, axisa, -1), moveaxis(b, axisb, -1)
    if a.shape[-1] not in (2, 3) or b.shape[-1] not in (2, 3):
        raise ShapeError(f"Dimension must be either 2 or 3 for cross product, got shapes {a.shape} and {b.shape}")
    if a.shape[-1] == b.shape[-1] == 2:
        return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    a0, a1, b0, b1 = a[..., 0], a[..., 1], b[..., 0], b[..., 1]
    a2 = a[..., 2] if a.shape[-1] == 3 else zeros_like(a0)
    b2 = b[..., 2] if b.shape[-1] == 3 else zeros_like(b0)
    return stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], axisc)


# ----------------------------------------------------------------------------------------------------------
# einsum


def einsum(
    subscripts: Any, /, *operands: Any, out: None = None, optimize: Any = "auto", precision: Any = None,
    preferred_element_type: Any = None, out_sharding: Any = None, _dot_general: Callable[..., Any] | None = None,
) -> Any:  # fmt: skip
    """Sums of products over named dimensions, as in ``numpy.einsum``.

    The operands are contracted pair by pair in an order of least work; each pair is one ``dot_general`` whose shared
    kept names are batch dimensions.

    Args:
      optimize: how to order contractions: True, "auto", "optimal", "greedy", False, or a path.
      precision: a ``lax.Precision``, its name, or one for each operand.
      preferred_element_type: dtype to accumulate in and return.
      out_sharding: sharding of the result over Explicit axes. Where there are several pairs, how what lies between
        them is split is left to propagation.

    >>> jnp.einsum("ij,j->i", jnp.array([[1, 2], [3, 4]]), jnp.array([1, 1]))
    Array([3, 7], dtype=int32)
    """
    unsupported_argument("einsum", "out", out)
    if not isinstance(subscripts, str):
        subscripts, sequence = from_sublists((subscripts, *operands))
        operands = tuple(sequence)
    xs = _operands("einsum", *operands)
    if isinstance(optimize, list):
        optimize = tuple(s if isinstance(s, str) else tuple(s) for s in optimize)
    plan = plan_einsum(subscripts, tuple(x.shape for x in xs), optimize)
    dtype, weak = result_dtype("einsum", xs, preferred_element_type)
    is_one_pair = len(plan.steps) == 1 and isinstance(plan.steps[0], Pair) and _dot_general is None
    if out_sharding is not None:
        _check_out_sharding(out_sharding, is_one_pair)
    run = run_einsum if is_one_pair else _run_in_auto_mode
    return _finish(run(plan, xs, dtype, precision, out_sharding=out_sharding, dot_general=_dot_general), dtype, weak)


def run_einsum(
    plan: EinsumPlan, xs: list[Any], dtype: Any, precision: Any, out_sharding: Any = None,
    dot_general: Callable[..., Any] | None = None,
) -> Any:  # fmt: skip
    """The result of a plan over its operands, in ``dtype``."""
    xs = list(xs)
    for step in plan.steps:
        if isinstance(step, Pair):
            x, y = _prepared(xs[step.lhs], step.lhs_reduce, dtype), _prepared(xs[step.rhs], step.rhs_reduce, dtype)
            for i in sorted((step.lhs, step.rhs), reverse=True):
                del xs[i]
            if dot_general is not None:
                out = dot_general(x, y, (step.contract, step.batch), precision, preferred_element_type=dtype)
            else:
                out = contract(x, y, step.contract, step.batch, dtype, precision, _before(step.transpose, out_sharding))
        else:
            out = _prepared(xs.pop(step.operand), step.reduce, dtype)
        if step.transpose is not None:
            out = transpose_p.bind(out, permutation=step.transpose)
        xs.append(out)
    (out,) = xs
    return out


_run_in_auto_mode = in_auto_mode(run_einsum)


def _check_out_sharding(out_sharding: Any, is_one_pair: bool) -> None:
    check_out_sharding(out_sharding, "einsum")
    spec = out_sharding if isinstance(out_sharding, PartitionSpec) else out_sharding.spec
    if spec.unreduced and not is_one_pair:
        raise errors.UnsupportedError(
            f"einsum leaves addends, as {spec} asks at {capture()}, of one product of two operands only: give "
            "out_sharding to the last product alone, or to lax.reduce_sum for a sum over dimensions of one operand"
        )


def _before(transpose: Sequence[int] | None, out_sharding: Any) -> Any:
    """What `out_sharding` says of a value that is about to be transposed."""
    if out_sharding is None or transpose is None:
        return out_sharding
    wanted = asked(out_sharding, len(transpose), "einsum")
    if wanted is None:
        return None
    entries: list[Any] = [None] * len(transpose)
    for entry, dim in zip(wanted.spec.partitions, transpose):
        entries[dim] = entry
    return wanted.update(spec=wanted.spec.update(partitions=entries))


def _prepared(x: Any, reduce: Reduce, dtype: Any) -> Any:
    if reduce.trivial:
        return x
    for axes in reduce.diagonals:
        x = el.select_n_p.bind(_on_diagonal(x.shape, axes), zeros_like(x), x)
    if reduce.sum_axes:
        if dtypes.result_type(x, dtype) != x.dtype:
            x = el.convert_element_type(x, dtype)
        x = (reduce_or_p if x.dtype == np.bool_ else reduce_sum_p).bind(x, axes=reduce.sum_axes)
    if reduce.squeeze:
        drop = tuple(a - sum(s < a for s in reduce.sum_axes) for a in reduce.squeeze)
        x = reshape_p.bind(x, new_sizes=tuple(n for i, n in enumerate(x.shape) if i not in drop))
    return x


def _on_diagonal(shape: tuple[int, ...], axes: Sequence[int]) -> Any:
    """bool[shape]: whether the positions along ``axes`` are equal."""
    positions = [iota_p.bind(dtype=np.dtype("int32"), shape=shape, dimension=a) for a in axes]
    mask = el.eq_p.bind(positions[0], positions[1])
    for p in positions[2:]:
        mask = el.and_p.bind(mask, el.eq_p.bind(positions[0], p))
    return mask


def einsum_path(subscripts: Any, /, *operands: Any, optimize: Any = "auto") -> tuple[list[Any], str]:
    """The order in which :func:`einsum` contracts: ``(path, a line that describes it)``.

    Args:
      subscripts: as for `einsum`.
      operands: arrays.
      optimize: "optimal", "greedy", or a path.

    >>> jnp.einsum_path("ij,jk->ik", jnp.ones((2, 3)), jnp.ones((3, 4)))[0]
    [(0, 1)]
    """
    if not isinstance(subscripts, str):
        subscripts, sequence = from_sublists((subscripts, *operands))
        operands = tuple(sequence)
    path, text = described_path(subscripts, [tuple(np.shape(x)) for x in operands], optimize)
    return list(path), text
