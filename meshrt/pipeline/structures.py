"""Code for the arguments and results of one pytree structure: what a call of a compiled function does in between.

Taking a dictionary of 100 arrays apart with the general registry, hashing its structure and building the results'
dictionary costs a fifth of such a call. The structure is the same in nearly every call, so a function written for it
is made once:

    def call(args, version, mesh):            # for f(x, {"a": ..., "b": ...})
        try:
            v0, v1 = args
            if type(v1) is not dict or len(v1) != 2: raise KeyError
            v2 = v1["a"]
            v3 = v1["b"]
            key = (7, version, mesh, v0._sig, v2._sig, v3._sig)
            buffers = [v0._buf, v2._buf, v3._buf]
            run = usual if key == expected else known[key]
        except unlike:
            return UNKNOWN
        return run(buffers, (v0, v2, v3))

Arguments of another structure, or of types that are not known, are answered with `UNKNOWN`; then the general way is
taken. There is code for tuples, lists, dictionaries, named tuples, None and registered dataclasses; structures with
containers that were registered with functions to take them apart have none.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from meshrt import tree_util
from meshrt._tree_registry import dataclass_fields, is_plain_namedtuple
from meshrt.heuristics import CODED_DEPTH, CODED_LEAVES

__all__ = ["UNKNOWN", "Bare", "Call", "Caller", "Run", "builder", "caller", "only", "unknown"]

# The answer of a caller to a call that it does not know. No call of a user's has it as its result.
UNKNOWN: Final = object()

# What arguments of another structure make a caller meet: a container of another type or size, a missing key, a leaf
# that is not an Array; and a missing key again where the types are not known.
_UNLIKE = (AttributeError, KeyError, ValueError, TypeError)


def unknown(args: tuple[Any, ...], version: Any, mesh: Any) -> Any:
    """The caller of no structure."""
    return UNKNOWN


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

    def function(self, head: str, lines: Sequence[str]) -> Callable[..., Any]:
        text = f"def {head}:\n" + "".join(f"    {line}\n" for line in lines)
        scope = dict(self.constants)
        exec(compile(text, "<meshrt structure>", "exec"), scope)
        made: Callable[..., Any] = scope[head.split("(")[0]]
        return made


_numbers = itertools.count()


# `run(buffers, leaves)` runs a call.
Run = Callable[[list[Any], Sequence[Any]], Any]
# `call(args, version, mesh)` runs a call on these arguments, or answers `UNKNOWN`.
Call = Callable[[tuple[Any, ...], Any, Any], Any]
Builder = Callable[[Sequence[Any]], Any]


class Bare(NamedTuple):
    """A call of one result that takes nothing but a launch: what stands in the code itself, which saves a call of it.

    execute    jaxlib's launch of the program
    making     the handler of the result's buffer, in a list
    signature  the result's
    blank      makes an Array without its `_buf` and `_sig`
    failed     what the runtime raises
    explained  the error for a failure and the leaves
    """

    execute: Callable[[list[Any]], Any]
    making: list[Any]
    signature: Any
    blank: Callable[[], Any]
    failed: type[Exception]
    explained: Callable[[Exception, Sequence[Any]], Exception]


_RUN = """
        run = usual if key == expected else known[key]
    except unlike:
        return UNKNOWN
    return run(buffers, {leaves})
"""

_RUN_BARE = """
        run = None if key == expected else known[key]
    except unlike:
        return UNKNOWN
    if run is not None:
        return run(buffers, {leaves})
    try:
        (buffer,) = execute(buffers).consume_with_handlers(making)
    except failed as e:
        raise explained(e, {leaves}) from None
    out = blank()
    out._buf = buffer
    out._sig = signature
    return out
"""


class Caller:
    """Code for the arguments of one structure, whose leaves are all Arrays.

    The key of a call is the structure's own number, the settings' version, the mesh and every leaf's signature.
    """

    __slots__ = ("_leaves", "_makers", "_number", "_source")

    def __init__(self, source: _Source, leaves: Sequence[str]):
        self._source, self._number = source, next(_numbers)
        self._leaves = f"({''.join(f'{v}, ' for v in leaves)})"
        self._makers: dict[str, Callable[..., Call]] = {}
        signatures = "".join(f", {v}._sig" for v in leaves)
        source.lines += [
            f"key = ({self._number}, version, mesh{signatures})",
            f"buffers = [{', '.join(f'{v}._buf' for v in leaves)}]",
        ]
        source.constants |= {"unlike": _UNLIKE, "UNKNOWN": UNKNOWN}

    def key(self, leaves: Sequence[Any], version: Any, mesh: Any) -> tuple[Any, ...]:
        return (self._number, version, mesh, *[x._sig for x in leaves])

    def calling(self, expected: tuple[Any, ...], usual: Run | Bare, known: dict[Any, Run]) -> Call:
        """Runs `usual` where the key is `expected`, as it mostly is, else what is `known`."""
        if isinstance(usual, Bare):
            return self._maker(_RUN_BARE, ", ".join(Bare._fields))(expected, known, *usual)
        return self._maker(_RUN, "usual")(expected, known, usual)

    def _maker(self, run: str, names: str) -> Callable[..., Call]:
        """`make(expected, known, ...)`: the code with these values in it; compiled once."""
        made = self._makers.get(run)
        if made is None:
            lines = [
                "def call(args, version, mesh):",
                "    try:",
                *(f"        {line}" for line in self._source.lines),
                *run.format(leaves=self._leaves).strip("\n").split("\n"),
                "return call",
            ]
            made = self._makers[run] = self._source.function(f"make(expected, known, {names})", lines)
        return made


@functools.lru_cache(maxsize=512)
def caller(tree: Any) -> Caller | None:
    """The `Caller` for a tuple of arguments of structure `tree`; None where no code can be made."""
    if tree.num_leaves > CODED_LEAVES:
        return None
    source = _Source()
    leaves: list[str] = []
    try:
        _unpack(source, "args", tree.children(), leaves)
    except _Unsupported:
        return None
    return Caller(source, leaves)


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
    elif kind in (tuple, list) or is_plain_namedtuple(kind):
        source.lines.append(f"if type({value}) is not {_type_name(source, kind)}: raise KeyError")
        _unpack(source, value, tree.children(), leaves, depth)
    elif kind is dict:
        source.lines.append(f"if type({value}) is not dict or len({value}) != {len(data)}: raise KeyError")
        names = [source.variable() for _ in data]
        for name, key in zip(names, data):
            source.lines.append(f"{name} = {value}[{source.constant(key)}]")
        for name, child in zip(names, tree.children()):
            _take(source, name, child, leaves, depth + 1)
    elif fields := dataclass_fields(kind):
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


def builder(tree: Any) -> Builder:
    """`build(leaves) -> value` of structure `tree`; the registry's own where no code can be made."""
    if tree_util.treedef_is_leaf(tree) and tree.num_leaves == 1:
        return only
    # (Equal structures may hold what is equal and not the same, True and 1.0: as keys, which their text tells apart,
    # and in nodes of other classes, of which no code is made.)
    coded = _coded(tree, str(tree)) if tree.num_leaves <= CODED_LEAVES else None
    return tree.unflatten if coded is None else coded


@functools.lru_cache(maxsize=512)
def _coded(tree: Any, text: str) -> Builder | None:
    source = _Source()
    leaves: list[str] = []
    try:
        value = _expression(source, tree, leaves)
    except _Unsupported:
        return None
    source.lines.append(f"{''.join(f'{v}, ' for v in leaves)}= leaves" if leaves else "pass")
    source.lines.append(f"return {value}")
    return source.function("build(leaves)", source.lines)


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
    if kind is not dict and kind not in (tuple, list) and not is_plain_namedtuple(kind):
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
