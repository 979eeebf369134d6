"""What an application does to random keys: which it uses up, which are new, which are handed on.

A key may be used up once. Of an array of keys, a mask of booleans says which elements are meant.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Forward", "KeyReuseSignature", "Mask", "Sink", "Source", "fitted"]

Mask = bool | np.ndarray


def fitted(mask: Mask, shape: tuple[int, ...]) -> Mask:
    """The mask for the same keys in another shape; True where it cannot be said which of them are meant.

    Reshaping keeps the order of elements; a program that maps over leading dimensions has a mask of the others.
    """
    if isinstance(mask, bool | np.bool_):
        return bool(mask)
    if mask.all() or not mask.any():
        return bool(mask.any())
    if mask.size == int(np.prod(shape)):
        return mask.reshape(shape)
    if shape[len(shape) - mask.ndim :] == mask.shape:
        return np.broadcast_to(mask, shape)
    return True


class _Masked:
    """A position and which of the keys there are meant; immutable."""

    __slots__ = ("_key", "idx", "mask")

    idx: int
    mask: Mask
    _key: tuple[Any, ...]

    def __init__(self, idx: int, mask: Mask = True):
        mask = np.asarray(mask, bool)
        if mask.ndim and mask.any() and not mask.all():
            mask = mask.copy()
            mask.flags.writeable = False
            stored: Mask = mask
        else:
            stored = bool(mask.any())
        object.__setattr__(self, "idx", idx)
        object.__setattr__(self, "mask", stored)
        shown = stored if isinstance(stored, bool) else (stored.shape, stored.tobytes())
        object.__setattr__(self, "_key", (type(self).__name__, idx, shown))

    def __setattr__(self, name: str, value: Any) -> None:
        raise ValueError(f"{type(self).__name__} is immutable: make another one instead of setting {name!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Masked) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        mask = "" if self.mask is True else f", {self.mask}"
        return f"{type(self).__name__}({self.idx}{mask})"


class Sink(_Masked):
    """Operand `idx` is used up, or those of its keys that `mask` names."""

    __slots__ = ()


class Source(_Masked):
    """Result `idx` has new keys where `mask` is True."""

    __slots__ = ()


class Forward(NamedTuple):
    """Result `out_idx` has the keys of operand `in_idx`: what uses up the one uses up the other."""

    in_idx: int
    out_idx: int

    def __repr__(self) -> str:
        return f"Forward({self.in_idx}, {self.out_idx})"


_ORDER = (Sink, Source, Forward)


class KeyReuseSignature:
    """All that an application does to keys: a set of `Sink`, `Source` and `Forward`.

    Keys among the results that nothing is said of count as used up.

    >>> KeyReuseSignature(Source(0), Sink(0)) == KeyReuseSignature(Sink(0), Source(0))
    True
    """

    __slots__ = ("_args",)

    def __init__(self, *args: Sink | Source | Forward):
        self._args = frozenset(args)

    def _of(self, kind: Any) -> Iterator[Any]:
        place: Any = tuple if kind is Forward else operator.attrgetter("idx")
        return iter(sorted((a for a in self._args if type(a) is kind), key=place))

    @property
    def sinks(self) -> Iterator[Sink]:
        return self._of(Sink)

    @property
    def sources(self) -> Iterator[Source]:
        return self._of(Source)

    @property
    def forwards(self) -> Iterator[Forward]:
        return self._of(Forward)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyReuseSignature) and self._args == other._args

    def __hash__(self) -> int:
        return hash(self._args)

    def __repr__(self) -> str:
        return f"KeyReuseSignature({', '.join(repr(a) for kind in _ORDER for a in self._of(kind))})"
