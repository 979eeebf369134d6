"""What high types declare for their values: methods, properties, attributes, operators.

Tracers of high types look here where arrays have a method or attribute of their own (`meshrt.core.tracer.ask_types`),
and where they have none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from meshrt import errors

__all__ = ["UNDECLARED", "DeclaresAttributes", "NoArrayError", "aval_method", "aval_property", "unread"]

# What `DeclaresAttributes.declared` gives for a name that a type does not know.
UNDECLARED: Any = object()
# What tracers have of their types without a look at what these declare.
_ASKED_OF_TYPES = ("shape", "dtype", "ndim", "size", "itemsize")


class NoArrayError(errors.ArgumentTypeError, AttributeError):
    """A value of a high type was taken for an array."""


class aval_method:
    """A method that tracers of a type have, as an attribute of the type: `get = aval_method(box_get)`."""

    def __init__(self, fun: Callable[..., Any]):
        self.fun = fun


class aval_property:
    """A property that tracers of a type have, as an attribute of the type: `size = aval_property(size_of)`."""

    def __init__(self, fget: Callable[..., Any]):
        self.fget = fget


def unread(value: Any) -> NoReturn:
    """What a type declares (`aval_property(unread)`) for attributes that values have outside of traced functions alone,
    the arrays that they consist of."""
    raise NoArrayError(
        f"a traced value of type {value.aval.short()} is one operand: the arrays that it consists of are read outside "
        "of the traced function, or by operations on it"
    )


def _no_attribute(kind: Any) -> NoReturn:
    raise AttributeError(f"{type(kind).__name__} declares this for its values, by aval_property")


_NOT_OF_TYPES = property(_no_attribute)


class DeclaresAttributes:
    """Base of high types: what their class has is what their values have."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name[:1] == "_":
                raise AttributeError(name)
            raise NoArrayError(
                f"{type(self).__name__!r} object has no attribute {name!r}. Values of this high type are no arrays: "
                "what is to be done with them is an operation of their own, or takes the arrays that such operations "
                "give of them"
            )

    # What subclasses declare (`aval_property`) under names of `_ASKED_OF_TYPES`.
    _asked_of_values: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = {name: vars(cls)[name] for name in _ASKED_OF_TYPES if name in vars(cls)}
        found = {name: x for name, x in own.items() if type(x) is aval_property}
        if own:
            cls._asked_of_values = {n: x for n, x in cls._asked_of_values.items() if n not in own} | found
        for name in found:  # the type has none of its own, so that tracers look further
            setattr(cls, name, _NOT_OF_TYPES)

    def declared(self, name: str) -> Any:
        """What the type has under a name for its values: an `aval_method`, an `aval_property`, or a plain attribute,
        which values share. `UNDECLARED` if nothing.
        """
        found = self._asked_of_values.get(name)
        return getattr(self, name, UNDECLARED) if found is None else found
