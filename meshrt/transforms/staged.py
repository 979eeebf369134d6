"""Staging Python functions of pytrees that users pass in: bodies, branches, functions with rules of their own.

Each becomes a Jaxpr once per function, types and settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from meshrt import config, errors, tree_util
from meshrt.core.again import ask_for_more, is_told, telling, tells_more
from meshrt.core.axes import axes_in_scope
from meshrt.core.jaxpr import Jaxpr
from meshrt.core.places import place_of, with_place
from meshrt.core.references import is_ref_type, placed_type
from meshrt.core.told import Told
from meshrt.core.trace import EVAL, JaxprTrace, Tracer, current_trace, trace_to_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from meshrt.sharding.mesh_caches import remembered
from meshrt.transforms.arguments import fun_name, no_array_returned, result_paths
from meshrt.transforms.high import opened
from meshrt.transforms.references import paths_of, refuse_mutable, refuse_returned
from meshrt.transforms.tools import WeakCache, hoist_consts

__all__ = ["Staged", "stage", "told_places"]


T = TypeVar("T")


class Staged(NamedTuple):
    """A staged function of pytrees: `jaxpr` takes `consts`, then the flat arguments; `out_tree` shapes its results."""

    jaxpr: Jaxpr
    consts: list[Any]
    out_tree: Any

    @property
    def out_avals(self) -> list[ShapedArray]:
        return self.jaxpr.out_avals


_stages: WeakCache = WeakCache()


def stage(
    fun: Callable[..., Any],
    in_tree: Any,
    in_avals: Sequence[ShapedArray],
    owner: Any = None,
    kind: Any = "",
    entries: dict[Any, Staged] | None = None,
    trace: JaxprTrace | None = None,
    told: Told | None = None,
) -> Staged:
    """Stages `fun(*tree_unflatten(in_tree, leaves))` at the types `in_avals`.

    The result is kept for the next call with the same function object and types, unless the function has captured
    tracers, which live only as long as the enclosing trace. `kind` says what it is staged for, and `told` what messages
    say of it (by default that, and what `owner` calls its arguments). Where `fun` is a wrapper made on the fly, `owner`
    is the user's function that determines it together with `kind`. `entries` are an owner's own table. In a `trace` of
    the caller's own the function is staged each time, and where a program is traced with jit disabled: who asks for
    that wants to see every call of a function.
    """
    owner = fun if owner is None else owner
    if told is None:
        told = Told(owner, fun_name(owner), kind if isinstance(kind, str) else kind[0], paths_of(owner, in_tree))
    if trace is not None or (config.settings.disable_jit and current_trace() is not EVAL):
        return _stage(fun, in_tree, in_avals, told, kind, trace)
    key = (kind, in_tree, tuple(in_avals), config.trace_key(), axes_in_scope())
    if entries is None:
        try:
            entries = _stages.get(owner, "staged", dict)
        except TypeError:  # no weak reference to it, or not hashable
            entries = {}
    staged: Staged = remembered(entries, key, lambda: _stage(fun, in_tree, in_avals, told, kind), _is_lasting)
    return staged


def _is_lasting(staged: Staged) -> bool:
    """Whether it holds nothing that belongs to one trace, or has another type later."""
    return not any(isinstance(c, Tracer) or aval_of(c).mutable for c in staged.consts)


def _stage(
    fun: Callable[..., Any], in_tree: Any, in_avals: Sequence[ShapedArray], told: Told, kind: Any,
    trace: JaxprTrace | None = None,
) -> Staged:  # fmt: skip
    out_tree = None

    def flat(*leaves: Any) -> list[Any]:
        nonlocal out_tree
        out = opened(fun(*tree_util.tree_unflatten(in_tree, leaves)))
        values, out_tree = tree_util.tree_flatten(out)
        told.results = result_paths(out_tree)
        for i, value in enumerate(values):
            _require_array(value, out, i, told, kind)
        return values

    closed = hoist_consts(trace_to_jaxpr(flat, in_avals, told.name, told, requires_low=False, trace=trace))
    return Staged(closed.jaxpr, closed.consts, out_tree)


def _require_array(leaf: Any, tree: Any, i: int, told: Told, kind: Any) -> None:
    name = told.name
    try:
        aval = aval_of(leaf)
    except errors.ArgumentTypeError:
        raise no_array_returned(told, leaf, tree_util.tree_structure(tree), i) from None
    if is_ref_type(aval) or aval.mutable:
        what = (kind if isinstance(kind, str) else f"{kind[0]} primal function") or "staging"
        path = "result" + tree_util.keystr(tree_util.tree_leaves_with_path(tree)[i][0])
        if aval.mutable:
            refuse_mutable(what, name, aval, path)
        refuse_returned(what, name, leaf, path)


def told_places(
    values: Sequence[Any], make: Callable[[list[Any]], T], of_arrays: bool = True, asks: bool | None = None
) -> T:
    """`make(types of the values)`, which traces a function that is given them.

    Where the function asks how axes of all types split what it is given, and that is known of some, it is traced again
    with types that say so: of references, and `of_arrays` unless it is a loop's, whose next turn is given others. (If
    it then asks on, who traces around it may know more.) It is told at once if it is known that it `asks`, or, where
    nobody says whether it does, if something in the function around it did.
    """
    types: list[Any] = [aval_of(x) for x in values]
    at_once = is_told() if asks is None else asks
    if not at_once:
        with tells_more():
            return make(types)
    told = [_told(x, t, of_arrays) for x, t in zip(values, types)]
    if told == types and not at_once:
        ask_for_more()
    with telling():
        return make(told)


def _told(value: Any, kind: Any, of_arrays: bool) -> Any:
    if is_ref_type(kind):
        return placed_type(value)
    return with_place(kind, place_of(value)) if of_arrays and not kind.is_high else kind
