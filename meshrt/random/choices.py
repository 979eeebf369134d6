"""Permutations and choices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.basic.kinds import has_kind
from meshrt.core.dimensions.expression import is_symbolic_dim
from meshrt.core.types import aval_of
from meshrt.numpy import ufuncs as uf
from meshrt.numpy.arrays import asarray
from meshrt.numpy.creation import arange
from meshrt.numpy.cumulative import cumsum
from meshrt.numpy.filled import zeros
from meshrt.numpy.indexing import take
from meshrt.numpy.operands import ShapeError, canonical_axis, promote_inexact, shape_tuple, static_int
from meshrt.numpy.sorting import searchsorted
from meshrt.primitives import random as rn
from meshrt.primitives.axis_types import in_auto_mode
from meshrt.random.extremes import gumbel
from meshrt.random.keys import typed
from meshrt.random.uniforms import placed, randint, uniform

__all__ = ["choice", "permutation"]


@in_auto_mode
def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False, *, out_sharding: Any = None) -> Any:
    """``x`` (or ``arange(x)`` for an integer) with positions along ``axis`` in random order.

    With ``independent`` every vector along ``axis`` gets an order of its own.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      x: an array, or an int n for `arange(n)`.
      axis: the dimension to draw along.
      independent: shuffle each vector along `axis` by itself.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> jnp.sort(meshrt.random.permutation(meshrt.random.key(0), 4))
    Array([0, 1, 2, 3], dtype=int32)
    """
    key, _ = typed("permutation", key)
    canonical_axis(axis, aval_of(x).ndim or 1, "permutation")
    if aval_of(x).ndim == 0:
        count = x if is_symbolic_dim(x) else static_int(x, "permutation: x")
        return placed(_shuffled(key, arange(count), 0), out_sharding)
    x = asarray(x)
    axis = canonical_axis(axis, x.ndim, "permutation")
    if independent or x.ndim == 1:
        return placed(_shuffled(key, x, axis), out_sharding)
    order = _shuffled(key, arange(x.shape[axis]), 0)
    return placed(take(x, order, axis, unique_indices=True), out_sharding)


# How many elements are shuffled well in no round, in one, in two: of n elements the keys, 2**32 - 1 of them, are taken
# for different where their number to the power of the rounds is at least n**3.
_MOST_IN_ROUNDS = tuple(int(math.exp(rounds * math.log(dtypes.iinfo(np.uint32).max) / 3)) for rounds in range(3))


def _shuffled(key: Any, x: Any, axis: int) -> Any:
    """Sorts by random 32-bit keys, as often as it takes to make equal keys all the way through improbable."""

    def once(key: Any, x: Any) -> tuple[Any, Any]:
        keys = rn.random_split(key, (2,))
        return keys[0], lax.sort_key_val(rn.random_bits(keys[1], 32, x.shape), x, axis)[1]

    if is_symbolic_dim(x.size):
        size = asarray(x.size)
        rounds = sum((size > most).astype(np.int32) for most in _MOST_IN_ROUNDS)
        return lax.fori_loop(0, rounds, lambda _, c: once(*c), (key, x))[1]
    for _ in range(sum(x.size > most for most in _MOST_IN_ROUNDS)):
        key, x = once(key, x)
    return x


def choice(
    key: Any, a: Any, shape: Sequence[int] = (), replace: bool = True, p: Any = None, axis: int = 0,
    mode: str | None = None,
) -> Any:  # fmt: skip
    """Elements of ``a`` along ``axis`` (or of ``arange(a)`` for an integer), with probabilities ``p``.

    Args:
      shape: shape of the samples, which takes the place of ``axis``.
      replace: whether an element may be chosen twice.

    >>> meshrt.random.choice(meshrt.random.key(0), 5, (3,), replace=False).shape
    (3,)
    """
    key, _ = typed("choice", key)
    if not isinstance(shape, Sequence):
        raise errors.ArgumentTypeError(
            f"shape argument of choice must be a sequence, got {shape!r}; for a vector give ({shape!r},)"
        )
    shape = shape_tuple(shape)
    source = None if aval_of(a).ndim == 0 else asarray(a)
    if source is None:
        # Of a float, what int() makes of it.
        count = int(a) if has_kind(aval_of(a).dtype, "f") else static_int(a, "choice: a")
    else:
        axis = canonical_axis(axis, source.ndim, "choice")
        count = source.shape[axis]
    draws = math.prod(shape)
    if draws == 0:
        return zeros(shape, np.int32 if source is None else source.dtype)
    if count <= 0:
        raise errors.ArgumentValueError("choice: a must be greater than 0 unless no samples are taken")
    if not replace and draws > count:
        raise errors.ArgumentValueError(
            f"choice: Cannot take a larger sample (size {draws}) than population (size {count}) when 'replace=False'"
        )
    if p is None and not replace:
        out = lax.slice_in_dim(permutation(key, count if source is None else source, axis), 0, draws, axis=axis)
    else:
        positions = (
            randint(key, shape, 0, count) if p is None else _weighted(key, p, count, shape, draws, replace, mode)
        )
        out = positions if source is None else _take(source, positions, axis)
    if source is None:
        return lax.reshape(out, shape)
    return lax.reshape(out, (*source.shape[:axis], *shape, *source.shape[axis + 1 :]))


def _take(source: Any, positions: Any, axis: int) -> Any:
    return take(source, positions, axis)


def _weighted(key: Any, p: Any, count: int, shape: tuple, draws: int, replace: bool, mode: Any) -> Any:
    """With replacement by the inverse of the distribution function, without by the Gumbel trick."""
    p = asarray(promote_inexact("choice", p)[0])
    if p.shape != (count,):
        raise ShapeError(
            "p must be None or a 1D vector with the same size as a.shape[axis]. p has shape "
            f"{p.shape} and a.shape[axis] is {count}."
        )
    integer = dtypes.default_int_dtype()
    if replace:
        total = cumsum(p)
        r = total[-1] * (1 - uniform(key, shape, p.dtype))
        return searchsorted(total, r).astype(integer)
    noisy = uf.add(gumbel(key, (count,), p.dtype, mode), uf.log(p))
    return lax.top_k(noisy, draws)[1].astype(integer)
