"""Arithmetic of vectors that are pytrees of arrays."""

from __future__ import annotations

import operator
from typing import Any

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.tree_util import tree_leaves
from meshrt.tree_util import tree_map as map_tree

__all__ = ["add", "inner", "map_tree", "norm", "real_inner", "scaled", "subtract"]

_HIGHEST = lax.Precision.HIGHEST


def add(x: Any, y: Any) -> Any:
    return map_tree(operator.add, x, y)


def subtract(x: Any, y: Any) -> Any:
    return map_tree(operator.sub, x, y)


def scaled(factor: Any, x: Any) -> Any:
    return map_tree(lambda leaf: factor * leaf, x)


def inner(x: Any, y: Any) -> Any:
    """x^H y."""
    return sum(tree_leaves(map_tree(lambda a, b: jnp.vdot(a, b, precision=_HIGHEST), x, y)))


def real_inner(x: Any, y: Any) -> Any:
    """The real part of x^H y."""

    def part(a: Any, b: Any) -> Any:
        total = jnp.vdot(a.real, b.real, precision=_HIGHEST)
        if "c" in a.dtype.kind + b.dtype.kind:
            total = total + jnp.vdot(a.imag, b.imag, precision=_HIGHEST)
        return total

    return sum(tree_leaves(map_tree(part, x, y)))


def norm(x: Any) -> Any:
    """The length of x."""
    return jnp.sqrt(real_inner(x, x))
