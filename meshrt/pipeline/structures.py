"""Code for the arguments and results of one pytree structure: what a call of a compiled function does in between.

Taking a dictionary of 100 arrays apart with the general registry, hashing its structure and building the results'
dictionary costs a fifth of such a call. The structure is the same in nearly every call, so a function written for it
is made once:

    def read(args, version, mesh):            # for f(x, {"a": ..., "b": ...})
        v0, v1 = args
        if type(v1) is not dict or len(v1) != 2: raise KeyError
        v2 = v1["a"]
        v3 = v1["b"]
        return (7, version, mesh, v0._sig, v2._sig, v3._sig), [v0._buf, v2._buf, v3._buf], (v0, v2, v3)

Arguments of another structure make it raise one of `OTHER_STRUCTURE`; then the general way is taken. There is code for
tuples, lists, dictionaries, named tuples, None and registered dataclasses; structures with containers that were
registered with functions to take them apart have none.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from meshrt import tree_util
from meshrt.heuristics import CODED_DEPTH, CODED_LEAVES

__all__ = ["OTHER_STRUCTURE", "builder", "only", "reader", "unread"]

# What a reader raises on arguments of another structure: a container of another type or size, a missing key, a leaf
# that is not an Array.
OTHER_STRUCTURE = (AttributeError, KeyError, ValueError, TypeError)


def unread(args: tuple[Any, ...], version: Any, mesh: Any) -> Any:
    """The reader of no structure."""
    raise KeyError


class _Unsupported(Exception):
    """A container that no code is made for."""


class _Source:
    """Lines of a function in the making, and the constants that they name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}
        self.count = 0

    def variable(self) -> str:
        self.count += 1
        return f"v{self.count - 1}"

    def constant(self, value: Any) -> str:
        if type(value) in (str, int, bool, bytes):
            return repr(value)
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def function(self, head: str) -> Callable[..., Any]:
        text = f"def {head}:\n" + "".join(f"    {line}\n" for line in self.lines)
        scope = dict(self.constants)
        exec(compile(text, "<meshrt structure>", "exec"), scope)
        made: Callable[..., Any] = scope[head.split("(")[0]]
        return made


_numbers = itertools.count()


# `read(args, version, mesh) -> (key, buffers, leaves)`.
Reader = Callable[[tuple[Any, ...], Any, Any], tuple[tuple[Any, ...], list[Any], tuple[Any, ...]]]
Builder = Callable[[Sequence[Any]], Any]


@functools.lru_cache(maxsize=512)
def reader(tree: Any) -> Reader | None:
    """`read(args, version, mesh) -> (key, buffers, leaves)` for a tuple of arguments of structure `tree`, or None.

    The key holds a number of its own for the structure, `version`, `mesh` and the signature of every leaf, all leaves
    being Arrays.
    """
    if tree.num_leaves > CODED_LEAVES:
        return None
    source = _Source()
    leaves: list[str] = []
    try:
        _unpack(source, "args", tree.children(), leaves)
    except _Unsupported:
        return None
    key = "".join(f", {v}._sig" for v in leaves)
    buffers = ", ".join(f"{v}._buf" for v in leaves)
    source.lines.append(
        f"return ({next(_numbers)}, version, mesh{key}), [{buffers}], ({''.join(f'{v}, ' for v in leaves)})"
    )
    return source.function("read(args, version, mesh)")


def _unpack(source: _Source, value: str, children: Sequence[Any], leaves: list[str], depth: int = 0) -> None:
    names = [source.variable() for _ in children]
    if names:
        source.lines.append(f"{''.join(f'{n}, ' for n in names)}= {value}")
    else:
        source.lines.append(f"if {value}: raise KeyError")
    for name, child in zip(names, children):
        _take(source, name, child, leaves, depth + 1)


def _take(source: _Source, value: str, tree: Any, leaves: list[str], depth: int = 0) -> None:
    """Lines that take `value` of structure `tree` apart, in the registry's order of leaves."""
    if depth > CODED_DEPTH:
        raise _Unsupported
    node = tree.node_data()
    if node is None:
        leaves.append(value)
        return
    kind, data = node
    if kind is type(None):
        source.lines.append(f"if {value} is not None: raise KeyError")
    elif kind in (tuple, list) or tree_util.is_plain_namedtuple(kind):
        source.lines.append(f"if type({value}) is not {_type_name(source, kind)}: raise KeyError")
        _unpack(source, value, tree.children(), leaves, depth)
    elif kind is dict:
        source.lines.append(f"if type({value}) is not dict or len({value}) != {len(data)}: raise KeyError")
        names = [source.variable() for _ in data]
        for name, key in zip(names, data):
            source.lines.append(f"{name} = {value}[{source.constant(key)}]")
        for name, child in zip(names, tree.children()):
            _take(source, name, child, leaves, depth + 1)
    elif fields := tree_util.dataclass_fields(kind):
        _take_dataclass(source, value, tree, fields, leaves, depth)
    else:
        raise _Unsupported


def _take_dataclass(source: _Source, value: str, tree: Any, fields: Any, leaves: list[str], depth: int) -> None:
    (kind, meta), (data_fields, meta_fields) = tree.node_data(), fields
    source.lines.append(f"if type({value}) is not {source.constant(kind)}: raise KeyError")
    for field, constant in zip(meta_fields, meta):
        source.lines.append(f"if {value}.{field} != {source.constant(constant)}: raise KeyError")
    names = [source.variable() for _ in data_fields]
    for name, field in zip(names, data_fields):
        source.lines.append(f"{name} = {value}.{field}")
    for name, child in zip(names, tree.children()):
        _take(source, name, child, leaves, depth + 1)


def _type_name(source: _Source, kind: type) -> str:
    return kind.__name__ if kind in (tuple, list, dict) else source.constant(kind)


@functools.lru_cache(maxsize=512)
def builder(tree: Any) -> Builder:
    """`build(leaves) -> value` of structure `tree`; the registry's own where no code can be made."""
    if tree_util.treedef_is_leaf(tree) and tree.num_leaves == 1:
        return only
    general: Builder = tree.unflatten
    if tree.num_leaves > CODED_LEAVES:
        return general
    source = _Source()
    leaves: list[str] = []
    try:
        value = _expression(source, tree, leaves)
    except _Unsupported:
        return general
    source.lines.append(f"{''.join(f'{v}, ' for v in leaves)}= leaves" if leaves else "pass")
    source.lines.append(f"return {value}")
    return source.function("build(leaves)")


def only(leaves: Sequence[Any]) -> Any:
    """The builder of a single leaf."""
    return leaves[0]


def _expression(source: _Source, tree: Any, leaves: list[str], depth: int = 0) -> str:
    if depth > CODED_DEPTH:
        raise _Unsupported
    node = tree.node_data()
    if node is None:
        leaves.append(source.variable())
        return leaves[-1]
    kind, data = node
    if kind is type(None):
        return "None"
    if kind is not dict and kind not in (tuple, list) and not tree_util.is_plain_namedtuple(kind):
        raise _Unsupported
    parts = [_expression(source, child, leaves, depth + 1) for child in tree.children()]
    if kind is dict:
        return "{" + ", ".join(f"{source.constant(k)}: {p}" for k, p in zip(data, parts)) + "}"
    inside = ", ".join(parts)
    if kind is list:
        return f"[{inside}]"
    if kind is tuple:
        return f"({inside},)" if parts else "()"
    return f"{source.constant(kind)}({inside})"
