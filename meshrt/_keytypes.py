"""Extended dtypes: element types with a meaning of their own over a physical array of numbers.

Those of random-number keys are ours: an array of shape ``s`` and dtype ``key<fry>`` is held as ``uint32[*s, 2]``.
Libraries define others, by the rules that stand in their ``_rules``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from meshrt.errors import UnsupportedError


class MissingDTypeRuleError(UnsupportedError):
    """An extended dtype has no rule for what it is used for."""


class extended(np.generic):
    """Abstract scalar type above every extended dtype, for ``issubdtype``; never instantiated."""


class prng_key(extended):
    """Abstract scalar type of random-number keys, for ``issubdtype``; never instantiated."""


class ExtendedDType:
    """Base of extended dtypes.

    Subclasses give ``type`` (their place below :class:`extended`), ``name``, and either ``physical_dtype`` and
    ``physical_suffix`` (the trailing shape that one element takes in the physical array) or ``_rules``, functions of
    the dtype that say what it means, of which those are needed that are used:

    * ``physical_element_aval(dtype)``: the shape and dtype of one element in the physical array;
    * ``allow_conversion``, or ``convert_to(number_dtype, dtype)`` and ``convert_from(dtype, number_dtype)``: whether
      the physical array becomes one of ``dtype``, and the other way round;
    * ``tangent_dtype(dtype)``, ``add(dtype, x, y)`` and ``zero(dtype)``: what derivatives are elements of, how two of
      them are added, and a scalar that adds nothing;
    * ``full(shape, value, dtype)``: an array filled with a number.
    """

    __slots__ = ()

    type: ClassVar[type] = extended
    kind: ClassVar[str] = "V"
    # Whether programs keep the numbers themselves where they keep such elements, as those of semaphores, which count.
    counts: ClassVar[bool] = False
    name: str
    _rules: ClassVar[Any] = None

    def rule(self, name: str) -> Any:
        """What the dtype's rules have under a name.

        Raises:
          MissingDTypeRuleError: nothing.
        """
        found = getattr(self._rules, name, None)
        if found is None:
            raise MissingDTypeRuleError(
                f"the extended dtype {self} says nothing of {name!r}: define it in the dtype's _rules"
            )
        return found

    @property
    def physical_dtype(self) -> np.dtype:
        """The dtype of the physical array."""
        return np.dtype(self.rule("physical_element_aval")(self).dtype)

    @property
    def physical_suffix(self) -> tuple[int, ...]:
        """The trailing shape that one element takes in the physical array."""
        return tuple(self.rule("physical_element_aval")(self).shape)

    def is_converted(self, number_dtype: Any, back: bool) -> bool:
        """Whether an array of numbers may become one of this dtype; with `back`, whether the opposite may happen."""
        name = "convert_from" if back else "convert_to"
        allowed = getattr(self._rules, name, None)
        if allowed is None:
            return bool(getattr(self._rules, "allow_conversion", False))
        return bool(allowed(self, number_dtype) if back else allowed(number_dtype, self))

    @property
    def derivatives(self) -> Any:
        """The dtype of derivatives in arrays of this dtype; None if there are none."""
        rule = getattr(self._rules, "tangent_dtype", None)
        return None if rule is None else rule(self)

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
    _interned: ClassVar[dict[KeyImpl, KeyType]] = {}

    impl: KeyImpl
    name: str
    physical_suffix: tuple[int, ...]
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
