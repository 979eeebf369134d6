"""Rules of an operation on high types made from others that it defines: write `jvp = jvp_from_lin` in the class.

from jvp    lin, linearized = linearize_from_jvp
from jvp    vjp_fwd, vjp_bwd_retval = vjp_from_jvp
from lin    vjp_fwd, vjp_bwd_retval = vjp_from_lin
from lin    jvp = jvp_from_lin

Each half of a pair has a name of its own, too; and where a pair is assigned to one name, that is its first half:
`lin = linearize_from_jvp`, beside `linearized = apply_derived_linearization`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import MethodType
from typing import Any

from meshrt import errors
from meshrt.core.basic.shapes import zeros
from meshrt.core.jaxpr import Jaxpr
from meshrt.core.trace import context, eval_jaxpr, set_trace, trace_to_jaxpr
from meshrt.experimental.hijax.vjp_operations import Static, VJPHiPrimitive
from meshrt.interpreters.ad import Zero
from meshrt.transforms.linear import LinearTrace, LinearTracer, transpose_jaxpr
from meshrt.transforms.tools import hoist_consts

__all__ = [
    "apply_derived_linearization", "jvp_from_lin", "linearize_from_jvp", "transpose_jvp", "transpose_linearized",
    "vjp_from_jvp", "vjp_from_lin", "vjp_fwd_from_jvp", "vjp_fwd_from_lin",
]  # fmt: skip


def _instantiated(t: Any) -> Any:
    return zeros(t.aval) if type(t) is Zero else t


class RulePair:
    """Two rules that belong together: to be unpacked in a class, where as one attribute it is the first of them."""

    def __init__(self, doc: str, *rules: Callable[..., Any]):
        self.rules = rules
        self.__doc__ = doc

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter(self.rules)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self.rules[0], instance)

    def __call__(self, *args: Any) -> Any:
        return self.rules[0](*args)


def _lin_from_jvp(self: VJPHiPrimitive, nzs_in: Any, /, *args: Any) -> Any:
    """`lin` from `jvp`: (result, residuals, which results have a tangent). The residuals are those of its tangents."""
    flags = [bool(n) for n in self.in_tree.flatten_up_to(nzs_in)]

    def jvp_rule(*xs: Any) -> list[Any]:
        count = len(flags)
        given = iter(xs[count:])
        tangents = [next(given) if nz else Zero(a.to_tangent_aval()) for a, nz in zip(self.in_avals_flat, flags)]
        out, t_out = self.jvp(self.in_tree.unflatten(xs[:count]), self.in_tree.unflatten(tangents))
        return [*self.out_tree.flatten_up_to(out), *self.out_tree.flatten_up_to(t_out)]

    return _linear_part(self, jvp_rule, args, flags)


def _linear_part(self: VJPHiPrimitive, jvp_rule: Callable[..., Any], args: Any, flags: Sequence[bool]) -> Any:
    """Splits a jvp rule: the result and the residuals are computed now, the rest becomes a linear Jaxpr."""
    trace = LinearTrace(context.trace)
    inputs = [trace.input(a.to_tangent_aval()) for a, nz in zip(self.in_avals_flat, flags) if nz]
    with set_trace(trace):
        outs = jvp_rule(*self.in_tree.flatten_up_to(args), *inputs)
    count = len(self.out_avals_flat)
    tangents = [t if type(t) is LinearTracer and t._trace is trace else None for t in outs[count:]]
    jaxpr, residuals = trace.to_jaxpr(inputs, [t for t in tangents if t is not None], type(self).__name__)
    live = tuple(t is not None for t in tangents)
    static = Static((jaxpr, tuple(flags), live))
    return self.out_tree.unflatten(outs[:count]), (residuals, static), self.out_tree.unflatten(live)


def apply_derived_linearization(self: VJPHiPrimitive, residuals: Any, *tangents: Any) -> Any:
    """`linearized` beside `lin = linearize_from_jvp`."""
    values, static = residuals
    jaxpr, flags, live = static.val
    given = [_instantiated(t) for t, nz in zip(self.in_tree.flatten_up_to(tangents), flags) if nz]
    found = iter(eval_jaxpr(jaxpr, (), [*values, *given]))
    return self.out_tree.unflatten(
        [next(found) if l else Zero(a.to_tangent_aval()) for a, l in zip(self.out_avals_flat, live)]
    )


def vjp_fwd_from_jvp(self: VJPHiPrimitive, nzs_in: Any, /, *args: Any) -> Any:
    """`vjp_fwd` from `jvp`, beside `vjp_bwd_retval = transpose_jvp`."""
    return _lin_from_jvp(self, nzs_in, *args)


def transpose_jvp(self: VJPHiPrimitive, residuals: Any, outgrad: Any, /) -> Any:
    """`vjp_bwd_retval` beside `vjp_fwd = vjp_fwd_from_jvp`: the transpose of what `jvp` does to tangents."""
    values, static = residuals
    jaxpr, flags, live = static.val
    return _transposed(self, jaxpr, values, flags, live, outgrad)


def _transposed(
    self: VJPHiPrimitive, jaxpr: Jaxpr, values: Sequence[Any], flags: Sequence[bool], live: Sequence[bool], ct: Any
) -> Any:
    """The cotangents of the arguments that have one, `Zero` for others."""
    cts = [None if type(c) is Zero else c for c, l in zip(self.out_tree.flatten_up_to(ct), live) if l]
    linear = (False,) * len(values) + (True,) * sum(flags)
    back, nonzeros = transpose_jaxpr(jaxpr, linear, tuple(c is not None for c in cts))
    pulled = iter(eval_jaxpr(back.jaxpr, (), [*back.consts, *values, *[c for c in cts if c is not None]]))
    mine = iter([next(pulled) if nz else None for nz in nonzeros])
    found = [next(mine) if nz else None for nz in flags]
    return self.in_tree.unflatten([Zero(a.to_ct_aval()) if c is None else c for a, c in zip(self.in_avals_flat, found)])


def vjp_fwd_from_lin(self: VJPHiPrimitive, nzs_in: Any, /, *args: Any) -> Any:
    """`vjp_fwd` from `lin` and `linearized`, beside `vjp_bwd_retval = transpose_linearized`."""
    out, residuals, *more = self.lin(nzs_in, *args)
    flags = Static(tuple(bool(n) for n in self.in_tree.flatten_up_to(nzs_in)))
    return out, ((residuals, *more[1:]), flags), *more[:1]


def transpose_linearized(self: VJPHiPrimitive, res: Any, outgrad: Any, /) -> Any:
    """`vjp_bwd_retval` beside `vjp_fwd = vjp_fwd_from_lin`: the transpose of `linearized`."""
    residuals, static = res
    flags = static.val
    live = [True] * len(self.out_avals_flat)

    def push(*tangents: Any) -> list[Any]:
        given = iter(tangents)
        shown = [next(given) if nz else Zero(a.to_tangent_aval()) for a, nz in zip(self.in_avals_flat, flags)]
        out = self.linearized(*residuals, *self.in_tree.unflatten(shown))
        return [_instantiated(t) for t in self.out_tree.flatten_up_to(out)]

    avals = [a.to_tangent_aval() for a, nz in zip(self.in_avals_flat, flags) if nz]
    closed = hoist_consts(trace_to_jaxpr(push, avals, type(self).__name__, requires_low=False))
    return _transposed(self, closed.jaxpr, closed.consts, flags, live, outgrad)


def jvp_from_lin(self: VJPHiPrimitive, primals: Any, tangents: Any) -> Any:
    """`jvp` from `lin` and `linearized`.

    Raises:
      ArgumentTypeError: `lin` is itself derived from `jvp`.
    """
    if type(self).lin in (linearize_from_jvp, _lin_from_jvp):
        raise errors.ArgumentTypeError(
            f"{type(self).__name__} has jvp = jvp_from_lin and lin = linearize_from_jvp: each is derived from the "
            "other. Define one of them"
        )
    nonzeros = tuple(type(t) is not Zero for t in self.in_tree.flatten_up_to(tangents))
    out, residuals, *more = self.lin(self.in_tree.unflatten(nonzeros), *primals)
    return out, self.linearized(residuals, *more[1:], *tangents)


linearize_from_jvp = RulePair(
    "`lin` and `linearized`, from `jvp`: `lin, linearized = linearize_from_jvp`.",
    _lin_from_jvp, apply_derived_linearization,
)  # fmt: skip
vjp_from_jvp = RulePair(
    "`vjp_fwd` and `vjp_bwd_retval`, from `jvp`: `vjp_fwd, vjp_bwd_retval = vjp_from_jvp`.",
    vjp_fwd_from_jvp, transpose_jvp,
)  # fmt: skip
vjp_from_lin = RulePair(
    "`vjp_fwd` and `vjp_bwd_retval`, from `lin` and `linearized`: `vjp_fwd, vjp_bwd_retval = vjp_from_lin`.",
    vjp_fwd_from_lin, transpose_linearized,
)  # fmt: skip
