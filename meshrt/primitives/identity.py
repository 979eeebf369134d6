"""Identities with a meaning: copy, stop_gradient, optimization_barrier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt import tree_util
from meshrt.core.basic.pointwise import nary
from meshrt.core.explicit import moved
from meshrt.core.lojax import arrays_of, raised
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.types import aval_of
from meshrt.runtime.array import Array
from meshrt.runtime.transfer import put_leaf

copy_p = nary(
    "copy", "", 1, kinds="biufc", lower=lambda ctx, eqn, x: x,
    derivatives=[lambda t, o, x: t], transpose=lambda ct, x: [ct], cheap=True, finite=True, sums=moved,
)  # fmt: skip


class _OfAnyType(Primitive):
    """An operation that gives its operands back, those of high types too: whole, until they are lowered."""

    __slots__ = ()

    def is_high(self, *avals: Any, **params: Any) -> bool:
        return any(a.is_high for a in avals)


def _stopped(value: Any) -> Any:
    kind: Any = aval_of(value)
    return kind.raise_val(*map(stop_gradient, kind.lower_val(value)))


def _evaluate(x: Any) -> Any:
    """An array as it is: nothing is computed, and nothing looked at by `debug_nans`."""
    return x if type(x) is Array else put_leaf(x, None, False, None)


stop_gradient_p: Primitive = _OfAnyType(
    "stop_gradient", lambda x: x, lower=lambda ctx, eqn, x: x,
    jvp=lambda primals, tangents: (stop_gradient_p.bind(*primals), None),
    batch=lambda size, args, dims, params: (stop_gradient_p.bind(*args), dims[0]), cheap=True,
    absent=NOT_LINEAR, finite=True, sums=moved, to_lojax=_stopped, impl=_evaluate,
)  # fmt: skip


def stop_gradient(x: Any) -> Any:
    """The identity, with a zero derivative. Works on pytrees.

    >>> meshrt.grad(lambda x: x * lax.stop_gradient(x))(3.0)
    Array(3., dtype=float32, weak_type=True)
    """
    return tree_util.tree_map(lambda leaf: stop_gradient_p.bind(leaf) if aval_of(leaf).is_differentiable else leaf, x)


def _barrier_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    out = optimization_barrier_p.bind(*primals)
    live = [t for t in tangents if t is not None]
    moved = iter(optimization_barrier_p.bind(*live)) if live else iter(())
    return out, [None if t is None else next(moved) for t in tangents]


def _barrier_transpose(cts: Sequence[Any], *xs: Any) -> list[Any]:
    live = [c for c in cts if c is not None]
    moved = iter(optimization_barrier_p.bind(*live))
    return [None if c is None else next(moved) for c in cts]


def _barrier_of_arrays(*values: Any) -> list[Any]:
    kinds = list(map(aval_of, values))
    return raised(kinds, iter(optimization_barrier_p.bind(*arrays_of(values))))


optimization_barrier_p: Primitive = _OfAnyType(
    "optimization_barrier", lambda *xs: xs, multiple_results=True, typed=True, jvp=_barrier_jvp,
    transpose=_barrier_transpose,
    batch=lambda size, args, dims, params: (optimization_barrier_p.bind(*args), dims),
    lower=lambda ctx, eqn, *xs: ctx.ops("stablehlo.optimization_barrier", xs, [v.aval for v in eqn.outvars]),
    to_lojax=_barrier_of_arrays,
)  # fmt: skip


def optimization_barrier(operand: Any, /) -> Any:
    """The identity on a pytree, across which the compiler moves nothing.

    >>> lax.optimization_barrier((jnp.array([1]), jnp.array([2])))
    (Array([1], dtype=int32), Array([2], dtype=int32))
    """
    leaves, tree = tree_util.tree_flatten(operand)
    return tree_util.tree_unflatten(tree, optimization_barrier_p.bind(*leaves))
