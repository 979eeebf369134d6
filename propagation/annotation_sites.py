"""What a module says of shardings, annotation by annotation, and programs in which one of them says something else.

>>> from .program import read
>>> text = '''
... sdy.mesh @mesh = <["x"=4]>
... func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<8xf32> {
...   %0 = stablehlo.tanh %x : tensor<8xf32>
...   return %0 : tensor<8xf32> }'''
>>> (said,) = annotations_of(read(text))
>>> said.kind, said.number, said.sharding.to_text()
('argument', 0, '#sdy.sharding<@mesh, [{"x"}]>')

`run(text, annotate=said.saying(None))` propagates the module without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .annotations import read_shardings
from .edits import erase, replace_all_uses
from .graph import Func, Op, Program, Value
from .locations import lines, value_lines
from .log import ProvenanceStep
from .model import TensorSharding
from .overrides import set_argument, set_returned
from .propagated import Propagated
from .shardings import Edit as Edit
from .shardings import Shardings

__all__ = [
    "Edit", "Said", "annotations_of", "handed_in", "one_after_other", "origin_of", "origins", "returned_at",
    "saying_of",
]  # fmt: skip

_CONSTRAINT = "sdy.sharding_constraint"


@dataclass(frozen=True, slots=True)
class Said:
    """An annotation: of argument or result `number` of the entry function, or, of a constraint, an operation with a
    sharding and an argument of another function, of the value with that index. Modules that are read from the same text
    number their values alike. What other functions return is numbered through all of them (`returned_at`). `lines` are
    that on which it was written and those that called its function, as far as the module tells them."""

    kind: Literal["argument", "result", "constraint", "value", "returned"]
    number: int
    sharding: TensorSharding
    lines: tuple[str, ...]

    @property
    def where(self) -> str | None:
        """The line on which it was written."""
        return self.lines[0] if self.lines else None

    def saying(self, sharding: TensorSharding | None) -> Edit:
        """What makes a program say `sharding` instead; None: nothing, and a constraint is gone."""
        return saying_of(self.kind, self.number, sharding)


def saying_of(kind: str, number: int, sharding: TensorSharding | None) -> Edit:
    """What makes a program say a sharding of a value, whether or not it says one already. `kind` and `number` are those
    of a `Said`."""

    def edit(program: Program, shardings: Shardings) -> None:
        if kind == "argument":
            set_argument(program, shardings, number, sharding)
        elif kind == "result":
            set_returned(program, shardings, number, sharding)
        elif kind == "returned":
            func, place = returned_at(program, number)
            shardings.results[func][place] = sharding
        elif kind == "constraint" and sharding is None:
            _remove(program.values[number])
        else:
            shardings.set(program.values[number], sharding)

    return edit


def one_after_other(*edits: Edit | None) -> Edit:
    """Several changes of what a program says as one, those that there are."""
    some = [each for each in edits if each is not None]

    def edit(program: Program, shardings: Shardings) -> None:
        for each in some:
            each(program, shardings)

    return edit


def returned_at(program: Program, number: int) -> tuple[Func, int]:
    """The function, not the entry function, and which of its results has this number among those of all of them."""
    return _returned(program)[number]


def _returned(program: Program) -> list[tuple[Func, int]]:
    others = [func for func in program.funcs.values() if func is not program.main]
    return [(func, place) for func in others for place in range(len(func.returned))]


def _remove(value: Value) -> None:
    """Takes the constraint that makes a value out of its program."""
    op = value.op
    assert op is not None and op.name == _CONSTRAINT, "it is the result of a constraint"
    replace_all_uses(value, op.operands[0])
    op.block.ops.remove(op)
    erase(op)


def annotations_of(program: Program, edit: Edit | None = None) -> list[Said]:
    """The annotations of a program as it was read, after `edit` if there is one, in program order: of the arguments and
    results of its entry function, of constraints and of operations that have shardings of their own."""
    shardings = read_shardings(program)
    if edit is not None:
        edit(program, shardings)
    return list(_annotations(program, shardings))


def _annotations(program: Program, shardings: Shardings) -> Iterator[Said]:
    main = program.main
    for number, value in enumerate(main.args):
        said = shardings.get(value)
        if said is not None:
            yield Said("argument", number, said, value_lines(value))
    for func in program.funcs.values():
        for value in func.args if func is not main else ():
            said = shardings.get(value)
            if said is not None:
                yield Said("value", value.index, said, value_lines(value))
    for op in program.ops():
        if op.name == "sdy.manual_computation":
            continue  # it says how its body was written, which no other sharding fits
        for value in op.results:
            said = shardings.get(value)
            if said is not None:
                yield Said("constraint" if op.name == _CONSTRAINT else "value", value.index, said, lines(op))
    for number, (func, place) in enumerate(_returned(program)):
        said = shardings.results[func][place]
        if said is not None:
            yield Said("returned", number, said, lines(func))
    for number, said in enumerate(shardings.results[main]):
        if said is not None:
            yield Said("result", number, said, lines(main))


def origins(propagated: Propagated, value: Value, dim: int, said: list[Said]) -> list[tuple[Said, ProvenanceStep]]:
    """The annotations among `said` from which the axes of a dimension came, each with the last step of its chain."""
    found: list[tuple[Said, ProvenanceStep]] = []
    todo: list[tuple[Value, int, str | None]] = [(value, dim, None)]  # None: every axis
    for at, d, name in todo:  # which grows
        for chain in propagated.explain(at, d):
            last = chain[-1]
            if name not in (None, last.axis.name):
                continue
            origin = origin_of(propagated, last, said)
            if origin is not None:
                found.append((origin, last))
            elif last.value is not None and (outer := handed_in(last.value)) is not None:
                further = (outer, last.dim, last.axis.name)
                if further not in todo:  # what is handed in may have its axes from there
                    todo.append(further)
    return found


def handed_in(value: Value) -> Value | None:
    """What an operation hands to the argument of its body, which begins with its sharding; None for other values."""
    owner = value.argument_of
    if not isinstance(owner, Op) or len(owner.operands) <= value.number:
        return None
    return owner.operands[value.number]


def _is_argument(value: Value, main: Func) -> bool:
    """Whether a value is an argument of the entry function, in this propagation or an earlier one."""
    owner = value.argument_of
    return isinstance(owner, Func) and owner.name == main.name


def origin_of(propagated: Propagated, step: ProvenanceStep, said: list[Said]) -> Said | None:
    """The annotation that a chain ends at. A function's result has no value; what was copied with a function that was
    inlined is known by its line."""
    if step.op is not None or step.is_inserted or step.is_chosen:
        return None
    begun = step.constraint or (step.value.op if step.value is not None else None)
    if step.constraint is None and step.value is not None and _is_argument(step.value, propagated.program.main):
        return next((s for s in said if s.kind == "argument" and s.number == step.value.number), None)
    if step.value is None:
        return next((s for s in said if s.kind == "result" and _names(s, step)), None)
    numbers = {v.index for v in begun.results} if isinstance(begun, Op) else {step.value.index}
    inside = [s for s in said if s.kind in ("constraint", "value")]
    exact = next((s for s in inside if s.number in numbers), None)
    written = lines(begun) if isinstance(begun, Op) else value_lines(step.value)
    found = exact or next((s for s in inside if s.lines == written and _names(s, step)), None)
    return found or _of_callee(step, said)


def _of_callee(step: ProvenanceStep, said: list[Said]) -> Said | None:
    """The annotation of what a function returns, of which a call begins with the sharding."""
    value = step.value
    callee = (value.op.data or {}).get("callee") if value is not None and value.op is not None else None
    if value is None or not isinstance(callee, Func):
        return None
    written = lines(callee)
    return next((s for s in said if s.kind == "returned" and s.lines == written and _names(s, step)), None)


def _names(said: Said, step: ProvenanceStep) -> bool:
    dims = said.sharding.dims
    return step.dim < len(dims) and any(a.name == step.axis.name for a in dims[step.dim].axes)
