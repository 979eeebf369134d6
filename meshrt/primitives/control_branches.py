"""`cond`, `switch` and `platform_dependent`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from meshrt import config, dtypes, errors, tree_util
from meshrt._tree_paths import TypedLeaf
from meshrt.core.axes import branching
from meshrt.core.basic.varying import in_order, into_branch, vary
from meshrt.core.high import told_apart
from meshrt.core.jaxpr import Jaxpr, Var
from meshrt.core.trace import JaxprTrace, Tracer
from meshrt.core.tracebacks import boundary
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import PLATFORMS
from meshrt.primitives.clamp import clamp
from meshrt.primitives.compositions import stage as as_array
from meshrt.primitives.control_checks import any_tracer, need_callable, plain
from meshrt.primitives.control_cond import cond_p, platform_index_p
from meshrt.primitives.control_staging import (
    converted,
    describe_difference,
    joined,
    wanted_of,
    with_common_consts,
)
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.elementwise import ne_p
from meshrt.runtime.array import Array
from meshrt.transforms.arguments import fun_name
from meshrt.transforms.high import flatten, leaf_paths
from meshrt.transforms.references import check_distinct, paths_of
from meshrt.transforms.staged import Staged, stage, told_places

__all__ = ["cond", "platform_dependent", "switch"]

_MISSING: Any = object()


@boundary
def cond(
    pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any, operand: Any = _MISSING
) -> Any:
    """`true_fun(*operands)` if `pred` else `false_fun(*operands)`; only one of them runs (under vmap of `pred`, both).

    Args:
      pred: a boolean scalar (numbers count as true unless zero).
      true_fun, false_fun: functions of the operands (pytrees) with results of equal structure, shapes and dtypes.

    Raises:
      ArgumentTypeError: `pred` is no scalar, or the branches' results differ in structure, shape or dtype.

    >>> lax.cond(True, lambda x: x + 1, lambda x: x - 1, 10)
    Array(11, dtype=int32, weak_type=True)
    """
    if not callable(true_fun) and callable(false_fun) and len(operands) == 2 and callable(operands[1]):
        return _cond_of_two(pred, (true_fun, operands[0]), (false_fun, operands[1]))
    need_callable(true_fun, "lax.cond: true_fun")
    need_callable(false_fun, "lax.cond: false_fun")
    operands = _legacy_operand(operands, operand)
    if pred is None:
        raise errors.ArgumentTypeError("cond predicate is None: give a boolean or a number")
    if callable(pred):
        raise errors.ArgumentTypeError(f"Pred type must be either boolean or number, got {pred}")
    try:
        aval = aval_of(pred)
    except errors.ArgumentTypeError:
        raise errors.ArgumentTypeError(f"Pred must be a scalar, got {pred} of type {type(pred)}") from None
    if aval.shape:
        raise errors.ArgumentTypeError(
            f"Pred must be a scalar, got {pred} of shape {aval.shape}; reduce it with any() or all(), or use "
            "meshrt.numpy.where to choose elementwise"
        )
    if config.read("disable_jit") and not any_tracer(pred):
        return true_fun(*operands) if pred else false_fun(*operands)
    index = _predicate_index(pred, aval)
    return _branch(index, (false_fun, true_fun), ("false_fun", "true_fun"), operands, "cond")


def _cond_of_two(pred: Any, operands: tuple[Any, Any], functions: Sequence[Callable[[Any], Any]]) -> Any:
    """The older call `cond(pred, true_operand, true_fun, false_operand, false_fun)`: each branch has its operand."""
    true_fun, false_fun = functions
    return cond(pred, lambda pair: true_fun(pair[0]), lambda pair: false_fun(pair[1]), operands)


def _predicate_index(pred: Any, aval: ShapedArray) -> Any:
    if not (aval.dtype == np.bool_ or dtypes.issubdtype(aval.dtype, np.number)) or aval.dtype.kind == "c":
        raise errors.ArgumentTypeError(
            f"Pred type must be either boolean or number, got {aval}; compare it with something"
        )
    if not isinstance(pred, Tracer) and isinstance(pred, bool | int | float | np.generic):
        return np.int32(bool(pred))
    if aval.dtype != np.bool_:
        pred = ne_p.bind(pred, np.zeros((), aval.dtype)[()])
    return convert_element_type(pred, np.int32)


@boundary
def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any, operand: Any = _MISSING) -> Any:
    """`branches[index](*operands)`, with `index` (an integer scalar) clamped to the branches there are.

    Args:
      index: an integer scalar, clamped into range.
      branches: functions with results of one structure and types.
      operands: trees of arrays.
      operand: an array.

    Returns:
      What the branch returns.

    Raises:
      TypeError: the branches return other structures or types; ValueError: there is no branch.

    >>> lax.switch(1, [lambda x: x, lambda x: 10 * x], 3)
    Array(30, dtype=int32, weak_type=True)
    """
    operands = _legacy_operand(operands, operand)
    branches = tuple(branches)
    for i, b in enumerate(branches):
        need_callable(b, f"lax.switch: branch {i}")
    if np.ndim(index):
        raise errors.ArgumentTypeError(f"Branch index must be scalar, got {index} of shape {np.shape(index)}.")
    try:
        aval = aval_of(index)
    except errors.ArgumentTypeError:
        raise errors.ArgumentTypeError(f"Index type must be an integer, got {index}.") from None
    if not dtypes.issubdtype(aval.dtype, np.integer):
        raise errors.ArgumentTypeError(f"Index type must be an integer, got {index} as {aval.dtype}")
    if not branches:
        raise errors.ArgumentValueError("Empty branch sequence: switch needs at least one branch")
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


@boundary
def platform_dependent(
    *args: Any, default: Callable[..., Any] | None = None, **per_platform: Callable[..., Any]
) -> Any:
    """`per_platform[p](*args)` where the program runs on platform `p` ("cpu", "cuda", "rocm", "tpu"), else `default`.

    All functions are traced, and must give results of equal structure, shapes and dtypes; a compiled program holds only
    the one for its platform, whose derivative and batching are its own.

    Args:
      args: pytrees of arrays.
      default: the function for platforms that are not named.
      per_platform: functions by platform.

    Raises:
      ArgumentTypeError: something given for a platform is not callable, or results differ in type.
      ArgumentValueError: the platform "gpu" is named, which is "cuda" or "rocm".
      UnsupportedError: the program is written for a platform that has no function.

    >>> import meshrt
    >>> meshrt.jit(lambda x: meshrt.lax.platform_dependent(x, cpu=meshrt.lax.sin, default=meshrt.lax.cos))(0.0)
    Array(0., dtype=float32, weak_type=True)
    """
    named = {**per_platform} if default is None else {**per_platform, "default": default}
    for name, function in named.items():
        need_callable(function, f"the {name!r} branch of platform_dependent")
    if "gpu" in per_platform:
        raise errors.ArgumentValueError("platform_dependent: 'gpu' is no platform's name; use 'cuda' or 'rocm'")
    if not named:
        raise errors.UnsupportedError(
            "platform_dependent needs a function to choose; give cpu=..., cuda=..., rocm=..., tpu=... or default=..."
        )
    shared: dict[Any, list[str]] = {}  # platforms with one function have one branch
    for name, function in per_platform.items():
        shared.setdefault(function, []).append(name)
    branches = [*shared]
    platforms: list[tuple[str, ...] | None] = [tuple(names) for names in shared.values()]
    if default is not None:
        branches, platforms = [*branches, default], [*platforms, None]
    chosen = {PLATFORMS: tuple(platforms)}
    index = platform_index_p.bind(**chosen)
    if not isinstance(index, Tracer):
        return branches[int(index)](*args)
    names = [f"the branch for {' and '.join(p) if p else 'other platforms'}" for p in platforms]
    return _branch(index, branches, names, args, "platform_dependent", chosen)


def _legacy_operand(operands: tuple[Any, ...], operand: Any) -> tuple[Any, ...]:
    if operand is _MISSING:
        return operands
    if operands:
        raise errors.ArgumentTypeError(
            f"operands were given both by position ({len(operands)}) and by the keyword operand=; use positions only"
        )
    return (operand,)


def _branch(
    index: Any, branches: Sequence[Callable[..., Any]], names: Sequence[str], operands: Any, what: str,
    chosen_by: Mapping[str, Any] = MappingProxyType({}),
) -> Any:  # fmt: skip
    leaves, tree = flatten(operands)
    chosen = aval_of(index).vma  # over these axes devices may choose different branches
    leaves = [vary(x, in_order(chosen)) for x in into_branch(leaves)]
    given = lambda captured: check_distinct(what, fun_name(branches[0]), leaves, captured, paths_of(branches[0], tree))
    given(())
    with branching(chosen):
        # What branches do while they are traced happens in the order in which they are written: true_fun comes first.
        turns = branches[::-1] if what == "cond" else branches
        staged = told_places(leaves, lambda types: [stage(b, tree, types, kind=what) for b in turns])
        if what == "cond":
            staged.reverse()
    given([c for s in staged for c in s.consts])
    where = [f"{name} is {fun_name(b)}{_line_of(b)}" for name, b in zip(names, branches)]
    _check_structures(staged, where, names, what)
    staged = _same_types(staged, where, names, what, chosen)
    jaxprs, consts = with_common_consts(staged)
    operands = [*consts, *leaves]
    jaxprs, handed_on = _without_operands(jaxprs)
    outs = iter(cond_p.bind(index, *operands, branches=jaxprs, **chosen_by))
    results = [next(outs) if place is None else operands[place] for place in handed_on]
    results = [x if isinstance(x, Tracer | Array) or aval_of(x).is_high else as_array(x) for x in results]
    return tree_util.tree_unflatten(staged[0].out_tree, results)


def _without_operands(branches: tuple[Jaxpr, ...]) -> tuple[tuple[Jaxpr, ...], list[int | None]]:
    """The branches without the results that are one and the same operand in all of them; and for each result which
    operand it is, None for those that stay. (So what no branch changes is not mapped because the choice is.)
    """
    columns = []
    for branch in branches:
        places = {v: i for i, v in enumerate(branch.invars)}
        columns.append([places.get(v) if type(v) is Var else None for v in branch.outvars])
    handed_on = [same[0] if len(set(same)) == 1 else None for same in zip(*columns)]
    if all(place is None for place in handed_on):
        return branches, handed_on
    kept = [i for i, place in enumerate(handed_on) if place is None]
    fewer = tuple(
        Jaxpr(b.constvars, b.invars, [b.outvars[i] for i in kept], b.eqns, b.effects, is_high=b.is_high, name=b.name)
        for b in branches
    )
    return fewer, handed_on


def _same_types(
    staged: list[Staged], where: Sequence[str], names: Sequence[str], what: str, chosen: frozenset[Any]
) -> list[Staged]:
    """The branches with results of the first one's types, which differ in weakness at most; error where they do not.

    A result varies over what that of any branch varies over, and over the axes along which the choice does (`chosen`).
    """
    _check_branch_types(staged, where, names, what, chosen)
    columns = list(zip(*[s.out_avals for s in staged]))
    wanted = [wanted_of(c[0], _over_all(c, chosen)) for c in columns]
    return [converted(s, tuple(wanted)) for s in staged]


def _over_all(column: Sequence[Any], chosen: frozenset[Any]) -> Any:
    """Over which axes a result of all branches varies; of a high type, the type that says it of each array."""
    if not column[0].is_high or column[0].mutable:
        return chosen.union(*[a.vma for a in column])
    varying: Any = functools.reduce(joined, column)
    return JaxprTrace.varying(varying, chosen) if chosen else varying


def _told(one: str, other: str, path: Any, name: str, second: str, why: str) -> str:
    where = f" at path {tree_util.keystr(path)}" if path else ""
    return f"{name} output{where} is {one} but {second} output{where} is {other}, so {why}"


def _leafy(text: str) -> str:
    """How a part of a structure is called: the type of a leaf does not matter."""
    return "a pytree leaf" if text.startswith("a leaf") else text


def _pairs(items: Sequence[Any], names: Sequence[str], what: str) -> Iterator[tuple[Any, str, Any, str]]:
    """Each branch beside the first one, as they are written: true_fun comes before false_fun."""
    for item, name in zip(items[1:], names[1:]):
        one, other = (items[0], names[0]), (item, name)
        yield (*other, *one) if what == "cond" else (*one, *other)


def _check_structures(staged: Sequence[Staged], where: Sequence[str], names: Sequence[str], what: str) -> None:
    for (a, place), name, (b, other), second in _pairs(list(zip(staged, where)), names, what):
        if a.out_tree == b.out_tree:
            continue
        trees = [tree_util.tree_unflatten(s.out_tree, [TypedLeaf(t) for t in s.out_avals]) for s in (a, b)]
        found = tree_util.equality_errors(*trees)
        told = [_told(_leafy(x), _leafy(y), path, name, second, why) for path, x, y, why in found]
        if not told:
            told = [_told(str(a.out_tree), str(b.out_tree), (), name, second, "they are not equal")]
        text = f"{told[0]}." if len(told) == 1 else ";\n".join(f"  * {line}" for line in told) + "."
        raise errors.ArgumentTypeError(
            f"{what} branch outputs must have the same pytree structure, but they differ:\n\n"
            f"{place}\n{other}\n\n"
            f"{text}\n\nMake the branches return the same structure"
        )


def _line_of(fun: Any) -> str:
    code = getattr(inspect.unwrap(fun), "__code__", None)
    return f" at {code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def _check_branch_types(
    staged: Sequence[Staged], places: Sequence[str], names: Sequence[str], what: str, chosen: frozenset[Any]
) -> None:
    paths = leaf_paths(staged[0].out_tree)
    lines: list[str] = []
    beside = ""
    for (one, place), name, (other, second_place), second_name in _pairs(list(zip(staged, places)), names, what):
        for path, a, b in zip(paths, one.out_avals, other.out_avals):
            why = describe_difference(a, b)
            if why is None and not config.settings.auto_pcast and a.vma | chosen != b.vma | chosen:
                why = "the manual axis types do not match: auto_pcast is off, write meshrt.lax.pcast(..., to='varying')"
            if why is not None:
                beside = beside or f"{place}\n{second_place}"
                first, second = told_apart(a, b, shown=plain)
                where = f" at path {tree_util.keystr(path)}" if path else ""
                lines.append(
                    f"the output of {name}{where} has type {first} but the corresponding output of {second_name} has "
                    f"type {second}, so {why}"
                )
    if lines:
        text = f"T{lines[0][1:]}." if len(lines) == 1 else ";\n".join(f"  * {line}" for line in lines) + "."
        raise errors.ArgumentTypeError(
            f"{what} branches must have equal output types but they differ.\n\n{beside}\n\n{text}\n\n"
            "Make the branches return the same types (convert with astype, or broadcast)"
        )
