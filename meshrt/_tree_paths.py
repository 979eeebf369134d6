"""Key paths of trees, and saying by them where two trees differ."""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

from meshrt import errors
from meshrt.xla.jaxlib_api import pytree_registry as default_registry

KeyEntry = Any
KeyPath = tuple[KeyEntry, ...]
IsLeaf = Callable[[Any], bool] | None


def flatten_one_level(tree: Any) -> tuple[Iterable[Any], Hashable]:
    """`(children, auxiliary data)` of a container; ValueError for a leaf.

    >>> meshrt.tree_util.flatten_one_level({"a": (1, 2)})
    (((1, 2),), ('a',))
    """
    out = default_registry.flatten_one_level(tree)
    if out is None:
        raise _is_leaf_error(tree)
    return out


def flatten_one_level_with_keys(tree: Any) -> tuple[tuple[tuple[KeyEntry, Any], ...], Hashable]:
    """`(((key, child), ...), auxiliary data)` of a container; ValueError for a leaf.

    >>> children, data = meshrt.tree_util.flatten_one_level_with_keys({"a": 1})
    >>> meshrt.tree_util.keystr((children[0][0],)), data
    ("['a']", ('a',))
    """
    out = default_registry.flatten_one_level_with_keys(tree)
    if out is None:
        raise _is_leaf_error(tree)
    children, aux = out
    names = _repeated_names(tree, [k for k, _ in children])
    if names:
        return tuple((type(k)(name), v) for (k, v), name in zip(children, names)), aux
    return tuple((k, v) for k, v in children), aux


def _repeated_names(tree: Any, keys: Sequence[KeyEntry]) -> tuple[str, ...]:
    """The fields of a namedtuple, of which jaxlib says the first one's name at each child."""
    fields: tuple[str, ...] = getattr(type(tree), "_fields", ()) if isinstance(tree, tuple) else ()
    if len(fields) < 2 or len(keys) != len(fields):
        return ()
    return fields if all(getattr(k, "name", None) == fields[0] for k in keys) else ()


def _is_leaf_error(tree: Any) -> errors.TreeError:
    return errors.TreeError(f"can't tree-flatten type {type(tree).__name__}: it is a leaf, not a container")


def keystr(keys: KeyPath, *, simple: bool = False, separator: str = "") -> str:
    """A path as text: `['a'][0].b`, or with `simple=True, separator="/"`: `a/0/b`.

    >>> meshrt.tree_util.keystr(meshrt.tree.leaves_with_path({"a": [1]})[0][0])
    "['a'][0]"
    """
    return separator.join(_simple_key(k) if simple else str(k) for k in keys)


def _simple_key(key: KeyEntry) -> str:
    for attribute in ("name", "idx", "key"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def prefix_errors(prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf = None) -> list[Callable[[str], errors.TreeError]]:
    """One function per place where `prefix_tree` is no prefix of `full_tree`; each makes an error for a title.

    >>> meshrt.tree_util.prefix_errors((1, 2), (1, (2, 3)))
    []
    """
    return list(_prefix_errors((), prefix_tree, full_tree, is_leaf))


def _is_leaf(tree: Any, is_leaf: IsLeaf) -> bool:
    return (is_leaf is not None and is_leaf(tree)) or default_registry.flatten_one_level(tree) is None


def prefix_mismatch(name: str, prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf = None) -> str:
    """Says of each place where `prefix_tree`, which users know by `name`, is no prefix of `full_tree`, what differs."""
    found = [str(make(name)) for make in prefix_errors(prefix_tree, full_tree, is_leaf)]
    return f"Mismatch details ({len(found)} found):\n" + "\n".join(found)


def _at(title: str, path: KeyPath, difference: str, text: str) -> errors.TreeError:
    error = errors.TreeError(f"pytree structure error: {difference} at key path\n    {title}{keystr(path)}\n{text}")
    error.path, error.keys, error.title = keystr(path), path, title
    return error


def calling(error: errors.TreeError, title: str) -> str:
    """The message of an error of `prefix_errors`, with the tree under the name that its user knows."""
    return str(error).replace(f"\n    {error.title}{error.path}\n", f"\n    {title}{error.path}\n", 1)


def _describe(tree: Any) -> str:
    if tree is None:
        return "None"
    kind = type(tree).__name__
    if isinstance(tree, TypedLeaf):
        return str(tree)
    own = getattr(type(tree), "tree_description", None)
    if own is not None:
        return str(own(tree))
    if default_registry.flatten_one_level(tree) is None:
        return f"a leaf of type {kind}"
    if isinstance(tree, dict):
        keys = [repr(_simple_key(k)) for k, _ in flatten_one_level_with_keys(tree)[0]]
        return f"a {kind} with {_listed(keys)}"
    return f"a {kind} of {_counted(len(list(flatten_one_level(tree)[0])))}"


def _counted(children: int) -> str:
    return "1 child" if children == 1 else f"{children} children"


def _listed(keys: list[str]) -> str:
    if not keys:
        return "no keys"
    shown = ", ".join(keys[:8]) + (f" and {len(keys) - 8} more" if len(keys) > 8 else "")
    return f"the key{'s' if len(keys) > 1 else ''} {shown}"


class TypedLeaf:
    """A leaf that messages show as the type it stands for."""

    __slots__ = ("type",)

    def __init__(self, type: Any):
        self.type = type

    def __str__(self) -> str:
        return str(self.type)


def _prefix_errors(
    path: KeyPath, prefix: Any, full: Any, is_leaf: IsLeaf
) -> Iterator[Callable[[str], errors.TreeError]]:
    if _is_leaf(prefix, is_leaf):
        return
    if type(prefix) is not type(full):
        yield lambda title: _at(
            title, path, "different types", f"where the first has {_describe(prefix)}, the second {_describe(full)}"
        )
        return
    prefix_pairs, prefix_aux = flatten_one_level_with_keys(prefix)
    full_pairs, full_aux = flatten_one_level_with_keys(full)
    if len(prefix_pairs) != len(full_pairs) or [k for k, _ in prefix_pairs] != [k for k, _ in full_pairs]:
        what = (
            "numbers of pytree children" if len(prefix_pairs) != len(full_pairs) else "pytree metadata"
        )  # keys of a mapping
        if type(prefix) in (list, tuple):
            what = f"lengths of {type(prefix).__name__}"
        yield lambda title: _at(title, path, f"different {what}", _children_text(prefix, prefix_pairs, full_pairs))
        return
    if prefix_aux != full_aux:
        yield lambda title: _at(
            title,
            path,
            "different pytree metadata",
            f"where both are a {type(prefix).__name__}, with different metadata: {prefix_aux!r} and {full_aux!r}",
        )
        return
    for (key, p), (_, f) in zip(prefix_pairs, full_pairs):
        yield from _prefix_errors((*path, key), p, f, is_leaf)


def _children_text(node: Any, first: Sequence[Any], second: Sequence[Any]) -> str:
    kind = type(node).__name__
    a, b = [_simple_key(k) for k, _ in first], [_simple_key(k) for k, _ in second]
    only_a, only_b = [k for k in a if k not in b], [k for k in b if k not in a]
    text = f"where the first has a {kind} of {_counted(len(a))}, the second one of {len(b)}"
    if isinstance(node, dict):
        text += "".join(f"; only the {which} has {', '.join(map(repr, keys[:8]))}"
                        for which, keys in (("first", only_a), ("second", only_b)) if keys)  # fmt: skip
        text += ", so the symmetric difference on key sets is\n    " + "\n    ".join(map(str, [*only_a, *only_b][:8]))
    return text


def equality_errors(tree1: Any, tree2: Any, is_leaf: IsLeaf = None) -> list[tuple[KeyPath, str, str, str]]:
    """`[(path, what the first has, what the second has, explanation)]`; empty when the structures are equal.

    >>> list(meshrt.tree_util.equality_errors({"a": 1}, {"a": 1}))
    []
    """
    return list(_equality_errors((), tree1, tree2, is_leaf))


def _equality_errors(path: KeyPath, a: Any, b: Any, is_leaf: IsLeaf) -> Iterator[tuple[KeyPath, str, str, str]]:
    if _is_leaf(a, is_leaf) and _is_leaf(b, is_leaf):
        return
    if type(a) is not type(b) or _is_leaf(a, is_leaf) != _is_leaf(b, is_leaf):
        yield path, _typed(a), _typed(b), "their Python types differ"
        return
    (pairs_a, aux_a), (pairs_b, aux_b) = flatten_one_level_with_keys(a), flatten_one_level_with_keys(b)
    if len(pairs_a) != len(pairs_b):
        why = "the lengths do not match" if isinstance(a, tuple | list) else "the numbers of children do not match"
        if isinstance(a, dict):
            why += f", with the symmetric difference of key sets: {set(a) ^ set(b)}"
        yield path, _sized(a, len(pairs_a)), _sized(b, len(pairs_b)), why
        return
    if isinstance(a, dict) and [k for k, _ in pairs_a] != [k for k, _ in pairs_b]:
        yield path, _keyed(a, pairs_a), _keyed(b, pairs_b), "the pytree node metadata does not match: their keys differ"
        return
    if aux_a != aux_b or [k for k, _ in pairs_a] != [k for k, _ in pairs_b]:
        yield (
            path,
            f"{type(a).__name__} with {aux_a!r}",
            f"{type(b).__name__} with {aux_b!r}",
            "their metadata differ",
        )
        return
    for (key, x), (_, y) in zip(pairs_a, pairs_b):
        yield from _equality_errors((*path, key), x, y, is_leaf)


def _typed(tree: Any) -> str:
    if isinstance(tree, TypedLeaf):
        return f"a leaf of type {str(tree).lstrip('~')}"
    return _describe(tree) if tree is None or default_registry.flatten_one_level(tree) is None else f"a {type(tree)}"


def _sized(tree: Any, count: int) -> str:
    if type(tree) in (tuple, list):
        return f"a {type(tree).__name__} of length {count}"
    return f"a {type(tree)} with {_counted(count)}"


def _keyed(tree: Any, pairs: Sequence[Any]) -> str:
    return f"a {type(tree)} with pytree metadata {tuple(_simple_key(k) for k, _ in pairs)}"


def explained(e: ValueError, tree: Any, is_leaf: IsLeaf) -> errors.TreeError:
    for path, keys in _unsortable((), tree, is_leaf):
        kinds = ", ".join(sorted({type(k).__name__ for k in keys}))
        return errors.TreeError(
            "Comparator raised exception while sorting pytree dictionary keys. The dict at "
            f"{keystr(path) or 'the root'} has keys that cannot be sorted (types {kinds}); use keys of one type or a "
            "collections.OrderedDict"
        )
    return errors.TreeError(str(e))


def _unsortable(path: KeyPath, tree: Any, is_leaf: IsLeaf) -> Iterator[tuple[KeyPath, list[Any]]]:
    if is_leaf is not None and is_leaf(tree):
        return
    if isinstance(tree, dict) and not isinstance(tree, collections.OrderedDict):
        try:
            sorted(tree)
        except TypeError:
            yield path, list(tree)
            return
    if default_registry.flatten_one_level(tree) is not None:
        for key, child in flatten_one_level_with_keys(tree)[0]:
            yield from _unsortable((*path, key), child, is_leaf)
