"""`jit` as an operation inside a program: a call of a named function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt.core.basic.varying import declared
from meshrt.core.jaxpr import Eqn, Jaxpr
from meshrt.core.lojax import opened_call
from meshrt.core.primitive import Primitive, is_undefined
from meshrt.core.types import ShapedArray
from meshrt.lowering.context import LoweringContext
from meshrt.transforms.batching import MappedAxis, batch_jaxpr, flags_of, led
from meshrt.transforms.discharge import call_rule
from meshrt.transforms.jvp import jvp_jaxpr
from meshrt.transforms.linear import LinearTrace, transpose_jaxpr
from meshrt.transforms.linearize import linearize_jaxpr
from meshrt.transforms.ordering import thread_call
from meshrt.transforms.running_sums import returning
from meshrt.transforms.tools import WeakCache, dce

__all__: list[str] = []


def _infer(*avals: ShapedArray, jaxpr: Jaxpr, name: str) -> Any:
    return jaxpr.out_avals


def _lower(ctx: LoweringContext, eqn: Eqn, *operands: Any) -> Any:
    return ctx.call(eqn.params["jaxpr"], operands, eqn.params["name"])


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Jaxpr, name: str) -> tuple[Any, Any]:
    nonzeros = tuple(t is not None for t in tangents)
    closed, out_nonzeros = jvp_jaxpr(jaxpr, nonzeros)
    outs = jit_p.bind(*closed.consts, *primals, *[t for t in tangents if t is not None], jaxpr=closed.jaxpr, name=name)
    n = len(jaxpr.outvars)
    rest = iter(outs[n:])
    return outs[:n], [next(rest) if nz else None for nz in out_nonzeros]


def _linearize(linear: LinearTrace, primals: Sequence[Any], tangents: Sequence[Any], params: dict[str, Any]) -> Any:
    jaxpr, name = params["jaxpr"], params["name"]
    done = linearize_jaxpr(jaxpr, tuple(t is not None for t in tangents))
    n = len(jaxpr.outvars)
    results = jit_p.bind(*done.forward.consts, *primals, jaxpr=done.forward.jaxpr, name=name)
    outs, new = results[:n], results[n:]
    if not any(done.nonzeros_out):
        return outs, [None] * n
    residuals = done.residuals(primals, outs, new)
    moved = linear.record(
        jit_p, [*residuals, *[t for t in tangents if t is not None]], {"jaxpr": done.linear, "name": name}
    )
    rest = iter(moved)
    return outs, [next(rest) if nz else None for nz in done.nonzeros_out]


def _transpose(cts: Sequence[Any], *args: Any, jaxpr: Jaxpr, name: str) -> list[Any]:
    linear = tuple(is_undefined(a) for a in args)
    back, nonzeros = transpose_jaxpr(jaxpr, linear, tuple(c is not None for c in cts))
    known = [a for a in args if not is_undefined(a)]
    pulled = iter(jit_p.bind(*back.consts, *known, *[c for c in cts if c is not None], jaxpr=back.jaxpr, name=name))
    flags = iter(nonzeros)
    return [(next(pulled) if next(flags) else None) if lin else None for lin in linear]


def _passing(params: dict[str, Any], positions: Sequence[int]) -> tuple[dict[str, Any], Sequence[int], int]:
    jaxpr = params["jaxpr"]
    at = len(jaxpr.outvars)
    return {**params, "jaxpr": returning(jaxpr, positions, at)}, range(len(jaxpr.invars)), at


def _batch(axis: MappedAxis, args: list[Any], dims: list[int | None], params: dict[str, Any]) -> tuple[Any, Any]:
    moved = [led(a, d) for a, d in zip(args, dims)]
    closed, flags = batch_jaxpr(params["jaxpr"], axis, flags_of(args, dims))
    outs = jit_p.bind(*closed.consts, *moved, jaxpr=closed.jaxpr, name=params["name"])
    return outs, [0 if f else None for f in flags]


_dce_cache = WeakCache()


def _dce(eqn: Eqn, used: Sequence[bool]) -> Eqn:
    """The call without unused results, and without arguments that the rest does not need."""
    jaxpr, used = eqn.params["jaxpr"], tuple(used)
    body, needed = _dce_cache.get(jaxpr, used, lambda: dce(jaxpr, used, keep_inputs=False))
    if all(used) and all(needed) and len(body.eqns) == len(jaxpr.eqns):
        if all(a is b for a, b in zip(body.eqns, jaxpr.eqns)):
            return eqn
    invars = [a for a, n in zip(eqn.invars, needed) if n]
    return eqn.replace(invars, [v for v, u in zip(eqn.outvars, used) if u], {**eqn.params, "jaxpr": body})


def _bind(*args: Any, **params: Any) -> Any:
    return jit_p.bind(*args, **params)


jit_p: Primitive = Primitive(
    "jit", _infer, lower=_lower, jvp=_jvp, linearize=_linearize, transpose=_transpose, batch=_batch, batch_axis=True,
    batches_refs=True,
    dce=_dce, passing=_passing, discharge=call_rule(lambda: jit_p),
    effects=lambda *avals, jaxpr, name: jaxpr.effects, calls="jaxpr", thread=thread_call,
    multiple_results=True, cache_types=False, varies=lambda params: declared(params["jaxpr"].in_avals),
    applies=lambda params: [(params["jaxpr"], range(len(params["jaxpr"].invars)))],
    to_lojax=opened_call(_bind, True), unbox=opened_call(_bind, False),
)  # fmt: skip
