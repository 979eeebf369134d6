"""What `vjp` and `linearize` return: functions that are pytrees, so that they enter and leave jitted functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt.tree_util import register_pytree_node

__all__ = ["LinearMap"]

Run = Callable[..., Any]  # takes the residuals, then what the map is applied to


class LinearMap:
    """A linear function and the arrays that it holds, its residuals.

    As a pytree it has the residuals as leaves, and what is computed with them as structure. That half is made when it
    is asked for, by `parts`: a map that is only called runs as it was recorded (`call`). Maps that one trace made have
    equal structures.
    """

    __slots__ = ("__weakref__", "_call", "_made", "_parts")

    def __init__(self, call: Callable[..., Any], parts: Callable[[], tuple[Run, Sequence[Any]]]):
        self._call, self._parts = call, parts
        self._made: tuple[Run, Sequence[Any]] | None = None

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def parts(self) -> tuple[Run, Sequence[Any]]:
        """The function of residuals and arguments, and the residuals."""
        if self._made is None:
            self._made = self._parts()
        return self._made


def _flatten(linear_map: LinearMap) -> tuple[tuple[Any, ...], Run]:
    run, residuals = linear_map.parts()
    return tuple(residuals), run


def _unflatten(run: Run, residuals: Sequence[Any]) -> LinearMap:
    return LinearMap(lambda *args: run(residuals, *args), lambda: (run, residuals))


register_pytree_node(LinearMap, _flatten, _unflatten)
