"""What the command line shows of a result: shardings as JSON, and why values are sharded or not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .addresses import Address, function_of, resolve
from .locations import source
from .log import Missing, ProvenanceStep
from .model import TensorSharding
from .program import Value
from .propagated import Propagated
from .reasons import Reason

__all__ = ["Explanation", "explain", "explained_json", "shardings_json"]


def shardings_json(result: Propagated) -> str:
    """Functions with their arguments, results and operations, as JSON text."""

    def text(sharding: TensorSharding | None) -> str | None:
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

    chains: list[tuple[str, str, int, list[ProvenanceStep]]] = field(default_factory=list)
    missing: list[tuple[str, str, Missing]] = field(default_factory=list)
    names: dict[Value, tuple[str, str]] = field(default_factory=dict)

    def said(self, what: ProvenanceStep | Missing) -> str:
        """The sentence of a step or of what is missing, with values by their names in the module's text."""
        return what.text(self._name)

    def reason(self, what: Reason) -> str:
        """The same of a reason."""
        return what.text(self._name)

    def _name(self, value: Value) -> str:
        return f"<{self.names[value][1]}: {value.type.text}>" if value in self.names else repr(value)

    def as_text(self) -> str:
        lines = []
        for func, name, dim, chain in self.chains:
            lines.append(f"@{func} {name}, dimension {dim}, axis {chain[0].axis.name!r}:")
            lines += [f"  {self.said(step)}" for step in chain]
        for func, name, missing in self.missing:
            lines += [f"@{func} {name} stayed replicated:", f"  {self.said(missing)}"]
        return "\n".join(lines)


def explain(result: Propagated, wanted: Sequence[str] = (), function: str | None = None) -> Explanation:
    """Explains the values `wanted`, with or without a dimension (`result[0]`, `arg[1]:0`, `%3`, `f.py:7:0`; see
    `propagation.addresses`), of `function` (default: the entry); without any, that function's arguments and results,
    and every value of the module that stayed replicated though another tensor of its operation is sharded.

    Raises `BadOptionError` for a value, dimension or function that is not there.
    """
    names = result.value_names
    out = Explanation(names=names)
    if wanted:
        missing = result.missing()
        for at in (at for text in wanted for at in resolve(result, text, function)):
            func_name, name = names[at.value]  # a line may stand for values of several functions
            name = name if at.result is None else f"result {at.result} ({name})"
            _add_chains(out, result, at, func_name, name)
            out.missing += [(func_name, name, m) for m in missing if _is_of(m, at)]
        return out
    func = function_of(result, function)
    sides = [(f"arg[{i}]", "argument", i) for i in range(len(func.args))]
    sides += [(f"result[{i}]", "result", i) for i in range(len(func.returned))]
    for text, side, i in sides:
        (at,) = resolve(result, text, function)
        _add_chains(out, result, at, func.name, f"{side} {i} ({names[at.value][1]})")
    out.missing = [(*names[m.value], m) for m in result.missing() if m.value in names]
    return out


def _is_of(m: Missing, at: Address) -> bool:
    if m.value is not at.value or (m.result is not None and m.result != at.result):
        return False
    return m.dim is None or m.dim in at.dims


def _add_chains(out: Explanation, result: Propagated, at: Address, function: str, name: str) -> None:
    for dim in at.dims:
        out.chains += [(function, name, dim, chain) for chain in result.explain_address(at, dim)]


def explained_json(found: Explanation) -> str:
    """An explanation as JSON text: steps and reasons with what they cross."""

    def step(s: ProvenanceStep) -> dict[str, Any]:
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
            "conflicts": [found.reason(c) for c in s.conflicts],
            "text": found.said(s),
        }

    chains = [
        {"function": func, "value": name, "dimension": dim, "steps": [step(s) for s in chain]}
        for func, name, dim, chain in found.chains
    ]
    missing = [
        {
            "function": func,
            "value": name,
            "operation": m.op.name,
            "dimension": m.dim,
            "source": m.where,
            "reasons": [found.reason(c) for c in m.causes],
        }
        for func, name, m in found.missing
    ]
    return json.dumps({"explained": chains, "missing": missing}, indent=1)
