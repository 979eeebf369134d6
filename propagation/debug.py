"""Shardy's debug attributes: where each axis came from, and at which step an operation passed it on.

`sdy.sharding_origins` names, per axis of a value, the annotation that it comes from: an argument (`input: 0`), a result
(`output: 0`), a constraint (`constraint_0`) or a manual computation (`mc_0_input: 0`, `mc_0_output: 0`); `self` is the
value's own. `sdy.propagation_edges` lists the steps, numbered over the whole module, at which an operation's operands
and results got axes, and from which of them. Both are read off the decision log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from .axes import Axes, contains, overlaps
from .dataflow import Change, add_manual, is_data_flow_op, remove_manual
from .graph import Func, Op, Program, Value
from .log import Event, Log
from .model import AxisRef, Mesh, OpRule, TensorSharding
from .projection import project
from .shardings import Shardings

__all__ = ["annotate_edges", "annotate_origins"]

_CONSTRAINTS = ("sdy.sharding_constraint", "sdy.reshard")


@dataclass(slots=True)
class _Move:
    """`axis` went from tensor `source` (operands first, then results) to the tensors `targets`."""

    axis: AxisRef
    mesh: Mesh
    source: int
    targets: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Step:
    op: Op | Func
    number: int  # of the result, for a function
    slots: tuple[int, ...]
    operands: int  # how many of the slots are operands
    moves: list[_Move]

    def text(self, index: int) -> str:
        def name(t: int) -> str:
            return f"operand-{t}" if t < self.operands else f"result-{t - self.operands}"

        moves = [
            f"{{{m.axis.to_text(m.mesh)} = {name(m.source)} -> [{', '.join(map(name, m.targets))}]}}"
            for m in sorted(self.moves, key=lambda m: m.mesh.sort_key(m.axis))
        ]
        return f"{{step-{index} = [{', '.join(moves)}]}}"


def _steps(log: Log) -> list[_Step]:
    steps = [_applied(log, op, value) for op, value in log.applied if op.name in _CONSTRAINTS]
    steps += [_step(e) for e in log.events if e.rule is not None]  # copies within groups are no steps of Shardy's
    return [step for step in steps if step.moves]


def _applied(log: Log, op: Op, value: Value) -> _Step:
    """A constraint whose sharding was put on its input before propagation."""
    slots = (log.slot_of(value), log.slot_of(op.results[0]))
    sharding = log.initial(slots[1])
    moves = [_Move(axis, sharding.mesh, 1, [0]) for axis in sharding.axes] if sharding is not None else []
    return _Step(op, 0, slots, 1, moves)


def _step(event: Event) -> _Step:
    if isinstance(event.op, Func):
        number = event.rule if isinstance(event.rule, int) else 0
        return _Step(event.op, number, event.slots, 1, list(_moves(event, _dims_of, 2)))
    rule = event.rule
    assert isinstance(rule, OpRule)
    mappings = (*rule.operands, *rule.results)
    view = _source_side(event.op)

    def factors(t: int, sharding: TensorSharding | None) -> Sequence[Axes | None]:
        seen = view(sharding) if t == len(mappings) - 1 else sharding
        return project(rule, mappings[t], seen).axes

    operands = len(rule.operands)
    return _Step(event.op, 0, event.slots, operands, list(_moves(event, factors, len(mappings))))


def _source_side(op: Op) -> Change:
    """How the sharding of an edge operation looks from its sources: without or with the manual axes."""
    if op.name != "sdy.data_flow_edge" or op.data["edge"].op.name != "sdy.manual_computation":
        return lambda sharding: sharding
    edge = op.data["edge"]
    manual = edge.op.data["manual_axes"]
    if edge.is_argument:
        outer = edge.op.data["in_shardings"][edge.owner.number]
        return lambda sharding: add_manual(sharding, outer, manual)
    return lambda sharding: remove_manual(sharding, manual)


def _dims_of(t: int, sharding: TensorSharding | None) -> Sequence[Axes | None]:
    return () if sharding is None else [d.axes for d in sharding.dims]


def _moves(
    event: Event, factors: Callable[[int, TensorSharding | None], Sequence[Axes | None]], count: int
) -> Iterator[_Move]:
    """What a visit passed on; `factors(tensor, sharding)` are the axes per factor."""
    before = [factors(t, event.before[t]) for t in range(count)]
    found: dict[tuple[int, AxisRef], _Move] = {}
    for t, new in event.decision.changes:
        for f, axes in enumerate(factors(t, new)):
            old = before[t][f] if f < len(before[t]) else ()
            for axis in axes or ():
                if axis in (old or ()):
                    continue
                source = next((s for s in range(count) if s != t and _has(before[s], f, axis)), None)
                if source is not None:
                    move = found.setdefault((f, axis), _Move(axis, new.mesh, source))
                    move.targets.append(t)
    yield from found.values()


def _has(factors: Sequence[Axes | None], f: int, axis: AxisRef) -> bool:
    return f < len(factors) and any(contains(other, axis) for other in factors[f] or ())


def annotate_edges(program: Program, log: Log, to_first_result: bool) -> None:
    """Writes `sdy.propagation_edges`. Those of all function results go to the first one, each axis once, as Shardy
    writes them, if `to_first_result`."""
    texts: dict[tuple[Op | Func, int], list[str]] = {}
    seen: set[AxisRef] = set()
    for index, step in enumerate(_steps(log)):
        if to_first_result and isinstance(step.op, Func):
            step.number, step.moves = 0, [m for m in step.moves if m.axis not in seen]
            seen.update(m.axis for m in step.moves)
        if step.moves:
            texts.setdefault((step.op, step.number), []).append(step.text(index))
    with program.context:
        attrs = {k: ir.Attribute.parse(f"#sdy.propagation_edges<[{', '.join(v)}]>") for k, v in texts.items()}
        for (op, number), attr in attrs.items():
            if isinstance(op, Func):
                op.result_attrs[number]["sdy.propagation_edges"] = attr
            elif op.name != "sdy.data_flow_edge":
                op.attrs["sdy.propagation_edges"] = attr
        _annotate_data_flow(program, "propagation_edges", lambda op: attrs.get((op, 0)), None)


def _annotate_data_flow(
    program: Program, what: str, of_edge: Callable[[Op], ir.Attribute | None], nothing: ir.Attribute | None
) -> None:
    """What the edges of an operation carry goes to the operation, in a list per kind of value. MLIR cannot read an
    empty list of edges (`nothing` is None); the list then has another name, and an empty array for it."""
    found: dict[Op, dict[tuple[bool, int], ir.Attribute]] = {}
    for op in program.ops():
        if op.name == "sdy.data_flow_edge" and op.data is not None and (attr := of_edge(op)) is not None:
            edge = op.data["edge"]
            if edge.op.name != "sdy.named_computation":
                found.setdefault(edge.op, {})[edge.is_argument, edge.owner.number] = attr
    for op, attrs in found.items():
        arguments = len(op.regions[0].args) if op.name == "sdy.manual_computation" else 0
        for is_argument, kind, count in ((True, "block_arg", arguments), (False, "result", len(op.results))):
            listed = [attrs.get((is_argument, i), nothing) for i in range(count)]
            prefix = "" if any(attr is None for attr in listed) else "sdy."
            filled = [ir.ArrayAttr.get([]) if attr is None else attr for attr in listed]
            op.attrs[f"{prefix}{kind}_{what}"] = ir.ArrayAttr.get(filled)


class _Origins:
    """Per place in the driver's table, the annotation from which each axis comes."""

    def __init__(self, program: Program, log: Log):
        self.program, self.log = program, log
        self.known: dict[int, dict[AxisRef, str]] = {}
        self.own: dict[int, str] = {}
        self.names: dict[Op, str] = {}
        self._name_annotations()
        for step in _steps(log):
            for move in step.moves:
                origin = self._origin(step.slots[move.source], move.axis)
                if origin is not None:
                    for target in move.targets:
                        self.known.setdefault(step.slots[target], {})[move.axis] = origin

    def _name_annotations(self) -> None:
        main, log = self.program.main, self.log
        for i, value in enumerate(main.args):
            self._name(log.slot_of(value), f"input: {i}")
        for i, place in enumerate(log.result_slots(main)):
            self._name(place, f"output: {i}")
        constraints = computations = 0
        for op in self.program.ops():
            if op.name in _CONSTRAINTS:
                self.names[op] = f"constraint_{constraints}"
                constraints += 1
                self._name(log.slot_of(op.results[0]), self.names[op])
            elif op.name == "sdy.manual_computation":
                self.names[op] = f"mc_{computations}"
                computations += 1
                for i, value in enumerate(op.regions[0].args):
                    self._name(log.slot_of(value), f"{self.names[op]}_input: {i}", op.data["in_shardings"][i])
                for i, value in enumerate(op.results):
                    self._name(log.slot_of(value), f"{self.names[op]}_output: {i}")
        for op, value in log.applied:
            if op.name == "sdy.manual_computation":
                number = op.operands.index(value) if value in op.operands else 0
                axes = log.initial(log.slot_of(value))
                known = self.known.setdefault(log.slot_of(value), {})
                known.update(dict.fromkeys(axes.axes if axes else (), f"{self.names[op]}_input: {number}"))

    def _name(self, slot: int, name: str, outer: TensorSharding | None = None) -> None:
        sharding = outer or self.log.initial(slot)
        if sharding is not None:
            self.own[slot] = name
            axes = self.known.setdefault(slot, {})
            for axis in sharding.axes:
                axes[axis] = name

    def _origin(self, slot: int, axis: AxisRef) -> str | None:
        known = self.known.get(slot, {})
        return known.get(axis) or next((o for a, o in known.items() if overlaps(a, axis)), None)

    def attribute(self, slot: int, sharding: TensorSharding | None) -> ir.Attribute | None:
        """The origins of what is left of the axes at `slot`; None if nothing is known of them."""
        if sharding is None:
            return None
        entries = []
        for axis in sharding.axes:
            origin = self._origin(slot, axis)
            if origin is not None:
                key = axis.to_text(sharding.mesh).replace('"', "")
                entries.append((key, "self" if origin == self.own.get(slot) else origin))
        if not entries:
            return None
        return ir.DictAttr.get({key: ir.StringAttr.get(origin) for key, origin in entries})


def annotate_origins(program: Program, log: Log, shardings: Shardings) -> None:
    """Writes `sdy.sharding_origins`, and the names of constraints."""
    with program.context:
        origins = _Origins(program, log)

        def of(value: Value) -> ir.Attribute | None:
            return origins.attribute(log.slot_of(value), shardings.get(value))

        def of_edge(op: Op) -> ir.Attribute | None:
            sharding, edge = shardings.get(op.results[0]), op.data["edge"]
            seen = _source_side(op)(sharding) if edge.is_argument else sharding
            return origins.attribute(log.slot_of(op.results[0]), seen)

        main = program.main
        for value, attrs in zip(main.args, main.arg_attrs):
            _put(attrs, of(value))
        for place, sharding, attrs in zip(log.result_slots(main), shardings.results[main], main.result_attrs):
            _put(attrs, origins.attribute(place, sharding))
        for op in program.ops():
            if op.name in _CONSTRAINTS:
                op.attrs["sdy.sharding_origin_name"] = ir.StringAttr.get(origins.names[op])
                _put(op.attrs, of(op.results[0]))
            elif op.name != "sdy.data_flow_edge" and not is_data_flow_op(op):
                found = [of(value) for value in op.results]
                if any(found):
                    _put(op.attrs, ir.ArrayAttr.get([attr or ir.DictAttr.get({}) for attr in found]))
            if op.name == "sdy.manual_computation":
                op.attrs["sdy.sharding_origin_name"] = ir.StringAttr.get(origins.names[op])
        _annotate_data_flow(program, "sharding_origins", of_edge, ir.DictAttr.get({}))


def _put(attrs: dict[str, ir.Attribute], attr: ir.Attribute | None) -> None:
    if attr is not None:
        attrs["sdy.sharding_origins"] = attr
