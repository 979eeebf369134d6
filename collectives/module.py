"""Partitioning a whole module: functions, their boundaries, attributes; the result as a value."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from propagation.model import Mesh, TensorSharding
from propagation.program import Func, Op, Program, Value, parse, paused_collection, source

from .annotations import Source, unpropagated
from .emit import FunctionItem, ModuleBuilder, Ref
from .errors import (
    DeviceMemoryError,
    FullGatherError,
    MeshMismatchError,
    UnreducedResultError,
    UnsupportedShardingError,
)
from .layout import Atoms, Dims
from .optimize import optimize
from .options import Options
from .partition import unreduced
from .partition.context import Context
from .passes.bits import as_bits
from .passes.machine import machine_of, ref_bytes
from .passes.memory import boundary, largest_collective
from .plan import CommunicationPlan, Finding, human, origin, plan_of
from .realise import APART
from .reshard import Planner, step_cost
from .topology import Topology

__all__ = ["Partitioned", "partition_program"]


@dataclass(slots=True, eq=False)
class Partitioned:
    """A per-device program.

    plan             its collectives
    findings         what could not stay sharded
    mesh             the mesh it is partitioned over; device i of the flattened mesh is replica i
    arg_shardings    sharding of each argument of @main; arguments and results are one device's pieces
    result_shardings the same for the results
    """

    _builder: ModuleBuilder
    plan: CommunicationPlan
    findings: tuple[Finding, ...]
    mesh: Mesh
    arg_shardings: tuple[TensorSharding, ...]
    result_shardings: tuple[TensorSharding, ...]
    _text: str | None = field(default=None)

    def as_text(self) -> str:
        """The module as StableHLO text."""
        if self._text is None:
            with paused_collection():
                self._text = self._builder.text()
        return self._text

    @property
    def module(self) -> ir.Module:
        """The module parsed by MLIR."""
        return parse(self.as_text())

    @property
    def fingerprint(self) -> str:
        """A digest of the program's text."""
        return hashlib.sha256(self.as_text().encode()).hexdigest()

    def __repr__(self) -> str:
        axes = ", ".join(f"{n}={s}" for n, s in self.mesh.axes)
        return f"<Partitioned over {axes or 'one device'}: {self.plan!r}, {len(self.findings)} findings>"


class Module(Context):
    """The context, and what it takes to partition functions."""

    def __init__(self, program: Program, known: Source, atoms, builder, given: Topology | None, options):
        super().__init__(program, known.sharding, atoms, builder, given or Topology(), options)
        self.planner = Planner(atoms, step_cost(given))
        self.known = known
        self._calls: dict[str, int] | None = None

    def calls(self, name: str) -> int:
        """How many calls of a function the program has."""
        if self._calls is None:
            self._calls = {}
            for op in self.program.ops():
                if op.name == "func.call":
                    callee = ir.FlatSymbolRefAttr(op.attrs["callee"]).value
                    self._calls[callee] = self._calls.get(callee, 0) + 1
        return self._calls.get(name, 0)

    def keep_function(self, name: str) -> None:
        """Copies a function of scalars that an operation refers to by name."""
        func = self.program.funcs[name]
        if any(f.name == name for f in self.builder.functions):
            return
        types = [(a.type.shape, a.type.dtype) for a in func.args]
        item = self.builder.function(name, types, False, self.loc)
        item.results = self.copy_ops(func.body, item.region, item.region.args)

    def manual_shardings(self, op: Op):
        return self.known.manual(op)

    def manual_atoms(self, op: Op) -> tuple[int, ...]:
        mesh = self.atoms.mesh
        return self.atoms.of_axes(mesh.axis(name) for name in self.known.manual_axes(op))

    def function(
        self, func: Func, ins, outs, name: str, public: bool, partial=None, apart: frozenset[int] = frozenset()
    ) -> FunctionItem:  # fmt: skip
        """Partitions a function whose arguments and results have the layouts `ins` and `outs`. `partial` has the atoms
        over which arguments, and those over which results, are sums still to be taken; None if all are complete.
        Over the atoms `apart` devices may disagree about running it."""
        saved = self.region, self.env, self.op
        types = [(self.piece_shape(a, dims), a.type.dtype) for a, dims in zip(func.args, ins)]
        self.op = func
        item = self.builder.function(name, types, public, self.loc)
        item.layouts = ins
        if apart:
            item.region.known[APART] = apart
        self.region, self.env = item.region, {}
        pending, left = partial or (((),) * len(ins), ((),) * len(outs))
        for arg, ref, dims, atoms in zip(func.args, item.region.args, ins, pending):
            ref.type_text = None if arg.type.is_tensor else arg.type.text
            self.bind_partial(arg, dims, {atoms: ref})
        self.ends.update((v, (dims, 1.0)) for v, dims in zip(func.returned, outs))
        self.left_partial.update((v, atoms) for v, atoms in zip(func.returned, left) if atoms)
        self.block(func.body.ops[:-1])
        item.results = [self._result(func, v, dims, atoms) for v, dims, atoms in zip(func.returned, outs, left)]
        self.region, self.env, self.op = saved
        return item

    def _result(self, func: Func, value: Value, dims: Dims, atoms: tuple[int, ...]) -> Ref:
        """A result in its layout; what that sends is charged to the operation that computed it."""
        self.op = value.owner if isinstance(value.owner, Op) else func
        return unreduced.addend(self, value, dims, atoms) if atoms else self.get(value, dims)


def partition_program(program: Program, known: Source, given: Topology | None, options: Options) -> Partitioned:
    """Partitions `program`, whose shardings `known` knows, for a topology that holds its mesh, or for any."""
    sharding = known.sharding
    main = program.main
    mesh = mesh_of(program)
    atoms = Atoms(mesh, known.used_axes())
    attributes = f"mhlo.num_partitions = 1 : i32, mhlo.num_replicas = {mesh.size} : i32"
    builder = ModuleBuilder(program.name or "main", attributes)
    ctx = Module(program, known, atoms, builder, given, options)
    ins = tuple(ctx.want(a) for a in main.args)
    result_shardings = known.results()
    outs = tuple(_result_layout(atoms, s, v) for s, v in zip(result_shardings, main.returned))
    _check_boundary(atoms, main, ins, outs)
    if not options.unreduced_results:
        _check_reduced(atoms, main, result_shardings)
    partial = (
        tuple(unreduced.atoms_of(ctx, sharding(a)) for a in main.args),
        tuple(unreduced.atoms_of(ctx, s) for s in result_shardings),
    )
    item = ctx.function(main, ins, outs, "main", True, partial)
    if not options.allow_full_gather and ctx.findings:
        raise _gathered(ctx.findings)
    builder.functions.sort(key=lambda f: f is not item)
    item.arg_attrs = _arg_attrs(ctx, main, item)
    item.result_attrs = [", ".join(_kept(attrs)) for attrs in main.result_attrs]
    machine = machine_of(atoms, given, options.memory)
    limit = machine.topology.memory if options.memory is None else options.memory
    if limit is not None and boundary(item) > limit:
        raise _too_large(ctx, main, item, machine.topology, limit)
    if options.optimize:
        optimize(builder, ctx.realiser, machine, options)
    if machine.topology.compiler in (None, "cpu"):
        for function in builder.functions:
            as_bits(function)
    if limit is not None:
        _check_collectives(builder.functions, machine.topology, limit)
    ctx.findings.extend(unpropagated(known))
    plan = plan_of(item, {f.name: f for f in builder.functions}, machine)
    arg_shardings = tuple(_sharding(sharding(a), mesh, a) for a in main.args)
    results = tuple(_sharding(s, mesh, v) for s, v in zip(result_shardings, main.returned))
    return Partitioned(builder, plan, tuple(ctx.findings), mesh, arg_shardings, results)


def mesh_of(program: Program) -> Mesh:
    """The one mesh that the program's shardings are over; a program without any runs on one device.

    Raises `MeshMismatchError` if there are several, or several orders of devices.
    """
    found = [m for m in program.meshes.values() if not m.is_empty and not m.is_maximal]
    meshes = {(m.axes, m.device_ids): m for m in found}
    if len({m.axes for m in found}) == 1 < len(meshes):
        texts = ", ".join(m.to_text() for m in meshes.values())
        raise MeshMismatchError(
            f"the module has meshes of one shape in several orders of devices ({texts}); use one order"
        )
    if len(meshes) > 1:
        texts = ", ".join(m.to_text() for m in meshes.values())
        raise MeshMismatchError(f"the module has meshes of different shapes ({texts}); use one mesh shape per program")
    return next(iter(meshes.values()), Mesh("mesh", ()))


def _sharding(sharding: TensorSharding | None, mesh: Mesh, value: Value) -> TensorSharding:
    if sharding is None:
        return TensorSharding.replicated_on(mesh, len(value.type.shape))
    return sharding.closed()


def _result_layout(atoms: Atoms, sharding: TensorSharding | None, value: Value) -> Dims:
    rank = len(value.type.shape)
    if sharding is None or len(sharding.dims) != rank:
        return ((),) * rank
    return atoms.dims(sharding)


def _check_boundary(atoms: Atoms, main: Func, ins, outs) -> None:
    for what, values, layouts in (("argument", main.args, ins), ("result", main.returned, outs)):
        for i, (v, dims) in enumerate(zip(values, layouts)):
            for d, (n, split) in enumerate(zip(v.type.shape, dims)):
                if n % atoms.product(split):
                    raise UnsupportedShardingError(
                        f"dimension {d} of {what} {i} has size {n}, which {atoms.axes_text(split)} "
                        f"({atoms.product(split)} devices) does not divide; pad it or shard another dimension",
                        source(main),
                    )


def _check_reduced(atoms: Atoms, main: Func, shardings: Sequence[TensorSharding | None]) -> None:
    for i, (s, v) in enumerate(zip(shardings, main.returned)):
        axes = atoms.of_axes(s.unreduced) if s is not None else ()
        if s is not None and axes:
            made = v.owner if isinstance(v.owner, Op) else main
            text = atoms.text(v.type.shape, v.type.dtype, atoms.dims(s))
            by = f"made by {v.op.name}" if v.op is not None else f"argument {v.number}"
            raise UnreducedResultError(
                f"result {i} of @{main.name} ({text}, {by}) is declared unreduced over {atoms.axes_text(axes)}: each "
                f"of {atoms.product(axes)} devices would return an addend, and nobody adds them up; declare it without "
                "unreduced axes to have the sum, or pass unreduced_results=True if the caller takes it",
                source(made),
            )


def _too_large(ctx: Module, main: Func, item: FunctionItem, topology: Topology, limit: float) -> DeviceMemoryError:
    """What no compiler can help: arguments and results that do not fit. Of what lives between them it knows more."""
    sized = [(ref_bytes(ref), "argument", i, v) for i, (ref, v) in enumerate(zip(item.region.args, main.args))]
    sized += [(ref_bytes(ref), "result", i, v) for i, (ref, v) in enumerate(zip(item.results, main.returned))]
    sized.sort(key=lambda s: -s[0])
    largest = ", ".join(
        f"{what} {i} ({ctx.atoms.text(v.type.shape, v.type.dtype, ctx.want(v))}) {human(n)}"
        for n, what, i, v in sized[:3]
    )
    return DeviceMemoryError(
        f"the program does not fit {topology.spec}: a device needs {human(boundary(item))} for its arguments and "
        f"results alone and has {human(limit)}; the largest are {largest}. Shard them over more axes (what is "
        "replicated is whole on every device), use a larger topology, or donate arguments that are replaced",
        source(main),
    )


def _check_collectives(functions: list[FunctionItem], topology: Topology, limit: float) -> None:
    """Raises `DeviceMemoryError` for a collective whose operands and results a device has no room for."""
    size, item = largest_collective(functions)
    if item is None or size <= limit:
        return
    kind, results = item.collective.kind, ", ".join(r.type for r in item.results)
    where, cause = origin(item.collective)
    raise DeviceMemoryError(
        f"the program does not fit {topology.spec}: the {kind} for {cause} makes {results}, for which a device needs "
        f"{human(size)} and has {human(limit)}. Shard what is gathered over more axes, annotate its users so that they "
        "take it sharded, or use a larger topology",
        where,
    )


def _gathered(findings: list[Finding]) -> FullGatherError:
    first, *others = findings
    more = f" (and {len(others)} more findings like it)" if others else ""
    return FullGatherError(
        f"{first.message} ({human(first.bytes)} per device){more}; annotate the operand so that this dimension is "
        "whole, or allow it with allow_full_gather=True",
        first.where,
    )


def _arg_attrs(ctx: Module, main: Func, item: FunctionItem) -> list[str]:
    """Donation survives where the local shapes of argument and result still agree."""
    out = []
    for arg, attrs in zip(item.region.args, main.arg_attrs):
        texts = _kept(attrs)
        alias = attrs.get("tf.aliasing_output")
        if alias is not None:
            result = item.results[ir.IntegerAttr(alias).value]
            if (result.shape, result.dtype) == (arg.shape, arg.dtype):
                texts.append(f"tf.aliasing_output = {alias}")
            else:
                texts.append("jax.buffer_donor = true")
        elif "jax.buffer_donor" in attrs:
            texts.append(f"jax.buffer_donor = {attrs['jax.buffer_donor']}")
        out.append(", ".join(texts))
    return out


def _kept(attrs: dict[str, ir.Attribute]) -> list[str]:
    """Attributes of an argument or result that mean the same for its pieces (the kind of memory, ...)."""
    own = ("sdy.", "mhlo.sharding", "tf.aliasing_output", "jax.buffer_donor", "jax.result_info")
    return [name if str(a) == "unit" else f"{name} = {a}" for name, a in attrs.items() if not name.startswith(own)]
