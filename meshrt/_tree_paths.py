"""Key paths of trees, and saying by them where two trees differ."""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

from meshrt import errors
from meshrt.xla.jaxlib_api import DictKey
from meshrt.xla.jaxlib_api import pytree_registry as default_registry

KeyEntry = Any
KeyPath = tuple[KeyEntry, ...]
IsLeaf = Callable[[Any], bool] | None
Keys = Callable[[tuple[type, Any], int], Sequence[KeyEntry]]

_LENGTHS, _CHILDREN = "the lengths do not match", "the numbers of children do not match"
_KEYS = "the pytree node metadata does not match: their keys differ"


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
    return _details([make(name) for make in prefix_errors(prefix_tree, full_tree, is_leaf)])


def _details(found: list[errors.TreeError]) -> str:
    return f"Mismatch details ({len(found)} found):\n" + "\n".join(map(str, found))


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
        what = _unlike(prefix, prefix_pairs, full_pairs)
        yield lambda title: _at(title, path, what, _children_text(prefix, prefix_pairs, full_pairs))
        return
    if prefix_aux != full_aux:
        what, text = "different pytree metadata", _metadata_text(prefix, prefix_aux, full_aux)
        yield lambda title: _at(title, path, what, text)
        return
    for (key, p), (_, f) in zip(prefix_pairs, full_pairs):
        yield from _prefix_errors((*path, key), p, f, is_leaf)


def _unlike(node: Any, first: Sequence[Any], second: Sequence[Any]) -> str:
    """What is different of two nodes of one class whose children differ in number, or in their keys."""
    if type(node) in (list, tuple):
        return f"different lengths of {type(node).__name__}"
    return "different numbers of pytree children" if len(first) != len(second) else "different pytree metadata"


def _metadata_text(node: Any, first: Any, second: Any) -> str:
    return f"where both are a {type(node).__name__}, with different metadata: {first!r} and {second!r}"


# ----------------------------------------------------------------------------------------------------------------------
# Prefixes of structures. No value is made of a structure, as classes of users' may refuse what is no array.


def spread_over(prefix: Any, structure: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """As `broadcast_prefix` of a tree of this structure: one leaf of `prefix` for each of the structure's leaves.

    Raises:
      TreeError: `prefix` is no prefix; the message gives the path, and what both have there.

    >>> spread_over((1, 2), meshrt.tree.structure((0, {"a": 0, "b": 0})))
    [1, 2, 2]
    """
    counts = leaf_counts(prefix, structure, is_leaf)
    return [x for x, n in zip(default_registry.flatten(prefix, is_leaf)[0], counts, strict=True) for _ in range(n)]


def leaf_counts(prefix: Any, structure: Any, is_leaf: IsLeaf = None) -> list[int]:
    """For how many leaves of a tree of this structure each leaf of `prefix` stands. TreeError as for `spread_over`."""
    given = default_registry.flatten(prefix, is_leaf)[1]
    counts: list[int] = []
    if not _covers(given, structure, counts):
        found = next(_structure_errors((), prefix, structure, is_leaf), None)
        raise (found("prefix") if found else errors.TreeError(f"{given} is no prefix of {structure}"))
    return counts


def structure_counts(prefix: Any, structure: Any) -> list[int]:
    """As `leaf_counts`, of a prefix of which only the structure is known."""
    counts: list[int] = []
    if not _covers(prefix, structure, counts):
        raise errors.TreeError(f"{prefix} is no prefix of {structure}")
    return counts


def _covers(prefix: Any, structure: Any, counts: list[int]) -> bool:
    """Whether one structure is a prefix of the other; `counts` gets the number of leaves that each leaf of it stands
    for."""
    node = prefix.node_data()
    if node is None:
        counts.append(structure.num_leaves)
        return True
    children, others = prefix.children(), structure.children()
    if node != structure.node_data() or len(children) != len(others):
        return False
    return all(_covers(p, s, counts) for p, s in zip(children, others))


def structure_mismatch(name: str, prefix: Any, structure: Any, is_leaf: IsLeaf = None) -> str:
    """As `prefix_mismatch`, beside a structure."""
    return _details([make(name) for make in _structure_errors((), prefix, structure, is_leaf)])


def _structure_errors(
    path: KeyPath, prefix: Any, structure: Any, is_leaf: IsLeaf
) -> Iterator[Callable[[str], errors.TreeError]]:
    """As `_prefix_errors`, beside a structure."""
    if _is_leaf(prefix, is_leaf):
        return
    kind, data = structure.node_data() or (None, None)
    if type(prefix) is not kind:
        there = _describe_structure(structure)
        yield lambda title: _at(
            title, path, "different types", f"where the first has {_describe(prefix)}, the second {there}"
        )
        return
    pairs, children = flatten_one_level_with_keys(prefix)[0], structure.children()
    node: Any = default_registry.flatten(prefix, lambda x: x is not prefix)[1].node_data()
    own = node[1]
    keys = _keys_of(kind, data)
    if len(pairs) != len(children) or (keys is not None and [_simple_key(k) for k, _ in pairs] != keys):
        named = [(DictKey(k), None) for k in keys] if keys is not None else list(enumerate(children))
        yield lambda title: _at(title, path, _unlike(prefix, pairs, named), _children_text(prefix, pairs, named))
        return
    if own != data:
        yield lambda title: _at(title, path, "different pytree metadata", _metadata_text(prefix, own, data))
        return
    for (key, p), child in zip(pairs, children):
        yield from _structure_errors((*path, key), p, child, is_leaf)


def structure_differences(one: Any, other: Any, keys: Keys) -> Iterator[tuple[KeyPath, str, str, str]]:
    """As `equality_errors` of trees of these structures; `keys(node, count)` says what the children of a node are
    called, of which `node` is what `node_data` says."""
    return _structure_differences((), one, other, keys)


def _structure_differences(path: KeyPath, a: Any, b: Any, keys: Keys) -> Iterator[tuple[KeyPath, str, str, str]]:
    node, there = a.node_data(), b.node_data()
    if node is None and there is None:
        return
    if node is None or there is None or node[0] is not there[0]:
        yield path, _kind_of(a), _kind_of(b), "their Python types differ"
        return
    kind, children, others = node[0], a.children(), b.children()
    names, named = _keys_of(*node), _keys_of(*there)
    if len(children) != len(others):
        why = _LENGTHS if issubclass(kind, tuple | list) else _CHILDREN
        if names is not None and named is not None:
            why += f", with the symmetric difference of key sets: {set(names) ^ set(named)}"
        yield path, _size_of(kind, len(children)), _size_of(kind, len(others)), why
    elif names != named:
        one, other = (f"a {kind} with pytree metadata {tuple(n or ())}" for n in (names, named))
        yield path, one, other, _KEYS
    elif node[1] != there[1]:
        one, other = (f"{kind.__name__} with {x[1]!r}" for x in (node, there))
        yield path, one, other, "their metadata differ"
    else:
        for key, x, y in zip(keys(node, len(children)), children, others, strict=True):
            yield from _structure_differences((*path, key), x, y, keys)


def _kind_of(structure: Any) -> str:
    node = structure.node_data()
    if node is None or node[0] is type(None):
        return _describe_structure(structure)
    return f"a {node[0]}"


def _keys_of(kind: type, data: Any) -> list[str] | None:
    """The keys of a structure's node if it is a mapping, as `_simple_key` says them. Of a class that somebody
    registered nobody knows what its metadata say, though it is derived from dict."""
    if kind in (dict, collections.OrderedDict):
        return [str(k) for k in data]
    return [str(k) for k in data[1]] if kind is collections.defaultdict else None


def _describe_structure(structure: Any) -> str:
    """What messages call a tree of which only the structure is known."""
    if structure.node_data() is None:
        return "a leaf"
    kind, data = structure.node_data()
    if kind is type(None):
        return "None"
    own = getattr(kind, "structure_description", None)
    if own is not None:
        return str(own(data, structure.num_leaves))
    keys = _keys_of(kind, data)
    if keys is not None:
        return f"a {kind.__name__} with {_listed([repr(k) for k in keys])}"
    return f"a {kind.__name__} of {_counted(len(structure.children()))}"


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
        why = _LENGTHS if isinstance(a, tuple | list) else _CHILDREN
        if isinstance(a, dict):
            why += f", with the symmetric difference of key sets: {set(a) ^ set(b)}"
        yield path, _sized(a, len(pairs_a)), _sized(b, len(pairs_b)), why
        return
    if isinstance(a, dict) and [k for k, _ in pairs_a] != [k for k, _ in pairs_b]:
        yield path, _keyed(a, pairs_a), _keyed(b, pairs_b), _KEYS
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
    return _size_of(type(tree), count)


def _size_of(kind: type, count: int) -> str:
    return f"a {kind.__name__} of length {count}" if kind in (tuple, list) else f"a {kind} with {_counted(count)}"


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
