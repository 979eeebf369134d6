"""Operations with batch dimensions: they work within some dimensions (which are gathered) and are independent along the
others (which stay split): sorts, transforms, factorisations, random bits, custom calls.

Which dimensions are independent comes from the sharding rule of the operation in `propagation.rules`: its pass-through
factors. A sort of f32[64, 1024] along dimension 1 has the rule ([i, j]) -> ([i, j]) with j needing replication: layout
((0,), ()) needs no communication, ((), (0,)) is brought to ((0,), ()) by an all-to-all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from propagation.attributes import flag, string
from propagation.model import FactorType, OpRule
from propagation.program import Op, Value, source
from propagation.rules import rule_for
from propagation.rules.custom import is_opaque
from propagation.rules.parse import parse_printed
from propagation.rules.registered import user_rule

from ..decide.candidate import Candidate, as_propagated
from ..decide.factors import PASS, REDUCE, WHOLE, Choice, Factors, Splits, followed, gathered
from ..errors import WITH_XLA, UnsupportedOpError
from ..ir.attributes import Array, Attributes, Dense
from ..ir.operations import attributes
from ..ir.program import LocalOp, LocalValue
from ..layout import Dims, replicated
from ..layouts.context import Context
from .callback import is_host_call, on_one_device

__all__ = [
    "MATRICES", "ahead", "by_rule", "factors_of", "in_row_major", "matrices", "moved_away", "rule_ahead", "rule_of",
    "split", "sum_ahead", "window_ahead", "write_whole",
]  # fmt: skip


def rule_of(op: Op) -> OpRule | None:
    """The rule an operation carries, or that of its name."""
    attr = op.attrs.get("sdy.sharding_rule")
    if attr is not None:
        return parse_printed(str(attr))
    return rule_for(op)


@functools.lru_cache(maxsize=4096)
def factors_of(rule: OpRule, operands: tuple[Any, ...], results: tuple[Any, ...], sums: bool = False) -> Factors:
    """The factors of a sharding rule, as `choose` takes them. Pass-through factors may be split if every dimension that
    has them is that one factor; so may reduced factors if the operation `sums` over them. All others are gathered."""
    of_type = {FactorType.PASS_THROUGH: PASS, **({FactorType.REDUCTION: REDUCE} if sums else {})}
    kinds = [of_type.get(t, WHOLE) for t in rule.types]
    for shapes, tensors in ((operands, rule.operands), (results, rule.results)):
        for shape, dims in zip(shapes, tensors):
            for n, factors in zip(shape, dims):
                for f in factors:
                    if len(factors) > 1 or n != rule.sizes[f]:
                        kinds[f] = WHOLE

    def flat(tensors: Sequence[Sequence[tuple[int, ...]]]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(f[0] if len(f) == 1 else -1 for f in dims) for dims in tensors)

    used = {f for dims in flat(rule.operands) for f in dims}
    kinds = [k if f in used else WHOLE for f, k in enumerate(kinds)]  # no operand says how to compute a part of these
    for tensor in flat(rule.results):  # pass-through factors are in every result, reduced ones in none
        kinds = [k if (f in tensor) == (k == PASS) else WHOLE for f, k in enumerate(kinds)]
    even = frozenset(f for f, k in enumerate(kinds) if k == REDUCE)  # padding would be added up, with unknown effect
    return Factors(rule.sizes, tuple(kinds), flat(rule.operands), flat(rule.results), even)


def by_rule(
    ctx: Context, op: Op, why: str = "the operation needs these dimensions whole", sums: bool = False,
    effect: bool = False, row_major: bool = False, gathers: bool = False,
) -> Candidate | Splits:  # fmt: skip
    """The ways to run an operation on pieces along the pass-through factors of its rule; also along reduced factors if
    the operation `sums` over them: each device makes a partial sum. All else is as for `split`."""
    rule = rule_of(op)
    if rule is None:
        return whole(ctx, op, "nothing is known about its dimensions", effect)
    shapes = [tuple([v.type.shape for v in values]) for values in (op.operands, op.results)]
    return split(ctx, op, factors_of(rule, *shapes, sums), why, None, effect, row_major, gathers)


def plain(ctx: Context, op: Op) -> Iterator[Candidate | Splits]:
    """The ways that the rule of an operation gives."""
    yield by_rule(ctx, op)


def split(
    ctx: Context, op: Op, factors: Factors, why: str, attrs: Attributes | None = None, effect: bool = False,
    row_major: bool = False, gathers: bool = False,
) -> Splits:  # fmt: skip
    """The ways to run the operation on pieces, by the assignments of axes to `factors`, with its attributes unchanged
    unless `attrs` replaces their text.

    why        what a full-gather finding says of the dimensions that had to be gathered
    effect     the operation has a side effect: it stays although nobody uses its results
    row_major  operands and results are kept in row-major order in memory
    gathers    as that of `Splits`
    """
    # Work counts as one pass over the results: computing the same on all devices is avoided, but not by sending more.
    byte = max(map(ctx.itemsize, op.results), default=0.0) * ctx.redundancy
    write = lambda choice: _write(ctx, op, factors, choice, why, attrs, effect, row_major)
    return Splits(factors, op.operands, op.results, byte, write, gathers=gathers)


def _write(
    ctx: Context, op: Op, factors: Factors, choice: Choice, why: str, attrs: Attributes | None, effect: bool,
    row_major: bool,
) -> None:  # fmt: skip
    operands = gathered(ctx, factors, op.operands, choice.operands, why)
    shapes = [ctx.piece_shape(r, dims) for r, dims in zip(op.results, choice.results)]
    if row_major:
        operands = [in_row_major(ctx, x) for x in operands]
    refs = ctx.local_copy(op, operands, shapes, attrs, effect)
    if row_major:
        refs = [in_row_major(ctx, x) for x in refs]
    for r, dims, ref in zip(op.results, choice.results, refs):
        ctx.bind_partial(r, dims, {choice.pending: ref})


def in_row_major(ctx: Context, x: LocalValue) -> LocalValue:
    """`x` in row-major order in memory, by the custom call `LayoutConstraint`. Not on TPUs, whose compiler finds
    layouts for its transforms by itself, and does not know that call for complex numbers."""
    rank = len(x.shape)
    if rank < 2 or ctx.realiser.platform == "tpu":
        return x
    layouts = Array((Dense.of(np.arange(rank)[::-1], "index"),))
    attrs = attributes("stablehlo.custom_call", "LayoutConstraint", layouts, layouts)
    return ctx.region.op("stablehlo.custom_call", (x,), [(x.shape, x.dtype)], attrs, loc=ctx.loc)[0]


def whole(ctx: Context, op: Op, why: str, effect: bool = False) -> Candidate:
    """The way in which every device runs the whole operation."""
    layouts = lambda values: tuple([replicated(len(v.type.shape)) for v in values])
    return Candidate(layouts(op.operands), layouts(op.results), lambda: write_whole(ctx, op, why, effect))


def write_whole(ctx: Context, op: Op, why: str, effect: bool = False) -> None:
    """Writes an operation that every device runs whole."""
    operands = [ctx.gathered(v, replicated(len(v.type.shape)), why) for v in op.operands]
    results = [LocalValue(r.type.shape, r.type.dtype, None if r.type.is_tensor else r.type.text) for r in op.results]
    regions = [ctx.copy_region(b) for b in op.regions] if op.regions else ()
    attrs = ctx.attributes_of(op)
    ctx.region.add(LocalOp(op.name, operands, results, extra=attrs, regions=regions, loc=ctx.loc, effect=effect))
    for r, ref in zip(op.results, results):
        ctx.bind(r, replicated(len(r.type.shape)), ref)


# Custom calls of XLA's TPU compiler and of its expansions, on matrices in the last two dimensions of all operands.
MATRICES = (
    "Cholesky", "CompactWyHelper", "Eigh", "InvertDiagBlocksLowerTriangular", "InvertDiagBlocksUpperTriangular",
    "LuDecomposition", "ProductOfElementaryHouseholderReflectors", "Qr", "QrDecompositionBlock",
)  # fmt: skip
# Libraries of dense linear algebra: all operands and results share their leading (batch) dimensions.
_BATCHED_LIBRARIES = (
    "lapack_", "cusolver_", "cusparse_", "cuhybrid_", "cublas_", "cu_", "hipsolver_", "hipsparse_", "hiphybrid_",
    "hip_", "magma_", "cpu_", "tridiagonal_solve_",
)  # fmt: skip


def custom_call(ctx: Context, op: Op) -> Iterator[Candidate | Splits]:
    """In this order: the family that has an entry `stablehlo.custom_call@TARGET`; callbacks, which one device makes for
    all; the sharding rule of the call; linear algebra libraries along their batch dimensions; kernels on gathered
    operands, with a finding. A call that nothing is known of is refused sharded operands, unless the option
    `gather_custom_calls` is set."""
    way = _called(ctx, op, string(op.attrs["call_target_name"]))
    if "called_computations" not in op.attrs:
        yield way
        return
    names = [ir.FlatSymbolRefAttr(symbol).value for symbol in ir.ArrayAttr(op.attrs["called_computations"])]

    def write(*chosen: Any) -> None:
        for name in names:
            ctx.keep_function(name)
        assert way.write is not None  # it is none of the look-ahead
        way.write(*chosen)

    yield way._replace(write=write)


def _called(ctx: Context, op: Op, target: str) -> Candidate | Splits:
    """The ways to make a custom call: see `custom_call`."""
    effect = "has_side_effect" in op.attrs and flag(op.attrs["has_side_effect"])
    own = ctx.families.get(f"stablehlo.custom_call@{target}")
    if own is not None and user_rule(target) is None:
        return _as_it_is(op, lambda: own(ctx, op))
    if rule_of(op) is not None:
        return by_rule(ctx, op, sums=True, effect=effect, gathers=target.startswith(_BATCHED_LIBRARIES))
    if is_host_call(ctx, op, effect):
        return _as_it_is(op, lambda: on_one_device(ctx, op, effect))
    return _without_rule(ctx, op, target, effect)


def _as_it_is(op: Op, write: Callable[[], None]) -> Candidate:
    """The only way to do an operation, whose layouts `write` knows."""
    return Candidate((None,) * len(op.operands), (None,) * len(op.results), write)


def _without_rule(ctx: Context, op: Op, target: str, effect: bool) -> Candidate | Splits:
    if effect and not ctx.manual and ctx.atoms.count > 1:
        raise UnsupportedOpError(
            f"custom_call @{target} has a side effect and no sharding rule, so it would run once per device; register "
            f"a rule for it, call it in a manual computation (shard_map), or {WITH_XLA}",
            source(op),
        )
    if target.startswith(_BATCHED_LIBRARIES):
        return matrices(ctx, op, effect)
    if not is_opaque(target) and not ctx.options.gather_custom_calls:
        _refuse_sharded(ctx, op, target)
    return whole(ctx, op, f"custom_call @{target} has no sharding rule", effect)


def matrices(ctx: Context, op: Op, effect: bool = False) -> Splits:
    """Linear algebra on stacks of matrices: split along the batch dimensions that all operands and results share."""
    factors = _batch_factors(tuple(v.type.shape for v in op.operands), tuple(r.type.shape for r in op.results))
    why = f"@{string(op.attrs['call_target_name'])} works on whole matrices"
    return split(ctx, op, factors, why, effect=effect, gathers=True)


def _refuse_sharded(ctx: Context, op: Op, target: str) -> None:
    for i, v in enumerate(op.operands):
        have = ctx.state(v).dims
        if have is not None and any(have):
            raise UnsupportedOpError(
                f"custom_call @{target} has no sharding rule, and its operand {i} is sharded: "
                f"{ctx.atoms.text(v.type.shape, v.type.dtype, have)}; register a rule for it "
                "(register_sharding_rule, or an sdy.sharding_rule attribute), constrain the operand to be replicated, "
                "or pass gather_custom_calls=True to have it gathered",
                source(op),
            )


def ahead(ctx: Context, op: Op, value: Value, dims: Dims) -> Iterator[Candidate]:
    """For the look-ahead: linear algebra, one operand of which is in layout `dims`, works on what its batch dimensions
    are split into; other operations, and matrices that are split, are taken to be as propagation decided."""
    yield as_propagated(ctx, op, value)
    if op.name == "stablehlo.custom_call":
        target = string(op.attrs["call_target_name"])
        if not target.startswith(_BATCHED_LIBRARIES) and target not in MATRICES:
            return
    factors = _batch_factors(tuple(v.type.shape for v in op.operands), tuple(r.type.shape for r in op.results))
    mine = factors.operands[op.operands.index(value)]
    if any(atoms and f < 0 for atoms, f in zip(dims, mine)):
        return
    assigned = {f: atoms for atoms, f in zip(dims, mine)}
    of = lambda tensors: tuple([tuple([assigned.get(f, ()) for f in t]) for t in tensors])
    layouts = [None if v is value else d for v, d in zip(op.operands, of(factors.operands))]
    yield Candidate(tuple(layouts), of(factors.results))


def rule_ahead(ctx: Context, op: Op, value: Value, dims: Dims) -> Iterator[Candidate]:
    """For the look-ahead: the ways to split an operation along the pass-through factors of its sharding rule."""
    return followed(ctx, op, value, dims, _rule_factors(ctx, op))


def sum_ahead(ctx: Context, op: Op, value: Value, dims: Dims) -> Iterator[Candidate]:
    """The same where reduced factors may be split too, and leave sums."""
    return followed(ctx, op, value, dims, _rule_factors(ctx, op, sums=True))


def window_ahead(ctx: Context, op: Op, value: Value, dims: Dims) -> Iterator[Candidate]:
    """The same for slices, which may also be looked up: each device gives what it holds, and a sum follows."""
    return followed(ctx, op, value, dims, _rule_factors(ctx, op), is_masked=True)


def moved_away(ctx: Context, shape: Sequence[int], dims: Dims, changed: Sequence[int]) -> list[Dims]:
    """The layouts in which the axes of one of the dimensions `changed`, along which elements change their positions,
    split another dimension of a tensor of this shape instead: those that divide it."""
    return [
        tuple([() if i == at else (*d, *atoms) if i == to else d for i, d in enumerate(dims)])
        for at, atoms in enumerate(dims) if at in changed and atoms
        for to, n in enumerate(shape)
        if to not in changed and n % ctx.atoms.product((*dims[to], *atoms)) == 0
    ]  # fmt: skip


def _rule_factors(ctx: Context, op: Op, sums: bool = False) -> Factors | None:
    rule = ctx.rules.rule_for(op)
    shapes = [tuple([v.type.shape for v in values]) for values in (op.operands, op.results)]
    return None if rule is None else factors_of(rule, *shapes, sums)


@functools.lru_cache(maxsize=1024)
def _batch_factors(operands: tuple[Any, ...], results: tuple[Any, ...]) -> Factors:
    """Leading dimensions that every tensor of rank 2 or more shares are batch dimensions (all but a matrix's two)."""
    shape = max(operands, key=len)
    batch = max(0, len(shape) - 2)
    for s in (*operands, *results):
        common = 0
        while common < min(batch, len(s)) and s[common] == shape[common]:
            common += 1
        batch = common if s else batch

    def dims(s: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(i if i < batch else -1 for i in range(len(s)))

    return Factors(shape[:batch], (PASS,) * batch, tuple(map(dims, operands)), tuple(map(dims, results)))


def rng_bit_generator(ctx: Context, op: Op) -> Iterator[Candidate]:
    """The stream of bits depends on the whole shape: every device makes all bits, and slices off its part later."""
    key = op.operands[0]
    state_layout, *layouts = [replicated(len(v.type.shape)) for v in (key, *op.results)]

    def write() -> None:
        state = ctx.gathered(key, state_layout, "every device needs the whole state")
        for r, dims, ref in zip(op.results, layouts, ctx.local_copy(op, [state], [r.type.shape for r in op.results])):
            ctx.bind(r, dims, ref)

    yield Candidate((state_layout,), tuple(layouts), write)


AHEAD = {"stablehlo.custom_call": ahead}

CANDIDATES = {
    "stablehlo.batch_norm_inference": plain,
    "stablehlo.rng_bit_generator": rng_bit_generator,
    "stablehlo.custom_call": custom_call,
}
