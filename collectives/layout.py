"""Layouts: which part of a tensor each device holds, in terms of atoms.

An *atom* is an indivisible piece of a mesh axis: every axis is cut at each sub-axis boundary that the program
uses and then into primes, major to minor. Atoms are small integers, so a layout is a tuple of tuples of integers
(one tuple per dimension, major to minor) that hashes and compares fast and makes sub-axes a non-topic: `"x":(2)4`
is simply two of the three atoms of an axis of size 8.

A dimension of size n over atoms with product p is held in pieces of ceil(n/p): device coordinate c holds
[c*s, (c+1)*s), and what lies beyond n is padding with unspecified content.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from propagation.model import AxisRef, Mesh, TensorSharding

from .errors import MeshMismatchError, UnsupportedShardingError
from .heuristics import MAX_DEVICES

__all__ = ["Atoms", "Dims", "count_of", "local_shape", "replicated"]

Dims = tuple[tuple[int, ...], ...]


def replicated(rank: int) -> Dims:
    """The layout of `rank` unsharded dimensions."""
    return ((),) * rank


class Atoms:
    """The atoms of one mesh.

    sizes    size of each atom, major to minor over the whole mesh (flattened device order)
    strides  distance in flattened device ids between neighbours along each atom
    names    (axis name, pre, size) of each atom

    Raises `UnsupportedShardingError` for a mesh of more devices than programs can name.
    """

    __slots__ = ("_groups", "_layouts", "_of_axis", "count", "mesh", "names", "sizes", "strides")

    def __init__(self, mesh: Mesh, used: Iterable[AxisRef] = ()):
        if mesh.size > MAX_DEVICES:
            raise UnsupportedShardingError(
                f"mesh @{mesh.name} {mesh.to_text()} has {mesh.size} devices; programs name each device in the groups "
                f"that talk, so at most {MAX_DEVICES} are partitioned over: use a smaller mesh"
            )
        cuts: dict[str, set[int]] = {name: {1, size} for name, size in mesh.axes}
        for axis in used:
            cuts[axis.name].update((axis.pre, axis.end))
        self.mesh = mesh
        self.names: list[tuple[str, int, int]] = []
        for name, size in mesh.axes:
            self.names += [(name, pre, n) for pre, n in _refine(name, size, cuts[name])]
        self.sizes = tuple(n for _, _, n in self.names)
        self.count = mesh.size
        strides, stride = [], 1
        for n in reversed(self.sizes):
            strides.append(stride)
            stride *= n
        self.strides = tuple(reversed(strides))
        self._of_axis: dict[tuple[str, int, int], tuple[int, ...]] = {}
        self._layouts: dict[TensorSharding, Dims] = {}
        self._groups: dict[tuple[int, ...], np.ndarray] = {}

    def of_axis(self, axis: AxisRef) -> tuple[int, ...]:
        """The atoms of an axis or sub-axis, major to minor. Raises `UnsupportedShardingError` for a sub-axis that atoms
        do not make up."""
        key = (axis.name, axis.pre, axis.size)
        found = self._of_axis.get(key)
        if found is None:
            inside = [
                i
                for i, (name, pre, n) in enumerate(self.names)
                if name == axis.name and axis.pre <= pre and pre * n <= axis.end
            ]
            if math.prod(self.sizes[i] for i in inside) != axis.size:
                raise UnsupportedShardingError(
                    f"sub-axis {axis.to_text(self.mesh)} overlaps another sub-axis of {axis.name!r} in a way that no "
                    "common refinement has; use sub-axes whose boundaries divide each other"
                )
            found = self._of_axis[key] = tuple(inside)
        return found

    def of_axes(self, axes: Iterable[AxisRef]) -> tuple[int, ...]:
        """The atoms of axes, one axis after the other."""
        return tuple(a for axis in axes for a in self.of_axis(axis))

    def dims(self, sharding: TensorSharding) -> Dims:
        """The layout of a sharding (its unreduced axes are not part of it). Raises `MeshMismatchError` for one over
        other axes."""
        found = self._layouts.get(sharding)
        if found is None:
            if sharding.mesh.axes != self.mesh.axes and not sharding.mesh.is_empty:
                raise MeshMismatchError(
                    f"the sharding {sharding.to_text()} is over mesh {sharding.mesh.to_text()}, the program is "
                    f"partitioned over {self.mesh.to_text()}; use one mesh shape per program"
                )
            found = self._layouts[sharding] = tuple(self.of_axes(d.axes) for d in sharding.dims)
        return found

    def product(self, atoms: Iterable[int]) -> int:
        """Over how many devices `atoms` spread."""
        return count_of(atoms, self.sizes)

    def groups(self, atoms: Sequence[int]) -> np.ndarray:
        """i64[groups, members]: devices that differ only in `atoms`, each group ordered by them, major to minor."""
        key = tuple(atoms)
        found = self._groups.get(key)
        if found is None:
            ids = np.arange(self.count, dtype=np.int64).reshape(self.sizes or (1,))
            rest = [i for i in range(len(self.sizes)) if i not in key]
            order = rest + list(key) if self.sizes else [0]
            found = self._groups[key] = ids.transpose(order).reshape(-1, self.product(key))
        return found

    def coordinate(self, atoms: Sequence[int]) -> np.ndarray:
        """i64[devices]: each device's position along `atoms` (mixed radix, the first atom most major)."""
        ids = np.arange(self.count, dtype=np.int64)
        out = np.zeros(self.count, dtype=np.int64)
        for a in atoms:
            out = out * self.sizes[a] + ids // self.strides[a] % self.sizes[a]
        return out

    def axes(self, atoms: Sequence[int]) -> tuple[AxisRef, ...]:
        """`atoms` as axis references, neighbours of one axis joined."""
        out: list[AxisRef] = []
        for a in atoms:
            name, pre, n = self.names[a]
            if out and out[-1].name == name and out[-1].end == pre:
                out[-1] = AxisRef(name, out[-1].pre, out[-1].size * n)
            else:
                out.append(AxisRef(name, pre, n))
        return tuple(out)

    def axes_text(self, atoms: Sequence[int]) -> str:
        """`data,model:(2)2` for messages and plans."""
        return ",".join(a.name if a.is_full(self.mesh) else f"{a.name}:({a.pre}){a.size}" for a in self.axes(atoms))

    def text(self, shape: Sequence[int], dtype: str, dims: Dims) -> str:
        """`f32[2048@data,256]`."""
        parts = [f"{n}@{self.axes_text(d)}" if d else str(n) for n, d in zip(shape, dims)]
        return f"{dtype}[{','.join(parts)}]"


def _refine(name: str, size: int, cuts: set[int]) -> list[tuple[int, int]]:
    """(pre, size) of the atoms of one axis: the cuts that form a chain of divisors, then primes between them."""
    chain = [1]
    for cut in sorted(cuts):
        if cut % chain[-1] == 0 and size % cut == 0 and cut != chain[-1]:
            chain.append(cut)
    out = []
    for low, high in itertools.pairwise(chain):
        pre = low
        for p in _primes(high // low):
            out.append((pre, p))
            pre *= p
    return out


def _primes(n: int) -> list[int]:
    out, p = [], 2
    while n > 1:
        while n % p == 0:
            out.append(p)
            n //= p
        p = p + 1 if p * p <= n else n
    return out


def local_shape(shape: Sequence[int], dims: Dims, sizes: Sequence[int]) -> tuple[int, ...]:
    """The shape of one device's piece; `sizes` are the atom sizes."""
    return tuple([-(-n // count_of(atoms, sizes)) if atoms else n for n, atoms in zip(shape, dims)])


def count_of(atoms: Iterable[int], sizes: Sequence[int]) -> int:
    """How many devices differ in `atoms`."""
    n = 1
    for a in atoms:
        n *= sizes[a]
    return n
