"""A module as plain Python objects: types, values, operations, blocks, functions, the program.

`propagation.program` reads these from MLIR, and offers all their names; import them from there.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from jaxlib.mlir import ir

from . import errors
from .model import Mesh

__all__ = ["Block", "Func", "Op", "OtherType", "Program", "TensorType", "Use", "Value"]


class TensorType:
    """A ranked tensor type. `shape` holds -1 for a dynamic dimension; `dtype` is MLIR's element text (`f32`, `i1`,
    `complex<f32>`, ...). Equal types read by this module are the same object."""

    __slots__ = ("dtype", "is_static", "shape", "size", "text")
    is_tensor = True
    _table: ClassVar[dict[Any, TensorType]] = {}
    dtype: str
    is_static: bool
    shape: tuple[int, ...]
    size: int
    text: str

    def __new__(cls, shape: Sequence[int], dtype: str, text: str | None = None) -> TensorType:
        key = (tuple(shape), dtype, text)
        self = cls._table.get(key)
        if self is None:
            self = object.__new__(cls)
            self.shape = key[0]
            self.dtype = dtype
            self.is_static = all(n >= 0 for n in key[0])
            self.size = math.prod(key[0]) if self.is_static else -1
            dims = "".join(f"{'?' if n < 0 else n}x" for n in key[0])
            self.text = text or f"tensor<{dims}{dtype}>"
            self = cls._table.setdefault(key, self)
        return self

    @property
    def rank(self) -> int:
        """How many dimensions there are."""
        return len(self.shape)

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorType, (self.shape, self.dtype)

    def __repr__(self) -> str:
        return self.text


class OtherType:
    """A type that is not a ranked tensor (token, tuple, ...). It has no shape to shard: `shape` is empty."""

    __slots__ = ("text",)
    text: str
    is_tensor = False
    is_static = False
    shape: tuple[int, ...] = ()
    rank = 0
    size = 0
    dtype = ""

    def __init__(self, text: str):
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OtherType) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return self.text


class Use(NamedTuple):
    """Operand `number` of `op`."""

    op: Op
    number: int


class Value:
    """An SSA value: result `number` of the `Op` `owner`, or argument `number` of the `Block` `owner`.

    `uses` is in the order the uses were created (MLIR's use list from its back).
    """

    __slots__ = ("index", "number", "owner", "type", "uses")
    index: int
    number: int
    owner: Op | Block
    type: TensorType | OtherType
    uses: list[Use]

    def __init__(self, index: int, type: TensorType | OtherType, owner: Op | Block, number: int):
        self.index = index
        self.type = type
        self.owner = owner
        self.number = number
        self.uses = []

    @property
    def is_argument(self) -> bool:
        """Whether it is an argument of a block, and no operation's result."""
        return isinstance(self.owner, Block)

    @property
    def op(self) -> Op | None:
        """The defining operation; None for a block argument."""
        return None if isinstance(self.owner, Block) else self.owner

    @property
    def argument_of(self) -> Op | Func | None:
        """The operation or function of whose block this is an argument; None for a result."""
        return self.owner.owner if isinstance(self.owner, Block) else None

    def drop_use(self, op: Op, number: int) -> None:
        """Forgets that operand `number` of `op` is this value. Uses go in the order of the program or against it, so
        the newest few are looked at first, then all from the oldest on."""
        uses = self.uses
        for i in range(len(uses) - 1, max(len(uses) - 5, -1), -1):
            if uses[i].op is op and uses[i].number == number:
                del uses[i]
                return
        uses.remove(Use(op, number))

    def __repr__(self) -> str:
        what = "argument" if isinstance(self.owner, Block) else f"result of {self.owner.name}"
        return f"<%{self.index} {self.type.text}, {what} {self.number}>"


class Op:
    """An operation. `attrs` maps names to `ir.Attribute`. `data` holds decoded or derived facts of passes
    (`in_shardings`, `manual_axes`, `sharding_rule`, ...), None until one is stored. `operands` is a tuple until one is
    replaced: tuples take half the memory of lists, and few operations ever change. `place` is its number in a pass that
    numbers operations."""

    __slots__ = ("_attrs", "_ir", "data", "name", "operands", "parent", "place", "regions", "results")
    name: str
    operands: Sequence[Value]
    results: Sequence[Value]
    regions: Sequence[Block]
    parent: Block | None
    data: Any  # a dictionary, or None
    place: int
    _ir: Any  # an `ir.Operation`, what `propagation.written` has in its place, or None
    _attrs: dict[str, ir.Attribute] | None

    def __init__(
        self,
        name: str,
        operands: Sequence[Value],
        regions: Sequence[Block],
        ir_op: Any = None,
        attrs: dict[str, ir.Attribute] | None = None,
    ):
        self.name = name
        self.operands = operands
        self.results = ()
        self.regions = regions
        self.parent = None
        self.data = None
        self.place = -1
        self._ir = ir_op
        self._attrs = attrs

    def link(self, block: Block | None) -> None:
        """Notes the block that it is in, and with its operands and regions that they are its own; once, when made."""
        self.parent = block
        for region in self.regions:
            region.owner = self
        for i, v in enumerate(self.operands):
            v.uses.append(Use(self, i))

    @property
    def attrs(self) -> dict[str, ir.Attribute]:
        """All attributes, inherent and discardable, by name."""
        attrs = self._attrs
        if attrs is None:
            items = self._ir.attributes
            attrs = self._attrs = dict(attribute_items(items)) if len(items) else {}
        return attrs

    def attr(self, name: str) -> ir.Attribute | None:
        """One attribute, without fetching the others; None if there is none of this name."""
        if self._attrs is not None:
            return self._attrs.get(name)
        attributes = self._ir.attributes
        return _attribute(attributes, name) if name in attributes else None

    def has_attr(self, name: str) -> bool:
        """Whether there is an attribute `name`, without fetching the others."""
        if self._attrs is not None:
            return name in self._attrs
        return self._ir is not None and name in self._ir.attributes

    @property
    def result(self) -> Value:
        """The result of an operation that has one. ValueError of any other."""
        if len(self.results) != 1:
            raise ValueError(f"{self!r} has {len(self.results)} results, not one")
        return self.results[0]

    @property
    def loc(self) -> ir.Location | None:
        """The MLIR location; a synthetic operation has that of the operation it was made from."""
        return None if self._ir is None else self._ir.location

    @property
    def block(self) -> Block:
        """The block it is in, of an operation that is in one."""
        assert self.parent is not None
        return self.parent

    @property
    def parent_op(self) -> Op | Func | None:
        """The operation or function in whose region it is; None of one that is in no block."""
        return None if self.parent is None else self.parent.owner

    def set_operand(self, number: int, value: Value) -> None:
        """Replaces one operand; the use becomes the newest of `value`."""
        self.operands[number].drop_use(self, number)
        self.replace_operand(number, value)
        value.uses.append(Use(self, number))

    def replace_operand(self, number: int, value: Value) -> None:
        """Replaces one operand and leaves the uses to the caller."""
        operands = self.operands
        if not isinstance(operands, list):
            operands = self.operands = list(operands)
        operands[number] = value

    def add_operand(self, value: Value) -> None:
        """Appends an operand; the use becomes the newest of `value`."""
        value.uses.append(Use(self, len(self.operands)))
        self.operands = (*self.operands, value)

    def walk(self) -> list[Op]:
        """This operation, then those in its regions, in program order."""
        out = [self]
        for block in self.regions:
            _collect(block, out)
        return out

    def __repr__(self) -> str:
        ins = ", ".join(f"%{v.index}" for v in self.operands)
        outs = ", ".join(f"%{v.index}: {v.type.text}" for v in self.results)
        return f"<{self.name}({ins}) -> ({outs})>"


@dataclass(frozen=True, slots=True)
class TextAttribute:
    """An attribute for which the bindings have no class (dense complex elements): its text."""

    text: str

    def __str__(self) -> str:
        return self.text


def attribute_items(attributes: Any) -> Iterable[tuple[str, Any]]:
    """The names and values of an operation's attributes."""
    try:
        items: Iterable[tuple[str, Any]] = attributes.items()
        return items
    except TypeError:
        return [(name, _attribute(attributes, name)) for name in attributes]


def _attribute(attributes: Any, name: str) -> Any:
    try:
        return attributes[name]
    except TypeError:
        return _text_of(attributes[list(attributes).index(name)])


def attribute_of(attributes: Any, named: Any) -> Any:
    """The value of one of the named attributes in MLIR's dictionary of them."""
    try:
        return attributes[named.name]
    except TypeError:
        return _text_of(named)


def _text_of(named: Any) -> TextAttribute:
    # Asking the named attribute for its value would end the process; its description holds the text.
    return TextAttribute(repr(named).removeprefix(f"NamedAttribute({named.name}=").removesuffix(")"))


class Block:
    """The single block of a region or function."""

    __slots__ = ("args", "ops", "owner")
    args: list[Value]
    ops: list[Op]
    owner: Op | Func | None

    def __init__(self, owner: Op | Func | None = None):
        self.args = []
        self.ops = []
        self.owner = owner

    @property
    def terminator(self) -> Op:
        """The last operation."""
        return self.ops[-1]

    def walk(self) -> list[Op]:
        """All operations, in program order, each before those in its regions."""
        out: list[Op] = []
        _collect(self, out)
        return out

    def walk_inside_out(self) -> list[Op]:
        """All operations, in program order, each behind those in its regions."""
        out: list[Op] = []
        _collect_inside_out(self, out)
        return out


_REGIONS = operator.attrgetter("regions")


def _collect(block: Block, out: list[Op]) -> None:
    ops, done = block.ops, 0
    for end in itertools.compress(itertools.count(1), map(_REGIONS, ops)):  # few have any; the others are added at once
        out += ops[done:end]
        done = end
        for inner in ops[end - 1].regions:
            _collect(inner, out)
    out += ops[done:] if done else ops


def _collect_inside_out(block: Block, out: list[Op]) -> None:
    for op in block.ops:
        for inner in op.regions:
            _collect_inside_out(inner, out)
        out.append(op)


class Func:
    """A `func.func`. `arg_attrs` and `result_attrs` hold one attribute dictionary per argument and result. `caller` is
    the first call of it, where it is known."""

    __slots__ = ("_ir", "arg_attrs", "attrs", "body", "caller", "name", "result_attrs", "result_types", "visibility")
    name: str
    visibility: str
    body: Block
    result_types: list[TensorType | OtherType]
    attrs: dict[str, ir.Attribute]
    arg_attrs: list[dict[str, ir.Attribute]]
    result_attrs: list[dict[str, ir.Attribute]]
    caller: Op | None
    _ir: Any  # as that of an `Op`

    def __init__(self, name: str, visibility: str, body: Block, result_types: list[TensorType | OtherType]):
        self.name = name
        self.visibility = visibility
        self.body = body
        self.result_types = result_types
        self.attrs = {}
        self.arg_attrs = []
        self.result_attrs = []
        self._ir = None
        self.caller = None
        body.owner = self

    @property
    def args(self) -> list[Value]:
        """The values that the function is called with."""
        return self.body.args

    @property
    def returned(self) -> Sequence[Value]:
        """The values the function returns."""
        return self.body.terminator.operands

    @property
    def loc(self) -> ir.Location | None:
        return None if self._ir is None else self._ir.location

    def __repr__(self) -> str:
        return f"<func @{self.name}, {len(self.args)} arguments, {len(self.body.ops)} operations>"


@dataclass(slots=True, eq=False)
class Program:
    """A module. `values` lists every value by its index, `funcs` is in module order, `names` has the name of every
    operation that is or was in it (so that a pass can see that it has nothing to do). `read` gives the `ir.Module` from
    which it was made; `context` is the MLIR context of its attributes."""

    context: ir.Context
    read: Callable[[], ir.Module]
    attrs: dict[str, ir.Attribute]
    meshes: dict[str, Mesh]
    mesh_attrs: dict[str, dict[str, ir.Attribute]]
    funcs: dict[str, Func]
    values: list[Value]
    names: set[str]

    @property
    def main(self) -> Func:
        """The only function, else `@main`, else the only public one. Raises `UnsupportedModuleError`."""
        if len(self.funcs) == 1:
            return next(iter(self.funcs.values()))
        if "main" in self.funcs:
            return self.funcs["main"]
        public = [f for f in self.funcs.values() if f.visibility == "public"]
        if len(public) == 1:
            return public[0]
        raise errors.UnsupportedModuleError(
            f"the module has {len(self.funcs)} functions and none is @main; name the entry function main"
        )

    @property
    def module(self) -> ir.Module:
        """The module as it was read."""
        return self.read()

    @property
    def name(self) -> str | None:
        """The module's name, if it has one."""
        name = self.attrs.get("sym_name")
        return None if name is None else ir.StringAttr(name).value

    def new_value(self, type: TensorType | OtherType, owner: Op | Block, number: int) -> Value:
        value = Value(len(self.values), type, owner, number)
        self.values.append(value)
        return value

    def new_op(
        self,
        name: str,
        operands: Iterable[Value],
        result_types: Iterable[TensorType | OtherType],
        attrs: Mapping[str, ir.Attribute] | None = None,
        regions: Iterable[Block] = (),
        like: Op | None = None,
    ) -> Op:
        """A new operation, not yet in a block. `like` lends its source location."""
        self.names.add(name)
        op = Op(name, tuple(operands), list(regions), like._ir if like is not None else None, dict(attrs or {}))
        op.link(None)
        op.results = tuple([self.new_value(t, op, i) for i, t in enumerate(result_types)])
        return op

    def clone(self, op: Op, mapping: dict[Value, Value], like: Op | None = None) -> Op:
        """A copy of `op` (regions included), with operands replaced through `mapping`; results are added to it. It has
        the location of `like` (default: its own, which lives as long as the module it was read from)."""
        operands = [mapping.get(v, v) for v in op.operands]
        new = self.new_op(op.name, operands, [v.type for v in op.results], op.attrs, (), op if like is None else like)
        # Lists of shardings are changed in place; the copy has its own.
        new.data = None if op.data is None else {k: v[:] if type(v) is list else v for k, v in op.data.items()}
        mapping.update(zip(op.results, new.results))
        for block in op.regions:
            new.regions = [*new.regions, self.clone_block(block, mapping, new, like)]
        return new

    def clone_block(
        self, block: Block, mapping: dict[Value, Value], owner: Op | Func | None, like: Op | None = None
    ) -> Block:
        copy = Block(owner)
        copy.args = [self.new_value(a.type, copy, i) for i, a in enumerate(block.args)]
        mapping.update(zip(block.args, copy.args))
        for op in block.ops:
            inner = self.clone(op, mapping, like)
            inner.parent = copy
            copy.ops.append(inner)
        return copy

    def ops(self) -> list[Op]:
        """All operations in program order, an operation before those in its regions."""
        out: list[Op] = []
        for func in self.funcs.values():
            _collect(func.body, out)
        return out

    def __repr__(self) -> str:
        count = len(self.ops())
        return f"<program of {len(self.funcs)} functions, {count} operations, meshes {', '.join(self.meshes) or '-'}>"
