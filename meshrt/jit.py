"""`jit`: the caches in front of the pipeline, and the primitive for a jitted function inside another.

    dispatch cache   (argument structure, signature of every leaf, settings, context)  ->  an Entry, ready to run
    trace cache      (structure, types, static arguments, settings, abstract mesh)     ->  TraceRecord
    lowering         kept by the TraceRecord, keyed by shardings over the AbstractMesh ->  Lowered
    program          kept by the Lowered, keyed by settings and options                ->  Program (no devices)
    load             kept by the Program, keyed by the device list                     ->  Loaded

Only the first and the last know devices.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from meshrt import config, dispatch, errors, tree_util
from meshrt.calling import OTHER_STRUCTURE, reader, unread
from meshrt.compiled import Call, Entry, make_entry
from meshrt.config import settings
from meshrt.core.pause import collector_paused
from meshrt.core.trace import EVAL, JaxprTrace, Tracer, current_trace, set_trace
from meshrt.core.trace import leaked as leaked_error
from meshrt.core.tracebacks import boundary, strip
from meshrt.core.types import ShapedArray, aval_of
from meshrt.placement import Placement, resolve
from meshrt.primitives.call import jit_p
from meshrt.runtime import backend, compile_cache, events
from meshrt.runtime.array import Array
from meshrt.runtime.jaxlib_api import pytree_registry
from meshrt.sharding._state import context as mesh_context
from meshrt.sharding.context import tracing_mesh
from meshrt.stages import Lowered, Traced, TraceRecord, compiler_option_items
from meshrt.staging import abstract
from meshrt.transforms.arguments import StaticValue, argument_paths, as_tuple, fun_name, resolve_argnums, signature_of
from meshrt.transforms.tools import hoist_consts

__all__ = ["JitFunction", "clear_caches", "jit"]

_flatten = pytree_registry.flatten
_overrides = settings.overrides


class JitOptions(NamedTuple):
    """The arguments of `jit`."""

    in_shardings: Any = None
    out_shardings: Any = None
    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()
    donate_argnums: tuple[int, ...] = ()
    donate_argnames: tuple[str, ...] = ()
    keep_unused: bool = False
    compiler_options: tuple[tuple[str, Any], ...] = ()
    device: Any = None
    backend: str | None = None


class _Static(NamedTuple):
    """Static arguments of one call: positions and values, keyword names and values. Hashable."""

    positions: tuple[tuple[int, Any], ...]
    keywords: tuple[tuple[str, Any], ...]


_NO_STATIC = _Static((), ())


_alive: weakref.WeakSet[JitFunction] = weakref.WeakSet()


@backend.on_clear
def _forget_devices() -> None:
    """Drops every call that is bound to devices; traces and programs stay."""
    for function in list(_alive):
        function._entries.clear()
        function._direct.clear()
        for record in function._records.values():
            record.forget_devices()


def clear_caches() -> None:
    """Forgets every trace, program and loaded executable of this process; what is compiled on disk stays."""
    for function in list(_alive):
        function.clear_cache()
    dispatch.clear()
    compile_cache.clear()


class JitFunction:
    """A function that is traced, lowered, propagated, partitioned and compiled on its first call with given types."""

    def __init__(self, fun: Callable[..., Any], options: JitOptions):
        functools.update_wrapper(self, fun)
        self.fun, self.options = fun, options
        self.name = fun_name(fun)
        self._has_static = bool(options.static_argnums or options.static_argnames)
        self._entries: dict[Any, Entry] = {}
        # The short way: code for the structure of the last calls, and functions that run calls of known signatures.
        self._read: Callable[[tuple, Any, Any], tuple] = unread
        self._direct: dict[Any, Callable[[list[Any], Sequence[Any]], Any]] = {}
        self._version = settings.version
        self._records: dict[Any, TraceRecord] = {}
        self._nested: dict[Any, Any] = {}
        _alive.add(self)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<meshrt.jit of {self.name}>"

    # -- calling -------------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:  # costs nothing where nothing is raised
            if current_trace() is not EVAL:
                return self._call_traced(args, kwargs)
            if kwargs or _overrides() is not None:
                return self._call_general(args, kwargs)
            try:
                key, buffers, leaves = self._read(args, settings.version, mesh_context.concrete)
                direct = self._direct[key]
            except OTHER_STRUCTURE:
                direct = None  # what the call below raises must not be chained to this
            if direct is None:
                return self._call_general(args, kwargs)
            return direct(buffers, leaves)
        except Exception as e:
            strip(e)
            raise

    def _call_general(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The call with static or keyword arguments, values that are not our arrays, or types not seen before."""
        static, plain = _NO_STATIC, not kwargs
        given = (args, kwargs)
        if self._has_static:
            args, kwargs, static = self._split(args, kwargs)
        leaves, tree = _flatten((args, kwargs))
        key = (static, tree, settings.dispatch_key(), mesh_context.concrete, *_signatures(leaves, tree, self, static))
        entry = self._lookup(key)
        if entry is not None:
            if plain and not self._has_static:
                self._shorten(args, leaves, entry, key)
        elif settings.disable_jit:
            return self.fun(*given[0], **given[1])
        else:
            self._drop_stale()
            entry = self._miss(key, leaves, tree, static)
        return entry.result(leaves)

    def _drop_stale(self) -> None:
        """Drops the calls known under settings that were changed since: no key says the same again."""
        if self._version != settings.version:
            self._version = settings.version
            self._entries.clear()
            self._direct.clear()

    def _shorten(self, args: tuple, leaves: list[Any], entry: Entry, key: tuple) -> None:
        """Lets the next call like this second one take the short way: with code for its structure."""
        if _overrides() is not None or not all(type(x) is Array for x in leaves):
            return
        read = reader(_flatten(args)[1])
        if read is not None:
            self._read = read
            # The version under which the entry was found: another thread may have changed a setting since.
            version, mesh = key[2:4]
            self._direct[read(args, version, mesh)[0]] = entry.direct

    def _lookup(self, key: Any) -> Entry | None:
        try:
            return self._entries.get(key)
        except TypeError:
            raise _unhashable(self.name, key[0]) from None

    def _miss(self, key: Any, leaves: list[Any], tree: Any, static: _Static) -> Entry:
        events.record("dispatch_miss")
        traced, placement = self._stage(leaves, tree, static)
        entry = make_entry(Call(self.name, traced, placement, self.options.compiler_options), leaves)
        self._entries[key] = entry
        return entry

    def _split(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any], _Static]:
        """Takes the static arguments out; they come back when tracing."""
        options = self.options
        count = len(args)
        nums = {n % count if n < 0 else n for n in options.static_argnums if -count <= n < count}
        static = _Static(
            tuple((i, StaticValue(args[i])) for i in sorted(nums)),
            tuple((k, StaticValue(kwargs[k])) for k in sorted(kwargs) if k in options.static_argnames),
        )
        if nums:
            args = tuple(a for i, a in enumerate(args) if i not in nums)
        if static.keywords:
            kwargs = {k: v for k, v in kwargs.items() if k not in options.static_argnames}
        try:
            hash(static)
        except TypeError:
            raise _unhashable(self.name, static) from None
        return args, kwargs, static

    # -- staging -------------------------------------------------------------------------------------------------------

    @boundary
    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Stages the function at the types of these arguments (arrays or ShapeDtypeStructs)."""
        static = _NO_STATIC
        if self._has_static:
            args, kwargs, static = self._split(args, kwargs)
        leaves, tree = tree_util.tree_flatten((args, kwargs))
        return self._stage(leaves, tree, static)[0]

    @boundary
    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """`trace(*args, **kwargs).lower()`."""
        return self.trace(*args, **kwargs).lower()

    @boundary
    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The types of the results."""
        return self.trace(*args, **kwargs).out_info

    def clear_cache(self) -> None:
        """Forgets every trace and everything derived from it."""
        self._entries.clear()
        self._direct.clear()
        self._records.clear()
        self._nested.clear()

    def _stage(self, leaves: list[Any], tree: Any, static: _Static) -> tuple[Traced, Placement]:
        avals = tuple(abstract(x) for x in leaves)
        wanted = resolve(self, leaves, avals, tree, static)
        record = self._record(avals, tree, static, wanted.mesh)
        placement, request = wanted.finish(record, self._donated(tree, static))
        return Traced(record, request, placement.devices), placement

    def _record(self, avals: tuple[ShapedArray, ...], tree: Any, static: _Static, mesh: Any) -> TraceRecord:
        """The trace for these types; no device and no concrete mesh stands in its key."""
        key = (tree, static, avals, config.trace_key(), mesh)
        record = self._records.get(key)
        if record is None:
            events.record("trace")
            with tracing_mesh(mesh), collector_paused():
                closed, out_tree = self._trace(avals, tree, static)
            record = self._records[key] = TraceRecord(self._bound(static), self.name, closed, tree, out_tree)
        return record

    def _bound(self, static: _Static) -> Callable[..., Any]:
        """A function with the signature that is left when the static arguments are taken out (for argument names)."""
        signature = signature_of(self.fun)
        if signature is None or static == _NO_STATIC:
            return self.fun
        drop = {i for i, _ in static.positions}
        names = {k for k, _ in static.keywords}
        kept = [p for i, p in enumerate(signature.parameters.values()) if i not in drop and p.name not in names]
        stand_in = lambda *a, **k: None
        stand_in.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
        return stand_in

    def _trace(self, avals: Sequence[ShapedArray], tree: Any, static: _Static) -> tuple[Any, Any]:
        trace = JaxprTrace(self.name)
        tracers = [trace.argument(a, f"argument {i}") for i, a in enumerate(avals)]
        args, kwargs = self._join(*tree.unflatten(tracers), static)
        try:
            with set_trace(trace):
                outs, out_tree = tree_util.tree_flatten(self.fun(*args, **kwargs))
                _check_outputs(outs, out_tree, self.name)
                return trace.close(tracers, outs), out_tree
        finally:
            trace.closed = True

    def _join(self, args: tuple, kwargs: dict[str, Any], static: _Static) -> tuple[tuple, dict[str, Any]]:
        if static is _NO_STATIC:
            return args, kwargs
        fixed = dict(static.positions)
        rest = iter(args)
        full = tuple(fixed[i].value if i in fixed else next(rest) for i in range(len(args) + len(fixed)))
        return full, {**kwargs, **{k: v.value for k, v in static.keywords}}

    def _donated(self, tree: Any, static: _Static) -> tuple[bool, ...]:
        options = self.options
        if not options.donate_argnums and not options.donate_argnames:
            return (False,) * tree.num_leaves
        args, kwargs = tree.unflatten(range(tree.num_leaves))
        fixed = {i for i, _ in static.positions}
        positions = [i for i in range(len(args) + len(fixed)) if i not in fixed]
        total = len(args) + len(fixed)
        nums = {n % total for n in options.donate_argnums if -total <= n < total}
        flags = [False] * tree.num_leaves
        chosen = [a for i, a in zip(positions, args) if i in nums] + [
            v for k, v in kwargs.items() if k in options.donate_argnames
        ]
        for leaf in tree_util.tree_leaves(chosen):
            flags[leaf] = True
        return tuple(flags)

    # -- inside another trace ------------------------------------------------------------------------------------------

    def _call_traced(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        if settings.disable_jit:
            return self.fun(*args, **kwargs)
        static = _NO_STATIC
        if self._has_static:
            args, kwargs, static = self._split(args, kwargs)
        leaves, tree = tree_util.tree_flatten((args, kwargs))
        avals = tuple(aval_of(x) for x in leaves)
        leaves = self._constrain_arguments(leaves, tree)
        jaxpr, consts, out_tree = self._nested_jaxpr(avals, tree, static)
        outs = jit_p.bind(*consts, *leaves, jaxpr=jaxpr, name=self.name)
        result = out_tree.unflatten(outs)
        if self.options.out_shardings is None:
            return result
        from meshrt.primitives.sharding import constrain

        return constrain(result, self.options.out_shardings, f"result of {self.name}", f"out_shardings of {self.name}")

    def _constrain_arguments(self, leaves: list[Any], tree: Any) -> list[Any]:
        if self.options.in_shardings is None:
            return leaves
        from meshrt.primitives.sharding import constrain

        args, kwargs = tree.unflatten(leaves)
        args = constrain(args, self.options.in_shardings, f"args of {self.name}", f"in_shardings of {self.name}")
        return tree_util.tree_leaves((args, kwargs))

    def _nested_jaxpr(self, avals: tuple[ShapedArray, ...], tree: Any, static: _Static) -> Any:
        """The function's Jaxpr without constvars, its constants, and the result structure.

        Cached unless the function captures tracers, which belong to one trace of the caller.
        """
        key = (tree, static, avals, config.trace_key(), mesh_context.abstract)
        found = self._nested.get(key)
        if found is None:
            events.record("trace")
            closed, out_tree = self._trace(avals, tree, static)
            hoisted = hoist_consts(closed)
            found = (hoisted.jaxpr, hoisted.consts, out_tree)
            if not any(isinstance(c, Tracer) for c in hoisted.consts):
                self._nested[key] = found
        return found


def _signature(x: Any) -> Any:
    if type(x) is Array:
        return x._sig
    if isinstance(x, Tracer):
        raise leaked_error(x)
    return aval_of(x)


def _signatures(leaves: Sequence[Any], tree: Any, function: JitFunction, static: _Static) -> list[Any]:
    """The part of the key that stands for the arguments; names the first one that is not an array."""
    try:
        return [x._sig for x in leaves]
    except AttributeError:
        pass  # Python scalars, NumPy arrays, leaked tracers, what is no array at all
    out = []
    for i, x in enumerate(leaves):
        try:
            out.append(_signature(x))
        except errors.ArgumentTypeError as e:
            path = argument_paths(function._bound(static), tree)[i]
            raise errors.ArgumentTypeError(
                f"argument {path} of the jitted function {function.name} cannot be used: {e}. Arguments that are not "
                "arrays can be made static (static_argnums or static_argnames)"
            ) from None
    return out


def _check_outputs(outs: list[Any], tree: Any, name: str) -> None:
    for i, o in enumerate(outs):
        try:
            aval_of(o)
        except TypeError:
            paths = tree_util.tree_leaves_with_path(tree.unflatten(range(len(outs))))
            path = tree_util.keystr(paths[i][0])
            raise errors.ArgumentTypeError(
                f"the jitted function {name} returned a value of type {type(o).__name__} at result{path}; results must "
                "be arrays or pytrees of arrays"
            ) from None


def _unhashable(name: str, static: _Static) -> errors.ArgumentValueError:
    for where, value in (*static.positions, *static.keywords):
        try:
            hash(value)
        except TypeError:
            return errors.ArgumentValueError(
                f"Non-hashable static arguments are not supported: the static argument {where!r} of {name} is of type "
                f"{type(value.value).__name__}. Pass a tuple instead of a list, or define __hash__ and __eq__"
            )
    return errors.ArgumentValueError(f"the arguments of {name} cannot be hashed")


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
) -> Any:
    """Compiles `fun` on its first call with arguments of given types and shardings; later calls run that program.

    Args:
      fun: a function of pytrees of arrays (and static arguments); omitted, `jit` is a decorator factory.
      in_shardings, out_shardings: pytree prefixes of NamedShardings, PartitionSpecs (of the mesh in context) or None,
        which leaves the choice to the arguments and to propagation.
      static_argnums, static_argnames: arguments that are Python values; each new value means a new trace.
      donate_argnums, donate_argnames: arguments whose buffers may be reused for results; they are deleted by the call.
      compiler_options: XLA options for this function.

    >>> import meshrt, meshrt.numpy as jnp
    >>> double = meshrt.jit(lambda x: 2 * x)
    """
    if fun is None:
        return functools.partial(
            jit, in_shardings=in_shardings, out_shardings=out_shardings, static_argnums=static_argnums,
            static_argnames=static_argnames, donate_argnums=donate_argnums, donate_argnames=donate_argnames,
            keep_unused=keep_unused, device=device, backend=backend, inline=inline, compiler_options=compiler_options,
        )  # fmt: skip
    if not callable(fun):
        raise errors.ArgumentTypeError(f"jit needs a function, got {type(fun).__name__}")
    if device is not None and (in_shardings is not None or out_shardings is not None):
        raise errors.ArgumentValueError("jit takes either device or in_shardings and out_shardings, not both")
    nums, names = resolve_argnums(fun, static_argnums, static_argnames)
    donated, donated_names = resolve_argnums(fun, donate_argnums, donate_argnames)
    overlap = set(nums) & set(donated)
    if overlap:
        raise errors.ArgumentValueError(f"arguments {sorted(overlap)} of {fun_name(fun)} are both static and donated")
    if inspect.isgeneratorfunction(fun):
        raise errors.ArgumentTypeError(f"jit cannot stage the generator function {fun_name(fun)}")
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
        ),
    )
