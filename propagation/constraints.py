"""Sharding constraints and sharding groups, before propagation.

A constraint is a pointwise operation with a sharding of its own. Where nothing contradicts, its sharding is also put
on its input, so that it takes part in propagation from the start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from .dataflow import add_manual, is_data_flow_op, remove_manual
from .errors import UnsupportedModuleError
from .model import Mesh, TensorSharding
from .program import Block, Op, Program, Use, Value, replace_all_uses, source
from .shardings import Shardings, set_result

__all__ = ["apply_constraints", "import_groups", "settle_groups"]

_log = logging.getLogger(__name__)
_CONSTRAINT, _MANUAL = "sdy.sharding_constraint", "sdy.manual_computation"


def apply_constraints(
    program: Program, shardings: Shardings, edge_values: dict[Value, Value], is_newest: bool = True
) -> list[tuple[Op, Value]]:
    """Applies constraints, and manual computations' input shardings, to the values that they constrain.

    `edge_values` maps the owners and targets of data-flow edges to the value that has the edge's sharding. An edge's
    sharding belongs to several values, so a constraint on one of them is not put on the edge; instead all other uses of
    the value go through the constraint. An annotation that is open in every dimension and says nothing else counts as
    none in the newest version (`is_newest`), and as an annotation before. What functions that are called return goes
    through a chain of constraints in the newest version only, what the entry function returns never.

    Returns the operations whose sharding was put on an operand, with the operand.
    """
    applied: list[tuple[Op, Value]] = []
    moved: dict[Op | Block, dict[int, Op]] = {}
    if program.names.isdisjoint((_CONSTRAINT, _MANUAL)):
        return applied
    annotated = _Annotated(shardings, is_newest)
    main = program.main
    for func in program.funcs.values():
        for op in func.body.walk_inside_out():
            if op.name == _CONSTRAINT:
                _redirect_chain(op, annotated, edge_values, func is main or not is_newest)
                _apply(program, annotated, edge_values, op, 0, applied, moved)
            elif op.name == _MANUAL:
                for number in range(len(op.data["in_shardings"])):
                    _apply(program, annotated, edge_values, op, number, applied, moved)
    return applied


class _Annotated:
    """Shardings of values; with `open_is_none`, one that is open in every dimension and says nothing else counts as
    None. `of_constraint` gives a constraint's own sharding unfiltered: a scalar's has no dimensions, so it would count
    as open."""

    def __init__(self, shardings: Shardings, open_is_none: bool):
        self.shardings, self.open_is_none = shardings, open_is_none
        self.of_constraint = shardings.get
        self.set = shardings.set

    def get(self, value: Value) -> TensorSharding | None:
        found = self.shardings.get(value)
        if not self.open_is_none or found is None or found.mesh.is_maximal:
            return found
        return None if found.is_fully_open else found


def _apply(
    program: Program, shardings: _Annotated, edge_values: dict[Value, Value], op: Op, number: int,
    applied: list[tuple[Op, Value]], moved: dict[Op | Block, dict[int, Op]],
) -> None:  # fmt: skip
    """Puts what `op`, a constraint or a manual computation, says of an operand on that operand. `moved` has the
    constraints that were put behind values, by the values' owner and number."""
    value = op.operands[number]
    sharding = _said(op, number, shardings)
    if sharding is None or not _is_shardable(value) or _sharding_of(value, shardings, edge_values) is not None:
        return
    if not sharding.is_fully_closed or _is_constrained_otherwise(value, sharding, shardings):
        return
    is_edge = value in edge_values or (value.op is not None and value.op.name == "sdy.data_flow_edge")
    if not is_edge:
        set_result(shardings, value, sharding)
        applied.append((op, value))
        return
    if op.name == _CONSTRAINT:
        op.block.ops.remove(op)
        constraint = op
    else:
        constraint = program.new_op(_CONSTRAINT, [value], [value.type], like=op)
        shardings.set(constraint.results[0], sharding)
    if sharding.unreduced:
        opened = TensorSharding.open_on(sharding.mesh, value.type.rank)
        unreduced = TensorSharding(sharding.mesh, opened.dims, (), sharding.unreduced, sharding.reduction)
        shardings.set(edge_values.get(value, value), unreduced)
    # A function's arguments and a call's results have edges in Shardy here, in their order, and each constraint stands
    # behind its edge; a loop's arguments have none.
    beside = moved.setdefault(value.owner, {}) if edge_values.get(value) is value else {}
    last = max((n for n in beside if n < value.number), default=None)
    _insert_behind(value if last is None else beside[last].results[0], constraint)
    beside[value.number] = constraint
    replace_all_uses(value, constraint.results[0], lambda use: use.op is not constraint)


def _said(op: Op, number: int, shardings: _Annotated) -> TensorSharding | None:
    """The sharding that a constraint or a manual computation wants of an operand."""
    if op.name == _CONSTRAINT:
        return shardings.of_constraint(op.results[0])
    wanted: TensorSharding | None = op.data["in_shardings"][number]
    return wanted


def _insert_behind(value: Value, op: Op) -> None:
    owner = value.owner
    if isinstance(owner, Op):
        block = owner.block
        block.ops.insert(block.ops.index(owner) + 1, op)
    else:
        block = owner
        block.ops.insert(0, op)
    op.parent = block


def _is_shardable(value: Value) -> bool:
    """Arguments of bodies (reducers and the like) cannot carry a sharding."""
    owner = value.argument_of
    return not isinstance(owner, Op) or is_data_flow_op(owner)


def _sharding_of(value: Value, shardings: _Annotated, edge_values: dict[Value, Value]) -> TensorSharding | None:
    """The sharding of a value: that of its edge, if it is an edge's owner or target or only an edge uses it."""
    if value in edge_values:
        return shardings.get(edge_values[value])
    if len(value.uses) == 1 and value.uses[0].op.name == "sdy.data_flow_edge":
        return shardings.get(value.uses[0].op.results[0])
    return shardings.get(value)


def _is_constrained_otherwise(value: Value, sharding: TensorSharding, shardings: _Annotated) -> bool:
    return any(
        op.name in (_CONSTRAINT, _MANUAL) and _said(op, number, shardings) is not sharding for op, number in value.uses
    )


def _is_constrained(value: Value, excluded: Op | None = None) -> bool:
    return any(u.op is not excluded and u.op.name in (_CONSTRAINT, _MANUAL) for u in value.uses)


def _redirect_chain(head: Op, shardings: _Annotated, edge_values: dict[Value, Value], is_main: bool) -> None:
    """A chain of constraints `x -> c1 -> c2` is a sequence of reshards. Users of `x` behind the chain then use `c2`, so
    that they see the last sharding; not so the return of the entry function (`is_main`)."""
    value = head.operands[0]
    if value.op is not None and value.op.name == _CONSTRAINT:
        return
    if _sharding_of(value, shardings, edge_values) is not None or _is_constrained(value, head):
        return
    tail = head
    while len(tail.results[0].uses) == 1 and tail.results[0].uses[0].op.name == _CONSTRAINT:
        tail = tail.results[0].uses[0].op
    if tail is head or _is_constrained(tail.results[0]):
        return
    order = {op: i for i, op in enumerate(tail.block.ops)}
    behind = order[tail]

    def is_later(use: Use) -> bool:
        is_result = is_main and use.op.name == "func.return"
        return use.op is not head and not is_result and order.get(use.op, -1) > behind

    replace_all_uses(value, tail.results[0], is_later)


def import_groups(program: Program) -> list[list[Op]]:
    """The sharding groups, each as the operations that name its members; those that share a value are one. Duplicate
    memberships are removed from the program.

    Raises `UnsupportedModuleError` for a group over different shapes or across manual computations.
    """
    if "sdy.sharding_group" not in program.names:
        return []
    members: dict[Value, list[Op]] = {}
    about: dict[int, tuple[Op | None, tuple[int, ...]]] = {}
    for op in [op for op in program.ops() if op.name == "sdy.sharding_group"]:
        value = op.operands[0]
        members.setdefault(value, []).append(op)
        fact = (_manual_parent(op), value.type.shape)
        known = about.setdefault(op.data["group"], fact)
        if known[0] is not fact[0]:
            raise UnsupportedModuleError(
                f"sharding group {op.data['group']} has members inside and outside a manual computation", source(op)
            )
        if known[1] != fact[1]:
            raise UnsupportedModuleError(
                f"sharding group {op.data['group']} has members of shapes {known[1]} and {fact[1]}", source(op)
            )
    leader = _unite(members, about)
    number = {group: i for i, group in enumerate(sorted(set(leader.values())))}
    groups: list[list[Op]] = [[] for _ in number]
    for value, ops in members.items():
        for op in ops:
            op.data["group"] = number[leader[op.data["group"]]]
        groups[ops[0].data["group"]].append(ops[0])
        for extra in ops[1:]:
            extra.block.ops.remove(extra)
            value.uses.remove(Use(extra, 0))
            extra.parent = None
    return groups


def _manual_parent(op: Op) -> Op | None:
    parent = op.parent_op
    while isinstance(parent, Op):
        if parent.name == _MANUAL:
            return parent
        parent = parent.parent_op
    return None


def _unite(members: dict[Value, list[Op]], about: Iterable[int]) -> dict[int, int]:
    leader = {group: group for group in about}

    def find(group: int) -> int:
        while leader[group] != group:
            group = leader[group]
        return group

    for ops in members.values():
        for op in ops:
            a, b = sorted((find(ops[0].data["group"]), find(op.data["group"])))
            leader[b] = a
    return {group: find(group) for group in leader}


def settle_groups(
    program: Program,
    shardings: Shardings,
    groups: list[list[Op]],
    edge_values: dict[Value, Value],
    shared: dict[Value, tuple[Op, Value]] | None = None,
) -> list[list[Value]]:
    """Gives the members of each group one sharding to start from. Where the user's shardings disagree, open
    constraints behind the members form the group instead. `edge_values` are as for `apply_constraints`. Returns the
    values of each group to propagate. `shared` takes note of members that begin with the sharding of another: by which
    operation, and of which member."""
    out = []
    for members in groups:
        group = [op.operands[0] for op in members]
        places = [_place(v, edge_values) for v in group]
        started = [_started(v, shardings) for v in places]
        found = dict.fromkeys(s for s in started if s is not None and not _says_nothing(s))  # in the members' order
        if len(found) == 1:
            (sharding,) = found
            if shared is not None:
                first = places[started.index(sharding)]
                begun = zip(members, places, started)
                shared.update((v, (op, first)) for op, v, s in begun if s != sharding and v is not first)
            for value in places:
                computation = _computation(value)
                if computation is None:
                    set_result(shardings, value, sharding)
                else:
                    _start(computation, value.number, sharding)
        elif len(found) > 1:
            _log.warning("a sharding group starts with different shardings: %s", ", ".join(s.to_text() for s in found))
            group = [_open_constraint(program, shardings, v, next(iter(found)).mesh) for v in group]
        out.append(group)
    return out


def _place(value: Value, edge_values: dict[Value, Value]) -> Value:
    """The value that has the sharding of `value`; without edges, a loop's arguments have that of its results."""
    loop = value.argument_of
    if value not in edge_values and isinstance(loop, Op) and loop.name == "stablehlo.while":
        return loop.results[value.number]
    return edge_values.get(value, value)


def _computation(value: Value) -> Op | None:
    """The computation whose argument `value` is; its sharding is one of the computation's input shardings."""
    owner = value.argument_of
    return owner if isinstance(owner, Op) and owner.name in (_MANUAL, "sdy.named_computation") else None


def _started(value: Value, shardings: Shardings) -> TensorSharding | None:
    op = _computation(value)
    if op is None:
        return shardings.get(value)
    return remove_manual(op.data["in_shardings"][value.number], op.data.get("manual_axes", ()))


def _start(op: Op, number: int, sharding: TensorSharding) -> None:
    """Gives argument `number` of a computation a sharding to start from."""
    outer = op.data["in_shardings"]
    outer[number] = add_manual(sharding, outer[number], op.data.get("manual_axes", ()))


def _says_nothing(s: TensorSharding) -> bool:
    # Replicated and unreduced axes do not count, as in Shardy.
    return s.is_fully_replicated and all(d.is_open for d in s.dims)


def _open_constraint(program: Program, shardings: Shardings, value: Value, mesh: Mesh) -> Value:
    constraint = program.new_op(_CONSTRAINT, [value], [value.type])
    shardings.set(constraint.results[0], TensorSharding.open_on(mesh, value.type.rank))
    _insert_behind(value, constraint)
    replace_all_uses(value, constraint.results[0], lambda use: use.op is not constraint)
    return constraint.results[0]
