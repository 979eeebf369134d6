"""Eager evaluation: a primitive applied to arrays is a jitted function of one equation, cached by its parameters."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from meshrt import config, heuristics
from meshrt.core.primitive import Primitive
from meshrt.core.source import replayed_compute
from meshrt.core.trace import EvalTrace
from meshrt.jit import jit
from meshrt.runtime.array import Array
from meshrt.runtime.transfer import SCALARS, scalar_beside

__all__ = ["evaluate"]

_functions: dict[Any, Any] = {}
# Those of loops, branches and other primitives over Jaxprs, least recently used first. A function written inside
# another is a new one, and a new Jaxpr, on every call, so these must not be kept for ever.
_over_jaxprs: OrderedDict[Any, Any] = OrderedDict()
_lock = threading.Lock()


def evaluate(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """Runs a primitive on arrays, NumPy values and Python scalars."""
    args = _on_one_device(args)
    key = (primitive, tuple(params.items()))
    table = _functions if primitive.cache_types else _over_jaxprs
    function = table.get(key)
    if function is None:
        if len(_functions) >= heuristics.KEPT_OPERATIONS:
            with _lock:
                for old in list(_functions)[: heuristics.KEPT_OPERATIONS // 2]:
                    _functions.pop(old, None)
        function = table[key] = _compiled(primitive, params)
    if table is _over_jaxprs:
        with _lock:  # another thread may drop the entry
            _over_jaxprs[key] = function
            _over_jaxprs.move_to_end(key)
            if len(_over_jaxprs) > heuristics.KEPT_OVER_JAXPRS:
                _over_jaxprs.popitem(last=False)
    asked = replayed_compute()
    if asked is not None and asked != (config.settings.compute_type or ""):
        with config.override(compute_type=asked or None):  # as the operation that is replayed was
            return function(*args)
    if config.settings.disable_jit:  # single operations are compiled all the same
        with config.override(disable_jit=False):
            return function(*args)
    return function(*args)


def _on_one_device(args: Sequence[Any]) -> Sequence[Any]:
    """Scalars beside an array of one device as arrays there, so that the call takes the short way."""
    for a in args:
        if isinstance(a, SCALARS):
            break
    else:
        return args
    for a in args:
        if type(a) is Array:
            if a._sig.sharding.num_devices > 1:
                return args
            return [scalar_beside(x, a) if isinstance(x, SCALARS) else x for x in args]
    return args


def _compiled(primitive: Primitive, params: dict[str, Any]) -> Any:
    def apply(*operands: Any) -> Any:
        return primitive.bind(*operands, **params)

    apply.__name__ = apply.__qualname__ = primitive.name
    apply.operation = primitive  # type: ignore[attr-defined]  # whose program this is
    return jit(apply)


def clear() -> None:
    """Forgets the compiled primitives."""
    _functions.clear()
    _over_jaxprs.clear()


EvalTrace.evaluate = staticmethod(evaluate)
