"""What the hardware's own compiler says of a program over a mesh, beside the estimates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshrt.errors import ArgumentValueError, InspectError, MeshrtError, MissingCompilerError, UnsupportedError
from meshrt.inspect.target import ForeignText, Hook, lower_target, split_target
from meshrt.runtime.topology import platform_of, topology_of

__all__ = ["CompilerFigures", "compiled_figures"]


@dataclass(frozen=True, slots=True)
class CompilerFigures:
    """Of one device: the most bytes that the compiled program holds, and the compiler's own estimate of what a run
    takes, where it gives one, in seconds. `why` says why it was not compiled; the rest means nothing then."""

    peak: float
    seconds: float | None = None
    why: str | None = None


def compiled_figures(target: str, mesh: Mapping[str, int], topology: str, hook: Hook) -> CompilerFigures:
    """The figures of `FILE.py:FUNCTION` over a mesh, compiled for a topology that need not be here.

    Raises:
      InspectError: the target is no function of ours, the topology has no such compiler, or it is not installed.
    """
    python = split_target(target)
    if python is None:
        raise InspectError(f"{target}: --compile takes FILE.py:FUNCTION; a module is written for a platform already")
    try:
        hardware = topology_of(topology)
    except ArgumentValueError as e:
        raise InspectError(f"--compile: {e}") from None
    lowered = lower_target(*python, dict(mesh), hook, platform_of(hardware))
    if isinstance(lowered, ForeignText):
        raise InspectError(f"{target} was jitted by jax; --compile takes a function that meshrt jits")
    try:
        made = lowered.compile(topology=hardware)
    except (UnsupportedError, MissingCompilerError) as e:
        raise InspectError(f"{target}: {e}") from e
    except MeshrtError as e:
        return CompilerFigures(0.0, why=str(e).partition("\n")[0])
    cost = made.cost_analysis()
    return CompilerFigures(float(made.memory_analysis().peak_memory_in_bytes), _seconds(cost))


def _seconds(cost: Mapping[str, float] | None) -> float | None:
    """The compiler's estimate of a run; None where it makes none."""
    estimate = None if cost is None else cost.get("optimal_seconds")
    return estimate if estimate is not None and estimate > 0 else None
