"""Staging the Python functions given to control flow: bodies and branches become Jaxprs, once per function."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meshrt import config, dtypes, errors, tree_util
from meshrt._tree_paths import TypedLeaf
from meshrt.core.jaxpr import Jaxpr, Var
from meshrt.core.trace import Tracer, eval_jaxpr, trace_to_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from meshrt.sharding._state import context as mesh_context
from meshrt.transforms.tools import WeakCache, hoist_consts

# Helpers of the control family: `meshrt.lax` publishes what `__all__` of these modules lists, so nothing here.
__all__: list[str] = []


@dataclass(slots=True, eq=False)
class Staged:
    """A staged function of pytrees: `jaxpr` takes `consts`, then the flat arguments; `out_tree` shapes its results."""

    jaxpr: Jaxpr
    consts: list[Any]
    out_tree: Any

    @property
    def out_avals(self) -> list[ShapedArray]:
        return self.jaxpr.out_avals


_stages: WeakCache = WeakCache()


def function_name(fun: Callable[..., Any]) -> str:
    """The name of a function for messages and printed programs."""
    return getattr(fun, "__name__", None) or type(fun).__name__


def stage(
    fun: Callable[..., Any],
    in_tree: Any,
    in_avals: Sequence[ShapedArray],
    owner: Any = None,
    kind: Any = "",
    entries: dict[Any, Staged] | None = None,
) -> Staged:
    """Stages `fun(*tree_unflatten(in_tree, leaves))` at the types `in_avals`.

    The result is kept for the next call with the same function object and types, unless the function has captured
    tracers, which live only as long as the enclosing trace. Where `fun` is a wrapper made on the fly, `owner` is the
    user's function that determines it together with `kind`. `entries` are an owner's own table.
    """
    owner = fun if owner is None else owner
    name = function_name(owner)
    key = (kind, in_tree, tuple(in_avals), config.trace_key(), mesh_context.abstract)
    if entries is None:
        try:
            entries = _stages.get(owner, "staged", dict)
        except TypeError:  # no weak reference to it, or not hashable
            entries = {}
    staged = entries.get(key)
    if staged is None:
        staged = _stage(fun, in_tree, in_avals, name)
        if not any(isinstance(c, Tracer) for c in staged.consts):
            entries[key] = staged
    return staged


def _stage(fun: Callable[..., Any], in_tree: Any, in_avals: Sequence[ShapedArray], name: str) -> Staged:
    out_tree = None

    def flat(*leaves: Any) -> list[Any]:
        nonlocal out_tree
        paths, out_tree = tree_util.tree_flatten_with_path(fun(*tree_util.tree_unflatten(in_tree, leaves)))
        for path, leaf in paths:
            _require_array(leaf, path, name)
        return [leaf for _, leaf in paths]

    closed = hoist_consts(trace_to_jaxpr(flat, in_avals, name))
    return Staged(closed.jaxpr, closed.consts, out_tree)


def _require_array(leaf: Any, path: Any, name: str) -> None:
    try:
        aval_of(leaf)
    except errors.ArgumentTypeError:
        where = tree_util.keystr(path)
        raise errors.ArgumentTypeError(
            f"{name} returned a value of type {type(leaf).__name__}{f' at {where}' if where else ''}, which is not an "
            "array; return arrays or scalars (in pytrees) only"
        ) from None


def with_common_consts(staged: Sequence[Staged]) -> tuple[tuple[Jaxpr, ...], list[Any]]:
    """The Jaxprs with one list of constants in front, shared by all: a value captured by several appears once."""
    consts: list[Any] = []
    index: dict[int, int] = {}
    for s in staged:
        for c in s.consts:
            if id(c) not in index:
                index[id(c)] = len(consts)
                consts.append(c)
    jaxprs = []
    for s in staged:
        if len(s.consts) == len(consts):  # then, by construction, they are the same in the same order
            if all(index[id(c)] == i for i, c in enumerate(s.consts)):
                jaxprs.append(s.jaxpr)
                continue
        jaxprs.append(_padded(s, consts, index))
    return tuple(jaxprs), consts


def _padded(s: Staged, consts: Sequence[Any], index: dict[int, int]) -> Jaxpr:
    count = len(s.consts)
    front: list[Var] = [Var(aval_of(c)) for c in consts]
    for v, c in zip(s.jaxpr.invars[:count], s.consts):
        front[index[id(c)]] = v
    return with_vars(s.jaxpr, (*front, *s.jaxpr.invars[count:]), s.jaxpr.outvars)


def with_vars(jaxpr: Jaxpr, invars: Sequence[Var], outvars: Sequence[Any]) -> Jaxpr:
    """The same equations with other argument and result lists."""
    return Jaxpr((), invars, outvars, jaxpr.eqns, jaxpr.name, jaxpr.effects, jaxpr.is_high)


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


def weak_key(*jaxprs: Jaxpr) -> tuple[Any, ...]:
    """A cache key that names Jaxprs without keeping them alive."""
    return tuple(map(weakref.ref, jaxprs))


def body_effects(*jaxprs: Jaxpr) -> frozenset:
    """The effects of a control-flow equation: those of its bodies."""
    return frozenset().union(*[j.effects for j in jaxprs])


# ---------------------------------------------------------------------------------------------------------------------
# Weak types and mismatches


def promote_weak(values: list[Any], in_avals: Sequence[ShapedArray], out_avals: Sequence[ShapedArray]) -> bool:
    """Converts the weakly typed `values` of a loop's initial carry whose body returns another dtype, in place.

    Returns whether anything changed (then the body must be staged again).
    """
    from meshrt.primitives.elementwise import convert_element_type

    changed = False
    for i, (a, b) in enumerate(zip(in_avals, out_avals)):
        if a.weak_type and a.dtype != b.dtype and not isinstance(b.dtype, dtypes.ExtendedDType):
            dtype, weak = dtypes.promote_dtypes((a.dtype, a.weak_type), (b.dtype, b.weak_type))
            if dtype != a.dtype:
                values[i] = convert_element_type(values[i], dtype, weak)
                changed = True
    return changed


def converted(staged: Staged, wanted: tuple[tuple[Any, bool], ...]) -> Staged:
    """`staged` with its weakly typed results converted to the wanted (dtype, weak_type)s."""
    change = [a.weak_type and (a.dtype, a.weak_type) != w for a, w in zip(staged.out_avals, wanted)]
    if not any(change):
        return staged
    jaxpr = _converted.get(staged.jaxpr, wanted, lambda: _convert(staged.jaxpr, wanted, change))
    return Staged(jaxpr, staged.consts, staged.out_tree)


_converted: WeakCache = WeakCache()


def _convert(jaxpr: Jaxpr, wanted: Sequence[tuple[Any, bool]], change: Sequence[bool]) -> Jaxpr:
    from meshrt.primitives.elementwise import convert_element_type

    def flat(*args: Any) -> list[Any]:
        outs = eval_jaxpr(jaxpr, (), args)
        return [convert_element_type(o, *w) if c else o for o, w, c in zip(outs, wanted, change)]

    return trace_to_jaxpr(flat, jaxpr.in_avals, jaxpr.name).jaxpr


def describe_difference(a: ShapedArray, b: ShapedArray) -> str | None:
    """Why two types are not interchangeable (weak types are), or None."""
    parts = []
    if a.dtype != b.dtype:
        parts.append("the dtypes do not match")
    if a.shape != b.shape:
        ranks = f" (ranks {a.ndim} and {b.ndim})" if a.ndim != b.ndim else ""
        parts.append(f"the shapes do not match{ranks}")
    return " and ".join(parts) or None


def tree_difference(
    first: tuple[Any, Sequence[ShapedArray]], second: tuple[Any, Sequence[ShapedArray]], root: str, names: Sequence[str]
) -> str:
    """Lines that say where two structures differ, by key path from `root`: `c['a']: float32[3] in, None out`.

    Each structure is given as a treedef and the types of its leaves, and called as `names` say.
    """
    a, b = (tree_util.tree_unflatten(tree, [TypedLeaf(t) for t in avals]) for tree, avals in (first, second))
    lines = [
        f"  {root}{tree_util.keystr(path)}: {one} {names[0]}, {other} {names[1]}"
        for path, one, other, _ in tree_util.equality_errors(a, b)
    ]
    return "\n".join(lines) or f"  {first[0]} {names[0]}, {second[0]} {names[1]}"
