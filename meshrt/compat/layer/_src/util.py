"""`jax._src.util`: small functions of sequences and names, and caches."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from meshrt.compat.layer._src.caching import (
    HashableFunction,
    HashablePartial,
    HashableWrapper,
    StrictABC,
    StrictABCMeta,
    cache,
    memoize,
    multi_weakref_lru_cache,
    weakref_lru_cache,
)
from meshrt.core.naming import take_names as _take_names
from meshrt.numpy import ComplexWarning as NumpyComplexWarning
from meshrt.numpy import moveaxis
from meshrt.numpy.names import missing as _missing
from meshrt.transforms.arguments import fun_name as _fun_name
from meshrt.xla.jaxlib_tools import foreach, safe_map, safe_zip, topological_sort

__all__ = [
    "HashableFunction", "HashablePartial", "HashableWrapper", "NumpyComplexWarning", "OrderedSet", "StrictABC",
    "StrictABCMeta", "cache", "canonicalize_axis", "canonicalize_axis_tuple", "ceil_of_ratio", "concatenate",
    "curry", "flatten", "foreach", "fun_name", "memoize", "merge_lists", "moveaxis", "multi_weakref_lru_cache",
    "partition_list", "safe_map", "safe_zip", "set_module", "split_list", "split_list_checked", "stable_unique",
    "subs_list", "subvals", "toposort", "tuple_delete", "tuple_insert", "tuple_update", "unflatten", "unzip2",
    "unzip3", "use_cpp_class", "use_cpp_method", "weakref_lru_cache", "wrap_name", "wraps",
]  # fmt: skip


def unzip2(pairs: Iterable[tuple[Any, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The first and the second elements of pairs."""
    pairs = list(pairs)
    return tuple(a for a, _ in pairs), tuple(b for _, b in pairs)


def unzip3(triples: Iterable[tuple[Any, Any, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    """The first, second and third elements of triples."""
    triples = list(triples)
    return tuple(t[0] for t in triples), tuple(t[1] for t in triples), tuple(t[2] for t in triples)


def split_list(args: Sequence[Any], ns: Sequence[int]) -> list[list[Any]]:
    """Parts of the given lengths, and the rest."""
    parts, start = [], 0
    for n in ns:
        parts.append(list(args[start : start + n]))
        start += n
    return [*parts, list(args[start:])]


def split_list_checked(args: Sequence[Any], ns: Sequence[int]) -> list[list[Any]]:
    """Parts of the given lengths, which are all there is."""
    assert sum(ns) == len(args)
    return split_list(args, ns)[:-1]


def partition_list(flags: Sequence[bool], values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The values that are not flagged, and those that are."""
    assert len(flags) == len(values)
    pairs = list(zip(flags, values, strict=True))
    return [v for f, v in pairs if not f], [v for f, v in pairs if f]


def merge_lists(flags: Sequence[bool], unflagged: Sequence[Any], flagged: Sequence[Any]) -> list[Any]:
    """What `partition_list` took apart."""
    assert sum(flags) == len(flagged) and len(flags) == len(unflagged) + len(flagged)
    parts = iter(unflagged), iter(flagged)
    return [next(parts[bool(f)]) for f in flags]


def subs_list(subs: Sequence[int | None], src: Sequence[Any], base: Sequence[Any]) -> list[Any]:
    """`src[i]` where `subs` says i, else the next of `base`; all of which is used."""
    rest = iter(base)
    found = [next(rest) if i is None else src[i] for i in subs]
    assert next(rest, subs) is subs
    return found


def subvals(lst: Sequence[Any], replace: Iterable[tuple[int, Any]]) -> tuple[Any, ...]:
    """With other values at some positions."""
    values = list(lst)
    for i, value in replace:
        values[i] = value
    return tuple(values)


def concatenate(xs: Iterable[Sequence[Any]]) -> list[Any]:
    """All elements, one sequence after another."""
    return list(itertools.chain.from_iterable(xs))


flatten = concatenate


def unflatten(xs: Iterable[Any], ns: Sequence[int]) -> list[list[Any]]:
    """Parts of the given lengths, which are all there is."""
    rest = iter(xs)
    parts = [[next(rest) for _ in range(n)] for n in ns]
    assert next(rest, parts) is parts
    return parts


def curry(f: Callable[..., Any]) -> Callable[..., Any]:
    """`curry(f)(*some)(*rest)` is `f(*some, *rest)`."""

    def take(*args: Any, **kwargs: Any) -> Callable[..., Any]:
        return lambda *rest, **named: f(*args, *rest, **kwargs, **named)

    return take


def wrap_name(transform_name: str, name: str) -> str:
    """The name of what a transformation makes of a function: `jvp(f)`."""
    return f"{transform_name}({name})"


def fun_name(fun: Callable[..., Any], default_name: str = "<unnamed function>") -> str:
    """What a function is called."""
    named = getattr(fun, "__name__", None)
    if named is None:
        inner = getattr(fun, "func", None)
        return default_name if inner is None else fun_name(inner, default_name)
    return str(named)


def canonicalize_axis(axis: Any, num_dims: int) -> int:
    """A dimension counted from the front. ValueError if there is none."""
    place: int = operator.index(axis)
    if not -num_dims <= place < num_dims:
        raise ValueError(f"axis {place} is out of bounds for array of dimension {num_dims}")
    return place % num_dims


def canonicalize_axis_tuple(axis: Any, ndim: int, allow_duplicate: bool = False) -> tuple[int, ...]:
    """Dimensions counted from the front: all for None. ValueError for one that is not there, or there twice."""
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, Sequence) else (axis,)
    axes = tuple(canonicalize_axis(a, ndim) for a in given)
    if not allow_duplicate and len(set(axes)) != len(axes):
        raise ValueError(f"repeated axis: {axes}")
    return axes


def ceil_of_ratio(x: int, y: int) -> int:
    """x / y, rounded up."""
    return -(-x // y)


def tuple_insert(t: tuple[Any, ...], idx: int, val: Any) -> tuple[Any, ...]:
    """With `val` at position `idx`, and what follows moved."""
    assert 0 <= idx <= len(t), (idx, len(t))
    return (*t[:idx], val, *t[idx:])


def tuple_delete(t: tuple[Any, ...], idx: int) -> tuple[Any, ...]:
    """Without position `idx`."""
    assert 0 <= idx < len(t), (idx, len(t))
    return (*t[:idx], *t[idx + 1 :])


def tuple_update(t: tuple[Any, ...], idx: int, val: Any) -> tuple[Any, ...]:
    """With `val` in place of position `idx`."""
    assert 0 <= idx < len(t), (idx, len(t))
    return (*t[:idx], val, *t[idx + 1 :])


def stable_unique(it: Iterable[Any]) -> Iterable[Any]:
    """The elements in the order in which each is met first."""
    return dict.fromkeys(it).keys()


toposort = functools.partial(topological_sort, "parents")
toposort.__doc__ = "Objects in an order in which each comes after its `parents`, of those that nothing comes after."


def use_cpp_class(cpp_cls: type) -> Callable[[type], type]:
    """A decorator that gives a class of C++'s in place of the one that says what it does."""
    return lambda cls: cls if cpp_cls is None else cpp_cls


def use_cpp_method(is_enabled: bool = True) -> Callable[[Any], Any]:
    """A decorator of methods that such a class has itself."""
    return lambda method: method


class OrderedSet:
    """A set that keeps the order in which elements were added."""

    def __init__(self) -> None:
        self._elements: dict[Any, None] = {}

    def add(self, element: Any) -> None:
        """Adds one."""
        self._elements.setdefault(element)

    def update(self, elements: Iterable[Any]) -> None:
        """Adds several."""
        for element in elements:
            self.add(element)

    def __iter__(self) -> Any:
        return iter(self._elements)

    def __len__(self) -> int:
        return len(self._elements)

    def __contains__(self, element: Any) -> bool:
        return element in self._elements


def set_module(module: str) -> Callable[[Any], Any]:
    """A decorator that says where something is to be looked for."""

    def decorate(found: Any) -> Any:
        if module is not None:
            found.__module__ = module
        return found

    return decorate


def wraps(wrapped: Callable[..., Any], namestr: str | None = None, docstr: str | None = None, **names: Any) -> Any:
    """As `functools.wraps`, with a name and a docstring in which "{fun}" and "{doc}" stand for the wrapped ones."""

    def decorate(fun: Callable[..., Any]) -> Callable[..., Any]:
        _take_names(fun, wrapped)
        own, doc = _fun_name(wrapped), getattr(wrapped, "__doc__", "") or ""
        fun.__name__ = own if namestr is None else namestr.format(fun=own)
        fun.__doc__ = doc if docstr is None else docstr.format(fun=own, doc=doc, **names)
        return fun

    return decorate


__getattr__ = _missing("jax._src.util", __all__)
