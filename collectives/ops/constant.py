"""Values that every device computes for itself in any layout, without communication: constants, iota, device
numbers."""

from __future__ import annotations

from propagation.attributes import integer
from propagation.program import Op

from ..analysis.constants import is_splat
from ..ir.attributes import Attributes, Given, splat_literal
from ..ir.operations import attributes, splat_constant
from ..ir.program import LocalValue
from ..layout import Dims, replicated
from ..layouts.context import Context

__all__: list[str] = []


def constant(ctx: Context, op: Op) -> None:
    """A splat constant is written in the local shape; of other constants each device slices out its piece."""
    result = op.results[0]
    shape, dtype = result.type.shape, result.type.dtype
    attr = op.attrs["value"]
    literal = splat_literal(Given(attr)) if is_splat(attr) else None
    given = Attributes.of({"value": Given(attr)})

    def make(dims: Dims) -> LocalValue:
        local = ctx.piece_shape(result, dims)
        if literal is not None:
            return ctx.region.entry("stablehlo.constant", (), local, dtype, splat_constant(literal, local, dtype))
        full = ctx.region.entry("stablehlo.constant", (), shape, dtype, given)
        if local == shape:
            return full
        return ctx.reshard(shape, full, replicated(len(shape)), dims)

    ctx.bind_lazy(result, make)


def iota(ctx: Context, op: Op) -> None:
    """Indices along a dimension: if it is split, the local iota plus the index at which this device's piece starts."""
    result = op.results[0]
    d = integer(op.attrs["iota_dimension"])
    dtype = result.type.dtype

    def make(dims: Dims) -> LocalValue:
        local = ctx.piece_shape(result, dims)
        if not dims[d]:
            return ctx.region.shared("stablehlo.iota", (), local, dtype, attributes("stablehlo.iota", d), ctx.loc)
        where = ctx.realiser.positions(ctx.region, local, d, dims[d], local[d])
        return where if dtype == "i32" else ctx.region.shared("stablehlo.convert", (where,), local, dtype)

    ctx.bind_lazy(result, make)


def device_number(ctx: Context, op: Op) -> None:
    """`partition_id` of a program written for N partitions is `replica_id` of one written for N replicas."""
    ctx.bind(op.results[0], (), ctx.region.entry("stablehlo.replica_id", (), (), "ui32"))


PARTITION = {
    "stablehlo.constant": constant,
    "sdy.constant": constant,
    "stablehlo.iota": iota,
    "stablehlo.partition_id": device_number,
    "stablehlo.replica_id": device_number,
}
