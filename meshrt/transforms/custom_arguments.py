"""Arguments of functions with custom derivatives: positions, non-differentiable ones, zeros, checks shared by both."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshrt import dtypes, errors, tree_util
from meshrt.core.basic.parts import batch_front, in_front
from meshrt.core.basic.shapes import no_derivatives, zeros
from meshrt.core.high import unlike
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.source import is_internal
from meshrt.core.trace import EvalTrace, Tracer
from meshrt.core.types import ShapedArray, aval_of
from meshrt.transforms.arguments import ArgumentNames, StaticValue, signature_of
from meshrt.transforms.batching import MappedAxis, batch_jaxpr

__all__ = [
    "CustomFunction",
    "MappableRule",
    "SymbolicZero",
    "batched_call",
    "evaluated_call",
    "instantiate_zero",
    "nondiff_positions",
    "positional",
    "split_arguments",
    "type_mismatch",
    "zero_from_primal",
]


class SymbolicZero:
    """Stands for a tangent or cotangent that is zero, in rules defined with `symbolic_zeros=True`."""

    __slots__ = ("aval",)

    def __init__(self, aval: ShapedArray):
        self.aval = aval

    shape = property(lambda self: self.aval.shape)
    dtype = property(lambda self: self.aval.dtype)
    ndim = property(lambda self: self.aval.ndim)
    size = property(lambda self: self.aval.size)
    weak_type = property(lambda self: self.aval.weak_type)

    def __repr__(self) -> str:
        return "SymbolicZero"

    def instantiate(self) -> Any:
        """An array of zeros."""
        return instantiate_zero(self.aval)


class CustomFunction:
    """A function with rules of its own. Where one is put around another it takes that one's rules as well."""

    def __getattr__(self, name: str) -> Any:
        inner = self.__dict__.get("fun")
        if isinstance(inner, CustomFunction) and not name.startswith("__"):
            return getattr(inner, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class MappableRule:
    """A rule that remembers its batched forms, so that equal requests give the same object (a parameter of Jaxprs)."""

    __slots__ = ("_batched_forms",)

    batched_class: Any
    _batched_forms: dict[tuple[MappedAxis, tuple[bool, ...]], Any]

    @property
    def written(self) -> Any:
        """The rule as the user wrote it, of which this may be a batched form."""
        rule: Any = self
        while hasattr(rule, "rule"):
            rule = rule.rule
        return rule

    @property
    def is_library(self) -> bool:
        """Whether the rule is not one of the user's own."""
        function = inspect.unwrap(self.written.function)
        while isinstance(function, functools.partial):
            function = inspect.unwrap(function.func)
        code = getattr(function, "__code__", None)
        return code is not None and is_internal(code)

    def mapped(self, axis: MappedAxis, batched: tuple[bool, ...]) -> Any:
        """The rule over a leading dimension `axis` in the flagged arguments."""
        try:
            forms = self._batched_forms
        except AttributeError:
            forms = self._batched_forms = {}
        found = forms.get((axis, batched))
        if found is None:
            found = forms[axis, batched] = self.batched_class(self, axis, batched)
        return found


def instantiate_zero(aval: ShapedArray) -> Any:
    """Zeros of a (co)tangent type; those of integers are arrays of float0."""
    return no_derivatives(aval.shape) if has_no_derivative(aval) else zeros(aval)


def has_no_derivative(aval: Any) -> bool:
    """Whether a (co)tangent type is that of values without derivatives."""
    return bool(not aval.is_high and aval.dtype == dtypes.float0)


def zero_from_primal(val: Any, symbolic_zeros: bool = False) -> Any:
    """A zero tangent for each array of a pytree: zeros, of dtype float0 for integers, or `SymbolicZero`.

    >>> meshrt.custom_derivatives.zero_from_primal(jnp.ones(2))
    Array([0., 0.], dtype=float32)
    """
    zero = SymbolicZero if symbolic_zeros else instantiate_zero
    return tree_util.tree_map(lambda x: zero(aval_of(x).to_tangent_aval()), val)


def nondiff_positions(fun: Callable[..., Any], nums: Sequence[int], names: Iterable[str]) -> tuple[int, ...]:
    """The positions of non-differentiable arguments given by number and by name."""
    found: set[int] = {nums} if isinstance(nums, int) else set(nums)
    if isinstance(names, str):
        names = (names,)
    signature = signature_of(fun)
    for name in names:
        parameters = list(signature.parameters) if signature is not None else []
        if name not in parameters:
            raise errors.ArgumentValueError(
                f"nondiff_argnames has {name!r}, which is no parameter of {fun}; its parameters are "
                f"{', '.join(parameters)}"
            )
        found.add(parameters.index(name))
    if any(n < 0 for n in found):
        raise errors.ArgumentValueError(f"nondiff_argnums must be nonnegative, got {sorted(found)}")
    return tuple(sorted(found))


def positional(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], kind: str) -> tuple[Any, ...]:
    """All arguments by position, defaults filled in; `kind` is what decorates the function."""
    signature = signature_of(fun)
    if signature is None:
        if kwargs:
            raise errors.ArgumentTypeError(
                f"{fun} has no signature to look keyword arguments up in; pass them by position"
            )
        return args
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as e:
        raise errors.ArgumentTypeError(f"{_unbound(fun, kind)}: {e}") from None
    bound.apply_defaults()
    if bound.kwargs:
        raise errors.ArgumentTypeError(
            f"{_unbound(fun, kind)}: The following keyword arguments could not be resolved to positions: "
            f"{', '.join(bound.kwargs)}. Keyword-only arguments cannot be passed to a function with custom derivatives"
        )
    return bound.args


def _unbound(fun: Callable[..., Any], kind: str) -> str:
    return (
        f"The input arguments to the {kind}-decorated function {getattr(fun, '__name__', fun)} could not be resolved "
        "to positional-only arguments. Binding failed with the error"
    )


NO_KEYWORDS = tree_util.tree_structure({})


class SplitArguments(NamedTuple):
    """Arguments cut into non-differentiable ones (`fixed`, at `positions`) and the `dynamic` rest."""

    fixed: tuple[Any, ...]
    positions: tuple[int, ...]
    dynamic: tuple[Any, ...]

    def join(self, dynamic: Sequence[Any]) -> list[Any]:
        """All arguments in their places, with these for the dynamic ones."""
        rest, fixed = iter(dynamic), dict(zip(self.positions, self.fixed))
        return [fixed[i] if i in fixed else next(rest) for i in range(len(dynamic) + len(fixed))]

    def paths(self, fun: Callable[..., Any], dynamic: Any, keywords: Any = NO_KEYWORDS) -> Callable[[], Sequence[str]]:
        """What messages call the leaves of the arguments: `dynamic` is the structure of the tuple of dynamic ones."""
        none = tree_util.tree_structure(None)
        rest = SplitArguments((none,) * len(self.fixed), self.positions, ())
        full = tree_util.treedef_tuple(rest.join(tree_util.treedef_children(dynamic)))
        return ArgumentNames(fun, tree_util.treedef_tuple([full, keywords]))

    @property
    def cache_key(self) -> Any:
        """A key for programs staged with these fixed arguments; None if they had better not be kept."""
        return tuple(map(StaticValue, self.fixed)) if all(map(_is_plain, self.fixed)) else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | bytes | np.dtype)


def split_arguments(args: Sequence[Any], positions: Sequence[int]) -> SplitArguments:
    positions = tuple(p for p in positions if p < len(args))
    fixed = tuple(args[p] for p in positions)
    return SplitArguments(fixed, positions, tuple(a for i, a in enumerate(args) if i not in positions))


def refuse_tracers(fixed: Sequence[Any], name: str, kind: str) -> None:
    """Non-differentiable arguments must not be traced."""
    for leaf in tree_util.tree_leaves(list(fixed)):
        if isinstance(leaf, Tracer):
            raise errors.LeakedTracerError(
                f"Found a JAX Tracer object passed as an argument to a {kind} function in a position indicated by "
                "nondiff_argnums as non-differentiable. Tracers cannot be passed as non-differentiable arguments to "
                f"{kind} functions; those are for values that are no arrays, such as functions. {name} was given a "
                f"traced value of type {leaf.aval.short()}: pass arrays as ordinary arguments and return None or zeros "
                "for them in the rule"
            )


def type_mismatch(got: ShapedArray, want: ShapedArray) -> bool:
    """Whether two types differ, weakness aside."""
    return unlike(got, want)


def leaf_aval(leaf: Any, where: str) -> ShapedArray:
    """The type of a leaf that a user's rule returned."""
    if isinstance(leaf, SymbolicZero):
        return leaf.aval
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype == dtypes.float0:
        return ShapedArray(leaf.shape, dtypes.float0)
    try:
        return aval_of(leaf)
    except TypeError as e:
        raise errors.ArgumentTypeError(f"{where}: {e}") from None


def mapped_in_front(trace: Any, value: Any) -> Any:
    """A batch that has its members in front, as one of them in `trace`. None, a zero tangent, is one."""
    if value is None:
        return None
    kind: Any = aval_of(value)
    # A batch of high values is laid out as its members' type says, which is that of the batch in this.
    return trace.wrap(value, batch_front(kind))


def lower_call(ctx: Any, eqn: Eqn, *operands: Any) -> Any:
    """The lowering of such a call: a library's function stands at the line that calls it."""
    rule = eqn.params["rule"]
    return ctx.jaxpr(eqn.params["call_jaxpr"], operands, at=eqn.source if rule.is_library else None)


def batched_call(primitive: Callable[[], Primitive]) -> Callable[..., Any]:
    """The batching rule of `primitive()`, a call `[call_jaxpr num_consts rule] consts... arguments...`: function and
    rule are mapped, all results too."""

    def batch(axis: MappedAxis, args: Sequence[Any], dims: Sequence[int | None], params: dict[str, Any]) -> Any:
        args = [a if d is None else in_front(axis.extent, a, d) for a, d in zip(args, dims)]
        batched = tuple(d is not None for d in dims)
        closed, _ = batch_jaxpr(params["call_jaxpr"], axis, batched, True)
        num_consts = params["num_consts"]
        mapped = params["rule"].mapped(axis, batched[num_consts:])
        outs = primitive().bind(
            *closed.consts, *args, call_jaxpr=closed.jaxpr, num_consts=len(closed.consts) + num_consts, rule=mapped
        )
        return outs, [batch_front(a) for a in params["call_jaxpr"].out_avals]

    return batch


class _Unasked(NamedTuple):
    """Stands for the rule of a call on arrays: no derivative is taken of it any more."""

    name: str
    is_library: bool


def evaluated_call(primitive: Callable[[], Primitive]) -> Callable[..., Any]:
    """The evaluation of `primitive()` on arrays. Operations are kept with their parameters, and a rule may close over
    anything, so it is no parameter here: what it closes over lives no longer than it."""

    def evaluate(*args: Any, rule: Any, **params: Any) -> Any:
        known = _Unasked(getattr(rule, "name", ""), rule.is_library)
        return EvalTrace.on_arrays(primitive(), args, {**params, "rule": known})

    return evaluate
