"""Programs with references as functions of values, by the names of `jax._src.state.discharge`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt.core.jaxpr import ClosedJaxpr
from meshrt.experimental.kernels.scopes import run_state
from meshrt.transforms.discharge import discharge_state as _discharge_state

__all__ = ["discharge_state", "run_state", "run_state_reference"]


def discharge_state(
    closed_jaxpr: Any, *, should_discharge: bool | Sequence[bool] = True, lower: bool = True
) -> ClosedJaxpr:
    """The program without references, which gives after its results what each of them holds in the end."""
    return _discharge_state(closed_jaxpr, should_discharge)


def run_state_reference(f: Callable[..., Any]) -> Callable[..., Any]:
    """As `run_state`."""
    return run_state(f)
