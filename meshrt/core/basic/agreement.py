"""Operands that vary over different Manual axes are made to agree, where types say what varies.

In `x{V:x} * w` each device multiplies by its own copy of `w`: `pvary` says so, and its transpose adds up the devices'
cotangents. `Primitive.bind` asks for it before any trace sees the operands, and only while a manual region is being
traced or transformed somewhere in the process.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from meshrt.config import settings
from meshrt.core.basic.varying import cast_needed, in_order, vary
from meshrt.core.primitive import Primitive, set_agreement
from meshrt.core.trace import Tracer
from meshrt.core.types import aval_of

__all__ = ["agree", "varying_types"]


def agree(primitive: Primitive, operands: Sequence[Any], params: dict[str, Any]) -> Sequence[Any]:
    """The operands of one application; traced ones vary over all axes over which any of them does.

    Constants stay as they are: they have no cotangents, and a result varies over what any operand varies over.
    Operands of Jaxprs vary over what the types of their arguments say.

    Raises:
      ArgumentValueError: traced operands differ in it, and the setting `auto_pcast` is off.
    """
    if primitive.typed:
        return operands if primitive.varies is None else _as_declared(operands, primitive.varies(params))
    first, differ = None, False
    for x in operands:
        if isinstance(x, Tracer):
            vma = x.aval.vma
            if first is None:
                first = vma
            elif vma is not first and vma != first:
                differ = True
    if not differ:
        return operands
    union = frozenset[Any]().union(*[x.aval.vma for x in operands if isinstance(x, Tracer)])
    axes = in_order(union)
    if not settings.auto_pcast:
        raise cast_needed(primitive.name, [x.aval for x in operands if isinstance(x, Tracer)], axes)
    return [vary(x, axes) if isinstance(x, Tracer) else x for x in operands]


def _as_declared(operands: Sequence[Any], declared: Sequence[Any]) -> Sequence[Any]:
    """`declared` has axes, and types for values of high types."""
    arrays = [(x, d) for x, d in zip(operands, declared) if isinstance(d, frozenset)]
    if len(arrays) == len(operands) and all(aval_of(x).vma.issuperset(axes) for x, axes in arrays):
        return operands
    return [
        vary(x, in_order(d - aval_of(x).vma) if isinstance(d, frozenset) else d) for x, d in zip(operands, declared)
    ]


_lock = threading.Lock()
_open = 0


class varying_types:
    """Inside a `with`, a manual region is traced or transformed whose types say what varies."""

    __slots__ = ()

    def __enter__(self) -> None:
        global _open
        with _lock:
            _open += 1
            set_agreement(agree)

    def __exit__(self, *_: object) -> None:
        global _open
        with _lock:
            _open -= 1
            if not _open:
                set_agreement(None)
