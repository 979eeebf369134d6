"""Drawn operations between devices, and custom calls to the targets that Shardy knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .drawing import CHANNEL, GROUPS, SCALAR, SIZES, Draw, combiner, with_size
from .growing import tensor

__all__ = ["all_gather", "all_reduce", "all_to_all", "collective", "custom_call", "reduce_scatter"]


def _channel(d: Draw) -> str:
    text = GROUPS
    if d.maybe(0.3):
        text += f", {CHANNEL}"
        if d.maybe():
            text += ", use_global_device_ids"
    return text


def all_gather(d: Draw) -> None:
    shapes = [d.shape(1, 3)]
    dim = d.rng.randrange(len(shapes[0]))
    shapes += [shapes[0]] * d.rng.choice([0, 0, 1, 2])
    outs = [with_size(s, dim, 2 * s[dim]) for s in shapes]
    d.op("stablehlo.all_gather", [*map(tensor, shapes)], outs, f"all_gather_dim = {dim} : i64, {_channel(d)}")


def all_reduce(d: Draw) -> None:
    shape = d.shape(0, 3)
    types = [tensor(shape)] * d.rng.choice([1, 1, 2])
    d.op("stablehlo.all_reduce", types, types, _channel(d), combiner(d, ["f32"], ["add", "maximum"]))


def reduce_scatter(d: Draw) -> None:
    shape = list(d.shape(1, 3))
    dim = d.rng.randrange(len(shape))
    attrs = f"scatter_dimension = {dim} : i64, {_channel(d)}"
    body = combiner(d, ["f32"], ["add", "maximum"])
    d.op("stablehlo.reduce_scatter", [with_size(shape, dim, 2 * shape[dim])], [tensor(shape)], attrs, body)


def all_to_all(d: Draw) -> None:
    """Over one dimension and over two, in either order, of one operand and of several."""
    rng, shape, count = d.rng, list(d.shape(1, 4)), d.rng.choice([1, 2, 4])
    split, concat = rng.randrange(len(shape)), rng.randrange(len(shape))
    shape[split] *= count
    out = list(shape)
    out[split] //= count
    out[concat] *= count
    operands = rng.choice([1, 1, 2])
    groups = f"replica_groups = dense<[{list(range(count))}]> : tensor<1x{count}xi64>"
    numbers = f"split_dimension = {split} : i64, concat_dimension = {concat} : i64, split_count = {count} : i64"
    channel = f", {CHANNEL}" if d.maybe(0.3) else ""
    d.op("stablehlo.all_to_all", [tensor(shape)] * operands, [tensor(out)] * operands, f"{numbers}, {groups}{channel}")


def collective(d: Draw) -> None:
    t = tensor(d.shape(0, 3))
    if d.maybe():
        d.op("stablehlo.collective_broadcast", [t], [t], GROUPS)
    else:
        pairs = "source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>"
        d.op("stablehlo.collective_permute", [t], [t], pairs + (f", {CHANNEL}" if d.maybe() else ""))


POINTWISE_TARGETS = [
    "Cholesky", "CompactWyHelper", "InspectSharding", "InvertDiagBlocksLowerTriangular",
    "InvertDiagBlocksUpperTriangular", "LayoutConstraint", "MoveToDevice", "MoveToHost", "X64SplitHigh", "X64SplitLow",
    "_SPMDInternalOp_MultiPad", "_SPMDInternalOp_MultiRotate", "_SPMDInternalOp_MultiSlice",
    "_SPMDInternalOp_RotateRight", "_SPMDInternalOp_Wrap", "annotate_device_placement", "mhlo.erf",
    "xla.megascale.provide_metadata", "Sharding", "SPMDFullToShardShape", "tpu_custom_call", "foo",
]  # fmt: skip


def custom_call(d: Draw) -> None:
    """To the targets that Shardy knows, in all ranks."""
    _CALLS[d.rng.randrange(len(_CALLS))](d)


def _call(d: Draw, target: str, ins: Sequence[str], outs: Sequence[str], attrs: str = "") -> list[str]:
    return d.op("stablehlo.custom_call", ins, outs, f'call_target_name = "{target}"{attrs}')


def _pointwise_call(d: Draw) -> None:
    t = tensor(d.shape(0, 4))
    _call(d, d.rng.choice(POINTWISE_TARGETS), [t] * d.rng.choice([1, 1, 2]), [t])


def _matrix_call(d: Draw) -> None:
    batch, m, n = d.shape(0, 2), d.rng.choice(SIZES), d.rng.choice(SIZES)
    matrix, taus = tensor((*batch, m, n)), tensor((*batch, min(m, n)))
    kind = d.rng.randrange(3)
    if kind == 0:
        _call(d, d.rng.choice(["Qr", "QrDecompositionBlock"]), [matrix], [matrix, taus])
    elif kind == 1:
        _call(d, "ProductOfElementaryHouseholderReflectors", [matrix, taus], [matrix])
    else:
        square = tensor((*batch, m, m))
        _call(d, "Eigh", [square], [square, tensor((*batch, m))])


def _top_call(d: Draw) -> None:
    shape = d.shape(1, 3)
    dim = d.rng.randrange(len(shape))
    top = [*shape[:dim], d.rng.randint(1, shape[dim]), *shape[dim + 1 :]]
    if d.maybe():
        _call(d, "mhlo.topk", [tensor(shape)], [tensor(top), tensor(top, "i32")])
        return
    attrs = f", mhlo.backend_config = {{reduction_dim = {dim} : i64}}"
    target = d.rng.choice(["ApproxTopK", "PartialReduce"])
    ins = [tensor(shape), tensor(shape, "i32"), SCALAR, "tensor<i32>"]
    _call(d, target, ins, [tensor(top), tensor(top, "i32")], attrs)


def _combine_call(d: Draw) -> None:
    half, whole = tensor((2,), "ui32"), tensor((2,), "ui64")
    (state,) = _call(d, "X64Combine", [half, half], [whole])
    if d.maybe():
        bits = tensor(d.shape(0, 3), "ui32")
        attrs = "rng_algorithm = #stablehlo<rng_algorithm DEFAULT>"
        d.emit("stablehlo.rng_bit_generator", [state], [whole], [whole, bits], attrs)


_CALLS: list[Callable[[Draw], None]] = [_pointwise_call, _matrix_call, _top_call, _combine_call]
