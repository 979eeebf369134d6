"""Writing a `Program` with its shardings back to MLIR."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

from jaxlib.mlir import ir

from .annotations import ASKED, DECIDED, WITH_IN_SHARDINGS
from .heuristics import NAMED_ATTRIBUTE_CHARACTERS, REMEMBERED_ATTRIBUTE_NAMES
from .locations import argument_locations
from .model import Mesh, TensorSharding
from .ops import SHARDING_ATTRIBUTE
from .parsing import parse, utf8_errors
from .program import Block, Func, Op, Program, Value
from .quoting import quote, quote_symbol
from .shardings import Shardings

__all__ = ["write", "write_text"]


def write(program: Program, shardings: Shardings) -> ir.Module:
    """The program as a new `ir.Module` in the context it was read in."""
    with utf8_errors():
        text = write_text(program, shardings)
    with program.context:
        return parse_in(text)


def parse_in(text: str) -> ir.Module:
    return ir.Module.parse(text) if ir.Context.current is not None else parse(text)


def write_text(program: Program, shardings: Shardings, debug_info: bool = True) -> str:
    """The program in MLIR's generic syntax."""
    return _Writer(program, shardings, debug_info).module()


class _Writer:
    def __init__(self, program: Program, shardings: Shardings, debug_info: bool):
        self.program, self.shardings, self.debug_info = program, shardings, debug_info
        self.attr_texts: dict[ir.Attribute, str] = {}
        # By attribute: locations themselves compare, but are hashed, by where they lie in memory.
        self.locations: dict[ir.Attribute, tuple[str, ir.Location]] = {}
        self.names: dict[Value, str] = {}
        self.own_texts: dict[TensorSharding, str] = {}
        self.aliases: dict[str, str] = {}

    def attr(self, attr: ir.Attribute) -> str:
        text = self.attr_texts.get(attr)
        if text is None:
            text = self.attr_texts[attr] = self._short(str(attr))
        return text

    def _short(self, text: str) -> str:
        """A name for a long attribute, which is then written, and read by MLIR, once."""
        if len(text) < NAMED_ATTRIBUTE_CHARACTERS:
            return text
        alias = self.aliases.get(text)
        if alias is None:
            alias = self.aliases[text] = f"#a{len(self.aliases)}"
        return alias

    def module(self) -> str:
        program = self.program
        attrs = self._dict({k: v for k, v in program.attrs.items() if k != "sym_name"})
        head = "module" + (f" @{quote_symbol(program.name)}" if program.name is not None else "")
        parts = [""]  # for the aliases, which must stand before their uses
        parts.append(head + (f" attributes {{{attrs}}}" if attrs else "") + " {")
        parts += [self._mesh(n, m) for n, m in program.meshes.items()]
        parts += [self._func(f) for f in program.funcs.values()]
        parts.append("}")
        parts += [f"{alias} = {loc}" for alias, loc in self.locations.values()]
        parts[0] = "\n".join([f"{alias} = {text}" for text, alias in self.aliases.items()])
        return "\n".join(parts) + "\n"

    def _mesh(self, name: str, mesh: Mesh) -> str:
        extra = self._dict(self.program.mesh_attrs.get(name, {}))
        return f"sdy.mesh @{quote_symbol(name)} = {mesh.to_text()}" + (f" {{{extra}}}" if extra else "")

    def _dict(self, attrs: dict[str, ir.Attribute]) -> str:
        return ", ".join(f"{quote(k) if not _is_bare(k) else k} = {self.attr(v)}" for k, v in attrs.items())

    def _location(self, loc: ir.Location | None) -> str:
        if loc is None or not self.debug_info:
            return ""
        key = loc.attr
        found = self.locations.get(key)
        if found is None:
            found = self.locations[key] = (f"#loc{len(self.locations) + 1}", loc)
        return f" loc({found[0]})"

    def _func(self, func: Func) -> str:
        results = self.shardings.results[func]
        asked = self.shardings.asked.get
        arg_attrs = [self._with_sharding(a, self.shardings.get(v), asked(v)) for a, v in zip(func.arg_attrs, func.args)]
        result_attrs = [
            self._with_sharding(a, s, asked((func, i))) for i, (a, s) in enumerate(zip(func.result_attrs, results))
        ]
        ins = ", ".join(v.type.text for v in func.args)
        outs = ", ".join(t.text for t in func.result_types)
        attrs = [f"sym_name = {quote(func.name)}", f"function_type = ({ins}) -> ({outs})"]
        if func.visibility != "public" or "sym_visibility" in func.attrs:  # public is the default
            attrs.append(f"sym_visibility = {quote(func.visibility)}")
        if any(arg_attrs):
            attrs.append("arg_attrs = [" + ", ".join(f"{{{a}}}" for a in arg_attrs) + "]")
        if any(result_attrs):
            attrs.append("res_attrs = [" + ", ".join(f"{{{a}}}" for a in result_attrs) + "]")
        if "no_inline" in func.attrs:
            attrs.append("no_inline")
        others = self._dict({k: v for k, v in func.attrs.items() if k not in ("sym_visibility", "no_inline")})
        body = self._block(func.body) + (f") {{{others}}}" if others else ")")
        return f'"func.func"() <{{{", ".join(attrs)}}}> ({body} : () -> (){self._location(func.loc)}'

    def _with_sharding(
        self, attrs: dict[str, ir.Attribute], sharding: TensorSharding | None, asked: TensorSharding | None
    ) -> str:
        text = self._dict({k: v for k, v in attrs.items() if k not in ("sdy.sharding", ASKED, DECIDED)})
        parts = [text] if text else []
        if asked is not None:
            parts.append(DECIDED if asked.is_fully_open else f"{ASKED} = {asked.to_text()}")
        if sharding is not None:
            parts.append(f"sdy.sharding = {sharding.to_text()}")
        return ", ".join(parts)

    def _name(self, value: Value) -> str:
        return self.names[value]

    def _block(self, block: Block) -> str:
        lines = []
        if block.args:
            for arg in block.args:
                self.names[arg] = f"%{arg.index}"
            lines.append("^bb0(" + ", ".join(self._arguments(block)) + "):")
        lines += [self._op(op) for op in block.ops]
        return "{\n" + "\n".join(lines) + "\n}"

    def _arguments(self, block: Block) -> list[str]:
        texts = [f"%{a.index}: {a.type.text}" for a in block.args]
        places = argument_locations(block.owner) if isinstance(block.owner, Func) and self.debug_info else []
        if len(places) != len(texts):
            return texts
        return [text + self._location(loc) for text, loc in zip(texts, places)]

    def _op(self, op: Op) -> str:
        results, names = op.results, self.names
        regions = [self._block(b) for b in op.regions] if op.regions else ()
        head = outs = ""
        if len(results) == 1:
            names[results[0]] = name = f"%{results[0].index}"
            head, outs = name + " = ", results[0].type.text
        elif results:
            base = f"%{results[0].index}"
            for i, value in enumerate(results):
                names[value] = f"{base}#{i}"
            head, outs = f"{base}:{len(results)} = ", ", ".join([v.type.text for v in results])
        operands = ", ".join([names[v] for v in op.operands])
        region_text = f" ({', '.join(regions)})" if regions else ""
        ins = ", ".join([v.type.text for v in op.operands])
        loc = self._location(op.loc)
        return f'{head}"{op.name}"({operands}){region_text}{self._attributes(op)} : ({ins}) -> ({outs}){loc}'

    def _attributes(self, op: Op) -> str:
        name = op.name
        own = SHARDING_ATTRIBUTE.get(name)
        if name in WITH_IN_SHARDINGS:
            written = {"in_shardings", "out_shardings", "manual_axes", "sdy.sharding"}
            if name == "sdy.named_computation":
                written.add("name")
            parts = self._kept(op, written) + self._computation(op)
        elif name == "sdy.sharding_group":
            parts = [*self._kept(op, {"group_id"}), f"group_id = {op.data['group']} : i64"]
        elif own is not None:
            parts = self._kept(op, {own, "sdy.sharding"})
            sharding = self.shardings.get(op.results[0])
            if sharding is not None:
                parts.append(f"{own} = {sharding.to_text()}")
        elif op.results:
            parts = self._kept(op, {"sdy.sharding"})
            text = self._results(op.results)
            if text:
                parts.append(text)
        else:
            parts = self._kept(op, ())
        return f" {{{', '.join(parts)}}}" if parts else ""

    def _kept(self, op: Op, written: Collection[str]) -> list[str]:
        """The attributes that are not `written` anew."""
        attrs = op.attrs
        if not attrs:
            return []
        return [f"{k if _is_bare(k) else quote(k)} = {self.attr(v)}" for k, v in attrs.items() if k not in written]

    def _results(self, results: Sequence[Value]) -> str:
        """The attribute with the shardings of an operation's results."""
        get = self.shardings.get
        if len(results) > 1:
            text = _per_value([get(v) for v in results], results)
            return f"sdy.sharding = {self._short(text)}" if text else ""
        sharding = get(results[0])
        if sharding is None:
            return ""
        text = self.own_texts.get(sharding, "")
        if not text:
            text = self.own_texts[sharding] = f"sdy.sharding = {self._short(_per_value([sharding], results))}"
        return text

    def _computation(self, op: Op) -> list[str]:
        ins = _per_value(op.data["in_shardings"], op.operands, always=op.name == "sdy.manual_computation")
        outs = [self.shardings.get(v) for v in op.results]
        out_text = _per_value(outs, op.results, always=op.name == "sdy.manual_computation")
        parts = []
        if op.name == "sdy.named_computation":
            parts.append(f"name = {quote(op.data['name'])}")
        if ins:
            parts.append(f"in_shardings = {ins}")
        if out_text:
            parts.append(f"out_shardings = {out_text}")
        if op.name == "sdy.manual_computation":
            axes = ", ".join(quote(a) for a in op.data["manual_axes"])
            parts.append(f"manual_axes = #sdy<manual_axes{{{axes}}}>")
        return parts


def _per_value(shardings: Sequence[TensorSharding | None], values: Sequence[Value], always: bool = False) -> str:
    """`#sdy.sharding_per_value<[...]>`; empty text if none of the values has a sharding."""
    mesh = next((s.mesh for s in shardings if s is not None), None)
    if mesh is None:
        return "#sdy.sharding_per_value<[]>" if always else ""
    found = [s or TensorSharding.open_on(mesh, v.type.rank) for s, v in zip(shardings, values)]
    return f"#sdy.sharding_per_value<[{', '.join(s.body_text() for s in found)}]>"


@functools.lru_cache(maxsize=REMEMBERED_ATTRIBUTE_NAMES)
def _is_bare(name: str) -> bool:
    return name.replace("_", "a").replace(".", "a").replace("$", "a").isalnum() and not name[0].isdigit()
