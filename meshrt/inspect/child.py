"""The process in which a foreign file is parsed: `python -m meshrt.inspect.child` (see `guard.py`).

Reads one JSON line of options, then the module's bytes, from standard input; writes one JSON object.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from jaxlib.mlir import ir

import propagation
from collectives.errors import CollectivesError
from collectives.topology import load
from meshrt.errors import MeshrtError
from meshrt.inspect.child_options import annotating_of, module_text, partitioning_of
from meshrt.inspect.comparing import compared
from meshrt.inspect.foreign import partition_foreign, propagate_foreign
from meshrt.inspect.indivisible_annotations import replicas_finding, undivided_annotations
from meshrt.inspect.lint import lint, subject_of_module
from meshrt.inspect.model import FindingRow, place, report_of
from meshrt.inspect.program_graph import program_row
from meshrt.pipeline.explain_sent import explained
from meshrt.pipeline.names import argument_names, output_names
from propagation.annotation_sites import Edit
from propagation.errors import PropagationError
from propagation.overrides import overridden


def answer(options: Mapping[str, Any], data: bytes, read: Callable[[str], str | None] | None = None) -> dict[str, Any]:
    """What the options ask for: {"report": ...} of the module, {"text": ...} of the stage that they name, or
    {"comparison": ...} of two modules. `read` gives the text of a source file; by default there is that of the module
    only, which may name any file at all."""
    if "sides" in options:
        return compared(options, data)
    module, options = module_text(data, options)
    annotate = annotating_of(module, options)
    if options["stage"] == "lowered":
        return {"text": _lowered(module, options["file"], annotate).operation.get_asm(enable_debug_info=False)}
    propagated = propagate_foreign(module, annotate, options["file"])
    if options["stage"] == "propagated":
        return {"text": propagated.as_text()}
    names = argument_names(propagated), output_names(propagated)
    topology = load(options["topology"]) if options["topology"] else None
    how = partitioning_of(options, topology)
    partitioned = partition_foreign(propagated, topology, **how)
    decided = partitioned.decided(propagated)
    explanations = explained(partitioned, decided, options["explain"], *names)
    if options["stage"] == "partitioned":
        return {"text": partitioned.module.operation.get_asm(enable_debug_info=False)}
    name = options["name"]
    report = report_of(name, decided, partitioned, *names, explanations, source=name)
    report = replace(report, findings=_findings(propagated, *names) + report.findings)
    if options.get("with_program"):
        own = lambda path: module if path == name and isinstance(module, str) else None
        report = replace(report, program=program_row(decided, *names, read or own, name))
    if options.get("lint") is not None:
        subject = subject_of_module(
            module,
            partitioned,
            topology,
            given=annotate,
            file=options["file"],
            place=lambda where: place(where, name),
            how=how,
        )
        report = replace(report, lint=lint(subject, options["lint"]))
    return {"report": report.as_json()}


def _lowered(module: str | bytes, file: str | None, annotate: Edit | None) -> ir.Module:
    """The module before anything is propagated, with the annotations from outside in it."""
    program = propagation.read(module, file)
    return program.module if annotate is None else overridden(program, annotate)


def _findings(propagated: propagation.Propagated, *names: list[str]) -> tuple[FindingRow, ...]:
    return replicas_finding(propagated) + undivided_annotations(propagated, *names)


def limit(memory_bytes: int, seconds: int) -> None:
    """Bounds what this process may take before anything of the module is looked at: no more than these, nor than it is
    allowed already (`ulimit -v`, a batch system)."""
    for kind, soft, hard in (
        (resource.RLIMIT_AS, memory_bytes, memory_bytes), (resource.RLIMIT_CPU, seconds, seconds + 1),
        (resource.RLIMIT_CORE, 0, 0),
    ):  # fmt: skip
        now_soft, now_hard = resource.getrlimit(kind)
        most = _least(hard, now_hard)
        resource.setrlimit(kind, (_least(min(soft, most), now_soft), most))


def _least(ours: int, theirs: int) -> int:
    """The stricter of two limits, of which the second may be none."""
    return ours if theirs == resource.RLIM_INFINITY else min(ours, theirs)


def main() -> None:
    """Reads one request from standard input and writes its reply, {"report": ...}, {"text": ...} or {"error": ...}."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    options = json.loads(sys.stdin.buffer.readline())
    data = sys.stdin.buffer.read()
    limit(options["memory_bytes"], int(options["seconds"]) + 1)
    gc.disable()  # this process ends with its answer; on the way there, a third of the time would go into collections
    try:
        reply = answer(options, data)
    except UnicodeDecodeError:
        reply = {"error": "it is neither MLIR text nor MLIR bytecode"}
    except (PropagationError, CollectivesError, MeshrtError) as e:
        reply = {"error": str(e)}
    except (MemoryError, RecursionError) as e:
        reply = {"error": f"the module is too large or too deeply nested ({type(e).__name__})"}
    answers.write(json.dumps(reply))
    answers.flush()
    os._exit(0)  # nothing to tear down, and a module of a million operations takes long to free


if __name__ == "__main__":
    main()
