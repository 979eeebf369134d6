"""Partitioning a whole module: functions, their boundaries, attributes; the result as a value."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jaxlib.mlir import ir

from propagation import Propagated
from propagation.annotations import ASKED, DECIDED
from propagation.gc_pause import collector_paused
from propagation.model import AxisRef, Mesh, TensorSharding
from propagation.parsing import parse
from propagation.program import Block, Func, Op, Program, Value, source

from .annotations import KnownShardings, Propagation, unpropagated, unresolved
from .boundary import argument_text, check_divided, check_reduced, mesh_of, result_cause, result_text
from .errors import DeviceMemoryError, FullGatherError, TopologyError, UnsupportedShardingError
from .findings import Finding, human
from .heuristics import MESSAGE_BYTES
from .ir.attributes import Attribute, Attributes, Flag
from .ir.printer import program_text
from .ir.program import ALIASED, DONATED, Collective, LocalFunction, LocalValue, ModuleBuilder
from .ir.walker import walk
from .layout import Atoms, Dims
from .layouts.provenance import asked
from .layouts.siblings import Siblings
from .layouts.state import RESHARD
from .machine import Machine, machine_of, ref_bytes
from .optimize import optimize
from .options import Options
from .overlapping_subaxes import CAUSE as OVERLAPS
from .overlapping_subaxes import Overlapping
from .partial_sums import unreduced
from .passes.compilers.complex_sums import guard_complex_sums
from .passes.compilers.cpu import as_bits
from .plan.capacity import Capacity
from .plan.communication import CommunicationPlan, plan_of
from .plan.decisions import Decisions
from .plan.kernels import has_kernels
from .plan.memory import MemoryPlan, memory_of
from .plan.timing import Timing, timing_of
from .plan.traffic import Sent, sent_by
from .reshard.planner import Planner, step_cost
from .reshard.realise import APART
from .topology import Topology
from .walk.walk import Walk

__all__ = ["PartitionedProgram", "partition_program"]


@dataclass(slots=True, eq=False)
class PartitionedProgram:
    """A per-device program.

    plan             its collectives
    findings         what could not stay sharded
    mesh             the mesh it is partitioned over; device i of the flattened mesh is replica i
    arg_shardings    sharding of each argument of @main; arguments and results are one device's pieces
    result_shardings the same for the results
    propagated       the propagation whose layouts values start from, which answers why; None if the module came with
                     shardings of its own
    refused          while it is looked for a program that fits into a device's memory: why this one certainly does not

    >>> mesh = meshrt.sharding.AbstractMesh((4,), ("x",))
    >>> x = meshrt.ShapeDtypeStruct((8, 4), jnp.float32, sharding=meshrt.NamedSharding(mesh, meshrt.P("x")))
    >>> program = meshrt.jit(lambda x: x.sum(0)).lower(x).partition().result
    >>> program.mesh.size, program.findings, "tensor<2x4xf32>" in program.as_text()
    (4, (), True)
    """

    _builder: ModuleBuilder
    plan: CommunicationPlan
    findings: tuple[Finding, ...]
    mesh: Mesh
    arg_shardings: tuple[TensorSharding, ...]
    result_shardings: tuple[TensorSharding, ...]
    propagated: Propagated | None = None
    refused: DeviceMemoryError | None = None
    _text: str | None = field(default=None)
    _memory: MemoryPlan | None = field(default=None)
    _machine: Machine | None = field(default=None)
    _timing: Timing | None = field(default=None)

    def as_text(self) -> str:
        """The module as StableHLO text."""
        if self._text is None:
            with collector_paused():
                self._text = program_text(self._builder)
        return self._text

    @property
    def module(self) -> ir.Module:
        """The module parsed by MLIR."""
        return parse(self.as_text())

    @property
    def memory(self) -> MemoryPlan:
        """What one device holds over the course of the program, as far as that is known before it is compiled."""
        if self._memory is None:
            machine, functions = self._machine, self._builder.functions
            in_breadth = machine is None or machine.topology.compiler in (None, "cpu")
            library = in_breadth and has_kernels(functions, "always" if machine is None else machine.kernel_library)
            self._memory = memory_of(functions, self._builder.locations, in_breadth, library)
        return self._memory

    @property
    def memory_limit(self) -> float | None:
        """Bytes that a device may use: those of the option `memory`, or what the topology leaves to programs. None if
        nobody said."""
        return None if self._machine is None else self._machine.memory

    @property
    def exceeds_memory(self) -> bool:
        """Whether a device is estimated to hold more at once than it may use."""
        limit = self.memory_limit
        if self.refused is not None or limit is None:
            return self.refused is not None
        return not _is_small(self._builder, limit) and self.memory.peak > limit

    @property
    def timing(self) -> Timing:
        """How long one device takes for a run, predicted for the topology that the program was partitioned for."""
        if self._timing is None:
            assert self._machine is not None, "programs are partitioned for a machine"
            self._timing = timing_of(self._builder.functions, self._machine)
        return self._timing

    def axes(self, collective: Collective) -> tuple[AxisRef, ...]:
        """The mesh axes that a collective of the program is over; none if the program gave groups that are no axes'."""
        assert self._machine is not None, "programs are partitioned for a machine"
        return self._machine.atoms.axes(collective.across)

    def axes_text(self, collective: Collective) -> str:
        """The same as text, `data,model:(2)2`."""
        assert self._machine is not None, "as above"
        return self._machine.atoms.axes_text(collective.across)

    def decided(self, first: Propagated) -> Propagated:
        """The propagation that the layouts come from: `first`, or another one of the program that sends less."""
        return first if self.propagated is None else self.propagated

    def sent(self) -> list[Sent]:
        """The collectives of the plan with the operations of `propagated` that caused them."""
        main, *_ = self._builder.functions
        return list(sent_by(main, {f.name: f for f in self._builder.functions}))

    @property
    def fingerprint(self) -> str:
        """A digest of the program's text."""
        return hashlib.sha256(self.as_text().encode()).hexdigest()

    def __repr__(self) -> str:
        axes = ", ".join(f"{n}={s}" for n, s in self.mesh.axes)
        return f"<PartitionedProgram over {axes or 'one device'}: {self.plan!r}, {len(self.findings)} findings>"


class Module(Walk):
    """The walk, and what it takes to partition functions."""

    def __init__(
        self,
        program: Program,
        known: KnownShardings,
        atoms: Atoms,
        builder: ModuleBuilder,
        given: Topology | None,
        options: Options,
        overlapping: Overlapping | None,
    ):
        sharding = known.sharding if overlapping is None else lambda v: overlapping.image(known.sharding(v))
        super().__init__(program, sharding, atoms, builder, given or Topology(compiler=options.compiler), options)
        self.planner = Planner(atoms, step_cost(given))
        self.known = known
        self.rules = known.rules
        self.gathers_early = bool(known.gathered)
        self.divided = known.divided
        self.overlapping = overlapping
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

    def manual_shardings(self, op: Op) -> tuple[tuple[TensorSharding, ...], tuple[TensorSharding, ...]]:
        ins, outs = self.known.manual(op)
        if self.overlapping is None:
            return ins, outs
        manual = self.known.manual_axes(op)
        for sharding in (*ins, *outs):
            moved = self.overlapping.replaced(sharding, manual)
            if moved is not None and not self._is_fully_manual(op):  # else `into_manual` sees to it
                raise UnsupportedShardingError(
                    f"a manual computation splits a value over {moved.to_text(self.atoms.mesh)}, part of a manual axis "
                    "that overlaps other parts in use; its body knows which device runs it, so no other part can stand "
                    "for this one. Split over the whole axis, or use parts whose boundaries divide each other, or make "
                    "all axes of the mesh manual",
                    source(op),
                )
        return self.overlapping.images(ins), self.overlapping.images(outs)

    def _is_fully_manual(self, op: Op) -> bool:
        manual = self.known.manual_axes(op)
        return all(size == 1 or name in manual for name, size in self.atoms.mesh.axes)

    def into_manual(self, op: Op, i: int, ref: LocalValue) -> LocalValue:
        if self.overlapping is None or not self._is_fully_manual(op):
            return ref
        return self._moved_over(ref, self.known.manual(op)[0][i], f"operand {i} of a manual computation", False)

    def out_of_manual(self, op: Op, i: int, ref: LocalValue) -> LocalValue:
        if self.overlapping is None or not self._is_fully_manual(op):
            return ref
        return self._moved_over(ref, self.known.manual(op)[1][i], f"result {i} of a manual computation", True)

    def manual_atoms(self, op: Op) -> tuple[int, ...]:
        mesh = self.atoms.mesh
        return self.atoms.of_axes(mesh.axis(name) for name in self.known.manual_axes(op))

    def function(
        self,
        func: Func,
        ins: Sequence[Dims],
        outs: Sequence[Dims],
        name: str,
        public: bool,
        partial: Sequence[Sequence[tuple[int, ...]]] | None = None,
        apart: frozenset[int] = frozenset(),
    ) -> LocalFunction:
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
            if self.overlapping is not None and public:
                ref = self._moved_over(ref, self.known.sharding(arg), argument_text(func, arg.number), True)
            self.bind_partial(arg, dims, {atoms: ref})
        self.ends.update((v, (dims, 1.0)) for v, dims in zip(func.returned, outs))
        self.left_partial.update((v, atoms) for v, atoms in zip(func.returned, left) if atoms)
        if self.gathers_early:
            self.gather_early(func.args)
        self.block(func.body.ops[:-1])
        ends = zip(func.returned, outs, left, strict=True)
        item.results = [self._result(func, i, v, dims, atoms) for i, (v, dims, atoms) in enumerate(ends)]
        self.env.clear()  # values that are made where they are asked for know all others of the function
        self.region, self.env, self.op = saved
        return item

    def gather_early(self, values: Sequence[Value]) -> None:
        """Brings to their other sharding those of `values` that are gathered before they are used."""
        for value in values:
            sharding = self.known.gathered.get(value)
            if sharding is not None and value.uses:
                if isinstance(value.owner, Block):  # its gather is its first user's
                    self.op = value.uses[0].op
                what = argument_text(self.program.main, value.number) if value.is_argument else "an operand"
                asked(self, value, self.atoms.dims(sharding), f"{what}, gathered before it is used")

    def _result(self, func: Func, i: int, value: Value, dims: Dims, atoms: tuple[int, ...]) -> LocalValue:
        """A result in its layout; what that sends is charged to the operation that computed it, with the result as the
        cause."""
        self.op = value.owner if isinstance(value.owner, Op) else func.body.terminator
        self.because = result_cause(func, i)
        try:
            ref = unreduced.addend(self, value, dims, atoms) if atoms else self.get(value, dims)
            if self.overlapping is not None and func is self.program.main:
                ref = self._moved_over(ref, self.known.results()[i], result_text(func, i), False)
            return ref
        finally:
            self.because = RESHARD

    def finish(self) -> None:
        """Drops all that was known while the program was written. It refers to itself in many ways, and would live as
        long as the result does."""
        for function in self.builder.functions:
            function.region.forget()
        self.siblings = Siblings()
        self.estimates.clear()

    def _moved_over(self, ref: LocalValue, given: TensorSharding | None, what: str, enters: bool) -> LocalValue:
        """An argument of @main as the program inside has it (`enters`), or a result as callers have it: where a
        sub-axis overlaps others, the same pieces on other devices. Manual computations are callers, too."""
        image = None if self.overlapping is None else self.overlapping.image(given)
        if self.overlapping is None or given is None or image is None or image is given:
            return ref
        pairs = self.overlapping.pairs(given, image) if enters else self.overlapping.pairs(image, given)
        if pairs is None:
            return ref
        axes = dict.fromkeys(a.name for s in (given, image) for d in s.dims for a in d.axes)
        axes.update(dict.fromkeys(a.name for s in (given, image) for a in s.unreduced))
        atoms = self.atoms.of_axes(self.atoms.mesh.axis(name) for name in axes)
        return self.realiser.send(self.region, ref, pairs, atoms, self.op, f"{OVERLAPS}, {what}", self.loc)


def partition_program(
    program: Program, known: KnownShardings, given: Topology | None, options: Options
) -> PartitionedProgram:
    """Partitions `program`, whose shardings `known` knows, for a topology that holds its mesh, or for any."""
    mesh = mesh_of(known)
    given = None if given is None else _laid(given, mesh, program.main)
    candidates = Overlapping.candidates(known, known.used_axes(), mesh, known.results())
    if len(candidates) < 2:
        return _partition(program, known, given, options, candidates[0] if candidates else None)
    made, refused = [], []
    for overlapping in candidates:
        try:
            made.append(_partition(program, known, given, options, overlapping))
        except (UnsupportedShardingError, FullGatherError) as e:  # of this choice of boundaries
            refused.append(e)
    if not made:
        raise refused[0]
    cost = lambda found: found.plan.price(MESSAGE_BYTES) if given is None else found.plan.seconds
    return min(made, key=lambda found: (found.refused is not None, cost(found)))


def _partition(
    program: Program, known: KnownShardings, given: Topology | None, options: Options, overlapping: Overlapping | None
) -> PartitionedProgram:
    sharding = known.sharding
    main = program.main
    mesh, results = mesh_of(known), known.results()
    atoms = Atoms(mesh, known.used_axes()) if overlapping is None else overlapping.atoms
    attributes = f"mhlo.num_partitions = 1 : i32, mhlo.num_replicas = {mesh.size} : i32"
    builder = ModuleBuilder(program.name or "main", attributes)
    ctx = Module(program, known, atoms, builder, given, options, overlapping)
    ins = tuple(ctx.want(a) for a in main.args)
    result_shardings = results if overlapping is None else overlapping.images(results)
    outs = tuple(_result_layout(atoms, s, v) for s, v in zip(result_shardings, main.returned))
    if not options.uneven_boundary:
        check_divided(atoms, main, ins, outs)
    if not options.unreduced_results:
        check_reduced(atoms, main, result_shardings)
    partial = (
        tuple(unreduced.atoms_of(ctx, ctx.sharding(a)) for a in main.args),
        tuple(unreduced.atoms_of(ctx, s) for s in result_shardings),
    )
    item = ctx.function(main, ins, outs, "main", True, partial)
    if not options.allow_full_gather and ctx.findings:
        raise _gathered(ctx.findings)
    builder.functions.sort(key=lambda f: f is not item)
    item.arg_attrs = _arg_attrs(ctx, main, item)
    item.result_attrs = [Attributes.of(_kept(ctx, attrs)) for attrs in main.result_attrs]
    machine = machine_of(atoms, given, options)
    limit = machine.topology.memory if options.memory is None else options.memory
    called = machine.topology.spec if machine.chosen else "the memory of a device"
    capacity = Capacity(atoms, called, math.inf if limit is None else limit)
    capacity.check_boundary(main, item, ins, outs)
    if options.optimize:
        optimize(builder, ctx.realiser, machine, options)
    for function in builder.functions:
        guard_complex_sums(function)
        if machine.topology.compiler in (None, "cpu"):
            as_bits(function)
    refused = None if limit is None else capacity.refused(item, builder)
    ctx.findings.extend([*unpropagated(known), *unresolved(known)])
    timing = timing_of(builder.functions, machine) if machine.chosen else None
    plan = plan_of(item, {f.name: f for f in builder.functions}, machine, timing)
    plan = replace(plan, decisions=Decisions(tuple(ctx.chosen), atoms, program))
    arg_shardings = tuple(_sharding(sharding(a), mesh, a) for a in main.args)
    returned = tuple(_sharding(s, mesh, v) for s, v in zip(results, main.returned))
    propagated = known.propagated if isinstance(known, Propagation) else None
    ctx.finish()
    return PartitionedProgram(
        builder, plan, tuple(ctx.findings), mesh, arg_shardings, returned, propagated, refused, _machine=machine,
        _timing=timing,
    )  # fmt: skip


def _is_small(builder: ModuleBuilder, limit: float) -> bool:
    """Whether a program fits even if all its values were held at once, and as many copies of them: quick to see."""
    values = sum(
        ref_bytes(r)
        for function in builder.functions
        for region in walk(function.region)
        for item in (*region.prologue, *region.items)
        for r in item.results
    )
    return 2 * (values + sum(ref_bytes(a) for f in builder.functions for a in f.region.args)) <= limit


def _laid(topology: Topology, mesh: Mesh, main: Func) -> Topology:
    """The topology with the mesh laid over it."""
    try:
        return topology.on(mesh)
    except TopologyError as e:
        raise TopologyError(e.message, source(main)) from None


def _sharding(sharding: TensorSharding | None, mesh: Mesh, value: Value) -> TensorSharding:
    if sharding is None:
        return TensorSharding.replicated_on(mesh, len(value.type.shape))
    return sharding.closed()


def _result_layout(atoms: Atoms, sharding: TensorSharding | None, value: Value) -> Dims:
    rank = len(value.type.shape)
    if sharding is None or len(sharding.dims) != rank:
        return ((),) * rank
    return atoms.dims(sharding)


def _gathered(findings: list[Finding]) -> FullGatherError:
    first, *others = findings
    more = f" (and {len(others)} more findings like it)" if others else ""
    return FullGatherError(
        f"{first.message} ({human(first.bytes)} per device){more}; annotate the operand so that this dimension is "
        "whole, or allow it with allow_full_gather=True",
        first.where,
    )


def _arg_attrs(ctx: Module, main: Func, item: LocalFunction) -> list[Attributes]:
    """Donation survives where the local shapes of argument and result still agree."""
    out = []
    for arg, attrs in zip(item.region.args, main.arg_attrs):
        found = _kept(ctx, attrs)
        alias = attrs.get(ALIASED)
        if alias is not None:
            result = item.results[ir.IntegerAttr(alias).value]
            if (result.shape, result.dtype) == (arg.shape, arg.dtype):
                found[ALIASED] = ctx.attribute_of(alias)
            else:
                found[DONATED] = Flag(True)
        elif DONATED in attrs:
            found[DONATED] = ctx.attribute_of(attrs[DONATED])
        out.append(Attributes.of(found))
    return out


def _kept(ctx: Module, attrs: dict[str, ir.Attribute]) -> dict[str, Attribute]:
    """Attributes of an argument or result that mean the same for its pieces (the kind of memory, ...)."""
    own = ("sdy.", "mhlo.sharding", ASKED, DECIDED, ALIASED, DONATED, "jax.result_info")
    return {name: ctx.attribute_of(a) for name, a in attrs.items() if not name.startswith(own)}
