"""The data model: meshes, axes, dimension and tensor shardings, operation sharding rules, projections.

Every class here is immutable and interned: equal values are one object, so equality is identity and hashing
costs nothing. That is what lets propagation memoise a visit by (rule, shardings).

An axis reference is always the triple (name, pre, size): the full axis `"x"` of size 8 is `("x", 1, 8)`, and
the sub-axis `"x":(2)4` is `("x", 2, 4)`, the part of size 4 with parts of total size 2 to its left (more
major). Shardings list axes from major to minor.

>>> mesh = Mesh("mesh", (("data", 4), ("model", 2)))
>>> data, model = mesh.axis("data"), mesh.axis("model")
>>> s = TensorSharding(mesh, (DimSharding((data,)), DimSharding((), is_open=True)))
>>> s.to_text()
'#sdy.sharding<@mesh, [{"data"}, {?}]>'
>>> s.shard_shape((64, 6)), s.dim_factor(0), s.closed().to_text()
((16, 6), 4, '#sdy.sharding<@mesh, [{"data"}, {}]>')
>>> s is TensorSharding(mesh, (DimSharding((AxisRef("data", 1, 4),)), DimSharding(is_open=True)))
True
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

from . import errors
from .axes import AxisRef, overlaps
from .interning import Interned
from .interning import set_field as _set
from .rule_model import DimFactors, FactorSharding, FactorType, OpRule, Projection, TensorFactors, factor_symbol
from .sdy_text import dim_text, mesh_text, sharding_text

__all__ = [
    "AxisRef",
    "DimFactors",
    "DimSharding",
    "FactorSharding",
    "FactorType",
    "Mesh",
    "OpRule",
    "Projection",
    "TensorFactors",
    "TensorSharding",
    "factor_symbol",
]


class Mesh(Interned):
    """A named, logical grid of devices.

    `axes` are (name, size) pairs from major to minor. `device_ids` is None for the usual order (0, 1, 2, ...).
    A mesh without axes is *maximal* if it names one device, else *empty* (a placeholder that fits any mesh).

    Raises `AxisReuseError` for a name that stands twice, `SubAxisError` for a size below 1, and
    `UnsupportedModuleError` for `device_ids` that do not name each device once.

    >>> Mesh("mesh", [("data", 4), ("model", 2)]).to_text()
    '<["data"=4, "model"=2]>'
    """

    __slots__ = ("_axis", "_index", "axes", "device_ids", "layout", "name", "size")
    _fields = ("name", "axes", "device_ids")
    _table: ClassVar[dict[Any, Mesh]]
    name: str
    axes: tuple[tuple[str, int], ...]
    device_ids: tuple[int, ...] | None
    size: int
    layout: tuple[tuple[tuple[str, int], ...], tuple[int, ...] | None]  # what the mesh is apart from its name
    _axis: dict[str, AxisRef]
    _index: dict[str, int]

    def __new__(cls, name: str, axes: Iterable[tuple[str, int]], device_ids: Iterable[int] | None = None) -> Mesh:
        axes = tuple((str(n), int(s)) for n, s in axes)
        size = math.prod(s for _, s in axes)
        if device_ids is not None:
            device_ids = tuple(int(d) for d in device_ids)
            if axes and device_ids == tuple(range(size)):
                device_ids = None
        key = (name, axes, device_ids)
        self = cls._table.get(key)
        if self is None:
            _check_mesh(name, axes, device_ids, size)
            self = object.__new__(cls)
            _set(self, "name", name)
            _set(self, "axes", axes)
            _set(self, "device_ids", device_ids)
            _set(self, "size", size)
            _set(self, "layout", (axes, device_ids))
            _set(self, "_axis", {n: AxisRef(n, 1, s) for n, s in axes})
            _set(self, "_index", {n: i for i, (n, _) in enumerate(axes)})
            self = cls._table.setdefault(key, self)
        return self

    @property
    def axis_names(self) -> tuple[str, ...]:
        """The names of the axes, major to minor."""
        return tuple(n for n, _ in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes, major to minor."""
        return tuple(s for _, s in self.axes)

    @property
    def is_maximal(self) -> bool:
        """Whether it has no axes and names one device."""
        return not self.axes and self.device_ids is not None

    @property
    def is_empty(self) -> bool:
        """Whether it has neither axes nor a device: a placeholder that fits any mesh."""
        return not self.axes and self.device_ids is None

    def axis(self, name: str) -> AxisRef:
        """The full axis `name`. Raises `UnknownAxisError`."""
        try:
            return self._axis[name]
        except KeyError:
            known = ", ".join(repr(n) for n in self._axis) or "no axes at all"
            raise errors.UnknownAxisError(f"mesh @{self.name} has no axis {name!r}; it has {known}") from None

    def axis_size(self, name: str) -> int:
        """The size of axis `name`. Raises `UnknownAxisError`."""
        return self.axis(name).size

    def axis_index(self, name: str) -> int:
        """The position of axis `name` in the mesh (0 is the most major). Raises `UnknownAxisError`."""
        self.axis(name)
        return self._index[name]

    def sort_key(self, axis: AxisRef) -> tuple[int, int, int]:
        """Sorts axis references in mesh order: position in the mesh, then `pre`, then size."""
        return (self._index[axis.name], axis.pre, axis.size)

    def to_text(self) -> str:
        """The mesh attribute as it stands after `sdy.mesh @name =`."""
        return mesh_text(self.axes, self.device_ids)


def _check_mesh(name: str, axes: tuple[tuple[str, int], ...], device_ids: tuple[int, ...] | None, size: int) -> None:
    names = [n for n, _ in axes]
    if len(set(names)) != len(names):
        raise errors.AxisReuseError(f"mesh @{name} has the axis name {names!r} more than once; rename one")
    for n, s in axes:
        if s < 1:
            raise errors.SubAxisError(f"axis {n!r} of mesh @{name} has size {s}; sizes start at 1")
    if axes and device_ids is not None and sorted(device_ids) != list(range(size)):
        raise errors.UnsupportedModuleError(
            f"device_ids of mesh @{name} must be a permutation of 0..{size - 1}, one per device of {axes}"
        )
    if not axes and device_ids is not None and len(device_ids) != 1:
        raise errors.UnsupportedModuleError(f"mesh @{name} without axes may name exactly one device")


class DimSharding(Interned):
    """How one dimension is split: axes from major to minor.

    `is_open` lets propagation add axes to the right. `priority` (None is highest, like 0) is the user's.
    """

    __slots__ = ("axes", "factor", "is_open", "priority")
    _fields = ("axes", "is_open", "priority")
    _table: ClassVar[dict[Any, DimSharding]]
    axes: tuple[AxisRef, ...]
    is_open: bool
    priority: int | None
    factor: int  # the product of the axis sizes

    def __new__(cls, axes: Iterable[AxisRef] = (), is_open: bool = False, priority: int | None = None) -> DimSharding:
        key = (tuple(axes), is_open, priority)
        self = cls._table.get(key)
        if self is None:
            self = object.__new__(cls)
            _set(self, "axes", key[0])
            _set(self, "is_open", bool(is_open))
            _set(self, "priority", priority)
            _set(self, "factor", math.prod(a.size for a in key[0]))
            self = cls._table.setdefault(key, self)
        return self

    def to_text(self, mesh: Mesh) -> str:
        """As it stands in a sharding over `mesh`: `{"data", "model":(1)2, ?}p1`."""
        return dim_text([a.to_text(mesh) for a in self.axes], self.is_open, self.priority)


_OPEN, _CLOSED = DimSharding((), True), DimSharding(())


class TensorSharding(Interned):
    """The sharding of a value: one `DimSharding` per dimension, explicitly replicated axes, and unreduced axes: each
    device along them has a part of the value, which is the sum of the parts, or whatever else `reduction` says ("sum",
    "max" or "min"; jaxlib 0.10 knows sums only). Construction does not check; `check` does.
    """

    __slots__ = ("_text", "dims", "mesh", "reduction", "replicated", "unreduced")
    _fields = ("mesh", "dims", "replicated", "unreduced", "reduction")
    _table: ClassVar[dict[Any, TensorSharding]]
    mesh: Mesh
    dims: tuple[DimSharding, ...]
    replicated: tuple[AxisRef, ...]
    unreduced: tuple[AxisRef, ...]
    reduction: str
    _text: str | None

    def __new__(
        cls,
        mesh: Mesh,
        dims: Iterable[DimSharding],
        replicated: Iterable[AxisRef] = (),
        unreduced: Iterable[AxisRef] = (),
        reduction: str = "sum",
    ) -> TensorSharding:
        parts = tuple(unreduced)
        key = (mesh, tuple(dims), tuple(replicated), parts, reduction if parts else "sum")
        self = cls._table.get(key)
        if self is None:
            self = object.__new__(cls)
            _set(self, "mesh", mesh)
            _set(self, "dims", key[1])
            _set(self, "replicated", key[2])
            _set(self, "unreduced", parts)
            _set(self, "reduction", key[4])
            _set(self, "_text", None)
            self = cls._table.setdefault(key, self)
        return self

    @staticmethod
    def replicated_on(mesh: Mesh, rank: int) -> TensorSharding:
        """Closed and unsharded in every dimension."""
        return TensorSharding(mesh, (_CLOSED,) * rank)

    @staticmethod
    def open_on(mesh: Mesh, rank: int) -> TensorSharding:
        """Unsharded but open in every dimension: what a value without annotation means."""
        return TensorSharding(mesh, (_OPEN,) * rank)

    @property
    def rank(self) -> int:
        """Of how many dimensions the sharding speaks."""
        return len(self.dims)

    @property
    def is_fully_closed(self) -> bool:
        """Whether no dimension is open to more axes."""
        return not any(d.is_open for d in self.dims)

    @property
    def is_fully_open(self) -> bool:
        """Whether it says of no dimension anything, as where there is no annotation."""
        return self is TensorSharding.open_on(self.mesh, self.rank)

    @property
    def is_fully_replicated(self) -> bool:
        """No dimension is sharded (unreduced axes are not looked at)."""
        return not any(d.axes for d in self.dims)

    @property
    def axes(self) -> tuple[AxisRef, ...]:
        """All axes that shard a dimension, dimension by dimension."""
        return tuple(a for d in self.dims for a in d.axes)

    def dim_factor(self, dim: int) -> int:
        """Into how many parts dimension `dim` is split."""
        return self.dims[dim].factor

    def shard_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one device's part; indivisible dimensions are rounded up (padded). What lies on one device alone
        is whole there. Raises `RankMismatchError` for a shape of another rank."""
        if self.mesh.is_maximal:
            return shape
        if len(shape) != len(self.dims):
            raise errors.RankMismatchError(f"{self.to_text()} has rank {self.rank}, the value has shape {shape}")
        return tuple(-(-n // d.factor) for n, d in zip(shape, self.dims))

    def begins_with(self, other: TensorSharding) -> bool:
        """Whether each dimension is split over the axes of `other`, and perhaps over more behind them."""
        return all(own.axes[: len(d.axes)] == d.axes for own, d in zip(self.dims, other.dims))

    def closed(self) -> TensorSharding:
        """The same axes, no dimension open, no priorities, no explicitly replicated axes."""
        dims = tuple(DimSharding(d.axes) for d in self.dims)
        return TensorSharding(self.mesh, dims, (), self.unreduced, self.reduction)

    def with_dims(self, dims: Iterable[DimSharding]) -> TensorSharding:
        """The same with other dimensions."""
        return TensorSharding(self.mesh, dims, self.replicated, self.unreduced, self.reduction)

    def to_text(self) -> str:
        """`#sdy.sharding<@mesh, [{"x"}, {?}], replicated={"y"}>`."""
        text = self._text
        if text is None:
            text = f"#sdy.sharding{self.body_text()}"
            _set(self, "_text", text)
        return text

    def body_text(self) -> str:
        """What stands after `#sdy.sharding`: `<@mesh, [...]>`, as inside per-value lists."""
        mesh = self.mesh
        dims = [d.to_text(mesh) for d in self.dims]
        replicated, unreduced = [a.to_text(mesh) for a in self.replicated], [a.to_text(mesh) for a in self.unreduced]
        return sharding_text(mesh.name, dims, replicated, unreduced, self.reduction)

    def check(self, rank: int | None = None, where: str | None = None) -> TensorSharding:
        """Returns self. Raises `UnknownAxisError` for an axis that the mesh lacks, `AxisReuseError` for one used twice,
        `OverlappingAxesError` for sub-axes that overlap or should be written as one, `SubAxisError` for one that does
        not fit its axis, and `RankMismatchError` if the rank is not `rank` (None: any). `where` is the line for them.
        """
        mesh = self.mesh
        seen: list[AxisRef] = []
        if rank is not None and rank != len(self.dims) and not mesh.is_maximal:
            raise errors.RankMismatchError(
                f"sharding {self.to_text()} has {len(self.dims)} dimensions, the value has {rank}; "
                "write one {...} per dimension",
                where,
            )
        lists = [d.axes for d in self.dims] + [self.replicated, self.unreduced]
        for axes in lists:
            for i, axis in enumerate(axes):
                _check_axis(axis, mesh, where)
                for other in seen:
                    if overlaps(axis, other):
                        kind = errors.AxisReuseError if axis is other else errors.OverlappingAxesError
                        raise kind(
                            f"axis {axis.to_text(mesh)} is used twice in {self.to_text()} "
                            f"(overlaps {other.to_text(mesh)}); an axis can shard one dimension once",
                            where,
                        )
                if i and axes[i - 1].name == axis.name and axes[i - 1].end == axis.pre:
                    raise errors.OverlappingAxesError(
                        f"{axes[i - 1].to_text(mesh)} and {axis.to_text(mesh)} are adjacent; write them as one",
                        where,
                    )
                seen.append(axis)
        return self


def _check_axis(axis: AxisRef, mesh: Mesh, where: str | None) -> None:
    try:
        full = mesh.axis(axis.name)
    except errors.UnknownAxisError as e:
        raise errors.UnknownAxisError(str(e), where) from None
    if axis is full:
        return
    if axis.pre < 1 or axis.size <= 1 or full.size % axis.end or axis.size >= full.size:
        raise errors.SubAxisError(
            f"sub-axis {axis.to_text(mesh)} does not fit axis {axis.name!r} of size {full.size}: (pre)size needs "
            "pre >= 1, size > 1, pre*size dividing the axis size, and size smaller than it",
            where,
        )
