"""Python arguments of transformed functions: which ones are differentiated, mapped or static, and their names."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Collection
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from meshrt import errors, tree_util
from meshrt.transforms.high import leaf_paths

__all__ = [
    "ArgumentNames", "StaticValue", "argument_paths", "as_tuple", "check_argnums", "described", "fun_name",
    "no_array_returned", "not_an_argument", "parameters_alone", "resolve_argnums", "result_paths", "signature_of",
    "split_aux",
]  # fmt: skip

if TYPE_CHECKING:
    from meshrt.core.told import Told

F = TypeVar("F", bound=Callable[..., Any])


class StaticValue:
    """A static argument as a cache key: two are equal if a trace made for one serves the other.

    That is stricter than Python's `==`, by which 1, 1.0 and True are equal, as are 0.0 and -0.0, and laxer for NaN,
    which equals not even itself. Elements of tuples and frozensets are compared in the same way; objects of other types
    by their own `==`. Hashing raises TypeError for values that cannot be hashed.
    """

    __slots__ = ("key", "value")

    def __init__(self, value: Any):
        self.value, self.key = value, _static_key(value)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, StaticValue) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return repr(self.value)


def _static_key(value: Any) -> tuple[Any, ...]:
    kind = type(value)
    if kind is float:
        return kind, value.hex()
    if kind is complex:
        return kind, value.real.hex(), value.imag.hex()
    if isinstance(value, np.inexact):
        return kind, value.tobytes()
    if kind is tuple or (isinstance(value, tuple) and hasattr(value, "_fields") and kind.__eq__ is tuple.__eq__):
        return kind, tuple(map(_static_key, value))
    if kind is frozenset:
        return kind, frozenset(map(_static_key, value))
    return kind, value


def require_function(fun: Any) -> None:
    """Raises ArgumentTypeError unless `fun` is what transformations take: something callable that returns values."""
    if isinstance(fun, staticmethod):
        raise errors.ArgumentTypeError(
            f"staticmethod arguments are not supported, got {fun}: write @staticmethod above the transformation"
        )
    if not callable(fun):
        raise errors.ArgumentTypeError(
            f"the first argument must be callable. Expected a callable value, got {fun} of type {type(fun).__name__}"
        )
    if getattr(getattr(fun, "__code__", None), "co_flags", 0) & inspect.CO_GENERATOR:
        raise errors.ArgumentTypeError(
            f"Expected a function, got a generator function: {fun!r}. A program has one result: return a tuple"
        )


def fun_name(fun: Callable[..., Any]) -> str:
    """The name to show for a function."""
    while hasattr(fun, "func") and not hasattr(fun, "__name__"):
        fun = fun.func
    name = getattr(fun, "__name__", None)
    return name if isinstance(name, str) else type(fun).__name__


def no_array_returned(told: Told, leaf: Any, tree: Any, i: int) -> errors.ArgumentTypeError:
    """The error where leaf `i` of what a traced function returned is no array; `tree` is what it returned, or the
    structure of that."""
    path = tree_util.keystr(leaf_paths(tree)[i])
    return errors.ArgumentTypeError(
        f"function {told.traced()} returned a value of type {type(leaf)}"
        f"{f' at output component {path}' if path else ''}, which is not a valid JAX type: return arrays or scalars "
        "(in pytrees) only"
    )


def not_an_argument(fun: Any, leaf: Any, path: str, error: errors.MeshrtError) -> errors.MeshrtError:
    """`error`, about an argument `leaf` of `fun` that is no array, with the place where it stands."""
    if isinstance(error, errors.IntegerOverflowError):
        return type(error)(
            "An overflow was encountered while parsing an argument to a jitted computation, whose argument path is "
            f"{path}. Got {type(leaf)} with value {leaf}. {error}"
        )
    return type(error)(
        f"Error interpreting argument to {fun} as an abstract array. The problematic value is of type {type(leaf)} and "
        f"was passed to the function at path {path}.\nThis typically means that a jit-wrapped function was called with "
        "a non-array argument, and this argument was not marked as static using the static_argnums or static_argnames "
        f"parameters of meshrt.jit.\n{error}"
    )


def described(wrapper: F, fun: Callable[..., Any], what: str, argnums: Any, gives: str) -> F:
    """A derivative of `fun`, with a docstring: whose it is, in which arguments, and what it returns."""
    nums = argnums if isinstance(argnums, int) else ", ".join(map(str, as_tuple(argnums)))
    name = fun_name(fun)
    wrapper.__doc__ = (
        f"{what} of {name} with respect to positional argument(s) {nums}. Takes the arguments of {name}, gives {gives}."
    )
    if getattr(fun, "__doc__", None):
        wrapper.__doc__ += f"\n\nOriginal documentation:\n\n{fun.__doc__}"
    return wrapper


def as_tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int | str) else tuple(value)


def signature_of(fun: Callable[..., Any]) -> inspect.Signature | None:
    """The signature, or None for built-ins that don't tell."""
    try:
        return inspect.signature(fun)
    except (ValueError, TypeError):
        return None


def resolve_argnums(
    fun: Callable[..., Any], nums: Any, names: Any, what: str = "static"
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and names of arguments, each inferred from the other through the signature where only one is given.

    `what` arguments they are, "static" or "donate".
    """
    if nums is None and names is None:  # as of most jitted functions; to ask for a signature takes a while
        return (), ()
    signature = signature_of(fun)
    given_nums, given_names = _indices(nums), _names(names)
    if signature is None:
        return given_nums, given_names
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p for p in signature.parameters.values() if p.kind in kinds]
    has_varargs = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in signature.parameters.values())
    if not has_varargs:
        for n in given_nums:
            if not -len(positional) <= n < len(positional):
                raise errors.ArgumentValueError(
                    f"Jitted function has {what}_argnums={given_nums}, but only accepts {len(positional)} positional "
                    f"arguments. {fun_name(fun)} has {', '.join(p.name for p in positional) or 'none'}"
                )
    has_kwargs = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())
    for name in given_names:
        known = signature.parameters.get(name)
        if known is not None and known.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
            raise errors.ArgumentValueError(
                f"Jitted function has invalid argnames {{{name!r}}} in {what}_argnames. These are positional-only: "
                f"{fun_name(fun)} takes {known} by position, so give {what}_argnums"
            )
        if known is None and not has_kwargs:
            raise errors.ArgumentValueError(
                f"Jitted function has invalid argnames {{{name!r}}} in {what}_argnames. Function does not take these "
                f"args. {fun_name(fun)} has {', '.join(signature.parameters) or 'none'}"
            )
    count = len(positional)
    nums_out = tuple(n % count if n < 0 and not has_varargs else n for n in given_nums)
    if nums is None:
        nums_out = tuple(i for i, p in enumerate(positional) if p.name in given_names)
    if names is None:
        given_names = tuple(
            positional[n].name for n in nums_out
            if 0 <= n < count and positional[n].kind is not inspect.Parameter.POSITIONAL_ONLY
        )  # fmt: skip
    return nums_out, given_names


def _indices(nums: Any) -> tuple[int, ...]:
    """Positions of arguments: one, which may be a number of NumPy's, or several; None for none."""
    if nums is None:
        return ()
    try:
        return (operator.index(nums),)
    except TypeError:
        return tuple(map(operator.index, nums))


def _names(names: Any) -> tuple[str, ...]:
    if names is None or isinstance(names, str):
        return as_tuple(names)
    found = tuple(names)
    for name in found:
        if not isinstance(name, str):
            raise errors.ArgumentTypeError(
                f"argument is not a string: {name!r} of type {type(name).__name__}, among the names {names!r}"
            )
    return found


def parameters_alone(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A function that has the parameters of `fun` and does not refer to it (but to an operation of the library)."""
    attributes = getattr(fun, "__dict__", {})
    if "operation" in attributes:
        return fun
    if type(fun) is FunctionType and "__wrapped__" not in attributes and "__signature__" not in attributes:
        return _of_code(fun.__code__)
    signature = signature_of(fun)

    def stand_in(*args: Any, **kwargs: Any) -> None:
        """Has a signature and does nothing."""

    if signature is not None:
        stand_in.__signature__ = signature  # type: ignore[attr-defined]  # as inspect.signature reads it
    return stand_in


@functools.lru_cache(maxsize=1024)
def _of_code(code: CodeType) -> FunctionType:
    """A function that has the parameters of the functions of this code; it is never called. Every trace asks."""
    return FunctionType(code, {}, closure=(CellType(),) * len(code.co_freevars))


class ArgumentNames:
    """The names of what a function takes, `in_tree` being the structure of `(args, kwargs)`; found when asked."""

    __slots__ = ("_fun", "_tree")

    def __init__(self, fun: Callable[..., Any], in_tree: Any):
        self._fun, self._tree = fun, in_tree

    def __call__(self) -> list[str]:
        return argument_paths(self._fun, self._tree)

    def outliving(self) -> ArgumentNames:
        """The same names, which do not keep the function alive."""
        return ArgumentNames(parameters_alone(self._fun), self._tree)


def result_paths(out_tree: Any) -> Callable[[], list[str]]:
    """Where each result stands in a function's result: `result`, `result[0]`, `result['loss']`; found when asked."""
    return lambda: ["result" + tree_util.keystr(path) for path in leaf_paths(out_tree)]


def argument_paths(fun: Callable[..., Any] | None, in_tree: Any, keywords: str = "{}") -> list[str]:
    """A name for every leaf of `(args, kwargs)`, such as `params['w'][0]`; `keywords` formats that of a keyword, which
    may be one of many that the function takes under one name, `others['scale']`."""
    places = leaf_paths(in_tree)
    signature = signature_of(fun) if fun is not None else None
    names: list[str] = []
    named: Collection[str] = () if signature is None else signature.parameters
    others = next((f"{n}[{{!r}}]" for n in named if _is_var_keyword(signature, n)), keywords)
    if signature is not None:
        for p in signature.parameters.values():
            if p.kind is inspect.Parameter.VAR_POSITIONAL:
                count = len(tree_util.treedef_children(tree_util.treedef_children(in_tree)[0]))
                if hasattr(fun, "operation"):  # an operation on arrays, called by itself
                    names += ["x", "y"] if count <= 2 else [f"{i}" for i in range(count)]
                names += [f"{p.name}[{i}]" for i in range(max(0, count - len(names)))]
                break
            if p.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
                names.append(p.name)
    paths = []
    for path in places:
        where, rest = path[0].idx, path[1:]
        if where == 0 and rest:
            index = rest[0].idx
            head = names[index] if index < len(names) else f"args[{index}]"
            paths.append(head + tree_util.keystr(rest[1:]))
        elif rest:
            form = keywords if rest[0].key in named or keywords != "{}" else others
            paths.append(form.format(rest[0].key) + tree_util.keystr(rest[1:]))
        else:
            paths.append("argument")
    return paths


def _is_var_keyword(signature: inspect.Signature | None, name: str) -> bool:
    return signature is not None and signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD


def check_argnums(fun: Callable[..., Any], argnums: Any, count: int) -> tuple[int, ...]:
    """`argnums` as positions among the `count` positional arguments of a call; raises for one outside."""
    nums = as_tuple(int(argnums) if isinstance(argnums, np.integer) else argnums)
    for n in nums:
        if not -count <= n < count:
            raise errors.ArgumentTypeError(
                f"differentiating with respect to argnums={argnums} requires at least {n + 1 if n >= 0 else -n} "
                f"positional arguments to be passed by the caller, but got only {count} positional arguments. Pass "
                f"those of {fun_name(fun)} that are differentiated by position"
            )
    return tuple(n % count for n in nums)


def split_aux(fun: Callable[..., Any], out: Any) -> tuple[Any, Any]:
    """The pair (value, aux) that a function differentiated with `has_aux` returned; raises for anything else."""
    if not isinstance(out, tuple) or len(out) != 2:
        raise errors.ArgumentTypeError(
            "expected function with aux output to return a two-element tuple, but got type "
            f"{type(out)} with value {out}: {fun_name(fun)} was differentiated with has_aux=True"
        )
    return out
