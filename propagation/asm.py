"""A writer of StableHLO: operations are recorded, and become text in the generic MLIR syntax when somebody asks.

Building operations through MLIR's Python bindings costs 10-20 µs each; formatting a line and letting MLIR's
C++ parser read the whole module costs a tenth of that, so every producer of programs in this project
(the lowering in `meshrt`, the partitioner in `collectives`) writes through this module. What was recorded can also
become a `Program` at once, without text and parser: see `propagation.written`.

>>> module = ModuleWriter("example")
>>> f = module.function("main", ["tensor<4xf32>"], public=True)
>>> y = f.op("stablehlo.add", [f.args[0], f.args[0]], ["tensor<4xf32>"])
>>> f.ret([y])
>>> print(module.text())  # doctest: +ELLIPSIS
module @example {
"func.func"() <{...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from .quoting import quote, quote_symbol

__all__ = [
    "Body", "FunctionWriter", "Item", "ModuleWriter", "Ref", "block_text", "function_text", "i64_array", "line",
    "module_text",
]  # fmt: skip


def i64_array(values: Sequence[Any]) -> str:
    """The text of an attribute that holds integers: dimensions, sizes, positions. Symbolic sizes are written as text.

    >>> i64_array((2, 3)), i64_array(())
    ('array<i64: 2, 3>', 'array<i64>')
    """
    return f"array<i64: {', '.join(map(str, values))}>" if len(values) else "array<i64>"


class Ref(NamedTuple):
    """An SSA value in the text being written: its name and its MLIR type."""

    name: str
    type: str

    def __str__(self) -> str:
        return self.name


# name, operands, results, attributes, regions, location, discardable attributes; see `Body.ops`
Item: TypeAlias = "tuple[str, Sequence[Ref], tuple[Ref, ...], str, Sequence[Body], str, str]"


class Body:
    """The operations of one region with a single block. Values of enclosing bodies are visible in it."""

    __slots__ = ("_function", "args", "items")

    def __init__(self, function: FunctionWriter, arg_types: Sequence[str]):
        self._function = function
        self.args = [Ref(function.fresh(), t) for t in arg_types]
        self.items: list[Item] = []

    def op(
        self,
        name: str,
        operands: Sequence[Ref],
        result_types: Sequence[str],
        attrs: str = "",
        regions: Sequence[Body] = (),
        loc: str = "",
        discardable: str = "",
    ) -> Ref:
        """Writes an operation with exactly one result and returns it; see `ops` for the parameters."""
        return self.ops(name, operands, result_types, attrs, regions, loc, discardable)[0]

    def ops(
        self,
        name: str,
        operands: Sequence[Ref],
        result_types: Sequence[str],
        attrs: str = "",
        regions: Sequence[Body] = (),
        loc: str = "",
        discardable: str = "",
    ) -> tuple[Ref, ...]:
        """Writes an operation and returns its results.

        `attrs` are the inherent attributes (`a = 1 : i64, b = ...`, without braces), `discardable` the
        others (such as `sdy.sharding`), `loc` a reference made by `ModuleWriter.location`. The sequences must not
        change afterwards.
        """
        count = len(result_types)
        results: tuple[Ref, ...] = ()
        if count == 1:
            results = (Ref(self._function.fresh(), result_types[0]),)
        elif count:
            base = self._function.fresh()
            results = tuple([Ref(f"{base}#{i}", t) for i, t in enumerate(result_types)])
        self.items.append((name, operands, results, attrs, regions, loc, discardable))
        return results

    def body(self, arg_types: Sequence[str]) -> Body:
        """A new nested body, to be passed in `regions` of a later `op` or `ops`."""
        return Body(self._function, arg_types)

    def ret(self, values: Sequence[Ref], name: str = "stablehlo.return", loc: str = "") -> None:
        """Ends the body with a terminator (`stablehlo.return`, `func.return`, `sdy.return`)."""
        self.ops(name, values, (), loc=loc)

    def text(self) -> str:
        return block_text([(a.name, a.type) for a in self.args], [_item_text(*item) for item in self.items])


def _item_text(
    name: str, operands: Sequence[Ref], results: tuple[Ref, ...], attrs: str, regions: Sequence[Body], loc: str,
    discardable: str,
) -> str:  # fmt: skip
    """An operation that was recorded."""
    count = len(results)
    if count == 1:
        head, types = f"{results[0].name} = ", results[0].type
    elif count == 0:
        head, types = "", "()"
    else:
        head = f"{results[0].name.removesuffix('#0')}:{count} = "
        types = f"({', '.join([r.type for r in results])})"
    inner = ", ".join([r.text() for r in regions]) if regions else ""
    return line(head, name, [(r.name, r.type) for r in operands], types, attrs, inner, loc, discardable)


def line(
    head: str, name: str, operands: Sequence[tuple[str, str]], types: str, attrs: str, regions: str, loc: str,
    discardable: str,
) -> str:  # fmt: skip
    """An operation in the generic syntax.

    `head` names its results (`%3 = `, `%3:2 = ` or nothing), `operands` are names with types, `types` are those of the
    results, in parentheses unless there is one; `regions` is the text of all; the others as in `Body.ops`.
    """
    count = len(operands)
    if count == 1:
        ((names, ins),) = operands
    elif count == 2:
        (a, b), (c, d) = operands
        if not attrs and not regions and not discardable and loc:  # pointwise ones, which are most
            return f'{head}"{name}"({a}, {c}) : ({b}, {d}) -> {types} loc({loc})'
        names, ins = f"{a}, {c}", f"{b}, {d}"
    else:
        names, ins = ", ".join([n for n, _ in operands]), ", ".join([t for _, t in operands])
    middle = f" <{{{attrs}}}>" if attrs else ""
    if regions:
        middle += f" ({regions})"
    if discardable:
        middle += f" {{{discardable}}}"
    end = f" loc({loc})" if loc else ""
    return f'{head}"{name}"({names}){middle} : ({ins}) -> {types}{end}'


def block_text(args: Sequence[tuple[str, str]], lines: Sequence[str]) -> str:
    """A region of one block, of arguments with their types and of operations."""
    names = ", ".join([f"{name}: {t}" for name, t in args])
    head = f"^bb0({names}):\n" if args else ""
    return "{\n" + head + "\n".join(lines) + "\n}"


def function_text(
    name: str, ins: Sequence[str], outs: Sequence[str], public: bool, arg_attrs: Sequence[str],
    result_attrs: Sequence[str], body: str, loc: str,
) -> str:  # fmt: skip
    """A `func.func` of types, the text of its attributes (see `FunctionWriter`) and that of its body."""
    attrs = [f"sym_name = {quote(name)}", f"function_type = ({', '.join(ins)}) -> ({', '.join(outs)})"]
    attrs.append(f'sym_visibility = "{"public" if public else "private"}"')
    if any(arg_attrs):
        attrs.append("arg_attrs = [" + ", ".join("{" + a + "}" for a in arg_attrs) + "]")
    if any(result_attrs):
        attrs.append("res_attrs = [" + ", ".join("{" + a + "}" for a in result_attrs) + "]")
    location = f" loc({loc})" if loc else ""
    return f'"func.func"() <{{{", ".join(attrs)}}}> ({body}) : () -> (){location}'


def module_text(
    name: str, attributes: str, preamble: Sequence[str], functions: Sequence[str], locations: dict[str, str]
) -> str:
    """A `builtin.module` of the texts of its parts; `locations` maps texts to aliases."""
    attributes = f" attributes {{{attributes}}}" if attributes else ""
    parts = [f"module @{quote_symbol(name)}{attributes} {{", *preamble, *functions, "}"]
    parts += [f"{alias} = loc({text})" for text, alias in locations.items()]
    return "\n".join(parts) + "\n"


class FunctionWriter(Body):
    """One `func.func`. Ended by `ret`, which fixes its result types.

    `arg_attrs` and `result_attrs` hold the text of each argument's and result's attribute dictionary
    (without braces, empty for none).
    """

    __slots__ = ("_next", "arg_attrs", "loc", "name", "public", "result_attrs", "result_types")

    def __init__(self, name: str, arg_types: Sequence[str], public: bool, loc: str = ""):
        self._next = 0
        self.name, self.public, self.loc = name, public, loc
        super().__init__(self, arg_types)
        self.arg_attrs: list[str] = [""] * len(self.args)
        self.result_types: list[str] = []
        self.result_attrs: list[str] = []

    def fresh(self) -> str:
        self._next += 1
        return f"%{self._next}"

    def ret(self, values: Sequence[Ref], name: str = "func.return", loc: str = "") -> None:
        self.result_types = [v.type for v in values]
        if not self.result_attrs:
            self.result_attrs = [""] * len(self.result_types)
        super().ret(values, name, loc)

    def function_text(self) -> str:
        ins = [a.type for a in self.args]
        return function_text(
            self.name, ins, self.result_types, self.public, self.arg_attrs, self.result_attrs, self.text(), self.loc
        )


@dataclass(slots=True)
class ModuleWriter:
    """A `builtin.module`: attributes, `sdy.mesh` symbols, functions and shared locations.

    `attributes` is the text of the module's attribute dictionary; `preamble` holds symbol lines such as
    `sdy.mesh @mesh = <["x"=2]>`, written before the functions.
    """

    name: str
    attributes: str = ""
    preamble: list[str] = field(default_factory=list)
    functions: list[FunctionWriter] = field(default_factory=list)
    _locations: dict[str, str] = field(default_factory=dict)

    def function(self, name: str, arg_types: Sequence[str], public: bool = False, loc: str = "") -> FunctionWriter:
        function = FunctionWriter(name, arg_types, public, loc)
        self.functions.append(function)
        return function

    def location(self, text: str) -> str:
        """An alias (`#loc7`) for a location written as MLIR text, e.g. `"f.py":3:1` or `"name"("f.py":3:1)`."""
        alias = self._locations.get(text)
        if alias is None:
            alias = self._locations[text] = f"#loc{len(self._locations) + 1}"
        return alias

    @property
    def locations(self) -> dict[str, str]:
        """The text of each location by its alias."""
        return {alias: text for text, alias in self._locations.items()}

    def text(self) -> str:
        functions = [f.function_text() for f in self.functions]
        return module_text(self.name, self.attributes, self.preamble, functions, self._locations)
