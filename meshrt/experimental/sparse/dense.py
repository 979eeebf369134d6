"""Sparse arrays as dense ones, by an operation that `sparsify` knows."""

from __future__ import annotations

from typing import Any

import meshrt.numpy as jnp
from meshrt.core.trace import Tracer
from meshrt.experimental.sparse.arrays import JAXSparse
from meshrt.primitives.compositions import composition
from meshrt.tree_util import tree_structure, tree_unflatten

__all__ = ["todense", "todense_p"]


def _program(*parts: Any, tree: Any) -> Any:
    whole = tree_unflatten(tree, parts)
    return whole.todense() if isinstance(whole, JAXSparse) else whole


todense_p = composition("todense", _program)


def todense(arr: Any) -> Any:
    """The array with all its elements; a dense one as it is. In a function under `sparsify`, what was sparse is dense
    from there on.

    >>> import meshrt.numpy as mnp
    >>> from meshrt.experimental import sparse
    >>> m = sparse.BCOO.fromdense(mnp.array([0.0, 2.0]))
    >>> sparse.sparsify(lambda m: sparse.todense(m) + 1)(m)
    Array([1., 3.], dtype=float32)
    """
    if isinstance(arr, JAXSparse):
        return arr.todense()
    if isinstance(arr, Tracer):
        return todense_p.bind(arr, tree=tree_structure(0))
    return jnp.asarray(arr)
