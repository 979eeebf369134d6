"""Writing single operations on one device's pieces: constants, positions, slices, pads, transpositions.

What asks for the same thing twice in a scope gets it once: these operations are hash-consed (`Region.shared`), and what
depends on nothing but the device stands at the start of the function (`Region.entry`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from propagation.ops import REDUCTIONS

from ..layout import Atoms
from .attributes import NONE, Dense, DeviceLists
from .operations import attributes, splat_constant
from .program import LocalValue, ModuleBuilder, Region

__all__ = ["REDUCERS", "Builder", "zero_literal"]

# The operation that combines partial results of each kind.
REDUCERS = {row.kind: row.op for row in REDUCTIONS.values()}


class Builder:
    """Writes operations into the regions of a module. `platform` is whose compiler makes a program of it, if that is
    known."""

    def __init__(self, atoms: Atoms, module: ModuleBuilder, platform: str | None = None):
        self.atoms = atoms
        self.sizes = atoms.sizes
        self.builder = module
        self.platform = platform

    # -- scalars and positions ------------------------------------------------------------------------------

    def index(self, region: Region, value: int) -> LocalValue:
        """An i32 scalar constant."""
        return region.entry("stablehlo.constant", (), (), "i32", splat_constant(str(value), (), "i32"))

    def coordinate(self, region: Region, atoms: Sequence[int]) -> LocalValue:
        """This device's position along `atoms` (i32 scalar), the first most major."""
        device = region.entry("stablehlo.replica_id", (), (), "ui32")
        device = region.entry("stablehlo.convert", (device,), (), "i32")
        out = None
        for stride, size in _digits(atoms, self.sizes, self.atoms.strides):
            digit = device
            if stride > 1:
                digit = region.entry("stablehlo.divide", (digit, self.index(region, stride)), (), "i32")
            if stride * size < self.atoms.count:
                digit = region.entry("stablehlo.remainder", (digit, self.index(region, size)), (), "i32")
            if out is not None:
                out = region.entry("stablehlo.multiply", (out, self.index(region, size)), (), "i32")
                digit = region.entry("stablehlo.add", (out, digit), (), "i32")
            out = digit
        return self.index(region, 0) if out is None else out

    def offset(self, region: Region, atoms: Sequence[int], piece: int) -> LocalValue:
        """Where this device's piece starts in a dimension cut by `atoms` into pieces of `piece` (i32 scalar)."""
        position = self.coordinate(region, atoms)
        if piece == 1 or not atoms:
            return position
        return region.entry("stablehlo.multiply", (position, self.index(region, piece)), (), "i32")

    def constant(self, region: Region, shape: tuple[int, ...], dtype: str, literal: str) -> LocalValue:
        """A splat constant, at the entry of the function."""
        attrs = splat_constant(literal, (), dtype)
        scalar = region.entry("stablehlo.constant", (), (), dtype, attrs)
        return scalar if not shape else self.splat(region, scalar, shape)

    def splat(self, region: Region, scalar: LocalValue, shape: tuple[int, ...]) -> LocalValue:
        """A scalar repeated over `shape`."""
        if not shape:
            return scalar
        attrs = attributes("stablehlo.broadcast_in_dim", ())
        return region.shared("stablehlo.broadcast_in_dim", (scalar,), shape, scalar.dtype, attrs)

    def zero(self, region: Region, shape: tuple[int, ...], dtype: str) -> LocalValue:
        return self.constant(region, shape, dtype, zero_literal(dtype))

    # -- local pieces ---------------------------------------------------------------------------------------

    def pad(
        self,
        region: Region,
        x: LocalValue,
        dim: int,
        low: int,
        high: int,
        fill: LocalValue | None = None,
        loc: str = "",
        inner: int = 0,
    ) -> LocalValue:
        """`x` with `low` and `high` elements of `fill` (zero by default) added to the ends of `dim`, `inner` between
        neighbours; negative amounts at the ends cut."""
        if not low and not high and not inner:
            return x
        fill = self.zero(region, (), x.dtype) if fill is None else fill
        shape = _with(x.shape, dim, x.shape[dim] + max(0, x.shape[dim] - 1) * inner + low + high)
        zeros = [0] * len(shape)
        amounts = [_with(zeros, dim, n) for n in (low, high, inner)]
        attrs = attributes("stablehlo.pad", *amounts)
        return region.shared("stablehlo.pad", (x, fill), shape, x.dtype, attrs, loc)

    def cut(
        self, region: Region, x: LocalValue, dim: int, start: int, stop: int, loc: str = "", stride: int = 1
    ) -> LocalValue:
        """`x[start:stop:stride]` along `dim`, static."""
        if start == 0 and stop == x.shape[dim] and stride == 1:
            return x
        ones = [1] * len(x.shape)
        starts, limits = _with([0] * len(x.shape), dim, start), _with(x.shape, dim, stop)
        shape = _with(x.shape, dim, -(-(stop - start) // stride))
        attrs = attributes("stablehlo.slice", starts, limits, _with(ones, dim, stride))
        return region.shared("stablehlo.slice", (x,), shape, x.dtype, attrs, loc)

    def window(
        self, region: Region, x: LocalValue, dim: int, start: LocalValue, size: int, loc: str = ""
    ) -> LocalValue:
        """`size` elements of `x` along `dim` from the i32 scalar `start`."""
        zero = self.index(region, 0)
        starts = [start if d == dim else zero for d in range(len(x.shape))]
        shape = _with(x.shape, dim, size)
        attrs = attributes("stablehlo.dynamic_slice", shape)
        return region.shared("stablehlo.dynamic_slice", (x, *starts), shape, x.dtype, attrs, loc)

    def repeat(self, region: Region, x: LocalValue, dim: int, times: int, loc: str = "") -> LocalValue:
        """`x` laid `times` times one behind the other along `dim`."""
        wide = (*x.shape[:dim], times, *x.shape[dim:])
        dims = tuple([d + (d >= dim) for d in range(len(x.shape))])
        attrs = attributes("stablehlo.broadcast_in_dim", dims)
        out = region.shared("stablehlo.broadcast_in_dim", (x,), wide, x.dtype, attrs, loc)
        return self.reshape(region, out, _with(x.shape, dim, times * x.shape[dim]), loc)

    def reshape(self, region: Region, x: LocalValue, shape: tuple[int, ...], loc: str = "") -> LocalValue:
        if x.shape == shape:
            return x
        return region.shared("stablehlo.reshape", (x,), shape, x.dtype, NONE, loc)

    def transpose(self, region: Region, x: LocalValue, order: Sequence[int], loc: str = "") -> LocalValue:
        if list(order) == list(range(len(order))):
            return x
        shape = tuple(x.shape[i] for i in order)
        attrs = attributes("stablehlo.transpose", tuple(order))
        return region.shared("stablehlo.transpose", (x,), shape, x.dtype, attrs, loc)

    def inside(
        self, region: Region, x_shape: tuple[int, ...], dim: int, atoms: Sequence[int], size: int
    ) -> LocalValue | None:
        """i1 of shape `x_shape`: which elements of a piece lie inside a dimension of global `size`; None if all."""
        piece = x_shape[dim]
        if piece * self.atoms.product(atoms) == size:
            return None
        where = self.positions(region, x_shape, dim, atoms, piece)
        limit = self.splat(region, self.index(region, size), x_shape)
        attrs = attributes("stablehlo.compare", "LT")
        return region.shared("stablehlo.compare", (where, limit), x_shape, "i1", attrs)

    def positions(
        self, region: Region, x_shape: tuple[int, ...], dim: int, atoms: Sequence[int], piece: int
    ) -> LocalValue:
        """i32 of shape `x_shape`: the global position along `dim` of each element of this device's piece."""
        iota = region.shared("stablehlo.iota", (), x_shape, "i32", attributes("stablehlo.iota", dim))
        if not atoms:
            return iota
        start = self.splat(region, self.offset(region, atoms, piece), x_shape)
        return region.shared("stablehlo.add", (iota, start), x_shape, "i32")

    def table(self, region: Region, values: np.ndarray, me: LocalValue) -> LocalValue:
        """The entry of `values` at the position `me`, both i32."""
        if (values == values[0]).all():
            return self.index(region, int(values[0]))
        attrs = attributes("stablehlo.constant", Dense.of(values, "i32"))
        table = region.entry("stablehlo.constant", (), values.shape, "i32", attrs)
        one = attributes("stablehlo.dynamic_slice", (1,))
        entry = region.entry("stablehlo.dynamic_slice", (table, me), (1,), "i32", one)
        return region.entry("stablehlo.reshape", (entry,), (), "i32")

    # -- devices and reductions -----------------------------------------------------------------------------

    def groups(self, atoms: Sequence[int]) -> DeviceLists:
        """The groups of devices that differ in `atoms`."""
        key = ("groups", tuple(atoms))
        return self.builder.dense(key, lambda: self.atoms.groups(atoms))

    def reducer(self, region: Region, kind: str, dtype: str) -> Region:
        """The two-argument scalar body of a reduction."""
        body = Region("body", region, [((), dtype), ((), dtype)])
        out = body.op(REDUCERS[kind], body.args, [((), dtype)])
        body.op("stablehlo.return", out, ())
        return body


def _digits(atoms: Sequence[int], sizes: Sequence[int], strides: Any) -> Any:
    """(stride, size) of the digits of a position, atoms that are neighbours in the mesh taken together."""
    out: list[list[int]] = []
    for a in atoms:
        if out and out[-1][0] == strides[a] * sizes[a]:
            out[-1] = [strides[a], out[-1][1] * sizes[a]]
        else:
            out.append([strides[a], sizes[a]])
    return out


def _with(shape: Sequence[int], dim: int, n: int) -> tuple[int, ...]:
    return (*shape[:dim], n, *shape[dim + 1 :])


def zero_literal(dtype: str) -> str:
    """Zero of an element type as MLIR writes it."""
    if dtype.startswith("complex"):
        return "(0.0, 0.0)"
    if dtype == "i1":
        return "false"
    return "0" if dtype.startswith(("i", "ui")) else "0.0"
