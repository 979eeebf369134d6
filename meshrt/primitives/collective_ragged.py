"""ragged_all_to_all: an all_to_all of slices of any sizes, which are known when the program runs.

    ragged_all_to_all[axis_name ...] operand output input_offsets send_sizes output_offsets recv_sizes -> output

Slice i of the K = n * k that a device names goes to index i // k along the axis. XLA has an operation for it on TPUs
and GPUs. Elsewhere, and over mapped dimensions, every device gathers all operands and picks its rows (`_dense`), which
sends no more than an exchange of slices padded to the size of the operand would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.shapes import broadcast_in_dim, instantiate, move_dim, reduce_sum_p, reshape, zeros
from meshrt.core.basic.varying import in_order, vary
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive, is_undefined
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.lowering.groups import IndexGroups
from meshrt.lowering.types import dense
from meshrt.primitives import elementwise as ew
from meshrt.primitives.collective_axes import index_of
from meshrt.primitives.collective_exchange import all_gather_p, all_to_all_p
from meshrt.primitives.collective_names import Call, lower_as, spread_out
from meshrt.primitives.gather import gather
from meshrt.primitives.gather_scatter import GatherDimensionNumbers
from meshrt.primitives.reduce import reduce_max_p
from meshrt.primitives.reshape import broadcasted_iota
from meshrt.primitives.selection import select_n
from meshrt.transforms.batching import MappedAxis, batch_flat

__all__ = ["ragged_all_to_all"]

_INDEX = np.dtype(np.int32)
_NATIVE = ("tpu", "cuda", "rocm")
_TABLES = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")


def _infer(operand: ShapedArray, output: ShapedArray, *tables: ShapedArray, **params: Any) -> ShapedArray:
    return output.update(weak_type=False, vma=output.vma.union(operand.vma))


def _lower(ctx: LoweringContext, eqn: Eqn, *operands: Any) -> Any:
    p, out = eqn.params, eqn.outvars[0].aval
    if ctx.module.platform not in _NATIVE:
        return lower_as(ctx, lambda *xs: _dense(*xs, **p), operands, eqn)
    groups = ctx.groups(p["axis_name"], p["axis_index_groups"])
    config = f"{{channel_id = 1 : i64, replica_groups = {dense(groups)}}}"
    attrs = f'api_version = 4 : i32, backend_config = {config}, call_target_name = "ragged_all_to_all"'
    return ctx.op("stablehlo.custom_call", operands, out, attrs)


# ---------------------------------------------------------------------------------------------------------------------
# By a gather of all operands


def _exchange(table: Any, params: dict[str, Any]) -> Any:
    """i32[K] of slices as their senders number them, as their receivers number them: by sender."""
    return all_to_all_p.bind(table, split_axis=0, concat_axis=0, **params)


def _sources(output_offsets: Any, recv_sizes: Any, rows: int) -> tuple[Any, Any]:
    """i32[rows]: which of the received slices a row of the output belongs to, -1 for none; and the row within it.

    Where slices overlap, the last one is meant.
    """
    count = aval_of(recv_sizes).shape[0]
    shape = (count, rows)
    row = broadcasted_iota(_INDEX, shape, 1)
    offset = broadcast_in_dim(output_offsets, shape, (0,))
    end = ew.add_p.bind(offset, broadcast_in_dim(recv_sizes, shape, (0,)))
    inside = ew.and_p.bind(ew.ge_p.bind(row, offset), ew.lt_p.bind(row, end))
    number = broadcasted_iota(_INDEX, shape, 0)
    never = broadcast_in_dim(np.int32(-1), shape, ())
    found = reduce_max_p.bind(select_n(inside, never, number), axes=(0,))
    row = broadcasted_iota(_INDEX, (rows,), 0)
    return found, ew.sub_p.bind(row, _picked(output_offsets, ew.max_p.bind(found, np.int32(0))))


def _picked(x: Any, rows: Any) -> Any:
    """Rows of `x`; the last one for numbers beyond."""
    aval = aval_of(x)
    numbers = GatherDimensionNumbers(tuple(range(1, aval.ndim)), (0,), (0,))
    indices = reshape(rows, (*aval_of(rows).shape, 1))
    return gather(x, indices, numbers, (1, *aval.shape[1:]), mode="clip")


def _dense(
    operand: Any, output: Any, input_offsets: Any, send_sizes: Any, output_offsets: Any, recv_sizes: Any,
    **params: Any,
) -> Any:  # fmt: skip
    input_offsets, output_offsets = _exchange(input_offsets, params), _exchange(output_offsets, params)
    everything = all_gather_p.bind(operand, all_gather_dimension=0, tiled=True, **params)
    count, rows = params["axis_size"], aval_of(operand).shape[0]
    slices = aval_of(recv_sizes).shape[0] // count
    found, within = _sources(output_offsets, recv_sizes, aval_of(output).shape[0])
    slot = ew.max_p.bind(found, np.int32(0))
    sender = ew.div_p.bind(slot, np.int32(slices))
    start = ew.add_p.bind(ew.mul_p.bind(sender, np.int32(rows)), _picked(input_offsets, slot))
    if rows == 0:
        return output
    taken = _picked(everything, ew.add_p.bind(start, within))
    received = broadcast_in_dim(ew.ge_p.bind(found, np.int32(0)), aval_of(output).shape, (0,))
    return select_n(received, output, ew.convert_element_type(taken, aval_of(output).dtype))


# ---------------------------------------------------------------------------------------------------------------------
# Derivatives and batching


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    operand, output, *tables = primals
    out = ragged_all_to_all_p.bind(operand, output, *tables, **params)
    if tangents[0] is None and tangents[1] is None:
        return out, None
    t_operand, t_output = instantiate(tangents[0], operand), instantiate(tangents[1], output)
    return out, ragged_all_to_all_p.bind(*_agreeing(t_operand, t_output, *tables), **params)


def _agreeing(*values: Any) -> list[Any]:
    """The operands as values that vary over the same axes."""
    vma = in_order(frozenset().union(*[aval_of(v).vma for v in values]))
    return [vary(v, vma) for v in values]


def _transpose(ct: Any, operand: Any, output: Any, *tables: Any, **params: Any) -> list[Any]:
    """Slices of the cotangent go back where they came from.

    Each into rows of its own, which are then added: a row may be sent to several devices.
    """
    input_offsets, send_sizes, output_offsets, recv_sizes = tables
    here = _exchange(output_offsets, params)
    out: list[Any] = [None] * 6
    if is_undefined(operand):
        rows, *rest = operand.aval.shape
        total = aval_of(send_sizes).shape[0]
        slices = total // params["axis_size"]
        me = index_of(params["axis_name"], params["sizes"], operand.aval.vma)
        if params["axis_index_groups"] is not None:
            me = _place_in_group(me, params["axis_index_groups"])
        numbers = ew.rem_p.bind(broadcasted_iota(_INDEX, (total,), 0), np.int32(slices))
        slot = ew.add_p.bind(numbers, ew.mul_p.bind(me, np.int32(slices)))
        back = ew.add_p.bind(_exchange(input_offsets, params), ew.mul_p.bind(slot, np.int32(rows)))
        buffer = zeros(ShapedArray((total * rows, *rest), operand.aval.dtype))
        parts = ragged_all_to_all_p.bind(*_agreeing(ct, buffer, here, recv_sizes, back, send_sizes), **params)
        out[0] = reduce_sum_p.bind(reshape(parts, (total, rows, *rest)), axes=(0,))
    if is_undefined(output):
        found, _ = _sources(here, recv_sizes, output.aval.shape[0])
        kept = broadcast_in_dim(ew.lt_p.bind(found, np.int32(0)), output.aval.shape, (0,))
        out[1] = select_n(kept, zeros(output.aval.bare()), ct)
    return out


def _place_in_group(index: Any, groups: IndexGroups) -> Any:
    places = np.empty(sum(map(len, groups)), np.int32)
    for group in groups:
        places[list(group)] = np.arange(len(group))
    return reshape(_picked(places, reshape(index, (1,))), ())


def _batch(
    axis: MappedAxis, args: Sequence[Any], dims: Sequence[int | None], params: dict[str, Any]
) -> tuple[Any, int | None]:
    if axis.name is not None and axis.name in params["axis_name"]:
        (out,), (d,) = batch_flat(lambda *xs: [_dense(*xs, **params)], axis, args, dims)
        return out, d
    if all(d is None for d in dims):
        return ragged_all_to_all_p.bind(*args, **params), None
    return _merged(axis.size, args, dims, params), 0


def _merged(size: int, args: Sequence[Any], dims: Sequence[int | None], params: dict[str, Any]) -> Any:
    """The members of the batch as more slices of larger arrays."""
    spread = [move_dim(*spread_out(a, d, size), 0) for a, d in zip(args, dims)]
    operand, output, *tables = spread
    rows = (aval_of(operand).shape[1], None, aval_of(output).shape[1], None)
    shape = (aval_of(tables[0]).shape[1], size)
    merged = []
    for table, each in zip(tables, rows):
        table = move_dim(table, 0, 1)  # slices to one device stay together
        if each is not None:
            member = ew.mul_p.bind(broadcasted_iota(_INDEX, shape, 1), np.int32(each))
            table = ew.add_p.bind(table, member)
        merged.append(reshape(table, (shape[0] * size,)))
    flat = [reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:])) for x in (operand, output)]
    out = ragged_all_to_all_p.bind(*_agreeing(*flat, *merged), **params)
    return reshape(out, aval_of(output).shape)


ragged_all_to_all_p: Primitive = Primitive(
    "ragged_all_to_all",
    _infer,
    lower=_lower,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    batch_axis=True,
    typed=True,
    finite=True,
    names=lambda params: params["axis_name"],
)


def ragged_all_to_all(
    operand: Any, output: Any, input_offsets: Any, send_sizes: Any, output_offsets: Any, recv_sizes: Any, *,
    axis_name: Any, axis_index_groups: Any = None,
) -> Any:  # fmt: skip
    """Sends slices of `operand` along the axis `axis_name`, and writes those that arrive into a copy of `output`.

    With K = n * k slices over an axis of size n, slice i is `operand[input_offsets[i]:][:send_sizes[i]]`. It goes to
    index i // k, which writes it at its rows `output_offsets[i]`: the offset is one at the receiver. `recv_sizes[i]` is
    the size of what comes as slice i % k from index i // k.

    Args:
      operand, output: [N, ...] and [M, ...], of one dtype and equal shapes but for the first dimension.
      input_offsets, send_sizes, output_offsets, recv_sizes: int[K], where K is a multiple of the size of the axis.
      axis_index_groups: exchange within groups of indices instead, all of one size; each index in one group.

    Returns [M, ...]. Sizes must fit each other: `recv_sizes` is `send_sizes` after an all_to_all. It is differentiable
    in `operand` and `output`.

    Raises:
      UnboundAxisError: nothing around binds the name. ArgumentValueError: shapes or dtypes that do not fit.
    """
    call = Call("ragged_all_to_all", axis_name, axis_index_groups)
    size = call.one_size()
    tables = dict(zip(_TABLES, (input_offsets, send_sizes, output_offsets, recv_sizes)))
    _check(aval_of(operand), aval_of(output), {name: aval_of(t) for name, t in tables.items()}, size, call)
    values = [operand, output, *[_as_index(t) for t in tables.values()]]
    varying = call.checked
    values = _agreeing(*[vary(v, varying) for v in values])
    return ragged_all_to_all_p.bind(
        *values, axis_name=call.names, sizes=call.sizes, axis_index_groups=call.groups, axis_size=size
    )


def _as_index(table: Any) -> Any:
    return np.asarray(table, _INDEX) if isinstance(table, np.ndarray) else ew.convert_element_type(table, _INDEX)


def _check(operand: ShapedArray, output: ShapedArray, tables: dict[str, ShapedArray], size: int, call: Call) -> None:
    if not operand.ndim or operand.shape[1:] != output.shape[1:] or operand.ndim != output.ndim:
        raise errors.ArgumentValueError(
            "ragged_all_to_all needs an operand and an output of equal shapes but for the first dimension, but got "
            f"{operand.short()} and {output.short()}"
        )
    if operand.dtype != output.dtype:
        raise errors.ArgumentValueError(
            f"ragged_all_to_all needs an operand and an output of one dtype, but got {operand.short()} and "
            f"{output.short()}; convert one with astype"
        )
    lengths = {}
    for name, aval in tables.items():
        if not dtypes.issubdtype(aval.dtype, np.integer):
            raise errors.ArgumentValueError(f"ragged_all_to_all {name} must be integer type, but is {aval.short()}")
        if aval.ndim != 1 or aval.shape[0] < 1:
            raise errors.ArgumentValueError(
                f"ragged_all_to_all {name} must be rank 1 with positive dimension size, but got shape {aval.shape}"
            )
        lengths[name] = aval.shape[0]
    if len(set(lengths.values())) > 1 or next(iter(lengths.values())) % size:
        raise errors.ArgumentValueError(
            f"ragged_all_to_all over {call.names} needs offsets and sizes of one length that is a multiple of the size "
            f"of the axis, {size}, but got {lengths}"
        )
