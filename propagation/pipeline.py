"""The stages: what is done to a module, in order.

`import` prepares, `inlined` is what the decisions are made on, `propagated` decides and returns to the module's own
structure, `closed` is what a partitioner wants, `pipeline` all that Shardy's own pipeline does, down to the reshards
that XLA's partitioner needs. `basic`, `aggressive`, `op_priority` and `user_priority` run one propagation on the module
as it stands, `insert_reshards` only inserts explicit reshards, `rules` only writes the sharding rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from jaxlib.mlir import ir

from . import calls, constraints, debug, exporting, func_edges, functions, importing
from .annotations import read_shardings
from .dataflow import Edge, add_edges, edges_in, sink_edges
from .driver import Driver
from .errors import BadOptionError, UnsupportedModuleError
from .factors import STRATEGIES
from .gc_pause import collector_paused
from .log import Log
from .model import DimSharding, OpRule
from .parsing import utf8_errors
from .program import Op, Program, Value, source
from .reshards import insert_reshards
from .rules import RuleCache, RuleOptions
from .shardings import Edit, Shardings

__all__ = ["STAGES", "Options", "Run", "run_stage"]

ALONE = ("basic", "aggressive", "op_priority", "user_priority")
SWITCHES = (
    "conservative", "dedup_functions_fully", "chlo", "whole_axes", "sub_axes", "uneven_boundary", "shardy_faults",
    "origins", "edges", "xla_order",
)  # fmt: skip
OLDEST = (0, 10)  # the first version whose rules are known
STAGES = ("rules", *ALONE, "import", "inlined", "propagated", "closed", "pipeline", "insert_reshards")


@dataclass(frozen=True, slots=True)
class Options:
    """How to propagate.

    strategy      "aggressive", "basic" or "basic-then-aggressive"
    conservative  keep to full axes, and to dimensions whose splitting needs no halo exchange
    version       whose rules to follow where Shardy's versions differ: "0.12" or "0.10"
    dedup_functions_fully   a function stays one for all its calls, with edges between functions, instead of being
                  propagated as if inlined; reshards around its calls make up for it
    chlo          rules for CHLO operations, through which Shardy propagates nothing
    whole_axes    arguments and results of the entry function are split over whole axes only, for callers that cannot
                  say sub-axes; Shardy cuts open dimensions only
    sub_axes      none of their dimensions is cut so, for callers that can
    uneven_boundary   arguments and results of the entry function keep axes that do not divide them, for callers that
                  fill the last parts up; else such axes are cut to what divides
    shardy_faults what Shardy gets wrong is copied (see `docs/propagation.md`), for comparisons
    origins, edges    write Shardy's debug attributes (see `propagation.debug`)
    xla_order     broadcasts that only add dimensions of size one are visited when reshapes are. XLA's importer makes
                  reshapes of them before it runs Shardy, so where axes meet head-on this is what its partitioner sees.
                  And axes that come late to the operand of a call go on in the function: XLA inlines calls before

    Raises `BadOptionError` for a value that an option cannot have.

    >>> import propagation
    >>> propagation.Options(strategy="basic").version
    '0.12'
    """

    strategy: str = "aggressive"
    conservative: bool = False
    dedup_functions_fully: bool = False
    version: str = "0.12"
    chlo: bool = True
    whole_axes: bool = False
    sub_axes: bool = False
    uneven_boundary: bool = False
    shardy_faults: bool = False
    origins: bool = False
    edges: bool = False
    xla_order: bool = False

    def __post_init__(self) -> None:
        for name in SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise BadOptionError(f"option {name} is True or False: {getattr(self, name)!r}")
        if not isinstance(self.strategy, str) or self.strategy not in STRATEGIES:
            raise BadOptionError(f"unknown strategy {self.strategy!r}; choose from {', '.join(STRATEGIES)}")
        parts = str(self.version).split(".")
        known = len(parts) > 1 and all(p.isdecimal() and len(p) < 5 for p in parts[:2])
        if not known or (int(parts[0]), int(parts[1])) < OLDEST:
            raise BadOptionError(f"unknown version {self.version!r}; write 0.10 or 0.12")

    @staticmethod
    def of(options: Mapping[str, Any]) -> Options:
        """The options of these names. Raises `BadOptionError` for a name that none has."""
        known = [f.name for f in fields(Options)]
        for name in options:
            if name not in known:
                raise BadOptionError(f"there is no option {name}; known are {', '.join(known)}")
        return Options(**options)

    @property
    def rules(self) -> RuleOptions:
        """Those of the options that the rules of operations ask for."""
        parts = [int(p) for p in str(self.version).split(".")[:3] if p.isdecimal()]
        return RuleOptions(self.conservative, tuple(parts), self.chlo, self.shardy_faults)


@dataclass(slots=True)
class Run:
    """A program on its way through the stages."""

    program: Program
    options: Options
    shardings: Shardings
    rules: RuleCache
    log: Log
    edges: list[Edge] = field(default_factory=list)
    groups: list[list[Op]] = field(default_factory=list)


def start(program: Program, options: Options) -> Run:
    check_types(program)
    if not options.rules.is_newest and "stablehlo.if" in program.names:
        for op in program.ops():
            if op.name == "stablehlo.if":
                op.data = {**(op.data or {}), "no_edges": True}
    return Run(program, options, read_shardings(program), RuleCache(options.rules), Log(program))


def check_types(program: Program) -> None:
    """Raises `UnsupportedModuleError` if a value is a tuple."""
    for value in program.values:
        t = value.type
        if not t.is_tensor and t.text.startswith("tuple<"):
            raise UnsupportedModuleError(f"tuples cannot be sharded, found {t.text}; flatten them first", _where(value))


def _where(value: Value) -> str | None:
    return source(value.op) if value.op is not None else None


def run_import(run: Run) -> None:
    program, shardings = run.program, run.shardings
    _sink_edges_in(program, shardings)
    functions.drop_unreachable_functions(program)
    importing.unify_meshes(program, shardings)
    importing.drop_unit_axes(program, shardings)
    importing.func_to_call(program, shardings)
    importing.split_constants(program, shardings)
    functions.drop_unreachable_functions(program)
    importing.clean_manual_axes(program, shardings)
    run.edges = add_edges(program, shardings)
    if run.options.dedup_functions_fully:
        _apply_constraints(run)
        run.groups = constraints.import_groups(program)


def _sink_edges_in(program: Program, shardings: Shardings) -> None:
    """Edges that the module carries, left by an earlier run or by Shardy's own passes, give their shardings to the
    operations that they belong to, which then get edges as all others do."""
    func_edges.sink_func_edges(shardings, func_edges.func_edges_in(program))
    sink_edges(program, shardings, edges_in(program))


def run_prepare(run: Run) -> None:
    """Calls are inlined, constraints applied, groups settled."""
    program, shardings = run.program, run.shardings
    _ = program.main  # raises if there is no entry function
    if run.options.dedup_functions_fully:
        program.funcs = func_edges.callers_first(program)
        run.edges += func_edges.add_func_edges(program, shardings)
        return
    # The newest version applies constraints before it inlines calls, the older one afterwards.
    if run.options.rules.is_newest:
        _apply_constraints(run)
    made = calls.inline_calls(program, shardings, run.log.applied)
    if made:
        run.edges = edges_in(program)  # those of operations that were copied with their functions are others
        run.edges += add_edges(program, shardings, made)
    if not run.options.rules.is_newest:
        _apply_constraints(run)
    run.groups = constraints.import_groups(program)
    # The functions that are left call nothing; Shardy puts each in front of those before it.
    program.funcs = dict(reversed(program.funcs.items()))


def _apply_constraints(run: Run) -> None:
    """Values that flow between functions that will be inlined count as values of data-flow edges."""
    program = run.program
    values = _edge_values(run)
    if "func.call" in program.names and not run.options.dedup_functions_fully:
        main = program.main
        values.update((v, v) for f in program.funcs.values() if f is not main for v in f.args)
        values.update((v, v) for op in program.ops() if op.name == "func.call" for v in op.results)
    run.log.applied = constraints.apply_constraints(program, run.shardings, values, run.options.rules.is_newest)


def _edge_values(run: Run) -> dict[Value, Value]:
    """The owners and targets of data-flow edges, each with the value that has the edge's sharding."""
    return {v: e.node.results[0] for e in run.edges if e.node is not None for v in (e.owner, *e.targets)}


def run_propagation(run: Run, kind: str = "user_priority") -> None:
    """One of the propagation strategies on the program as it stands."""
    shared = run.log.shared
    groups = constraints.settle_groups(run.program, run.shardings, run.groups, _edge_values(run), shared)
    options = run.options
    driver = Driver(
        run.program, run.shardings, run.edges, run.rules, options.strategy, groups, run.log, options.shardy_faults,
        options.xla_order,
    )  # fmt: skip
    if kind == "user_priority":
        driver.run_priorities()
    elif kind == "op_priority":
        driver.run_rounds()
    else:
        driver.run(None)
    driver.finish()
    if run.options.origins:
        debug.annotate_origins(run.program, run.log, run.shardings)
    if run.options.edges:
        debug.annotate_edges(run.program, run.log, run.options.shardy_faults)


def run_propagation_alone(run: Run, kind: str) -> None:
    """A strategy on a module that stays as it is: edges that it carries are followed, and their operations keep what is
    decided, beside what the values that they belong to say themselves."""
    shardings = run.shardings
    run.edges = [*edges_in(run.program), *func_edges.func_edges_in(run.program)]
    said = [(edge, shardings.get(edge.owner)) for edge in run.edges]
    run_propagation(run, kind)
    for edge, sharding in said:
        if edge.node is not None and edge.node.parent is not None:
            if kind == "user_priority" and edge.is_between_functions and sharding is not None:
                sharding = sharding.with_dims([DimSharding(d.axes, d.is_open) for d in sharding.dims])
            shardings.set(edge.owner, sharding)


def run_export(run: Run) -> None:
    """Back to the module's own structure: functions and calls, merged constants, no edges."""
    program, shardings, is_newest = run.program, run.shardings, run.options.rules.is_newest
    is_shared = run.options.dedup_functions_fully
    if is_shared:
        for func in program.funcs.values():
            if func is not program.main:
                shardings.results[func] = calls.returned_shardings(func.returned, shardings, is_newest)
    else:
        sink_edges(program, shardings, [e for e in run.edges if e.op.name == "sdy.named_computation"])
        calls.note_returned(program, shardings, is_newest)
    if is_newest:
        results = shardings.results[program.main]
        found = [shardings.get(v) for v in program.main.returned]
        results[:] = [s or (None if f is not None and f.mesh.is_maximal else f) for s, f in zip(results, found)]
    func_edges.sink_func_edges(shardings, [e for e in run.edges if e.is_between_functions])
    sink_edges(program, shardings, [e for e in run.edges if not e.is_between_functions])
    run.edges = []
    if is_shared:
        calls.settle_calls(program, shardings, is_newest)
    else:
        calls.outline_calls(program, shardings, is_newest)
    exporting.merge_constants(program, shardings)


def run_close(run: Run) -> None:
    program, shardings = run.program, run.shardings
    exporting.remove_groups(program)
    exporting.constraints_to_reshards(program)
    exporting.even_boundaries(program, shardings, run.options.uneven_boundary)
    if not run.options.sub_axes:
        exporting.whole_axes_at_boundary(program, shardings, run.options.whole_axes)
    exporting.close_shardings(program, shardings)


def write_rules(run: Run) -> None:
    """Gives every operation that has a sharding rule the attribute that says it. The dialect refuses the attribute on
    operations with dimensions of unknown size."""
    known: dict[OpRule, ir.Attribute] = {}
    with run.program.context:
        for op in run.program.ops():
            is_sized = all(v.type.is_static or not v.type.is_tensor for v in (*op.operands, *op.results))
            rule = run.rules.rule_for(op) if is_sized and not op.has_attr("sdy.sharding_rule") else None
            if rule is not None:
                if rule not in known:
                    known[rule] = ir.Attribute.parse(f"#sdy.op_sharding_rule<{rule.to_text()}>")
                op.attrs["sdy.sharding_rule"] = known[rule]


def run_reshards(run: Run, full: bool) -> None:
    """Explicit reshards; the minimal ones are followed by the clean-ups of Shardy's pipeline."""
    insert_reshards(run.program, run.shardings, run.rules, full, run.options.shardy_faults)
    if not full:
        exporting.simplify_reductions(run.program, run.shardings)
        exporting.remove_unused(run.program)


def run_stage(
    program: Program, stage: str, options: Options, annotate: Edit | None = None, prefer: Edit | None = None
) -> Run:
    """Runs `stage` on `program`, which is changed. `annotate` may change what the module says before anything is done,
    and then `prefer` what propagation begins with: nobody asked for that. Raises `BadOptionError` for an unknown
    stage."""
    if stage not in STAGES:
        raise BadOptionError(f"unknown stage {stage!r}; choose from {', '.join(STAGES)}")
    with collector_paused(), utf8_errors():
        return _run_stage(program, stage, options, annotate, prefer)


def _run_stage(program: Program, stage: str, options: Options, annotate: Edit | None, prefer: Edit | None) -> Run:
    run = start(program, options)
    if annotate is not None:
        annotate(program, run.shardings)
    if stage in ("closed", "pipeline"):
        run.shardings.asked = {} if options.shardy_faults else exporting.asked_at_boundary(program, run.shardings)
    if prefer is not None:
        prefer(program, run.shardings)
    if stage in ("basic", "aggressive"):
        run.options = replace(options, strategy=stage)
    if stage in ALONE:
        run.groups = constraints.import_groups(program)
        run_propagation_alone(run, stage)
    elif stage == "insert_reshards":
        run_reshards(run, full=True)
    elif stage == "rules":
        write_rules(run)
    else:
        run_import(run)
        asked = run.shardings.asked
        if stage != "import":
            run_prepare(run)
        if stage not in ("import", "inlined"):
            run_propagation(run)
            run_export(run)
        if stage in ("closed", "pipeline"):
            run_close(run)
            if not options.shardy_faults:
                exporting.note_asked(program, run.shardings, asked)
        if stage == "pipeline":
            run_reshards(run, full=False)
    return run
