"""Operations that exist for the checker of random keys: they compute nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.types import ShapedArray

__all__ = ["assert_consumed_value_p", "consume_p", "random_clone_p"]


def _same(name: str) -> Primitive:
    def jvp(primals: Any, tangents: Any, **params: Any) -> Any:
        return made.bind(*primals, **params), None

    def batch(size: int, args: Any, dims: Any, params: dict[str, Any]) -> Any:
        return made.bind(*args, **params), dims[0]

    infer: Callable[..., ShapedArray] = lambda x, **_: x
    made = Primitive(name, infer, lower=lambda ctx, eqn, x: x, jvp=jvp, batch=batch, cheap=True, absent=NOT_LINEAR)
    return made


# A copy of keys that are meant to be used again.
random_clone_p = _same("random_clone")
# A copy of keys that counts as a use of them.
consume_p = _same("consume")
# The keys, of which `value` says which have been used up.
assert_consumed_value_p = _same("assert_consumed_value")


class Expected:
    """The parameter of `assert_consumed_value`: a mask, compared by its elements."""

    __slots__ = ("_key", "val")

    def __init__(self, value: Any):
        self.val = np.asarray(value, bool)
        self._key = (self.val.shape, self.val.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expected) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return str(self.val)
