"""Compares what we decide with what the real passes decide, value by value."""

from __future__ import annotations

import jaxlib.version

import propagation
from propagation import program
from propagation.annotations import read_shardings

VERSION = ".".join(jaxlib.version.__version__.split(".")[:2])


def view(prog, shardings) -> list[tuple]:
    """(operation, result types, result shardings, input shardings) in program order, functions included."""

    def text(sharding):
        return None if sharding is None else sharding.to_text()

    out = []
    for func in prog.funcs.values():
        args = tuple(text(shardings.get(a)) for a in func.args)
        out.append(("func", len(args), args, tuple(text(s) for s in shardings.results[func])))
        for op in func.body.walk():
            types = tuple(v.type.text for v in op.results)
            inputs = tuple(text(s) for s in (op.data or {}).get("in_shardings", ()))
            out.append((op.name, types, tuple(text(shardings.get(v)) for v in op.results), inputs))
    return out


def differences(module: str, expected: str, stage: str = "closed") -> list[tuple]:
    """Pairs (ours, theirs) that differ after `stage`; empty if all shardings agree."""
    ours = propagation.run(module, stage, version=VERSION, chlo=False)
    theirs = program.read(expected)
    a, b = view(ours.program, ours.shardings), view(theirs, read_shardings(theirs))
    if [x[:2] for x in a] != [x[:2] for x in b]:
        return [([x[0] for x in a], [x[0] for x in b])]
    return [(x, y) for x, y in zip(a, b) if x != y]
