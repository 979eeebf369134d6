"""The walk that writes a kernel for a TPU's core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import vector
from jaxlib.mosaic.python import tpu

from meshrt.core.jaxpr import Jaxpr
from meshrt.experimental.kernels.mlir import arithmetic, control, conversions
from meshrt.experimental.kernels.mlir.walk import Walk
from meshrt.experimental.kernels.mosaic import arrays, communication, references, values
from meshrt.experimental.kernels.mosaic.types import element_type

__all__ = ["MosaicWalk"]


class MosaicWalk(Walk):
    """Writes values as vectors, scalars as such, references as memory."""

    backend: ClassVar[str] = "Mosaic (TPU)"
    has_wide_scalars: ClassVar[bool] = True
    passes_masks: ClassVar[bool] = False
    branches_on_views: ClassVar[bool] = False
    rules = {
        **arithmetic.RULES, **conversions.RULES, **control.RULES, **references.RULES, **arrays.RULES, **values.RULES,
        **communication.RULES,
    }  # fmt: skip

    def element(self, dtype: Any) -> ir.Type:
        found = element_type(dtype)
        if found is None:
            self.refuse(
                f"a TPU's core has no elements of {dtype}: it computes with elements of at most 32 bits; convert with "
                "astype, and give Python numbers a dtype where 64-bit types are enabled (np.int32(0))"
            )
        return found

    def shaped(self, shape: Sequence[int], element: ir.Type) -> ir.Type:
        return ir.VectorType.get(list(shape), element)

    def spread(self, value: ir.Value, shape: Sequence[int], dtype: Any) -> ir.Value:
        return vector.broadcast(self.like(shape, dtype), value)

    def reshaped(self, value: ir.Value, shape: Sequence[int], dtype: Any) -> ir.Value:
        kind = self.like(shape, dtype)
        return value if value.type == kind else vector.shape_cast(kind, value)

    def nested(self, jaxpr: Jaxpr, args: Sequence[Any]) -> list[Any]:
        """What is allocated in a loop's turn or a branch is free again behind it."""
        if not any(eqn.primitive.allocates for eqn in jaxpr.eqns):
            return self.jaxpr(jaxpr, args)
        region = tpu.RegionOp([self.type_of(v.aval) for v in jaxpr.outvars])
        with ir.InsertionPoint(region.body):
            tpu.yield_(self.jaxpr(jaxpr, args))
        return list(region.results)
