"""Reading `sdy` attributes: which shardings a module carries, and where.

>>> from .model import Mesh
>>> mesh = Mesh("m", (("a", 2), ("b", 4)))
>>> parse_sharding('#sdy.sharding<@m, [{"a", ?}, {"b":(2)2}p1], replicated={"b":(1)2}>', {"m": mesh}).dims[0].is_open
True
"""

from __future__ import annotations

import re

from jaxlib.mlir import ir

from . import errors
from .attributes import unquote
from .model import AxisRef, DimSharding, Mesh, TensorSharding
from .program import Func, Op, Program, Value, location_text, source

__all__ = ["Shardings", "parse_sharding", "parse_shardings", "read_shardings"]

_TOKEN = re.compile(
    r'\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|@(?P<symbol>[\w.$-]+|"(?:[^"\\]|\\.)*")|(?P<number>\d+)'
    r"|(?P<word>[A-Za-z_]\w*)|(?P<mark>[\[\]{}<>(),:=?#.]))"
)

# Where operations keep the sharding of their single result, other than in `sdy.sharding`.
OWN_ATTRIBUTE = {
    "sdy.sharding_constraint": "sharding",
    "sdy.reshard": "sharding",
    "sdy.data_flow_edge": "sharding",
    **{
        f"sdy.{name}": "out_sharding"
        for name in [
            "all_gather",
            "all_slice",
            "all_to_all",
            "collective_permute",
            "all_reduce",
            "reduce_scatter",
            "sharded_to_unreduced",
            "replicated_to_unreduced",
        ]
    },
}
WITH_IN_SHARDINGS = ("sdy.manual_computation", "sdy.named_computation")


class _Parser:
    """Recursive descent over one attribute's text. MLIR has verified it, so only unknown syntax is an error."""

    def __init__(self, text: str, meshes: dict[str, Mesh], where: str | None):
        self.text, self.meshes, self.where = text, meshes, where
        self.tokens = [(m.lastgroup, m[m.lastgroup]) for m in _TOKEN.finditer(text)]
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if (expected is not None and token != expected) or not token:
            raise errors.ModuleParseError(f"cannot read sharding {self.text!r}: expected {expected!r}", self.where)
        self.at += 1
        return token

    def accept(self, token: str) -> bool:
        if self.at < len(self.tokens) and self.tokens[self.at][1] == token:
            self.at += 1
            return True
        return False

    def header(self) -> str:
        """`#sdy.NAME` -> NAME."""
        self.take("#")
        self.take("sdy")
        self.take(".")
        return self.take()

    def mesh(self) -> Mesh:
        kind, token = self.tokens[self.at]
        self.at += 1
        if kind == "symbol":
            name = unquote(token[1:-1]) if token.startswith('"') else token
            if name not in self.meshes:
                known = ", ".join(f"@{m}" for m in self.meshes) or "none"
                raise errors.UnknownMeshError(f"mesh @{name} is not defined; the module has {known}", self.where)
            return self.meshes[name]
        self.take("<")
        axes, ids = [], None
        self.take("[")
        while not self.accept("]"):
            name = unquote(self.take()[1:-1])
            self.take("=")
            axes.append((name, int(self.take())))
            self.accept(",")
        if self.accept(","):
            self.take("device_ids")
            self.take("=")
            self.take("[")
            ids = []
            while not self.accept("]"):
                ids.append(int(self.take()))
                self.accept(",")
        self.take(">")
        return inlined_mesh(self.meshes, axes, ids)

    def axis(self, mesh: Mesh) -> AxisRef:
        full = mesh.axis(unquote(self.take()[1:-1]))
        if not self.accept(":"):
            return full
        self.take("(")
        pre = int(self.take())
        self.take(")")
        return AxisRef(full.name, pre, int(self.take()))

    def axes(self, mesh: Mesh) -> tuple[AxisRef, ...]:
        out = []
        self.take("{")
        while not self.accept("}"):
            out.append(self.axis(mesh))
            self.accept(",")
        return tuple(out)

    def dim(self, mesh: Mesh) -> DimSharding:
        axes, is_open = [], False
        self.take("{")
        while not self.accept("}"):
            if self.accept("?"):
                is_open = True
            else:
                axes.append(self.axis(mesh))
            self.accept(",")
        priority = None
        if self.at < len(self.tokens) and self.tokens[self.at][0] == "word" and re.fullmatch(r"p\d+", self.peek()):
            priority = int(self.take()[1:])
        return DimSharding(axes, is_open, priority)

    def body(self) -> TensorSharding:
        self.take("<")
        mesh = self.mesh()
        self.take(",")
        dims, lists = [], {"replicated": (), "unreduced": ()}
        self.take("[")
        while not self.accept("]"):
            dims.append(self.dim(mesh))
            self.accept(",")
        while self.accept(","):
            label = self.take()
            self.take("=")
            if self.peek() != "{":
                kind = self.take()
                if kind != "sum":
                    raise errors.UnsupportedModuleError(
                        f"unreduced axes of kind {kind!r} are not supported; only sums are", self.where
                    )
            lists[label] = self.axes(mesh)
        self.take(">")
        return TensorSharding(mesh, dims, lists["replicated"], lists["unreduced"])


def inlined_mesh(meshes: dict[str, Mesh], axes, ids) -> Mesh:
    """The mesh written inside an attribute: one of `meshes` if one is equal, else a new one, added to them."""
    wanted = Mesh("mesh", axes, ids)
    for mesh in meshes.values():
        if mesh.layout == wanted.layout:
            return mesh
    base = "mesh"
    if wanted.is_maximal:
        base = f"maximal_mesh_{wanted.device_ids[0]}"
    elif wanted.is_empty:
        base = "empty_mesh"
    name, count = base, 0
    while name in meshes:
        name, count = f"{base}_{count}", count + 1
    meshes[name] = Mesh(name, axes, ids)
    return meshes[name]


def parse_sharding(text: str, meshes: dict[str, Mesh], where: str | None = None) -> TensorSharding:
    """`#sdy.sharding<...>` as a `TensorSharding`. Raises `UnknownMeshError`, `UnknownAxisError`, `ModuleParseError`."""
    parser = _Parser(text, meshes, where)
    if parser.header() != "sharding":
        raise errors.ModuleParseError(f"{text!r} is not an #sdy.sharding", where)
    return parser.body()


def parse_shardings(text: str, meshes: dict[str, Mesh], where: str | None = None) -> tuple[TensorSharding, ...]:
    """`#sdy.sharding_per_value<[...]>` or a single `#sdy.sharding<...>` as a tuple."""
    parser = _Parser(text, meshes, where)
    if parser.header() == "sharding":
        return (parser.body(),)
    out = []
    parser.take("<")
    parser.take("[")
    while not parser.accept("]"):
        out.append(parser.body())
        parser.accept(",")
    return tuple(out)


class Shardings:
    """The sharding of each value (by index; None: none yet) and of each function result."""

    __slots__ = ("results", "table")

    def __init__(self, program: Program):
        self.table: list[TensorSharding | None] = [None] * len(program.values)
        self.results: dict[Func, list[TensorSharding | None]] = {}

    def get(self, value: Value) -> TensorSharding | None:
        return self.table[value.index] if value.index < len(self.table) else None

    def __getitem__(self, value: Value) -> TensorSharding | None:
        return self.get(value)

    def set(self, value: Value, sharding: TensorSharding | None) -> None:
        missing = value.index + 1 - len(self.table)
        if missing > 0:
            self.table.extend([None] * missing)
        self.table[value.index] = sharding

    def copy(self) -> Shardings:
        new = Shardings.__new__(Shardings)
        new.table = self.table[:]
        new.results = {f: list(r) for f, r in self.results.items()}
        return new


class _Annotations:
    """Decodes attributes, each distinct one once."""

    def __init__(self, program: Program):
        self.meshes = program.meshes
        self.cache: dict[ir.Attribute, tuple[TensorSharding, ...]] = {}

    def decode(self, attr: ir.Attribute, where=None) -> tuple[TensorSharding, ...]:
        found = self.cache.get(attr)
        if found is None:
            found = self.cache[attr] = parse_shardings(str(attr), self.meshes, where)
        return found


def read_shardings(program: Program) -> Shardings:
    """The shardings that the module carries. Those of manual and named computations' operands go to
    `op.data["in_shardings"]`, manual axes to `op.data["manual_axes"]`, group numbers to `op.data["group"]`.

    Raises the errors of `propagation.errors` for shardings that do not fit.
    """
    shardings = Shardings(program)
    annotations = _Annotations(program)
    for func in program.funcs.values():
        where = location_text(func.loc)
        for value, attrs in zip(func.args, func.arg_attrs):
            if "sdy.sharding" in attrs:
                shardings.table[value.index] = annotations.decode(attrs["sdy.sharding"], where)[0]
        shardings.results[func] = [
            annotations.decode(attrs["sdy.sharding"], where)[0] if "sdy.sharding" in attrs else None
            for attrs in func.result_attrs
        ]
    for op in program.ops():
        name = op.name
        if name in WITH_IN_SHARDINGS or name == "sdy.sharding_group":
            _read_special(op, annotations, shardings)
            continue
        key = OWN_ATTRIBUTE.get(name, "sdy.sharding")
        if not op.has_attr(key):
            continue
        values = annotations.decode(op._attrs[key] if op._attrs is not None else op._ir.attributes[key])
        for value, sharding in zip(op.results, values):
            shardings.table[value.index] = sharding
    return shardings


def _read_special(op: Op, annotations: _Annotations, shardings: Shardings) -> None:
    attrs = op.attrs
    op.data = {} if op.data is None else op.data
    if op.name == "sdy.sharding_group":
        op.data["group"] = ir.IntegerAttr(attrs["group_id"]).value
        return
    where = source(op)
    if "in_shardings" in attrs:
        op.data["in_shardings"] = list(annotations.decode(attrs["in_shardings"], where))
    else:
        op.data["in_shardings"] = [None] * len(op.operands)
    if "out_shardings" in attrs:
        for value, sharding in zip(op.results, annotations.decode(attrs["out_shardings"], where)):
            shardings.table[value.index] = sharding
    if op.name == "sdy.manual_computation":
        names = re.findall(r'"(?:[^"\\]|\\.)*"', str(attrs["manual_axes"]))
        op.data["manual_axes"] = tuple(unquote(n[1:-1]) for n in names)
    else:
        op.data["name"] = ir.StringAttr(attrs["name"]).value
