"""Numbers of events: the Poisson, binomial and multinomial distributions."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.types import aval_of
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray
from meshrt.numpy.indexing import take
from meshrt.numpy.operands import broadcast_to_shape, in_one_dtype, promote_inexact, scalar_like, shape_tuple
from meshrt.numpy.reductions import any as any_true
from meshrt.numpy.selection import clip, where
from meshrt.numpy.shapes import moveaxis
from meshrt.primitives import random as rn
from meshrt.primitives.axis_types import in_auto_mode
from meshrt.random.keys import typed
from meshrt.random.uniforms import draw_uniform, float_dtype, int_dtype, one_program, placed, sample_shape, two_keys

__all__ = ["binomial", "multinomial", "poisson"]


def _three_keys(key: Any) -> tuple[Any, Any, Any]:
    keys = rn.random_split(key, (3,))
    return keys[0], keys[1], keys[2]


def _until_accepted(key: Any, start: Any, most: Any, propose: Any) -> Any:
    """Proposals, drawn again for all elements until each has had an accepted one; of several the last counts.

    ``propose(u, v)`` of two arrays of uniform numbers from [0, 1) gives numbers and which of them are accepted.
    """
    aval = aval_of(start)

    def goes_on(carry: Any) -> Any:
        step, _, accepted, _ = carry
        return any_true(~accepted) & (step < most)

    def body(carry: Any) -> Any:
        step, kept, accepted, key = carry
        key, first, second = _three_keys(key)
        u, v = (draw_uniform(k, aval.shape, aval.dtype, 0.0, 1.0) for k in (first, second))
        proposed, accept = propose(u, v)
        return step + 1, where(accept, proposed, kept), accepted | accept, key

    none = lax.full_like(start, False, np.dtype(bool))
    return lax.while_loop(goes_on, body, (0, start, none, key))[1]


# ---------------------------------------------------------------------------------------------------------------------
# Poisson


# Knuth's method takes as many draws as events; from this rate on, rejection takes fewer.
_RATE_OF_REJECTION = 10


def _by_products(key: Any, rate: Any, dtype: np.dtype, most: Any) -> Any:
    """Knuth's method: how many uniform numbers it takes until their product is below exp(-rate)."""

    def goes_on(carry: Any) -> Any:
        step, _, _, logarithm = carry
        return any_true(logarithm > -rate) & (step < most)

    def body(carry: Any) -> Any:
        step, count, key, logarithm = carry
        key, drawing = two_keys(key)
        count = where(logarithm > -rate, count + 1, count)
        u = draw_uniform(drawing, aval_of(rate).shape, np.dtype(np.float32), 0.0, 1.0)
        return step + 1, count, key, logarithm + lax.log(u)

    start = (0, lax.full_like(rate, 0, dtype), key, lax.full_like(rate, 0))
    return lax.while_loop(goes_on, body, start)[1] - 1


def _by_rejection(key: Any, rate: Any, dtype: np.dtype, most: Any) -> Any:
    """Hörmann's transformed rejection (PTRS, 1993)."""
    log_rate = lax.log(rate)
    b = 0.931 + 2.53 * lax.sqrt(rate)
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    sure = 0.9277 - 3.6224 / (b - 2)

    def propose(u: Any, v: Any) -> tuple[Any, Any]:
        u = u - 0.5
        tail = 0.5 - abs(u)
        k = lax.floor((2 * a / tail + b) * u + rate + 0.43)
        density = -rate + k * log_rate - lax.lgamma(k + 1)
        fits = lax.log(v * inverse_alpha / (a / (tail * tail) + b)) <= density
        reject = (k < 0) | ((tail < 0.013) & (v > tail))
        return k, ((tail >= 0.07) & (v <= sure)) | (~reject & fits)

    return el.convert_element_type(_until_accepted(key, lax.full_like(rate, -1), most, propose), dtype)


@in_auto_mode
def poisson(key: Any, lam: Any, shape: Any = None, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Numbers from the Poisson distribution of rate ``lam``.

    Args:
      lam: not negative; an array that broadcasts to ``shape``.
      shape: the shape of the samples, by default that of ``lam``.
      dtype: an integer dtype, by default the default one.

    Raises:
      ArgumentTypeError: ``dtype`` is no integer. ShapeError: ``lam`` does not broadcast to ``shape``.
      UnsupportedError: a key of another generator than threefry2x32.

    >>> random.poisson(random.key(0), 4.0, (3,)).shape
    (3,)
    """
    key, _ = typed("poisson", key)
    if (impl := key.dtype.impl).name != "threefry2x32":
        raise errors.UnsupportedError(
            f"`poisson` is only implemented for the threefry2x32 RNG, not {impl}; make a key with "
            "random.key(seed, impl='threefry2x32')"
        )
    dtype, shape = int_dtype("poisson", dtype), sample_shape("poisson", shape, lam)
    rate = broadcast_to_shape(asarray(el.convert_element_type(lam, np.dtype(np.float32))), shape)
    return placed(_poisson(key, shape, dtype, rate), out_sharding)


@one_program
def _poisson(key: Any, shape: tuple[int, ...], dtype: np.dtype, rate: Any) -> Any:
    few = (rate != rate) | (rate < _RATE_OF_REJECTION)
    most = min(dtypes.iinfo(dtype).max, np.iinfo(np.int32).max)  # steps are counted by an int32
    # Where the other method counts, each has a rate with which it ends soon.
    counts = where(
        few,
        _by_products(key, where(few, rate, scalar_like(rate, 0)), dtype, most),
        _by_rejection(key, where(few, scalar_like(rate, 1e5), rate), dtype, most),
    )
    return where(rate == 0, scalar_like(counts, 0), counts)


# ---------------------------------------------------------------------------------------------------------------------
# Binomial and multinomial


# Inversion takes as many draws as successes; with more than so many expected, rejection takes fewer.
_SUCCESSES_OF_REJECTION = 10


def _by_waiting(key: Any, count: Any, p: Any, most: Any) -> Any:
    """How often one succeeds in ``count`` trials, as the sum of the waiting times (which are geometric) says."""
    log_failure = lax.log1p(-p)

    def goes_on(carry: Any) -> Any:
        step, _, waited, _ = carry
        return any_true(waited <= count) & (step < most)

    def body(carry: Any) -> Any:
        step, successes, waited, key = carry
        drawing, key = two_keys(key)
        successes = where(waited <= count, successes + 1, successes)
        u = draw_uniform(drawing, aval_of(p).shape, aval_of(p).dtype, 0.0, 1.0)
        return step + 1, successes, waited + lax.ceil(lax.log(u) / log_failure), key

    zero = lax.full_like(p, 0)
    return lax.while_loop(goes_on, body, (0, zero, zero, key))[1] - 1


# The logarithm of k! less Stirling's formula, for k = 0, ..., 9: lgamma(k + 1) - (k + 1/2) log(k + 1) + (k + 1) -
# log(2 pi) / 2, in double precision.
_STIRLING_ERRORS = (
    0.0810614667953272, 0.0413406959554092, 0.0276779256849983, 0.02079067210376509, 0.0166446911898211,
    0.0138761288230707, 0.0118967099458917, 0.010411265261972, 0.00925546218271273, 0.00833056343336287,
)  # fmt: skip


# The series of the same for k = 9. It stands for all larger k too, as in JAX, whose numbers would differ otherwise; it
# is small beside what it is added to.
_LAST_ERROR = (1 / 12 - (1 / 360 - 1 / 1260 / 100) / 100) / 10


def _stirling_error(k: Any) -> Any:
    """What Stirling's formula lacks of log(k!)."""
    table = np.asarray(_STIRLING_ERRORS, aval_of(k).dtype)
    place = el.convert_element_type(lax.floor(clip(k, 0.0, 9.0)), np.dtype(np.int32))
    return where(k <= 9, take(table, place, 0), scalar_like(k, _LAST_ERROR))


def _by_squeeze(key: Any, count: Any, p: Any, most: Any) -> Any:
    """Hörmann's transformed rejection with squeeze (BTRS, 1993), for p up to 1/2."""
    deviation = lax.sqrt(count * p * (1 - p))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * p
    center = count * p + 0.5
    sure = 0.92 - 4.2 / b
    odds = p / (1 - p)
    alpha = (2.83 + 5.1 / b) * deviation
    mode = lax.floor((count + 1) * p)

    def propose(u: Any, v: Any) -> tuple[Any, Any]:
        u = u - 0.5
        tail = 0.5 - abs(u)
        k = lax.floor((2 * a / tail + b) * u + center)
        density = (
            (mode + 0.5) * lax.log((mode + 1) / (odds * (count - mode + 1)))
            + (count + 1) * lax.log((count - mode + 1) / (count - k + 1))
            + (k + 0.5) * lax.log(odds * (count - k + 1) / (k + 1))
            + _stirling_error(mode) + _stirling_error(count - mode) - _stirling_error(k) - _stirling_error(count - k)
        )  # fmt: skip
        fits = lax.log(v * alpha / (a / (tail * tail) + b)) <= density
        reject = (k < 0) | (k > count)
        return k, ((tail >= 0.07) & (v <= sure)) | (~reject & fits)

    return _until_accepted(key, lax.full_like(p, -1), most, propose)


def binomial(key: Any, n: Any, p: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Numbers of successes in ``n`` trials of probability ``p``, as floats.

    Args:
      n: not negative; NaN results from others. Integers and floats, which are rounded down, alike.
      p: from [0, 1].
      shape: the shape of the samples, by default what ``n`` and ``p`` broadcast to.
      dtype: a floating dtype, by default the default one.

    Raises:
      ArgumentValueError: ``dtype`` is not floating. ShapeError: parameters that do not broadcast to ``shape``.

    >>> random.binomial(random.key(0), 10, 0.5, (3,)).shape
    (3,)
    """
    key, _ = typed("binomial", key)
    dtype, shape = float_dtype("binomial", dtype), sample_shape("binomial", shape, n, p)
    p = broadcast_to_shape(asarray(promote_inexact("binomial", p)[0]), shape)
    return _binomial(key, shape, dtype, broadcast_to_shape(asarray(el.convert_element_type(n, p.dtype)), shape), p)


@one_program
def _binomial(key: Any, shape: tuple[int, ...], dtype: np.dtype, n: Any, p: Any) -> Any:
    rare = p < 0.5  # otherwise failures are counted
    q = where(rare, p, 1 - p)
    no_count, no_q, endless = (n != n) | (n < 0), q != q, abs(n) == np.inf
    no_chance = no_q | (q < 0)
    q = where(no_chance, scalar_like(q, 0.01), q)
    few = no_count | (n * q <= _SUCCESSES_OF_REJECTION)
    n = lax.floor(n)
    most = float(dtypes.finfo(dtype).max)
    # Where the other method counts, each has parameters with which it ends soon.
    counts = where(
        few,
        _by_waiting(key, where(few, n, scalar_like(n, 0)), q, most),
        _by_squeeze(key, where(few, scalar_like(n, 1e4), n), where(few, scalar_like(q, 0.5), q), most),
    )
    counts = el.convert_element_type(counts, dtype)
    counts = where(no_chance | no_count, scalar_like(counts, np.nan), counts)
    counts = where(endless & ~(no_chance | no_count), scalar_like(counts, np.inf), counts)
    keeps = rare | no_count | no_q | endless
    return where(keeps, counts, el.convert_element_type(n, dtype) - counts)


def multinomial(key: Any, n: Any, p: Any, *, shape: Any = None, dtype: Any = None, unroll: int | bool = 1) -> Any:
    """How often each of the outcomes of probabilities ``p`` (their last dimension) comes in ``n`` trials, as floats.

    Args:
      n: numbers of trials; they broadcast to ``shape`` without its last dimension.
      p: probabilities; NaN results from others.
      shape: the shape of the samples, by default that of ``p``.
      dtype: the dtype of the samples, by default the default floating one.
      unroll: as for ``lax.scan`` over the outcomes.

    >>> meshrt.random.multinomial(meshrt.random.key(0), 10.0, jnp.array([0.5, 0.5])).sum()
    Array(10., dtype=float32)
    """
    key, _ = typed("multinomial", key)
    dtype = dtypes.check_user_dtype(float if dtype is None else dtype, "multinomial")
    n, p = (asarray(x) for x in in_one_dtype("multinomial", [n, p], inexact=True))
    shape = p.shape if shape is None else shape_tuple(shape)
    n, p = broadcast_to_shape(n, shape[:-1]), moveaxis(broadcast_to_shape(p, shape), -1, 0)
    remaining = lax.cumsum(p, 0, reverse=True)
    shares = p / where(remaining == 0, scalar_like(remaining, 1), remaining)
    keys = rn.random_split(key, (shares.shape[0],))
    _, counts = lax.scan(_of_one_outcome, n, (shares, keys), unroll=unroll)
    return el.convert_element_type(moveaxis(counts, 0, -1), dtype)


# (Of the module, so that a second call finds the loop that was compiled for the first.)
def _of_one_outcome(left: Any, outcome: Any) -> tuple[Any, Any]:
    share, key = outcome
    count = _binomial(key, left.shape, left.dtype, left, clip(share, 0, 1))
    return left - count, count
