"""Structured control flow: `scan`, `while_loop`, `fori_loop`, `cond`, `switch`, `map`.

The primitives are in `control_scan`, `control_while` and `control_cond`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from meshrt import config, dtypes, errors, tree_util
from meshrt.core.trace import Tracer
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives import control_scan_reverse
from meshrt.primitives.control_cond import cond_p
from meshrt.primitives.control_scan import scan_p
from meshrt.primitives.control_staging import (
    Staged,
    converted,
    describe_difference,
    function_name,
    promote_weak,
    stage,
    tree_difference,
    with_common_consts,
    with_vars,
)
from meshrt.primitives.control_while import while_p
from meshrt.transforms.tools import WeakCache

__all__ = ["cond", "fori_loop", "map", "scan", "switch", "while_loop"]

Carry = TypeVar("Carry")
T = TypeVar("T")
_MISSING: Any = object()
assert control_scan_reverse is not None


def _need_callable(value: Any, what: str) -> None:
    if not callable(value):
        raise errors.ArgumentTypeError(f"{what} must be a function, not a value of type {type(value).__name__}")


# ---------------------------------------------------------------------------------------------------------------------
# scan


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
      unroll: how many iterations one trip of the compiled loop makes (True: all).

    Raises:
      ArgumentTypeError: the carry changes structure, shape or dtype, or `f` returns no pair.
      ArgumentValueError: the xs have different sizes, or disagree with `length`.
    """
    _need_callable(f, "the body of scan")
    if _split_transpose:
        raise errors.UnsupportedError("scan(_split_transpose=True) is not implemented; leave it out")
    x_leaves = tree_util.tree_leaves(xs)
    length = _scan_length(x_leaves, length)
    unroll = _unroll(unroll, length)
    if config.read("disable_jit") and not _any_tracer((init, xs)):
        return _scan_in_python(f, init, xs, length, reverse)
    return _scan(_Body(f, f, "scan"), init, xs, length, bool(reverse), unroll)


@dataclass(frozen=True, slots=True)
class _Body:
    """A function to stage: `call` was made from the user's function `owner`, for `what`."""

    call: Callable[..., Any]
    owner: Callable[..., Any]
    what: str

    def stage(self, in_tree: Any, in_avals: Sequence[ShapedArray]) -> Staged:
        return stage(self.call, in_tree, in_avals, self.owner, self.what)


def _scan(body: _Body, init: Any, xs: Any, length: int, reverse: bool, unroll: int) -> tuple[Any, Any]:
    x_leaves, x_tree = tree_util.tree_flatten(xs)
    x_avals = [aval_of(x) for x in x_leaves]
    slices = [a.with_shape(a.shape[1:]) for a in x_avals]
    carry, carry_tree = tree_util.tree_flatten(init)
    in_tree = tree_util.treedef_tuple([carry_tree, x_tree])

    def stage_body() -> Staged:
        staged = body.stage(in_tree, [*[aval_of(c) for c in carry], *slices])
        _check_pair(staged, body.what)
        _check_carry_tree(body, carry_tree, tree_util.treedef_children(staged.out_tree)[0])
        return staged

    staged = stage_body()
    while promote_weak(carry, [aval_of(c) for c in carry], staged.out_avals):
        staged = stage_body()
    _check_carry_types(body, carry_tree, carry, staged.out_avals)
    outs = _bind_scan(staged, carry, x_leaves, length, reverse, unroll)
    y_tree = tree_util.treedef_children(staged.out_tree)[1]
    carry_out, ys = outs[: len(carry)], outs[len(carry) :]
    return tree_util.tree_unflatten(carry_tree, carry_out), tree_util.tree_unflatten(y_tree, ys)


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


def _scan_length(xs: Sequence[Any], length: int | None) -> int:
    sizes = []
    for x in xs:
        shape = getattr(x, "shape", None)
        if not shape:
            raise errors.ArgumentValueError(
                f"scan got value with no leading axis to scan over: {x}; give arrays of rank 1 or more as xs"
            )
        sizes.append(shape[0])
    if length is not None:
        try:
            length = int(length)
        except TypeError:
            raise errors.ArgumentTypeError(
                f"the length of a scan must be a concrete whole number, not {length}"
            ) from None
        if any(s != length for s in sizes):
            raise errors.ArgumentValueError(
                f"scan got `length` argument of {length} which disagrees with leading axis sizes {sizes}"
            )
        if length < 0:
            raise errors.ArgumentValueError(f"scan got a negative length, {length}")
        return length
    if not sizes:
        raise errors.ArgumentValueError("scan got no values to scan over and `length` not provided; give one of them")
    if len(set(sizes)) > 1:
        listed = ", ".join([str(s) for s in sizes])
        raise errors.ArgumentValueError(f"scan got values with different leading axis sizes: {listed}")
    return sizes[0]


def _unroll(unroll: int | bool, length: int) -> int:
    if isinstance(unroll, bool):
        return max(length, 1) if unroll else 1
    if unroll < 1:
        raise errors.ArgumentValueError(f"unroll must be a positive whole number or a bool, not {unroll}")
    return int(unroll)


def _any_tracer(tree: Any) -> bool:
    return any(isinstance(x, Tracer) for x in tree_util.tree_leaves(tree))


def _scan_in_python(f, init, xs, length, reverse):
    """What disable_jit asks for: the loop in Python, one iteration after another."""
    from meshrt.primitives.concatenate import concatenate
    from meshrt.primitives.reshape import expand_dims
    from meshrt.primitives.slice import index_in_dim

    carry, ys = init, []
    order = range(length - 1, -1, -1) if reverse else range(length)
    for i in order:
        x = tree_util.tree_map(lambda leaf: index_in_dim(leaf, i, keepdims=False), xs)
        carry, y = f(carry, x)
        ys.append(y)
    if not ys:
        raise errors.ArgumentValueError(
            "scan of length 0 cannot run with disable_jit, because the types of its results are not known"
        )
    ys = ys[::-1] if reverse else ys
    return carry, tree_util.tree_map(lambda *rows: concatenate([expand_dims(r, (0,)) for r in rows], 0), *ys)


# ---------------------------------------------------------------------------------------------------------------------
# Checking carries and branches


def _check_pair(staged: Staged, what: str) -> None:
    children = tree_util.treedef_children(staged.out_tree)
    pair = staged.out_tree.node_data()
    if pair is None or pair[0] is not tuple or len(children) != 2:
        raise errors.ArgumentTypeError(
            f"{what} body output must be a pair, got {staged.out_tree}; return (carry, y), with y=None for no output"
        )


def _carry_name(body: _Body) -> str:
    """The name of the carry parameter of the user's function, for key paths."""
    try:
        parameters = list(inspect.signature(body.owner).parameters.values())
        return parameters[0].name if body.call is body.owner else "carry"
    except (ValueError, TypeError, IndexError):
        return "carry"


def _check_carry_tree(body: _Body, expected: Any, got: Any) -> None:
    if expected == got:
        return
    raise errors.ArgumentTypeError(
        f"{body.what} body function carry input and carry output must have the same pytree structure, but they differ "
        f"(input against output):\n{tree_difference(expected, got, _carry_name(body))}\n"
        f"Make {function_name(body.owner)} return a carry of the structure that it takes"
    )


def _check_carry_types(body: _Body, tree: Any, carry: Sequence[Any], out_avals: Any) -> None:
    root = _carry_name(body)
    paths = tree_util.tree_flatten_with_path(tree_util.tree_unflatten(tree, list(range(len(carry)))))[0]
    lines = []
    for (path, _), value, out in zip(paths, carry, out_avals):
        aval = aval_of(value)
        why = describe_difference(aval, out)
        if why is not None:
            lines.append(
                f"  the input carry {root}{tree_util.keystr(path)} has type {aval} but the corresponding output carry "
                f"has type {out}, so {why}"
            )
    if lines:
        raise errors.ArgumentTypeError(
            f"{body.what} body function carry input and carry output must have equal types, but they differ:\n"
            + "\n".join(lines)
            + f"\nMake {function_name(body.owner)} return a carry of the types that it takes (convert with astype, or "
            "give an initial value of the type that it returns)"
        )


# ---------------------------------------------------------------------------------------------------------------------
# while_loop and fori_loop


def while_loop(cond_fun: Callable[[T], Any], body_fun: Callable[[T], T], init_val: T) -> T:
    """Applies `body_fun` to the carry (a pytree) as long as `cond_fun` of it is true.

    Differentiable in forward mode only, since the number of iterations is not known beforehand.

    Raises:
      ArgumentTypeError: the carry changes structure, shape or dtype, or `cond_fun` returns no boolean scalar.
    """
    _need_callable(cond_fun, "the condition of while_loop")
    _need_callable(body_fun, "the body of while_loop")
    if config.read("disable_jit") and not _any_tracer(init_val):
        value = init_val
        while cond_fun(value):
            value = body_fun(value)
        return value
    return _while(cond_fun, _Body(body_fun, body_fun, "while_loop"), init_val)


def _while(cond_fun: Callable[..., Any], loop: _Body, init_val: Any) -> Any:
    carry, tree = tree_util.tree_flatten(init_val)
    in_tree = tree_util.treedef_tuple([tree])

    def stage_body() -> Staged:
        staged = loop.stage(in_tree, [aval_of(c) for c in carry])
        _check_carry_tree(loop, tree, staged.out_tree)
        return staged

    body = stage_body()
    while promote_weak(carry, [aval_of(c) for c in carry], body.out_avals):
        body = stage_body()
    cond = stage(cond_fun, in_tree, [aval_of(c) for c in carry])
    _check_condition(cond)
    _check_carry_types(loop, tree, carry, body.out_avals)
    outs = while_p.bind(
        *cond.consts, *body.consts, *carry,
        cond_jaxpr=cond.jaxpr, cond_nconsts=len(cond.consts), body_jaxpr=body.jaxpr, body_nconsts=len(body.consts),
    )  # fmt: skip
    return tree_util.tree_unflatten(tree, outs)


def _check_condition(cond: Staged) -> None:
    if not tree_util.treedef_is_leaf(cond.out_tree):
        raise errors.ArgumentTypeError(f"cond_fun must return a boolean scalar, but got pytree {cond.out_tree}")
    (aval,) = cond.out_avals
    if aval.shape or aval.dtype != np.bool_:
        raise errors.ArgumentTypeError(
            f"cond_fun must return a boolean scalar, but got output type {aval}; compare it with something or reduce it"
        )


def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[[Any, T], T], init_val: T, *, unroll: int | bool | None = None
) -> T:
    """`for i in range(lower, upper): val = body_fun(i, val)`; returns the last `val`.

    With static bounds it is a `scan`, hence differentiable in reverse mode; otherwise a `while_loop`.

    Args:
      lower, upper: integers of one dtype (Python ints take the other's).
      unroll: how many iterations one trip of the compiled loop makes (static bounds only; True: all).
    """
    _need_callable(body_fun, "the body of fori_loop")
    lower, upper, dtype = _loop_bounds(lower, upper)
    static = isinstance(lower, int) and isinstance(upper, int)
    if unroll is not None and not static:
        raise errors.ArgumentValueError("fori_loop(unroll=...) needs bounds that are known while tracing (Python ints)")
    if config.read("disable_jit") and static:
        value = init_val
        for i in range(lower, upper):
            value = body_fun(np.asarray(i, dtype)[()], value)
        return value
    start = np.asarray(lower, dtype)[()] if isinstance(lower, int) else lower
    if static:
        length = max(upper - lower, 0)
        unroll = _unroll(1 if unroll is None else unroll, length)
        return _scan(_Body(_counted(body_fun), body_fun, "fori_loop"), (start, init_val), None, length, False, unroll)[
            0
        ][1]
    stop = np.asarray(upper, dtype)[()] if isinstance(upper, int) else upper
    return _while(_below, _Body(_counted_below(body_fun), body_fun, "fori_loop"), (start, stop, init_val))[2]


def _loop_bounds(lower: Any, upper: Any) -> tuple[Any, Any, np.dtype]:
    avals = [aval_of(lower), aval_of(upper)]
    for name, aval in zip(("lower", "upper"), avals):
        if aval.shape or not dtypes.issubdtype(aval.dtype, np.integer):
            raise errors.ArgumentTypeError(f"fori_loop: {name} must be an integer scalar, not {aval}")
    if avals[0].dtype != avals[1].dtype and not any(a.weak_type for a in avals):
        raise errors.ArgumentTypeError(
            f"lower and upper arguments to fori_loop must have equal types, got {avals[0]} and {avals[1]}"
        )
    dtype = avals[1].dtype if avals[0].weak_type else avals[0].dtype

    def known(value: Any) -> Any:
        if isinstance(value, Tracer):
            from meshrt.primitives.elementwise import convert_element_type

            return convert_element_type(value, dtype)
        return int(value)

    return known(lower), known(upper), dtype


def _add_one(i: Any) -> Any:
    from meshrt.primitives.elementwise import add_p

    return add_p.bind(i, np.asarray(1, aval_of(i).dtype)[()])


def _counted(body: Callable[..., Any]) -> Callable[..., Any]:
    def counted(carry, _):
        i, value = carry
        return (_add_one(i), body(i, value)), None

    return counted


def _counted_below(body: Callable[..., Any]) -> Callable[..., Any]:
    def counted(carry):
        i, stop, value = carry
        return _add_one(i), stop, body(i, value)

    return counted


def _below(carry: Any) -> Any:
    from meshrt.primitives.elementwise import lt_p

    return lt_p.bind(carry[0], carry[1])


# ---------------------------------------------------------------------------------------------------------------------
# cond and switch


def cond(
    pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any, operand: Any = _MISSING
) -> Any:
    """`true_fun(*operands)` if `pred` else `false_fun(*operands)`; only one of them runs (under vmap of `pred`, both).

    Args:
      pred: a boolean scalar (numbers count as true unless zero).
      true_fun, false_fun: functions of the operands (pytrees) with results of equal structure, shapes and dtypes.

    Raises:
      ArgumentTypeError: `pred` is no scalar, or the branches' results differ in structure, shape or dtype.
    """
    _need_callable(true_fun, "true_fun of cond")
    _need_callable(false_fun, "false_fun of cond")
    operands = _legacy_operand(operands, operand)
    try:
        aval = aval_of(pred)
    except errors.ArgumentTypeError:
        raise errors.ArgumentTypeError(f"Pred must be a scalar, got {pred} of type {type(pred)}") from None
    if aval.shape:
        raise errors.ArgumentTypeError(
            f"Pred must be a scalar, got {pred} of shape {aval.shape}; reduce it with any() or all(), or use "
            "meshrt.numpy.where to choose elementwise"
        )
    if config.read("disable_jit") and not _any_tracer(pred):
        return true_fun(*operands) if pred else false_fun(*operands)
    index = _predicate_index(pred, aval)
    return _branch(index, (false_fun, true_fun), ("false_fun", "true_fun"), operands, "cond")


def _predicate_index(pred: Any, aval: ShapedArray) -> Any:
    from meshrt.primitives.elementwise import convert_element_type, ne_p

    if not isinstance(pred, Tracer) and isinstance(pred, bool | int | float | np.generic):
        return np.int32(bool(pred))
    if not (aval.dtype == np.bool_ or dtypes.issubdtype(aval.dtype, np.number)):
        raise errors.ArgumentTypeError(f"Pred type must be either boolean or number, got {aval}")
    if aval.dtype != np.bool_:
        pred = ne_p.bind(pred, np.zeros((), aval.dtype)[()])
    return convert_element_type(pred, np.int32)


def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any, operand: Any = _MISSING) -> Any:
    """`branches[index](*operands)`, with `index` (an integer scalar) clamped to the branches there are."""
    from meshrt.primitives.elementwise import clamp, convert_element_type

    operands = _legacy_operand(operands, operand)
    branches = tuple(branches)
    for i, b in enumerate(branches):
        _need_callable(b, f"branch {i} of switch")
    aval = aval_of(index)
    if aval.shape:
        raise errors.ArgumentTypeError(f"Branch index must be scalar, got {index} of shape {aval.shape}")
    if not dtypes.issubdtype(aval.dtype, np.integer):
        raise errors.ArgumentTypeError(f"Index type must be an integer, got {index} as {aval.dtype}")
    if not branches:
        raise errors.ArgumentValueError("switch got an empty sequence of branches; give at least one")
    if len(branches) == 1:
        return branches[0](*operands)
    last = len(branches) - 1
    if not isinstance(index, Tracer) and isinstance(index, int | np.integer):
        index = np.int32(min(max(int(index), 0), last))
    else:
        if dtypes.issubdtype(aval.dtype, np.unsignedinteger):
            index = clamp(
                np.asarray(0, aval.dtype)[()], index, np.asarray(min(last, np.iinfo(aval.dtype).max), aval.dtype)[()]
            )
        index = convert_element_type(index, np.int32)
        index = clamp(np.int32(0), index, np.int32(last))
    if config.read("disable_jit") and not isinstance(index, Tracer):
        return branches[int(index)](*operands)
    names = tuple(f"branch {i}" for i in range(len(branches)))
    return _branch(index, branches, names, operands, "switch")


def _legacy_operand(operands: tuple[Any, ...], operand: Any) -> tuple[Any, ...]:
    if operand is _MISSING:
        return operands
    if operands:
        raise errors.ArgumentTypeError(
            f"operands were given both by position ({len(operands)}) and by the keyword operand=; use positions only"
        )
    return (operand,)


def _branch(index: Any, branches: Sequence[Callable[..., Any]], names: Sequence[str], operands: Any, what: str) -> Any:
    leaves, tree = tree_util.tree_flatten(operands)
    avals = [aval_of(x) for x in leaves]
    staged = [stage(b, tree, avals) for b in branches]
    for s, name in zip(staged[1:], names[1:]):
        if s.out_tree != staged[0].out_tree:
            raise errors.ArgumentTypeError(
                f"{what} branch outputs must have the same pytree structure, but {names[0]} and {name} differ "
                f"({names[0]} against {name}):\n{tree_difference(staged[0].out_tree, s.out_tree, 'the result')}"
            )
    staged = _same_types(staged, names, what)
    jaxprs, consts = with_common_consts(staged)
    outs = cond_p.bind(index, *consts, *leaves, branches=jaxprs)
    return tree_util.tree_unflatten(staged[0].out_tree, outs)


def _same_types(staged: list[Staged], names: Sequence[str], what: str) -> list[Staged]:
    """The branches with weakly typed results converted to the dtypes of the others; error where types still differ."""
    columns = list(zip(*[s.out_avals for s in staged]))
    wanted = []
    for column in columns:
        strong = {a.dtype for a in column if not a.weak_type}
        if len(strong) == 1 or len({a.dtype for a in column}) == 1:
            weak = all(a.weak_type for a in column)
            wanted.append((next(iter(strong)) if strong else column[0].dtype, weak))
        elif not strong:
            wanted.append(dtypes.promote_dtypes(*[(a.dtype, True) for a in column]))
        else:
            wanted.append((column[0].dtype, column[0].weak_type))
    staged = [converted(s, tuple(wanted)) for s in staged]
    _check_branch_types(staged, names, what)
    return staged


def _check_branch_types(staged: Sequence[Staged], names: Sequence[str], what: str) -> None:
    tree = staged[0].out_tree
    paths = tree_util.tree_flatten_with_path(tree_util.tree_unflatten(tree, list(range(tree.num_leaves))))[0]
    lines = []
    for s, name in zip(staged[1:], names[1:]):
        for (path, _), a, b in zip(paths, staged[0].out_avals, s.out_avals):
            why = describe_difference(a, b)
            if why is not None:
                where = f" at {tree_util.keystr(path)}" if path else ""
                lines.append(
                    f"  the output of {names[0]}{where} has type {a} but that of {name} has type {b}, so {why}"
                )
    if lines:
        raise errors.ArgumentTypeError(
            f"{what} branches must have equal output types but they differ:\n"
            + "\n".join(lines)
            + "\nMake the branches return the same types (convert with astype, or broadcast)"
        )


# ---------------------------------------------------------------------------------------------------------------------
# map


def map(f: Callable[..., Any], xs: Any, *, batch_size: int | None = None) -> Any:
    """Applies `f` to each slice of `xs` along its first dimension, one after another, and stacks the results.

    With `batch_size`, that many slices at a time are mapped together by vmap (the last batch may be smaller).
    """
    _need_callable(f, "the function of map")
    if batch_size is None:
        length = _scan_length(tree_util.tree_leaves(xs), None)
        return _scan(_Body(lambda _, x: ((), f(x)), f, "map"), (), xs, length, False, 1)[1]
    return _map_batches(f, xs, batch_size)


def _map_batches(f: Callable[..., Any], xs: Any, batch_size: int) -> Any:
    from meshrt.api import vmap
    from meshrt.primitives.concatenate import concatenate
    from meshrt.primitives.reshape import reshape
    from meshrt.primitives.slice import slice_in_dim

    if batch_size < 1:
        raise errors.ArgumentValueError(f"map: batch_size must be a positive whole number, not {batch_size}")
    length = _scan_length(tree_util.tree_leaves(xs), None)
    trips = length // batch_size
    whole = trips * batch_size
    parts = []
    if trips:
        batches = tree_util.tree_map(
            lambda x: reshape(slice_in_dim(x, 0, whole), (trips, batch_size, *aval_of(x).shape[1:])), xs
        )
        ys = _scan(_Body(lambda _, x: ((), vmap(f)(x)), f, "map in batches"), (), batches, trips, False, 1)[1]
        parts.append(tree_util.tree_map(lambda y: reshape(y, (whole, *aval_of(y).shape[2:])), ys))
    if whole < length or not trips:
        parts.append(vmap(f)(tree_util.tree_map(lambda x: slice_in_dim(x, whole, length), xs)))
    if len(parts) == 1:
        return parts[0]
    return tree_util.tree_map(lambda a, b: concatenate([a, b], 0), *parts)
