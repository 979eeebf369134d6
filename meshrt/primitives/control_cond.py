"""The primitives `cond`, one of several branches, chosen by an int32 index, and `platform_index`, such an index.

    cond[branches] index operands...  ->  results...

All branches take the same operands and give results of the same types. With the parameter `platforms` the index is a
`platform_index` of it: the branch is known when the program is written, and no other is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshrt import errors
from meshrt.core.basic.parts import from_parts_p, has_parts_derivatives, in_front, parts_of
from meshrt.core.basic.shapes import bring_to_front, broadcast_in_dim, zeros
from meshrt.core.basic.varying import declared
from meshrt.core.effects import is_debug
from meshrt.core.high import unlike
from meshrt.core.jaxpr import Atom, Eqn, Jaxpr, Var
from meshrt.core.primitive import Primitive, is_undefined
from meshrt.core.trace import JaxprTrace, Tracer, eval_jaxpr, set_trace
from meshrt.core.types import NOT_VARYING, ShapedArray, aval_of
from meshrt.lowering.context import PLATFORMS, LoweringContext
from meshrt.primitives.control_discharge import cond_rule
from meshrt.primitives.control_high import chosen, cond_opened
from meshrt.primitives.control_staging import body_effects, weak_key, with_vars
from meshrt.primitives.elementwise import eq_p
from meshrt.primitives.identity import stop_gradient_p
from meshrt.primitives.selection import select_n_p
from meshrt.transforms.batching import MappedAxis, batch_jaxpr, flags_of, led
from meshrt.transforms.jvp import jvp_jaxpr
from meshrt.transforms.linear import given_linear, transpose_jaxpr
from meshrt.transforms.linearize import Linearized, linearize_jaxpr
from meshrt.transforms.ordering import TOKEN
from meshrt.transforms.recompute import Policy, Split, inlined, split
from meshrt.transforms.running_sums import returning
from meshrt.transforms.tools import WeakCache, dce, hoist_consts

__all__ = ["cond_p", "platform_index_p"]

Platforms = tuple[tuple[str, ...] | None, ...]


def branch_for(platform: str, platforms: Platforms) -> int:
    """The position of the branch for `platform`. UnsupportedError where there is none."""
    for i, names in enumerate(platforms):
        if names is None or platform in names:
            return i
    known = ", ".join(repr(n) for names in platforms for n in names or ())
    raise errors.UnsupportedError(
        f"platform_dependent has a branch for {known or 'no platform'}, but the program is written for {platform!r}; "
        f"give a branch {platform}=... or a default="
    )


def _choice(params: dict[str, Any]) -> dict[str, Any]:
    """What says who chooses, to be given to applications that are made of one with these parameters."""
    return {PLATFORMS: params[PLATFORMS]} if PLATFORMS in params else {}


platform_index_p = Primitive(
    "platform_index", lambda *, platforms: ShapedArray((), np.dtype(np.int32)),
    lower=lambda ctx, eqn: ctx.scalar(branch_for(ctx.module.platform, eqn.params[PLATFORMS]), np.dtype(np.int32)),
    absent=dict.fromkeys(("jvp", "transpose", "batch"), "it has no operands"), finite=True,
)  # fmt: skip


def _infer(index: ShapedArray, *avals: ShapedArray, branches: tuple[Jaxpr, ...], **chosen: Any) -> Any:
    if index.shape or index.dtype != np.int32:
        raise errors.ArgumentTypeError(f"cond takes an int32 index, not {index.short()}")
    for got, want in zip(avals, branches[0].in_avals, strict=True):
        if unlike(got, want):
            raise errors.ArgumentTypeError(
                f"cond: an operand of type {got.short()} where the branches take {want.short()}"
            )
    return branches[0].out_avals


def _lower(ctx: LoweringContext, eqn: Eqn, index: Any, *operands: Any) -> Any:
    """`stablehlo.case`, whose regions capture the operands; where the platform chooses, what its branch does."""
    if PLATFORMS in eqn.params:
        return ctx.jaxpr(eqn.params["branches"][branch_for(ctx.module.platform, eqn.params[PLATFORMS])], operands)
    regions = []
    for i, branch in enumerate(eqn.params["branches"]):
        body = ctx.body.body([])
        body.ret(ctx.nested(body, f"branch_{i}_fun").jaxpr(branch, operands), loc=ctx.loc)
        regions.append(body)
    return ctx.ops("stablehlo.case", [index], [v.aval for v in eqn.outvars], regions=regions)


def _joined(closed: Sequence[Any]) -> tuple[tuple[Jaxpr, ...], list[Any]]:
    """Branches with captured constants as Jaxprs of one signature: each takes the constants of all of them first.

    With constants [a] and [b, c], both become functions of (a, b, c, operands...) and ignore what is not theirs.
    """
    if not any(c.consts for c in closed):
        return tuple(c.jaxpr for c in closed), []
    jaxprs, consts = [], [x for c in closed for x in c.consts]
    start = 0
    for c in closed:
        n = len(c.consts)
        front = [Var(aval_of(x)) for x in consts]
        front[start : start + n] = c.jaxpr.invars[:n]
        jaxprs.append(with_vars(c.jaxpr, [*front, *c.jaxpr.invars[n:]], c.jaxpr.outvars))
        start += n
    return tuple(jaxprs), consts


def _union(flags: Sequence[Sequence[bool]]) -> tuple[bool, ...]:
    return tuple(any(f) for f in zip(*flags))


# ---------------------------------------------------------------------------------------------------------------------
# Differentiation


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, branches: tuple[Jaxpr, ...], **chosen: Any
) -> tuple[Any, Any]:
    index, *operands = primals
    nonzero = tuple(t is not None for t in tangents[1:])
    union = _union([jvp_jaxpr(b, nonzero)[1] for b in branches])
    jaxprs, consts = _joined([jvp_jaxpr(b, nonzero, union)[0] for b in branches])
    live = [t for t in tangents[1:] if t is not None]
    outs = cond_p.bind(index, *consts, *operands, *live, branches=jaxprs, **chosen)
    count = len(union)
    found = iter(outs[count:])
    return outs[:count], [next(found) if nz else None for nz in union]


class _Plan(NamedTuple):
    """Linearized branches, all of one signature although each saves residuals of its own.

    A `forward` branch returns the results, then `num_slots` residual slots. Branches share a slot where their residuals
    have one type, and fill the slots that they do not use with zeros: residuals f32[8] of one branch and f32[8], f32[4]
    of another make two slots. A `linear` branch takes the slots, then those operands (positions `args`) and results
    (positions `outs`) that serve as residuals as they are, then the nonzero tangents.
    """

    forward: tuple[Jaxpr, ...]
    consts: list[Any]
    linear: tuple[Jaxpr, ...]
    num_slots: int
    args: list[int]
    outs: list[int]
    nonzeros_out: tuple[bool, ...]


_plans: WeakCache = WeakCache()


def _plan(branches: tuple[Jaxpr, ...], nonzero: tuple[bool, ...]) -> _Plan:
    union = _union([linearize_jaxpr(b, nonzero).nonzeros_out for b in branches])
    lins = [linearize_jaxpr(b, nonzero, union) for b in branches]
    num_outs = len(branches[0].outvars)
    slots, used = _slots([[v.aval for v in lin.forward.jaxpr.outvars[num_outs:]] for lin in lins])
    args = sorted({k for lin in lins for kind, k in lin.sources if kind == "arg"})
    outs = sorted({k for lin in lins for kind, k in lin.sources if kind == "out"})
    forward, consts = _joined([lin.forward for lin in lins])
    forward = tuple(_filled(j, num_outs, mine, slots) for j, mine in zip(forward, used))
    operand_avals, out_avals = branches[0].in_avals, branches[0].out_avals
    avals = [*slots, *[operand_avals[k] for k in args], *[out_avals[k] for k in outs]]
    places = {("arg", k): len(slots) + i for i, k in enumerate(args)}
    places |= {("out", k): len(slots) + len(args) + i for i, k in enumerate(outs)}
    linear = tuple(_with_residuals(lin, mine, avals, places) for lin, mine in zip(lins, used))
    return _Plan(forward, consts, linear, len(slots), args, outs, union)


def _slots(residuals: Sequence[Sequence[ShapedArray]]) -> tuple[list[ShapedArray], list[list[int]]]:
    """(types of the slots that hold the residuals of whichever branch is taken, per branch the slot of each of its)."""
    slots: list[ShapedArray] = []
    used = []
    for avals in residuals:
        mine: list[int] = []
        for aval in avals:
            free = (i for i, a in enumerate(slots) if i not in mine and a.strong() is aval.strong())
            slot = next(free, len(slots))
            if slot == len(slots):
                slots.append(aval)
            mine.append(slot)
        used.append(mine)
    return slots, used


def _filled(jaxpr: Jaxpr, num_outs: int, mine: Sequence[int], slots: Sequence[ShapedArray]) -> Jaxpr:
    """`jaxpr` with its residuals in their slots and zeros in the others."""
    if list(mine) == list(range(len(slots))):
        return jaxpr
    trace = JaxprTrace(jaxpr.name, requires_low=False)
    args = [trace.argument(a) for a in jaxpr.in_avals]
    with set_trace(trace):
        outs = eval_jaxpr(jaxpr, (), args)
        values = dict(zip(mine, outs[num_outs:]))
        residuals = [values[i] if i in values else zeros(a) for i, a in enumerate(slots)]
        closed = hoist_consts(trace.close(args, [*outs[:num_outs], *residuals]))
    if closed.consts:
        raise errors.InternalError("a branch captured constants that should have been hoisted")
    return closed.jaxpr


def _with_residuals(lin: Linearized, mine: Any, avals: Sequence[ShapedArray], places: Any) -> Jaxpr:
    """The linear program of a branch, taking the residuals of all branches."""
    front = [Var(a) for a in avals]
    for v, (kind, k) in zip(lin.linear.invars, lin.sources):
        front[mine[k] if kind == "res" else places[kind, k]] = v
    return with_vars(lin.linear, [*front, *lin.linear.invars[len(lin.sources) :]], lin.linear.outvars)


def _linearize(linear_trace: Any, primals: Sequence[Any], tangents: Sequence[Any], params: dict[str, Any]) -> Any:
    branches = params["branches"]
    index, *operands = primals
    nonzero = tuple(t is not None for t in tangents[1:])
    plan = _plans.get(branches[0], (weak_key(*branches), nonzero, given_linear.get()), lambda: _plan(branches, nonzero))
    outs = cond_p.bind(index, *plan.consts, *operands, branches=plan.forward, **_choice(params))
    num_outs = len(outs) - plan.num_slots
    outs, slots = outs[:num_outs], outs[num_outs:]
    if not any(plan.nonzeros_out):
        return outs, [None] * num_outs
    residuals = [*slots, *[operands[k] for k in plan.args], *[outs[k] for k in plan.outs]]
    t_in = [t for t in tangents[1:] if t is not None]
    t_outs = iter(linear_trace.record(cond_p, [index, *residuals, *t_in], {"branches": plan.linear, **_choice(params)}))
    return outs, [next(t_outs) if nz else None for nz in plan.nonzeros_out]


_transposes: WeakCache = WeakCache()


def _transposed(
    branches: tuple[Jaxpr, ...], linear: tuple[bool, ...], nonzero_cts: tuple[bool, ...]
) -> tuple[tuple[Jaxpr, ...], list[Any], tuple[bool, ...]]:
    """(transposed branches, their constants, flags of the operands that get a cotangent).

    An operand gets one if any branch has one for it; the other branches return zeros there.
    """
    made = [transpose_jaxpr(b, linear, nonzero_cts) for b in branches]
    union = _union([nz for _, nz in made])
    avals = [a for a, lin in zip(branches[0].in_avals, linear) if lin]
    jaxprs, consts = _joined([closed for closed, _ in made])
    return tuple(_with_zeros(j, nz, union, avals) for j, (_, nz) in zip(jaxprs, made)), consts, union


def _with_zeros(jaxpr: Jaxpr, have: Sequence[bool], want: Sequence[bool], avals: Sequence[ShapedArray]) -> Jaxpr:
    if tuple(have) == tuple(want):
        return jaxpr
    trace = JaxprTrace(jaxpr.name, requires_low=False)
    args = [trace.argument(a) for a in jaxpr.in_avals]
    with set_trace(trace):
        outs = iter(eval_jaxpr(jaxpr, (), args))
        full = [next(outs) if h else zeros(a) for h, w, a in zip(have, want, avals) if w]
        closed = hoist_consts(trace.close(args, full))
    if closed.consts:
        raise errors.InternalError("a branch captured constants that should have been hoisted")
    return closed.jaxpr


def _transpose(cts: Sequence[Any], index: Any, *operands: Any, branches: tuple[Jaxpr, ...], **chosen: Any) -> list[Any]:
    linear = tuple(map(is_undefined, operands))
    nonzero = tuple(c is not None for c in cts)
    jaxprs, consts, union = _transposes.get(
        branches[0], (weak_key(*branches), linear, nonzero), lambda: _transposed(branches, linear, nonzero)
    )
    known = [x for x in operands if not is_undefined(x)]
    live = [c for c in cts if c is not None]
    outs = iter(cond_p.bind(index, *consts, *known, *live, branches=jaxprs, **chosen))
    flags = iter(union)
    return [None, *[(next(outs) if next(flags) else None) if lin else None for lin in linear]]


def _passing(params: dict[str, Any], positions: Sequence[int]) -> tuple[dict[str, Any], Sequence[int], int]:
    branches = params["branches"]
    at, inside = len(branches[0].outvars), [i - 1 for i in positions]
    passed = tuple(returning(b, inside, at) for b in branches)
    return {**params, "branches": passed}, range(1 + len(branches[0].invars)), at


# ---------------------------------------------------------------------------------------------------------------------
# Batching


def _batch(axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    branches = params["branches"]
    index, *operands = args
    batched = flags_of(operands, dims[1:])
    operands = [led(x, d) for x, d in zip(operands, dims[1:])]
    if dims[0] is None:
        union = _union([batch_jaxpr(b, axis, batched)[1] for b in branches])
        jaxprs, consts = _joined([batch_jaxpr(b, axis, batched, union)[0] for b in branches])
        outs = cond_p.bind(index, *consts, *operands, branches=jaxprs, **_choice(params))
        return outs, [0 if b else None for b in union]
    return _select(axis, index, operands, [bool(b) for b in batched], branches), [0] * len(branches[0].outvars)


def _may_be_singular(branch: Jaxpr) -> bool:
    """Whether a derivative in `branch` can be infinite or NaN (as that of log at 0); branches in branches count so."""
    return any(not e.primitive.finite for e in branch.eqns)


def _gated(size: int, taken: Any, x: Any, dim: int | None, singular: bool) -> tuple[Any, bool]:
    """An operand of a branch that only the members in `taken` [size] need; and whether it has the mapped dimension.

    The value stays; the derivative is zero for the members that do not take the branch, even where the branch has
    none at their values: the cotangent that the branch returns for them is 0 * inf, and is replaced. What all members
    share is repeated for each, so that theirs can be told apart, if the branch may be singular at all.
    """
    aval = aval_of(x)
    if not isinstance(x, Tracer) or not aval.is_differentiable or (dim is None and not singular):
        return x, dim is not None
    if aval.is_high:
        return (_gated_parts(size, taken, x, dim) if singular else x), True
    x = bring_to_front(size, x, dim)
    shape = aval_of(x).shape
    mask = broadcast_in_dim(taken, shape, (0,)) if len(shape) > 1 else taken
    return select_n_p.bind(mask, stop_gradient_p.bind(x), x), True


def _gated_parts(size: int, taken: Any, x: Any, dim: int | None) -> Any:
    """As `_gated`, each of the arrays that a value of a high type consists of."""
    x = in_front(size, x, dim)
    kind: Any = aval_of(x)
    if not has_parts_derivatives(kind):
        raise errors.UnsupportedError(
            f"vmap of a cond whose predicate is mapped, over an operand of the high type {kind.short()}, whose "
            "derivatives do not consist of those of its arrays, with a branch whose derivative may be infinite: the "
            "members that do not take the branch would get NaN. Give the cond the arrays that the operand stands for, "
            "or take the operation out of the branch"
        )
    return from_parts_p.bind(*[_gated(size, taken, part, 0, True)[0] for part in parts_of(x)], kind=kind)


def _select(
    axis: MappedAxis, index: Any, operands: Sequence[Any], batched: Sequence[bool], branches: tuple[Jaxpr, ...]
) -> list[Any]:
    """Each member of the batch has a branch of its own: runs all branches and selects."""
    if any(not is_debug(e) for b in branches for e in b.effects):
        raise errors.UnsupportedError(
            "IO effect not supported in vmap-of-cond: where the predicate differs along the mapped axis all branches "
            "would run, with their side effects; move the effect out of the branches or do not map the predicate"
        )
    columns = []
    for i, b in enumerate(branches):
        taken, singular = eq_p.bind(index, np.int32(i)), _may_be_singular(b)
        gated = [_gated(axis.extent, taken, x, 0 if m else None, singular) for x, m in zip(operands, batched)]
        closed, _ = batch_jaxpr(b, axis, tuple(m for _, m in gated), True)
        columns.append(eval_jaxpr(closed.jaxpr, (), [*closed.consts, *[x for x, _ in gated]]))
    outs = []
    for cases in zip(*columns):
        outs.append(chosen(index, cases) if len(cases) > 1 else cases[0])
    return outs


# ---------------------------------------------------------------------------------------------------------------------
# Ordered effects


def _thread(eqn: Eqn, token: Atom, threaded: Callable[[Jaxpr], Jaxpr]) -> tuple[list[Eqn], Atom]:
    """Every branch takes the token and gives one."""
    new, branches = Var(TOKEN), tuple(map(threaded, eqn.params["branches"]))
    index, *operands = eqn.invars
    return [
        eqn.replace([index, token, *operands], [new, *eqn.outvars], {"branches": branches, **_choice(eqn.params)})
    ], new


# ---------------------------------------------------------------------------------------------------------------------
# Dead code

_dce_cache: WeakCache = WeakCache()


def _live(branches: tuple[Jaxpr, ...], used: tuple[bool, ...]) -> tuple[Any, Any]:
    """(branches after dead-code elimination, flags of the operands that any of them still needs)."""
    made = [dce(b, used) for b in branches]
    needed = _union([n for _, n in made]) if branches[0].invars else ()
    kept = tuple(with_vars(j, [v for v, n in zip(j.invars, needed) if n], j.outvars) for j, _ in made)
    return kept, needed


def _dce(eqn: Eqn, used: Sequence[bool]) -> Eqn:
    used, branches = tuple(used), eqn.params["branches"]
    kept, needed = _dce_cache.get(branches[0], (weak_key(*branches), used), lambda: _live(branches, used))
    invars = [eqn.invars[0], *[a for a, n in zip(eqn.invars[1:], needed) if n]]
    return eqn.replace(invars, [v for v, u in zip(eqn.outvars, used) if u], {"branches": kept, **_choice(eqn.params)})


# ---------------------------------------------------------------------------------------------------------------------
# Checkpointing


def _recompute(eqn: Eqn, wanted: Sequence[bool], policy: Policy) -> Split | None:
    """The values that `policy` saves in a branch leave it in slots, as residuals do; the second `cond` takes them."""
    branches = [inlined(b) for b in eqn.params["branches"]]
    outs = [[o for o, w in zip(b.outvars, wanted) if w] for b in branches]
    parts = [split(b, o, policy) for b, o in zip(branches, outs)]
    if not any(part.saved for part in parts):
        return None
    slots, used = _slots([[v.aval for v in part.saved] for part in parts])
    forward, again = [], []
    for b, part, mine, out in zip(branches, parts, used, outs):
        full = Jaxpr((), b.invars, (*b.outvars, *part.saved), part.forward, is_high=b.is_high, name=b.name)
        forward.append(_filled(full, len(b.outvars), mine, slots))
        front = [Var(a) for a in slots]
        for v, i in zip(part.saved, mine):
            front[i] = v
        again.append(Jaxpr((), (*b.invars, *front), out, part.again, is_high=b.is_high, name=b.name))
    kept, needed = _live(tuple(again), (True,) * sum(wanted))
    saved = [Var(a) for a in slots]
    first = eqn.replace(eqn.invars, [*eqn.outvars, *saved], {"branches": tuple(forward), **_choice(eqn.params)})
    operands = [eqn.invars[0], *[a for a, n in zip((*eqn.invars[1:], *saved), needed) if n]]
    second = eqn.replace(
        operands, [v for v, w in zip(eqn.outvars, wanted) if w], {"branches": kept, **_choice(eqn.params)}
    )
    return Split([first], saved, [second])


def _bind(*args: Any, **params: Any) -> Any:
    return cond_p.bind(*args, **params)


cond_p: Primitive = Primitive(
    "cond", _infer, lower=_lower, jvp=_jvp, linearize=_linearize, transpose=_transpose, batch=_batch, batch_axis=True,
    dce=_dce, passing=_passing, recompute=_recompute, discharge=cond_rule(lambda: cond_p, _joined), thread=_thread,
    selects=lambda axis, flags, params: flags[0], batches_refs=True,
    effects=lambda *avals, branches, **chosen: body_effects("cond" if len(branches) == 2 else "switch", *branches),
    multiple_results=True, cache_types=False,
    varies=lambda params: [NOT_VARYING, *declared(params["branches"][0].in_avals)],
    applies=lambda params: [(b, range(1, len(b.invars) + 1)) for b in params["branches"]],
    decides=lambda eqn: (None, eqn.invars[0]),
    to_lojax=cond_opened(_bind, _joined, True), unbox=cond_opened(_bind, _joined, False),
)  # fmt: skip
