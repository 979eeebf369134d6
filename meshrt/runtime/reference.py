"""`Ref`: a reference to an array that programs write to."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.places import Placed, place_of, register_placing, with_place
from meshrt.core.references import AbstractRef, HighRef, is_ref, is_ref_type, placed_type
from meshrt.core.source import capture
from meshrt.core.tracer import Tracer
from meshrt.core.types import register_aval
from meshrt.runtime.array import Array
from meshrt.runtime.signature import Signature
from meshrt.sharding.mesh import AbstractMesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import PartitionSpec
from meshrt.sharding.typed import abstract

__all__ = ["Ref", "placed_types", "places_told", "told_types"]


class _RefType(type):
    """Traced references, and those to values of high types, are instances of `Ref` too. (`type(x) is Ref` tells those
    that hold one array from those that stand for some.)"""

    def __instancecheck__(cls, instance: Any) -> bool:
        # (What wraps a reference may hand on its attributes, the type among them, and is none.)
        return type.__instancecheck__(cls, instance) or (isinstance(instance, Tracer | HighRef) and is_ref(instance))


class RefSignature:
    """What dispatch needs to know of a reference: that it is one, and the signature of what it holds; interned."""

    __slots__ = ("__weakref__", "aval", "held")

    _interned: weakref.WeakValueDictionary[Any, RefSignature] = weakref.WeakValueDictionary()
    _lock = threading.Lock()

    aval: AbstractRef
    held: Signature

    def __new__(cls, aval: AbstractRef, held: Signature) -> RefSignature:
        with cls._lock:
            found = cls._interned.get((aval, held))
            if found is None:
                found = object.__new__(cls)
                found.aval, found.held = aval, held
                cls._interned[aval, held] = found
            return found


class Ref(metaclass=_RefType):
    """A reference to an array in memory that programs write to; made by `new_ref`.

    `ref[...]` reads what it holds, `ref[index]` a part, `ref[index] = value` writes. A jitted function that is given a
    reference, or closes over one, writes in place: it takes over the memory and gives it back.

    >>> import meshrt, meshrt.numpy as jnp
    >>> ref = meshrt.new_ref(jnp.zeros(3))
    >>> ref[1] = 2.0
    >>> ref
    Ref([0., 2., 0.], dtype=float32)
    """

    __slots__ = ("__weakref__", "_array", "_seen", "aval", "source")

    aval: AbstractRef
    _array: Array | None
    _seen: RefSignature | None

    def __init__(self, aval: AbstractRef, array: Array):
        self.aval, self._array, self._seen, self.source = aval, array, None, capture()

    def _held(self) -> Array:
        """The array that the reference holds now."""
        if self._array is None:
            raise errors.DeletedArrayError(
                f"the reference of type {self.aval} made at {self.source} was freed: make a new one with new_ref"
            )
        return self._array

    def _hold(self, array: Array | None) -> None:
        self._array = array

    @property
    def _sig(self) -> RefSignature:
        held = self._held()._sig
        seen = self._seen
        if seen is None or seen.held is not held:
            seen = self._seen = RefSignature(self.aval, held)
        return seen

    @property
    def _buf(self) -> Any:
        return self._held()._buf

    @property
    def shape(self) -> tuple[int, ...]:
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        return self.aval.ndim

    @property
    def size(self) -> int:
        return self.aval.size

    @property
    def nbytes(self) -> int:
        return self.aval.nbytes

    @property
    def weak_type(self) -> bool:
        return self.aval.weak_type

    @property
    def sharding(self) -> Any:
        """Where the parts of what it holds lie; writing does not change it."""
        return self._held().sharding

    @property
    def format(self) -> Any:
        """Layout and sharding of what it holds."""
        return self._held().format

    @property
    def committed(self) -> bool:
        """A reference stays where it is."""
        return True

    _committed = committed

    def unsafe_buffer_pointer(self) -> int:
        """The address of what it holds, on its one device."""
        pointer: int = self._held().unsafe_buffer_pointer()
        return pointer

    def block_until_ready(self) -> Ref:
        """Waits until what was written is there."""
        self._held().block_until_ready()
        return self

    def __len__(self) -> int:
        if not self.aval.shape:
            raise TypeError("len() of unsized object: what the reference holds has no dimensions")
        return self.aval.shape[0]

    def __repr__(self) -> str:
        return "Ref(freed)" if self._array is None else "Ref" + repr(self._array)[5:]


register_aval(Ref, lambda ref: ref.aval)


def placed_types(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """The types of arguments, or of what stands for them; those of references say how axes of all types split what
    they hold, as far as it is known."""
    return tuple([_placed(x) if is_ref_type(known := abstract(x)) else known for x in leaves])


def _placed(ref: Any) -> Any:
    return placed_type(ref) if is_ref(ref) else abstract(ref).update(placed=_placing(ref))  # (a struct)


def told_types(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """As `placed_types`, with the places of arrays too: what a trace is told that asked."""
    types = placed_types(leaves)
    return tuple([t if is_ref_type(t) or t.is_high else with_place(t, _found(x)) for t, x in zip(types, leaves)])


def _found(value: Any) -> Any:
    return place_of(value) if isinstance(value, Tracer) else _placing(value)


def places_told(avals: Iterable[Any], shardings: Iterable[NamedSharding | None]) -> tuple[Any, ...]:
    """The types of a call's arguments with how axes of all types split arrays among them, by the `shardings` of those
    that lie on a mesh; the others are whole on all of its devices. (Types of references say it themselves.)"""
    split = [_WHOLE if s is None or s.spec == _WHOLE.spec else s for s in shardings]
    return tuple([a if is_ref_type(a) else Placed(a, s) for a, s in zip(avals, split)])


def _placing(value: Any) -> NamedSharding:
    sharding = getattr(value, "sharding", None)
    return sharding.abstract() if isinstance(sharding, NamedSharding) else _WHOLE


for _kind in (Ref, Array, np.ndarray):
    register_placing(_kind, _placing)

_WHOLE = NamedSharding(AbstractMesh((), ()), PartitionSpec())
