"""`jit`: the face of the pipeline, and the primitive for a jitted function inside another.

A call that was seen before runs at once: its key leads to an `Entry`. Any other call takes the road of
`meshrt.pipeline`, whose driver owns all caches.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import errors, staging
from meshrt.config import settings
from meshrt.core.basic.varying import into_branch
from meshrt.core.jaxpr import Literal
from meshrt.core.leaks import leaked as leaked_error
from meshrt.core.naming import take_names
from meshrt.core.source import capture, user_stacklevel
from meshrt.core.trace import EVAL, Tracer, current_trace, eval_jaxpr
from meshrt.core.tracebacks import boundary, strip
from meshrt.core.types import aval_of, require_value
from meshrt.pipeline.box_contents import CLOSED_OVER, ClosesOver, check_aliases, finished
from meshrt.pipeline.donation import donated_leaves
from meshrt.pipeline.entry import Entry
from meshrt.pipeline.lowered import Lowered
from meshrt.pipeline.misses import CacheMiss
from meshrt.pipeline.options import JitOptions, compiler_option_items
from meshrt.pipeline.requested import is_sharding
from meshrt.pipeline.road import NoRoad
from meshrt.pipeline.sharing import driver_for
from meshrt.pipeline.staged import APART, type_alone, types_alone
from meshrt.pipeline.static_arguments import NO_STATIC, WEAKLY_HELD, Static, bound, incomparable, split, unhashable
from meshrt.pipeline.structures import UNKNOWN, caller
from meshrt.pipeline.traced import Traced
from meshrt.primitives.call import call_jaxpr
from meshrt.primitives.device_put import device_put
from meshrt.primitives.sharding import constrain
from meshrt.primitives.traced_scalars import as_traced
from meshrt.runtime.array import Array
from meshrt.runtime.reference import Ref
from meshrt.runtime.transfer import overflow
from meshrt.sharding._state import context as mesh_context
from meshrt.sharding.layout import AUTO, Layout
from meshrt.sharding.spec import PartitionSpec
from meshrt.transforms.arguments import (
    argument_paths,
    as_tuple,
    fun_name,
    not_an_argument,
    require_function,
    resolve_argnums,
    signature_of,
)
from meshrt.transforms.high import flatten, taken_apart
from meshrt.transforms.references import check_distinct
from meshrt.transforms.staged import told_places
from meshrt.tree_util import tree_flatten, tree_leaves, tree_map, tree_unflatten
from meshrt.xla.jaxlib_api import pytree_registry

__all__ = ["JitFunction", "explain_cache_miss", "jit", "operation"]

_flatten = pytree_registry.flatten
_overrides = settings.overrides


class JitFunction:
    """A function that is traced, lowered, propagated, partitioned and compiled on its first call with given types."""

    def __init__(self, fun: Callable[..., Any], options: JitOptions):
        take_names(self, fun)
        self.fun, self.options = fun, options
        self.name = fun_name(fun)
        if "__name__" not in self.__dict__:  # a partial has the name of its function
            self.__name__ = self.name
        self._has_static = bool(options.static_argnums or options.static_argnames)
        self._driver = driver = driver_for(fun, self.name, options)
        self._calls = driver.calls
        self._version = settings.version

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        try:
            return f"<PjitFunction of {self.__dict__['__wrapped__']!r}>"
        except Exception:  # the repr of a user's object, or an object that was taken apart
            return "<PjitFunction>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.fun, self.options)

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of the function that is compiled."""
        return inspect.signature(self.fun)

    # -- calling -------------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:  # costs nothing where nothing is raised
            if current_trace() is not EVAL:
                return self._call_traced(args, kwargs)
            if kwargs or _overrides() is not None:
                return self._call_general(args, kwargs)
            out = self._driver.short(args, settings.version, mesh_context.key)
            return out if out is not UNKNOWN else self._call_general(args, kwargs)
        except Exception as e:
            strip(e)
            raise

    def _call_general(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The call with static or keyword arguments, values that are not our arrays, or types not seen before."""
        static, given = NO_STATIC, (args, kwargs)
        if self._has_static:
            args, kwargs, static = split(self.name, self.options, args, kwargs)
        arguments = (args, self._with_captured(kwargs))
        values = taken_apart(arguments)
        if values is not arguments:
            check_aliases(arguments, self.name)
        leaves, tree = _flatten(values)
        key = (static, tree, settings.dispatch_key(), mesh_context.key, *_signatures(leaves, tree, self, static))
        entry = self._lookup(key) or self._driver.call_in_other_context(key)
        if entry is not None:
            if not kwargs and not self._has_static and values is arguments and not settings.no_execution:
                self._shorten(args, leaves, entry, key)
        elif settings.disable_jit:
            return self.fun(*given[0], **given[1])
        else:
            self._drop_stale()
            try:
                entry = self._driver.new_call(key, leaves, tree, static)
            except ClosesOver as found:
                self._driver.captured += found.values
                return self._call_general(*given)
        if settings.no_execution:
            raise errors.ForbiddenExecutionError(
                f"{self.name} would run, but 'no_execution' is set: leave the block, or lower and compile only"
            )
        result = entry.result(leaves)
        return result if values is arguments else finished(result, arguments)

    def _with_captured(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Keyword arguments with the mutable values that the function closes over as one of them."""
        captured = self._driver.captured
        return {**kwargs, CLOSED_OVER: list(captured)} if captured else kwargs

    def _drop_stale(self) -> None:
        """Drops the calls known under settings that were changed since: no key says the same again."""
        if self._version != settings.version:
            self._version = settings.version
            self._driver.forget_calls()

    def _shorten(self, args: tuple, leaves: list[Any], entry: Entry, key: tuple) -> None:
        """Lets the next call like this second one take the short way: with code for its structure."""
        if _overrides() is not None or not all(type(x) is Array for x in leaves):
            return
        code = caller(_flatten(args)[1])
        if code is not None:
            # The version under which the entry was found: another thread may have changed a setting since.
            version, mesh = key[2:4]
            short_key = code.key(leaves, version, mesh)
            self._driver.direct[short_key] = entry.direct
            self._driver.short = code.calling(short_key, entry.usual, self._driver.direct)

    def _lookup(self, key: Any) -> Entry | None:
        try:
            return self._calls.get(key)
        except TypeError:
            raise unhashable(self.name, key[0]) from None
        except Exception as e:
            raise incomparable(self.name, key[0], e) from e

    # -- staging -------------------------------------------------------------------------------------------------------

    @boundary
    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Stages the function at the types of these arguments (arrays or ShapeDtypeStructs).

        They may lie on different devices; then `lower` raises what a call would.
        """
        try:
            return self._traced(args, kwargs)
        except APART as e:
            why = e
        leaves, tree = tree_flatten((args, kwargs))
        try:  # over the names of one mesh the trace is that of the attempt
            traced = self._traced(*tree_unflatten(tree, types_alone(leaves)))
            return Traced(traced.record, traced.request, NoRoad(why.with_traceback(None)))
        except (errors.ShardingError, errors.MeshError):
            raise why from None
        finally:
            del why  # its traceback leads to the arguments, which nothing is to keep

    def _traced(self, args: Any, kwargs: Any) -> Traced:
        static = NO_STATIC
        if self._has_static:
            args, kwargs, static = split(self.name, self.options, args, kwargs)
        leaves, tree = _flatten(taken_apart((args, self._with_captured(kwargs))))
        try:
            return self._driver.traced(leaves, tree, static)
        except ClosesOver as found:
            self._driver.captured += found.values
            leaves, tree = _flatten(taken_apart((args, self._with_captured(kwargs))))
            return self._driver.traced(leaves, tree, static)

    @boundary
    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """`trace(*args, **kwargs).lower()`."""
        return self.trace(*args, **kwargs).lower()

    @boundary
    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The types of the results, wherever the arguments lie."""
        if staging.are_apart((args, kwargs)):
            args, kwargs = tree_map(type_alone, (args, kwargs))
        return self.trace(*args, **kwargs).out_info

    def _explain(self, *args: Any, **kwargs: Any) -> CacheMiss:
        static = NO_STATIC
        if self._has_static:
            args, kwargs, static = split(self.name, self.options, args, kwargs)
        leaves, tree = _flatten(taken_apart((args, self._with_captured(kwargs))))
        signatures = [getattr(x, "_sig", None) or aval_of(x) for x in leaves]
        key = (static, tree, settings.dispatch_key(), mesh_context.key, *signatures)
        return self._driver.explain(key, leaves, tree, static)

    def clear_cache(self) -> None:
        """Forgets every trace and everything derived from it, also for other jitted functions of the same function."""
        self._driver.clear()

    def _cache_size(self) -> int:
        """How many calls are ready to run; JAX's name, which scripts use to count compilations."""
        return len(self._calls)

    # -- inside another trace ------------------------------------------------------------------------------------------

    def _call_traced(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        if settings.disable_jit:
            return self.fun(*args, **kwargs)
        static = NO_STATIC
        if self._has_static:
            args, kwargs, static = split(self.name, self.options, args, kwargs)
        leaves, tree = flatten((args, kwargs))
        leaves = into_branch(leaves)
        given = leaves
        leaves = self._constrain_arguments(leaves, tree)
        if self.options.compiler_options:
            raise errors.ArgumentValueError(
                f"`compiler_options` can only be passed to top-level `meshrt.jit`. Got compiler_options="
                f"{dict(self.options.compiler_options)} for {self.name}, which is called inside another program at "
                f"{capture()}: one program is compiled with one set of options, so give them to the outermost jit"
            )
        driver = self._driver
        jaxpr, consts, out_tree = told_places(
            given, lambda types: driver.nested_jaxpr(tuple(types), tree, static), asks=driver.shared.are_placed
        )
        if jaxpr.effects:
            check_distinct("jit", self.name, leaves, consts, lambda: argument_paths(bound(self.fun, static), tree))
        if self.options.inline:
            outs = [_as_array(x, a) for x, a in zip(eval_jaxpr(jaxpr, (), [*consts, *leaves]), jaxpr.outvars)]
        else:
            donated = [*[False] * len(consts), *donated_leaves(self.options, tree, static)]
            outs = call_jaxpr(jaxpr, self.name, [*consts, *leaves], donated, self.options.keep_unused)
        result = out_tree.unflatten(outs)
        if self.options.out_shardings is None:
            return result
        return constrain(result, self.options.out_shardings, f"result of {self.name}", f"out_shardings of {self.name}")

    def _constrain_arguments(self, leaves: list[Any], tree: Any) -> list[Any]:
        if self.options.place is not None:
            return device_put(leaves, self.options.place)
        if self.options.in_shardings is None:
            return leaves
        args, kwargs = tree.unflatten(leaves)
        args = constrain(args, self.options.in_shardings, f"args of {self.name}", f"in_shardings of {self.name}")
        return flatten((args, kwargs))[0]


# Programs tell compiled functions from others by the name of their type, which is JAX's.
PjitFunction = JitFunction
JitFunction.__name__ = JitFunction.__qualname__ = "PjitFunction"


def _check_shardings(given: str, shardings: Any) -> None:
    """ArgumentTypeError for what is no sharding, ArgumentValueError for a layout alone, ShardingError for a sharding
    that leaves dimensions of arguments open."""
    for leaf in tree_leaves(shardings, is_leaf=is_sharding):
        if not is_sharding(leaf):
            raise errors.ArgumentTypeError(
                f"{given} leaf specifications are expected to be PartitionSpec instances or None, but got {leaf}; "
                "Shardings and Formats are taken as well"
            )
        if isinstance(leaf, Layout) or leaf is AUTO:
            raise errors.ArgumentValueError(
                "`jit` does not accept device-local layouts directly. Create a `Format` instance wrapping this "
                f"device-local layout and pass that to `jit` instead. Got {leaf} in {given}"
            )
        spec = leaf if isinstance(leaf, PartitionSpec) else getattr(leaf, "spec", None)
        if spec is not None and PartitionSpec.UNCONSTRAINED in spec.partitions:
            raise errors.ShardingError(
                f"Unconstrained dims are not allowed when passed to {given}: {leaf}. Give None in place of the spec to "
                "leave all dimensions open, or say how each one is split"
            )


def _trace_limit(limit: Any) -> int | None:
    if limit is not None and (type(limit) is not int or limit < 1):
        raise errors.ArgumentValueError(f"jit: max_traces must be a whole number of at least 1, or None. Got {limit!r}")
    return limit


def explain_cache_miss(fun: Any) -> Callable[..., CacheMiss]:
    """Says what a call of the jitted function `fun` would have to make anew, and why; nothing is made.

    `explain_cache_miss(f)(*args, **kwargs)` gives a `CacheMiss`: the `layer` ("trace", "lower", "compile", "load" or
    "dispatch"; None for a call that is known), the `components` that differ from the most alike earlier call, and the
    line of that call. Arguments are arrays or ShapeDtypeStructs.

    With `config.update("explain_cache_misses", True)` each miss of a user's function is logged.

    >>> import numpy as np, meshrt
    >>> double = meshrt.jit(lambda x: 2 * x)
    >>> y = double(np.ones(3, np.float32))
    >>> meshrt.explain_cache_miss(double)(np.ones(4, np.float32)).components
    ('shape',)

    Raises:
      ArgumentTypeError: `fun` was not made by `jit`.
    """
    if not isinstance(fun, JitFunction):
        raise errors.ArgumentTypeError(
            f"explain_cache_miss takes a function that jit made, got {type(fun).__name__}; write "
            "explain_cache_miss(jit(f))(*args), with the same jit(f) that is called"
        )
    return boundary(fun._explain)


def _signature(x: Any) -> Any:
    if type(x) is Array or type(x) is Ref:  # where they lie as well
        return x._sig
    if isinstance(x, Tracer):
        raise leaked_error(x)
    require_value(x, "an argument")
    aval = aval_of(x)
    if type(x) is int and x.bit_length() > 31 and not np.can_cast(np.min_scalar_type(x), aval.dtype):
        raise overflow(x, aval.dtype)  # before the function is traced
    return aval


def _signatures(leaves: Sequence[Any], tree: Any, function: JitFunction, static: Static) -> list[Any]:
    """The part of the key that stands for the arguments; names the first one that is not an array."""
    try:
        return [x._sig for x in leaves]
    except AttributeError:
        pass  # Python scalars, NumPy arrays, leaked tracers, what is no array at all
    out = []
    for i, x in enumerate(leaves):
        try:
            out.append(_signature(x))
        except (errors.ArgumentTypeError, errors.IntegerOverflowError) as e:
            path = argument_paths(bound(function.fun, static), tree)[i]
            raise not_an_argument(function.fun, x, path, e) from None
    return out


def jit(
    fun: Callable[..., Any] | None = None,
    /,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: Any = None,
    static_argnames: Any = None,
    donate_argnums: Any = None,
    donate_argnames: Any = None,
    keep_unused: bool = False,
    device: Any = None,
    backend: str | None = None,
    inline: bool = False,
    compiler_options: dict[str, Any] | None = None,
    max_traces: int | None = None,
) -> Any:
    """Compiles `fun` on its first call with arguments of given types and shardings; later calls run that program.

    Args:
      fun: a function of pytrees of arrays (and static arguments); omitted, `jit` is a decorator factory.
      in_shardings, out_shardings: pytree prefixes of NamedShardings, PartitionSpecs (of the mesh in context) or None,
        which leaves the choice to the arguments and to propagation.
      static_argnums, static_argnames: arguments that are Python values; each new value means a new trace.
      donate_argnums, donate_argnames: arguments whose buffers may be reused for results; they are deleted by the call.
      keep_unused: arguments that nothing depends on are passed to the program all the same.
      device, backend: the one device that the function runs on, wherever its arguments lie; of a platform the first of
        this process. Deprecated, with a warning, as in JAX: `device_put` what the function is given.
      inline: whether the operations, not a call of them, stand in programs that call the function.
      compiler_options: XLA options for this function, which then cannot be called inside another program.
      max_traces: how often the function may be traced. A call that would trace it once more raises RetraceError, which
        says what differs from which earlier call (as `explain_cache_miss` does). `clear_cache` begins anew.

    >>> import meshrt, meshrt.numpy as jnp
    >>> double = meshrt.jit(lambda x: 2 * x)
    """
    if fun is None:
        return functools.partial(
            jit, in_shardings=in_shardings, out_shardings=out_shardings, static_argnums=static_argnums,
            static_argnames=static_argnames, donate_argnums=donate_argnums, donate_argnames=donate_argnames,
            keep_unused=keep_unused, device=device, backend=backend, inline=inline, compiler_options=compiler_options,
            max_traces=max_traces,
        )  # fmt: skip
    require_function(fun)
    if device is not None or backend is not None:
        warnings.warn(
            "backend and device argument on jit is deprecated: put what the function is given onto the device instead, "
            'device_put(x, local_devices(backend="cpu")[0])', DeprecationWarning, stacklevel=user_stacklevel(),
        )  # fmt: skip
    if device is not None and backend is not None:
        raise errors.ArgumentValueError(f"can't specify both a device and a backend for jit: {device} and {backend}")
    for given, shardings in (("in_shardings", in_shardings), ("out_shardings", out_shardings)):
        if shardings is None:
            continue
        if device is not None or backend is not None:
            raise errors.ArgumentValueError(
                f"If backend or device is specified on jit, then {given} should not be specified: shardings say where "
                "the program runs"
            )
        _check_shardings(given, shardings)
    nums, names = resolve_argnums(fun, static_argnums, static_argnames)
    if donate_argnames and signature_of(fun) is None:
        raise errors.ArgumentValueError(
            f"Getting the signature of function {fun_name(fun)} failed. Pass donate_argnums instead of donate_argnames."
        )
    donated, donated_names = resolve_argnums(fun, donate_argnums, donate_argnames, "donate")
    overlap = set(nums) & set(donated)
    named = sorted(set(names) & set(donated_names))
    if overlap or named:
        kind = "argnames" if named else "argnums"
        raise errors.ArgumentValueError(
            f"static_{kind} and donate_{kind} cannot intersect, but arguments {named or sorted(overlap)} of "
            f"{fun_name(fun)} are in both: what is static is in no buffer"
        )
    options = compiler_option_items(compiler_options)
    return JitFunction(
        fun,
        JitOptions(
            in_shardings,
            out_shardings,
            nums,
            names,
            as_tuple(donated),
            as_tuple(donated_names),
            keep_unused,
            options,
            device,
            backend,
            _trace_limit(max_traces),
            bool(inline),
        ),
    )


def operation(fun: Callable[..., Any]) -> JitFunction:
    """`jit(fun)` for a function of the library that stands for one operation: its results lie where its operands do."""
    return JitFunction(fun, JitOptions(is_operation=True))


def _unpickled(fun: Callable[..., Any], options: JitOptions) -> JitFunction:
    """What `pickle` makes of a jitted function: it is traced and compiled again where it is called."""
    return JitFunction(fun, options)


def _as_array(value: Any, atom: Any) -> Any:
    """A result of a function written in place: one that is a literal there has an array's methods here."""
    if type(atom) is not Literal:
        return value
    return as_traced(value if atom.aval.weak_type else np.asarray(value, atom.aval.dtype)[()])


staging.Jitted.of = staticmethod(lambda fun: jit(fun) if type(fun) in WEAKLY_HELD else None)
