"""`while_loop` and `fori_loop`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from meshrt import config, dtypes, errors, tree_util
from meshrt.core.axes import branching
from meshrt.core.basic.varying import in_order, into_branch, vary
from meshrt.core.dimensions.expression import DimExpr, non_negative_dim
from meshrt.core.trace import Tracer
from meshrt.core.tracebacks import boundary
from meshrt.core.types import aval_of
from meshrt.primitives.carried_refs import set_apart
from meshrt.primitives.compositions import stage as as_array
from meshrt.primitives.control import scan_body, unroll_factor
from meshrt.primitives.control_checks import Body, any_tracer, check_carry_tree, check_carry_types, need_callable
from meshrt.primitives.control_staging import promote_weak, varying_as
from meshrt.primitives.control_while import while_p
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.elementwise import add, lt_p
from meshrt.transforms.high import flatten
from meshrt.transforms.references import paths_of
from meshrt.transforms.staged import Staged, stage

__all__ = ["fori_loop", "while_loop"]

T = TypeVar("T")


@boundary
def while_loop(cond_fun: Callable[[T], Any], body_fun: Callable[[T], T], init_val: T) -> T:
    """Applies `body_fun` to the carry (a pytree) as long as `cond_fun` of it is true.

    Differentiable in forward mode only, since the number of iterations is not known beforehand.

    Raises:
      ArgumentTypeError: the carry changes structure, shape or dtype, or `cond_fun` returns no boolean scalar.

    Args:
      cond_fun: a function of the carry that returns a boolean scalar.
      body_fun: a function of the carry that returns the next one, of the same types.
      init_val: the first carry, a tree of arrays.

    Returns:
      The last carry.

    >>> lax.while_loop(lambda x: x < 10, lambda x: 2 * x, 1)
    Array(16, dtype=int32, weak_type=True)
    """
    need_callable(cond_fun, "lax.while_loop: cond_fun")
    need_callable(body_fun, "lax.while_loop: body_fun")
    apart = set_apart("while_loop", init_val)
    if apart is not None:
        turn = lambda rest: apart.rest_of(body_fun(apart.join(rest)))
        final: T = apart.join(while_loop(lambda rest: cond_fun(apart.join(rest)), turn, apart.rest))
        return final
    if config.read("disable_jit") and not any_tracer(init_val):
        value = tree_util.tree_map(_on_device, init_val)
        while cond_fun(value):
            value = body_fun(value)
        return value
    return _while(cond_fun, Body(body_fun, body_fun, "while_loop", "while_body"), init_val)


def _while(cond_fun: Callable[..., Any], loop: Body, init_val: Any) -> Any:
    carry, tree = flatten(init_val)
    carry = into_branch(carry)
    in_tree = tree_util.treedef_tuple([tree])
    loop.check_refs(in_tree, carry)

    def stage_body() -> Staged:
        staged = loop.stage(in_tree, [aval_of(c) for c in carry])
        loop.check_refs(in_tree, carry, staged.consts)
        check_carry_tree(loop, tree, carry, staged.out_tree, staged.out_avals)
        return staged

    def stage_condition() -> Staged:
        staged = stage(cond_fun, in_tree, [aval_of(c) for c in carry], kind="while_cond")
        _check_condition(staged)
        return staged

    cond, body = stage_condition(), stage_body()
    while promote_weak(carry, [aval_of(c) for c in carry], body.out_avals):
        cond, body = stage_condition(), stage_body()
    differ: frozenset[Any] = frozenset()
    while not differ.issuperset(cond.out_avals[0].vma):
        # Devices may run different numbers of iterations, so whatever the loop takes and computes differs.
        differ = cond.out_avals[0].vma
        carry = [vary(c, in_order(differ)) for c in carry]
        with branching(differ):
            cond, body = stage_condition(), stage_body()
    check_carry_types(loop, tree, carry, body.out_avals)
    body = varying_as(body, [aval_of(c) for c in carry])
    outs = while_p.bind(
        *cond.consts, *body.consts, *carry,
        cond_jaxpr=cond.jaxpr, cond_nconsts=len(cond.consts), body_jaxpr=body.jaxpr, body_nconsts=len(body.consts),
    )  # fmt: skip
    return tree_util.tree_unflatten(tree, outs)


def _check_condition(cond: Staged) -> None:
    if not tree_util.treedef_is_leaf(cond.out_tree) or cond.out_tree.num_leaves != 1:
        raise errors.ArgumentTypeError(f"cond_fun must return a boolean scalar, but got pytree {cond.out_tree}.")
    (aval,) = cond.out_avals
    if aval.shape or aval.dtype != np.bool_:
        raise errors.ArgumentTypeError(
            f"cond_fun must return a boolean scalar, but got output type(s) [{aval!r}]. Compare it with something, or "
            "reduce it"
        )


@boundary
def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[[Any, T], T], init_val: T, *, unroll: int | bool | None = None
) -> T:
    """`for i in range(lower, upper): val = body_fun(i, val)`; returns the last `val`.

    With static bounds it is a `scan`, hence differentiable in reverse mode; otherwise a `while_loop`.

    Args:
      lower, upper: numbers of one dtype (a Python int takes that of a signed integer). Known while tracing, they are
        rounded towards zero, as by `int`.
      unroll: how many iterations one trip of the compiled loop makes (known bounds only; True or 0: all).

    >>> lax.fori_loop(0, 4, lambda i, total: total + i, 0)
    Array(6, dtype=int32, weak_type=True)
    """
    need_callable(body_fun, "lax.fori_loop: body_fun")
    apart = set_apart("fori_loop", init_val)
    if apart is not None:
        turn = lambda i, rest: apart.rest_of(body_fun(i, apart.join(rest)))
        final: T = apart.join(fori_loop(lower, upper, turn, apart.rest, unroll=unroll))
        return final
    dtype = _bounds_dtype(lower, upper)
    start, stop = (b.concrete() if isinstance(b, Tracer) else b for b in (lower, upper))
    if start is not None and stop is not None:
        start, stop = (b if isinstance(b, DimExpr) else int(b) for b in (start, stop))
        return _counted_loop(start, stop, body_fun, init_val, unroll)
    if unroll is not None and unroll is not False and unroll != 1:
        raise errors.ArgumentValueError(
            "Can only use `unroll` in `fori_loop` if the loop bounds are statically known. Make them static arguments"
        )
    start, stop = (_as_bound(bound, dtype) for bound in (lower, upper))
    names = lambda tree: _below_names(body_fun, tree)
    body = Body(_counted_below(body_fun), body_fun, "fori_loop", names=names)
    return _while(_below, body, (start, stop, init_val))[2]


def _counted_loop(start: Any, stop: Any, body_fun: Callable[[Any, T], T], init_val: T, unroll: int | bool | None) -> T:
    """A loop whose number of iterations is known is a scan over a weakly typed counter."""
    if config.read("disable_jit"):
        value = init_val
        for i in range(start, stop):
            value = body_fun(as_array(i), value)
        return value
    length: Any = non_negative_dim(stop - start)
    unroll = unroll_factor(False if unroll is None else unroll, length)
    names = lambda tree: paths_of(body_fun, tree_util.treedef_children(tree)[0])()
    body = Body(_counted(body_fun), body_fun, "fori_loop", names=names)
    return scan_body(body, (start, init_val), None, length, False, unroll)[0][1]


def _on_device(x: Any) -> Any:
    """What a compiled loop would give its functions: an array, of numbers and arrays of NumPy."""
    return as_array(x) if isinstance(x, np.ndarray | np.generic | bool | int | float | complex) else x


def _below_names(body_fun: Callable[..., Any], tree: Any) -> list[str]:
    """Names for the counter, the bound, which the body does not see, and the value."""
    counter, _, value = tree_util.treedef_children(tree_util.treedef_children(tree)[0])
    first, *rest = paths_of(body_fun, tree_util.treedef_tuple([counter, value]))()
    return [first, "upper", *rest]


def _bounds_dtype(lower: Any, upper: Any) -> np.dtype:
    """The one dtype of both; between two signed integers, that of the one that is not a Python int."""
    avals = [aval_of(lower), aval_of(upper)]
    for name, aval in zip(("lower", "upper"), avals):
        if aval.shape:
            raise errors.ArgumentTypeError(f"fori_loop: {name} must be a scalar, not {aval}")
    weak = [a.weak_type for a in avals]
    if avals[0].dtype == avals[1].dtype:
        return avals[0].dtype
    if weak[0] == weak[1] or not all(dtypes.issubdtype(a.dtype, np.signedinteger) for a in avals):
        raise errors.ArgumentTypeError(
            f"lower and upper arguments to fori_loop must have equal types, got {avals[0].dtype} and {avals[1].dtype}. "
            "Convert one with astype"
        )
    return avals[1].dtype if weak[0] else avals[0].dtype


def _as_bound(bound: Any, dtype: np.dtype) -> Any:
    return bound if aval_of(bound).dtype == dtype else convert_element_type(bound, dtype)


def _add_one(i: Any) -> Any:
    return add(i, 1)


def _counted(body: Callable[..., Any]) -> Callable[..., Any]:
    def counted(carry: Sequence[Any], _: Any) -> tuple[Any, Any]:
        i, value = carry
        return (_add_one(i), body(i, value)), None

    return counted


def _counted_below(body: Callable[..., Any]) -> Callable[..., Any]:
    def counted(carry: Sequence[Any]) -> tuple[Any, Any, Any]:
        i, stop, value = carry
        return _add_one(i), stop, body(i, value)

    return counted


def _below(carry: Any) -> Any:
    return lt_p.bind(carry[0], carry[1])
