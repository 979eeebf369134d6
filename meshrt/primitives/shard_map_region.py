"""Manual regions: the mesh and axes of a `shard_map`, and how types look from its two sides.

A value of type f32[8,4] that enters with the spec P("x", None) over x=4 is f32[2,4]{V:x} inside: the size of a split
dimension is divided, and the value varies over the axes that split it. One that leaves with that spec is f32[8,4]
again. Axes that a spec names as unreduced or reduced are so on both sides: with P(unreduced={"x"}) each device sees its
addend, f32[8,4]{U:x}.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from meshrt.core.axes import bind_axes, manual_axes
from meshrt.core.basic.agreement import varying_types
from meshrt.core.explicit import reduced_of, unreduced_of
from meshrt.core.references import is_ref_type
from meshrt.core.types import ShapedArray
from meshrt.sharding.context import tracing_mesh
from meshrt.sharding.mesh import AbstractMesh, AxisType, Mesh
from meshrt.sharding.spec import PartitionSpec, axes_of
from meshrt.sharding.typed import entries_of, type_sharding

__all__: list[str] = []

_WHOLE = PartitionSpec()


class Region(NamedTuple):
    """A manual region: where it is, which axes it makes Manual, and whether types inside say what values vary over.

    `mesh` has the axis types of the outside: axes that an enclosing region has made Manual are so in it. Devices are
    known where the user gave a Mesh.
    """

    mesh: Mesh | AbstractMesh
    manual_axes: tuple[str, ...]  # in the order of the mesh
    check_vma: bool

    def __repr__(self) -> str:
        return f"{self.mesh.abstract_mesh} manual={self.manual_axes} check_vma={self.check_vma}"

    @property
    def outside(self) -> AbstractMesh:
        return self.mesh.abstract_mesh

    @property
    def inside(self) -> AbstractMesh:
        """The mesh as it is seen inside."""
        return _manual_mesh(self.outside, self.manual_axes)

    @property
    def size(self) -> int:
        """How many instances of the body run."""
        return math.prod(self.mesh._sizes[a] for a in self.manual_axes)

    @property
    def is_full(self) -> bool:
        """Whether no axis is left to be Auto or Explicit inside."""
        return self.inside.are_all_axes_manual

    def parts(self, entry: Any) -> int:
        """Into how many parts an entry of a spec splits a dimension."""
        return math.prod(self.mesh._sizes[a] for a in axes_of(entry))

    def local(self, spec: PartitionSpec, aval: ShapedArray) -> ShapedArray:
        """The type inside of a value of type `aval` that enters with `spec`."""
        if is_ref_type(aval):
            return aval.update(inner_aval=self.local(spec, aval.inner_aval))  # type: ignore[attr-defined]
        shape = tuple(n // self.parts(e) for n, e in zip(aval.shape, spec.padded(aval.ndim)))
        vma = aval.vma
        if self.check_vma and spec.axes:
            vma = vma.union(map(str, spec.axes))
        sharding = self._sharding_inside(spec, aval)
        return ShapedArray(shape, aval.dtype, aval.weak_type, sharding, vma, aval.memory_space)

    def whole(self, spec: PartitionSpec, aval: ShapedArray) -> ShapedArray:
        """The type outside of a value of type `aval` that leaves with `spec`."""
        shape = tuple(n * self.parts(e) for n, e in zip(aval.shape, spec.padded(aval.ndim)))
        sharding, vma = self._sharding_outside(spec, aval), aval.vma.difference(self.manual_axes)
        return ShapedArray(shape, aval.dtype, aval.weak_type, sharding, vma, aval.memory_space)

    def _sharding_inside(self, spec: PartitionSpec, aval: ShapedArray) -> Any:
        """Over the Explicit axes that stay such inside, and the sums over Manual ones. Without types that say what
        varies, a value that is summed up over Manual axes is each device's addend.
        """
        mine = spec if self.check_vma else _WHOLE
        if aval.explicit is None and not mine.unreduced and not mine.reduced:
            return None
        return type_sharding(
            self.inside, entries_of(aval), mine.unreduced | self._outer(unreduced_of(aval)),
            mine.reduced | self._outer(reduced_of(aval)),
        )  # fmt: skip

    def _sharding_outside(self, spec: PartitionSpec, aval: ShapedArray) -> Any:
        unreduced = spec.unreduced | self._outer(unreduced_of(aval))
        reduced = spec.reduced | self._outer(reduced_of(aval))
        if AxisType.Explicit not in self.outside.axis_types and not unreduced and not reduced:
            return None
        both = zip(spec.padded(aval.ndim), entries_of(aval))
        entries = [(*axes_of(mine), *axes_of(free)) for mine, free in both]
        return type_sharding(self.outside, entries, unreduced, reduced)

    def _outer(self, axes: frozenset[Any]) -> frozenset[Any]:
        """The axes that are on both sides what they are: Explicit, or Manual of an enclosing region."""
        return axes.difference(self.manual_axes)

    def spread(self, aval: ShapedArray, spare: Collection[Hashable]) -> PartitionSpec:
        """The spec with which a value inside leaves whole, to come back later: its first dimension is split over all
        axes that it varies over; without types that say so, over all axes of the region that are not `spare`.
        """
        if not self.check_vma:
            axes = tuple(a for a in self.manual_axes if a not in spare)
            return PartitionSpec(*[axes] if axes else ())
        axes = tuple(a for a in self.manual_axes if a in aval.vma)
        unreduced, reduced = (s.intersection(self.manual_axes) for s in (unreduced_of(aval), reduced_of(aval)))
        return PartitionSpec(*[axes] if axes else (), unreduced=unreduced, reduced=reduced)

    def unmentioned(self, spec: PartitionSpec, spare: Collection[Hashable] = ()) -> tuple[str, ...]:
        """The axes of the region, those that are `spare` left out, along which a value that enters or leaves with
        `spec` is one value.
        """
        named = {*spec.axes, *spec.unreduced, *spec.reduced, *spare}
        return tuple(a for a in self.manual_axes if a not in named)

    @contextmanager
    def enter(self) -> Iterator[None]:
        """The context in which the body is traced and transformed."""
        axes = manual_axes(self.inside, self.manual_axes, self.check_vma)
        with bind_axes(axes), tracing_mesh(self.inside), varying_types() if self.check_vma else nullcontext():
            yield


@functools.lru_cache(maxsize=256)
def _manual_mesh(mesh: AbstractMesh, axes: tuple[str, ...]) -> AbstractMesh:
    return mesh.update_axis_types(dict.fromkeys(axes, AxisType.Manual))


def inserted(spec: PartitionSpec, dim: int, entry: Any) -> PartitionSpec:
    """`spec` for a value with one more dimension, at `dim`, of that entry."""
    entries = list(spec.partitions) + [None] * (dim - len(spec.partitions))
    entries.insert(dim, entry)
    while entries and entries[-1] is None:
        entries.pop()
    return spec.update(partitions=entries)
