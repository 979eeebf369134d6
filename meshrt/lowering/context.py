"""Walks a Jaxpr and asks every primitive to write itself.

A lowering rule is `lower(ctx, eqn, *operands) -> Ref` (a sequence of Refs for primitives with several results).
`ctx.op` writes an operation at the user's source line of the current equation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.dimensions.expression import DimExpr
from meshrt.core.jaxpr import Eqn, Jaxpr, Literal, Var
from meshrt.core.source import UNKNOWN, Source, path_of
from meshrt.core.types import ShapedArray
from meshrt.lowering.explicit_constraints import CONSTANTS, pinned
from meshrt.lowering.frontend_attributes import NOT_INLINED, with_marks
from meshrt.lowering.groups import CHANNEL, IndexGroups, device_groups
from meshrt.lowering.nesting import is_deep
from meshrt.lowering.processors import say_who_computes
from meshrt.lowering.sizes import PLATFORM_INDEX
from meshrt.lowering.types import dense, mlir_type, splat
from meshrt.sharding.mesh import AbstractMesh, AxisType
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.sdy import mesh_to_sdy_text, pinned_text, to_sdy_text
from propagation.asm import Body, ModuleWriter, Ref, i64_array
from propagation.quoting import quote
from propagation.sdy_text import dim_text, mesh_text, sharding_text

__all__ = ["PLATFORMS", "LoweringContext", "ModuleLowering"]

# The parameter of a `cond` whose index is a `platform_index`: per branch the names of its platforms, None for others.
PLATFORMS = "platforms"
_NOT_IN_SYMBOLS = re.compile(r"[^A-Za-z0-9_.$]")


def _call_stack(where: Source) -> str:
    """The inside of a location: the line, and those that called it where they are known."""
    line = f"{quote(where.file)}:{max(where.line, 1)}:1"
    if not where.callers:
        return line
    caller, *others = where.callers
    return f"callsite({line} at {_call_stack(caller._replace(callers=tuple(others)))})"


class ModuleLowering:
    """What all functions of a module share: the writer, outlined functions, source locations, the target platform.

    `mesh` is the mesh of the program, None where no value has a sharding; `meshes` maps each AbstractMesh to its
    `sdy.mesh` symbol; `is_export` asks for the forms that older consumers understand. `customs` holds, by their keys in
    the text, what is to be known of operations that their users partition; `callbacks` are what the program calls back,
    by index (see `meshrt.primitives.callback`), `callers` where devices that are named for it stand among the
    program's, `inspections` the values that somebody asks the sharding of.
    """

    def __init__(self, name: str, platforms: Sequence[str] = ("cpu",), is_export: bool = False):
        self.writer = ModuleWriter(name)
        self._platforms = tuple(platforms)
        self._asked = False  # whether somebody wanted to know the platform
        self.is_export = is_export
        self.mesh: AbstractMesh | None = None
        self.meshes: dict[AbstractMesh, str] = {}
        self.is_bare_open = False
        self.customs: dict[str, Any] = {}
        # Whether some value of the program lies beside the devices' own memory.
        self.uses_memories = False
        self._groups = 0
        self._functions: dict[Any, str] = {}
        self.heights: dict[Jaxpr, int] = {}  # see `meshrt.lowering.nesting`
        # What exported functions became, by these and the types that they are called with (`meshrt.export`).
        self.embedded: dict[Any, Any] = {}
        # Whether one of them has symbolic sizes or several platforms.
        self.has_global_constants = False
        self._pins: dict[tuple[Any, ...], str] = {}
        self.callbacks: list[Any] = []
        self.inspections: list[Any] = []
        self.callers: Mapping[Any, int] = {}
        # Lowering rules in place of those that primitives have.
        self.overrides: Mapping[Any, Callable[..., Any]] = {}
        self._maximal: dict[int, str] = {}
        self._names: dict[str, int] = {}
        self._locations: dict[tuple[Source, str, str], str] = {}

    @property
    def platform(self) -> str:
        """The platform that is written for; of several, the one that the rule being run writes for."""
        self._asked = True
        return self._platforms[0]

    @property
    def platforms(self) -> tuple[str, ...]:
        """All platforms that what is being written has to run on."""
        return self._platforms

    @contextmanager
    def writing_for(self, *platforms: str) -> Iterator[None]:
        """Writes for these platforms for a while."""
        previous, self._platforms = self._platforms, platforms
        try:
            yield
        finally:
            self._platforms = previous

    def asks_for_platform(self, write: Callable[[], Any]) -> tuple[Any, bool]:
        """What `write` gives, and whether it wanted to know the platform."""
        previous, self._asked = self._asked, False
        try:
            return write(), self._asked
        finally:
            self._asked = previous

    def unique_name(self, base: str) -> str:
        """A fresh symbol like `base` (`<lambda>` becomes `_lambda_`)."""
        base = _NOT_IN_SYMBOLS.sub("_", base)
        count = self._names.get(base, -1) + 1
        self._names[base] = count
        return base if count == 0 else f"{base}_{count}"

    @property
    def places_values(self) -> bool:
        """Whether a value's move to another memory is to be written for the compiler.

        CPUs compute with all of their memory. In programs that use only the devices' own, nothing moves.
        """
        return self.uses_memories and self.platform != "cpu"

    def fresh_group(self) -> int:
        """A number for a sharding group that the module does not have yet."""
        self._groups += 1
        return self._groups - 1

    def note_custom(self, name: str, what: Any) -> str:
        """Notes what is to be known of an operation of the user's; the key under which it is found."""
        key = f"{len(self.customs)}:{name}"
        self.customs[key] = what
        return key

    def location(self, where: Source | None, primitive: str, path: str = "", is_call: bool = False) -> str:
        if where is None or where.code is None:
            return ""
        key = (where, primitive, path)
        alias = self._locations.get(key)
        if alias is None:
            name = path_of(path, where.scope, primitive, is_call)
            text = f"{quote(name)}({_call_stack(where)})"
            alias = self._locations[key] = self.writer.location(text)
        return alias

    def sharding_text(self, sharding: NamedSharding, ndim: int, is_open: bool = False) -> str:
        """The attribute for a value of `ndim` dimensions, over the mesh of the module if it has one."""
        mesh = self.mesh or sharding.mesh.abstract_mesh
        # Types of axes are no matter of layout.
        other = mesh if mesh.shape_tuple != sharding.mesh.shape_tuple else None
        return to_sdy_text(sharding, ndim, self.mesh_symbol(mesh), is_open, other)

    def pin_text(self, aval: ShapedArray, region: AbstractMesh) -> str:
        """`<@mesh, [{"x"}, {}]>`: what a type says of Explicit axes, in a region whose axes have these types.

        Explicit axes that do not split the value are replicated; where some axes are Auto the dimensions are open, and
        so they are for values without axes where those may lie on a mesh of Auto axes (`is_bare_open`).
        """
        key = (aval.explicit, aval.physical().ndim, region)
        text = self._pins.get(key)
        if text is None:
            mesh = self.mesh or region
            symbol = self.mesh_symbol(mesh)
            if self.is_bare_open and aval.explicit is None:
                text = sharding_text(symbol, [dim_text((), is_open=True)] * key[1])
            else:
                text = pinned_text(aval, region, symbol, mesh)
            self._pins[key] = text
        return text

    def mesh_symbol(self, mesh: AbstractMesh) -> str:
        """The `sdy.mesh` symbol of an AbstractMesh, declared on first use."""
        symbol = self.meshes.get(mesh)
        if symbol is None:
            symbol = self.meshes[mesh] = "mesh" if not self.meshes else f"mesh_{len(self.meshes)}"
            self.writer.preamble.append(f"sdy.mesh @{symbol} = {mesh_to_sdy_text(mesh)}")
        return symbol

    def on_one_device(self, place: int) -> str:
        """The sharding of a value that stands on one device of the program alone: over a mesh of its own, declared on
        first use."""
        if place not in self._maximal:
            self._maximal[place] = f"maximal_mesh_{place}"
            self.writer.preamble.append(f"sdy.mesh @{self._maximal[place]} = {mesh_text((), (place,))}")
        return sharding_text(self._maximal[place], ())

    def outlined(self, jaxpr: Jaxpr, name: str, manual: AbstractMesh | None = None) -> str:
        """The symbol of a private function for `jaxpr`: one per Jaxpr object, manual region around its calls, and
        platforms."""
        key = (jaxpr, manual, self._platforms)
        symbol = self._functions.get(key)
        if symbol is None:
            symbol = self._functions[key] = self.unique_name(name)
            function = self.writer.function(symbol, [mlir_type(v.aval) for v in jaxpr.invars])
            ctx = LoweringContext(self, function, manual=manual)
            region = ctx.pinned_region()
            if region is not None:
                function.arg_attrs = [
                    f"sdy.sharding = #sdy.sharding{self.pin_text(v.aval, region)}" for v in jaxpr.invars
                ]
            function.ret(ctx.jaxpr(jaxpr, function.args))
        return symbol


class LoweringContext:
    """Where a lowering rule writes: a body of a function, at the source line of the equation being lowered.

    `manual` is the mesh of the manual region (`shard_map`) that the body stands in, with the axis types of its inside:
    axes of all enclosing regions are Manual. None outside of such regions. `path` are the names of equations around, in
    whose Jaxprs the ones being lowered stand.
    """

    __slots__ = ("_constants", "_eqn", "at", "body", "loc", "manual", "module", "path")

    def __init__(
        self, module: ModuleLowering, body: Body, loc: str = "", manual: AbstractMesh | None = None, path: str = ""
    ):
        self.module, self.body, self.loc, self.manual, self.path = module, body, loc, manual, path
        self.at: Source | None = None  # see `jaxpr`
        self._eqn: Eqn | None = None
        self._constants: dict[Any, Ref] = {}

    # -- writing -----------------------------------------------------------------------------------------------------

    def op(
        self,
        name: str,
        operands: Sequence[Ref],
        out: ShapedArray | str,
        attrs: str = "",
        regions: Sequence[Body] = (),
        discardable: str = "",
    ) -> Ref:
        """Writes an operation with one result of type `out`; see `propagation.asm.Body.ops`."""
        kind = out if isinstance(out, str) else (out.mlir or mlir_type(out))
        return self.body.ops(name, operands, (kind,), attrs, regions, self.loc, discardable)[0]

    def ops(
        self,
        name: str,
        operands: Sequence[Ref],
        outs: Sequence[ShapedArray | str],
        attrs: str = "",
        regions: Sequence[Body] = (),
        discardable: str = "",
    ) -> tuple[Ref, ...]:
        """Writes an operation with any number of results."""
        kinds = [o if isinstance(o, str) else mlir_type(o) for o in outs]
        return self.body.ops(name, operands, kinds, attrs, regions, self.loc, discardable)

    def scalar(self, value: Any, dtype: Any) -> Ref:
        """A rank-0 constant."""
        return self.full(value, ShapedArray((), dtype))

    def size(self, value: Any, dtype: Any) -> Ref:
        """A number that may be the symbolic size of a dimension, as a rank-0 value."""
        if isinstance(value, DimExpr):
            return self.op("meshrt.size", (), ShapedArray((), dtype), f'size = "{value}"')
        return self.scalar(value, dtype)

    def sizes(self, values: Sequence[Any], dtype: Any) -> Ref:
        """Numbers, symbolic sizes among them, as a vector."""
        if any(isinstance(v, DimExpr) for v in values):
            text = ", ".join(map(str, values))
            return self.op("meshrt.size", (), ShapedArray((len(values),), dtype), f'size = "{text}"')
        return self.array(np.asarray(values, dtype))

    def full(self, value: Any, aval: ShapedArray) -> Ref:
        """A constant of type `aval` with all elements equal to `value` (shared within the body)."""
        attr = splat(value, aval.physical())
        ref = self._constants.get(attr)
        if ref is None:
            ref = self._constants[attr] = self.body.op(
                "stablehlo.constant", (), [mlir_type(aval)], f"value = {attr}", (), self.loc
            )
        return ref

    def array(self, value: np.ndarray) -> Ref:
        """A constant array."""
        aval = ShapedArray(value.shape, value.dtype)
        return self.body.op("stablehlo.constant", (), [mlir_type(aval)], f"value = {dense(value)}", (), self.loc)

    def broadcast(
        self, ref: Ref, aval_in: ShapedArray, aval_out: ShapedArray, dims: Sequence[int] | None = None
    ) -> Ref:
        """`broadcast_in_dim`; `dims` default to the trailing ones. The identity when the shapes are equal."""
        if aval_in.shape == aval_out.shape:
            return ref
        if dims is None:
            dims = range(aval_out.ndim - aval_in.ndim, aval_out.ndim)
        return self.op(
            "stablehlo.broadcast_in_dim",
            [ref],
            aval_out,
            f"broadcast_dimensions = {i64_array(dims)}",
        )

    def convert(self, ref: Ref, aval_in: ShapedArray, dtype: Any) -> Ref:
        if aval_in.dtype == dtype:
            return ref
        return self.op("stablehlo.convert", [ref], ShapedArray(aval_in.shape, dtype))

    # -- collectives of manual regions -----------------------------------------------------------------------------

    def groups(self, names: Sequence[Hashable], within: IndexGroups | None = None) -> np.ndarray:
        """The devices that talk to each other, by rows: see `meshrt.lowering.groups`."""
        return device_groups(self.region_mesh(names), tuple(names), within)

    def region_mesh(self, names: Sequence[Hashable]) -> AbstractMesh:
        """The mesh of the manual region around, of which `names` are to be Manual axes."""
        mesh = self.manual
        if mesh is None or not set(names).issubset(mesh.manual_axes):
            raise errors.InternalError(f"a collective over {tuple(names)} reached lowering outside of a manual region")
        return mesh

    def collective(
        self, name: str, x: Ref, out: ShapedArray, groups: np.ndarray, attrs: str = "", region: str = ""
    ) -> Ref:
        """Writes a collective among `groups`. `region`: the scalar operation with which it combines what arrives."""
        regions = [self.scalar_region(region, out.physical().dtype)] if region else []
        text = ", ".join(filter(None, (attrs, f"replica_groups = {dense(groups)}", CHANNEL)))
        return self.op(name, [x], out, text, regions)

    def all_reduce(
        self, op: str, x: Ref, out: ShapedArray, names: Sequence[Hashable], within: IndexGroups | None = None
    ) -> Ref:
        """The combination by the scalar operation `op` of the values along the named axes."""
        groups = self.groups(names, within)
        if groups.shape[1] == 1:
            return x
        return self.collective("stablehlo.all_reduce", x, out, groups, "use_global_device_ids", op)

    @property
    def source(self) -> Source:
        """Where the equation stands that is being lowered."""
        return UNKNOWN if self._eqn is None else self._eqn.source

    # -- nested programs -----------------------------------------------------------------------------------------------

    def nested(self, body: Body, part: str = "") -> LoweringContext:
        """A context that writes into a nested body: a part of the equation being lowered, which may have a name."""
        inner = LoweringContext(self.module, body, self.loc, self.manual, self._inside(part))
        inner.at = self.at
        return inner

    def _inside(self, part: str = "") -> str:
        """The path of what stands in a part of the equation being lowered."""
        eqn = self._eqn
        if eqn is None:
            return self.path
        return path_of(path_of(self.path, eqn.source.scope, eqn.primitive.scope), part, "")

    def region(self, jaxpr: Jaxpr, arg_types: Sequence[str] | None = None) -> Body:
        """A region that computes `jaxpr` of its block arguments and returns its results."""
        body = self.body.body(arg_types if arg_types is not None else [mlir_type(v.aval) for v in jaxpr.invars])
        ctx = self.nested(body)
        body.ret(ctx.jaxpr(jaxpr, body.args), loc=self.loc)
        return body

    def scalar_region(self, name: str, dtype: Any) -> Body:
        """A region applying one binary scalar operation, as `reduce` and `all_reduce` want it."""
        kind = mlir_type(ShapedArray((), dtype))
        body = self.body.body([kind, kind])
        body.ret([body.op(name, body.args, [kind])])
        return body

    def call(self, jaxpr: Jaxpr, operands: Sequence[Ref], name: str, apart: bool = False) -> tuple[Ref, ...]:
        """Calls an outlined function for `jaxpr`; `apart`, it stays one when XLA compiles the program."""
        if not apart and is_deep(jaxpr, self.module.heights):
            return tuple(self.jaxpr(jaxpr, operands, name))
        symbol = self.module.outlined(jaxpr, name, self.manual)
        outs = [mlir_type(v.aval) for v in jaxpr.outvars]
        marks = NOT_INLINED if apart else ""
        if self._eqn is not None:
            eqn = self._eqn
            self.loc = self.module.location(eqn.source, f"{eqn.primitive.name}({name})", self.path, is_call=True)
        return self.body.ops("func.call", operands, outs, f"callee = @{symbol}", (), self.loc, marks)

    def jaxpr(self, jaxpr: Jaxpr, args: Sequence[Ref], part: str = "", at: Source | None = None) -> list[Ref]:
        """Writes every equation of a Jaxpr without constvars, which may have a name as a `part` of the equation being
        lowered; returns its results. All are said to stand `at` a line, if one is given: a library's function is staged
        once, where it is called first, and called from several."""
        if jaxpr.constvars:
            raise errors.InternalError("a Jaxpr with captured constants reached lowering; hoist them first")
        env: dict[Var, Ref] = dict(zip(jaxpr.invars, args))
        location = self.module.location
        saved = self.loc, self.path, self._eqn, self.at
        self.at = at = self.at or at
        self.path = path = self._inside(part)
        items, region = self.body.items, self.pinned_region()
        several, overrides = len(self.module.platforms) > 1, self.module.overrides
        for eqn in jaxpr.eqns:
            primitive = eqn.primitive
            rule = overrides.get(primitive, primitive.lower) if overrides else primitive.lower
            if rule is None:
                alone = "" if primitive.impl else f" Evaluation rule for {primitive.name!r} not implemented."
                raise errors.UnsupportedError(
                    f"MLIR translation rule for primitive {primitive.name!r} not found for platform "
                    f"{self.module.platforms[0]} (used at {eqn.source}): give it one by "
                    f"meshrt.interpreters.mlir.register_lowering.{alone}"
                )
            here = eqn.source if at is None else eqn.source._replace(code=at.code, lasti=at.lasti, callers=at.callers)
            self._eqn, self.loc = eqn, location(here, primitive.name, path)
            if primitive.literals and rule is primitive.lower:
                operands = [a if type(a) is Literal else env[a] for a in eqn.invars]
            else:
                operands = [self.literal(a) if type(a) is Literal else env[a] for a in eqn.invars]
            start = len(items)
            if several:
                out = self._per_platform(rule, eqn, operands)
            elif eqn.source.compute:
                out = self._computed_elsewhere(rule, eqn, operands, eqn.source.compute)
            else:
                out = rule(self, eqn, *operands)
            if eqn.source.marks:
                self.mark(eqn.source.marks, start)
            if primitive.multiple_results:
                if region is not None:
                    out = pinned(self, eqn, out, start, region)
                env.update(zip(eqn.outvars, out))
            else:
                if region is not None:
                    (out,) = pinned(self, eqn, (out,), start, region)
                env[eqn.outvars[0]] = out
        self.loc, self.path, self._eqn, self.at = saved
        return [self.literal(a) if type(a) is Literal else env[a] for a in jaxpr.outvars]

    def mark(self, marks: Sequence[tuple[str, str]], start: int, end: int | None = None) -> None:
        """Writes names and values, which compilers read, onto the operations from `start` on."""
        items = self.body.items
        for i in range(start, len(items) if end is None else end):
            *before, discardable = items[i]
            if before[0] in CONSTANTS:  # others use them too
                continue
            items[i] = (*before, with_marks(discardable, marks))  # type: ignore[assignment]  # of the same length

    def _per_platform(self, rule: Callable[..., Any], eqn: Eqn, operands: Sequence[Any]) -> Any:
        """What `rule` writes for an equation in a program for several platforms: once if it asks for none, else a
        `case` over the platform's index. The platforms of the program are written in the order of that index."""
        module, platforms = self.module, self.module.platforms

        def write(*only: str) -> tuple[Body, Any]:
            body = self.body.body([])
            with module.writing_for(*only):
                return body, rule(self.nested(body), eqn, *operands)

        if PLATFORMS not in eqn.params:  # else the platform chooses: what is for one need not be writable for others
            (body, out), asked = module.asks_for_platform(lambda: write(*platforms))
            if not asked:
                self.body.items += body.items
                return out
        written = [write(name) for name in platforms]
        for body, outs in written:
            body.ret(outs if eqn.primitive.multiple_results else [outs], loc=self.loc)
        kinds = [mlir_type(v.aval) for v in eqn.outvars]
        outs = self.body.ops(
            "stablehlo.case", [self.platform_index()], kinds, "", [body for body, _ in written], self.loc
        )
        return outs if eqn.primitive.multiple_results else outs[0]

    def platform_index(self) -> Ref:
        """The place of the platform that the program runs on, among those of the program; `meshrt.lowering.sizes` puts
        the argument of the function there."""
        return self.op("meshrt.size", (), "tensor<i32>", f'size = "{PLATFORM_INDEX}"')

    def _computed_elsewhere(self, rule: Callable[..., Any], eqn: Eqn, operands: Sequence[Any], kind: str) -> Any:
        """What `rule` writes for an equation that `compute_on(kind)` is about: for the host as for a CPU."""
        start = len(self.body.items)
        with self.module.writing_for(*(["cpu"] if kind == "device_host" else self.module.platforms)):
            out = rule(self, eqn, *operands)
        say_who_computes(self.body.items, start, kind)
        return out

    # -- Explicit axes -------------------------------------------------------------------------------------------------

    def pinned_region(self) -> AbstractMesh | None:
        """The mesh around what is written here if it has Explicit axes, which types say everything of."""
        mesh = self.manual or self.module.mesh
        return mesh if mesh is not None and AxisType.Explicit in mesh.axis_types else None

    def literal(self, literal: Literal) -> Ref:
        return self.full(literal.val, literal.aval)
