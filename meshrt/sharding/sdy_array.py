"""Shardings of values as Shardy's attributes have them: what `NamedSharding._to_sdy_sharding` gives to scripts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["SdyArray", "SdyDim"]


@dataclasses.dataclass(frozen=True, slots=True)
class SdyDim:
    """The axes that split one dimension, major first, and whether propagation may add more."""

    axes: tuple[Any, ...]
    is_open: bool

    replace = dataclasses.replace

    def build(self) -> Any:
        """The `sdy.DimensionShardingAttr`; needs an MLIR context."""
        from jaxlib.mlir.dialects import sdy  # start-up time: few scripts ask

        return sdy.DimensionShardingAttr.get([sdy.AxisRefAttr.get(a) for a in self.axes], is_closed=not self.is_open)

    def _braced(self) -> str:
        return "{" + ", ".join([*(f"'{a}'" for a in self.axes), *(["?"] if self.is_open else [])]) + "}"

    def __repr__(self) -> str:
        return f"SdyDim({self._braced()})"


@dataclasses.dataclass(frozen=True, slots=True)
class SdyArray:
    """The sharding of a value over a mesh: an `SdyDim` for each dimension."""

    mesh_shape: tuple[tuple[Any, int], ...]
    dim_shardings: tuple[SdyDim, ...]
    logical_device_ids: tuple[int, ...] | None = None
    replicated_axes: frozenset[Any] = frozenset()
    unreduced_axes: frozenset[Any] = frozenset()

    replace = dataclasses.replace

    def build(self, attr_cache: dict[SdyArray, Any]) -> Any:
        """The `sdy.TensorShardingAttr`, its mesh written out; needs an MLIR context.

        `attr_cache` holds those that were built in that context.
        """
        found = attr_cache.get(self)
        if found is None:
            found = attr_cache[self] = self._built()
        return found

    def _built(self) -> Any:
        from jaxlib.mlir.dialects import sdy  # start-up time: few scripts ask

        axes = [sdy.MeshAxisAttr.get(name, size) for name, size in self.mesh_shape]
        refs: Callable[[Iterable[Any]], list[Any]] = lambda names: [
            sdy.AxisRefAttr.get(name) for name in self._in_order(names)
        ]
        return sdy.TensorShardingAttr.get(
            sdy.MeshAttr.get(axes, list(self.logical_device_ids or ())),
            [dim.build() for dim in self.dim_shardings],
            replicated_axes=refs(self.replicated_axes),
            unreduced_axes=refs(self.unreduced_axes),
        )

    def _in_order(self, names: Iterable[Any]) -> list[Any]:
        wanted = frozenset(names)
        return [name for name, _ in self.mesh_shape if name in wanted]

    def __repr__(self) -> str:
        devices = f", device_ids={self.logical_device_ids}" if self.logical_device_ids is not None else ""
        replicated = f", replicated_axes={self.replicated_axes}" if self.replicated_axes else ""
        return f"SdyArray([{', '.join(d._braced() for d in self.dim_shardings)}]{devices}{replicated})"
