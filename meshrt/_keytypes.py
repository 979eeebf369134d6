"""Extended dtypes: element types with a meaning of their own over a physical array of numbers.

Random-number keys are the only ones so far. An array of shape ``s`` and dtype ``key<fry>`` is held as
``uint32[*s, 2]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np


class extended(np.generic):
    """Abstract scalar type above every extended dtype, for ``issubdtype``; never instantiated."""


class prng_key(extended):
    """Abstract scalar type of random-number keys, for ``issubdtype``; never instantiated."""


class ExtendedDType:
    """Base of extended dtypes.

    Subclasses give ``type`` (their place below :class:`extended`), ``name``, ``physical_dtype`` and
    ``physical_suffix`` (the trailing shape that one element takes in the physical array).
    """

    __slots__ = ()

    type: ClassVar[type] = extended
    name: str
    physical_dtype: np.dtype
    physical_suffix: tuple[int, ...]

    def physical_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the physical array behind an array of ``shape`` elements."""
        return (*shape, *self.physical_suffix)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return int(np.prod(self.physical_suffix, dtype=int)) * self.physical_dtype.itemsize


@dataclass(frozen=True, slots=True)
class KeyImpl:
    """A family of random-number generators as far as types are concerned.

    ``name`` is what users select it by, ``tag`` is what printed types show. ``functions`` are those that a user defined
    it by, hashable; None where meshrt has them.
    """

    name: str
    tag: str
    key_shape: tuple[int, ...]
    functions: Any = None

    def __str__(self) -> str:
        return self.tag


#: Known generators by name.
KEY_IMPLS: dict[str, KeyImpl] = {
    "threefry2x32": KeyImpl("threefry2x32", "fry", (2,)),
    "rbg": KeyImpl("rbg", "rbg", (4,)),
    "unsafe_rbg": KeyImpl("unsafe_rbg", "urbg", (4,)),
    "philox2x32": KeyImpl("philox2x32", "phx2", (1,)),
    "philox4x32": KeyImpl("philox4x32", "phx4", (2,)),
    "threefry4x32": KeyImpl("threefry4x32", "fry4", (4,)),
}


class KeyType(ExtendedDType):
    """The dtype of random-number keys of one generator; interned, so equal means identical."""

    __slots__ = ("__weakref__", "_hash", "impl", "name", "physical_suffix")

    type: ClassVar[Any] = prng_key
    physical_dtype = np.dtype("uint32")
    kind: ClassVar[str] = "V"
    _interned: ClassVar[dict[KeyImpl, KeyType]] = {}

    impl: KeyImpl
    _hash: int

    def __new__(cls, impl: KeyImpl | str) -> KeyType:
        if isinstance(impl, str):
            if impl not in KEY_IMPLS:
                raise ValueError(f"unknown key implementation {impl!r}; known: {', '.join(KEY_IMPLS)}")
            impl = KEY_IMPLS[impl]
        found = cls._interned.get(impl)
        if found is None:
            found = object.__new__(cls)
            found.impl = impl
            found.name = f"key<{impl.tag}>"
            found.physical_suffix = impl.key_shape
            found._hash = hash((KeyType, impl))
            found = cls._interned.setdefault(impl, found)
        return found

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple:
        return (KeyType, (self.impl,))
