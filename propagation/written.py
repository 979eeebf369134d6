"""A `Program` from what a `ModuleWriter` recorded, without text and MLIR's parser between.

Only attributes, types and locations are read by MLIR: each distinct text once, when somebody asks. The program is the
one that `program.read` would make of the writer's text; what MLIR's verifier would say of an operation is found when
the text is parsed, by the compiler at the latest.
"""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir

from . import errors, limits
from .asm import Body, FunctionWriter, ModuleWriter
from .attributes import cache_for
from .contexts import context, note_read
from .functions import check_calls
from .gc_pause import collector_paused
from .graph import Block, Func, Op, OtherType, Program, TensorType, Value, attribute_of
from .parsing import parse
from .program import add_mesh, type_of

__all__ = ["program_of"]


def program_of(writer: ModuleWriter) -> Program:
    """The program that `writer` recorded. The writer must not be used to write more.

    Raises `LimitError` for regions nested too deeply or tensors of too many dimensions, and the errors of
    `parsing.parse` for attributes and types that are none.
    """
    with collector_paused():
        return _Recorded(writer).program()


class _Origin:
    """What operations that were written alike have besides their places: the part of an `ir.Operation` that `Op` and
    `Func` look at."""

    __slots__ = ("_attributes", "_known", "_loc", "_text")

    def __init__(self, known: _Known, text: str, loc: str):
        self._known, self._text, self._loc = known, text, loc
        self._attributes: dict[str, ir.Attribute] | None = None

    @property
    def attributes(self) -> dict[str, ir.Attribute]:
        if self._attributes is None:
            self._attributes = self._known.attributes(self._text)
        return self._attributes

    @property
    def location(self) -> ir.Location:
        return self._known.location(self._loc)


class _Known:
    """Attributes, types and locations by their text."""

    def __init__(self, writer: ModuleWriter):
        self.writer = writer
        self.context = context(0)
        self._types: dict[str, TensorType | OtherType] = {}
        self._dicts: dict[str, dict[str, ir.Attribute]] = {"": {}}
        self._locations: dict[str, ir.Location] | None = None

    def attributes(self, text: str) -> dict[str, ir.Attribute]:
        """`a = 1 : i64, b = ...` as a dictionary in the order of the names. It is shared: copy it to change it."""
        found = self._dicts.get(text)
        if found is None:
            with self.context:
                parsed = ir.DictAttr(_parsed(ir.Attribute, f"{{{text}}}"))
            note_read(len(text))
            named = [parsed[i] for i in range(len(parsed))]
            found = self._dicts[text] = {n.name: attribute_of(parsed, n) for n in named}
        return found

    def type(self, text: str) -> TensorType | OtherType:
        found = self._types.get(text)
        if found is None:
            with self.context:
                found = self._types[text] = type_of(_parsed(ir.Type, text))
        return found

    def location(self, alias: str) -> ir.Location:
        """The location that an alias stands for; the empty text is the unknown location."""
        if self._locations is None:
            texts = self.writer.locations
            # For operations of a dialect that has no bindings these look through Python's path, each time.
            lines = [f'"stablehlo.create_token"() : () -> !stablehlo.token loc({text})' for text in texts.values()]
            module = parse("\n".join(lines), trusted=True, into=self.context)
            self._locations = dict(zip(texts, [view.operation.location for view in module.body.operations]))
            with self.context:
                self._locations[""] = ir.Location.unknown()
        return self._locations[alias]


def _parsed(kind: Any, text: str) -> Any:
    try:
        return kind.parse(text)
    except ir.MLIRError as e:
        raise errors.ModuleParseError(f"{' '.join(str(e).split())[:200]} in {text[:200]}") from None


class _Recorded:
    """The walk of `program_of`."""

    def __init__(self, writer: ModuleWriter):
        self.writer = writer
        self.known = _Known(writer)
        self.origins: dict[tuple[str, str, str], _Origin] = {}
        self.depth = 0

    def program(self) -> Program:
        writer, known = self.writer, self.known
        cache_for(known.context)
        attrs = dict(known.attributes(writer.attributes))
        with known.context:
            attrs["sym_name"] = ir.StringAttr.get(writer.name)
        read = lambda: parse(writer.text(), trusted=True, into=known.context)
        self.made = program = Program(known.context, read, attrs, {}, {}, {}, [], set())
        if writer.preamble:
            for view in parse("\n".join(writer.preamble), trusted=True, into=known.context).body.operations:
                add_mesh(program, view.operation)
        for function in writer.functions:
            self.func(function)
        check_calls(program)
        return program

    def func(self, writer: FunctionWriter) -> None:
        known = self.known
        visibility = "public" if writer.public else "private"
        func = Func(writer.name, visibility, Block(), [known.type(t) for t in writer.result_types])
        func.arg_attrs = [dict(known.attributes(t)) for t in writer.arg_attrs]
        func.result_attrs = [dict(known.attributes(t)) for t in writer.result_attrs]
        with known.context:
            func.attrs = {"sym_visibility": ir.StringAttr.get(visibility)}
        func._ir = self.origin("", "", writer.loc)
        self.made.funcs[writer.name] = func
        self.block(writer, func.body, {})

    def origin(self, attrs: str, discardable: str, loc: str) -> _Origin:
        key = (attrs, discardable, loc)
        found = self.origins.get(key)
        if found is None:
            text = f"{attrs}, {discardable}" if attrs and discardable else attrs or discardable
            found = self.origins[key] = _Origin(self.known, text, loc)
        return found

    def block(self, body: Body, block: Block, known: dict[str, Value]) -> None:
        """`known` maps the names of values that are visible to the values."""
        program, type_of_text, origin = self.made, self.known.type, self.origin
        values, names = program.values, program.names
        for i, arg in enumerate(body.args):
            known[arg.name] = value = program.new_value(type_of_text(arg.type), block, i)
            block.args.append(value)
        ops = block.ops
        for name, refs, results, attrs, regions, loc, discardable in body.items:
            blocks = [self.region(r, known) for r in regions] if regions else ()
            operands = tuple([known[r.name] for r in refs])
            names.add(name)
            op = Op(name, operands, blocks, origin(attrs, discardable, loc))
            op.link(block)
            made: list[Value] = []
            for r in results:
                value = Value(len(values), type_of_text(r.type), op, len(made))
                values.append(value)
                known[r.name] = value
                made.append(value)
            op.results = tuple(made)
            ops.append(op)

    def region(self, body: Body, known: dict[str, Value]) -> Block:
        self.depth += 1
        if self.depth > limits.MAX_DEPTH:
            raise errors.LimitError(f"regions are nested more than {limits.MAX_DEPTH} deep")
        block = Block()
        self.block(body, block, known)
        self.depth -= 1
        return block
