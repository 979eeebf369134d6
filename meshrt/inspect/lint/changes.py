"""Changes of annotations that a rule may propose: as edits that can be tried, and as words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from meshrt.inspect.annotations import axes_text
from meshrt.inspect.lint.subject import Subject
from meshrt.pipeline.names import type_text
from propagation.annotation_sites import Edit, Said, returned_at, saying_of
from propagation.functions import original_name
from propagation.model import DimSharding, TensorSharding
from propagation.program import Func, Program, Value
from propagation.shardings import Shardings

__all__ = ["Change", "all_of", "constrained", "described", "moves", "spec_text", "splits", "whole_said", "without"]


@dataclass(frozen=True, slots=True)
class Change:
    """Something to do to a program: `text` tells its user, `edit` does it. Changes of equal `key` are the same."""

    key: Any
    text: str
    edit: Edit


def all_of(changes: Sequence[Change]) -> Change:
    """Several changes of one kind as one."""
    first, *others = changes
    if not others:
        return first

    def edit(program: Program, shardings: Shardings) -> None:
        for change in changes:
            change.edit(program, shardings)

    return Change(tuple(c.key for c in changes), f"{first.text}, and {len(others)} more like it", edit)


def spec_text(sharding: TensorSharding | None) -> str:
    """`P("data", None)`."""
    return "P()" if sharding is None else axes_text(tuple(tuple(a.name for a in d.axes) for d in sharding.dims))


def described(subject: Subject, said: Said) -> str:
    """What an annotation is to its user: `the annotation P("data") of x`, `the constraint P() on f32[8,64] of tanh
    (train.py:7)`."""
    spec = spec_text(said.sharding)
    if said.kind == "argument":
        return f"the annotation {spec} of {subject.arg_names[said.number]}"
    if said.kind == "result":
        return f"the annotation {spec} of {subject.result_names[said.number]}"
    return f"the {'constraint' if said.kind == 'constraint' else 'annotation'} {spec} {_on(subject, said)}"


def _on(subject: Subject, said: Said) -> str:
    """Which value an annotation is on, and where it was written: `on f32[8,64] of tanh (train.py:7)`. One that a helper
    writes for several callers is told by the caller's line, `(train.py:31 through helpers.py:5)`; those that are
    written alike even so, by Python's loops, are numbered."""
    alike = [s for s in subject.said if s.lines == said.lines and s.kind == said.kind]
    which = f", number {alike.index(said) + 1} of {len(alike)} there" if len(alike) > 1 and said.lines else ""
    where = subject.written_at(said)
    place = f" ({where}{which})" if where else ""
    return f"on {_value_text(subject, said)}{place}"


def _value_text(subject: Subject, said: Said) -> str:
    """The value that an annotation inside of a program is on, as its user knows it."""
    program = subject.original
    if said.kind == "returned":
        func, number = returned_at(program, said.number)
        return f"result {number} of {original_name(func)}"
    value = program.values[said.number]
    while value.op is not None and value.op.name == "sdy.sharding_constraint":
        value = value.op.operands[0]
    owner = value.argument_of
    if owner is program.main:
        return f"{type_text(value)} of {subject.arg_names[value.number]}"
    if value.op is not None:
        return f"{type_text(value)} of {value.op.name.rpartition('.')[2]}"
    called = f"argument {value.number} of {original_name(owner)}" if isinstance(owner, Func) else "what a loop takes"
    return f"{type_text(value)} of {called}"


def _changed(subject: Subject, said: Said, sharding: TensorSharding | None) -> Change:
    key = (said.kind, said.number, sharding)
    edit = said.saying(sharding)
    if sharding is None:
        return Change(key, f"remove {described(subject, said)}", edit)
    old, new = spec_text(said.sharding), spec_text(sharding)
    if said.kind in ("argument", "result"):
        name = (subject.arg_names if said.kind == "argument" else subject.result_names)[said.number]
        return Change(key, f"annotate {name} as {new} in place of {old}", edit)
    return Change(key, f"constrain to {new} in place of {old} {_on(subject, said)}", edit)


def without(subject: Subject, said: Said) -> Iterator[Change]:
    """The annotation gone; of an argument or result one that says each dimension's axes not."""
    yield _changed(subject, said, None)


def moves(subject: Subject, said: Said, names: Iterable[str]) -> Iterator[Change]:
    """The annotation without some of its axes, and with each of these on another dimension that it divides."""
    shape = _shape(subject, said)
    sharding = said.sharding
    for name in names:
        kept = [DimSharding([a for a in d.axes if a.name != name], d.is_open, d.priority) for d in sharding.dims]
        moved = next((a for d in sharding.dims for a in d.axes if a.name == name), None)
        if moved is None:
            continue
        bare = TensorSharding(sharding.mesh, kept, sharding.replicated, sharding.unreduced, sharding.reduction)
        if said.kind != "constraint" or not bare.is_fully_replicated:
            yield _changed(subject, said, bare)
        for d, size in enumerate(shape):
            if not any(a.name == name for a in sharding.dims[d].axes) and size % (kept[d].factor * moved.size) == 0:
                dims = [
                    DimSharding((*k.axes, moved), k.is_open, k.priority) if i == d else k for i, k in enumerate(kept)
                ]
                yield _changed(subject, said, bare.with_dims(dims))


def _shape(subject: Subject, said: Said) -> tuple[int, ...]:
    main = subject.original.main
    if said.kind == "argument":
        return main.args[said.number].type.shape
    if said.kind == "returned":
        func, place = returned_at(subject.original, said.number)
        return func.returned[place].type.shape
    return (
        main.returned[said.number].type.shape
        if said.kind == "result"
        else subject.original.values[said.number].type.shape
    )


def whole_said(said: Said) -> bool:
    """Whether an annotation splits nothing."""
    return said.sharding.is_fully_replicated


def constrained(subject: Subject, value: Value, sharding: TensorSharding) -> Change | None:
    """A value with a sharding that nothing said: an argument's annotation, or a constraint on what an operation makes.
    None for values that the program as it was read does not have."""
    main, spec = subject.program.main, spec_text(sharding)
    if value.is_argument and value.argument_of is main:
        number = main.args.index(value)
        text = f"annotate {subject.arg_names[number]} as {spec}"
        return Change(("argument", number, sharding), text, saying_of("argument", number, sharding))
    if value.op is None or value.index >= len(subject.original.values):
        return None
    text = f"constrain {subject.names.of(value)} to {spec}"
    return Change(("value", value.index, sharding), text, saying_of("value", value.index, sharding))


def splits(subject: Subject, values: Sequence[Value]) -> Iterator[Change]:
    """The values split over one axis, along one dimension, the largest ones first."""
    mesh, first = subject.own_mesh, values[0]
    for dim in sorted(range(first.type.rank), key=lambda d: -first.type.shape[d]):
        for name, size in mesh.axes:
            if size > 1 and first.type.shape[dim] % size == 0:
                dims = [DimSharding((mesh.axis(name),)) if d == dim else DimSharding() for d in range(first.type.rank)]
                sharding = TensorSharding(mesh, dims)
                changes = [c for v in values if (c := constrained(subject, v, sharding)) is not None]
                if changes:
                    yield all_of(changes)
