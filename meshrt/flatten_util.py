"""Pytrees of arrays as one vector."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax, tree_util
from meshrt.core.types import aval_of

__all__ = ["ravel_pytree"]


@dataclass(frozen=True)
class _Unravel:
    """Takes a vector apart again. Equal for trees of equal structure, shapes and dtypes, so that it can be static."""

    tree: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...] | None  # None: all have one, and vectors of any dtype are taken apart
    dtype: Any

    def __call__(self, flat: Any) -> Any:
        given = aval_of(flat)
        sizes = [math.prod(s) for s in self.shapes]
        if given.shape != (sum(sizes),):
            raise errors.ArgumentShapeError(
                f"Sum of sizes {sum(sizes)} must be equal to dimension 0 of the operand shape {list(given.shape)}: "
                f"unravel function needs a vector of shape ({sum(sizes)},), the sizes of its leaves"
            )
        if self.dtypes is not None and given.dtype != self.dtype:
            raise errors.ArgumentTypeError(
                f"unravel function given array of dtype {given.dtype}, but expected dtype {self.dtype}"
            )
        leaves = [lax.reshape(part, s) for part, s in zip(lax.split(flat, sizes), self.shapes)] if sizes else []
        if self.dtypes is not None:
            leaves = [_converted(leaf, dtype) for leaf, dtype in zip(leaves, self.dtypes)]
        return tree_util.tree_unflatten(self.tree, leaves)


def _converted(x: Any, dtype: Any) -> Any:
    """Back in the dtype that it had: of what became complex beside complex numbers, the real part."""
    if dtypes.issubdtype(aval_of(x).dtype, np.complexfloating) and not dtypes.issubdtype(dtype, np.complexfloating):
        x = lax.real(x)
    return lax.convert_element_type(x, dtype)


def ravel_pytree(pytree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """All leaves of a tree side by side in one vector, and the function that takes such a vector apart.

    Leaves of several dtypes are promoted to one in the vector, and get theirs back. A tree without leaves gives an
    empty float32 vector.

    Returns:
      (array [total size], unravel), where unravel(vector) has the structure, shapes and dtypes of `pytree`; unravel
      raises ArgumentTypeError for vectors of another size or dtype.

    >>> flat, unravel = ravel_pytree({"a": jnp.ones(2), "b": 3.0})  # doctest: +SKIP
    >>> unravel(flat * 2)["b"]  # doctest: +SKIP
    """
    leaves, tree = tree_util.tree_flatten(pytree)
    if not leaves:
        return lax.full((0,), 0, np.float32), _Unravel(tree, (), None, None)
    avals = [aval_of(x) for x in leaves]
    own = tuple(a.dtype for a in avals)
    common = dtypes.result_type(*own)
    uniform = all(d == common for d in own)
    parts = [lax.reshape(lax.convert_element_type(x, common), (a.size,)) for x, a in zip(leaves, avals)]
    return lax.concatenate(parts, 0), _Unravel(tree, tuple(a.shape for a in avals), None if uniform else own, common)
