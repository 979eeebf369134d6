"""Structures of pytrees as JSON, for files.

    leaf "*"    None null    tuple {"tuple": [...]}    list {"list": [...]}
    dict {"dict": [keys], "of": [...]}    OrderedDict {"ordered": [keys], "of": [...]}
    defaultdict {"default": "list", "keys": [keys], "of": [...]}
    another node {"node": name, "aux": base64, "of": [...]}    a named tuple {"named": name, "of": [...]}

A file must not make its reader import or call what the reader did not choose. So classes are written by a name that the
program which reads the file has registered too (`register_pytree_node_serialization`,
`register_namedtuple_serialization`, JAX's names).
"""

from __future__ import annotations

import base64
import binascii
import collections
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meshrt import errors, tree_util
from meshrt._tree_registry import is_plain_namedtuple
from meshrt.xla.jaxlib_api import PyTreeDef, treedef_of_node

__all__ = [
    "from_data", "from_named", "register_namedtuple_serialization", "register_pytree_node_serialization", "to_data",
    "to_named",
]  # fmt: skip

_LEAF = "*"
_ORDERED = "collections.OrderedDict"  # as JAX calls it
_MAX_DEPTH = 200
_FACTORIES = {f.__name__: f for f in (list, dict, set, tuple, int, float, str, bool)}


@dataclass(frozen=True, slots=True)
class _Node:
    cls: type
    name: str
    serialize: Callable[[Any], bytes]
    deserialize: Callable[[bytes], Any]
    from_children: Callable[[Any, Sequence[Any]], Any] | None


_by_class: dict[type, _Node] = {}
_by_name: dict[str, _Node] = {}
_named_tuples: dict[type, str] = {}
_named_by_name: dict[str, type] = {}
_lock = threading.Lock()


def register_pytree_node_serialization(
    nodetype: type,
    *,
    serialized_name: str,
    serialize_auxdata: Callable[[Any], bytes],
    deserialize_auxdata: Callable[[bytes], Any],
    from_children: Callable[[Any, Sequence[Any]], Any] | None = None,
) -> type:
    """Lets structures with nodes of a registered class be written to files.

    Args:
      nodetype: a class that was registered as a pytree container; it is returned.
      serialized_name: stands in the file; unique, and the same where the file is read.
      serialize_auxdata, deserialize_auxdata: the node's auxiliary data as bytes, and back.
      from_children: (auxiliary data, children) -> node, if structures are to be made otherwise than by registration.

    Raises:
      TreeError: the class is no container and `from_children` is not given, the name is empty, or either has been
        registered before.

    >>> class Pair:
    ...     def __init__(self, left, right):
    ...         self.left, self.right = left, right
    >>> register = meshrt.tree_util.register_pytree_node
    >>> register(Pair, lambda p: ((p.left, p.right), None), lambda aux, children: Pair(*children))
    >>> registered = meshrt.stages.register_pytree_node_serialization(
    ...     Pair, serialized_name="docs.Pair", serialize_auxdata=lambda aux: b"", deserialize_auxdata=lambda data: None)
    >>> registered is Pair
    True
    """
    if not isinstance(nodetype, type):
        raise errors.TreeError(f"nodes are registered by their class. Got {nodetype!r}")
    if from_children is None and (not tree_util.is_tree_node(nodetype) or is_plain_namedtuple(nodetype)):
        raise errors.TreeError(
            "If `from_children` is not present, you must call first `meshrt.tree_util.register_pytree_node` for "
            f"`{nodetype}`; of named tuples only the name is registered, with register_namedtuple_serialization"
        )
    node = _Node(nodetype, serialized_name, serialize_auxdata, deserialize_auxdata, from_children)
    _add(_by_class, _by_name, nodetype, serialized_name, node, node)
    return nodetype


def register_namedtuple_serialization(nodetype: type, *, serialized_name: str) -> type:
    """Lets structures with this class of named tuples be written to files; see `register_pytree_node_serialization`.

    Raises:
      TreeError: no named tuple, one that was registered as another container, an empty name, or a class or a name that
        has been registered before.

    >>> import collections
    >>> State = collections.namedtuple("State", "weights step")
    >>> meshrt.stages.register_namedtuple_serialization(State, serialized_name="docs.State") is State
    True
    """
    if not isinstance(nodetype, type) or not is_plain_namedtuple(nodetype):
        raise errors.TreeError(
            "Use `meshrt.export.register_pytree_node_serialization` for types other than `collections.namedtuple`. Got "
            f"{nodetype}"
        )
    _add(_named_tuples, _named_by_name, nodetype, serialized_name, serialized_name, nodetype)
    return nodetype


def _add(by_class: dict[Any, Any], by_name: dict[Any, Any], cls: type, name: str, of_class: Any, of_name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise errors.TreeError(f"serialized_name must be a string with something in it. Got {name!r}")
    with _lock:
        if cls in by_class:
            known = by_class[cls] if isinstance(by_class[cls], str) else by_class[cls].name
            raise errors.TreeError(
                f"Duplicate serialization registration for type `{cls}`. Previous registration was with "
                f"serialized_name `{known}`: it is registered for files already"
            )
        if name in by_name:
            known = by_name[name].cls if isinstance(by_name[name], _Node) else by_name[name]
            raise errors.TreeError(
                f"Duplicate serialization registration for serialized_name `{name}`. Previous registration was for "
                f"type `{known}`; choose another name"
            )
        by_class[cls], by_name[name] = of_class, of_name


# ----------------------------------------------------------------------------------------------------------
# Writing.


def to_data(treedef: PyTreeDef) -> Any:
    """The structure as a JSON value. TreeError names a node that files cannot hold."""
    found = treedef.node_data()
    if found is None:
        return _LEAF
    cls, aux = found
    children = [to_data(c) for c in treedef.children()]
    if cls is type(None):
        return None
    if cls in (tuple, list):
        return {cls.__name__: children}
    if cls is dict:
        return {"dict": _keys(aux), "of": children}
    if cls is collections.OrderedDict:
        return {"ordered": _keys(aux), "of": children}
    if cls is collections.defaultdict and (aux[0] is None or _FACTORIES.get(aux[0].__name__) is aux[0]):
        return {"default": aux[0] and aux[0].__name__, "keys": _keys(aux[1]), "of": children}
    if cls in _named_tuples:
        return {"named": _named_tuples[cls], "of": children}
    if cls in _by_class:
        node = _by_class[cls]
        return {"node": node.name, "aux": base64.b64encode(bytes(node.serialize(aux))).decode(), "of": children}
    how = "namedtuple" if is_plain_namedtuple(cls) else "pytree_node"
    raise errors.TreeError(
        f"Cannot serialize PyTreeDef containing an unregistered type `{cls}`. Use "
        f"`meshrt.export.register_{how}_serialization`, or dicts: files hold None, tuples, lists, dicts and what was "
        "registered"
    )


def _keys(keys: Sequence[Any]) -> list[Any]:
    for key in keys:
        if not isinstance(key, str | int | float | bool | None):
            raise errors.TreeError(
                f"a dict with the key {key!r} of type {type(key).__name__} cannot be written to a file; use keys that "
                "are strings or numbers"
            )
    return list(keys)


def to_named(cls: type, aux: Any) -> tuple[str, bytes] | None:
    """Name and auxiliary data of a registered node, as files of JAX's have them; None of others."""
    if cls in _named_tuples:
        return _named_tuples[cls], json.dumps(list(getattr(cls, "_fields", ()))).encode()
    if cls is collections.OrderedDict and all(isinstance(k, str) for k in aux):
        return _ORDERED, json.dumps(list(aux)).encode()
    node = _by_class.get(cls)
    return None if node is None else (node.name, bytes(node.serialize(aux)))


# ----------------------------------------------------------------------------------------------------------
# Reading.


def from_named(name: str, data: bytes, children: list[PyTreeDef]) -> PyTreeDef:
    """The node that `to_named` described. TreeError if no class of this name is registered here, or damaged data."""
    if name in _by_name:
        return _made(_by_name[name], data, children)
    if name not in _named_by_name and name != _ORDERED:
        raise _unknown(name, "pytree_node")
    try:
        words = json.loads(data)
    except ValueError as e:
        raise errors.TreeError(f"a file has damaged auxiliary data of {name!r}: {e}") from None
    kind = {"ordered": words} if name == _ORDERED else {"named": name}
    cls, aux = _class_of(next(iter(kind)), kind, len(children))
    return treedef_of_node(cls, aux, children)


def from_data(data: Any) -> PyTreeDef:
    """The structure that `to_data` wrote. TreeError if it is not one, or names a class not registered here."""
    return _read(data, 0)


def _read(data: Any, depth: int) -> PyTreeDef:
    if depth > _MAX_DEPTH:
        raise errors.TreeError(f"a structure in a file is nested more than {_MAX_DEPTH} deep")
    if data == _LEAF and isinstance(data, str):
        return tree_util.tree_structure(0)
    if data is None:
        return tree_util.tree_structure(None)
    if not isinstance(data, dict) or not data:
        raise errors.TreeError(f"a file has {_brief(data)} where the structure of a pytree belongs")
    kind = next(iter(data))
    listed = data.get(kind) if kind in ("tuple", "list") else data.get("of")
    if not isinstance(listed, list):
        raise errors.TreeError(f"a file has {_brief(data)} where the structure of a pytree belongs")
    children = [_read(c, depth + 1) for c in listed]
    if kind == "node":
        return _read_node(data, children)
    cls, aux = _class_of(kind, data, len(children))
    return treedef_of_node(cls, aux, children)


def _class_of(kind: str, data: dict[str, Any], count: int) -> tuple[type, Any]:
    if kind in ("tuple", "list"):
        return (tuple if kind == "tuple" else list), None
    if kind == "named":
        cls = _named_by_name.get(data["named"]) if isinstance(data["named"], str) else None
        if cls is None:
            raise _unknown(data["named"], "namedtuple")
        if len(getattr(cls, "_fields", ())) != count:
            raise errors.TreeError(f"a file has {count} fields for the named tuple {data['named']!r}, which is {cls}")
        return cls, None
    keys: Any = data.get("keys") if kind == "default" else data[kind]
    fits = isinstance(keys, list) and len(keys) == count and all(isinstance(k, str | int | float | None) for k in keys)
    if not fits or len(set(keys)) != count:
        raise errors.TreeError(f"a file has the keys {_brief(keys)} for a dict of {count}")
    if kind == "dict":
        try:
            if keys == sorted(keys):
                return dict, keys
        except TypeError:
            pass
        raise errors.TreeError(f"a file has the keys {_brief(keys)} for a dict, which are not sorted")
    if kind == "ordered":
        return collections.OrderedDict, tuple(keys)
    if kind == "default" and (data["default"] is None or data["default"] in _FACTORIES):
        return collections.defaultdict, (data["default"] and _FACTORIES[data["default"]], tuple(keys))
    raise errors.TreeError(f"a file has {_brief(data)} where the structure of a pytree belongs")


def _read_node(data: dict[str, Any], children: list[PyTreeDef]) -> PyTreeDef:
    node = _by_name.get(data["node"]) if isinstance(data["node"], str) else None
    if node is None:
        raise _unknown(data["node"], "pytree_node")
    try:
        return _made(node, base64.b64decode(data["aux"], validate=True), children)
    except (KeyError, TypeError, binascii.Error) as e:
        raise errors.TreeError(f"a file has damaged auxiliary data of {data['node']!r}: {e}") from None


def _made(node: _Node, data: bytes, children: list[PyTreeDef]) -> PyTreeDef:
    aux = node.deserialize(data)
    if node.from_children is not None:
        made = node.from_children(aux, [c.unflatten([0] * c.num_leaves) for c in children])
        return tree_util.tree_structure(made)
    return treedef_of_node(node.cls, aux, children)


def _unknown(name: Any, how: str) -> errors.TreeError:
    return errors.TreeError(
        f"a file has nodes called {_brief(name)}, which is not registered here: call "
        f"meshrt.stages.register_{how}_serialization(cls, serialized_name={_brief(name)}, ...) before it is read"
    )


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
