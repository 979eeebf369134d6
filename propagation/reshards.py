"""Explicit reshards: `sdy.reshard`, `sdy.all_reduce` and the operations around unreduced axes, put where the sharding
of a value differs from what its user wants.

The *full* version makes every operation locally computable: all its tensors get the axes that `common_axes` chooses.
The *minimal* one, for partitioners that do this themselves, only treats what they would get wrong: functions' calls,
concatenations, unreduced axes, and matrix products whose result is sharded like a contracting dimension.

Algorithm: openxla/shardy, `transforms/export/insert_explicit_reshards.cc`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from jaxlib.mlir import ir

from .axes import STRICT_PREFIX, Axes, difference, list_prefix, merged, overlaps
from .common_axes import common_axes
from .dataflow import edges_of, initial_sharding, is_data_flow_op, remove_manual
from .functions import callee_of
from .importing import filled
from .model import AxisRef, DimSharding, FactorType, Mesh, OpRule, TensorSharding
from .ops import TERMINATORS
from .overflow import overflow_alike, spread_reshape
from .partial_sums import MAX, MIN, SUM, combiners, shardys_combiners
from .program import Edits, Op, Program, Use, Value, replace_all_uses
from .projection import TensorState, back_project, project
from .rules import RuleCache
from .rules.parse import written_rule
from .shardings import Shardings

__all__ = ["insert_reshards"]

_REDUCTION_OPS = {"sum": SUM, "max": MAX, "min": MIN}
_TO_UNREDUCED = ("sdy.replicated_to_unreduced", "sdy.sharded_to_unreduced")


def insert_reshards(program: Program, shardings: Shardings, rules: RuleCache, full: bool, faults: bool = False) -> None:
    """Inserts reshards into all functions of `program`, whose shardings are final.

    full    see the module's text
    faults  copies what Shardy gets wrong: operations with a user's rule get no reshards, partial maxima (and what
            cannot be combined at all) are summed, and a candidate that lost its axes may unshard its factor
    """
    inserter = _Inserter(program, shardings, rules, full, faults)
    for func in program.funcs.values():
        ops = func.body.walk_inside_out()
        inserter.note_arguments(ops)
        for op in ops:
            inserter.visit(op, shardings.results[func])
    inserter.edits.apply()


class _Inserter:
    def __init__(self, program: Program, shardings: Shardings, rules: RuleCache, full: bool, faults: bool):
        self.program, self.shardings, self.rules = program, shardings, rules
        self.full, self.faults = full, faults
        self.edits = Edits()
        self.early = False
        self.behind: list[Op] = []

    def note_arguments(self, ops: list[Op]) -> None:
        """Gives the arguments of loops and computations the shardings that belong to them."""
        for op in ops:
            for edge in edges_of(op):
                sharding = initial_sharding(edge, self.shardings)
                for value in (edge.owner, *edge.targets):
                    self.shardings.set(value, sharding)
            if op.name == "stablehlo.async_start":
                for arg, value in zip(op.regions[0].args, op.operands):
                    self.shardings.set(arg, self.shardings.get(value))

    def visit(self, op: Op, results: list[TensorSharding | None]) -> None:
        name, get = op.name, self.shardings.get
        if name == "func.return":
            for number, target in enumerate(results):
                self._use(Use(op, number), target, self.full)
        elif name in TERMINATORS:
            return
        elif is_data_flow_op(op):
            self._data_flow(op)
        elif name == "func.call":
            args = self.program.funcs[callee_of(op)].args
            for number, target in enumerate(filled([get(v) for v in args], args)):
                self._use(Use(op, number), target, True, True)
        elif name == "sdy.reshard":
            self._reshard(op)
        elif op.results and not self._on_one_device(op):
            self._reduce_operands(op)
            self._operation(op)

    def _reshard(self, op: Op) -> None:
        """A reshard of the module that also changes unreduced axes: that part becomes an `sdy.all_reduce` or a
        `..._to_unreduced` in front of it."""
        target = self.shardings.get(op.results[0])
        self._use(Use(op, 0), target, False)
        if op.operands[0].op is not None and op.operands[0].op.name in _TO_UNREDUCED:
            if self.shardings.get(op.operands[0]) is target:
                replace_all_uses(op.results[0], op.operands[0])
                self.edits.erase(op)
                return
        self._operation(op)

    def _rule(self, op: Op) -> OpRule | None:
        attr = op.attr("sdy.sharding_rule")
        return written_rule(op, attr) if attr is not None else self.rules.rule_for(op)

    def _data_flow(self, op: Op) -> None:
        edges = edges_of(op)
        for edge in sorted(edges, key=lambda e: e.is_argument):
            if edge.is_argument:
                target = op.data["in_shardings"][edge.owner.number]
            elif op.name == "sdy.manual_computation":
                target = remove_manual(self.shardings.get(edge.owner), op.data["manual_axes"])
            else:
                target = self.shardings.get(edge.owner)
            for use in edge.sources:
                self._use(use, target, self.full, True)

    # ---- one use of a value

    def _source(self, value: Value) -> TensorSharding | None:
        """The sharding of an operand; barriers are looked through."""
        while value.op is not None and value.op.name == "sdy.propagation_barrier":
            value = value.op.operands[0]
        return self.shardings.get(value)

    def _use(self, use: Use, target: TensorSharding | None, full: bool, early: bool = False) -> None:
        """Makes operand `use` have the sharding `target`; `early`: right behind the value rather than at the use."""
        self.early = early
        value = use.op.operands[use.number]
        if not value.type.is_tensor:
            return
        source = self._reduced(use, self.shardings.get(value), target)
        if source is not None:
            source = self._unreduced(use, source, target)
        if full and not _equivalent(source, target):
            wanted = target
            if wanted is None and source is not None:
                wanted = TensorSharding.replicated_on(source.mesh, value.type.rank)
            if wanted is not None:  # one of the two is not replicated
                self._before(use, "sdy.reshard", {}, wanted)

    def _reduced(self, use: Use, source: TensorSharding | None, target: TensorSharding | None) -> TensorSharding | None:
        """Sums over the axes that are unreduced in `source` and not in `target`."""
        if source is None:
            return None
        axes = difference(source.unreduced, target.unreduced if target is not None else ())
        if not axes:
            return source
        kept = difference(source.unreduced, axes)
        summed = TensorSharding(source.mesh, source.dims, source.replicated, kept, source.reduction)
        attrs = {"reduction_axes": _axis_list(axes, source.mesh)}
        if source.reduction != "sum":
            attrs["reduction_op"] = f"{_REDUCTION_OPS[source.reduction]} : i32"
        self._before(use, "sdy.all_reduce", attrs, summed)
        return summed

    def _unreduced(self, use: Use, source: TensorSharding, target: TensorSharding | None) -> TensorSharding:
        """Makes axes unreduced that are so in `target` and not in `source`."""
        if target is None:
            return source
        axes = difference(target.unreduced, source.unreduced)
        if not axes:
            return source
        mesh = target.mesh
        dropped = [_dropped_axes(a.axes, b.axes, axes) for a, b in zip(source.dims, target.dims)]
        dims = [DimSharding(merged(t.axes + x)) for t, x in zip(target.dims, dropped)]
        if any(not x and d.axes != s.axes for x, d, s in zip(dropped, dims, source.dims)):
            self._before(use, "sdy.reshard", {}, TensorSharding(mesh, dims, (), source.unreduced, source.reduction))
        sharded = tuple(a for x in dropped for a in x)
        unreduced = source.unreduced
        rest = difference(axes, sharded)
        if rest:
            unreduced = _sorted((*unreduced, *rest), mesh)
            reached = TensorSharding(mesh, dims, (), unreduced, target.reduction)
            self._before(use, "sdy.replicated_to_unreduced", {"axes": _axis_list(rest, mesh)}, reached)
        if sharded:
            lists = ", ".join("{" + ", ".join(a.to_text(mesh) for a in x) + "}" for x in dropped)
            unreduced = _sorted((*unreduced, *sharded), mesh)
            reached = TensorSharding(mesh, target.dims, (), unreduced, target.reduction)
            self._before(use, "sdy.sharded_to_unreduced", {"axes": f"#sdy<list_of_axis_ref_lists[{lists}]>"}, reached)
        return TensorSharding(mesh, target.dims, (), target.unreduced, target.reduction)

    def _before(self, use: Use, name: str, attrs: dict[str, str], sharding: TensorSharding) -> None:
        """A new operation between a value and one use of it."""
        value = use.op.operands[use.number]
        new = self._new(name, [value], value, attrs, sharding, use.op)
        if not self.early:
            self.edits.before(use.op, new)
        elif isinstance(value.owner, Op):
            self.edits.after(value.owner, new)
        else:
            self.edits.first(value.owner, new)
        use.op.set_operand(use.number, new.results[0])

    def _after(self, value: Value, name: str, attrs: dict[str, str], sharding: TensorSharding) -> Value:
        """A new operation between a value and all its uses."""
        new = self._new(name, [], value, attrs, sharding, value.op)
        replace_all_uses(value, new.results[0])
        new.add_operand(value)
        self.behind.append(new)
        return new.results[0]

    def _new(
        self, name: str, operands: list[Value], value: Value, attrs: dict[str, str], sharding: TensorSharding,
        like: Op | None,
    ) -> Op:  # fmt: skip
        with self.program.context:
            parsed = {k: ir.Attribute.parse(v) for k, v in attrs.items()}
        new = self.program.new_op(name, operands, [value.type], parsed, (), like)
        self.shardings.set(new.results[0], sharding)
        return new

    def _on_one_device(self, op: Op) -> bool:
        """Moves the operands of an operation that one device computes there, and its results back to all devices."""
        target = self.shardings.get(op.results[0])
        mesh = next((m for m in self.program.meshes.values() if m.axes), None)
        if not self.rules.options.is_newest or target is None or not target.mesh.is_maximal or mesh is None:
            return False
        self.early = False
        for number, value in enumerate(op.operands):
            source = self.shardings.get(value)
            if source is not None and not source.is_fully_replicated:
                self._before(Use(op, number), "sdy.reshard", {}, TensorSharding.replicated_on(mesh, value.type.rank))
            self._before(Use(op, number), "sdy.reshard", {}, target)
        self.behind = []
        for result in op.results:
            self._after(result, "sdy.reshard", {}, TensorSharding.replicated_on(mesh, result.type.rank))
        for new in reversed(self.behind):
            self.edits.after(op, new)
        return True

    # ---- operations with a rule

    def _reduce_operands(self, op: Op) -> None:
        """Sums operands over unreduced axes that the first result does not keep."""
        self.early = False
        own = self.shardings.get(op.results[0])
        kept = own.unreduced if own is not None else ()
        for number, value in enumerate(op.operands):
            source = self.shardings.get(value)
            if source is not None and source.unreduced and difference(source.unreduced, kept):
                target = TensorSharding(source.mesh, source.dims, source.replicated, kept, source.reduction)
                self._reduced(Use(op, number), source, target)

    def _operation(self, op: Op) -> None:
        rule, get = self._rule(op), self.shardings.get
        if rule is None or (rule.custom and self.faults):
            return
        shardings = [*map(self._source, op.operands), *map(get, op.results)]
        mesh = _mesh_of(shardings)
        if mesh is None or mesh.is_maximal:
            return
        mappings = (*rule.operands, *rule.results)
        if any(s is not None and len(s.dims) != len(m) for s, m in zip(shardings, mappings)):
            return
        states = [project(rule, m, s, closed_if_missing=True) for m, s in zip(mappings, shardings)]
        self.behind, self.early = [], False
        full = self.full or (op.name == "stablehlo.concatenate" and _differs(shardings, len(op.operands)))
        if full:
            axes = self._full(op, rule, mesh, states, shardings)
        else:
            axes = self._minimal(op, rule, mesh, states)
        self._sum_results(op, rule, mesh, axes, full)
        sums = [new for new in self.behind if new.name == "sdy.all_reduce"]
        moves = [new for new in self.behind if new.name != "sdy.all_reduce"]
        for new in reversed(sums + moves):  # sums come first: it is a summed result that moves
            self.edits.after(op, new)

    def _full(
        self, op: Op, rule: OpRule, mesh: Mesh, states: list[TensorState], shardings: list[TensorSharding | None]
    ) -> list[Axes]:
        """Gives all tensors of `op` common axes, with reshards around it."""
        mappings = (*rule.operands, *rule.results)
        if op.name == "stablehlo.reshape" and any(any(s.overflow) for s in states):
            # The newest version leaves a reshape alone whose sides overflow alike.
            shapes = [v.type.shape for v in (*op.operands, *op.results)]
            if not (self.rules.options.is_newest and overflow_alike(rule, states, shapes)):
                states[:] = spread_reshape(rule, states, mesh)
            new = [back_project(rule, m, s, mesh) for m, s in zip(mappings, states)]
            changed = [t for t, (s, old) in enumerate(zip(new, shardings)) if not _equivalent(s, old)]
            axes: list[Axes] = [()] * rule.num_factors
        else:
            counts = [v.type.size for v in (*op.operands, *op.results)]
            if not self.faults and None in combiners(op):
                rule = _whole_reductions(rule)
            axes = common_axes(rule, states, counts, mesh, self.faults)
            changed = [t for t, state in enumerate(states) if _assign(state, axes)]
        first = next((s.mesh for s in shardings if s is not None), mesh)
        count = len(op.operands)
        for t, sharding in enumerate(shardings):
            moved = sharding is not None and sharding.mesh.device_ids != mesh.device_ids
            if t not in changed and not (moved and sharding is not None and not sharding.is_fully_replicated):
                continue
            wanted = back_project(rule, mappings[t], states[t], mesh)
            if t < count:
                self._before(Use(op, t), "sdy.reshard", {}, wanted)
            else:
                result = op.results[t - count]
                old = self.shardings.get(result) or TensorSharding.replicated_on(first, result.type.rank)
                self._annotate(op, result, wanted)
                self._after(result, "sdy.reshard", {}, old)
        return axes

    def _annotate(self, op: Op, result: Value, sharding: TensorSharding) -> None:
        """Results of one operation are annotated together: the others become open if none had a sharding."""
        get = self.shardings.get
        others = [v for v in op.results if v is not result and v.type.is_tensor and get(v) is None]
        self.shardings.set(result, sharding)
        for other in others:
            self.shardings.set(other, TensorSharding.open_on(sharding.mesh, other.type.rank))

    def _sum_results(self, op: Op, rule: OpRule, mesh: Mesh, axes: list[Axes], full: bool) -> None:
        """All-reduces behind an operation whose reduction factors are split."""
        summed: list[AxisRef] = []
        for f in rule.factors_of_type(FactorType.REDUCTION):
            summed += axes[f]
        if not summed:
            return
        kinds = shardys_combiners(op, self.rules.options.is_newest) if self.faults else combiners(op)
        for result in op.results:
            own = self.shardings.get(result) or TensorSharding.replicated_on(mesh, result.type.rank)
            if not full and not own.unreduced:
                continue
            rest = difference(_sorted(summed, mesh), own.unreduced)
            if not rest:
                continue
            attrs = {"reduction_axes": _axis_list(rest, mesh)}
            kind = kinds[result.number]
            if kind is None:
                continue
            if kind:
                attrs["reduction_op"] = f"{kind} : i32"
            self._after(result, "sdy.all_reduce", attrs, own)

    def _minimal(self, op: Op, rule: OpRule, mesh: Mesh, states: list[TensorState]) -> list[Axes]:
        if op.name in ("stablehlo.dot", "stablehlo.dot_general"):
            self._keep_product_local(op, rule, mesh, states)
        axes: list[Axes] = [()] * rule.num_factors
        for state in states:
            for f, own in enumerate(state.axes):
                axes[f] = axes[f] or own or ()
        return axes

    def _keep_product_local(self, op: Op, rule: OpRule, mesh: Mesh, states: list[TensorState]) -> None:
        """A product [i, k] x [k, j] whose result is to be split along i (or j) by the axes that split k in the
        operands, while the operand splits i by others: the product keeps the operand's axes, and its result
        is resharded."""
        lhs, rhs, out = states
        both = [f for f in range(rule.num_factors) if lhs.axes[f] is not None and rhs.axes[f] is not None]
        if any(lhs.axes[f] != rhs.axes[f] for f in both):
            return
        left, right = ([a for f, own in enumerate(s.axes) if own and f not in both for a in own] for s in (lhs, rhs))
        if any(overlaps(a, b) for a in left for b in right):
            return
        sides = [0 if axes is not None else 1 for axes in lhs.axes]
        differing = [f for f, own in enumerate(out.axes) if own is not None and own != states[sides[f]].axes[f]]
        if len(differing) != 1:
            return
        (f,) = differing
        state = states[sides[f]]
        if not state.axes[f] or op.results[0].type.size > op.operands[sides[f]].type.size:
            return
        summed = tuple(a for g in rule.factors_of_type(FactorType.REDUCTION) for a in lhs.axes[g] or ())
        if not summed or out.axes[f] != summed:
            return
        out.axes[f] = state.axes[f]
        result = op.results[0]
        old = self.shardings.get(result) or TensorSharding.replicated_on(mesh, result.type.rank)
        self.shardings.set(result, back_project(rule, rule.results[0], out, mesh))
        self._after(result, "sdy.reshard", {}, old)


def _whole_reductions(rule: OpRule) -> OpRule:
    """`rule` for an operation whose partial results cannot be combined: what it reduces must be whole."""
    whole = {FactorType.REDUCTION: FactorType.NEED_REPLICATION}
    types = [whole.get(kind, kind) for kind in rule.types]
    return OpRule(rule.sizes, rule.operands, rule.results, types, rule.blocked, rule.custom, rule.elementwise)


def _assign(state: TensorState, axes: list[Axes]) -> bool:
    """Gives `state` the axes of each factor that it has; True if that changes it."""
    changed = False
    for f, own in enumerate(state.axes):
        if own is not None and (own != axes[f] or state.overflow[f]):
            state.axes[f], changed = axes[f], True
            state.overflow = state.overflow[:]
            state.overflow[f] = ()
    return changed


def _differs(shardings: Sequence[TensorSharding | None], count: int) -> bool:
    """Whether any operand of a concatenation is sharded otherwise than the result."""
    return any(not _equivalent(s, shardings[count]) for s in shardings[:count])


def _equivalent(a: TensorSharding | None, b: TensorSharding | None) -> bool:
    """Whether two shardings (None: replicated) place the data alike."""
    if all(s is None or s.is_fully_replicated for s in (a, b)):
        return True
    if a is None or b is None:
        return False
    same_axes = [d.axes for d in a.dims] == [d.axes for d in b.dims]
    return same_axes and (a.unreduced, a.reduction) == (b.unreduced, b.reduction) and a.mesh.layout == b.mesh.layout


def _mesh_of(shardings: Sequence[TensorSharding | None]) -> Mesh | None:
    """The mesh that an operation is computed on: all must have the same axes; of several names the one that most split
    tensors have, the first of them if several are as frequent."""
    meshes = [s.mesh for s in shardings if s is not None and not s.mesh.is_empty]
    if not meshes or any(m.axes != meshes[0].axes for m in meshes) or any(m.is_maximal for m in meshes):
        return None
    split = [s.mesh for s in shardings if s is not None and not s.is_fully_replicated]
    if not split:
        return meshes[0]
    named = Counter(m.name for m in split)
    return max(split, key=lambda mesh: named[mesh.name])


def _dropped_axes(old: Axes, new: Axes, wanted: Axes) -> Axes:
    """The axes behind `new` in `old`, if all of them are in `wanted`."""
    if list_prefix(new, old) != STRICT_PREFIX:
        return ()
    rest = difference(old, new)
    return rest if rest and not difference(rest, wanted) else ()


def _sorted(axes: Iterable[AxisRef], mesh: Mesh) -> Axes:
    return merged(sorted(axes, key=mesh.sort_key))


def _axis_list(axes: Axes, mesh: Mesh) -> str:
    return f"#sdy<axis_ref_list{{{', '.join(a.to_text(mesh) for a in axes)}}}>"
