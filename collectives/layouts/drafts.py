"""Drafts: what writing a part of the program would add to all that is known, as a value.

A loop is written in several layouts, and the one that sends least is taken. Each is a draft on top of what stands: its
operations lie in regions that are part of no program, its facts in dictionaries on top of those that hold. Who drops a
draft has nothing to undo; who adopts one adds it to what stood before. Drafts may have drafts, of loops in loops.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from propagation.program import Value

from ..findings import Finding
from ..ir.overlay import Overlay
from ..ir.program import LocalFunction, Region
from ..layout import Dims
from ..plan.decisions import Decision
from .context import Context
from .siblings import Siblings
from .state import Held, State

__all__ = ["Draft", "adopt", "drafted"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Draft:
    """All of a context that writing changes. Its attributes are those of `Context`, but for these:

    functions  of the module that is being built; those of a draft begin with those of what it is a draft of
    held       what became of values that are older than the draft; None for what is no draft, but the program
    wanted     layouts that are wanted in place of propagation's, as long as it is written
    """

    env: dict[Value, State]
    region: Region
    siblings: Siblings
    findings: list[Finding]
    chosen: list[Decision]
    callees: dict[tuple[Any, ...], LocalFunction]
    ends: dict[Value, tuple[Dims, float] | None]
    left_partial: dict[Value, tuple[int, ...]]
    returned_as: dict[Value, Value]
    wants: dict[Value, Dims]
    estimates: dict[tuple[Value, Dims, int], float]
    decisions: dict[Hashable, Any]
    functions: list[LocalFunction]
    held: dict[State, Held] | None
    wanted: Mapping[Value, Dims]

    def draft(self, wanted: Mapping[Value, Dims]) -> Draft:
        """A draft of this, in which nothing has been written."""
        out = Draft(
            Overlay(self.env), self.region.draft(), self.siblings.draft(), [], [], Overlay(self.callees),
            Overlay(self.ends), Overlay(self.left_partial), Overlay(self.returned_as), self.wants, self.estimates,
            self.decisions, list(self.functions), {} if self.held is None else Overlay(self.held), wanted,
        )  # fmt: skip
        if not wanted:
            return out
        wants = Overlay(self.wants)
        wants.update(wanted)
        return replace(out, wants=wants, estimates={}, decisions={})  # which follow from what is wanted


def _of(ctx: Context) -> Draft:
    """What stands."""
    return Draft(
        ctx.env, ctx.region, ctx.siblings, ctx.findings, ctx.chosen, ctx.callees, ctx.ends, ctx.left_partial,
        ctx.returned_as, ctx.wants, ctx.estimates, ctx.decisions, ctx.builder.functions, ctx.changed.draft, {},
    )  # fmt: skip


def _enter(ctx: Context, draft: Draft) -> None:
    """Lets the context write into a draft."""
    ctx.env, ctx.region, ctx.siblings, ctx.findings = draft.env, draft.region, draft.siblings, draft.findings
    ctx.chosen, ctx.callees, ctx.ends, ctx.left_partial = draft.chosen, draft.callees, draft.ends, draft.left_partial
    ctx.returned_as, ctx.wants, ctx.estimates = draft.returned_as, draft.wants, draft.estimates
    ctx.decisions, ctx.builder.functions, ctx.changed.draft = draft.decisions, draft.functions, draft.held


def drafted(ctx: Context, wanted: Mapping[Value, Dims], write: Callable[[], T]) -> tuple[T, Draft]:
    """What `write()` returns, and the draft that it wrote. Layouts `wanted` stand in place of propagation's meanwhile.
    The context is as it was before."""
    before = _of(ctx)
    draft = before.draft(wanted)
    _enter(ctx, draft)
    try:
        return write(), draft
    finally:
        _enter(ctx, before)


def adopt(ctx: Context, draft: Draft, regions: Iterable[Region]) -> None:
    """Adds to what stands a draft of it, since which nothing else was added. `regions` are those inside the draft that
    no operation has yet."""
    ctx.region.adopt(draft.region, regions)
    ctx.siblings.adopt(draft.siblings)
    ctx.env.update(draft.env)
    ctx.findings += draft.findings
    ctx.chosen += draft.chosen
    ctx.callees.update(draft.callees)
    ctx.ends.update(draft.ends)
    ctx.left_partial.update(draft.left_partial)
    ctx.returned_as.update(draft.returned_as)
    if draft.wants is not ctx.wants:
        ctx.wants.update({v: dims for v, dims in draft.wants.items() if v not in draft.wanted})
    ctx.builder.functions += draft.functions[len(ctx.builder.functions) :]
    for state, held in (draft.held or {}).items():
        state.hold(held)
