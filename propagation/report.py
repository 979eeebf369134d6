"""What the command line shows of a result: shardings as JSON, and why values are sharded or not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from .errors import BadOptionError
from .log import Missing, Step
from .program import Func, Value, source
from .propagated import Propagated

__all__ = ["Explanation", "explain", "explained_json", "shardings_json"]


def shardings_json(result: Propagated) -> str:
    """Functions with their arguments, results and operations, as JSON text."""

    def text(sharding):
        return None if sharding is None else sharding.to_text()

    out = {}
    for func in result.program.funcs.values():
        out[func.name] = {
            "args": [text(result.sharding(v)) for v in func.args],
            "results": [text(s) for s in result.shardings.results[func]],
            "ops": [
                {
                    "op": op.name,
                    "source": source(op),
                    "types": [v.type.text for v in op.results],
                    "shardings": [text(result.sharding(v)) for v in op.results],
                }
                for op in func.body.walk()
                if op.results
            ],
        }
    return json.dumps(out, indent=1)


@dataclass(slots=True)
class Explanation:
    """Why values are sharded, and which are not though an operand is.

    chains    (function, name of the value, dimension, steps from the value back to an annotation), one per axis
    missing   (function, name of the value, what stopped its axes)
    names     (function, name in the module's text) of every value
    """

    chains: list[tuple[str, str, int, list[Step]]] = field(default_factory=list)
    missing: list[tuple[str, str, Missing]] = field(default_factory=list)
    names: dict[Value, tuple[str, str]] = field(default_factory=dict)

    def said(self, what: Step | Missing) -> str:
        """The sentence of a step or of what is missing, with values by their names in the module's text."""
        text = str(what)
        for value in (what.value, what.source if isinstance(what, Step) else what.operand):
            if value in self.names:
                text = text.replace(repr(value), f"{self.names[value][1]}: {value.type.text}")
        return text

    def as_text(self) -> str:
        lines = []
        for func, name, dim, chain in self.chains:
            lines.append(f"@{func} {name}, dimension {dim}, axis {chain[0].axis.name!r}:")
            lines += [f"  {self.said(step)}" for step in chain]
        for func, name, missing in self.missing:
            lines += [f"@{func} {name} stayed replicated:", f"  {self.said(missing)}"]
        return "\n".join(lines)


def explain(result: Propagated, wanted: list[str] = (), function: str | None = None) -> Explanation:
    """Explains the values `wanted`, by the names that they have in `result.as_text()` with or without a dimension
    (`%3`, `%0#1:2`, `%arg0:1`), of `function` (default: the entry); without any, that function's arguments and results,
    and every value of the module that stayed replicated though an operand of its operation is sharded.

    Raises `BadOptionError` for a value, dimension or function that is not there.
    """
    program = result.program
    if function is not None and function not in program.funcs:
        raise BadOptionError(f"there is no function @{function}; there are {', '.join('@' + f for f in program.funcs)}")
    func = program.main if function is None else program.funcs[function]
    names = _names(result)
    out = Explanation(names=names)
    missing = {m.value: m for m in result.missing()}
    if wanted:
        for value, dims in (_selected(text, func, names) for text in wanted):
            _add_chains(out, result, func, names[value][1], value, dims)
            if value in missing:
                out.missing.append((func.name, names[value][1], missing[value]))
        return out
    for i, value in enumerate(func.args):
        _add_chains(out, result, func, f"argument {i} ({names[value][1]})", value, range(value.type.rank))
    for i, value in enumerate(func.returned):
        _add_chains(out, result, func, f"result {i} ({names[value][1]})", value, range(value.type.rank))
    out.missing = [(*names[value], m) for value, m in missing.items() if value in names]
    return out


def _add_chains(out: Explanation, result: Propagated, func: Func, name: str, value: Value, dims) -> None:
    for dim in dims:
        out.chains += [(func.name, name, dim, chain) for chain in result.explain(value, dim)]


def _names(result: Propagated) -> dict[Value, tuple[str, str]]:
    """(function, name in the module's text) of every value."""
    names: dict[Value, tuple[str, str]] = {}
    funcs = [op for op in result.module.body.operations if op.operation.name == "func.func"]
    for func, op in zip(result.program.funcs.values(), funcs):
        state = ir.AsmState(op.operation)

        def note(block, view, func=func, state=state) -> None:
            for value, printed in zip(block.args, view.arguments):
                names[value] = (func.name, printed.get_name(state))
            for ours, theirs in zip(block.ops, view.operations):
                for value, printed in zip(ours.results, theirs.operation.results):
                    names[value] = (func.name, printed.get_name(state))
                for inner, region in zip(ours.regions, theirs.operation.regions):
                    note(inner, region.blocks[0])

        note(func.body, op.operation.regions[0].blocks[0])
    return names


def _selected(text: str, func: Func, names: dict[Value, tuple[str, str]]) -> tuple[Value, range | tuple[int]]:
    name, _, number = text.partition(":")
    name = name if name.startswith("%") else f"%{name}"
    value = next((v for v, known in names.items() if known == (func.name, name)), None)
    if value is None:
        raise BadOptionError(f"@{func.name} has no value {name}; values have their names in the propagated module")
    if not number:
        return value, range(value.type.rank)
    if not number.isdigit() or int(number) >= value.type.rank:
        raise BadOptionError(f"{name} of type {value.type.text} has no dimension {number}")
    return value, (int(number),)


def explained_json(found: Explanation) -> str:
    """An explanation as JSON text: steps and reasons with what they cross."""

    def step(s: Step) -> dict:
        return {
            "dimension": s.dim,
            "axis": s.axis.name,
            "operation": None if s.op is None else s.op.name,
            "source": s.where,
            "from_dimension": s.source_dim,
            "factor": s.factor,
            "strategy": s.strategy,
            "user_priority": None if s.round is None else s.round[0],
            "round": None if s.round is None else s.round[1],
            "conflicts": [c.reason for c in s.conflicts],
            "text": found.said(s),
        }

    chains = [
        {"function": func, "value": name, "dimension": dim, "steps": [step(s) for s in chain]}
        for func, name, dim, chain in found.chains
    ]
    missing = [
        {"function": func, "value": name, "operation": m.op.name, "source": m.where, "reasons": list(m.reasons)}
        for func, name, m in found.missing
    ]
    return json.dumps({"explained": chains, "missing": missing}, indent=1)
