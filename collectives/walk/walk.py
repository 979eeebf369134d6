"""The walk over the operations of a program: each is partitioned by its family's rule, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from propagation.model import TensorSharding
from propagation.program import Block, Op, Program, Value, source

from ..analysis import bodies
from ..errors import WITH_XLA, UnsupportedOpError
from ..ir.program import ModuleBuilder
from ..layout import Atoms, Dims
from ..layouts.context import Context
from ..options import Options
from ..scan.associative_scan import Scans
from ..topology import Topology
from . import lookahead, loop_invariant, processors, value_numbering
from .families import rules

__all__ = ["Walk"]


class Walk(Context):
    """The context, with the rules of all families."""

    def __init__(
        self, program: Program, sharding: Callable[[Value], TensorSharding | None], atoms: Atoms,
        builder: ModuleBuilder, topology: Topology, options: Options,
    ):  # fmt: skip
        super().__init__(program, sharding, atoms, builder, topology, options, rules())
        self._scans: dict[Block, Scans] = {}
        self.gathers_early = False  # whether some values are gathered before they are used

    def gather_early(self, values: Sequence[Value]) -> None:
        """Brings those of `values` that are gathered before they are used to their other layout."""

    def extra_cost(self, value: Value, dims: Dims) -> float:
        """Bytes that the users of `value` would send if it was in `dims`: see `lookahead`."""
        return lookahead.extra_cost(self, value, dims)

    def block(self, ops: Iterable[Op]) -> None:
        """Partitions operations in order (terminators are the caller's). Raises `UnsupportedOpError` for one without a
        rule."""
        table = self.families
        scans: Scans | None = None
        skipped: set[Op] = set()
        for op in ops:
            if scans is None:
                assert op.parent is not None
                scans = self._scans.get(op.parent)
                if scans is None:
                    scans = self._scans[op.parent] = Scans(op.parent)
            if scans.starts:
                scans.enter(self, op, skipped)
                if op in skipped:
                    continue
            if op.regions:
                op = bodies.plain(op)
            self.op = op
            rule = table.get(op.name)
            if rule is None:
                raise UnsupportedOpError(
                    f"{op.name} has no partitioning rule; write the operation in a manual computation (shard_map), or "
                    f"{WITH_XLA}",
                    source(op),
                )
            outer = self.region
            if outer.kind == "loop":
                self.region = loop_invariant.region_of(self, op)
            if bodies.FRONTEND in op.attrs:
                start = len(self.region.items)
                value_numbering.once(self, op, rule)
                processors.keep(op, self.region.items[start:])
            else:
                value_numbering.once(self, op, rule)
            if self.gathers_early:
                self.gather_early(op.results)
            self.region = outer
