"""Values that every device holds whole though nobody asked for that."""

from __future__ import annotations

import re
from collections.abc import Iterator

from meshrt.inspect.lint.changes import constrained, splits
from meshrt.inspect.lint.rule import Hit, Rule, worth_telling
from meshrt.inspect.lint.subject import Subject, size_of
from meshrt.pipeline.names import path_of
from propagation.locations import value_source
from propagation.model import DimSharding, TensorSharding
from propagation.program import Value

__all__ = ["RULE"]

# The share of the most that a device holds from which an argument is told of even where no better sharding was found.
# Chosen: parameters of data-parallel training, small beside activations, are meant to be whole.
CERTAIN = 0.25


def _find(subject: Subject) -> Iterator[Hit]:
    if subject.mesh.size == 1:
        return
    peak = subject.base.figures.peak
    hits = [*_arguments(subject, peak), *_inside(subject)]
    yield from worth_telling(hits, peak)


def _arguments(subject: Subject, peak: float) -> Iterator[Hit]:
    """Arguments that nothing is said of; those of blocks that repeat under other numbers are one hit."""
    main = subject.program.main
    said = {s.number for s in subject.said if s.kind == "argument" and (s.sharding.is_fully_closed or s.sharding.axes)}
    alike: dict[tuple[str, str], list[Value]] = {}
    for number, value in enumerate(main.args):
        if number < subject.captured:
            continue  # (the rule on constants has these)
        sharding = subject.propagated.sharding(value)
        if number in said or (sharding is not None and not sharding.is_fully_replicated):
            continue
        pattern = re.sub(r"(^|/)\d+(?=/|$)", r"\1*", path_of(subject.arg_names[number]))
        alike.setdefault((pattern, value.type.text), []).append(value)
    for (pattern, _), values in alike.items():
        held = sum(map(size_of, values))
        name = subject.arg_names[main.args.index(values[0])]
        many = f"{len(values)} arguments like {pattern}" if len(values) > 1 else name
        verb = "have" if len(values) > 1 else "has"
        message = f"{many} {verb} no sharding: every device holds {'them' if len(values) > 1 else 'it'} whole"
        yield Hit(message, value_source(values[0]), held, list(splits(subject, values)), held >= CERTAIN * peak)


def _inside(subject: Subject) -> Iterator[Hit]:
    """Values that operations make whole though what they make them of is split, because something stopped the axes.
    Where a constraint holds a dimension whole, somebody asked for that."""
    main = subject.program.main
    held = {
        (s.number, d) for s in subject.said if s.kind in ("constraint", "value")
        for d, dim in enumerate(s.sharding.dims) if not dim.is_open
    }  # fmt: skip
    for missing in subject.propagated.missing():
        value, other = missing.value, subject.propagated.sharding(missing.operand)
        own = subject.propagated.sharding(value)
        is_whole = own is None or own.is_fully_replicated
        if (
            missing.dim is None
            or missing.other_dim is None
            or other is None
            or not is_whole
            or value.argument_of is main
            or (value.index, missing.dim) in held
        ):
            continue
        axes = other.dims[missing.other_dim].axes
        if size_of(value) == 0 or not axes:
            continue
        dims = [DimSharding(axes if d == missing.dim else ()) for d in range(value.type.rank)]
        change = constrained(subject, value, TensorSharding(subject.own_mesh, dims))
        why = "; ".join(c.text(subject.names.of) for c in missing.causes)
        message = f"{subject.names.of(value)} is whole on every device: {why}"
        yield Hit(message, missing.where, size_of(value), [] if change is None else [change])


RULE = Rule("replicated", "A value lies whole on every device though nobody asked for that.", "peak", _find)
