"""Custom calls with a known meaning, and those that users registered."""

from __future__ import annotations

import re
from typing import Any

from ..attributes import string
from ..errors import BadRuleError
from ..graph import Op
from ..locations import source
from ..model import OpRule
from .builder import NEED_REPLICATION, PASS_THROUGH, RuleBuilder, pointwise, signature
from .kernels import KERNELS, kernel_rule
from .options import RuleOptions
from .parse import fitted, parse_rule
from .registered import user_rule

# Calls of Python functions in the process that runs the program. The second kind gets each device's own piece.
CALLBACKS = frozenset(
    f"xla_{form}python_{device}_callback" for form in ("", "ffi_") for device in ("cpu", "gpu")
)  # fmt: skip
PARTITIONED_CALLBACKS = frozenset(f"xla_ffi_partitioned_python_{device}_callback" for device in ("cpu", "gpu"))

_OPAQUE = {"sdy_testonly", "tpu_custom_call", "xla.debug.Log", *CALLBACKS, *PARTITIONED_CALLBACKS}

_POINTWISE = {
    "Cholesky",
    "CompactWyHelper",
    "InspectSharding",
    "InvertDiagBlocksLowerTriangular",
    "InvertDiagBlocksUpperTriangular",
    "LayoutConstraint",
    "MoveToDevice",
    "MoveToHost",
    "X64SplitHigh",
    "X64SplitLow",
    "_SPMDInternalOp_MultiPad",
    "_SPMDInternalOp_MultiRotate",
    "_SPMDInternalOp_MultiSlice",
    "_SPMDInternalOp_RotateRight",
    "_SPMDInternalOp_Wrap",
    "annotate_device_placement",
    "mhlo.erf",
    "xla.megascale.provide_metadata",
}


def target_of(op: Op) -> str:
    """The name that a custom call calls."""
    target: str = string(op.attrs["call_target_name"])
    return target


@signature(None)
def custom_call(op: Op, options: RuleOptions) -> OpRule | None:
    """The rule that a user registered for the target, or that of a target with a known meaning."""
    target = target_of(op)
    own = user_rule(target)
    if own is not None:
        return _bound(target, own, op)
    if not op.results or not all(v.type.is_tensor for v in op.results):
        return None
    known = _pointwise if target in _POINTWISE else _KNOWN.get(target)
    kernel = KERNELS.get(target)
    try:
        if kernel is not None:
            return kernel_rule(op, options, kernel)
        return None if known is None else known(op, options)
    except (IndexError, KeyError, ValueError):  # MLIR knows nothing of a custom call's types
        types = [", ".join(v.type.text for v in values) for values in (op.operands, op.results)]
        raise BadRuleError(
            f"a custom call of @{target} from ({types[0]}) to ({types[1]}) is not what that name stands for; give it "
            "the operands and results that it has, or register a rule of your own for it",
            source(op),
        ) from None


def _pointwise(op: Op, options: RuleOptions) -> OpRule:
    return pointwise(op, elementwise=False)


def _bound(target: str, own: Any, op: Op) -> OpRule | None:
    """The rule that was registered for `target`, for this call of it."""
    if any(n < 0 for v in (*op.operands, *op.results) for n in v.type.shape):
        return None  # what was registered is bound to sizes
    rule = own if isinstance(own, str) else own(op)
    if rule is None:
        return None
    what, where = f"the sharding rule registered for {target!r}", source(op)
    if isinstance(rule, OpRule):
        return fitted(rule, op, what, where)
    if not isinstance(rule, str):
        raise BadRuleError(f"{what} is a function that returned {type(rule).__name__}; return an OpRule or text", where)
    if not all(v.type.is_tensor for v in (*op.operands, *op.results)):
        raise BadRuleError(f"{what} is text, which has dimensions for tensors only", where)
    shapes = [v.type.shape for v in op.operands], [v.type.shape for v in op.results]
    return parse_rule(rule).bind(*shapes, where=where)


def is_opaque(target: str) -> bool:
    """Whether a custom call without a rule is known to have none, so that it is no surprise."""
    return target in _OPAQUE


def _eigh(op: Op, options: RuleOptions) -> OpRule:
    """(matrix) -> (vectors, values)."""
    shape = op.operands[0].type.shape
    builder = _batched(op, len(shape) - 2)
    rank = len(shape)
    builder.add([rank - 2], [rank - 2, None], shape[-2])
    builder.add([rank - 1], [rank - 1, rank - 2], shape[-1])
    return builder.build()


def _qr(op: Op, options: RuleOptions) -> OpRule:
    """(matrix) -> (packed, taus)."""
    shape = op.operands[0].type.shape
    rank = len(shape)
    builder = _batched(op, rank - 2)
    for dim in (rank - 2, rank - 1):
        builder.add([dim], [dim, None], shape[dim], NEED_REPLICATION)
    taus = op.results[1].type.shape
    builder.add([None], [None, len(taus) - 1], taus[-1], NEED_REPLICATION)
    return builder.build()


def _householder(op: Op, options: RuleOptions) -> OpRule:
    """(packed, taus) -> (matrix)."""
    shape = op.operands[0].type.shape
    rank = len(shape)
    builder = _batched(op, rank - 2)
    for dim in (rank - 2, rank - 1):
        builder.add([dim, None], [dim], shape[dim], NEED_REPLICATION)
    taus = op.operands[1].type.shape
    builder.add([None, len(taus) - 1], [None], taus[-1], NEED_REPLICATION)
    return builder.build()


def _batched(op: Op, count: int) -> RuleBuilder:
    builder = RuleBuilder.of(op)
    for dim in range(count):
        builder.add_everywhere(dim, op.operands[0].type.shape[dim])
    return builder


def _topk(op: Op, options: RuleOptions) -> OpRule:
    """Equal dimensions pass through; the last one, which is selected from, must be whole."""
    ins, outs = op.operands[0].type.shape, op.results[0].type.shape
    builder = RuleBuilder.of(op)
    for dim, (n_in, n_out) in enumerate(zip(ins, outs)):
        # Shardy splits the last one, too, where all of it is selected, which sorts it.
        same = n_in == n_out and (options.faults or dim < len(ins) - 1)
        builder.add_everywhere(dim, n_in, PASS_THROUGH if same else NEED_REPLICATION, not same)
    return builder.build()


def _approx_top_k(op: Op, options: RuleOptions) -> OpRule:
    """(values, indices, initial value, initial index) -> (values, indices)."""
    ins, outs = op.operands[0].type.shape, op.results[0].type.shape
    dims = re.search(r"reduction_dim = (\d+)", str(op.attrs.get("mhlo.backend_config", "")))
    reduced = int(dims[1]) if dims else None
    builder = RuleBuilder.of(op)
    for dim, (n_in, n_out) in enumerate(zip(ins, outs)):
        if n_in == n_out and (options.faults or dim != reduced):  # see `_topk`
            builder.add([dim, dim, None, None], [dim, dim], n_in)
        else:
            builder.add([dim, dim, None, None], [None, None], n_in)
            builder.add([None] * 4, [dim, dim], n_out, NEED_REPLICATION, True)
    return builder.build()


def _x64_combine(op: Op, options: RuleOptions) -> OpRule:
    """Joins halves; feeding a random generator it is a state, which must be whole."""
    feeds_rng = any(u.op.name == "stablehlo.rng_bit_generator" for u in op.results[0].uses)
    if not feeds_rng:
        return pointwise(op, elementwise=False)
    builder = RuleBuilder.of(op)
    for dim, size in enumerate(op.results[0].type.shape):
        builder.add_everywhere(dim, size, NEED_REPLICATION, True)
    return builder.build()


_KNOWN = {
    "ApproxTopK": _approx_top_k,
    "Eigh": _eigh,
    "PartialReduce": _approx_top_k,
    "ProductOfElementaryHouseholderReflectors": _householder,
    "Qr": _qr,
    "QrDecompositionBlock": _qr,
    "X64Combine": _x64_combine,
    "mhlo.topk": _topk,
}

RULES = {"stablehlo.custom_call": custom_call}
