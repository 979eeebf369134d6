"""`jit` as an operation inside a program: a call of a named function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from meshrt import errors
from meshrt.core.basic.varying import declared
from meshrt.core.jaxpr import Eqn, Jaxpr
from meshrt.core.lojax import opened_call
from meshrt.core.marks import UNSPECIFIED
from meshrt.core.primitive import Primitive, is_undefined
from meshrt.core.trace import EvalTrace
from meshrt.core.types import ShapedArray
from meshrt.lowering.context import LoweringContext
from meshrt.sharding.mesh import empty_mesh
from meshrt.transforms.batching import MappedAxis, batch_jaxpr, flags_of, led
from meshrt.transforms.discharge import with_cells
from meshrt.transforms.jvp import jvp_jaxpr
from meshrt.transforms.linear import LinearTrace, transpose_jaxpr
from meshrt.transforms.linearize import linearize_jaxpr
from meshrt.transforms.ordering import thread_call
from meshrt.transforms.running_sums import returning
from meshrt.transforms.tools import WeakCache, dce

__all__: list[str] = []


class _Said(NamedTuple):
    """What calls say beside their program and name, under the names that JAX's have, for programs that read it.

    Shardings, layouts and compilers' options of a call within a program are equations around it or refused, so that
    transformations need not know of them; here is said that none are left.
    """

    in_shardings: tuple[Any, ...]
    out_shardings: tuple[Any, ...]
    in_layouts: tuple[None, ...]
    out_layouts: tuple[None, ...]
    donated_invars: tuple[bool, ...]
    ctx_mesh: Any = empty_mesh
    keep_unused: bool = False
    inline: bool = False
    compiler_options_kvs: tuple[()] = ()


@functools.lru_cache(maxsize=1024)
def _said(args: int, results: int) -> dict[str, Any]:
    of_args, of_results = (UNSPECIFIED,) * args, (UNSPECIFIED,) * results
    return _Said(of_args, of_results, (None,) * args, (None,) * results, (False,) * args)._asdict()


def call_params(
    jaxpr: Jaxpr, name: str, donated: Sequence[bool] | None = None, keep_unused: bool = False
) -> dict[str, Any]:
    """The parameters of a call of `jaxpr`, some of whose arguments its writer calls `donated`."""
    params = {"jaxpr": jaxpr, "name": name, **_said(len(jaxpr.invars), len(jaxpr.outvars)), "keep_unused": keep_unused}
    if donated is not None and True in donated:
        params["donated_invars"] = tuple(donated)
    return params


def call_jaxpr(
    jaxpr: Jaxpr, name: str, args: Sequence[Any], donated: Sequence[bool] | None = None, keep_unused: bool = False
) -> list[Any]:
    """Calls `jaxpr`, which captures nothing, in the current trace."""
    results: list[Any] = jit_p.bind_made(args, call_params(jaxpr, name, donated, keep_unused))
    return results


# What a call's writer may say of its arguments and results, but not of a call within a program; and what is nothing.
_ELSEWHERE = ("in_shardings", "out_shardings", "in_layouts", "out_layouts", "compiler_options_kvs")
_NOTHING = frozenset({None, UNSPECIFIED})
_NAMES = frozenset({"jaxpr", "name", *_Said._fields})


class _Call(Primitive):
    """A primitive that programs may bind themselves, with the parameters that JAX's has."""

    __slots__ = ()

    def bind(self, *args: Any, **params: Any) -> Any:
        """Applies the call.

        Raises:
          ArgumentTypeError: a parameter that no call has.
          UnsupportedError: shardings, layouts or options of a compiler. They would be lost.
        """
        for name in _ELSEWHERE:
            if not _NOTHING.issuperset(said := params.get(name, ())):
                raise errors.UnsupportedError(
                    f"jit_p.bind({name}={said}): a call within a program has none. Apply "
                    f"meshrt.jit({name}=...) to the function, or constrain what goes in and comes out "
                    "(meshrt.lax.with_sharding_constraint)"
                )
        if not _NAMES.issuperset(params):
            raise errors.ArgumentTypeError(
                f"jit_p.bind got unexpected parameters {sorted(params.keys() - _NAMES)}; it takes {sorted(_NAMES)}"
            )
        return self.bind_made(args, params)

    def bind_made(self, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Applies the call with parameters that `call_params` made, which say nothing that would be lost."""
        return super().bind(*args, **params)


def _infer(*avals: ShapedArray, jaxpr: Jaxpr, name: str, **said: Any) -> Any:
    return jaxpr.out_avals


def _lower(ctx: LoweringContext, eqn: Eqn, *operands: Any) -> Any:
    return ctx.call(eqn.params["jaxpr"], operands, eqn.params["name"])


def _evaluate(*args: Any, jaxpr: Jaxpr, name: str, **said: Any) -> Any:
    """Evaluates a call, whatever it says beside what it calls."""
    return EvalTrace.on_arrays(jit_p, args, {"jaxpr": jaxpr, "name": name})


def _donated(consts: Sequence[Any], args: Sequence[Any], said: dict[str, Any]) -> list[bool]:
    """Which arguments are donated of a call that takes `consts` first."""
    return [*[False] * len(consts), *said.get("donated_invars", [False] * len(args))]


def _keeps(said: dict[str, Any]) -> bool:
    """Whether a call takes arguments, too, that nothing depends on. What is made of the call does so as well."""
    return bool(said.get("keep_unused", False))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Jaxpr, name: str, **said: Any) -> tuple[Any, Any]:
    nonzeros = tuple(t is not None for t in tangents)
    closed, out_nonzeros = jvp_jaxpr(jaxpr, nonzeros)
    given = [t for t in tangents if t is not None]
    donated = _donated(closed.consts, primals, said)
    donated += [d for d, nz in zip(donated[len(closed.consts) :], nonzeros) if nz]
    outs = call_jaxpr(closed.jaxpr, name, [*closed.consts, *primals, *given], donated, _keeps(said))
    n = len(jaxpr.outvars)
    rest = iter(outs[n:])
    return outs[:n], [next(rest) if nz else None for nz in out_nonzeros]


def _linearize(linear: LinearTrace, primals: Sequence[Any], tangents: Sequence[Any], params: dict[str, Any]) -> Any:
    jaxpr, name = params["jaxpr"], params["name"]
    done = linearize_jaxpr(jaxpr, tuple(t is not None for t in tangents))
    n = len(jaxpr.outvars)
    consts = done.forward.consts
    donated, keep = _donated(consts, primals, params), _keeps(params)
    results = call_jaxpr(done.forward.jaxpr, name, [*consts, *primals], donated, keep)
    outs, new = results[:n], results[n:]
    if not any(done.nonzeros_out):
        return outs, [None] * n
    residuals = done.residuals(primals, outs, new)
    given = [*residuals, *[t for t in tangents if t is not None]]
    moved = linear.record(jit_p, given, call_params(done.linear, name, None, keep))
    rest = iter(moved)
    return outs, [next(rest) if nz else None for nz in done.nonzeros_out]


def _transpose(cts: Sequence[Any], *args: Any, jaxpr: Jaxpr, name: str, **said: Any) -> list[Any]:
    linear = tuple(is_undefined(a) for a in args)
    back, nonzeros = transpose_jaxpr(jaxpr, linear, tuple(c is not None for c in cts))
    known = [a for a in args if not is_undefined(a)]
    given = [*back.consts, *known, *[c for c in cts if c is not None]]
    pulled = iter(call_jaxpr(back.jaxpr, name, given, None, _keeps(said)))
    flags = iter(nonzeros)
    return [(next(pulled) if next(flags) else None) if lin else None for lin in linear]


def _passing(params: dict[str, Any], positions: Sequence[int]) -> tuple[dict[str, Any], Sequence[int], int]:
    jaxpr = params["jaxpr"]
    at = len(jaxpr.outvars)
    longer = returning(jaxpr, positions, at)
    donated = _donated((), jaxpr.invars, params)
    return call_params(longer, params["name"], donated, _keeps(params)), range(len(jaxpr.invars)), at


def _batch(axis: MappedAxis, args: list[Any], dims: list[int | None], params: dict[str, Any]) -> tuple[Any, Any]:
    moved = [led(a, d) for a, d in zip(args, dims)]
    closed, flags = batch_jaxpr(params["jaxpr"], axis, flags_of(args, dims))
    donated = _donated(closed.consts, args, params)
    outs = call_jaxpr(closed.jaxpr, params["name"], [*closed.consts, *moved], donated, _keeps(params))
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
    donated = [d for d, n in zip(_donated((), eqn.invars, eqn.params), needed) if n]
    params = call_params(body, eqn.params["name"], donated, _keeps(eqn.params))
    return eqn.replace(invars, [v for v, u in zip(eqn.outvars, used) if u], params)


def _discharge(args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    run = lambda *operands, jaxpr: call_jaxpr(jaxpr, params["name"], operands, None, _keeps(params))
    return with_cells(run, params["jaxpr"], args)


def _thread(eqn: Eqn, token: Any, threaded: Callable[[Jaxpr], Jaxpr]) -> Any:
    (call,), new = thread_call(eqn, token, threaded)
    donated = [False, *_donated((), eqn.invars, eqn.params)]  # the token comes first
    params = call_params(call.params["jaxpr"], call.params["name"], donated, _keeps(eqn.params))
    return [call.replace(params=params)], new


def _opened(*args: Any, jaxpr: Jaxpr, name: str, **said: Any) -> Any:
    return call_jaxpr(jaxpr, name, args, None, _keeps(said))


def _shown(eqn: Eqn) -> dict[str, Any]:
    """What is printed of a call: what it says of anything."""
    said = {k: v for k, v in eqn.params.items() if k not in _Said._fields}
    for name in ("donated_invars", "keep_unused"):
        value = eqn.params.get(name, False)
        if value is True or (value and any(value)):
            said[name] = value
    return said


jit_p: _Call = _Call(
    "jit", _infer, lower=_lower, jvp=_jvp, linearize=_linearize, transpose=_transpose, batch=_batch, batch_axis=True,
    batches_refs=True, impl=_evaluate, shown=_shown,
    dce=_dce, passing=_passing, discharge=_discharge,
    effects=lambda *avals, jaxpr, **_: jaxpr.effects, calls="jaxpr", thread=_thread,
    multiple_results=True, cache_types=False, varies=lambda params: declared(params["jaxpr"].in_avals),
    applies=lambda params: [(params["jaxpr"], range(len(params["jaxpr"].invars)))],
    to_lojax=opened_call(_opened, True), unbox=opened_call(_opened, False),
)  # fmt: skip
