"""Which operations may fail, and how that is seen: for the checks that users need not write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, lax
from meshrt import numpy as jnp
from meshrt.contexts import usual_promotion
from meshrt.core.types import aval_of
from meshrt.experimental.checkify.failures import DivisionByZeroError, ErrorCategory, JaxException, NaNError, OOBError
from meshrt.primitives.lu import factored_solve_p

__all__ = ["failures_of"]

# (where there is an error, what it is)
Failure = tuple[Any, JaxException]

# Operations that can give a NaN.
_NAMES = """
acos acosh add asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt conv_general_dilated cos cosh cumlogsumexp
cummax cummin cumprod cumsum digamma div dot_general erf erf_inv erfc exp exp2 expm1 fft igamma igamma_grad_a
igammac integer_pow lgamma linear_solve log log1p logistic mul pad pow psum reduce reduce_prod reduce_sum
reduce_window reduce_window_sum regularized_incomplete_beta rem rsqrt scatter scatter_add scatter_max scatter_min
scatter_mul scatter_sub sin sinh sqrt square sub tan tanh
"""
_CAN_GIVE_NAN = frozenset([factored_solve_p, *(getattr(lax, f"{name}_p") for name in _NAMES.split())])


def failures_of(
    primitive: Any, args: Sequence[Any], outs: Sequence[Any], params: dict[str, Any], enabled: frozenset[ErrorCategory]
) -> Iterator[Failure]:
    """The errors that an application may have of those asked for, in the order in which they are reported."""
    if primitive is lax.div_p and DivisionByZeroError in enabled:
        yield jnp.any(jnp.equal(args[1], 0)), DivisionByZeroError()
    if primitive in _BOUNDS and OOBError in enabled:
        yield from _BOUNDS[primitive](primitive.name, args, params)
    if primitive in _CAN_GIVE_NAN and NaNError in enabled:
        inexact = [x for x in outs if dtypes.issubdtype(aval_of(x).dtype, np.inexact)]
        if inexact:
            bad = [jnp.any(jnp.isnan(x)) for x in inexact]
            yield bad[0] if len(bad) == 1 else jnp.any(jnp.stack(bad)), NaNError(primitive.name)


@usual_promotion
def _outside(name: str, indices: Any, largest: np.ndarray, axes: Sequence[int], shape: tuple[int, ...]) -> Failure:
    """The error that some of `indices` (..., coordinate) lies outside of [0, largest] of its axis."""
    wrong = (indices < 0) | (indices > jnp.asarray(largest, aval_of(indices).dtype))
    first = jnp.argmax(wrong.ravel())
    axis = jnp.asarray(np.array(axes, np.int32))[first % len(axes)]
    size = jnp.asarray(np.array(shape, np.int32))[axis]
    found = jnp.stack([indices.ravel()[first].astype(np.int32), axis, size])
    return jnp.any(wrong), OOBError(name, tuple(shape), found)


def _dynamic(name: str, shape: tuple[int, ...], starts: Sequence[Any], sizes: Sequence[int]) -> Iterator[Failure]:
    if shape:
        indices = jnp.stack([jnp.asarray(s, np.int32) for s in starts])
        yield _outside(name, indices, np.array(shape) - np.array(sizes), range(len(shape)), shape)


def _dynamic_slice(name: str, args: Sequence[Any], params: dict[str, Any]) -> Iterator[Failure]:
    return _dynamic(name, aval_of(args[0]).shape, args[1:], params["slice_sizes"])


def _dynamic_update_slice(name: str, args: Sequence[Any], params: dict[str, Any]) -> Iterator[Failure]:
    return _dynamic(name, aval_of(args[0]).shape, args[2:], aval_of(args[1]).shape)


def _gather(name: str, args: Sequence[Any], params: dict[str, Any]) -> Iterator[Failure]:
    shape, axes = aval_of(args[0]).shape, params["dimension_numbers"].start_index_map
    if axes and aval_of(args[1]).size:
        largest = np.array([shape[a] - params["slice_sizes"][a] for a in axes])
        yield _outside(name, args[1], largest, axes, shape)


def _scatter(name: str, args: Sequence[Any], params: dict[str, Any]) -> Iterator[Failure]:
    numbers = params["dimension_numbers"]
    shape, updates = aval_of(args[0]).shape, aval_of(args[2]).shape
    axes = numbers.scatter_dims_to_operand_dims
    windows = iter(updates[d] for d in numbers.update_window_dims)
    whole = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    sizes = [1 if d in whole else next(windows) for d in range(len(shape))]
    if axes and aval_of(args[1]).size:
        yield _outside(name, args[1], np.array([shape[a] - sizes[a] for a in axes]), axes, shape)


_BOUNDS: dict[Any, Callable[[str, Sequence[Any], dict[str, Any]], Iterator[Failure]]] = {
    lax.dynamic_slice_p: _dynamic_slice, lax.dynamic_update_slice_p: _dynamic_update_slice, lax.gather_p: _gather,
    lax.scatter_p: _scatter, lax.scatter_add_p: _scatter, lax.scatter_sub_p: _scatter, lax.scatter_mul_p: _scatter,
    lax.scatter_min_p: _scatter, lax.scatter_max_p: _scatter, lax.scatter_apply_p: _scatter,
    lax.scatter_and_p: _scatter, lax.scatter_or_p: _scatter, lax.scatter_xor_p: _scatter,
}  # fmt: skip
