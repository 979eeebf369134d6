"""Shardings and meshes as the `sdy` dialect writes them: the one reader and the one writer of that text.

    mesh        <["data"=4, "model"=2]>, or with devices in another order <["data"=2], device_ids=[1, 0]>
    axis        "data", or of a mesh axis of size 8 the part of size 2 to whose left parts of size 4 stand: "data":(4)2
    dimension   {"data", "model"}, open to more axes {"data", ?}, with a user priority {"data"}p1
    sharding    #sdy.sharding<@mesh, [{"data"}, {?}], replicated={"model"}, unreduced={"x"}>

What is read is plain: names and numbers, not yet compared with any mesh. So it serves the shardings of
`propagation.model`, the partition specs of `meshrt`, and what a user wrote.

>>> text = '#sdy.sharding<@mesh, [{"a", ?}, {"b":(2)2}p1], replicated={"c"}>'
>>> s = read_sharding(text)
>>> s.mesh, s.dims[0].is_open, s.dims[1].axes, s.dims[1].priority
('mesh', True, (AxisText(name='b', pre=2, size=2),), 1)
>>> dims = [dim_text([axis_text("a")], is_open=True), dim_text([axis_text("b", 2, 2)], priority=1)]
>>> "#sdy.sharding" + sharding_text("mesh", dims, replicated=[axis_text("c")]) == text
True
>>> mesh_text([("a", 4), ("b", 2)])
'<["a"=4, "b"=2]>'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from .errors import ModuleParseError
from .quoting import quote, quote_symbol, unquote

__all__ = [
    "AxisText", "DimText", "MeshText", "ShardingText", "axes_in", "axis_text", "dim_text", "mesh_text", "read_mesh",
    "read_sharding", "read_shardings", "sharding_text", "texts_per_value",
]  # fmt: skip

T = TypeVar("T")


class AxisText(NamedTuple):
    """An axis, or the part of it of `size` with parts of product `pre` to its left; `size` is None for all of it."""

    name: str
    pre: int = 1
    size: int | None = None


class DimText(NamedTuple):
    axes: tuple[AxisText, ...]
    is_open: bool = False
    priority: int | None = None


class MeshText(NamedTuple):
    axes: tuple[tuple[str, int], ...]
    device_ids: tuple[int, ...] | None = None


class ShardingText(NamedTuple):
    """`mesh` is the name of a mesh, a mesh that is written out, or None if the text begins with the dimensions.
    `reduction` says how the parts of an unreduced value combine: `sum`, `max`, ..."""

    mesh: str | MeshText | None
    dims: tuple[DimText, ...]
    replicated: tuple[AxisText, ...] = ()
    unreduced: tuple[AxisText, ...] = ()
    reduction: str = "sum"


# Writing. Axes and dimensions are texts already, for each caller has them in another form.


def mesh_text(axes: Iterable[tuple[str, int]], device_ids: Iterable[int] | None = None) -> str:
    """What follows `sdy.mesh @name =`."""
    ids = "" if device_ids is None else f", device_ids=[{', '.join(map(str, device_ids))}]"
    return f"<[{', '.join([f'{quote(name)}={size}' for name, size in axes])}]{ids}>"


def axis_text(name: str, pre: int = 1, size: int | None = None) -> str:
    """An axis, or a part of it if `size` is given."""
    return quote(name) if size is None else f"{quote(name)}:({pre}){size}"


def dim_text(axes: Iterable[str], is_open: bool = False, priority: int | None = None) -> str:
    inside = ", ".join([*axes, "?"] if is_open else axes)
    return f"{{{inside}}}" if priority is None else f"{{{inside}}}p{priority}"


def sharding_text(
    mesh: str,
    dims: Iterable[str],
    replicated: Iterable[str] = (),
    unreduced: Iterable[str] = (),
    reduction: str = "sum",
) -> str:
    """What follows `#sdy.sharding`, and stands in lists of shardings, one for each value."""
    text = f"<@{quote_symbol(mesh)}, [{', '.join(dims)}]"
    kind = "" if reduction == "sum" else reduction
    for label, axes in (("replicated=", ", ".join(replicated)), (f"unreduced={kind}", ", ".join(unreduced))):
        if axes:
            text += f", {label}{{{axes}}}"
    return text + ">"


# Reading.

_TOKEN = re.compile(
    r'(?P<string>"(?:[^"\\]|\\.)*")|@(?P<symbol>[\w.$-]+|"(?:[^"\\]|\\.)*")|(?P<number>\d+)|(?P<priority>p\d+\b)'
    r"|(?P<word>[A-Za-z_]\w*)|(?P<numbers>\[\s*\d[\d\s,]*\])|(?P<mark>[\[\]{}<>(),:=?#.])|(?P<space>\s+)"
)
_BRACKET_OR_NAME = re.compile(r'"(?:[^"\\]|\\.)*"|[<>]')
_AXIS = re.compile(r'"((?:[^"\\]|\\.)*)"(?::\((\d+)\)(\d+))?')


def read_sharding(text: str, where: str | None = None) -> ShardingText:
    """A sharding, with or without `#sdy.sharding` in front, and with or without its mesh: `[{"a"}, {}]` is one, too.
    Raises `ModuleParseError`, which names `where`."""
    reader = _Reader(text, where)
    found = reader.bare_sharding() if reader.peek() == "[" else reader.sharding(reader.header("sharding"))
    return reader.ended(found)


def read_shardings(text: str, where: str | None = None) -> tuple[ShardingText, ...]:
    """`#sdy.sharding_per_value<[<@mesh, [...]>, ...]>`, or a single `#sdy.sharding<...>`."""
    reader = _Reader(text, where)
    if reader.header("sharding", "sharding_per_value") != "sharding_per_value":
        return (reader.ended(reader.sharding()),)
    reader.take("<")
    found = reader.sequence("[", reader.sharding, "]")
    reader.take(">")
    return reader.ended(found)


def texts_per_value(text: str) -> list[str]:
    """The texts of the shardings in `#sdy.sharding_per_value<[<...>, <...>]>`.

    >>> texts_per_value('#sdy.sharding_per_value<[<@mesh, [{"a"}]>, <@mesh, []>]>')
    ['<@mesh, [{"a"}]>', '<@mesh, []>']
    >>> texts_per_value('#sdy.sharding_per_value<[<@mesh, [{"a>b"}]>]>')
    ['<@mesh, [{"a>b"}]>']
    """
    found, depth, begin = [], 0, 0
    inside = text.partition("[")[2].rpartition("]")[0]
    for bracket in _BRACKET_OR_NAME.finditer(inside):
        if bracket[0] == "<":
            begin = bracket.start() if not depth else begin
            depth += 1
        elif bracket[0] == ">":
            depth -= 1
            if not depth:
                found.append(inside[begin : bracket.end()])
    return found


def read_mesh(text: str, where: str | None = None) -> MeshText:
    """`<["a"=4, "b"=2]>` with or without `#sdy.mesh` or `sdy.mesh @name =` in front; names of axes may be bare words.
    Raises `ModuleParseError`, which names `where`."""
    reader = _Reader(text, where)
    if reader.accept("sdy"):
        reader.take(".")
        reader.take("mesh")
        reader.take_kind("symbol")
        reader.take("=")
    else:
        reader.header("mesh")
    return reader.ended(reader.mesh())


def axes_in(text: str) -> list[AxisText]:
    """The axes in a text, in order, whatever else it says: `#sdy<manual_axes{"a", "b"}>`, lists of lists of axes."""
    return [AxisText(unquote(m[1]), int(m[2]), int(m[3])) if m[2] else AxisText(unquote(m[1])) for m in
            _AXIS.finditer(text)]  # fmt: skip


class _Reader:
    """Recursive descent over the tokens of a text: their kinds, what they say, and the number of the next."""

    __slots__ = ("at", "kinds", "text", "tokens", "where")
    at: int
    kinds: list[str]
    text: str
    tokens: list[str]
    where: str | None

    def __init__(self, text: str, where: str | None):
        self.text, self.where, self.at = text, where, 0
        self.kinds, self.tokens = [], []
        place = 0
        for found in _TOKEN.finditer(text):
            kind = found.lastgroup
            if found.start() != place or kind is None:
                break
            place = found.end()
            if kind != "space":
                self.kinds.append(kind)
                self.tokens.append(found[kind])
        if place != len(text):
            raise self.error(f"nothing there begins with {text[place : place + 10]!r}")
        self.kinds.append("end")
        self.tokens.append("")

    def error(self, problem: str) -> ModuleParseError:
        text = self.text if len(self.text) <= 300 else f"{self.text[:300]}..."
        return ModuleParseError(f"cannot read {text!r} as sdy text: {problem}", self.where)

    def peek(self) -> str:
        return self.tokens[self.at]

    def accept(self, token: str) -> bool:
        if self.tokens[self.at] == token:
            self.at += 1
            return True
        return False

    def take(self, expected: str) -> None:
        if not self.accept(expected):
            raise self.error(f"expected {expected!r}, found {self.tokens[self.at] or 'its end'!r}")

    def take_kind(self, *kinds: str) -> str:
        if self.kinds[self.at] not in kinds:
            raise self.error(f"expected a {' or a '.join(kinds)}, found {self.tokens[self.at] or 'its end'!r}")
        self.at += 1
        return self.tokens[self.at - 1]

    def ended(self, found: T) -> T:
        if self.kinds[self.at] != "end":
            raise self.error(f"{self.tokens[self.at]!r} stands behind its end")
        return found

    def header(self, *names: str) -> str | None:
        """`#sdy.NAME` -> NAME, one of `names`; None if the text begins with something else."""
        if not self.accept("#"):
            return None
        self.take("sdy")
        self.take(".")
        name = self.take_kind("word")
        if name not in names:
            raise self.error(f"it is an #sdy.{name}, not an #sdy.{' or #sdy.'.join(names)}")
        return name

    def sequence(self, begin: str, item: Callable[[], T], end: str) -> tuple[T, ...]:
        self.take(begin)
        found: list[T] = []
        if not self.accept(end):
            found.append(item())
            while not self.accept(end):
                self.take(",")
                found.append(item())
        return tuple(found)

    def name(self) -> str:
        token = self.take_kind("string", "word", "priority")
        return unquote(token[1:-1]) if token.startswith('"') else token

    def number(self) -> int:
        return int(self.take_kind("number"))

    def mesh(self) -> MeshText:
        self.take("<")
        axes = self.sequence("[", self.mesh_axis, "]")
        ids = None
        if self.accept(","):
            self.take("device_ids")
            self.take("=")
            ids = self.device_ids()
        self.take(">")
        return MeshText(axes, ids)

    def mesh_axis(self) -> tuple[str, int]:
        name = self.name()
        self.take("=")
        return name, self.number()

    def device_ids(self) -> tuple[int, ...]:
        if self.kinds[self.at] != "numbers":
            return self.sequence("[", self.number, "]")
        return tuple(map(int, self.take_kind("numbers")[1:-1].replace(",", " ").split()))

    def axis(self) -> AxisText:
        name = unquote(self.take_kind("string")[1:-1])
        if not self.accept(":"):
            return AxisText(name)
        self.take("(")
        pre = self.number()
        self.take(")")
        return AxisText(name, pre, self.number())

    def dim(self) -> DimText:
        self.take("{")
        axes: list[AxisText] = []
        is_open = self.accept("?")
        if is_open or not self.accept("}"):
            while not is_open:
                axes.append(self.axis())
                if not self.accept(","):
                    break
                is_open = self.accept("?")
            self.take("}")
        priority = int(self.take_kind("priority")[1:]) if self.kinds[self.at] == "priority" else None
        return DimText(tuple(axes), is_open, priority)

    def sharding(self, _: str | None = None) -> ShardingText:
        self.take("<")
        mesh: str | MeshText
        if self.kinds[self.at] == "symbol":
            symbol = self.take_kind("symbol")
            mesh = unquote(symbol[1:-1]) if symbol.startswith('"') else symbol
        else:
            self.take("mesh")
            mesh = self.mesh()
        self.take(",")
        found = self.bare_sharding()
        self.take(">")
        return found._replace(mesh=mesh)

    def bare_sharding(self) -> ShardingText:
        """What follows the mesh."""
        found = ShardingText(None, self.sequence("[", self.dim, "]"))
        while self.accept(","):
            label = self.take_kind("word")
            self.take("=")
            if label == "replicated":
                found = found._replace(replicated=self.sequence("{", self.axis, "}"))
            elif label == "unreduced":
                reduction = self.take_kind("word") if self.kinds[self.at] == "word" else "sum"
                found = found._replace(unreduced=self.sequence("{", self.axis, "}"), reduction=reduction)
            else:
                raise self.error(f"expected 'replicated' or 'unreduced', found {label!r}")
        return found
