"""Taylor polynomials of functions: derivatives of high order along a curve.

The curve is the polynomial that `jet` is given; its parameter is differentiated as often as the polynomial has terms,
by forward mode over forward mode. So `jet` knows every operation that has a derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, errors, tree_util
from meshrt.core.types import aval_of
from meshrt.transforms.jvp import jvp_flat

__all__ = ["fact", "jet"]


def fact(n: float) -> float:
    """n!, by which the n-th derivative is larger than the n-th coefficient of a Taylor polynomial.

    >>> meshrt.experimental.jet.fact(4)
    24.0
    """
    return math.gamma(n + 1.0)


def jet(
    fun: Callable[..., Any],
    primals: Sequence[Any],
    series: Sequence[Sequence[Any]],
    factorial_scaled: bool = True,
    **_: Any,
) -> tuple[Any, Any]:
    """(fun(*primals), its derivatives of order 1, 2, ... along a curve): a list for each array of the result.

    `series[i]` are the derivatives of the curve of argument i, as many for each argument as are wanted. With
    `factorial_scaled=False` the k-th derivatives, given and returned, are divided by k!: coefficients of polynomials.

    >>> import meshrt.numpy as jnp
    >>> from meshrt.experimental.jet import jet
    >>> value, slopes = jet(lambda x: x**3, (2.0,), ((1.0, 0.0, 0.0),))
    >>> float(value), [float(s) for s in slopes]
    (8.0, [12.0, 12.0, 6.0])

    Raises:
      ArgumentValueError: arguments have different numbers of terms, or a primal or term is no array.
    """
    orders = set(map(len, series))
    if len(orders) != 1 or len(series) != len(primals):
        raise errors.ArgumentValueError(
            f"jet terms have inconsistent lengths for different arguments: {[len(s) for s in series]} terms for "
            f"{len(primals)} arguments"
        )
    (order,) = orders
    for i, (x, terms) in enumerate(zip(primals, series)):
        _check_array(f"primal value at position {i}", x)
        for j, term in enumerate(terms):
            _check_array(f"term {j} for argument {i}", term)
    out_tree: Any = None

    def curve(t: Any) -> list[Any]:
        nonlocal out_tree
        args = [_polynomial(x, terms, t, factorial_scaled) for x, terms in zip(primals, series)]
        outs, out_tree = tree_util.tree_flatten(fun(*args))
        return [jnp.asarray(o) for o in outs]

    # The parameter is weakly typed, so that results are where arguments and their terms are.
    values, *slopes = _derivatives(curve, order)(0.0)
    if not factorial_scaled:
        slopes = [[s / fact(k + 1) for s in of_order] for k, of_order in enumerate(slopes)]
    by_result = [[of_order[i] for of_order in slopes] for i in range(len(values))]
    return tree_util.tree_unflatten(out_tree, values), tree_util.tree_unflatten(out_tree, by_result)


def _check_array(what: str, x: Any) -> None:
    if not tree_util.treedef_is_leaf(tree_util.tree_structure(x)):
        raise errors.ArgumentValueError(f"{what} is not an array; pass each leaf as an argument")


def _polynomial(x: Any, terms: Sequence[Any], t: Any, factorial_scaled: bool) -> Any:
    """x + t (v1 + t (v2/2! + ...)); what is not inexact stays where it is."""
    aval = aval_of(x)
    if not terms or not dtypes.issubdtype(aval.dtype, np.inexact):
        return x
    total: Any = 0.0
    for k in range(len(terms), 0, -1):
        term = jnp.asarray(terms[k - 1])
        term = term if term.dtype == aval.dtype else term.astype(aval.dtype)
        total = t * (total + (term / fact(k) if factorial_scaled else term))
    return x + total


def _derivatives(curve: Callable[[Any], list[Any]], order: int) -> Callable[[Any], list[list[Any]]]:
    """t -> [curve(t), its first, second, ... derivative]."""
    if not order:
        return lambda t: [curve(t)]
    lower = _derivatives(curve, order - 1)

    def derivatives(t: Any) -> list[list[Any]]:
        counts: list[int] = []

        def flat(t: Any) -> list[Any]:
            found = lower(t)
            counts[:] = map(len, found)
            return [x for of_order in found for x in of_order]

        values, tangents = jvp_flat(flat, [t], [1.0])
        width = counts[0]
        last = [_slope(x, s) for x, s in zip(values[-width:], tangents[-width:])] if width else []
        return [values[k * width : (k + 1) * width] for k in range(order)] + [last]

    return derivatives


def _slope(value: Any, tangent: Any) -> Any:
    return jnp.zeros_like(value) if tangent is None else tangent
