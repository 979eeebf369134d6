"""Structured control flow: `scan` and `map` (loops over arrays).

The other functions are in `control_loops` and `control_branches`, the primitives in `control_scan`, `control_while` and
`control_cond`; `control_scan_reverse` holds reverse mode of scan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from meshrt import config, errors, tree_util
from meshrt.core.basic.shapes import reshape
from meshrt.core.basic.varying import into_branch
from meshrt.core.dimensions.expression import DimExpr
from meshrt.core.trace import Tracer
from meshrt.core.tracebacks import boundary
from meshrt.core.tracer import not_concrete
from meshrt.core.types import aval_of
from meshrt.primitives.carried_refs import Apart, set_apart
from meshrt.primitives.concatenate import concatenate
from meshrt.primitives.control_checks import (
    Body,
    any_tracer,
    check_carry_tree,
    check_carry_types,
    check_pair,
    need_callable,
)
from meshrt.primitives.control_scan import scan_p
from meshrt.primitives.control_scan_lowering import check_xs
from meshrt.primitives.control_staging import casts_before, promote_weak, varying_as, with_vars
from meshrt.primitives.reshape import expand_dims
from meshrt.primitives.slice import index_in_dim, slice_in_dim
from meshrt.transforms.high import flatten
from meshrt.transforms.references import paths_of
from meshrt.transforms.staged import Staged, told_places
from meshrt.transforms.tools import WeakCache
from meshrt.transforms.vmap import vmap

__all__ = ["map", "scan"]

Carry = TypeVar("Carry")


@boundary
def scan(
    f: Callable[[Carry, Any], tuple[Carry, Any]],
    init: Carry,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
) -> tuple[Carry, Any]:
    """Runs `carry, y = f(carry, x)` over the slices of `xs` along their first dimension; returns (carry, stacked ys).

    Args:
      f: takes the carry and one slice (pytrees); returns the next carry, of the same structure, shapes and dtypes, and
        a result (a pytree, or None).
      init: the initial carry.
      xs: a pytree of arrays with one leading size, or None for `length` iterations without input.
      length: the number of iterations; needed only when `xs` has no arrays.
      reverse: goes from the last slice to the first; ys stand at the places of their xs.
      unroll: how many iterations one trip of the compiled loop makes (True or 0: all).
      _split_transpose: asks JAX for another form of the backward loop; ours is the same with and without.

    Raises:
      ArgumentTypeError: the carry changes structure, shape or dtype, or `f` returns no pair.
      ArgumentValueError: the xs have different sizes, or disagree with `length`.

    >>> lax.scan(lambda total, x: (total + x, total), 0, jnp.array([1, 2, 3]))
    (Array(6, dtype=int32), Array([0, 1, 3], dtype=int32, weak_type=True))
    """
    need_callable(f, "lax.scan: f")
    apart = set_apart("scan", init)
    if apart is not None:
        return _scan_with_references(apart, f, xs, length=length, reverse=reverse, unroll=unroll)
    length = _scan_length(xs, length)
    unroll = unroll_factor(unroll, length)
    return _scan(Body(f, f, "scan"), init, xs, length, bool(reverse), unroll)


def _scan(body: Body, init: Any, xs: Any, length: int, reverse: bool = False, unroll: int = 1) -> tuple[Any, Any]:
    if config.read("disable_jit") and not any_tracer((init, xs)):
        return _scan_in_python(body.call, init, xs, length, reverse)
    return scan_body(body, init, xs, length, reverse, unroll)


def _scan_with_references(apart: Apart, f: Callable[..., Any], xs: Any, **options: Any) -> tuple[Any, Any]:
    def turn(rest: list[Any], x: Any) -> tuple[list[Any], Any]:
        carry, y = f(apart.join(rest), x)
        return apart.rest_of(carry), y

    final, ys = scan(turn, apart.rest, xs, **options)
    return apart.join(final), ys


def scan_body(body: Body, init: Any, xs: Any, length: int, reverse: bool, unroll: int) -> Any:
    x_leaves, x_tree = flatten(xs)
    x_leaves = into_branch(x_leaves)
    check_xs([aval_of(x) for x in x_leaves])
    carry, carry_tree = flatten(init)
    carry = into_branch(carry)
    in_tree = tree_util.treedef_tuple([carry_tree, x_tree])
    given = [*carry, *x_leaves]
    body.check_refs(in_tree, given)

    def at_types(types: list[Any]) -> Staged:
        return body.stage(in_tree, [*types[: len(carry)], *[t.without(0) for t in types[len(carry) :]]])

    def stage_body() -> Staged:
        staged = told_places([*carry, *x_leaves], at_types, of_arrays=False)
        body.check_refs(in_tree, given, staged.consts)
        check_pair(staged, body.what)
        check_carry_tree(body, carry_tree, carry, tree_util.treedef_children(staged.out_tree)[0], staged.out_avals)
        return staged

    staged = stage_body()
    while promote_weak(carry, [aval_of(c) for c in carry], staged.out_avals):
        staged = stage_body()
    check_carry_types(body, carry_tree, carry, staged.out_avals)
    staged = casts_before(varying_as(staged, [aval_of(c) for c in carry]))
    outs = _bind_scan(staged, carry, x_leaves, length, reverse, unroll)
    y_tree = tree_util.treedef_children(staged.out_tree)[1]
    carry_out, ys = outs[: len(carry)], outs[len(carry) :]
    pair = tree_util.tree_unflatten(carry_tree, carry_out), tree_util.tree_unflatten(y_tree, ys)
    return pair if staged.out_tree.node_data()[0] is tuple else list(pair)


_forwarding: WeakCache = WeakCache()


def _bind_scan(staged: Staged, carry: list[Any], xs: list[Any], length: int, reverse: bool, unroll: int) -> list[Any]:
    """Binds the primitive. A carry that the body passes on unchanged is made a constant of the loop."""
    jaxpr, num_consts, num_carry = staged.jaxpr, len(staged.consts), len(carry)
    arguments = jaxpr.invars[num_consts : num_consts + num_carry]
    fixed = [v is o for v, o in zip(arguments, jaxpr.outvars)]
    if any(fixed):
        moved = [v for v, f in zip(arguments, fixed) if f]
        stay = [v for v, f in zip(arguments, fixed) if not f]
        invars = [*jaxpr.invars[:num_consts], *moved, *stay, *jaxpr.invars[num_consts + num_carry :]]
        outvars = [o for o, f in zip(jaxpr.outvars, (*fixed, *[False] * len(jaxpr.outvars))) if not f]
        jaxpr = _forwarding.get(jaxpr, num_consts, lambda: with_vars(jaxpr, invars, outvars))
    outs = iter(
        scan_p.bind(
            *staged.consts, *[c for c, f in zip(carry, fixed) if f], *[c for c, f in zip(carry, fixed) if not f], *xs,
            jaxpr=jaxpr, length=length, reverse=reverse, unroll=unroll,
            num_consts=num_consts + sum(fixed), num_carry=num_carry - sum(fixed),
        )
    )  # fmt: skip
    carry_out = [c if f else next(outs) for c, f in zip(carry, fixed)]
    return [*carry_out, *outs]


def _scan_length(xs: Any, length: int | None, what: str = "scan") -> int:
    """The common size of the leaves' first dimensions, which must be `length` if that is given."""
    sizes = []
    high = False
    for i, x in enumerate(tree_util.tree_leaves(xs)):
        aval = aval_of(x)
        if aval.is_high:
            high = True
            continue
        if not aval.shape:
            raise errors.ArgumentValueError(
                f"{_scanned(what)} got value with no leading axis to scan over: {x!r} at {_leaf_paths(xs)[i]}; give "
                "arrays of rank 1 or more as xs, and close over values that all iterations share"
            )
        sizes.append(aval.shape[0])
    if length is not None:
        if isinstance(length, Tracer) and length.concrete() is None:
            raise not_concrete(
                length,
                f"The `length` argument to `{what}` expects a concrete `int` value. For scan-like iteration with a "
                "dynamic length, use `while_loop` or `fori_loop`.",
            )
        try:
            length = length if isinstance(length, DimExpr) else int(length)
        except TypeError:
            raise errors.ArgumentTypeError(
                f"the length of a {what} must be a concrete whole number, not {length}"
            ) from None
        if any(s != length for s in sizes):
            raise errors.ArgumentValueError(
                f"{what} got `length` argument of {length} which disagrees with leading axis sizes {sizes}:\n"
                f"{_listed_sizes(xs, sizes, length)}\nLeave `length` out, or slice these arrays to it"
            )
        if length < 0:
            raise errors.ArgumentValueError(f"{what} got a negative length, {length}")
        return length
    if not sizes:
        if high:
            raise errors.ArgumentValueError(
                f"{what} over values of high types must provide `length`: how many slices they have stands in none of "
                "their types"
            )
        hint = "give one of them" if what == "scan" else "give at least one array"
        told = f"{_scanned(what)} got no values to scan over and `length` not provided"
        raise errors.ArgumentValueError(f"{told}; {hint}")
    if len(set(sizes)) > 1:
        usual = max(sizes, key=sizes.count)
        listed = ", ".join([str(s) for s in sizes])
        raise errors.ArgumentValueError(
            f"{_scanned(what)} got values with different leading axis sizes: {listed}. Most have size {usual}, but:\n"
            f"{_listed_sizes(xs, sizes, usual)}\nSlice or pad them to one size, or close over what all "
            "iterations share"
        )
    return sizes[0]


def _scanned(what: str) -> str:
    return what if what == "scan" else f"{what}: scan"


def _leaf_paths(xs: Any) -> list[str]:
    return ["xs" + tree_util.keystr(path) for path, _ in tree_util.tree_leaves_with_path(xs)]


def _listed_sizes(xs: Any, sizes: Sequence[int], expected: int, most: int = 8) -> str:
    """A line for each leaf of another size than `expected`."""
    leaves = zip(_leaf_paths(xs), tree_util.tree_leaves(xs), sizes)
    lines = [f"  {path} of type {aval_of(x)} has size {size}" for path, x, size in leaves if size != expected]
    return "\n".join([*lines[:most], f"  ... and {len(lines) - most} more"] if len(lines) > most else lines)


def unroll_factor(unroll: int | bool, length: int) -> int:
    if isinstance(unroll, bool | np.bool_):
        return max(length, 1) if unroll else 1
    if not isinstance(unroll, int | np.integer):
        raise errors.ArgumentTypeError(
            f"`unroll` must be a `bool` or a non-negative `int`, but got {unroll!r} of type {type(unroll).__name__}; "
            f"give how many iterations one trip makes, True for all"
        )
    if unroll < 0:
        raise errors.ArgumentValueError(f"`unroll` must be a `bool` or a non-negative `int`. Got {unroll}")
    return int(unroll) or max(length, 1)


def _scan_in_python(f: Any, init: Any, xs: Any, length: int, reverse: bool) -> tuple[Any, Any]:
    """What disable_jit asks for: the loop in Python, one iteration after another."""
    carry, ys = init, []
    order = range(length - 1, -1, -1) if reverse else range(length)
    for i in order:
        x = tree_util.tree_map(lambda leaf: index_in_dim(leaf, i, keepdims=False), xs)
        carry, y = f(carry, x)
        ys.append(y)
    if not ys:
        raise errors.ArgumentValueError(
            "zero-length scan is not supported in disable_jit() mode because the output type is unknown: nothing says "
            "what the function would return"
        )
    ys = ys[::-1] if reverse else ys
    return carry, tree_util.tree_map(lambda *rows: concatenate([expand_dims(r, (0,)) for r in rows], 0), *ys)


@boundary
def map(f: Callable[..., Any], xs: Any, *, batch_size: int | None = None) -> Any:
    """Applies `f` to each slice of `xs` along its first dimension, one after another, and stacks the results.

    With `batch_size`, that many slices at a time are mapped together by vmap (the last batch may be smaller); 0
    maps all at once.

    Args:
      f: a function of one slice.
      xs: a tree of arrays.
      batch_size: how many slices are worked on at once, by `vmap`.

    Returns:
      The results stacked.

    >>> lax.map(lambda x: x**2, jnp.array([1, 2, 3]))
    Array([1, 4, 9], dtype=int32)
    """
    need_callable(f, "lax.map: f")
    if batch_size is None:
        length = _scan_length(xs, None, "map")
        return _scan(_mapping(f, f, "map"), (), xs, length)[1]
    return _map_batches(f, xs, batch_size)


def _mapping(turn: Callable[..., Any], f: Callable[..., Any], what: str) -> Body:
    """The body of a scan that applies `turn`, made from the user's `f`, to slices and carries nothing."""
    names = lambda tree: paths_of(f, tree_util.treedef_tuple(tree_util.treedef_children(tree)[1:]))()
    return Body(lambda _, x: ((), turn(x)), f, what, names=names)


def _map_batches(f: Callable[..., Any], xs: Any, batch_size: int) -> Any:
    if batch_size < 0:
        raise errors.ArgumentValueError(
            f"map: batch_size must be a whole number that is not negative, not {batch_size}"
        )
    length = _scan_length(xs, None, "map")
    trips = length // batch_size if batch_size else 0
    whole = trips * batch_size
    parts = []
    if trips:
        batches = tree_util.tree_map(
            lambda x: reshape(slice_in_dim(x, 0, whole), (trips, batch_size, *aval_of(x).shape[1:])), xs
        )
        ys = _scan(_mapping(vmap(f), f, "map in batches"), (), batches, trips)[1]
        parts.append(tree_util.tree_map(lambda y: reshape(y, (whole, *aval_of(y).shape[2:])), ys))
    if whole < length or not trips:
        parts.append(vmap(f)(tree_util.tree_map(lambda x: slice_in_dim(x, whole, length), xs)))
    if len(parts) == 1:
        return parts[0]
    return tree_util.tree_map(lambda a, b: concatenate([a, b], 0), *parts)
