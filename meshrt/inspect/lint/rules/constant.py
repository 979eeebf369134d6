"""Large arrays that are written into the program or captured by its function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshrt.inspect.lint.changes import Change, splits
from meshrt.inspect.lint.rule import Hit, Rule, worth_telling
from meshrt.inspect.lint.subject import Subject, constants_of, size_of
from propagation.annotation_sites import Edit
from propagation.program import Program, Value, replace_all_uses, source

__all__ = ["RULE"]

LARGE = 1 << 20  # bytes; chosen: tables of positions and masks of examples are smaller


def _find(subject: Subject) -> Iterator[Hit]:
    hits = [*_written(subject), *_captured(subject)]
    yield from worth_telling(hits, subject.base.figures.peak)


def _written(subject: Subject) -> Iterator[Hit]:
    for value in constants_of(subject.original):
        if size_of(value) >= LARGE and value.op is not None:
            message = f"a constant {value.type.text} is written into the program: each device holds it whole"
            text = "take it as an argument of the program, which is sharded as its uses are"
            change = Change(("constant", value.index), text, _taken(value))
            yield Hit(message, source(value.op), size_of(value), [change], is_certain=True)


def _captured(subject: Subject) -> Iterator[Hit]:
    main = subject.program.main
    for number in range(subject.captured):
        value = main.args[number]
        if size_of(value) >= LARGE:
            sharding = subject.propagated.sharding(value)
            if sharding is None or sharding.is_fully_replicated:
                message = f"an array {subject.names.of(value)} that the function captures lies whole on every device"
                changes = splits(subject, [value])
                taken = [replace(c, text=f"take it as an argument: {c.text}") for c in changes]
                yield Hit(message, None, size_of(value), taken, is_certain=True)


def _taken(constant: Value) -> Edit:
    """A constant as one more argument of the entry function."""

    def edit(program: Program, shardings: object) -> None:
        value = program.values[constant.index]
        op, main = value.op, program.main
        assert op is not None, "an operation makes a constant"
        made = program.new_value(value.type, main.body, len(main.args))
        main.body.args.append(made)
        main.arg_attrs.append({})
        replace_all_uses(value, made)
        op.block.ops.remove(op)

    return edit


RULE = Rule("constant", "A large array is part of the program.", "peak", _find)
