"""Caches that hold their first argument weakly, and functions as keys of caches, for `jax._src.util`."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any

from meshrt import config
from meshrt.xla import jaxlib_tools as weakly

__all__ = [
    "HashableFunction", "HashablePartial", "HashableWrapper", "StrictABC", "StrictABCMeta", "cache", "memoize",
    "multi_weakref_lru_cache", "weakref_lru_cache",
]  # fmt: skip


def _context() -> Any:
    return config.settings.trace_key()


def _nothing() -> None:
    return None


def cache(max_size: Any = 4096, trace_context_in_key: Any = True) -> Any:
    """As `functools.lru_cache`, with the settings that traces depend on among the keys.

    Args:
      max_size: how many results are kept; None: all. Or the function, where this decorates it without arguments.
      trace_context_in_key: whether those settings are; or a function that gives what is a key in their place.
    """
    if callable(max_size):
        return cache()(max_size)
    context = trace_context_in_key if callable(trace_context_in_key) else _context if trace_context_in_key else _nothing

    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
        kept = functools.lru_cache(max_size)(lambda _, *args, **kwargs: f(*args, **kwargs))

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            if config.settings.check_tracer_leaks:
                return f(*args, **kwargs)
            return kept(context(), *args, **kwargs)

        # Functions take any attribute, of which their types say nothing.
        call.cache_clear, call.cache_info = kept.cache_clear, kept.cache_info  # type: ignore[attr-defined]
        return call

    return decorate


memoize = cache(max_size=None)


def weakref_lru_cache(
    f: Callable[..., Any] | None = None, *, maxsize: int | None = 2048, trace_context_in_key: bool = True,
    explain: Callable[..., Any] | None = None,
) -> Any:  # fmt: skip
    """A cache that holds the first argument weakly and forgets what it knows of one that is gone."""
    if f is None:
        return functools.partial(
            weakref_lru_cache, maxsize=maxsize, trace_context_in_key=trace_context_in_key, explain=explain
        )
    return weakly.weakref_lru_cache(_context if trace_context_in_key else _nothing, f, maxsize)


def multi_weakref_lru_cache(
    call: Callable[..., Any], *, maxsize: int | None = 2048, trace_context_in_key: bool = True
) -> Any:
    """A cache that holds all arguments weakly that can be held so."""
    return weakly.multi_weakref_lru_cache(_context if trace_context_in_key else _nothing, call, maxsize)


class HashableFunction:
    """A function that equals others of the same code with an equal `closure`."""

    def __init__(self, f: Callable[..., Any], closure: Any):
        self.f, self.closure = f, closure

    def __eq__(self, other: object) -> bool:
        return type(other) is HashableFunction and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.f(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<hashable {self.f.__name__} with closure={self.closure}>"

    def _key(self) -> Any:
        return self.f.__code__, self.closure


class HashablePartial:
    """As `functools.partial`; equals others of the same code with equal arguments."""

    def __init__(self, f: Callable[..., Any], *args: Any, **kwargs: Any):
        self.f, self.args, self.kwargs = f, args, kwargs

    def __eq__(self, other: object) -> bool:
        return type(other) is HashablePartial and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.f(*self.args, *args, **{**self.kwargs, **kwargs})

    def _key(self) -> Any:
        return self.f.__code__, self.args, tuple(sorted(self.kwargs.items()))


class HashableWrapper:
    """Anything as a key: by its value where that has a hash, else by its identity."""

    def __init__(self, x: Any):
        self.x = x
        try:
            self.hash: int | None = hash(x)
        except TypeError:
            self.hash = None

    def __hash__(self) -> int:
        return id(self.x) if self.hash is None else self.hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HashableWrapper):
            return False
        return self.x is other.x if self.hash is None else bool(self.x == other.x)


class StrictABCMeta(abc.ABCMeta):
    """Abstract classes whose instances are those of classes that name them, and none that were registered."""

    def register(cls, subclass: type) -> Any:
        """Is refused, with the error that programs written for JAX look for."""
        del subclass
        raise NotImplementedError(f"{cls} does not support virtual subclassing")

    __instancecheck__ = type.__instancecheck__
    __subclasscheck__ = type.__subclasscheck__


class StrictABC(metaclass=StrictABCMeta):
    """The base of such classes."""

    __slots__ = ()
