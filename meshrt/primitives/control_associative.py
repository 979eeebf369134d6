"""`associative_scan`: all prefixes of a sequence under an associative operation, in logarithmically many steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors, tree_util
from meshrt.core.types import aval_of

__all__ = ["associative_scan"]


def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """`[e0, fn(e0, e1), fn(fn(e0, e1), e2), ...]` along `axis`, in parallel.

    Args:
      fn: an associative function of two pytrees like `elems`; it is applied to many elements at once, along `axis`.
      elems: a pytree of arrays with the same size along `axis`.
      reverse: scans from the last element to the first.

    The scheme is Ladner and Fischer's (Parallel prefix computation, JACM 1980): combine neighbours, scan the results,
    which are the odd prefixes, and combine each with the next element for the even ones.
    """
    if not callable(fn):
        raise errors.ArgumentTypeError(f"lax.associative_scan: fn argument should be callable, not {type(fn).__name__}")
    leaves, tree = tree_util.tree_flatten(elems)
    if not leaves:
        return elems
    ranks = [aval_of(x).ndim for x in leaves]
    if axis < 0:
        axis += ranks[0]
    if not all(0 <= axis < r for r in ranks):
        raise errors.ArgumentValueError(f"associative_scan: axis {axis} does not exist in arrays of ranks {ranks}")
    sizes = sorted({aval_of(x).shape[axis] for x in leaves})
    if len(sizes) > 1:
        raise errors.ArgumentValueError(
            f"associative_scan: the arrays must have one size along axis {axis}, but have {', '.join(map(str, sizes))}"
        )
    if reverse:
        leaves = [_flip(x, axis) for x in leaves]

    def combine(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        out = fn(tree_util.tree_unflatten(tree, a), tree_util.tree_unflatten(tree, b))
        flat, found = tree_util.tree_flatten(out)
        if found != tree:
            raise errors.ArgumentTypeError(
                f"associative_scan: fn must return a pytree like its operands, {tree}, but returned {found}"
            )
        return flat

    outs = _prefixes(combine, leaves, axis)
    if reverse:
        outs = [_flip(x, axis) for x in outs]
    return tree_util.tree_unflatten(tree, outs)


def _flip(x: Any, axis: int) -> Any:
    from meshrt.primitives.concatenate import rev

    return rev(x, (axis,))


def _prefixes(combine: Callable[..., list[Any]], xs: list[Any], axis: int) -> list[Any]:
    from meshrt.primitives.concatenate import concatenate
    from meshrt.primitives.slice import slice_in_dim

    n = aval_of(xs[0]).shape[axis]
    if n < 2:
        return xs

    def cut(values: Sequence[Any], start: int, stop: int | None, stride: int = 1) -> list[Any]:
        return [slice_in_dim(v, start, stop, stride, axis) for v in values]

    odd = _prefixes(combine, combine(cut(xs, 0, n - 1, 2), cut(xs, 1, n, 2)), axis)
    even = cut(xs, 0, 1)
    if n > 2:
        before = cut(odd, 0, n // 2 - 1) if n % 2 == 0 else odd
        rest = combine(before, cut(xs, 2, n, 2))
        even = [concatenate([a, b], axis) for a, b in zip(even, rest)]
    return [_interleave(a, b, axis) for a, b in zip(even, odd)]


def _interleave(even: Any, odd: Any, axis: int) -> Any:
    """even[0], odd[0], even[1], ... along `axis`; `even` may have one element more."""
    from meshrt.primitives.concatenate import concatenate
    from meshrt.primitives.reshape import expand_dims, reshape
    from meshrt.primitives.slice import slice_in_dim

    count = aval_of(odd).shape[axis]
    shape = aval_of(odd).shape
    pairs = concatenate(
        [expand_dims(slice_in_dim(even, 0, count, 1, axis), (axis + 1,)), expand_dims(odd, (axis + 1,))], axis + 1
    )
    out = reshape(pairs, (*shape[:axis], 2 * count, *shape[axis + 1 :]))
    if aval_of(even).shape[axis] == count:
        return out
    return concatenate([out, slice_in_dim(even, count, count + 1, 1, axis)], axis)
