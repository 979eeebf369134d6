"""Results of masked lookups: each element is on one device of a group, all others hold zeros, and the reduction over
the group brings it to all (rows of an embedding table, dynamic slices, random numbers).

Added up as floating-point numbers, elements lose their subnormals, the signs of zeros and the payloads of NaNs. So they
travel as bits, by the reduction "choose" of `Realiser.collective` (`Partial.chosen`); but bits and the numbers made of
them are two buffers, both of which live where compilers fuse the conversion into some of the value's users. Where
`_is_number` finds that no user of the value can tell the difference, they travel as numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from propagation.attributes import conv_dims, dot_dims, integers, scatter_dims, symbol
from propagation.program import Op, Use, Value

from ..analysis.constants import scalar_constant
from ..heuristics import LOOKUP_READERS
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context

__all__ = ["MOVING", "bind"]


def _named(*names: str) -> frozenset[str]:
    return frozenset(name if "." in name else f"stablehlo.{name}" for name in names)


# Operations that move elements of one operand, unchanged. A convert is one: unreduced values only pass those to their
# own type (`elementwise.convert`).
MOVING = _named("broadcast_in_dim", "convert", "dynamic_slice", "reshape", "slice", "transpose")
# Operations that move elements of several operands, or choose among them.
_JOINING = _named(
    "abs", "clamp", "concatenate", "dynamic_update_slice", "maximum", "minimum", "optimization_barrier", "pad",
    "reverse", "select", "sdy.propagation_barrier", "sdy.reshard", "sdy.sharding_constraint",
)  # fmt: skip
# Operations whose result is the same for any two NaNs, for both zeros, and for a subnormal and zero where arithmetic
# flushes it: users that end the search.
_ENDS = _named("cosine", "exponential", "log", "logistic", "chlo.square")
# The same but for the sign of a zero in the result, which has to be followed on.
_SIGNED = _named(
    "add", "cbrt", "exponential_minus_one", "log_plus_one", "multiply", "negate", "sign", "sine", "sqrt", "subtract",
    "tanh", "chlo.erf",
)  # fmt: skip
_SUMS = _named("convolution", "dot_general", "reduce", "scatter")


def bind(ctx: Context, value: Value, dims: Dims, pending: tuple[int, ...], ref: LocalValue) -> None:
    """Binds a value each of whose elements is on one of the devices along `pending`, while all others hold zeros."""
    kind = "or" if ref.dtype == "i1" else "add"
    bits = not (_is_number(ctx, value) or _is_rounded(ctx, value))
    ctx.bind_partial(value, dims, {pending: ref}, kind, masked=True, chosen=bits)


def _is_number(ctx: Context, value: Value) -> bool:
    """Whether no user of a value can tell whether it travelled as bits or as a number. Only for f32 and f64: some
    compilers add 16-bit numbers as 32-bit ones, while bits travel in pairs. For TPUs see `_is_rounded`."""
    if ctx.topology.compiler == "tpu" or value.type.dtype not in ("f32", "f64"):
        return False
    return _ends(ctx, value, _is_end, MOVING | _JOINING | _SIGNED)


def _is_end(use: Use) -> bool:
    op = use.op
    if op.name == "stablehlo.convert":
        return op.results[0].type.dtype.startswith(("i", "ui"))
    if op.name == "stablehlo.compare":
        return "TOTALORDER" not in str(op.attrs.get("compare_type", ""))  # a total order compares bits
    if op.name in ("stablehlo.add", "stablehlo.subtract"):  # the sum with a number other than zero
        return scalar_constant(op.operands[1 - use.number]) not in (None, 0)
    if op.name in _SUMS:
        return _is_addend(use) and not _is_lone(use)
    return op.name in _ENDS


def _is_addend(use: Use) -> bool:
    """Whether an operation of `_SUMS` adds up the operand of a use, or products with it."""
    op = use.op
    if not op.regions:
        return True
    added = use.number == (
        0 if op.name == "stablehlo.reduce" else 2
    )  # an operand to reduce or an update, not the initial value or target
    return len(op.results) == 1 and added and [o.name for o in op.regions[0].ops[:-1]] == ["stablehlo.add"]


def _is_lone(use: Use) -> bool:
    """Whether each sum of an operation of `_SUMS` may have a single addend, whose sign shows even if it is a zero (else
    sums start from a positive zero, which compilers leave out for single addends)."""
    op = use.op
    shape = op.operands[0].type.shape
    if op.name == "stablehlo.scatter":
        target, where = scalar_constant(op.operands[0]), scatter_dims(op.attrs["scatter_dimension_numbers"])
        places = math.prod(n for d, n in enumerate(op.operands[1].type.shape) if d != where.index_vector)
        return target is None or (target == 0 and (places == 1 or math.copysign(1, target) < 0))
    if op.name == "stablehlo.reduce":
        return bool(math.prod(shape[d] for d in integers(op.attrs["dimensions"])) == 1)
    if op.name == "stablehlo.dot_general":
        return bool(math.prod(shape[d] for d in dot_dims(op.attrs["dot_dimension_numbers"]).lhs_contract) == 1)
    kernel, dims = op.operands[1].type, conv_dims(op.attrs["dimension_numbers"])
    return bool(kernel.size == kernel.shape[dims.kernel_output_feature])


def _is_rounded(ctx: Context, value: Value) -> bool:
    """Whether a value is only used by contractions that round it to bf16 first, as those of TPUs do by default. Then it
    travels as a number, rounded before it is sent: half the bytes."""
    if ctx.topology.compiler != "tpu" or value.type.dtype not in ("bf16", "f32"):
        return False
    rounds = lambda use: use.op.name == "stablehlo.dot_general" and not _is_precise(ctx, use.op)
    return _ends(ctx, value, rounds, MOVING - {"stablehlo.convert"} | {"stablehlo.concatenate"})


def _is_precise(ctx: Context, op: Op) -> bool:
    """Whether a contraction asks for more than the platform's default precision."""
    asked = op.attrs.get("precision_config")
    return "algorithm" in op.attrs or (asked is not None and "HIGH" in ctx.text_of(asked))


def _ends(ctx: Context, value: Value, is_end: Callable[[Use], bool], moving: frozenset[str]) -> bool:
    """Whether all uses of a value satisfy `is_end`, looking through operations in `moving`, loops and calls."""
    waiting, seen = [value], {value}
    while waiting:
        for use in waiting.pop().uses:
            if is_end(use):
                continue
            carried = list(_carried(ctx, use, moving))
            if not carried or len(seen) > LOOKUP_READERS:
                return False
            waiting += [v for v in carried if v not in seen]
            seen.update(carried)
    return True


def _carried(ctx: Context, use: Use, moving: frozenset[str]) -> Iterator[Value]:
    """The values to which a use passes its operand on unchanged; none if that is not known."""
    op = use.op
    if op.name == "stablehlo.optimization_barrier":
        yield op.results[use.number]
    elif op.name in moving or (moving >= _SIGNED and _keeps(use)):
        yield op.results[0]
    elif op.name == "func.call":
        callee = ctx.program.funcs.get(symbol(op.attrs["callee"]))
        if callee is not None:
            yield callee.args[use.number]
    elif op.name == "func.return":
        if op.operands[use.number] in ctx.returned_as:
            yield ctx.returned_as[op.operands[use.number]]
    elif op.name == "stablehlo.while":
        yield from _places(op, use.number)
    elif op.name == "stablehlo.return" and isinstance(loop := op.parent_op, Op) and loop.name == "stablehlo.while":
        yield from _places(loop, use.number)


def _keeps(use: Use) -> bool:
    """Whether a use is as `_SIGNED` operations are, because of the operand's place: a numerator, an addend."""
    op = use.op
    return use.number == 0 if op.name == "stablehlo.divide" else op.name in _SUMS and _is_addend(use)


def _places(loop: Op, number: int) -> Iterator[Value]:
    """The values that stand for operand `number` of a loop: its regions' arguments, and its result."""
    yield from (region.args[number] for region in loop.regions)
    yield loop.results[number]
