"""Programs whose sub-axes overlap such that no refinement of the mesh has them all.

An axis "x" of 6 devices may be used as "x":(1)2 by one tensor and as "x":(1)3 by another: the first is split where the
device number passes 3, the second where it passes 2 and 4, and no list of smaller axes makes up both. Layouts here are
made of atoms, which do. So one chain of boundaries is chosen for every axis, and any other part of the axis is replaced
by atoms of the same sizes:

    "x":(1)2 and "x":(2)3 are chosen:   [{"x":(1)3}] becomes [{"x":(2)3}]
                                        [{"x":(1)3}, {"x":(3)2}] becomes [{"x":(2)3}, {"x":(1)2}]

A tensor laid out so has the pieces that it had, on other devices. Inside of the program that is as good; arguments and
results change hands at its edges, by one collective permute each. There are few chains: the program is partitioned with
those of manual computations and of the most bytes at its edges, and the one that sends least is taken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from propagation.model import AxisRef, DimSharding, Mesh, TensorSharding
from propagation.program import Value

from .annotations import KnownShardings
from .cost import item_bytes
from .heuristics import OVERLAPPING_CHAINS
from .layout import Atoms

__all__ = ["Overlapping"]

CAUSE = "a sub-axis that overlaps others"
_Digit = tuple[int, int]  # (pre, size) of an atom within its axis


class Overlapping:
    """What stands for shardings in a program of which `candidates` says that it needs that.

    atoms   those of the boundaries that were chosen
    """

    def __init__(self, mesh: Mesh, cuts: Mapping[str, Collection[int]]):
        self.mesh = mesh
        self.cuts = {name: {1, size, *cuts.get(name, ())} for name, size in mesh.axes}
        self.atoms = Atoms(mesh, [AxisRef(name, 1, cut) for name, own in self.cuts.items() for cut in own])
        self._images: dict[TensorSharding, TensorSharding] = {}

    @classmethod
    def candidates(
        cls, known: KnownShardings, used: Iterable[AxisRef], mesh: Mesh, results: Sequence[TensorSharding | None]
    ) -> list[Overlapping]:
        """None for programs of which the axes and sub-axes `used` have a common refinement: nearly all. Else those of
        some chains, that of the most bytes first."""
        cuts: dict[str, set[int]] = {}
        for axis in used:
            cuts.setdefault(axis.name, set()).update((axis.pre, axis.end))
        if all(_is_chain(sorted(own)) for own in cuts.values()):
            return []
        weights: dict[str, dict[int, float]] = {name: dict.fromkeys(own, 0.0) for name, own in cuts.items()}
        main = known.program.main
        edges = [*[(known.sharding(a), a) for a in main.args], *zip(results, main.returned, strict=True)]
        for sharding, value in edges:
            for axis in _axes_of(sharding):
                for cut in (axis.pre, axis.end):
                    weights[axis.name][cut] += _bytes(value)
        for sharding in known.shardings.table:  # a tie goes to what is used most inside
            for axis in _axes_of(sharding):
                weights[axis.name][axis.pre] += 1.0
                weights[axis.name][axis.end] += 1.0
        for axis in known.used_by_devices():  # what stands for these has to be brought in and out
            weights[axis.name][axis.pre] = weights[axis.name][axis.end] = math.inf
        found: list[dict[str, tuple[int, ...]]] = [{}]
        for name, own in weights.items():
            found = [{**cuts, name: chain} for chain in _chains(own) for cuts in found]
        weigh = lambda cuts: sum(weights[name][cut] for name, chain in cuts.items() for cut in chain)
        found.sort(key=weigh, reverse=True)
        return [cls(mesh, cuts) for cuts in found[:OVERLAPPING_CHAINS]]

    def image(self, sharding: TensorSharding | None) -> TensorSharding | None:
        """What stands for a sharding: itself, if the atoms make it up."""
        if sharding is None:
            return None
        found = self._images.get(sharding)
        if found is None:
            found = self._images[sharding] = self._image(sharding)
        return found

    def replaced(self, sharding: TensorSharding | None, names: Collection[str]) -> AxisRef | None:
        """A part of one of the axes `names` for which others stand in a sharding's image."""
        return next((a for a in _axes_of(sharding) if a.name in names and not self._has(a)), None)

    def images(self, shardings: Iterable[TensorSharding | None]) -> tuple[Any, ...]:
        """The images of several."""
        return tuple(map(self.image, shardings))

    def _image(self, sharding: TensorSharding) -> TensorSharding:
        used = _axes_of(sharding)
        if all(self._has(axis) for axis in used):
            return sharding
        free: dict[str, list[_Digit]] = {name: [] for name, _ in self.mesh.axes}
        for name, pre, size in self.atoms.names:
            if not any(a.name == name and self._has(a) and a.pre <= pre < a.end for a in used):
                free[name].append((pre, size))
        made = {axis: self._parts(axis, free[axis.name]) for axis in dict.fromkeys(used)}
        dims = [DimSharding([p for a in d.axes for p in made[a]], d.is_open, d.priority) for d in sharding.dims]
        unreduced = [p for a in sharding.unreduced for p in made[a]]
        return TensorSharding(self.mesh, dims, (), sorted(unreduced, key=self.mesh.sort_key), sharding.reduction)

    def _has(self, axis: AxisRef) -> bool:
        own = self.cuts[axis.name]
        return axis.pre in own and axis.end in own

    def _parts(self, axis: AxisRef, free: list[_Digit]) -> list[AxisRef]:
        """Parts of the axis with the atoms of `free`, from which they are taken, that make up as many devices."""
        if self._has(axis):
            return [axis]
        parts: list[AxisRef] = []
        left = axis.size
        for digit in list(free):
            pre, size = digit
            if left % size == 0:
                left //= size
                free.remove(digit)
                if parts and parts[-1].end == pre:
                    parts[-1] = AxisRef(axis.name, parts[-1].pre, parts[-1].size * size)
                else:
                    parts.append(AxisRef(axis.name, pre, size))
        assert left == 1, "the sub-axes of a sharding are parts of the axis that do not overlap"
        return parts

    def pairs(self, before: TensorSharding, after: TensorSharding) -> np.ndarray | None:
        """i64[devices, 2]: who sends its piece to whom, from one sharding to another that has the same pieces. Devices
        keep what they hold where they can. None if all do."""
        have, want = self._pieces(before), self._pieces(after)
        sender = np.arange(self.mesh.size, dtype=np.int64)
        moving = np.nonzero(have != want)[0]
        if not len(moving):
            return None
        sender[moving[np.argsort(want[moving], kind="stable")]] = moving[np.argsort(have[moving], kind="stable")]
        return np.stack([sender, np.arange(self.mesh.size, dtype=np.int64)], axis=1)

    def _pieces(self, sharding: TensorSharding) -> np.ndarray:
        """i64[devices]: the number of each device's piece."""
        ids = np.arange(self.mesh.size, dtype=np.int64)
        out = np.zeros(self.mesh.size, dtype=np.int64)
        place, stride = {}, self.mesh.size
        for name, size in self.mesh.axes:
            stride //= size
            place[name] = ids // stride % size
        for axis in _axes_of(sharding):
            out = out * axis.size + place[axis.name] // (self.mesh.axis_size(axis.name) // axis.end) % axis.size
        return out


def _axes_of(sharding: TensorSharding | None) -> list[AxisRef]:
    if sharding is None:
        return []
    return [*[a for d in sharding.dims for a in d.axes], *sharding.unreduced]


def _bytes(value: Value) -> float:
    return value.type.size * item_bytes(value.type.dtype) if value.type.is_tensor else 0.0


def _is_chain(cuts: Sequence[int]) -> bool:
    return all(high % low == 0 for low, high in itertools.pairwise(cuts))


def _chains(weights: dict[int, float]) -> list[tuple[int, ...]]:
    """The chains of boundaries that divide one another and lack none that fits; those that weigh most first."""
    found: list[tuple[int, ...]] = []

    def grow(chain: tuple[int, ...], rest: list[int]) -> None:
        after = [c for c in rest if not chain or c % chain[-1] == 0]
        for i, cut in enumerate(after):
            if not any(cut % other == 0 for other in after[:i]):  # `other` fits between
                grow((*chain, cut), after[i + 1 :])
        if not after:
            found.append(chain)

    grow((), sorted(weights))
    weigh = lambda chain: sum(weights[c] for c in chain)
    return sorted(found, key=weigh, reverse=True)[:OVERLAPPING_CHAINS]
