"""Functions of flat arrays with transformations around them that report something beside the results.

    fun = wrap_init(f)
    fun, out_tree = flatten_fun(fun, in_tree)      # a transformation with an auxiliary value
    outs = fun.call_wrapped(*leaves)
    out_tree()                                     # known after the call

Names are ``jax.extend.linear_util``'s.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from meshrt import config, errors
from meshrt.sharding.mesh_caches import remembered as by_mesh
from meshrt.transforms.arguments import fun_name

__all__ = [
    "Store", "StoreException", "WrappedFun", "cache", "merge_linear_aux", "transformation", "transformation2",
    "transformation_with_aux", "transformation_with_aux2", "wrap_init",
]  # fmt: skip


class StoreException(errors.MeshrtError, RuntimeError):
    """The auxiliary value of a transformation is asked for before the function has run, or given a second time."""


class Store:
    """Where a transformation leaves its auxiliary value, once per call."""

    __slots__ = ("_value",)
    _value: tuple[Any, ...]

    def __init__(self) -> None:
        self._value = ()

    def store(self, value: Any) -> None:
        """Leaves the value. StoreException if there is one."""
        if self._value:
            raise StoreException("the store is occupied: the function ran a second time")
        self._value = (value,)

    def reset(self) -> None:
        """Forgets the value."""
        self._value = ()

    @property
    def val(self) -> Any:
        """The value. StoreException if there is none."""
        if not self._value:
            raise StoreException("the store is empty: the function has not run")
        return self._value[0]

    def __bool__(self) -> bool:
        return bool(self._value)


class WrappedFun:
    """A function with transformations around it, the last one outermost.

    Two of the same function and the same transformations with equal arguments are equal.
    """

    __slots__ = ("__weakref__", "_run", "debug_info", "f", "stores", "transforms")

    def __init__(
        self,
        f: Callable[..., Any],
        run: Callable[..., Any],
        transforms: tuple[tuple[Callable[..., Any], tuple[Hashable, ...]], ...] = (),
        stores: tuple[Store | None, ...] = (),
        debug_info: Any = None,
    ):
        self.f, self._run, self.transforms, self.stores, self.debug_info = f, run, transforms, stores, debug_info

    @property
    def __name__(self) -> str:
        return fun_name(self.f)

    def wrap(self, gen: Callable[..., Any], static: tuple[Hashable, ...], store: Store | None) -> WrappedFun:
        """With a transformation more: `gen(function, [store,] *static, *operands)` runs it."""
        inner = (self._run,) if store is None else (self._run, store)
        run = functools.partial(gen, *inner, *static)
        return WrappedFun(self.f, run, ((gen, static), *self.transforms), (store, *self.stores), self.debug_info)

    def call_wrapped(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function with all transformations."""
        return self._run(*args, **kwargs)

    def _key(self) -> Any:
        return self.f, self.transforms

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WrappedFun) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        around = "".join(f"{fun_name(gen)}{static} of " for gen, static in self.transforms)
        return f"WrappedFun({around}{fun_name(self.f)})"


def wrap_init(f: Callable[..., Any], params: dict[str, Any] | None = None, *, debug_info: Any = None) -> WrappedFun:
    """`f` without transformations yet; `params` are passed to it by keyword."""
    return WrappedFun(f, functools.partial(f, **params) if params else f, debug_info=debug_info)


def transformation2(gen: Callable[..., Any], fun: Any = None, *static: Hashable) -> Any:
    """A transformation `gen(f, *static, *operands)`, put around `fun`: a decorator where only `gen` is given."""
    if fun is None:
        return functools.partial(transformation2, gen)
    return fun.wrap(gen, static, None)


def transformation_with_aux2(gen: Callable[..., Any], fun: Any = None, *static: Hashable) -> Any:
    """A transformation `gen(f, store, *static, *operands)` that leaves a value in `store`.

    Around `fun` it gives (function, thunk): the thunk returns the value once the function has run. A decorator where
    only `gen` is given.
    """
    if fun is None:
        return functools.partial(transformation_with_aux2, gen)
    store = Store()
    return fun.wrap(gen, static, store), lambda: store.val


def _around(gen: Callable[..., Any]) -> Callable[..., Any]:
    """A generator that yields (args, kwargs) for a function, is sent its result and yields its own, as a function."""

    @functools.wraps(gen)
    def run(f: Callable[..., Any], *operands: Any) -> Any:
        # Closed where the function raises too: contexts that the generator has entered are left.
        with contextlib.closing(gen(*operands)) as steps:
            args, kwargs = next(steps)
            return steps.send(f(*args, **kwargs))

    return run


def _around_with_aux(gen: Callable[..., Any]) -> Callable[..., Any]:
    run = _around(gen)

    @functools.wraps(gen)
    def run_and_store(f: Callable[..., Any], store: Store, *operands: Any) -> Any:
        result, aux = run(f, *operands)
        store.store(aux)
        return result

    return run_and_store


def transformation(gen: Callable[..., Any], fun: Any = None, *static: Hashable) -> Any:
    """As `transformation2`, of a generator `gen(*static, *operands)`.

    It yields (args, kwargs) for the function within and, when it has been sent what that gave, the result.
    """
    return transformation2(_around(gen), fun, *static)


def transformation_with_aux(gen: Callable[..., Any], fun: Any = None, *static: Hashable) -> Any:
    """As `transformation`, of a generator that yields (result, auxiliary value) in the end."""
    return transformation_with_aux2(_around_with_aux(gen), fun, *static)


def merge_linear_aux(aux1: Callable[[], Any], aux2: Callable[[], Any]) -> tuple[bool, Any]:
    """(True, value) of the first thunk if its function has run, else (False, value) of the second."""
    try:
        return True, aux1()
    except StoreException:
        return False, aux2()


def cache(call: Callable[..., Any]) -> Callable[..., Any]:
    """Remembers results of `call(fun, *hashables)` for each WrappedFun, as long as its function lives."""
    known: weakref.WeakKeyDictionary[Any, dict[Any, tuple[Any, Sequence[Store | None]]]] = weakref.WeakKeyDictionary()

    @functools.wraps(call)
    def remembered(fun: WrappedFun, *args: Hashable) -> Any:
        entries = known.setdefault(fun.f, {})
        key = (fun.transforms, args, config.trace_key())
        result, stores = by_mesh(entries, key, lambda: (call(fun, *args), fun.stores))
        for mine, theirs in zip(fun.stores, stores):
            if mine is not theirs and mine is not None and theirs is not None and theirs:
                mine.reset()
                mine.store(theirs.val)
        return result

    return remembered


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise errors.MissingFunctionError(f"module {__name__!r} has no attribute {name!r}: it is not implemented")
