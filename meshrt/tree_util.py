"""Trees of Python containers: JAX's pytree API over jaxlib's C++ implementation and a registry of our own.

A *leaf* is anything whose type is not registered as a container. Tuples, named tuples, lists, dicts, ``None``,
``OrderedDict`` and ``defaultdict`` are containers from the start. Registering a class here does not register it
with JAX, nor the other way round.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from meshrt import errors
from meshrt._tree_paths import (
    IsLeaf,
    KeyEntry,
    KeyPath,
    equality_errors,
    explained,
    flatten_one_level,
    flatten_one_level_with_keys,
    keystr,
    prefix_errors,
    prefix_mismatch,
)
from meshrt._tree_registry import (
    is_tree_node,
    register_dataclass,
    register_pytree_node,
    register_pytree_node_class,
    register_pytree_with_keys,
    register_pytree_with_keys_class,
    register_static,
)
from meshrt.xla import jaxlib_api
from meshrt.xla.jaxlib_api import (
    DictKey,
    FlattenedIndexKey,
    GetAttrKey,
    PyTreeDef,
    SequenceKey,
)
from meshrt.xla.jaxlib_api import pytree_registry as default_registry

__all__ = [
    "DictKey", "FlattenedIndexKey", "GetAttrKey", "KeyEntry", "KeyPath", "Partial", "PyTreeDef", "SequenceKey",
    "all_leaves", "broadcast_prefix", "build_tree", "default_registry", "equality_errors", "flatten_one_level",
    "flatten_one_level_with_keys", "is_tree_node", "keystr", "prefix_errors", "prefix_mismatch", "register_dataclass",
    "register_pytree_node", "register_pytree_node_class", "register_pytree_with_keys",
    "register_pytree_with_keys_class", "register_static", "tree_all", "tree_broadcast", "tree_flatten",
    "tree_flatten_with_path", "tree_leaves", "tree_leaves_with_path", "tree_map", "tree_map_with_path",
    "tree_reduce", "tree_reduce_associative", "tree_structure", "tree_transpose", "tree_unflatten",
    "treedef_children", "treedef_is_leaf", "treedef_tuple",
]  # fmt: skip

T = TypeVar("T")
IsLeafAt = Callable[..., bool] | None

# ----------------------------------------------------------------------------------------------------------
# Flattening and mapping.


def tree_flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], PyTreeDef]:
    """The leaves in order (dicts by sorted key) and the structure. `is_leaf(x)` true stops there.

    >>> meshrt.tree.flatten({"a": 1, "b": (2, 3)})
    ([1, 2, 3], PyTreeDef({'a': *, 'b': (*, *)}))
    """
    try:
        return default_registry.flatten(tree, is_leaf)
    except ValueError as e:
        raise explained(e, tree, is_leaf) from None


def tree_unflatten(treedef: PyTreeDef, leaves: Iterable[Any]) -> Any:
    """The tree of structure `treedef` with these leaves.

    >>> meshrt.tree.unflatten(meshrt.tree.structure({"a": 0, "b": 0}), [1, 2])
    {'a': 1, 'b': 2}
    """
    return treedef.unflatten(leaves)


def tree_leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """The leaves in order.

    >>> meshrt.tree.leaves({"a": 1, "b": (2, 3)})
    [1, 2, 3]
    """
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: Any, is_leaf: IsLeaf = None) -> PyTreeDef:
    """The structure alone.

    >>> meshrt.tree.structure({"a": 1, "b": (2, 3)})
    PyTreeDef({'a': *, 'b': (*, *)})
    """
    return tree_flatten(tree, is_leaf)[1]


def tree_map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """`f` on each leaf of `tree` and what stands at the same place in each of `rest`.

    Each of `rest` must have `tree`'s structure down to its leaves; below them it may go deeper.

    Raises:
      TreeError: a tree of `rest` differs; the message gives the path.

    >>> meshrt.tree.map(lambda x, y: x + y, {"a": 1}, {"a": 10})
    {'a': 11}
    """
    leaves, treedef = tree_flatten(tree, is_leaf)
    return treedef.unflatten(map(f, leaves, *[_up_to(treedef, tree, r, i, is_leaf) for i, r in enumerate(rest)]))


def _up_to(treedef: PyTreeDef, tree: Any, other: Any, i: int, is_leaf: IsLeaf) -> list[Any]:
    try:
        return treedef.flatten_up_to(other)
    except (ValueError, TypeError) as e:
        found = next(iter(prefix_errors(tree, other, is_leaf)), None)
        if found is None:
            raise errors.TreeError(str(e)) from None
        # The first words of what jaxlib found, without the trees themselves: programs know them.
        kind = re.split(r"[;\n]|\.(?:\s|$)", str(e), maxsplit=1)[0]
        raise errors.TreeError(f"{kind}: {found('tree')}, of tree 1 and tree {i + 2} of the map") from None


def tree_transpose(outer_treedef: PyTreeDef, inner_treedef: PyTreeDef | None, pytree_to_transpose: Any) -> Any:
    """Turns a tree of structure outer-of-inner inside out. `inner_treedef=None` infers it from the first child.

    Raises:
      TransposeError: the tree has not as many leaves as both structures together. Only that is asked of it: a node
        that is deeper may be of another type, as a mapping that says nothing of the trees inside it.

    >>> meshrt.tree.transpose(meshrt.tree.structure([0, 0]), meshrt.tree.structure({"a": 0}), [{"a": 1}, {"a": 2}])
    {'a': [1, 2]}
    """
    leaves, treedef = tree_flatten(pytree_to_transpose)
    if inner_treedef is None:
        children = outer_treedef.flatten_up_to(pytree_to_transpose)
        if not children:
            raise errors.TreeError(
                "the inner structure cannot be inferred from an outer structure without leaves; pass inner_treedef"
            )
        inner_treedef = tree_structure(children[0])
    inner, outer = inner_treedef.num_leaves, outer_treedef.num_leaves
    if treedef.num_leaves != inner * outer:
        raise errors.TransposeError(
            f"Mismatch: cannot transpose a tree of structure {treedef}, as it is not {outer_treedef} with "
            f"{inner_treedef} at each of its leaves"
        )
    rows = [leaves[i * inner : (i + 1) * inner] for i in range(outer)]
    return inner_treedef.unflatten([outer_treedef.unflatten(column) for column in zip(*rows, strict=True)])


_MISSING: Any = object()


def tree_reduce(
    function: Callable[[Any, Any], Any], tree: Any, initializer: Any = _MISSING, is_leaf: IsLeaf = None
) -> Any:
    """`functools.reduce` over the leaves.

    >>> meshrt.tree.reduce(lambda x, y: x + y, {"a": 1, "b": (2, 3)}, 0)
    6
    """
    leaves = tree_leaves(tree, is_leaf)
    return (
        functools.reduce(function, leaves)
        if initializer is _MISSING
        else functools.reduce(function, leaves, initializer)
    )


def tree_reduce_associative(
    operation: Callable[[T, T], T], tree: Any, *, identity: Any = _MISSING, is_leaf: IsLeaf = None
) -> Any:
    """As :func:`tree_reduce` for an associative operation, combining neighbours in a balanced tree.

    >>> meshrt.tree.reduce_associative(lambda x, y: x + y, {"a": 1, "b": 2})
    3
    """
    values = tree_leaves(tree, is_leaf)
    if not values:
        if identity is _MISSING:
            raise errors.ArgumentTypeError(
                "Must specify identity for parallel reduction of empty sequence: the tree has no leaves"
            )
        return identity
    while len(values) > 1:
        paired = [operation(values[i], values[i + 1]) for i in range(0, len(values) - 1, 2)]
        values = paired + ([values[-1]] if len(values) % 2 else [])
    return values[0]


def tree_all(tree: Any, *, is_leaf: IsLeaf = None) -> bool:
    """Whether every leaf is true.

    >>> meshrt.tree.all({"a": True, "b": [True, False]})
    False
    """
    return all(tree_leaves(tree, is_leaf))


def tree_flatten_with_path(
    tree: Any, is_leaf: IsLeafAt = None, is_leaf_takes_path: bool = False
) -> tuple[list[tuple[KeyPath, Any]], PyTreeDef]:
    """`([(path, leaf), ...], treedef)`; a path is a tuple of key entries, see :func:`keystr`.

    `is_leaf` is given the value, or with `is_leaf_takes_path` the path and the value.

    >>> meshrt.tree.flatten_with_path({"a": 1})[0]
    [((DictKey(key='a'),), 1)]
    """
    predicate = is_leaf if is_leaf is None or is_leaf_takes_path else lambda _, x: is_leaf(x)
    return default_registry.flatten_with_path(tree, predicate)


def tree_leaves_with_path(
    tree: Any, is_leaf: IsLeafAt = None, is_leaf_takes_path: bool = False
) -> list[tuple[KeyPath, Any]]:
    """`[(path, leaf), ...]`.

    >>> meshrt.tree.leaves_with_path({"a": 1})
    [((DictKey(key='a'),), 1)]
    """
    return tree_flatten_with_path(tree, is_leaf, is_leaf_takes_path)[0]


def tree_map_with_path(
    f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeafAt = None, is_leaf_takes_path: bool = False
) -> Any:
    """As :func:`tree_map`, and `f` is given the path first.

    >>> meshrt.tree.map_with_path(lambda path, x: (meshrt.tree_util.keystr(path), x), {"a": 1})
    {'a': ("['a']", 1)}
    """
    pairs, treedef = tree_flatten_with_path(tree, is_leaf, is_leaf_takes_path)
    was_leaf = lambda x: any(x is leaf for _, leaf in pairs)  # for errors, which do not look into leaves
    others = [_up_to(treedef, tree, r, i, was_leaf) for i, r in enumerate(rest)]
    return treedef.unflatten(f(path, leaf, *more) for (path, leaf), *more in zip(pairs, *others))


def tree_broadcast(prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf = None) -> Any:
    """`full_tree`'s structure with the leaves of `prefix_tree` repeated where it stops earlier.

    >>> meshrt.tree.broadcast(1, {"a": 2, "b": 3})
    {'a': 1, 'b': 1}
    """
    return tree_structure(full_tree).unflatten(broadcast_prefix(prefix_tree, full_tree, is_leaf))


def broadcast_prefix(prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """One leaf of `prefix_tree` per leaf of `full_tree`: each prefix leaf covers the whole subtree under it.

    `is_leaf` is asked of nodes of `prefix_tree` only.

    Raises:
      TreeError: `prefix_tree` is not a prefix of `full_tree`; the message gives the path and both types.

    >>> meshrt.tree_util.broadcast_prefix((1, 2), (0, {"a": 0, "b": 0}))
    [1, 2, 2]
    """
    leaves, treedef = tree_flatten(prefix_tree, is_leaf)
    try:
        subtrees = treedef.flatten_up_to(full_tree)
    except (ValueError, TypeError) as e:
        found = next(iter(prefix_errors(prefix_tree, full_tree, is_leaf)), None)
        raise (found("prefix") if found else errors.TreeError(str(e))) from None
    return [leaf for leaf, sub in zip(leaves, subtrees) for _ in range(tree_structure(sub).num_leaves)]


# ----------------------------------------------------------------------------------------------------------
# Structures.


def treedef_is_leaf(treedef: PyTreeDef) -> bool:
    """Whether the structure is one node: a leaf, or a container without children.

    >>> meshrt.tree_util.treedef_is_leaf(meshrt.tree.structure(1))
    True
    """
    return treedef.num_nodes == 1


def treedef_children(treedef: PyTreeDef) -> list[PyTreeDef]:
    """The structures right below the root.

    >>> meshrt.tree_util.treedef_children(meshrt.tree.structure({"a": 1, "b": (2, 3)}))
    [PyTreeDef(*), PyTreeDef((*, *))]
    """
    return treedef.children()


def treedef_tuple(treedefs: Iterable[PyTreeDef]) -> PyTreeDef:
    """The structure of a tuple of such trees.

    >>> meshrt.tree_util.treedef_tuple([meshrt.tree.structure(1), meshrt.tree.structure([2])])
    PyTreeDef((*, [*]))
    """
    return jaxlib_api.treedef_tuple(list(treedefs))


def build_tree(treedef: PyTreeDef, xs: Any) -> Any:
    """Fills `treedef` from nested iterables `xs` of the same shape.

    >>> meshrt.tree_util.build_tree(meshrt.tree.structure({"a": 0, "b": 0}), [1, 2])
    {'a': 1, 'b': 2}
    """
    return treedef.from_iterable_tree(xs)


def all_leaves(iterable: Iterable[Any], is_leaf: IsLeaf = None) -> bool:
    """Whether every element is itself a leaf.

    >>> meshrt.tree_util.all_leaves([1, 2]), meshrt.tree_util.all_leaves([1, (2,)])
    (True, False)
    """
    if is_leaf is None:
        return jaxlib_api.all_leaves(iterable)
    values = list(iterable)
    leaves = tree_leaves(values, is_leaf)
    return len(leaves) == len(values) and all(a is b for a, b in zip(leaves, values))


# ----------------------------------------------------------------------------------------------------------
# Functions with arguments.


class _Opaque:
    """A callable that functools.partial does not look into; equal and hashed as what it holds."""

    __slots__ = ("function",)

    def __init__(self, function: Callable):
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self.function == (other.function if isinstance(other, _Opaque) else other)

    def __hash__(self) -> int:
        return hash(self.function)

    def __repr__(self) -> str:
        return repr(self.function)


class Partial(functools.partial):
    """`functools.partial` as a container: its arguments are children, its function is part of the structure.

    A `functools.partial` given as the function stays part of the structure, with its own arguments.

    >>> meshrt.jit(lambda f, x: f(x))(meshrt.tree_util.Partial(jnp.add, 1), 2)
    Array(3, dtype=int32, weak_type=True)
    """

    def __new__(cls, func: Callable, *args: Any, **kwargs: Any) -> Partial:
        if isinstance(func, functools.partial):
            func = _Opaque(func)
        return super().__new__(cls, func, *args, **kwargs)


register_pytree_with_keys(
    Partial,
    lambda p: (((GetAttrKey("args"), p.args), (GetAttrKey("keywords"), p.keywords)), p.func),
    lambda func, children: Partial(func, *children[0], **children[1]),
)
