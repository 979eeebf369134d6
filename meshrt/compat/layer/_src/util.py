"""`jax._src.util`: small functions of sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from meshrt.core.naming import take_names as _take_names
from meshrt.numpy.names import missing as _missing
from meshrt.transforms.arguments import fun_name as _fun_name

__all__ = [
    "partition_list", "safe_map", "safe_zip", "split_list", "unzip2", "unzip3", "wraps",
]  # fmt: skip


def safe_map(f: Callable[..., Any], *args: Iterable[Any]) -> list[Any]:
    """`map` as a list, of arguments of one length. ValueError otherwise."""
    return [f(*items) for items in zip(*args, strict=True)]


def safe_zip(*args: Iterable[Any]) -> list[tuple[Any, ...]]:
    """`zip` as a list, of arguments of one length. ValueError otherwise."""
    return list(zip(*args, strict=True))


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


def partition_list(flags: Sequence[bool], values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The values that are not flagged, and those that are."""
    pairs = list(zip(flags, values, strict=True))
    return [v for f, v in pairs if not f], [v for f, v in pairs if f]


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
