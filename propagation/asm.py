"""A writer of StableHLO assembly: the generic MLIR syntax, one string per operation.

Building operations through MLIR's Python bindings costs 10-20 µs each; formatting a line and letting MLIR's
C++ parser read the whole module costs a tenth of that, so every producer of programs in this project
(the lowering in `meshrt`, the partitioner in `collectives`) writes text through this module.

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

__all__ = ["Body", "FunctionWriter", "ModuleWriter", "Ref", "quote"]


@dataclass(slots=True, frozen=True)
class Ref:
    """An SSA value in the text being written: its name and its MLIR type."""

    name: str
    type: str

    def __str__(self) -> str:
        return self.name


def quote(text: str) -> str:
    """`text` as an MLIR string literal (non-printable bytes become \\HH escapes)."""
    out = []
    for byte in text.encode("utf-8"):
        char = chr(byte)
        out.append(char if 32 <= byte < 127 and char not in '"\\' else f"\\{byte:02X}")
    return '"' + "".join(out) + '"'


class Body:
    """The lines of one region with a single block. Values of enclosing bodies are visible in it."""

    __slots__ = ("_function", "args", "lines")

    def __init__(self, function: FunctionWriter, arg_types: Sequence[str]):
        self._function = function
        self.args = [Ref(function.fresh(), t) for t in arg_types]
        self.lines: list[str] = []

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
        """Writes an operation in generic form and returns its results.

        `attrs` are the inherent attributes (`a = 1 : i64, b = ...`, without braces), `discardable` the
        others (such as `sdy.sharding`), `loc` a reference made by `ModuleWriter.location`.
        """
        count = len(result_types)
        if count == 1:
            base = self._function.fresh()
            results: tuple[Ref, ...] = (Ref(base, result_types[0]),)
            head = f"{base} = "
            types = result_types[0]
        elif count == 0:
            results, head, types = (), "", "()"
        else:
            base = self._function.fresh()
            results = tuple(Ref(f"{base}#{i}", t) for i, t in enumerate(result_types))
            head = f"{base}:{count} = "
            types = f"({', '.join(result_types)})"
        names = ", ".join([r.name for r in operands])
        in_types = ", ".join([r.type for r in operands])
        attr_text = f" <{{{attrs}}}>" if attrs else ""
        region_text = f" ({', '.join([r.text() for r in regions])})" if regions else ""
        other = f" {{{discardable}}}" if discardable else ""
        location = f" loc({loc})" if loc else ""
        self.lines.append(f'{head}"{name}"({names}){attr_text}{region_text}{other} : ({in_types}) -> {types}{location}')
        return results

    def body(self, arg_types: Sequence[str]) -> Body:
        """A new nested body, to be passed in `regions` of a later `op` or `ops`."""
        return Body(self._function, arg_types)

    def ret(self, values: Sequence[Ref], name: str = "stablehlo.return", loc: str = "") -> None:
        """Ends the body with a terminator (`stablehlo.return`, `func.return`, `sdy.return`)."""
        self.ops(name, values, (), loc=loc)

    def text(self) -> str:
        args = ", ".join([f"{a.name}: {a.type}" for a in self.args])
        head = f"^bb0({args}):\n" if self.args else ""
        return "{\n" + head + "\n".join(self.lines) + "\n}"


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
        ins = ", ".join([a.type for a in self.args])
        outs = ", ".join(self.result_types)
        attrs = [f"sym_name = {quote(self.name)}", f"function_type = ({ins}) -> ({outs})"]
        attrs.append(f'sym_visibility = "{"public" if self.public else "private"}"')
        if any(self.arg_attrs):
            attrs.append("arg_attrs = [" + ", ".join("{" + a + "}" for a in self.arg_attrs) + "]")
        if any(self.result_attrs):
            attrs.append("res_attrs = [" + ", ".join("{" + a + "}" for a in self.result_attrs) + "]")
        location = f" loc({self.loc})" if self.loc else ""
        return f'"func.func"() <{{{", ".join(attrs)}}}> ({self.text()}) : () -> (){location}'


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

    def text(self) -> str:
        attributes = f" attributes {{{self.attributes}}}" if self.attributes else ""
        parts = [f"module @{quote_symbol(self.name)}{attributes} {{"]
        parts += self.preamble
        parts += [f.function_text() for f in self.functions]
        parts.append("}")
        parts += [f"{alias} = loc({text})" for text, alias in self._locations.items()]
        return "\n".join(parts) + "\n"


def quote_symbol(name: str) -> str:
    """`name` as it follows `@`: bare if it is an identifier, else quoted."""
    plain = name.replace("_", "a").replace(".", "a").replace("$", "a")
    return name if plain.isalnum() and plain.isascii() and not name[:1].isdigit() else quote(name)
