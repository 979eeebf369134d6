"""Parts of the library whose interface may still change."""

from typing import Any

from meshrt import errors
from meshrt.core.types import aval_of
from meshrt.primitives.callback import io_callback

__all__ = ["cur_qdd", "io_callback"]


def cur_qdd(x: Any) -> Any:
    """What is known now of a value of a mutable high type beside its type: its type state.

    >>> from meshrt.experimental import cur_qdd
    >>> from meshrt.experimental.hijax import Box
    >>> cur_qdd(Box(1.0)).leaf_avals
    (ShapedArray(float32[], weak_type=True),)

    Raises TypeError for values of other types.
    """
    kind: Any = aval_of(x)
    if not getattr(kind, "has_qdd", False):
        raise errors.ArgumentTypeError(
            f"cur_qdd is asked of values of mutable types, whose contents may change theirs; this is {kind}"
        )
    return kind.qdd
