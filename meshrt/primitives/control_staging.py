"""Jaxprs of control flow: common constants, reordered arguments, weak types made equal, differences explained."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from meshrt import dtypes, errors
from meshrt.core.axes import axes_in_scope
from meshrt.core.basic.varying import in_order, pvary_p, vary
from meshrt.core.effects import control_flow_allowed_effects
from meshrt.core.high import HiType, says_arrays, unlike
from meshrt.core.jaxpr import Jaxpr, Var
from meshrt.core.trace import JaxprTrace, eval_jaxpr, trace_to_jaxpr
from meshrt.core.types import AbstractValue, ShapedArray, aval_of
from meshrt.primitives.conversion import convert_element_type
from meshrt.transforms.residuals import renamed
from meshrt.transforms.staged import Staged
from meshrt.transforms.tools import WeakCache

# Helpers of the control family: `meshrt.lax` publishes what `__all__` of these modules lists, so nothing here.
__all__: list[str] = []


def with_common_consts(staged: Sequence[Staged]) -> tuple[tuple[Jaxpr, ...], list[Any]]:
    """The Jaxprs with one list of constants in front, shared by all: a value captured by several appears once.

    It has the type that it has where it is used, which may not be its own: in a branch that devices choose by
    themselves what comes from outside varies.
    """
    consts: list[Any] = []
    types: list[Any] = []
    index: dict[int, int] = {}
    for s in staged:
        for c, v in zip(s.consts, s.jaxpr.invars):
            if id(c) not in index:
                index[id(c)] = len(consts)
                consts.append(c)
                types.append(v.aval)
    jaxprs = []
    for s in staged:
        if len(s.consts) == len(consts):  # then, by construction, they are the same in the same order
            if all(index[id(c)] == i for i, c in enumerate(s.consts)):
                jaxprs.append(s.jaxpr)
                continue
        jaxprs.append(_padded(s, types, index))
    return tuple(jaxprs), consts


def _padded(s: Staged, types: Sequence[Any], index: dict[int, int]) -> Jaxpr:
    count = len(s.consts)
    front: list[Var] = [Var(t) for t in types]
    for v, c in zip(s.jaxpr.invars[:count], s.consts):
        front[index[id(c)]] = v
    return with_vars(s.jaxpr, (*front, *s.jaxpr.invars[count:]), s.jaxpr.outvars)


def with_vars(jaxpr: Jaxpr, invars: Sequence[Var], outvars: Sequence[Any]) -> Jaxpr:
    """The same equations with other argument and result lists."""
    labels = jaxpr.labels and jaxpr.labels.moved(jaxpr.invars, tuple(invars), jaxpr.outvars == tuple(outvars))
    return Jaxpr((), invars, outvars, jaxpr.eqns, jaxpr.effects, is_high=jaxpr.is_high, name=jaxpr.name, labels=labels)


_permuted: WeakCache = WeakCache()


def permuted(jaxpr: Jaxpr, ins: Sequence[int], outs: Sequence[int]) -> Jaxpr:
    """`jaxpr` with its arguments and results in another order: `ins[i]` is the old position of argument i.

    Kept by `jaxpr`, so that the same request gives the same object.
    """
    ins, outs = tuple(ins), tuple(outs)
    if ins == tuple(range(len(jaxpr.invars))) and outs == tuple(range(len(jaxpr.outvars))):
        return jaxpr
    return _permuted.get(
        jaxpr, (ins, outs), lambda: with_vars(jaxpr, [jaxpr.invars[i] for i in ins], [jaxpr.outvars[i] for i in outs])
    )


def varying_as(staged: Staged, avals: Sequence[ShapedArray]) -> Staged:
    """`staged` with its first results varying over what `avals` do: a carry of the type that it came in with."""
    outs = staged.out_avals
    if all(a.vma is b.vma and not a.is_high for a, b in zip(outs, avals)):
        return staged
    kept = [wanted_of(b, b.vma) for b in outs[len(avals) :]]
    wanted = tuple([wanted_of(b, joined(b, a) if b.is_high else a.vma) for a, b in zip(avals, outs)] + kept)
    return converted(staged, wanted)


def casts_before(staged: Staged) -> Staged:
    """`staged`, the body of a loop, with constants that it only uses as varying made so before the loop.

    The sum over devices that their cotangents need is then taken once, after the backward loop, and not in each
    iteration.
    """
    if not axes_in_scope():
        return staged
    count = len(staged.consts)
    jaxpr, axes = _casts.get(staged.jaxpr, count, lambda: _casts_before(staged.jaxpr, count))
    consts = [vary(c, a) for c, a in zip(staged.consts, axes)]
    return Staged(jaxpr, consts, staged.out_tree)


_casts: WeakCache = WeakCache()


def _casts_before(jaxpr: Jaxpr, count: int) -> tuple[Jaxpr, list[tuple[Any, ...]]]:
    """The body without such casts, and over which axes each of its `count` constants has to be made to vary."""
    cast: dict[Var, set[tuple[Any, ...]]] = {v: set() for v in jaxpr.invars[:count]}
    kept = set(jaxpr.outvars)
    for eqn in jaxpr.eqns:
        for a in eqn.invars:
            if type(a) is Var and a in cast:
                if eqn.primitive is pvary_p:
                    cast[a].add(eqn.params["axes"])
                else:
                    kept.add(a)
    chosen = {v: next(iter(axes)) for v, axes in cast.items() if len(axes) == 1 and v not in kept}
    if not chosen:
        return jaxpr, [()] * count
    new = {v: Var(v.aval.update(vma=v.aval.vma.union(axes))) for v, axes in chosen.items()}
    names, eqns = {}, []
    for eqn in jaxpr.eqns:
        (first, *_) = eqn.invars or (None,)
        if eqn.primitive is pvary_p and type(first) is Var and first in new:
            names[eqn.outvars[0]] = new[first]
        else:
            eqns.append(renamed(eqn, names))
    outs = [names.get(o, o) if type(o) is Var else o for o in jaxpr.outvars]
    made = Jaxpr(
        (), [new.get(v, v) for v in jaxpr.invars], outs, eqns, jaxpr.effects, is_high=jaxpr.is_high, name=jaxpr.name,
        labels=jaxpr.labels,
    )  # fmt: skip
    return made, [chosen.get(v, ()) for v in jaxpr.invars[:count]]


def weak_key(*jaxprs: Jaxpr) -> tuple[Any, ...]:
    """A cache key that names Jaxprs without keeping them alive."""
    return tuple(map(weakref.ref, jaxprs))


def body_effects(name: str, *jaxprs: Jaxpr) -> frozenset:
    """The effects of a control-flow equation: those of its bodies.

    Raises UnsupportedError for effects of a program's own classes that are not said to be allowed there.
    """
    found: frozenset = frozenset().union(*[j.effects for j in jaxprs])
    if found and (refused := control_flow_allowed_effects.refused(found)):
        raise errors.UnsupportedError(
            f"Effects not supported in `{name}`: {refused}; allow their class with "
            "experimental.hijax.control_flow_allowed_effects.add_type"
        )
    return found


def split3(values: Sequence[Any], first: int, second: int) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """`values` cut into consts, carry and xs (or carry, ys with `first` 0)."""
    values = list(values)
    return values[:first], values[first : first + second], values[first + second :]


def carry_fixpoint(
    carry: Sequence[bool], step: Callable[[tuple[bool, ...]], tuple[Any, Sequence[bool]]]
) -> tuple[Any, tuple[bool, ...]]:
    """The least fixed point of `step` above `carry`, the flags of some carries, and what `step` made of it."""
    flags = tuple(carry)
    while True:
        result, out = step(flags)
        joined = tuple(a or b for a, b in zip(flags, out))
        if joined == flags:
            return result, flags
        flags = joined


# ---------------------------------------------------------------------------------------------------------------------
# Weak types and mismatches


def promote_weak(values: list[Any], in_avals: Sequence[ShapedArray], out_avals: Sequence[ShapedArray]) -> bool:
    """Converts the weakly typed `values` of a loop's initial carry whose body returns another dtype, in place.

    Returns whether anything changed (then the body must be staged again).
    """
    changed = False
    for i, (a, b) in enumerate(zip(in_avals, out_avals)):
        if a.weak_type and not b.is_high and a.dtype != b.dtype and not isinstance(b.dtype, dtypes.ExtendedDType):
            dtype, _ = dtypes.promote_dtypes((a.dtype, a.weak_type), (b.dtype, b.weak_type))
            if dtype != a.dtype:
                values[i] = convert_element_type(values[i], dtype)  # a dtype that was asked for is not weak
                changed = True
        elif a.is_high and joined(a, b) is not a:
            values[i] = vary(values[i], joined(a, b))
            changed = True
    return changed


def joined(a: Any, b: Any) -> Any:
    """A high type, varying over what type `b` says of each array too; itself where it does, or is of another kind."""
    same = isinstance(a, HiType) and isinstance(b, HiType) and (isinstance(b, type(a)) or isinstance(a, type(b)))
    if not same or not says_arrays(a) or len(a.lo_ty()) != len(b.lo_ty()):
        return a
    return JaxprTrace.varying(a, b)


# Over which axes a result is to vary: of a high type, the type that says it of each array.
Wanted = tuple[Any, bool, Any]


def wanted_of(aval: ShapedArray, axes: Any) -> Wanted:
    """What `converted` is to make of a result of this type: the same, varying over `axes`."""
    return (None if aval.is_high else aval.dtype), aval.weak_type, axes


def converted(staged: Staged, wanted: tuple[Wanted, ...]) -> Staged:
    """`staged` with its results as wanted: weakly typed ones of (dtype, weak_type), all varying over some axes."""
    change = [
        joined(a, w[2]) is not a
        if isinstance(w[2], AbstractValue)
        else (a.weak_type and not a.is_high and (a.dtype, a.weak_type) != w[:2]) or not a.vma.issuperset(w[2])
        for a, w in zip(staged.out_avals, wanted)
    ]
    if not any(change):
        return staged
    jaxpr = _converted.get(staged.jaxpr, wanted, lambda: _convert(staged.jaxpr, wanted, change))
    return Staged(jaxpr, staged.consts, staged.out_tree)


_converted: WeakCache = WeakCache()


def _convert(jaxpr: Jaxpr, wanted: Sequence[Wanted], change: Sequence[bool]) -> Jaxpr:
    def one(out: Any, dtype: Any, weak: bool, axes: Any) -> Any:
        if isinstance(axes, AbstractValue):
            return vary(out, axes)
        if aval_of(out).weak_type:
            out = convert_element_type(out, dtype, weak)
        return vary(out, in_order(axes))

    def flat(*args: Any) -> list[Any]:
        outs = eval_jaxpr(jaxpr, (), args)
        return [one(o, *w) if c else o for o, w, c in zip(outs, wanted, change)]

    made = trace_to_jaxpr(flat, jaxpr.in_avals, jaxpr.name, requires_low=False).jaxpr
    return made.replace(labels=jaxpr.labels)


def describe_difference(a: ShapedArray, b: ShapedArray) -> str | None:
    """Why two types are not interchangeable (weak types are), or None."""
    if a.is_high or b.is_high:
        return "the types do not match" if unlike(joined(a, b), joined(b, a)) else None
    parts = []
    if a.dtype != b.dtype:
        parts.append("the dtypes do not match")
    if a.shape != b.shape:
        parts.append("the shapes do not match")
    if not parts and a.explicit is not b.explicit:
        parts.append("the shardings do not match (reshard one with meshrt.sharding.reshard, or give out_sharding)")
    if not parts and a.memory_space is not b.memory_space:
        parts.append("the memories do not match (move one with meshrt.device_put(x, meshrt.memory.Space....))")
    return ", and ".join(parts) or None
