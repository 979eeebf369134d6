"""Where high values enter and leave functions: pytrees in which the arrays inside them are leaves like all others.

`opened(tree)` puts a node in the place of each value of an open type (see `meshrt.core.high`); `taken_apart(tree)`, for
compiled programs and for what moves arrays, of each value of any high type. The node's children are the value's
arrays, and unflattening its structure gives the high value again, made of whatever leaves there are then: tracers in
the function, cotangents in a gradient. So every transformation that flattens its arguments and results by `flatten`
takes high values without further ado:

    grad(f)(Scaled(values, scale))    ->  Scaled(gradient of values, gradient of scale)
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from meshrt import _tree_paths, tree_util
from meshrt.core.basic.parts import parts_of
from meshrt.core.high import HiType, has_high_types, is_high_value, is_mutable, is_open_value
from meshrt.core.tracer import Tracer
from meshrt.core.types import ShapedArray, aval_of

__all__ = [
    "TakenApart",
    "closed_leaves",
    "fitting",
    "flatten",
    "is_high",
    "kept_apart",
    "keys_of",
    "leaf_counts",
    "leaf_paths",
    "numbered",
    "opened",
    "part_counts",
    "plain",
    "reopened",
    "same_structure",
    "spread",
    "spread_over",
    "taken_apart",
]


class TakenApart:
    """A high value, taken apart: a node whose children are its arrays."""

    __slots__ = ("arrays", "kind")

    def __init__(self, kind: HiType, arrays: Iterable[Any]):
        self.kind, self.arrays = kind, tuple(arrays)

    def tree_description(self) -> str:
        """What messages about structures call it."""
        return self.structure_description(self.kind, len(self.arrays))

    @staticmethod
    def structure_description(kind: HiType, count: int) -> str:
        """What they call it where only its type is known, and of how many arrays it consists."""
        parts = "1 array" if count == 1 else f"{count} arrays"
        return f"a value of type {kind.str_short()}, which consists of {parts}"


class _Place:
    """Stands for the leaf at `index` where paths and positions are asked: no high value can be made of it."""

    __slots__ = ("index",)

    def __init__(self, index: int):
        self.index = index

    def tree_description(self) -> str:
        """What messages about structures call it."""
        return "a leaf"


# Whether nodes stay when structures are filled (`kept_apart`).
_numbering: ContextVar[bool] = ContextVar("meshrt_numbering", default=False)


def _close(kind: HiType, arrays: Iterable[Any]) -> Any:
    return TakenApart(kind, arrays) if _numbering.get() else kind.raise_val(*arrays)


def _open(value: Any) -> TakenApart:
    kind: Any = aval_of(value)
    return TakenApart(kind, parts_of(value))


tree_util.register_pytree_with_keys(
    TakenApart,
    lambda node: ([(tree_util.SequenceKey(i), x) for i, x in enumerate(node.arrays)], node.kind),
    _close,
    lambda node: (node.arrays, node.kind),
)


def opened(tree: Any) -> Any:
    """`tree` with the values of open types among its leaves taken apart; `tree` itself where there are none."""
    return _with_nodes(tree, is_open_value) if has_high_types() else tree


def taken_apart(tree: Any, *, boxes: bool = True, whole: Callable[[Any], bool] | None = None) -> Any:
    """`tree` with all high values among its leaves taken apart, traced ones too; `tree` itself where there are none.

    Without `boxes` mutable values stay whole, and so do values of types of which `whole` holds.
    """
    if not has_high_types():
        return tree
    stays = lambda x: (not boxes and is_mutable(x)) or (whole is not None and whole(aval_of(x)))
    return _with_nodes(tree, lambda x: is_high(x) and not stays(x))


def is_high(value: Any) -> bool:
    """Whether a value, traced or not, is of a high type."""
    return value.aval.is_high if isinstance(value, Tracer) else is_high_value(value)


def part_counts(structure: Any) -> list[int | None]:
    """For each leaf of a structure, or value of a closed type in it that was taken apart, in order: how many arrays
    this consists of, None for an array."""
    node = structure.node_data()
    if node is None:
        return [None]
    if node[0] is TakenApart:
        return [len(structure.children())]
    return [count for child in structure.children() for count in part_counts(child)]


def _with_nodes(tree: Any, chosen: Callable[[Any], bool]) -> Any:
    leaves, structure = tree_util.tree_flatten(tree)
    if not any(map(chosen, leaves)):
        return tree
    return tree_util.tree_unflatten(structure, [_open(x) if chosen(x) else x for x in leaves])


def closed_leaves(structure: Any, avals: Sequence[Any]) -> tuple[Any, list[Any]] | None:
    """What a traced function sees of arguments that were taken apart: the structure in which values of closed types
    are leaves, and the types of its leaves. `structure` and `avals` are those of the arrays. None where they are alike.
    """
    if not has_high_types():
        return None
    if all(kind.opens for kind in _kinds_within(structure)):
        return None
    outer = _rebuilt(structure, lambda kind, node: node if kind.opens else _LEAF)
    return outer, list(_seen(structure, iter(avals)))


def _seen(structure: Any, avals: Iterator[Any]) -> Iterator[Any]:
    node = structure.node_data()
    if node is None:
        yield next(avals)
    elif node[0] is TakenApart and not node[1].opens:
        collections.deque(itertools.islice(avals, structure.num_leaves), 0)  # those that it consists of
        yield node[1]
    else:
        for child in structure.children():
            yield from _seen(child, avals)


def reopened(structure: Any, kinds: Sequence[Any]) -> Any:
    """The structure of results whose leaves have the types `kinds`, with the values of high types taken apart."""
    if not any(k.is_high for k in kinds):
        return structure
    given = iter(kinds)

    def node_of(kind: Any) -> Any:
        return _node((TakenApart, kind), [_LEAF] * len(kind.lo_ty())) if kind.is_high else _LEAF

    return _rebuilt(structure, lambda kind, node: node, lambda: node_of(next(given)))


def spread(prefix: Any, full: Any, is_leaf: Callable[[Any], bool]) -> list[Any]:
    """As `tree_util.broadcast_prefix`, of what users say of each array (shardings, layouts): in the place of a value
    that was taken apart `prefix` may also have a list or tuple of as many entries as it has arrays (`HiType.lo_ty`), or
    a tree that fits `HiType.lo_tree`.

    Raises:
      TreeError: `prefix` fits nowhere; the message gives the path, and both sizes.
    """
    structure = tree_util.tree_structure(full)
    fitted = fitting(prefix, structure, is_leaf)
    if fitted == structure:
        return tree_util.broadcast_prefix(prefix, full, is_leaf)
    return _tree_paths.spread_over(prefix, fitted, is_leaf)


def spread_over(prefix: Any, structure: Any, is_leaf: Callable[[Any], bool]) -> list[Any]:
    """As `spread`, of a tree of this structure."""
    return _tree_paths.spread_over(prefix, fitting(prefix, structure, is_leaf), is_leaf)


def leaf_counts(prefix: Any, structure: Any, is_leaf: Callable[[Any], bool]) -> list[int]:
    """For how many arrays of a tree of this structure each leaf of a prefix stands, as `spread` has it."""
    return _tree_paths.leaf_counts(prefix, fitting(prefix, structure, is_leaf), is_leaf)


def fitting(prefix: Any, structure: Any, is_leaf: Callable[[Any], bool]) -> Any:
    """`structure` with trees in the places of those values that were taken apart of whose arrays `prefix` speaks."""
    node = structure.node_data()
    if not has_high_types() or node is None or is_leaf(prefix) or not tree_util.is_tree_node(type(prefix)):
        return structure
    if node[0] is TakenApart:
        return _as_written(prefix, node[1], structure.children(), is_leaf)
    children = structure.children()
    given = tree_util.tree_leaves(prefix, is_leaf=lambda x: x is not prefix)
    if type(prefix) is not node[0] or len(children) != len(given):
        return structure
    return _node(node, [fitting(p, child, is_leaf) for p, child in zip(given, children)])


def _as_written(prefix: Any, kind: HiType, arrays: Sequence[Any], is_leaf: Callable[[Any], bool]) -> Any:
    """The arrays of a value in a list or tuple where `prefix` is one without trees in it, else as its type nests."""
    nested = kind.lo_tree()
    if type(prefix) in (list, tuple):
        alone = all(is_leaf(x) or not tree_util.is_tree_node(type(x)) for x in prefix)
        if type(nested) is list or (alone and len(prefix) == len(arrays)):
            return _node((type(prefix), None), arrays)
    return tree_util.tree_structure(nested)


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The arrays of a pytree, those inside high values included, and the structure that puts them together again."""
    return tree_util.tree_flatten(opened(tree))


def leaf_paths(structure: Any) -> list[Any]:
    """The key path of every leaf of a structure that `flatten` gave."""
    return list(_paths(structure, ()))


def _paths(structure: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    node = structure.node_data()
    if node is None:
        yield path
        return
    children = structure.children()
    for key, child in zip(keys_of(node, len(children)), children, strict=True):
        yield from _paths(child, (*path, key))


def keys_of(node: tuple[type, Any], count: int) -> list[Any]:
    """What the children of a node are called: only a node that was made of some can be asked. A class of a user's may
    refuse, by any error, what is no array; then they are numbered, as are those of classes that give no names."""
    level = _node(node, [_LEAF] * count)
    try:
        whole = numbered(level)
        below = tree_util.tree_leaves_with_path(whole, is_leaf=lambda x: x is not whole)
    except Exception:
        below = []
    if len(below) != count:
        return [tree_util.FlattenedIndexKey(i) for i in range(count)]
    return [path[0] for path, _ in below]


def _kinds_within(structure: Any) -> list[HiType]:
    """The types of the values in a structure that were taken apart. No value is made of it: classes of users' may
    refuse to be made of anything but arrays."""
    node = structure.node_data()
    if node is None:
        return []
    if node[0] is TakenApart:
        return [node[1]]
    return [kind for child in structure.children() for kind in _kinds_within(child)]


def numbered(structure: Any) -> Any:
    """A pytree of a structure that `flatten` gave, whose leaves know their position (`index`)."""
    return kept_apart(structure, map(_Place, range(structure.num_leaves)))


def plain(structure: Any) -> Any:
    """A structure that `taken_apart` gave with a tuple of its arrays in the place of each high value."""
    if not _kinds_within(structure):
        return structure
    return _rebuilt(structure, lambda kind, node: tree_util.treedef_tuple(node.children()))


_LEAF = tree_util.tree_structure(0)


def _node(data: tuple[type, Any], children: Sequence[Any]) -> Any:
    structure: Any = type(_LEAF)  # jaxlib's types leave this constructor out
    return structure.from_node_data_and_children(tree_util.default_registry, data, children)


def _rebuilt(structure: Any, put: Callable[[HiType, Any], Any], leaf: Callable[[], Any] = lambda: _LEAF) -> Any:
    """A structure with `put(type, node)` for each value in it that was taken apart, and `leaf()` for each leaf, in
    order. As in `_kinds_within`, no value is made of it."""
    node = structure.node_data()
    if node is None:
        return leaf()
    if node[0] is TakenApart:
        return put(node[1], structure)
    return _node(node, [_rebuilt(child, put, leaf) for child in structure.children()])


def same_structure(one: Any, two: Any) -> bool:
    """Whether two structures that `taken_apart` gave are alike, where values of high types have the same types but for
    weakness and sharding, as arguments of a program may."""
    if one == two:
        return True
    kinds = [tuple(_kinds_within(structure)) for structure in (one, two)]
    if not any(kinds):
        return False
    return _alike(*kinds) and bool(plain(one) == plain(two))


def _alike(one: Any, two: Any) -> bool:
    """Whether two types, or parts of types, differ in weakness and sharding of arrays at most."""
    if type(one) is not type(two):
        return False
    if isinstance(one, ShapedArray):
        return bool(one.shape == two.shape and one.dtype == two.dtype)
    if isinstance(one, tuple):
        return len(one) == len(two) and all(map(_alike, one, two))
    if isinstance(one, HiType) and dataclasses.is_dataclass(one):
        return all(_alike(getattr(one, f.name), getattr(two, f.name)) for f in dataclasses.fields(one))
    return bool(one.normalize() == two.normalize()) if isinstance(one, HiType) else bool(one == two)


def kept_apart(structure: Any, leaves: Iterable[Any]) -> Any:
    """A pytree of a structure that `flatten` or `taken_apart` gave, whose nodes are left as they are."""
    token = _numbering.set(True)
    try:
        return tree_util.tree_unflatten(structure, leaves)
    finally:
        _numbering.reset(token)
