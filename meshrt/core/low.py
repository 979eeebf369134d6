"""What array types answer to the questions that high types are asked (`meshrt.core.high`): they consist of themselves.

So a high type may be made of other types without asking which of them are high.
"""

from __future__ import annotations

from typing import Any

__all__ = ["LowType"]


class LowType:
    """The protocol of high types, for the type of an array: `lo_ty` is the type, a mapping spec a dimension."""

    __slots__ = ()

    def lo_ty(self) -> list[Any]:
        """The types of the arrays that a value consists of: this one."""
        return [self]

    def lower_val(self, value: Any) -> list[Any]:
        """The arrays that a value consists of."""
        return [value]

    def raise_val(self, *arrays: Any) -> Any:
        """The value that consists of these arrays."""
        (value,) = arrays
        return value

    def normalize(self: Any) -> Any:
        """The type as it is compared: without weakness."""
        return self.strong()

    def to_ct_aval(self: Any) -> Any:
        """The type of cotangents: partial sums where values are copies, and the other way round."""
        kind = self.to_tangent_aval()
        sums = getattr(kind, "explicit", None)
        if sums is None or not (sums.spec.unreduced or sums.spec.reduced):
            return kind
        spec = sums.spec.update(unreduced=sums.spec.reduced, reduced=sums.spec.unreduced)
        return kind.update(sharding=sums.update(spec=spec))

    def at_least_vspace(self: Any) -> Any:
        """The type of derivatives, under the name by which libraries ask types of JAX for it."""
        return self.to_tangent_aval()

    def dec_rank(self: Any, size: int | None, spec: int | None) -> Any:
        """The type of one member of a batch along dimension `spec` (None: all share the value)."""
        return self if spec is None else _as_told(self, self.without(spec))

    def inc_rank(self: Any, size: int | None, spec: int | None) -> Any:
        """The type of a batch of `size` members along dimension `spec`."""
        if spec is None:
            return self
        return _as_told(self, self.with_shape((*self.shape[:spec], size, *self.shape[spec:])))

    def leading_axis_spec(self) -> int:
        """The dimension along which loops run."""
        return 0

    def vspace_add(self, x: Any, y: Any) -> Any:
        """The sum of two values of this type."""
        return x + y


def _as_told(aval: Any, other: Any) -> Any:
    """`other` in the form of `aval`: users are told of a sharding also where it splits nothing (`in_program`)."""
    if aval.explicit is None or any(aval.explicit.spec.partitions) or other.explicit is not None:
        return other
    return other.update(sharding=aval.explicit.replicated(other.ndim))
