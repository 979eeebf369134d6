"""The structure of a saved tree as data, so that a checkpoint can be read without knowing it.

Where the structure consists of what files can hold (`meshrt.tree_files`: tuples, lists, dicts, None, what was
registered for files) it comes back as it was. Nodes of other classes, as optax's states are, come back as dicts from
the names of their children; a tree given as `like` brings the classes. No class is imported because a file names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from meshrt import errors, tree_files, tree_util

__all__ = ["rebuilt", "to_data"]

_LEAF = "*"
_MAX_DEPTH = 200


def to_data(tree: Any) -> dict[str, Any]:
    """The structure as JSON."""
    try:
        return {"exact": tree_files.to_data(tree_util.tree_structure(tree))}
    except errors.TreeError:
        return {"plain": _plain(tree)}


def _plain(node: Any) -> Any:
    if node is None:
        return None
    children = tree_util.tree_leaves_with_path(node, is_leaf=lambda x: x is not node)
    if len(children) == 1 and not children[0][0]:
        return _LEAF
    below = [_plain(child) for _, child in children]
    if type(node) in (list, tuple):
        return {type(node).__name__: below}
    names: list[Any] = [tree_util.keystr(path, simple=True) for path, _ in children]
    if isinstance(node, dict):
        keys = [getattr(path[0], "key", name) for (path, _), name in zip(children, names)]
        names = [k if isinstance(k, str | int | float | bool) else n for k, n in zip(keys, names)]
    return {"dict": names, "of": below}


def rebuilt(data: Any, leaves: Sequence[Any]) -> Any:
    """The tree of this structure with these leaves. TreeError if they are not as many, or it is no structure."""
    if isinstance(data, dict) and set(data) == {"exact"}:
        treedef = tree_files.from_data(data["exact"])
        if treedef.num_leaves != len(leaves):
            raise errors.TreeError(f"the structure has {treedef.num_leaves} leaves, and there are {len(leaves)}")
        return treedef.unflatten(leaves)
    if not isinstance(data, dict) or set(data) != {"plain"}:
        raise errors.TreeError("there is no structure where one belongs")
    rest = iter(leaves)
    tree = _build(data["plain"], rest, 0)
    if next(rest, rest) is not rest:
        raise errors.TreeError(f"the structure has fewer leaves than there are: {len(leaves)}")
    return tree


def _build(data: Any, leaves: Iterator[Any], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise errors.TreeError(f"the structure is nested more than {_MAX_DEPTH} deep")
    if data is None:
        return None
    if data == _LEAF:
        found = next(leaves, leaves)
        if found is leaves:
            raise errors.TreeError("the structure has more leaves than there are")
        return found
    if not isinstance(data, dict):
        raise errors.TreeError(f"the structure has a {type(data).__name__} in it")
    if "dict" in data:
        names, below = data["dict"], data.get("of")
        if not isinstance(names, list) or not isinstance(below, list) or len(names) != len(below):
            raise errors.TreeError("the structure has a dict whose keys and values are not as many")
        if any(not isinstance(n, str | int | float) for n in names) or len(set(names)) != len(names):
            raise errors.TreeError("the structure has a dict with keys that are none, or twice the same")
        return {name: _build(child, leaves, depth + 1) for name, child in zip(names, below)}
    for cls in (list, tuple):
        below = data.get(cls.__name__)
        if isinstance(below, list):
            return cls(_build(child, leaves, depth + 1) for child in below)
    raise errors.TreeError("the structure has a node that is no list, tuple or dict")
