"""The text of a per-device program. `propagation.asm` has the forms of its parts, in MLIR's generic syntax."""

from __future__ import annotations

from collections.abc import Sequence

from propagation import asm

from .attributes import NONE
from .program import LocalFunction, LocalValue, ModuleBuilder, Region
from .types import tensor_text

__all__ = ["function_text", "program_text"]


def program_text(builder: ModuleBuilder) -> str:
    """The whole module, after the aliases that it uses."""
    functions = [function_text(f) for f in builder.functions]
    body = asm.module_text(builder.name, builder.attributes, (), functions, builder.locations)
    lists = [found for found in builder.aliases.values() if found.alias in body]
    aliases = "".join([f"{found.alias} = {found.definition}\n" for found in lists])
    return aliases + body


def function_text(function: LocalFunction) -> str:
    """A `func.func`. Values are numbered in the order in which they are written."""
    region, printer = function.region, _Printer()
    args = printer.arguments(region)
    lines = printer.lines(region)
    results = [printer.values[r] for r in function.results]
    lines.append(asm.line("", "func.return", results, "()", "", "", function.loc, ""))
    arg_attrs, result_attrs = ([a.text for a in side] for side in (function.arg_attrs, function.result_attrs))
    return asm.function_text(
        function.name, [t for _, t in args], [t for _, t in results], function.public, arg_attrs, result_attrs,
        asm.block_text(args, lines), function.loc,
    )  # fmt: skip


class _Printer:
    """Writes the items of one function; `values` has the name and the type's text of every value written so far."""

    __slots__ = ("count", "values")

    def __init__(self) -> None:
        self.count = 0
        self.values: dict[LocalValue, tuple[str, str]] = {}

    def arguments(self, region: Region) -> list[tuple[str, str]]:
        """Names the arguments of a region."""
        out = []
        for r in region.args:
            self.count += 1
            pair = self.values[r] = f"%{self.count}", r.type
            out.append(pair)
        return out

    def region(self, region: Region) -> str:
        args = self.arguments(region)
        return asm.block_text(args, self.lines(region))

    def lines(self, region: Region) -> list[str]:
        """A line (or more, if it has regions) for each item."""
        values, out, line, type_of = self.values, [], asm.line, tensor_text
        for item in (*region.prologue, *region.items) if region.prologue else region.items:
            regions = ", ".join([self.region(r) for r in item.regions]) if item.regions else ""
            operands = [values[r] for r in item.operands]
            results, attrs, extra = item.results, item.attrs, item.extra
            if len(results) == 1:
                r = results[0]
                self.count += 1
                name, types = f"%{self.count}", r.type_text or type_of(r.shape, r.dtype)
                values[r] = name, types
                head = f"{name} = "
            else:
                head, types = self._several(results)
            given = "" if attrs is NONE else attrs.text
            more = "" if extra is NONE else extra.text
            out.append(line(head, item.name, operands, types, given, regions, item.loc, more))
        return out

    def _several(self, results: Sequence[LocalValue]) -> tuple[str, str]:
        """Names the results of an item that has none or several; the text in front of it, and that of their types."""
        if not results:
            return "", "()"
        self.count += 1
        name = f"%{self.count}"
        for i, r in enumerate(results):
            self.values[r] = f"{name}#{i}", r.type
        return f"{name}:{len(results)} = ", f"({', '.join([r.type for r in results])})"
