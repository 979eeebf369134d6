"""Eager evaluation: a primitive applied to arrays is a jitted function of one equation, cached by its parameters.

Functions of the library that apply several primitives, or think about their operands first, are one jitted function
each (`at_once`): a mean is one launch, not three, and what was thought once is not thought again.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from meshrt import config, heuristics
from meshrt.config import settings
from meshrt.core.naming import STATIONS
from meshrt.core.primitive import Primitive
from meshrt.core.references import is_ref
from meshrt.core.source import replayed_compute
from meshrt.core.trace import EVAL, EvalTrace, current_trace
from meshrt.core.tracebacks import is_boundary, strip
from meshrt.jit import JitFunction, jit, operation
from meshrt.pipeline.structures import UNKNOWN, unknown
from meshrt.runtime.array import Array
from meshrt.runtime.transfer import SCALARS, scalar_beside
from meshrt.sharding._state import context as mesh_context
from meshrt.sharding.mesh import AxisType
from meshrt.sharding.named import NamedSharding

__all__ = ["at_once", "evaluate"]

_functions: dict[Any, Any] = {}
# Those of loops, branches and other primitives over Jaxprs, least recently used first. A function written inside
# another is a new one, and a new Jaxpr, on every call, so these must not be kept for ever.
_over_jaxprs: OrderedDict[Any, Any] = OrderedDict()
_lock = threading.Lock()


def evaluate(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """Runs a primitive on arrays, NumPy values and Python scalars."""
    args, places = _on_one_device(args), None
    table = _functions if primitive.cache_types else _over_jaxprs
    if table is _over_jaxprs:
        args, places = _each_once(args)
    key = (primitive, tuple(params.items()), places)
    function = table.get(key)
    if function is None:
        if len(_functions) >= heuristics.KEPT_OPERATIONS:
            with _lock:
                for old in list(_functions)[: heuristics.KEPT_OPERATIONS // 2]:
                    _functions.pop(old, None)
        function = table[key] = _compiled(primitive, params, places)
    if table is _over_jaxprs:
        with _lock:  # another thread may drop the entry
            _over_jaxprs[key] = function
            _over_jaxprs.move_to_end(key)
            if len(_over_jaxprs) > heuristics.KEPT_OVER_JAXPRS:
                _over_jaxprs.popitem(last=False)
    asked = replayed_compute()
    if asked is not None and asked != (config.settings.compute_type or ""):
        with config.override(compute_type=asked or None):  # as the operation that is replayed was
            return function(*args)
    if config.settings.disable_jit:  # single operations are compiled all the same
        with config.override(disable_jit=False):
            return function(*args)
    return function(*args)


def _on_one_device(args: Sequence[Any]) -> Sequence[Any]:
    """Scalars beside an array of one device as arrays there, so that the call takes the short way."""
    for a in args:
        if isinstance(a, SCALARS):
            break
    else:
        return args
    for a in args:
        if type(a) is Array:
            if a._sig.sharding.num_devices > 1:
                return args
            return [scalar_beside(x, a) if isinstance(x, SCALARS) else x for x in args]
    return args


def _each_once(args: Sequence[Any]) -> tuple[Sequence[Any], tuple[int, ...] | None]:
    """Operands with each reference once, as a function takes it, and which of them each operand is; None for all in
    order. Condition and body of a loop may have one reference."""
    refs = [id(a) for a in args if is_ref(a)]
    if len(refs) == len(set(refs)):
        return args, None
    found: list[Any] = []
    places = []
    for a in args:
        at = next((i for i, b in enumerate(found) if b is a), None) if is_ref(a) else None
        places.append(len(found) if at is None else at)
        if at is None:
            found.append(a)
    return found, tuple(places)


def _compiled(primitive: Primitive, params: dict[str, Any], places: Sequence[int] | None) -> Any:
    def apply(*operands: Any) -> Any:
        given = operands if places is None else [operands[i] for i in places]
        return primitive.bind(*given, **params)

    apply.__name__ = apply.__qualname__ = primitive.name
    apply.operation = primitive  # type: ignore[attr-defined]  # whose program this is
    return operation(apply)


# ----------------------------------------------------------------------------------------------------------------------
# Whole functions.

F = TypeVar("F", bound=Callable[..., Any])

# Arguments that say what a function does, of which a program has few; a number among them would be a value.
_CHOICES = frozenset(["axis", "axes", "correction", "ddof", "dtype", "keepdims", "out", "precision"])
_VALUES = (float, complex)

_overrides = settings.overrides
_tables: list[dict[Any, Any]] = []


class _Untried:
    """Stands for the jitted function of a function that has not been called yet."""

    class _driver:
        short = staticmethod(unknown)


def at_once(operands: int, choices: Collection[str] = (), numbers: bool = False) -> Callable[[F], F]:
    """Decorates a function of the library that takes so many arrays first, and does not look at their values.

    An eager call on arrays of one device or of Auto axes, with nothing beside them but choices such as an axis, runs
    one program. Any other call calls the function. `choices` are further parameters, of this function, that are
    choices: a program is made for each value of theirs. With `numbers` the operands may also be Python numbers.
    """
    choices = frozenset(choices)
    fits = _is_operand if numbers else _is_simple_array

    def decorate(function: F) -> F:
        plain: Any = _Untried
        chosen: dict[Any, JitFunction] = {}
        _tables.append(chosen)

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            try:
                if current_trace() is not EVAL:
                    return function(*args, **options)
                try:
                    is_plain = not options and len(args) == operands
                    jitted = plain if is_plain else chosen.get(_choice(args[operands:], options), _Untried)
                except TypeError:  # what cannot be hashed is no choice
                    return function(*args, **options)
                if _overrides() is not None:
                    return begin(args, options)
                out = jitted._driver.short(args[:operands], settings.version, mesh_context.key)
                return out if out is not UNKNOWN else begin(args, options)
            except Exception as e:
                strip(e)
                raise

        def begin(args: tuple[Any, ...], options: dict[str, Any]) -> Any:
            """A call that is not ready to run: the first two of their kind, those under settings of a context, which
            the table of what is ready does not know, and all that take no program."""
            nonlocal plain
            if not _is_whole(function, operands, choices, fits, args, options):
                return function(*args, **options)
            arrays, rest = args[:operands], args[operands:]
            if rest or options:
                return _program(function, chosen, rest, options)(*arrays)
            plain = operation(function) if plain is _Untried else plain
            return plain(*arrays)

        @functools.wraps(function)
        def call_unary(x: Any, /) -> Any:  # the same in less time, for elementwise functions
            try:
                if current_trace() is not EVAL:
                    return function(x)
                if _overrides() is not None:
                    return begin((x,), {})
                out = plain._driver.short((x,), settings.version, mesh_context.key)
                return out if out is not UNKNOWN else begin((x,), {})
            except Exception as e:
                strip(e)
                raise

        unary = operands == function.__code__.co_posonlyargcount == function.__code__.co_argcount == 1
        chosen_call = call_unary if unary else call
        vars(chosen_call).update({s: functools.partial(_as_jitted, function, choices, s) for s in STATIONS})
        return is_boundary(chosen_call)  # type: ignore[return-value]  # it takes what `function` does

    return decorate


def _program(
    function: Any, known: dict[Any, JitFunction], rest: tuple[Any, ...], options: dict[str, Any]
) -> JitFunction:  # fmt: skip
    """The jitted function for these choices. The table forgets all where it is full."""
    key = _choice(rest, options)
    found = known.get(key)
    if found is None:
        if len(known) >= heuristics.KEPT_OVER_JAXPRS:
            known.clear()
        found = known[key] = operation(_with(function, rest, options))
    return found


def _as_jitted(function: Any, choices: Collection[str], station: str, *args: Any, **options: Any) -> Any:
    """What a method of the jitted function gives: whoever exports or lowers functions needs not jit these first."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount + function.__code__.co_kwonlyargcount]
    static = [n for n in names if n in choices or n in _CHOICES]
    return getattr(jit(function, static_argnames=static), station)(*args, **options)


def _choice(rest: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    """What tells choices apart: their types as well, as 1 equals True and 1.0."""
    values = (*rest, *options.values())
    kinds = tuple(map(type, values))
    if tuple in kinds:
        kinds += tuple(type(x) for value in values if type(value) is tuple for x in value)
    return (*options, values, kinds)


def _is_whole(
    function: Any, operands: int, choices: Collection[str], fits: Callable[[Any], bool], args: tuple[Any, ...],
    options: dict[str, Any],
) -> bool:  # fmt: skip
    names = function.__code__.co_varnames[operands : function.__code__.co_argcount]
    arrays, rest = args[:operands], args[operands:]
    chosen = [*zip(names, rest), *options.items()]
    return (
        len(arrays) == operands
        and len(rest) <= len(names)
        and all(map(fits, arrays))
        and all(name in choices or (name in _CHOICES and not isinstance(value, _VALUES)) for name, value in chosen)
        # Each operation is looked at, or run, by itself.
        and not (settings.debug_nans or settings.debug_infs or settings.debug_key_reuse or settings.disable_jit)
    )


def _is_simple_array(x: Any) -> bool:
    """In the usual memory, on one device or a mesh along which propagation decides, which then sees the whole function.
    Elsewhere operations lay out and place their results one by one."""
    if type(x) is not Array:
        return False
    sharding = x._sig.sharding
    if not sharding.is_in_default_memory:
        return False
    return sharding.num_devices == 1 or (type(sharding) is NamedSharding and {*sharding.mesh.axis_types} == _AUTO)


_AUTO = {AxisType.Auto}


def _is_operand(x: Any) -> bool:
    return _is_simple_array(x) or type(x) is float or (type(x) is int and x.bit_length() <= 31)


def _with(function: Callable[..., Any], rest: tuple[Any, ...], options: dict[str, Any]) -> Callable[..., Any]:
    def applied(*arrays: Any) -> Any:
        return function(*arrays, *rest, **options)

    applied.__name__ = applied.__qualname__ = function.__name__
    return applied


def clear() -> None:
    """Forgets the compiled primitives and functions of the library."""
    clear_primitives()
    for table in _tables:
        table.clear()


def clear_primitives() -> None:
    """Forgets the compiled primitives."""
    _functions.clear()
    _over_jaxprs.clear()


def primitives_ready() -> int:
    """How many primitives, each with parameters of its own, have been applied one by one since they were forgotten."""
    return len(_functions) + len(_over_jaxprs)


EvalTrace.evaluate = staticmethod(evaluate)
