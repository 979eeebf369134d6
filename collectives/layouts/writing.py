"""Writing operations of the per-device program: what the context offers to rules for it.

Everything is written into `region`, with the location of `op`, the operation of the global program being partitioned.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jaxlib.mlir import ir

from propagation.attributes import symbol
from propagation.model import TensorSharding
from propagation.program import Block, Func, Op, Program, Value, source

from ..errors import UnsupportedOpError
from ..ir.attributes import NONE, Attributes
from ..ir.builder import REDUCERS, zero_literal
from ..ir.program import LocalValue, ModuleBuilder, Region
from ..layout import Atoms, Dims
from ..options import Options
from ..reshard.realise import Realiser
from ..topology import Topology
from .costs import Costs
from .given_attributes import GivenAttributes

__all__ = ["Writer"]


class Writer(Costs):
    """Writes copies of operations, and single operations, on one device's pieces."""

    def __init__(
        self, program: Program, sharding: Callable[[Value], TensorSharding | None], atoms: Atoms,
        builder: ModuleBuilder, topology: Topology, options: Options,
    ):  # fmt: skip
        super().__init__(program, sharding, atoms, topology, options)
        self.builder = builder
        self.realiser = Realiser(atoms, builder, topology.compiler)
        given = GivenAttributes()
        self.signature, self.attributes_of = given.signature, given.of
        self.attribute_of, self.text_of = given.one, given.text
        self._loc_of: Op | Func | None = None
        self._loc_alias: dict[Any, str] = {}
        self._loc = ""

    @abc.abstractmethod
    def keep_function(self, name: str) -> None:
        """Copies a function of scalars that an operation refers to by name."""

    @abc.abstractmethod
    def whole(self, value: Value) -> LocalValue:
        """`value` complete on every device."""

    # -- locations ----------------------------------------------------------------------------------------------

    @property
    def loc(self) -> str:
        """The location alias of the operation being partitioned."""
        if self._loc_of is not self.op:
            self._loc_of = self.op
            loc = self.op.loc
            self._loc = "" if loc is None else self._alias(loc)
        return self._loc

    def _alias(self, loc: ir.Location) -> str:
        """The alias of an MLIR location. Printing one costs much more than hashing its attribute, and lines repeat."""
        key = loc.attr
        alias = self._loc_alias.get(key)
        if alias is None:
            text = str(loc)
            alias = "" if text == "loc(unknown)" else self.builder.location(text[4:-1])
            self._loc_alias[key] = alias
        return alias

    # -- operations ---------------------------------------------------------------------------------------------

    def emit(
        self, name: str, operands: Sequence[LocalValue], shape: Sequence[int], dtype: str, attrs: Attributes = NONE,
        extra: Attributes = NONE, regions: Sequence[Region] = (),
    ) -> LocalValue:  # fmt: skip
        """Writes an operation with one result."""
        if not regions:
            return self.region.one(name, operands, tuple(shape), dtype, attrs, extra, self.loc)
        return self.region.op(name, operands, [(tuple(shape), dtype)], attrs, extra, regions, self.loc)[0]

    def local_copy(
        self, op: Op, operands: Sequence[LocalValue], shapes: Sequence[tuple[int, ...]],
        attrs: Attributes | None = None, effect: bool = False,
    ) -> list[LocalValue]:  # fmt: skip
        """Writes the same operation on local pieces, regions included, with results of given shapes. `attrs` replaces
        its attributes; an `effect` keeps it although nobody uses its results."""
        types = [(tuple(s), r.type.dtype) for s, r in zip(shapes, op.results)]
        attrs = self.attributes_of(op) if attrs is None else attrs
        regions = [self.copy_region(b) for b in op.regions] if op.regions else ()
        return self.region.op(op.name, operands, types, extra=attrs, regions=regions, loc=self.loc, effect=effect)

    def local_one(self, op: Op, operands: Sequence[LocalValue], shape: tuple[int, ...]) -> LocalValue:
        """`local_copy` of an operation that has one result."""
        if op.regions:
            return self.local_copy(op, operands, [shape])[0]
        dtype, attrs = op.results[0].type.dtype, self.attributes_of(op)
        return self.region.one(op.name, operands, shape, dtype, NONE, attrs, self.loc)

    def copy_region(self, block: Block) -> Region:
        """A copy of a region of scalars (of a reduction, sort, scatter, ...)."""
        body = Region("body", self.region, [(a.type.shape, a.type.dtype) for a in block.args])
        body.op(block.terminator.name, self.copy_ops(block, body, body.args), ())
        return body

    def copy_ops(self, block: Block, body: Region, args: Sequence[LocalValue]) -> list[LocalValue]:
        """Writes the operations of a region of scalars into `body`, on other arguments. Returns what the region
        returns."""
        names: dict[Value, LocalValue] = dict(zip(block.args, args))
        for op in block.ops[:-1]:
            if op.name == "func.call":
                self.keep_function(symbol(op.attrs["callee"]))
            operands = [names[v] if v in names else self._captured(v) for v in op.operands]
            types = [(r.type.shape, r.type.dtype) for r in op.results]
            nested = [self.copy_region(b) for b in op.regions] if op.regions else ()
            name = "stablehlo.constant" if op.name == "sdy.constant" else op.name
            names.update(zip(op.results, body.op(name, operands, types, extra=self.attributes_of(op), regions=nested)))
        return [names[v] if v in names else self._captured(v) for v in block.terminator.operands]

    def _captured(self, value: Value) -> LocalValue:
        """A scalar that a region uses from outside."""
        if value.type.shape:
            raise UnsupportedOpError("a reduction body uses a tensor defined outside of it", source(self.op))
        return self.whole(value)

    def combine(self, kind: str, a: LocalValue, b: LocalValue) -> LocalValue:
        """`a` and `b` combined by the operation of a reduction ("add", "max", ...)."""
        return self.region.op(REDUCERS[kind], (a, b), [(a.shape, a.dtype)], loc=self.loc)[0]

    # -- padding ------------------------------------------------------------------------------------------------

    def masked(
        self, ref: LocalValue, shape: Sequence[int], dims: Dims, which: Iterable[int], fill: str | None = None
    ) -> LocalValue:
        """The piece `ref` of a tensor of global `shape`, laid out as `dims`, with its padding along the dimensions
        `which` (where their size does not divide) set to the literal `fill` (zero if None)."""
        literal = zero_literal(ref.dtype) if fill is None else fill
        return self.masked_with(ref, shape, dims, which, None, literal)

    def masked_with(
        self, ref: LocalValue, shape: Sequence[int], dims: Dims, which: Iterable[int], fill: LocalValue | None,
        literal: str = "",
    ) -> LocalValue:  # fmt: skip
        """`masked` with the scalar `fill`; with the constant `literal` if that is None."""
        for d in which:
            inside = self.realiser.inside(self.region, ref.shape, d, dims[d], shape[d]) if dims[d] else None
            if inside is not None:
                number = self.realiser.constant(self.region, (), ref.dtype, literal) if fill is None else fill
                other = self.realiser.splat(self.region, number, ref.shape)
                ref = self.emit("stablehlo.select", (inside, ref, other), ref.shape, ref.dtype)
        return ref
