"""Factorisations, solves, Fourier transforms, normalisation."""

from __future__ import annotations

from ..attributes import flag, integer, integers
from ..graph import Op
from ..model import OpRule
from .builder import NEED_REPLICATION, PASS_THROUGH, Dims, RuleBuilder, signature
from .options import RuleOptions


def cholesky(op: Op, options: RuleOptions) -> OpRule:
    """Batch dimensions pass through; a matrix is factored whole."""
    shape = op.operands[0].type.shape
    batch = len(shape) - 2
    return RuleBuilder.of(op).add_pointwise(shape, lambda d: PASS_THROUGH if d < batch else NEED_REPLICATION).build()


@signature("fft_length")
def fft(op: Op, options: RuleOptions) -> OpRule:
    """Transformed dimensions must be whole; the last one is blocked if a real transform changes its size."""
    ins, outs = op.operands[0].type.shape, op.results[0].type.shape
    first = len(ins) - len(integers(op.attrs["fft_length"]))
    builder = RuleBuilder.of(op)
    for dim, (n_in, n_out) in enumerate(zip(ins, outs)):
        builder.add([dim], [dim], n_in, PASS_THROUGH if dim < first else NEED_REPLICATION, n_in != n_out)
    return builder.build()


@signature("left_side", "transpose_a")
def triangular_solve(op: Op, options: RuleOptions) -> OpRule:
    """Solves op(a) x = b (left) or x op(a) = b (right)."""
    a, b = (v.type.shape for v in op.operands)
    rank = len(b)
    rows, columns = rank - 2, rank - 1
    builder = RuleBuilder.of(op)
    for dim in range(rank - 2):
        builder.add([dim, dim], [dim], b[dim])
    left = flag(op.attrs["left_side"])
    transposed = "NO_TRANSPOSE" not in str(op.attrs["transpose_a"])
    contracting, free = (columns, rows) if left != transposed else (rows, columns)
    mine, other = (rows, columns) if left else (columns, rows)
    factors: list[tuple[Dims, Dims, int]] = [([free, mine], [None], a[free]), ([None, other], [other], b[other])]
    for operand_dims, result_dims, size in factors if left else reversed(factors):
        builder.add(operand_dims, result_dims, size, NEED_REPLICATION)
    builder.add([contracting, None], [mine], a[contracting], NEED_REPLICATION)
    return builder.build()


@signature("feature_index")
def batch_norm_inference(op: Op, options: RuleOptions) -> OpRule:
    """The feature dimension is that of the four vectors, too."""
    feature = integer(op.attrs["feature_index"])
    builder = RuleBuilder.of(op)
    for dim, size in enumerate(op.operands[0].type.shape):
        vector = 0 if dim == feature else None
        builder.add([dim, vector, vector, vector, vector], [dim], size)
    return builder.build()


RULES = {
    "stablehlo.batch_norm_inference": batch_norm_inference,
    "stablehlo.cholesky": cholesky,
    "stablehlo.fft": fft,
    "stablehlo.triangular_solve": triangular_solve,
}
