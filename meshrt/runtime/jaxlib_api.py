"""The only door to jaxlib's private modules."""

from __future__ import annotations

import jaxlib._jax as _jax

# --- pytrees: a registry of our own, so that registrations never meet JAX's.

_pytree = _jax.pytree
PyTreeDef = _pytree.PyTreeDef
DictKey = _pytree.DictKey
SequenceKey = _pytree.SequenceKey
GetAttrKey = _pytree.GetAttrKey
FlattenedIndexKey = _pytree.FlattenedIndexKey
pytree_registry = _pytree.PyTreeRegistry(
    enable_none=True, enable_tuple=True, enable_namedtuple=True, enable_list=True, enable_dict=True
)


def treedef_tuple(treedefs: list) -> PyTreeDef:
    """The structure of a tuple of trees with these structures."""
    return _pytree.treedef_tuple(pytree_registry, treedefs)


def all_leaves(values) -> bool:
    """Whether no value is a container."""
    return _pytree.all_leaves(pytree_registry, values)
