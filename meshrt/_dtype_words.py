"""Words about dtypes that no array can have: what they are, and what to do about them."""

from __future__ import annotations

import numpy as np

_KINDS = {
    "U": "text", "S": "text", "T": "text", "O": "Python objects", "M": "dates", "m": "times", "V": "a structure",
}  # fmt: skip
_ENCODE = "encode it as numbers first, e.g. numpy.frombuffer(text.encode(), numpy.uint8)"
_COUNT = "convert it to a number first, e.g. x.astype('int64')"
_REMEDIES = {
    "U": _ENCODE, "S": _ENCODE, "T": _ENCODE, "M": _COUNT, "m": _COUNT,
    "O": "give numbers, or lists of equal length of numbers; keep other objects in the pytree around the arrays",
    "V": "take its fields apart first, as in x['name']",
}  # fmt: skip

EXAMPLES = "pass a dtype such as 'float32', jnp.bfloat16 or float"


def described(dt: np.dtype) -> str:
    """``dtype <U1 (text)``."""
    kind = _KINDS.get(dt.kind)
    return f"dtype {dt}" + (f" ({kind})" if kind else "")


def remedy(dt: np.dtype) -> str:
    """How to make an array of values of a dtype that arrays cannot have."""
    return _REMEDIES.get(
        dt.kind,
        "convert it to bool, an integer, a float or a complex type of at most 64 bits per part, in native byte order, "
        "e.g. x.astype('float32')",
    )
