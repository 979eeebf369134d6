"""Matrix products with a ragged dimension, whose consecutive parts (groups) are multiplied with other matrices.

A group is a mask: the operand is laid out once per group, with zeros where others are, and a contraction does the rest.
So derivatives, batching and sharding are those of selections and contractions.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.shapes import broadcast_in_dim, transpose, zeros
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.contract import DotDimensionNumbers, dot_general
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.cumulative import cumsum
from meshrt.primitives.elementwise import and_p, ge_p, lt_p, sub_p
from meshrt.primitives.reshape import broadcast, broadcasted_iota
from meshrt.primitives.selection import select_n_p

__all__ = ["RaggedDotDimensionNumbers", "ragged_dot", "ragged_dot_general"]


@dataclass(frozen=True)
class RaggedDotDimensionNumbers:
    """Which dimensions of a ragged product are contracted, batched, ragged and grouped.

    `dot_dimension_numbers` are those of `dot_general`; `lhs_ragged_dimensions` names the one dimension of the left
    operand that consists of groups, `rhs_group_dimensions` the one of the right operand that has an entry per group, if
    the ragged dimension is a free one, and is empty otherwise.
    """

    dot_dimension_numbers: DotDimensionNumbers
    lhs_ragged_dimensions: Sequence[int]
    rhs_group_dimensions: Sequence[int]

    def __post_init__(self) -> None:
        numbers = tuple(tuple(tuple(dims) for dims in pair) for pair in self.dot_dimension_numbers)
        object.__setattr__(self, "dot_dimension_numbers", numbers)
        object.__setattr__(self, "lhs_ragged_dimensions", tuple(self.lhs_ragged_dimensions))
        object.__setattr__(self, "rhs_group_dimensions", tuple(self.rhs_group_dimensions))


_MATRICES = RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))


class _Mode(enum.Enum):
    """What a contraction does with the ragged dimension."""

    FREE = "noncontracting"
    CONTRACTED = "contracting"
    BATCHED = "batch"


def _refuse(text: str) -> errors.ArgumentTypeError:
    return errors.ArgumentTypeError(f"ragged_dot_general {text}")


def _mode(lhs: ShapedArray, numbers: RaggedDotDimensionNumbers) -> tuple[_Mode, int]:
    """(what happens to the ragged dimension, its number)."""
    if len(numbers.lhs_ragged_dimensions) != 1:
        raise _refuse(f"expects exactly one lhs ragged dimension, got {numbers.lhs_ragged_dimensions}")
    (ragged,) = numbers.lhs_ragged_dimensions
    _check_range(ragged, lhs, "lhs ragged dimension")
    (contracting, _), (batch, _) = numbers.dot_dimension_numbers
    return _Mode.CONTRACTED if ragged in contracting else _Mode.BATCHED if ragged in batch else _Mode.FREE, ragged


def _check_range(dim: int, aval: ShapedArray, what: str) -> None:
    if not 0 <= dim < aval.ndim:
        side = what.split()[0]
        raise _refuse(
            f"requires {what} numbers to be nonnegative and less than the number of axes of the {side}, got {dim} for "
            f"{aval.short()}"
        )


def _outer(mode: _Mode, ndim: int, ragged: int, contracting: Sequence[int], batch: Sequence[int]) -> tuple[int, ...]:
    """The dimensions along each index of which the ragged one has groups of sizes of its own."""
    if mode is _Mode.BATCHED:
        return tuple(batch[: batch.index(ragged)])
    if mode is _Mode.CONTRACTED:
        return (*batch, *contracting[: contracting.index(ragged)])
    free = [d for d in range(ndim) if d not in (*contracting, *batch)]
    return (*batch, *free[: free.index(ragged)])


def _check(lhs: ShapedArray, rhs: ShapedArray, sizes: ShapedArray, numbers: RaggedDotDimensionNumbers) -> None:
    mode, ragged = _mode(lhs, numbers)
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    if not dtypes.issubdtype(sizes.dtype, np.integer):
        raise _refuse(f"requires that group_sizes.dtype is subtype of np.integer, got {sizes.short()}")
    wanted = tuple(lhs.shape[d] for d in _outer(mode, lhs.ndim, ragged, lhs_contracting, lhs_batch))
    if sizes.ndim == 0 or (sizes.ndim > 1 and sizes.shape[:-1] != wanted):
        raise _refuse(
            f"expected group_sizes to have shape {(*wanted, sizes.shape[-1] if sizes.ndim else 'groups')}, got "
            f"{sizes.shape}: one list per index of the dimensions outside the ragged one, or one list for all"
        )
    groups = numbers.rhs_group_dimensions
    if mode is _Mode.FREE and len(groups) != 1:
        raise _refuse(
            f"requires exactly one rhs group dimension when lhs ragged dimension is noncontracting, got {tuple(groups)}"
        )
    if mode is not _Mode.FREE and groups:
        raise _refuse(
            "requires zero group dimensions in the rhs when lhs ragged dimension is contracting or batch, got "
            f"{tuple(groups)}"
        )
    for group in groups:
        _check_range(group, rhs, "rhs group dimension")
        if group in (*rhs_batch, *rhs_contracting):
            raise _refuse(
                f"requires rhs group dimension numbers to be distinct from contracting and batch dimensions, got "
                f"{group}"
            )
        if rhs.shape[group] != sizes.shape[-1]:
            raise _refuse(
                f"expected rhs group dimension size to be {sizes.shape[-1]}, got {rhs.shape[group]} in dimension "
                f"{group} of {rhs.short()}"
            )


def _laid_out(x: Any, ragged: int, sizes: Any, outer: Sequence[int]) -> Any:
    """[groups, *x.shape]: `x` per group, with zeros outside the group. `sizes` is [*outer, groups]."""
    aval, ends = aval_of(x), cumsum(sizes, aval_of(sizes).ndim - 1)
    shape = (aval_of(sizes).shape[-1], *aval.shape)
    # The group, then the outer dimensions in the order in which `x` has them.
    order = sorted(range(len(outer)), key=lambda i: outer[i])
    dims = (0, *[outer[i] + 1 for i in order])
    spread = lambda limits: broadcast_in_dim(transpose(limits, (len(outer), *order)), shape, dims)
    position = broadcasted_iota(aval_of(sizes).dtype, shape, ragged + 1)
    inside = and_p.bind(ge_p.bind(position, spread(sub_p.bind(ends, sizes))), lt_p.bind(position, spread(ends)))
    repeated = broadcast(x, shape[:1])
    return select_n_p.bind(inside, zeros(aval_of(repeated)), repeated)


def _after_group(dims: Sequence[int]) -> tuple[int, ...]:
    return tuple(d + 1 for d in dims)


def ragged_dot_general(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    ragged_dot_dimension_numbers: RaggedDotDimensionNumbers,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    out_sharding: Any = None,
) -> Any:
    """A contraction whose left operand has a ragged dimension: consecutive groups of `group_sizes` elements.

    A free ragged dimension is multiplied, group by group, with the entries along the right operand's group dimension;
    elements behind the last group give zeros. A contracted one is summed per group, so that the result has a leading
    dimension of groups. Along a batch dimension groups make no difference.

    Args:
      lhs, rhs: arrays, contracted as by `dot_general`.
      group_sizes: integers of shape [groups], or [outer..., groups] with the left operand's batch dimensions and those
        of the ragged dimension's kind that stand before it.
      group_offset: not supported; only None.

    Raises:
      ArgumentTypeError: dimensions or shapes do not fit together.
      UnsupportedError: `group_offset` is given.

    >>> numbers = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])
    >>> x, w = jnp.ones((3, 2)), jnp.ones((2, 2, 4))
    >>> lax.ragged_dot_general(x, w, jnp.array([1, 2]), numbers).shape
    (3, 4)
    """
    if group_offset is not None:
        raise errors.UnsupportedError(
            "ragged_dot_general starts with the first group; leave group_offset=None and slice group_sizes and rhs"
        )
    numbers, left, right = ragged_dot_dimension_numbers, aval_of(lhs), aval_of(rhs)
    _check(left, right, aval_of(group_sizes), numbers)
    mode, ragged = _mode(left, numbers)
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    outer = _outer(mode, left.ndim, ragged, lhs_contracting, lhs_batch)
    weak = all(aval_of(x).weak_type for x in (lhs, rhs, group_sizes))
    if aval_of(group_sizes).ndim == 1:
        group_sizes = broadcast(group_sizes, [left.shape[d] for d in outer])
    plain: DotDimensionNumbers = numbers.dot_dimension_numbers
    if mode is not _Mode.BATCHED:
        lhs = _laid_out(lhs, ragged, group_sizes, outer)
        lhs_contracting, lhs_batch = _after_group(lhs_contracting), _after_group(lhs_batch)
    if mode is _Mode.FREE:
        contracting = ((*lhs_contracting, 0), (*rhs_contracting, numbers.rhs_group_dimensions[0]))
        plain = (contracting, (lhs_batch, rhs_batch))
    elif mode is _Mode.CONTRACTED:
        partner = rhs_contracting[numbers.dot_dimension_numbers[0][0].index(ragged)]
        beside = _outer(mode, right.ndim, partner, rhs_contracting, rhs_batch)
        rhs = _laid_out(rhs, partner, group_sizes, beside)
        batch = ((0, *lhs_batch), (0, *_after_group(rhs_batch)))
        plain = ((lhs_contracting, _after_group(rhs_contracting)), batch)
    out = dot_general(lhs, rhs, plain, precision, preferred_element_type, out_sharding=out_sharding)
    return convert_element_type(out, aval_of(out).dtype, weak)


def ragged_dot(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    out_sharding: Any = None,
) -> Any:
    """[m, k] times [groups, k, n], to [m, n]: `group_sizes[0]` rows by `rhs[0]`, the next ones by `rhs[1]`, and so on.

    Rows behind the last group are zero.

    >>> import meshrt.numpy as mnp, meshrt.lax as lax
    >>> lax.ragged_dot(mnp.ones((3, 1)), mnp.array([[[1.0]], [[5.0]]]), mnp.array([1, 2]))[:, 0]
    Array([1., 5., 5.], dtype=float32)
    """
    return ragged_dot_general(
        lhs, rhs, group_sizes, _MATRICES, precision, preferred_element_type, group_offset, out_sharding
    )
