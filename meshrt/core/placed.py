"""Types of high values in manual regions: over which axes their arrays vary.

Inside of a `shard_map` a type says over which axes a value differs between devices, and derivatives are added up by
that. High types are users' own, and most are made of shapes alone. `placed(kind, varying)` is such a type with what it
does not say itself: an instance of a subclass of its class, equal to none that varies over other axes. What users make
of it by its class (`dataclasses.replace`, `type(self)(...)`) is of their own class again, and says nothing of axes.
"""

from __future__ import annotations

import abc
import contextlib
import threading
import types
from collections.abc import Hashable, Sequence
from typing import Any

__all__ = ["placed"]

Axes = frozenset[Hashable]


def placed(kind: Any, varying: Sequence[Axes]) -> Any:
    """A high type whose values have arrays that vary over `varying`, one set for each; itself where it says so."""
    own = kind.lo_ty()
    if len(own) != len(varying) or all(t.vma.issuperset(v) for t, v in zip(own, varying)):
        return kind
    plain = kind._meshrt_plain if isinstance(kind, _Placed) else kind
    cls = type(plain)
    # Tuples and strings hold what no attribute names.
    builtin: Any = next(c for c in cls.__mro__ if not c.__flags__ & _MADE_BY_A_PROGRAM)
    made = builtin.__new__(_subclass(cls), *(() if builtin is object else (plain,)))
    for base in cls.__mro__[: cls.__mro__.index(builtin)]:
        for slot in vars(base).values():
            if isinstance(slot, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # it is empty
                    slot.__set__(made, slot.__get__(plain, cls))
    made.__dict__.update(getattr(plain, "__dict__", {}))
    made.__dict__.update(_meshrt_plain=plain, _meshrt_varying=tuple(t.vma.union(v) for t, v in zip(own, varying)))
    return made


_MADE_BY_A_PROGRAM = 1 << 9  # Py_TPFLAGS_HEAPTYPE


class _Placed:
    """What the subclass of a high type overrides. The names are such that no type has them for something else."""

    _meshrt_plain: Any
    _meshrt_varying: tuple[Axes, ...]

    def __init_subclass__(cls, **settings: Any) -> None:
        """Does not call that of the class: it takes what users' own class statements say, and keeps what they made."""

    def __new__(cls, *args: Any, **settings: Any) -> Any:
        """An instance of the class itself: who calls the class says nothing of axes."""
        return cls.__bases__[1](*args, **settings)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return placed, (self._meshrt_plain, self._meshrt_varying)

    def lo_ty(self) -> list[Any]:
        return [t.update(vma=t.vma.union(v)) for t, v in zip(self._meshrt_plain.lo_ty(), self._meshrt_varying)]

    def to_tangent_aval(self) -> Any:
        return self._with(self._meshrt_plain.to_tangent_aval())

    def to_ct_aval(self) -> Any:
        return self._with(self._meshrt_plain.to_ct_aval())

    def normalize(self) -> Any:
        return placed(self._meshrt_plain.normalize(), self._meshrt_varying)

    def dec_rank(self, size: Any, spec: Any) -> Any:
        return placed(self._meshrt_plain.dec_rank(size, spec), self._meshrt_varying)

    def inc_rank(self, size: Any, spec: Any) -> Any:
        return placed(self._meshrt_plain.inc_rank(size, spec), self._meshrt_varying)

    def _with(self, derivative: Any) -> Any:
        """The type of derivatives, which vary over what any of the arrays does."""
        axes: Axes = Axes().union(*self._meshrt_varying)
        if derivative.is_high:
            return placed(derivative, [axes] * len(derivative.lo_ty()))
        return derivative.update(vma=derivative.vma.union(axes))

    # -- comparison: the class says nothing of it, as types may be equal by identity -----------------------------------

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self) or other._meshrt_varying != self._meshrt_varying:
            return False
        return bool(self._meshrt_plain == other._meshrt_plain)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self._meshrt_plain, self._meshrt_varying))

    # -- as shown: with the axes, as types of arrays -------------------------------------------------------------------

    def _axes(self) -> str:
        """`{V:a}`, or `{V:a;;b}` where the arrays vary over different axes."""
        each = [",".join(sorted(map(str, axes))) for axes in self._meshrt_varying]
        return f"{{V:{each[0] if len(set(each)) == 1 else ';'.join(each)}}}"

    def short(self) -> str:
        return f"{self._meshrt_plain.short()}{self._axes()}"

    def str_short(self) -> str:
        return f"{self._meshrt_plain.str_short()}{self._axes()}"

    def __str__(self) -> str:
        return f"{self._meshrt_plain}{self._axes()}"

    def __repr__(self) -> str:
        return f"{self._meshrt_plain!r}{self._axes()}"


_making = threading.Lock()
_KEPT = "_meshrt_placed"


def _subclass(cls: type) -> type:
    """That of a class, made once and kept by it: types are equal by it as long as the class lives."""
    made: type | None = vars(cls).get(_KEPT)
    if made is not None:
        return made
    with _making:
        made = vars(cls).get(_KEPT)
        if made is None:
            names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
            # Past what a metaclass of the user's does with its classes; Python's own answers isinstance.
            make: Any = abc.ABCMeta.__new__ if issubclass(type(cls), abc.ABCMeta) else type.__new__
            made = make(type(cls), cls.__name__, (_Placed, cls), names)
            type.__setattr__(cls, _KEPT, made)
    return made
