"""Where high values enter and leave functions: pytrees in which the arrays inside them are leaves like all others.

`opened(tree)` puts a node in the place of each high value (see `meshrt.core.high`). Its children are the value's
arrays, and unflattening its structure gives the high value again, made of whatever leaves there are then: tracers in
the function, cotangents in a gradient. So every transformation that flattens its arguments and results by `flatten`
takes high values without further ado:

    grad(f)(Scaled(values, scale))    ->  Scaled(gradient of values, gradient of scale)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshrt import tree_util
from meshrt.core.high import HiType, has_high_types, is_high_value
from meshrt.core.types import aval_of

__all__ = ["flatten", "leaf_paths", "numbered", "opened"]


class _Opened:
    """A high value, taken apart."""

    __slots__ = ("arrays", "kind")

    def __init__(self, kind: HiType, arrays: Iterable[Any]):
        self.kind, self.arrays = kind, tuple(arrays)


class _Place:
    """Stands for the leaf at `index` where paths and positions are asked: no high value can be made of it."""

    __slots__ = ("index",)

    def __init__(self, index: int):
        self.index = index


def _close(kind: HiType, arrays: Iterable[Any]) -> Any:
    arrays = tuple(arrays)
    return _Opened(kind, arrays) if any(type(a) is _Place for a in arrays) else kind.raise_val(*arrays)


def _open(value: Any) -> _Opened:
    kind: Any = aval_of(value)
    return _Opened(kind, kind.lower_val(value))


tree_util.register_pytree_node(_Opened, lambda node: (node.arrays, node.kind), _close)


def opened(tree: Any) -> Any:
    """`tree` with the high values among its leaves taken apart; `tree` itself where there are none."""
    if not has_high_types():
        return tree
    leaves, structure = tree_util.tree_flatten(tree)
    if not any(map(is_high_value, leaves)):
        return tree
    return tree_util.tree_unflatten(structure, [_open(x) if is_high_value(x) else x for x in leaves])


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The arrays of a pytree, those inside high values included, and the structure that puts them together again."""
    return tree_util.tree_flatten(opened(tree))


def leaf_paths(structure: Any) -> list[Any]:
    """The key path of every leaf of a structure that `flatten` gave."""
    return [path for path, _ in tree_util.tree_leaves_with_path(numbered(structure))]


def numbered(structure: Any) -> Any:
    """A pytree of a structure that `flatten` gave, whose leaves know their position (`index`)."""
    return tree_util.tree_unflatten(structure, map(_Place, range(structure.num_leaves)))
