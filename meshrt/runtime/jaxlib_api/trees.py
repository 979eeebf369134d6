"""Pytrees: a registry of our own, so that registrations never meet JAX's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import jaxlib._jax as _jax

__all__ = [
    "DictKey", "FlattenedIndexKey", "GetAttrKey", "PyTreeDef", "SequenceKey", "all_leaves", "pytree_registry",
    "treedef_of_node", "treedef_tuple",
]  # fmt: skip

_pytree = _jax.pytree
if TYPE_CHECKING:
    from meshrt.runtime.jaxlib_types import PyTreeDef, PyTreeRegistry
else:
    PyTreeDef = _pytree.PyTreeDef
DictKey = _pytree.DictKey
SequenceKey = _pytree.SequenceKey
GetAttrKey = _pytree.GetAttrKey
FlattenedIndexKey = _pytree.FlattenedIndexKey
pytree_registry: PyTreeRegistry = _pytree.PyTreeRegistry(
    enable_none=True, enable_tuple=True, enable_namedtuple=True, enable_list=True, enable_dict=True
)
# Structures are pickled with the registry that they are of, by the name under which it is found.
pytree_registry.__module__, pytree_registry.__name__ = "meshrt.tree_util", "default_registry"


def treedef_tuple(treedefs: list) -> PyTreeDef:
    """The structure of a tuple of trees with these structures."""
    return _pytree.treedef_tuple(pytree_registry, treedefs)


def treedef_of_node(cls: type, aux: Any, children: list) -> PyTreeDef:
    """The structure of a node of `cls` with auxiliary data `aux` over structures."""
    return _pytree.PyTreeDef.from_node_data_and_children(pytree_registry, (cls, aux), children)


def all_leaves(values: Iterable[Any]) -> bool:
    """Whether no value is a container."""
    return _pytree.all_leaves(pytree_registry, values)
