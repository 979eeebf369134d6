"""Elements that one device of a group holds and all others lack, added up over the group: looked-up rows, windows.

As floating-point numbers sums of them lose subnormal numbers, signs of zeros, payloads of NaNs and bits that are no
numbers. Where arithmetic would lose these anyway they travel as numbers; everywhere else as bits, by the reduction
"choose" of `Realiser.collective`: bits and the numbers made of them are two buffers, both of which live where compilers
put the conversion into some of the value's users.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from propagation.attributes import conv_dims, dot_dims, integers, scatter_dims, symbol
from propagation.program import Op, Use, Value

from ..emit import Ref
from ..layout import Dims
from .constant import scalar_constant
from .context import Context

__all__ = ["MOVING", "bind"]

STEPS = 512  # values that are followed on the way to their readers


def _named(*names: str) -> frozenset[str]:
    return frozenset(name if "." in name else f"stablehlo.{name}" for name in names)


# What brings elements to other positions and leaves them as they are.
MOVING = _named("broadcast_in_dim", "convert", "dynamic_slice", "reshape", "slice", "transpose")  # not to other types
# What does so with several operands.
_JOINING = _named(
    "abs", "clamp", "concatenate", "dynamic_update_slice", "maximum", "minimum", "optimization_barrier", "pad",
    "reverse", "select", "sdy.propagation_barrier", "sdy.reshard", "sdy.sharding_constraint",
)  # fmt: skip
# What is the same for two NaNs, for both zeros, and for a subnormal number and zero where arithmetic takes it for that.
_ENDS = _named("cosine", "exponential", "log", "logistic", "chlo.square")
# What is so but for the sign of a zero: two zeros that are both negative add up to a negative one.
_SIGNED = _named(
    "add", "cbrt", "exponential_minus_one", "log_plus_one", "multiply", "negate", "sign", "sine", "sqrt", "subtract",
    "tanh", "chlo.erf",
)  # fmt: skip
_SUMS = _named("convolution", "dot_general", "reduce", "scatter")


def bind(ctx: Context, value: Value, dims: Dims, pending: tuple[int, ...], ref: Ref) -> None:
    """Binds a value of whose elements each is on one of the devices along `pending`; all others hold zeros."""
    kind = "or" if ref.dtype == "i1" else "add"
    bits = not (_is_number(ctx, value) or _is_rounded(ctx, value))
    ctx.bind_partial(value, dims, {pending: ref}, kind, masked=True, chosen=bits)


def _is_number(ctx: Context, value: Value) -> bool:
    """Whether nobody tells a value's bits from the number. Contractions of TPUs are another matter: see `_is_rounded`.
    Sums of 16 bits are taken in 32 by some compilers; bits travel in pairs."""
    if ctx.topology.compiler == "tpu" or value.type.dtype not in ("f32", "f64"):
        return False
    return _ends(ctx, value, _is_end, MOVING | _JOINING | _SIGNED)


def _is_end(use: Use) -> bool:
    op = use.op
    if op.name == "stablehlo.convert":
        return op.results[0].type.dtype.startswith(("i", "ui"))
    if op.name == "stablehlo.compare":
        return "TOTALORDER" not in str(op.attrs.get("compare_type", ""))  # that is a comparison of bits
    if op.name in ("stablehlo.add", "stablehlo.subtract"):  # what is no zero has no sign of a zero
        return scalar_constant(op.operands[1 - use.number]) not in (None, 0)
    if op.name in _SUMS:
        return _is_addend(use) and not _is_lone(use)
    return op.name in _ENDS


def _is_addend(use: Use) -> bool:
    """Whether an operation of `_SUMS` adds up what a use takes, or products with it."""
    op = use.op
    if not op.regions:
        return True
    added = use.number == (0 if op.name == "stablehlo.reduce" else 2)  # not what updates are added to
    return len(op.results) == 1 and added and [o.name for o in op.regions[0].ops[:-1]] == ["stablehlo.add"]


def _is_lone(use: Use) -> bool:
    """Whether each sum may be of a single number, which keeps its sign if it is a zero: others are added to a zero, and
    compilers leave that zero out for single updates."""
    op = use.op
    shape = op.operands[0].type.shape
    if op.name == "stablehlo.scatter":
        target, where = scalar_constant(op.operands[0]), scatter_dims(op.attrs["scatter_dimension_numbers"])
        places = math.prod(n for d, n in enumerate(op.operands[1].type.shape) if d != where.index_vector)
        return target is None or (target == 0 and (places == 1 or math.copysign(1, target) < 0))
    if op.name == "stablehlo.reduce":
        return math.prod(shape[d] for d in integers(op.attrs["dimensions"])) == 1
    if op.name == "stablehlo.dot_general":
        return math.prod(shape[d] for d in dot_dims(op.attrs["dot_dimension_numbers"]).lhs_contract) == 1
    kernel, dims = op.operands[1].type, conv_dims(op.attrs["dimension_numbers"])
    return kernel.size == kernel.shape[dims.kernel_output_feature]


def _is_rounded(ctx: Context, value: Value) -> bool:
    """Whether every element only goes into contractions that round it to bf16 first, as those of TPUs do if nothing
    else is asked for. Then its bits need not arrive as they are, and as a number it is sent rounded: half the bytes."""
    if ctx.topology.compiler != "tpu" or value.type.dtype not in ("bf16", "f32"):
        return False
    rounds = lambda use: use.op.name == "stablehlo.dot_general" and not _is_precise(ctx, use.op)
    return _ends(ctx, value, rounds, MOVING - {"stablehlo.convert"} | {"stablehlo.concatenate"})


def _is_precise(ctx: Context, op: Op) -> bool:
    """Whether a contraction asks for more than the platform's default precision."""
    asked = op.attrs.get("precision_config")
    return "algorithm" in op.attrs or (asked is not None and "HIGH" in ctx.text_of(asked))


def _ends(ctx: Context, value: Value, is_end: Callable[[Use], bool], moving: frozenset[str]) -> bool:
    """Whether all uses of a value are ends, be it that operations of `moving`, loops and calls carry it there."""
    waiting, seen = [value], {value}
    while waiting:
        for use in waiting.pop().uses:
            if is_end(use):
                continue
            carried = list(_carried(ctx, use, moving))
            if not carried or len(seen) > STEPS:
                return False
            waiting += [v for v in carried if v not in seen]
            seen.update(carried)
    return True


def _carried(ctx: Context, use: Use, moving: frozenset[str]) -> Iterator[Value]:
    """The values that hold what a use takes, as it is; none if that is not known."""
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
    elif op.name == "stablehlo.return" and op.parent_op is not None and op.parent_op.name == "stablehlo.while":
        yield from _places(op.parent_op, use.number)


def _keeps(use: Use) -> bool:
    """Whether a use may show in the result, and only as `_SIGNED` says, because of what the operand is used for."""
    op = use.op
    return use.number == 0 if op.name == "stablehlo.divide" else op.name in _SUMS and _is_addend(use)


def _places(loop: Op, number: int) -> Iterator[Value]:
    """A value that a loop carries: within it, and after it."""
    yield from (region.args[number] for region in loop.regions)
    yield loop.results[number]
