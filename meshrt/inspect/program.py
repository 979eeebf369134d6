"""The report of a function of ours, from its stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from collectives.errors import CollectivesError
from collectives.topology import load
from meshrt.errors import InspectError
from meshrt.inspect.annotations import Annotations
from meshrt.inspect.child import answer
from meshrt.inspect.kernels import kernel_rows
from meshrt.inspect.model import report_of
from meshrt.inspect.program_graph import loaded_source, program_row
from meshrt.inspect.relative_paths import relative
from meshrt.inspect.target import ForeignText, Hook, lower_target
from meshrt.pipeline.explain_sent import explained
from meshrt.pipeline.names import names_of
from propagation.errors import PropagationError

__all__ = ["inspect_function"]


def inspect_function(
    path: Path,
    name: str,
    mesh: dict[str, int],
    hook: Hook,
    stage: str | None,
    query: str | None,
    topology: str | None,
    annotations: Annotations | None = None,
    with_program: bool = False,
    rules: Sequence[str] | None = None,
) -> dict[str, Any]:
    """{"report": Report.as_json()} of a function over an AbstractMesh, or {"text": ...} of one of its stages;
    `annotations` say how its arguments are sharded instead, `with_program` asks for all operations, `rules` are those
    of lint that are wanted.

    Raises `InspectError` where the file, the function or the program cannot be used.
    """
    lowered = lower_target(path, name, mesh, hook, annotations=annotations)
    if isinstance(lowered, ForeignText):
        options: dict[str, Any] = {
            "name": f"{path}:{name}", "stage": stage, "explain": query, "topology": topology, "file": None,
            "mesh": None, "annotations": None if annotations is None else asdict(annotations),
            "with_program": with_program, "lint": rules,
        }  # fmt: skip
        try:
            reply = answer(options, lowered.encode(), loaded_source)
        except (PropagationError, CollectivesError) as e:
            raise InspectError(f"{path}:{name}: {e}") from e
        return reply if stage is not None else relative(reply)
    if stage == "lowered":
        return {"text": lowered.as_text()}
    try:
        propagated = lowered.propagate()
        if stage == "propagated":
            return {"text": propagated.as_text()}
        names = names_of(lowered)
        machine = load(topology) if topology else None
        partitioned = propagated.partition(**({} if machine is None else {"topology": machine}))
        decided = partitioned.result.decided(propagated.result)
        explanations = explained(partitioned.result, decided, query, *names)
    except (PropagationError, CollectivesError) as e:
        raise InspectError(f"{path}:{name}: {e}") from e
    if stage == "partitioned":
        return {"text": partitioned.as_text()}
    kernels = kernel_rows(lowered, decided)
    report = report_of(
        f"{path}:{name}", decided, partitioned.result, *names, explanations, kernels=kernels
    )  # fmt: skip
    if with_program:
        report = replace(report, program=program_row(decided, *names))
    if rules is not None:
        from meshrt.inspect.lint import lint, subject_of_stage  # start-up time: few reports are asked for it

        report = replace(report, lint=lint(subject_of_stage(lowered, partitioned.result, machine), rules))
    shown: dict[str, Any] = relative({"report": report.as_json()})
    return shown
