"""One way to do an operation: what families offer, and what is weighed and written.

A family exports `candidates(ctx, op)`, which yields the ways in which an operation may be done, and for the look-ahead
`ahead(ctx, op, value, dims)`, which yields those that follow from one operand being in a layout. What an operation
sends and computes by itself stands there and nowhere else; what bringing operands and results to other layouts costs
is added by who weighs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from propagation.program import Op, Value

from ..layout import Dims
from ..layouts.context import Context

__all__ = ["COMPLETE", "Ahead", "Behind", "Candidate", "Sent", "as_propagated"]

COMPLETE: tuple[tuple[int, ...], ...] = ((),)  # pending of results that are no sums still to be taken


class Sent(NamedTuple):
    """Bytes that the busiest device sends in collectives of one kind over some axes, and how many collectives that is:
    0 where `bytes` are a price of the reshard planner's, which counts them."""

    kind: str
    atoms: tuple[int, ...]
    bytes: float
    messages: float = 1.0


class Candidate(NamedTuple):
    """One way to do an operation. Nothing is written for it until it has been taken.

    operands  the layouts that it takes its operands in; None for one that it takes as it is, in whatever layout
    results   the layouts that it gives its results in; None for one that is taken to be as propagation decided
    write     writes the operation and binds its results; None where nothing will be written (in the look-ahead)
    pending   the parts of the results, each by the atoms over which it is a sum still to be taken
    sent      what the operation itself sends
    work      of one device: the bytes that could be sent meanwhile
    """

    operands: tuple[Dims | None, ...]
    results: tuple[Dims | None, ...]
    write: Callable[[], None] | None = None
    pending: tuple[tuple[int, ...], ...] = COMPLETE
    sent: tuple[Sent, ...] = ()
    work: float = 0.0

    def price(self, message: float) -> float:
        """What the operation itself sends, of all kinds, in bytes; each collective counts as `message` more."""
        return sum([sent.bytes + message * sent.messages for sent in self.sent])


# What a family exports for the look-ahead, by the names of operations.
Ahead: TypeAlias = Callable[[Context, Op, Value, Dims], Iterable[Candidate]]
Behind: TypeAlias = Callable[[Op, Dims], tuple[Dims, ...]]


def as_propagated(ctx: Context, op: Op, value: Value) -> Candidate:
    """The operation with its operand `value` in the layout that propagation decided, and all else as it decided too."""
    want = ctx.want(value)
    return Candidate(tuple([want if v is value else None for v in op.operands]), (None,) * len(op.results))
