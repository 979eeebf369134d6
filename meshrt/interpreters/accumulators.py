"""What backward rules give cotangents to: one accumulator per argument (names are ``jax.interpreters.ad``'s)."""

from __future__ import annotations

from typing import Any

from meshrt.core.basic.pointwise import add_tangents

__all__ = ["GradAccum", "NullAccum", "RefAccum", "ValAccum"]


class GradAccum:
    """Takes cotangents of an argument of a type with cotangents of type `aval`; `accum(ct)` adds one."""

    __slots__ = ("aval",)

    def __init__(self, aval: Any):
        self.aval = aval

    def accum(self, ct: Any) -> None:
        """Adds a cotangent (None: zero)."""
        raise NotImplementedError(f"{type(self).__name__} requires a method accum")

    def freeze(self) -> Any:
        """The sum of what was given, None for zero; nothing is added any more."""
        raise NotImplementedError(f"{type(self).__name__} requires a method freeze")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.aval})"


class ValAccum(GradAccum):
    """Adds cotangents up as values."""

    __slots__ = ("value",)

    def __init__(self, aval: Any, value: Any = None):
        super().__init__(aval)
        self.value = value

    def accum(self, ct: Any) -> None:
        self.value = add_tangents(self.value, ct)

    def freeze(self) -> Any:
        return self.value


class RefAccum(GradAccum):
    """Adds cotangents to what a Ref holds."""

    __slots__ = ("ref",)

    def __init__(self, aval: Any, ref: Any):
        super().__init__(aval)
        self.ref = ref

    def accum(self, ct: Any) -> None:
        if ct is not None:
            self.ref[...] = add_tangents(self.ref[...], ct)

    def freeze(self) -> Any:
        return None


class NullAccum(GradAccum):
    """Of an argument whose cotangent nobody needs. What is added is dropped: rules may ask and save the work."""

    __slots__ = ()

    def accum(self, ct: Any) -> None:
        pass

    def freeze(self) -> Any:
        return None
