"""Short names for working with trees of containers; see :mod:`meshrt.tree_util`."""

import dataclasses
from typing import Any

from meshrt.tree_util import tree_all as all
from meshrt.tree_util import tree_broadcast as broadcast
from meshrt.tree_util import tree_flatten as flatten
from meshrt.tree_util import tree_flatten_with_path as flatten_with_path
from meshrt.tree_util import tree_leaves as leaves
from meshrt.tree_util import tree_leaves_with_path as leaves_with_path
from meshrt.tree_util import tree_map as map
from meshrt.tree_util import tree_map_with_path as map_with_path
from meshrt.tree_util import tree_reduce as reduce
from meshrt.tree_util import tree_reduce_associative as reduce_associative
from meshrt.tree_util import tree_structure as structure
from meshrt.tree_util import tree_transpose as transpose
from meshrt.tree_util import tree_unflatten as unflatten

__all__ = [
    "all", "broadcast", "flatten", "flatten_with_path", "leaves", "leaves_with_path", "map", "map_with_path",
    "reduce", "reduce_associative", "static", "structure", "transpose", "unflatten",
]  # fmt: skip


def static(*, metadata: Any = None, **kwargs: Any) -> Any:
    """A `dataclasses.field` that `register_dataclass` makes part of the structure, not a child.

    >>> from dataclasses import make_dataclass
    >>> Layer = make_dataclass("Layer", [("w", float), ("name", str, meshrt.tree.static())])
    >>> meshrt.tree.leaves(meshrt.tree_util.register_dataclass(Layer)(1.0, "first"))
    [1.0]
    """
    return dataclasses.field(metadata={**(metadata or {}), "static": True}, **kwargs)
