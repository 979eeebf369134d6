"""`jax._src.tree_util`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from meshrt import tree_util as _tree_util
from meshrt._tree_paths import structure_counts as _structure_counts
from meshrt._tree_paths import structure_differences as _structure_differences
from meshrt.numpy.names import missing as _missing
from meshrt.transforms.high import keys_of as _keys_of
from meshrt.tree_util import *  # noqa: F403
from meshrt.tree_util import default_registry as _default
from meshrt.tree_util import tree_flatten_with_path as _with_path

__all__ = list(_tree_util.__all__)


class _Registry:
    """The classes of nodes, for libraries that ask whether one is registered."""

    def __contains__(self, cls: type) -> bool:
        return bool(_default.is_node(cls))


_registry = _Registry()


def generate_key_paths(
    tree: Any, is_leaf: Callable[..., bool] | None = None, is_leaf_takes_path: bool = False
) -> list[tuple[Any, Any]]:
    """The leaves of a pytree with their paths."""
    return _with_path(tree, is_leaf, is_leaf_takes_path)[0]


def treedef_is_strict_leaf(treedef: Any) -> bool:
    """Whether a structure is that of one leaf, with nothing around it."""
    return bool(treedef.num_nodes == 1 and treedef.num_leaves == 1)


def equality_errors_pytreedef(tree1: Any, tree2: Any) -> Iterable[Any]:
    """Where two structures differ: path, what either has there, and why they differ."""
    return _structure_differences(tree1, tree2, _keys_of)


def broadcast_flattened_prefix_with_treedef(
    prefix_leaves: list[Any], prefix_treedef: Any, full_treedef: Any
) -> list[Any]:
    """Each leaf of a prefix as often as the whole structure has leaves below it. ValueError if it is no prefix."""
    counts = _structure_counts(prefix_treedef, full_treedef)
    return [leaf for leaf, count in zip(prefix_leaves, counts, strict=True) for _ in range(count)]


_own = (
    "_registry", "broadcast_flattened_prefix_with_treedef", "equality_errors_pytreedef", "generate_key_paths",
    "treedef_is_strict_leaf",
)  # fmt: skip
__getattr__ = _missing("jax._src.tree_util", (*__all__, *_own))
