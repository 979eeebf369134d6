"""Layouts: what a search decides about a program, and the shardings of arguments that follow.

A *decision* is a class of dimensions that are sharded alike (`propagation.correspondence`): the batch, the features,
the heads, the vocabulary. Blocks that repeat under other numbers (`layers/0/w`, `layers/1/w`) are one decision. A
layout gives each decision axes of the mesh; `stored` are axes over which arguments are split further, along whatever
dimension is left, as parameters are that are gathered before use (FSDP: Zhao et al., arXiv 2304.11277; ZeRO-3:
Rajbhandari et al., arXiv 1910.02054).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collectives.cost import item_bytes
from meshrt.inspect.annotations import ArgumentAxes
from meshrt.pipeline.names import path_of
from propagation.correspondence import ArgumentDim, DimensionClass

__all__ = ["Argument", "Decision", "Layout", "argument_axes", "decisions_of", "pattern_of"]


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of the program: its name as its user writes it, shape and element type (MLIR's, `f32`)."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> float:
        size = item_bytes(self.dtype)
        for n in self.shape:
            size *= n
        return size


@dataclass(frozen=True, slots=True)
class Decision:
    """Dimensions of arguments that get the same axes; `name` is that of one of them (`params/*/w1:0`), `weight` the
    bytes of the arguments times the operations that the class runs through."""

    name: str
    dims: tuple[ArgumentDim, ...]
    weight: float


@dataclass(frozen=True, slots=True)
class Layout:
    """Axes by decision (by its position), and those over which arguments are stored split; hashable."""

    axes: tuple[tuple[int, tuple[str, ...]], ...] = ()
    stored: tuple[str, ...] = ()
    _by_decision: Mapping[int, tuple[str, ...]] = field(init=False, compare=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_decision", dict(self.axes))

    def of(self, decision: int) -> tuple[str, ...]:
        return self._by_decision.get(decision, ())

    def toggled(self, decision: int, axis: str) -> Layout:
        """With `axis` added to a decision as its minor axis, or taken away."""
        have = self.of(decision)
        now = tuple(a for a in have if a != axis) if axis in have else (*have, axis)
        rest = {**self._by_decision, decision: now}
        return Layout(tuple(sorted((d, a) for d, a in rest.items() if a)), self.stored)

    def storing(self, axis: str) -> Layout:
        """With `axis` among those that arguments are stored over, or no more."""
        have = self.stored
        return Layout(self.axes, tuple(a for a in have if a != axis) if axis in have else (*have, axis))


_UNNAMED = re.compile(r"arg\d+")


def pattern_of(name: str) -> str:
    """The path with numbers as `*`, which names what repeats: `state/params/layers/*/w`."""
    return "/".join("*" if part.isdigit() else part for part in path_of(name).split("/"))


def decisions_of(classes: Sequence[DimensionClass], arguments: Sequence[Argument]) -> list[Decision]:
    """The decisions of a program, the heaviest first."""

    def label(d: ArgumentDim) -> str:
        argument = arguments[d.argument]
        called = (
            f"{argument.dtype}{list(argument.shape)}"
            if _UNNAMED.fullmatch(argument.name)
            else pattern_of(argument.name)
        )
        return f"{called}:{d.dim}"

    together: dict[tuple[str, ...], list[DimensionClass]] = {}
    for found in classes:
        together.setdefault(tuple(sorted({label(d) for d in found.dims})), []).append(found)
    made = []
    for each in together.values():
        dims = tuple(d for c in each for d in c.dims)
        first = max(dims, key=lambda d: (arguments[d.argument].bytes, -d.argument))
        weight = sum(arguments[d.argument].bytes * c.uses for c in each for d in c.dims)
        made.append(Decision(label(first), dims, weight))
    return sorted(made, key=lambda d: -d.weight)


def argument_axes(
    layout: Layout, decisions: Sequence[Decision], arguments: Sequence[Argument], mesh: Mapping[str, int]
) -> list[ArgumentAxes]:
    """The axes of every dimension of every argument. An axis splits the larger of two dimensions that ask for it, and
    none that it does not divide."""
    wanted: list[list[tuple[str, ...]]] = [[()] * len(a.shape) for a in arguments]
    for number, decision in enumerate(decisions):
        for d in decision.dims if layout.of(number) else ():
            wanted[d.argument][d.dim] = layout.of(number)
    return [_fitting(a, axes, layout.stored, mesh) for a, axes in zip(arguments, wanted)]


def _fitting(
    argument: Argument, wanted: Sequence[tuple[str, ...]], stored: Sequence[str], mesh: Mapping[str, int]
) -> ArgumentAxes:
    """`wanted` as far as axes are free and divide, then the `stored` axes on the largest dimension that they divide,
    rather one that is whole."""
    free = set(mesh)
    left = list(argument.shape)
    axes: list[list[str]] = [[] for _ in argument.shape]

    def split(dim: int, axis: str) -> bool:
        if axis not in free or left[dim] % mesh[axis]:
            return False
        free.discard(axis)
        left[dim] //= mesh[axis]
        axes[dim].append(axis)
        return True

    for dim in sorted(range(len(left)), key=lambda d: (-argument.shape[d], d)):
        for axis in wanted[dim]:
            split(dim, axis)
    for axis in stored:
        for dim in sorted(range(len(left)), key=lambda d: (bool(axes[d]), -left[d], d)):
            if split(dim, axis):
                break
    return tuple(map(tuple, axes))
