"""How many calls may stand within one another in a module."""

from __future__ import annotations

from meshrt.core.jaxpr import Jaxpr, subjaxprs
from meshrt.heuristics import NESTED_CALLS

__all__ = ["is_deep"]


def is_deep(jaxpr: Jaxpr, heights: dict[Jaxpr, int]) -> bool:
    """Whether a function for a Jaxpr would hold more calls within one another than compilers take, so that it is
    written in place of its calls instead. `heights` holds what is known already, and is added to.

    >>> from meshrt.core.jaxpr import Jaxpr
    >>> is_deep(Jaxpr((), (), (), ()), {})
    False
    """
    return _height(jaxpr, heights) > NESTED_CALLS


def _height(jaxpr: Jaxpr, heights: dict[Jaxpr, int]) -> int:
    """The Jaxprs within one another, this one included; those of loops and branches count too, though they become
    regions."""
    height = heights.get(jaxpr)
    if height is None:
        inner = (
            _height(part, heights)
            for eqn in jaxpr.eqns
            if not eqn.primitive.cache_types  # others have no Jaxprs among their parameters
            for part in subjaxprs(eqn.params)
        )
        height = heights[jaxpr] = 1 + max(inner, default=0)
    return height
