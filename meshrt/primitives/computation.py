"""The scalar computations that `reduce`, `reduce_window` and `scatter_apply` are given as Python functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors, tree_util
from meshrt.core.jaxpr import Jaxpr, Literal
from meshrt.core.primitive import Primitive
from meshrt.core.trace import Tracer, eval_jaxpr, trace_to_jaxpr
from meshrt.core.types import ShapedArray
from meshrt.lowering.context import LoweringContext

__all__: list[str] = []


def scalar_jaxpr(name: str, computation: Callable[..., Any], avals: Sequence[ShapedArray], tree: Any) -> Jaxpr:
    """The program of `computation(a, b)` for two pytrees `tree` of scalars of these types: their leaves, one after the
    other, to the leaves of the result, which has to be such a pytree too.

    Arrays from outside become constants of the program.

    Raises:
      ArgumentTypeError: the result is no pytree of such scalars.
      UnsupportedError: the computation uses values that are being traced, or has effects.
    """
    n = len(avals)
    scalars = [ShapedArray((), a.dtype, a.weak_type) for a in avals]

    def flat(*xs: Any) -> list[Any]:
        outs, found = tree_util.tree_flatten(computation(tree.unflatten(xs[:n]), tree.unflatten(xs[n:])))
        if found != tree:
            raise errors.ArgumentShapeError(
                f"{name} output must have the same tree structure as the operands: its computation got {tree} and "
                f"returned {found}"
            )
        return outs

    closed = trace_to_jaxpr(flat, [*scalars, *scalars], name)
    if any(isinstance(c, Tracer) for c in closed.consts):
        raise errors.UnsupportedError(
            f"the computation of {name} cannot close over traced values: Reduction computations can't close over "
            "Tracers; pass them as operands"
        )
    if closed.effects:
        raise errors.UnsupportedError(f"the computation of {name} has effects, {set(closed.effects)}; compute only")
    jaxpr = with_constants(name, closed.jaxpr, closed.consts)
    outs = [(o.shape, o.dtype) for o in jaxpr.out_avals]
    if outs != [(s.shape, s.dtype) for s in scalars]:
        given = ", ".join(a.short() for a in jaxpr.out_avals)
        wanted = ", ".join(s.short() for s in scalars)
        raise errors.ArgumentTypeError(
            f"the computation of {name} must return scalars of the operands' dtypes, {wanted}, but gives {given}"
        )
    return jaxpr


def with_constants(name: str, jaxpr: Jaxpr, consts: Sequence[Any]) -> Jaxpr:
    """The scalar computation `jaxpr` with its captured scalars written into it.

    Raises:
      UnsupportedError: it captures arrays that are no scalars.
    """
    if not consts:
        return jaxpr
    scalars = [np.asarray(c)[()] for c in consts]
    closed = trace_to_jaxpr(lambda *xs: eval_jaxpr(jaxpr, scalars, xs), jaxpr.in_avals, name)
    if closed.consts:
        raise errors.UnsupportedError(f"the computation of {name} cannot use arrays from outside; pass scalars")
    return closed.jaxpr


def combining_region(ctx: LoweringContext, op: str, dtype: Any, extremum: Primitive | None = None) -> Any:
    """The region of a reduction by the binary operation `op` of StableHLO: by a maximum or minimum, `extremum` is the
    primitive that it is on two scalars.

    Complex numbers are ordered by their imaginary parts where their real parts are equal, which XLA's own maximum does
    not do.
    """
    if extremum is None or not dtypes.issubdtype(dtype, np.complexfloating):
        return ctx.scalar_region(op, dtype)
    scalar = ShapedArray((), dtype)
    return ctx.region(trace_to_jaxpr(lambda a, b: [extremum.bind(a, b)], [scalar, scalar], extremum.name).jaxpr)


def only_operation(jaxpr: Jaxpr) -> Primitive | None:
    """The primitive that is all that a computation on two scalars does, in either order."""
    if len(jaxpr.eqns) != 1 or len(jaxpr.invars) != 2:
        return None
    (eqn,) = jaxpr.eqns
    if set(eqn.invars) != set(jaxpr.invars) or any(type(a) is Literal for a in jaxpr.outvars):
        return None
    return eqn.primitive


def is_of_lax(computation: Callable[..., Any]) -> bool:
    """Whether it is a function of `meshrt.lax`, not one that a user wrote."""
    return (getattr(computation, "__module__", None) or "").startswith(("meshrt.lax", "meshrt.primitives."))


def starts_from(init: Any, identity: Any, dtype: Any) -> bool:
    """Whether an initial value is known, and is `identity` as a number of `dtype`."""
    if isinstance(init, Tracer):
        init = init.concrete()
    if init is None or isinstance(dtype, dtypes.ExtendedDType):
        return False
    value = np.asarray(init)
    if value.dtype.kind == "f" and not value.shape and dtypes.issubdtype(dtype, np.integer):
        if np.isinf(value):  # of integers, the largest and the smallest
            info = dtypes.iinfo(dtype)
            return bool(int(identity) == (info.max if value > 0 else info.min))
        if value != np.trunc(value):
            return False
    return not value.shape and bool(value.astype(dtype) == np.asarray(identity).astype(dtype))
