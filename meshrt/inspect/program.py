"""The report of a function of ours, from its stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from collectives.errors import CollectivesError
from collectives.topology import load
from meshrt.inspect.explain import explain
from meshrt.inspect.model import InspectError, report_of
from meshrt.inspect.target import lower_target
from propagation.errors import PropagationError

__all__ = ["inspect_function", "names_of"]


def inspect_function(
    path: Path, name: str, mesh: dict[str, int], hook: str, stage: str | None, query: str | None, topology: str | None
) -> dict[str, Any]:
    """{"report": Report.as_json()} of a function over an AbstractMesh, or {"text": ...} of one of its stages.

    Raises `InspectError` where the file, the function or the program cannot be used.
    """
    lowered = lower_target(path, name, mesh, hook)
    if stage == "lowered":
        return {"text": lowered.as_text()}
    try:
        propagated = lowered.propagate()
        if stage == "propagated":
            return {"text": propagated.as_text()}
        names = names_of(lowered)
        explanations = explain(propagated.result, query, *names) if query else ()
        options = {"topology": load(topology)} if topology else {}
        partitioned = propagated.partition(**options)
    except (PropagationError, CollectivesError) as e:
        raise InspectError(f"{path}:{name}: {e}") from e
    if stage == "partitioned":
        return {"text": partitioned.as_text()}
    report = report_of(f"{path}:{name}", propagated.result, partitioned.result, *names, explanations)
    return {"report": report.as_json()}


def names_of(lowered: Any) -> tuple[list[str], list[str]]:
    """Names of the module's arguments (captured arrays first) and results, as the user would write them."""
    paths = lowered.record.arg_paths()
    constants = [f"captured{i}" for i in range(len(lowered.module.consts))]
    return [*constants, *[paths[i] for i in lowered.module.kept]], lowered.record.out_paths()
