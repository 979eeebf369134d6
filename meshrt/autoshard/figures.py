"""What a candidate costs, and what a program is to a search: plain values that go between processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshrt.autoshard.layouts import Argument
from meshrt.inspect.annotations import ArgumentAxes
from propagation.correspondence import ArgumentDim, DimensionClass

__all__ = ["Figures", "Subject", "impossible", "subject_of"]


@dataclass(frozen=True, slots=True)
class Figures:
    """Predicted for one candidate, per device and run.

    seconds      from begin to end
    computing    of them spent computing
    sending      what the collectives take one after the other, hidden behind computing or not
    bytes        sent by the busiest device
    peak         most bytes held at once
    arguments    bytes of the arguments' parts
    collectives  how many of each kind run
    why          why it cannot be made; the rest means nothing then
    """

    seconds: float
    computing: float
    sending: float
    bytes: float
    peak: float
    arguments: float
    collectives: Mapping[str, int]
    why: str | None = None

    @property
    def exposed(self) -> float:
        """Seconds in which a device waits for messages."""
        return max(0.0, self.seconds - self.computing)

    @property
    def bounds(self) -> tuple[float, float]:
        """Seconds if everything that can be hidden is, and if nothing is: the error bar of `seconds`."""
        return min(self.seconds, max(self.computing, self.sending)), max(self.seconds, self.computing + self.sending)


def impossible(why: str) -> Figures:
    """The figures of a candidate that cannot be made."""
    return Figures(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, {}, why)


@dataclass(frozen=True, slots=True)
class Subject:
    """A program: its arguments, the classes of their dimensions, the axes that they have (None: nothing is said), and
    the mesh that these are over (None: it names none)."""

    arguments: tuple[Argument, ...]
    classes: tuple[DimensionClass, ...]
    axes: tuple[ArgumentAxes | None, ...]
    mesh: Mapping[str, int] | None

    def named(self, names: Sequence[str]) -> tuple[Argument, ...]:
        """The arguments under other names."""
        return tuple(Argument(n, a.shape, a.dtype) for n, a in zip(names, self.arguments, strict=True))


def subject_of(data: Mapping[str, Any]) -> Subject:
    """The inverse of what `judge.described` gives."""
    rows = data["arguments"]
    return Subject(
        tuple(Argument(r["name"], tuple(r["shape"]), r["dtype"]) for r in rows),
        tuple(
            DimensionClass(tuple(ArgumentDim(**d) for d in c["dims"]), c["is_summed"], c["uses"])
            for c in data["classes"]
        ),
        tuple(None if r["axes"] is None else tuple(map(tuple, r["axes"])) for r in rows),
        data["mesh"],
    )
