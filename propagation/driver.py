"""The fixed point: which operation is visited when.

Shardings only grow, and conflicts are settled by who comes first, so the order of visits is part of the result. It
is that of MLIR's greedy rewrite driver, which Shardy uses: a stack, filled so that operations pop in program order; a
change of a value pushes its users, newest use first, so that its earliest user pops next.

Everything about an operation that a visit needs is looked up once, in `Node`; a visit is then a tuple of shardings
looked up in a table of earlier decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from . import schedule
from .annotations import WITH_IN_SHARDINGS
from .dataflow import Edge, edges_of, initial_sharding, is_data_flow_op, is_edge, store_argument
from .importing import filled
from .last_visits import LastVisits
from .log import Log
from .model import OpRule, TensorSharding
from .nodes import Group, Node, barrier_direction, has_one_user, identity, view_of
from .program import Block, Func, Op, Program, Use, Value, erase
from .purity import is_removable
from .rules import RuleCache
from .rules.parse import written_rule
from .shardings import Shardings
from .visit import Decision, Seen, decide

__all__ = ["Driver"]

_BARRIER_MODES = {"NONE": (0, 0), "FORWARD": (1, 1), "BACKWARD": (2, 2), "BOTH": (3, 3)}


class Driver:
    """Propagates shardings over a program until nothing changes. `shardings` is updated in place.

    `edges` are the data-flow edges in the program, `groups` lists of values to be sharded alike. With `faults`, what
    Shardy gets wrong is copied; `as_xla` is `Options.xla_order`.
    """

    def __init__(
        self,
        program: Program,
        shardings: Shardings,
        edges: list[Edge],
        rules: RuleCache,
        strategy: str = "aggressive",
        groups: list[list[Value]] | None = None,
        log: Log | None = None,
        faults: bool = False,
        as_xla: bool = False,
    ):
        self.program, self.shardings, self.rules, self.strategy = program, shardings, rules, strategy
        self.log = log if log is not None else Log(program)
        self.conservative = rules.options.conservative
        self._faults, self._as_xla = faults, as_xla
        self._groups: dict[tuple[OpRule, str], Group] = {}
        self._round: tuple[int, int | None] = (0, 0)
        self._held: dict[int, tuple[TensorSharding, tuple[int, ...]]] = {}
        self._lay_out(edges)
        self._build_nodes()
        owners = {place: edge.owner for place, edge in self._edge_by_slot.items()}
        self.log.start(self._slot, self.table, self._result_slots, strategy, owners)
        self._group_of: dict[int, list[int]] = {}
        for group in groups or ():
            members = [self._slot[v.index] for v in group]
            # Shardy knows members by their values, and writes edges: what a loop's argument gets is not passed on.
            self._group_of.update((m, members) for v, m in zip(group, members) if v.index not in self._targets)

    # ---- preparation

    def _lay_out(self, edges: list[Edge]) -> None:
        """Gives every value a place in the table. Values of one edge share that of the edge operation's result;
        arguments of bodies that cannot be sharded get the last place, which stays None."""
        program, shardings = self.program, self.shardings
        count = len(program.values)
        table = shardings.table
        table.extend([None] * (count - len(table)))
        self.table = table[:]
        self._slot = slot = [v.index for v in program.values]
        self._result_slots: dict[Func, list[int]] = {}
        for func in program.funcs.values():
            results = shardings.results[func]
            self._result_slots[func] = list(range(len(self.table), len(self.table) + len(results)))
            self.table += results
        self.table.append(None)
        nowhere = len(self.table) - 1
        self._inner: list[Edge] = []
        self._siblings: dict[int, Sequence[Value]] = {}
        self._targets: set[int] = set()  # values with the place of an edge that stands elsewhere
        for op in program.ops():
            if op.regions:
                for block in op.regions:
                    for i, arg in enumerate(block.args):
                        # An asynchronous body sees its operand, but not through an edge.
                        seen = op.operands[i] if op.name == "stablehlo.async_start" else None
                        slot[arg.index] = slot[seen.index] if seen is not None and self._is_plain(seen) else nowhere
                if is_data_flow_op(op):
                    self._lay_out_data_flow(op)
            if len(op.results) > 1:
                # Results of one operation are annotated together: when one gets a sharding, the others become open.
                self._siblings.update((v.index, op.results) for v in op.results)
        self._edges_of_source: dict[Use, list[Edge]] = {}  # several for what a function with several calls returns
        self._edge_by_slot: dict[int, Edge] = {}
        self._edge_owners = {edge.owner.index for edge in edges}
        for edge in edges:
            place = edge.operation.results[0].index
            self._edge_by_slot[place] = edge
            for value in (edge.owner, *edge.targets):
                slot[value.index] = place
            self._targets.update(v.index for v in edge.targets)
            for use in edge.sources:
                # Shardy does not find the edge of a computation's argument by the computation's operand; nor do we, but
                # where calls are as in XLA, which inlines them.
                if self._as_xla or not (edge.is_argument and use.op is edge.op):
                    self._edges_of_source.setdefault(use, []).append(edge)
        self._nowhere = nowhere

    @staticmethod
    def _is_plain(value: Value) -> bool:
        """Whether `value` has a sharding of its own: it is no argument of a loop's body."""
        owner = value.argument_of
        return not isinstance(owner, Op) or owner.name in WITH_IN_SHARDINGS

    def _lay_out_data_flow(self, op: Op) -> None:
        """Without edge operations, a loop's arguments share the place of its results, and the arguments of a
        computation have the sharding of its operands."""
        for edge in edges_of(op):
            if edge.is_argument:
                place = edge.owner.index
                self._slot[place] = place
                self.table[place] = initial_sharding(edge, self.shardings)
                self._inner.append(edge)
            for target in edge.targets:
                self._slot[target.index] = self._slot[edge.owner.index]
                self._targets.add(target.index)

    def _build_nodes(self) -> None:
        self.nodes: list[Node] = []
        self._dead: set[int] = set()
        self._gone: set[Op] = set()  # removed operations, which still stand in the lists of the blocks of `_thinned`
        self._thinned: dict[Block, None] = {}
        for func in self.program.funcs.values():
            self._build_block(func.body.ops, ())
        self._returns = self._find_returns()
        self._alive = [i for i, node in enumerate(self.nodes) if node.rule is not None]

    def _build_block(self, ops: list[Op], above: tuple[int, ...]) -> None:
        for op in ops:
            node = Node(op)
            index = len(self.nodes)
            op.place = index
            self.nodes.append(node)
            node.above = above
            self._prepare(node)
            if node.rule is not None:
                node.look = itemgetter(*node.slots) if len(node.slots) > 1 else itemgetter(*node.slots, self._nowhere)
            if not any(v.uses for v in op.results) and is_removable(op):
                self._dead.add(index)
            for block in op.regions:
                self._build_block(block.ops, (index, *above) if node.rule is not None else above)

    def _prepare(self, node: Node) -> None:
        op = node.op
        if is_edge(op):
            edge: Edge = op.data["edge"]
            self._set_rule(node, identity(op.results[0].type.shape, len(edge.sources)), "edge")
            sources = [self._slot[u.op.operands[u.number].index] for u in edge.sources]
            node.slots = (*sources, op.results[0].index)
            node.view = view_of(edge, self.table, self.shardings, self._faults)
            return
        rule = self._rule(op)
        if rule is not None:
            barrier = op.name == "sdy.propagation_barrier"
            self._set_rule(node, rule, barrier_direction(op) if barrier else schedule.kind_of(op, self._as_xla))
            slot = self._slot
            node.slots = tuple([slot[v.index] for v in op.operands] + [slot[v.index] for v in op.results])

    def _set_rule(self, node: Node, rule: OpRule, kind: str) -> None:
        node.rule = rule
        group = self._groups.get((rule, kind))
        if group is None:
            group = self._groups[rule, kind] = Group(rule, kind)
        node.group = group

    def _rule(self, op: Op) -> OpRule | None:
        if op.data is not None and "sharding_rule" in op.data:
            known: OpRule | None = op.data["sharding_rule"]
            return known
        attr = op.attr("sdy.sharding_rule")
        if attr is not None:
            return written_rule(op, attr)
        if op.name == "sdy.propagation_barrier":
            kind = op.results[0].type
            return identity(kind.shape, 1, True) if kind.is_static else None
        return self.rules.rule_for(op)

    # ---- removal of operations without use or effect

    def _remove(self, index: int, stack: list[int], on_stack: bytearray) -> None:
        op = self.nodes[index].op
        inner = [o for o in op.walk() if o not in self._gone]
        gone: set[Op] = set()
        affected: list[Op] = []
        for o in [*reversed(inner[1:]), op]:  # in the order in which they go, so that uses grow fewer
            gone.add(o)
            affected += [v.op for v in o.operands if v.op is not None and has_one_user(v, gone)]
        self.log.removed(op, any(self._slot[v.index] in self._held for o in inner for v in o.results))
        self._thinned[op.block] = None
        self._gone.update(inner)
        erase(op)
        for o in inner:
            self.nodes[o.place].rule = None
            self._dead.discard(o.place)
            if is_edge(o) and o.data is not None:
                o.data["edge"].node = None
        for definition in affected:
            where = definition.place
            if definition.parent is None or definition in gone:
                continue
            if not any(v.uses for v in definition.results) and is_removable(definition):
                self._dead.add(where)
            self._push(where, stack, on_stack)

    # ---- the fixed point

    def run(self, round: int | None, priority: int = 0) -> None:
        """One fixed point. `round` is an operation-priority round, None for all directions at once."""
        self._round = (priority, round)
        self._set_modes(round)
        self._return_values()
        stack = self._due()
        on_stack = bytearray(len(self.nodes))
        for i in stack:
            on_stack[i] = 1
        nodes, table, dead = self.nodes, self.table, self._dead
        while stack:
            index = stack.pop()
            on_stack[index] = 0
            if index in dead:
                self._remove(index, stack, on_stack)
                continue
            node = nodes[index]
            if node.rule is None:
                continue
            memo = node.group.memo
            if node.view is not None or memo is None:
                self._visit_slow(index, node, round, stack, on_stack)
                continue
            shardings = node.look(table)
            decision = memo.get(shardings)
            if decision is None:
                decision = self._decide(node, node.group.mode or schedule.ALL, shardings)
            if decision.changes:
                self._apply(index, node, decision, decision.before, stack, on_stack)
        for block in self._thinned:
            block.ops = [op for op in block.ops if op not in self._gone]
        self._thinned.clear()
        self._gone.clear()
        self._return_values()

    def run_rounds(self, priority: int = 0) -> None:
        """The five operation-priority rounds."""
        for round in range(schedule.ROUNDS):
            self.run(round, priority)

    def run_priorities(self) -> None:
        """Operation-priority rounds for each user priority: shardings of lower priority are held back first."""
        table, held = self.table, self._held
        for place, sharding in enumerate(table):
            if sharding is None or all(d.priority is None for d in sharding.dims):
                continue
            table[place], priorities = schedule.split_priorities(sharding)
            if priorities:
                held[place] = (sharding, priorities)
        self.run_rounds(0)
        for priority in sorted({p for _, priorities in held.values() for p in priorities}):
            for place, (original, priorities) in held.items():
                if priority in priorities:
                    table[place] = schedule.restore_priority(table[place] or original, original, priority)
            self.run_rounds(priority)

    def finish(self) -> None:
        """Writes the table back to `shardings`: every value of an edge gets the edge's sharding."""
        table, slot = self.table, self._slot
        self.shardings.table[:] = [table[s] for s in slot]
        for edge in self._inner:
            if edge.owner.index not in self._edge_owners:
                store_argument(edge, table[edge.owner.index])
        for op in {edge.computation: None for edge in self._inner if edge.op.name == "sdy.named_computation"}:
            op.data["in_shardings"] = filled(op.data["in_shardings"], op.operands)
        for func, places in self._result_slots.items():
            self.shardings.results[func] = [table[p] for p in places]
        self.log.last_visits = LastVisits(self.program, slot, table, self.nodes, self.strategy, self.conservative)

    def _due(self) -> list[int]:
        """The operations that have something to do in this round, the first one last."""
        nodes = self.nodes
        alive = self._alive = [i for i in self._alive if nodes[i].rule is not None]
        due = [i for i in alive if nodes[i].group.mode != (0, 0)]
        if self._dead:
            due = sorted({*due, *self._dead})
        due.reverse()
        return due

    def _set_modes(self, round: int | None) -> None:
        for group in self._groups.values():
            kind = group.kind
            if kind == "return":
                continue
            mode: schedule.Mode | None
            if kind in _BARRIER_MODES:
                mode = _BARRIER_MODES[kind]
            elif round is None:
                mode = schedule.ALL
            elif round == 0:
                # Removing operations changes who is the only user, so the direction is found at each visit.
                mode = (0, 0) if kind in ("other", "broadcast") else None
            else:
                mode = schedule.later_direction(kind, round)
            group.mode = mode
            group.memo = None if mode is None else group.decisions(mode)[1]

    def _decide(self, node: Node, mode: schedule.Mode, shardings: Seen) -> Decision:
        rule = node.group.rule
        directions, memo = node.group.decisions(mode)
        count = len(rule.operands) + len(rule.results)
        decision = decide(rule, directions, self.strategy, self._is_conservative(node), shardings[:count])
        memo[shardings] = decision
        return decision

    def _is_conservative(self, node: Node) -> bool:
        return self.conservative and not is_edge(node.op)

    def _visit_slow(self, index: int, node: Node, round: int | None, stack: list[int], on_stack: bytearray) -> None:
        """Visits where the direction depends on the current uses, or the two sides differ by manual axes."""
        mode = node.group.mode
        if mode is None:
            mode = schedule.direction(node.op, round or 0, node.group.kind)
            if mode == (0, 0):
                return
        view, shardings = node.view, node.look(self.table)
        seen = shardings if view is None else view.seen(shardings)
        decision = node.group.decisions(mode)[1].get(seen)
        if decision is None:
            decision = self._decide(node, mode, seen)
        if not decision.changes:
            return
        if view is None:
            self._apply(index, node, decision, decision.before, stack, on_stack)
            return
        changes = tuple((t, view.stored(t, s)) for t, s in decision.changes)
        # Shardy gives the other members of a sharding group the view from the side of the sources.
        for_group = dict(decision.changes) if self._faults else None
        decision = Decision(changes, decision.sources, decision.conflicts)
        self._apply(index, node, decision, shardings, stack, on_stack, for_group)

    def _apply(
        self, index: int, node: Node, decision: Decision, shardings: Seen, stack: list[int], on_stack: bytearray,
        for_group: dict[int, TensorSharding] | None = None,
    ) -> None:  # fmt: skip
        table, slots = self.table, node.slots
        self.log.visit(node, decision, shardings, self._round)
        for t, new in decision.changes:
            place = slots[t]
            if place == self._nowhere:
                continue
            self._write(index, place, new, stack, on_stack)
            if for_group is not None:
                new = for_group[t]
            for other in self._group_of.get(place, ()):
                if other != place and table[other] is not new:
                    self.log.group(node.op, place, other, table[other], new, self._round)
                    self._write(index, other, new, stack, on_stack)

    def _set(self, place: int, new: TensorSharding) -> None:
        table = self.table
        if table[place] is None and place in self._siblings:
            for other in self._siblings[place]:
                if table[other.index] is None:
                    table[other.index] = TensorSharding.open_on(new.mesh, other.type.rank)
        table[place] = new

    def _write(self, index: int, place: int, new: TensorSharding, stack: list[int], on_stack: bytearray) -> None:
        """Stores a sharding that operation `index` decided and pushes the operations to visit because of it."""
        self._set(place, new)
        if place >= len(self.program.values):
            return
        value = self.program.values[place]
        waiting = on_stack[index]
        on_stack[index] = 1  # it need not see its own change
        edge = self._edge_by_slot.get(place)
        if edge is not None:
            for target in edge.targets:
                self._push_users(target, stack, on_stack)
        owner = value.owner
        self._push_ruled(owner if isinstance(owner, Op) else owner.owner, stack, on_stack)
        self._push_users(value, stack, on_stack)
        on_stack[index] = waiting

    def _push_users(self, value: Value, stack: list[int], on_stack: bytearray) -> None:
        for use in reversed(value.uses):
            edges = self._edges_of_source.get(use) if self._edges_of_source else None
            if edges is not None and edges[0].node is not None:
                for edge in edges:
                    self._push_ruled(edge.node, stack, on_stack)
            elif use.op.name in ("stablehlo.return", "sdy.return"):
                self._push_ruled(use.op.parent_op, stack, on_stack)
            else:
                self._push_ruled(use.op, stack, on_stack)

    def _push_ruled(self, op: Op | Func | None, stack: list[int], on_stack: bytearray) -> None:
        """Pushes an operation and those around it, as far as they have rules."""
        if not isinstance(op, Op):
            return
        nodes, index = self.nodes, op.place
        if not on_stack[index] and nodes[index].rule is not None:
            on_stack[index] = 1
            stack.append(index)
        for i in nodes[index].above:
            if not on_stack[i] and nodes[i].rule is not None:
                on_stack[i] = 1
                stack.append(i)

    def _push(self, index: int, stack: list[int], on_stack: bytearray) -> None:
        for i in (index, *self.nodes[index].above):
            if not on_stack[i]:
                on_stack[i] = 1
                stack.append(i)

    def _find_returns(self) -> list[tuple[int, Group, int, int]]:
        """(number, group, place of the value, place of the result) of what the entry function returns."""
        func = self.program.main
        out = []
        for number, (value, place) in enumerate(zip(func.returned, self._result_slots[func])):
            if value.type.is_tensor and value.type.is_static:
                rule = identity(value.type.shape, 1)
                group = self._groups.setdefault((rule, "return"), Group(rule, "return"))
                out.append((number, group, self._slot[value.index], place))
        return out

    def _return_values(self) -> None:
        """The entry function's results against the values that it returns."""
        table = self.table
        for number, group, source, place in self._returns:
            shardings = (table[source], table[place])
            if shardings[0] is shardings[1]:
                continue
            directions, memo = group.decisions(schedule.ALL)
            decision = memo.get(shardings)
            if decision is None:
                decision = decide(group.rule, directions, self.strategy, self.conservative, shardings)
                memo[shardings] = decision
            if decision.changes:
                self.log.result(self.program.main, number, (source, place), decision, shardings, self._round)
            for t, new in decision.changes:
                if t == 0 and source != self._nowhere:
                    self._set(source, new)
                    for other in self._group_of.get(source, ()):
                        if other != source:
                            self.log.group(self.program.main, source, other, table[other], new, self._round)
                            self._set(other, new)
                elif t == 1:
                    table[place] = new
