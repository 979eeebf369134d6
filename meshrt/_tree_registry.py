"""Classes as containers of trees: the registry, and what is asked of it."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from meshrt import errors
from meshrt._tree_paths import KeyEntry
from meshrt.xla.jaxlib_api import DictKey
from meshrt.xla.jaxlib_api import pytree_registry as default_registry

T = TypeVar("T")
C = TypeVar("C", bound=Any)  # a class with `tree_flatten` and `tree_unflatten`, which no protocol of classes describes

_registration_lock = threading.Lock()
_registered_namedtuples: set[type] = set()
_dataclass_fields: dict[type, tuple[tuple[str, ...], tuple[str, ...]]] = {}

# ----------------------------------------------------------------------------------------------------------
# What is asked of a class.


def is_tree_node(typ: type) -> bool:
    """Whether values of `typ` are containers.

    >>> meshrt.tree_util.is_tree_node(dict), meshrt.tree_util.is_tree_node(int)
    (True, False)
    """
    return default_registry.is_node(typ) or _is_namedtuple(typ)


def _is_namedtuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def is_plain_namedtuple(cls: type) -> bool:
    """Whether `cls` is a named tuple without a registration of its own: its children are its elements."""
    return _is_namedtuple(cls) and cls not in _registered_namedtuples


def dataclass_fields(cls: type) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The names of the data and of the meta fields of a registered dataclass; None for other types."""
    return _dataclass_fields.get(cls)


# ----------------------------------------------------------------------------------------------------------
# Registration.


def _registered(cls: type) -> errors.TreeError:
    return errors.TreeError(f"Duplicate custom PyTreeDef type registration for {cls}. It is a container already")


def _register(cls: type, flatten: Callable, unflatten: Callable, with_keys: Callable | None) -> None:
    with _registration_lock:
        try:
            default_registry.register_node(cls, flatten, unflatten, with_keys)
        except ValueError:
            raise _registered(cls) from None
        if _is_namedtuple(cls):
            _registered_namedtuples.add(cls)


def register_pytree_node(
    nodetype: type[T],
    flatten_func: Callable[[T], tuple[Iterable[Any], Hashable]],
    unflatten_func: Callable[[Any, Any], T],
    flatten_with_keys_func: Callable[[T], tuple[Iterable[tuple[KeyEntry, Any]], Hashable]] | None = None,
) -> None:
    """Makes `nodetype` a container.

    Args:
      flatten_func: value -> (children, hashable auxiliary data).
      unflatten_func: (auxiliary data, children) -> value.
      flatten_with_keys_func: as `flatten_func` with (key, child) pairs; gives paths readable names.

    >>> Pair = type("Pair", (tuple,), {})
    >>> meshrt.tree_util.register_pytree_node(Pair, lambda p: (tuple(p), None), lambda _, children: Pair(children))
    >>> meshrt.tree.map(lambda x: 2 * x, Pair((1, 2)))
    (2, 4)
    """
    _register(nodetype, flatten_func, unflatten_func, flatten_with_keys_func)


def register_pytree_node_class(cls: C) -> C:
    """Class decorator: uses the class's `tree_flatten(self)` and classmethod `tree_unflatten(aux, children)`.

    >>> methods = {"tree_flatten": lambda self: ((self.x,), None), "tree_unflatten": classmethod(lambda cls, _,
    ...     xs: cls())}
    >>> Holder = meshrt.tree_util.register_pytree_node_class(type("Holder", (), {"x": 3, **methods}))
    >>> meshrt.tree.leaves(Holder())
    [3]
    """
    register_pytree_node(cls, lambda x: x.tree_flatten(), cls.tree_unflatten)
    return cls


def register_pytree_with_keys(
    nodetype: type[T],
    flatten_with_keys: Callable,
    unflatten_func: Callable,
    flatten_func: Callable | None = None,
) -> None:
    """As :func:`register_pytree_node`, from a function that gives (key, child) pairs.

    >>> Box = type("Box", (list,), {})
    >>> keyed = lambda b: ([(meshrt.tree_util.SequenceKey(0), b[0])], None)
    >>> meshrt.tree_util.register_pytree_with_keys(Box, keyed, lambda _, children: Box(children))
    >>> meshrt.tree_util.keystr(meshrt.tree.leaves_with_path(Box([7]))[0][0])
    '[0]'
    """

    def without_keys(tree: T) -> tuple[list[Any], Hashable]:
        pairs, aux = flatten_with_keys(tree)
        return [child for _, child in pairs], aux

    _register(nodetype, flatten_func or without_keys, unflatten_func, flatten_with_keys)


def register_pytree_with_keys_class(cls: C) -> C:
    """Class decorator: uses the class's `tree_flatten_with_keys(self)` and `tree_unflatten(aux, children)`.

    >>> methods = {"tree_flatten_with_keys": lambda s: (((meshrt.tree_util.GetAttrKey("x"), 3),), None),
    ...     "tree_unflatten": classmethod(lambda cls, _, xs: cls())}
    >>> Keyed = meshrt.tree_util.register_pytree_with_keys_class(type("Keyed", (), methods))
    >>> meshrt.tree_util.keystr(meshrt.tree.leaves_with_path(Keyed())[0][0])
    '.x'
    """
    plain = (lambda x: x.tree_flatten()) if hasattr(cls, "tree_flatten") else None
    register_pytree_with_keys(cls, lambda x: x.tree_flatten_with_keys(), cls.tree_unflatten, plain)
    return cls


def register_dataclass(
    nodetype: type[T],
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> type[T]:
    """Makes a dataclass a container whose children are `data_fields`; `meta_fields` are part of the structure.

    Without lists, fields made with `dataclasses.field(metadata=dict(static=True))` are meta fields and all others
    that take part in `__init__` are data fields. Usable as a decorator.

    Raises:
      TreeError: the lists do not cover the fields of `__init__` exactly.
      ArgumentTypeError: one list is given without the other, or none for a class that is no dataclass.

    >>> from dataclasses import make_dataclass
    >>> Point = meshrt.tree_util.register_dataclass(make_dataclass("Point", ["x", "y"]), ["x", "y"], [])
    >>> meshrt.tree.leaves(Point(1.0, 2.0))
    [1.0, 2.0]
    """
    if (data_fields is None) != (meta_fields is None):
        raise errors.ArgumentTypeError(
            "register_dataclass: data_fields and meta_fields must both be specified when either is specified. Got "
            f"data_fields={data_fields} meta_fields={meta_fields}."
        )
    if data_fields is None or meta_fields is None:
        if not dataclasses.is_dataclass(nodetype):
            raise errors.ArgumentTypeError(
                "register_dataclass: data_fields and meta_fields are required when nodetype is not a dataclass. Got "
                f"nodetype={nodetype}."
            )
        fields = [f for f in dataclasses.fields(nodetype) if f.init and f.name not in drop_fields]
        data_fields = [f.name for f in fields if not f.metadata.get("static", False)]
        meta_fields = [f.name for f in fields if f.metadata.get("static", False)]
    data_fields, meta_fields = tuple(data_fields), tuple(meta_fields)
    if dataclasses.is_dataclass(nodetype):
        _check_dataclass_fields(nodetype, data_fields, meta_fields, drop_fields)
    with _registration_lock:
        if default_registry.is_node(nodetype):
            raise _registered(nodetype)
        default_registry.register_dataclass_node(nodetype, list(data_fields), list(meta_fields))
        _dataclass_fields[nodetype] = (data_fields, meta_fields)
    return nodetype


def _check_dataclass_fields(cls: type, data: Sequence[str], meta: Sequence[str], drop: Sequence[str]) -> None:
    if both := {*data} & {*meta}:
        raise errors.TreeError(f"data_fields and meta_fields must not overlap. Overlapping fields: {both}.")
    wanted = {f.name for f in dataclasses.fields(cls) if f.init}
    given = [*data, *meta, *drop]
    twice = sorted({n for n in given if given.count(n) > 1})
    missing, unknown = sorted(wanted - set(given)), sorted({*data, *meta} - wanted)
    if twice or missing or unknown:
        lists = {"Missing": missing, "Unexpected": unknown, "Repeated": twice}
        parts = [f"{what} fields: {{{', '.join(map(repr, names))}}}." for what, names in lists.items() if names]
        raise errors.TreeError(
            "data_fields and meta_fields must include all dataclass fields with ``init=True`` and only them, each "
            f"once, unless drop_fields has them: {cls.__name__}. {' '.join(parts)}"
        )


def register_static(cls: type[T]) -> type[T]:
    """Class decorator: values become containers without children, that is part of the structure (need `==`, hash).

    >>> Name = meshrt.tree_util.register_static(type("Name", (str,), {}))
    >>> meshrt.tree.leaves({"a": Name("left"), "b": 1})
    [1]
    """
    _register(cls, lambda x: ((), x), lambda aux, _: aux, lambda x: ((), x))
    return cls


# ----------------------------------------------------------------------------------------------------------
# Containers from the start, beside those that jaxlib knows.


def _flatten_ordered(d: collections.OrderedDict) -> tuple[tuple, Hashable]:
    return tuple(d.values()), tuple(d)


def _flatten_ordered_with_keys(d: collections.OrderedDict) -> tuple[tuple, Hashable]:
    return tuple((DictKey(k), v) for k, v in d.items()), tuple(d)


def _flatten_default(d: collections.defaultdict) -> tuple[tuple, Hashable]:
    keys = tuple(sorted(d))
    return tuple(d[k] for k in keys), (d.default_factory, keys)


def _flatten_default_with_keys(d: collections.defaultdict) -> tuple[tuple, Hashable]:
    keys = tuple(sorted(d))
    return tuple((DictKey(k), d[k]) for k in keys), (d.default_factory, keys)


register_pytree_node(
    collections.OrderedDict,
    _flatten_ordered,
    lambda keys, values: collections.OrderedDict(zip(keys, values, strict=True)),
    _flatten_ordered_with_keys,
)
register_pytree_node(
    collections.defaultdict,
    _flatten_default,
    lambda aux, values: collections.defaultdict(aux[0], zip(aux[1], values, strict=True)),
    _flatten_default_with_keys,
)
