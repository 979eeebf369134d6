"""Where a NaN or an infinity came from: the program that returned it is run again, operation by operation.

With the settings `debug_nans` and `debug_infs` the results of every program are looked at. What is found in them is
searched for from the start: the first operation that gives one is named, with the user's line. Calls, branches and
loops are followed inside; a loop is run iteration by iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshrt import config, dtypes, errors
from meshrt.core import source
from meshrt.core.effects import is_debug
from meshrt.core.jaxpr import Eqn, Jaxpr, Literal, Var
from meshrt.core.naming import body_name
from meshrt.core.trace import EVAL, set_trace
from meshrt.core.types import aval_of
from meshrt.pipeline.loaded import Loaded
from meshrt.pipeline.traced import TraceRecord
from meshrt.primitives.control_cond import cond_p
from meshrt.primitives.control_scan import scan_p
from meshrt.primitives.control_while import while_p
from meshrt.primitives.slice import index_in_dim
from meshrt.runtime.array import Array, Signature, signature
from meshrt.runtime.results import NonFinite, find_nonfinite

__all__ = ["explainer"]


class _Found(NamedTuple):
    """An operation that gave something that is not finite; `before` are the operands that had it already."""

    eqn: Eqn
    what: NonFinite
    before: list[int]
    iteration: str = ""


class _Stop(Exception):
    """The search ends: an operation cannot be run again."""


def explainer(name: str, loaded: Loaded) -> Callable[[Sequence[Any], NonFinite, int, Signature], errors.NonFiniteError]:
    """What makes the error for a result that is not finite: from the buffers of the call, what was found, and where.

    `explain(buffers, what, number of the result, its signature)`.
    """
    program = loaded.program
    record = program.record
    signatures = [
        signature(a, s)
        for a, s in zip(
            [*map(aval_of, program.consts), *[record.in_avals[i] for i in program.kept]], loaded.arg_shardings
        )
    ]

    def explain(buffers: Sequence[Any], what: NonFinite, number: int, sig: Signature) -> errors.NonFiniteError:
        if not isinstance(record, TraceRecord):
            return errors.NonFiniteError(
                f"invalid value ({what}) encountered in result {number} of {name}, of type {sig.aval.short()}. It "
                "was loaded from a file, which holds compiled code only; jit the function here to find the operation"
            )
        if hasattr(record.fun, "operation"):
            return errors.NonFiniteError(  # an operation by itself: see `meshrt.dispatch`
                f"invalid value ({what}) encountered in {name} at {source.capture()}, in its result of type "
                f"{sig.aval.short()} (settings debug_nans, debug_infs)"
            )
        first = f"invalid value ({what}) encountered in result{_numbered(record, number)} of {name}"
        arrays = [None if b.is_deleted() else Array(b, s) for b, s in zip(buffers, signatures)]
        if any(a is None for a in arrays):
            return errors.NonFiniteError(
                f"{first}, of type {sig.aval.short()}. Its arguments were donated, so it cannot be run again to "
                "find the operation: call it without donate_argnums"
            )
        operation, reason = _reason(record, program.kept, len(program.consts), arrays)
        named = "" if operation is None else f"invalid value ({what}) encountered in {operation}: "
        return errors.NonFiniteError(f"{named}{first}: {reason}")

    return explain


def _numbered(record: TraceRecord, number: int) -> str:
    return record.out_paths()[number].removeprefix("result")


def _reason(record: TraceRecord, kept: Sequence[int], num_consts: int, arrays: Sequence[Any]) -> tuple[str | None, str]:
    """Runs the program again and says which operation it was, None where it was none, and more of it."""
    paths = record.arg_paths()
    for path, array in zip([paths[i] for i in kept], arrays[num_consts:]):
        what = find_nonfinite(array, *_wanted())
        if what is not None:
            return None, f"its argument {path} has one ({what}) already"
    args: list[Any] = [None] * len(record.closed.in_avals)
    for i, array in zip(kept, arrays[num_consts:]):
        args[i] = array
    nans, infs = _wanted()
    try:
        with (
            config.override(debug_nans=False, debug_infs=False, disable_jit=False),
            set_trace(EVAL),
        ):
            found, _ = _Search(nans, infs).run(record.live, record.closed.consts, args)
    except _Stop as e:
        return None, str(e)
    if found is None:
        return None, (
            "run again operation by operation it is finite, so the compiler's reordering or fusion made it; look at "
            "values near the limits of their type"
        )
    operands = ", ".join([a.aval.short() for a in found.eqn.invars])
    text = f"{found.eqn.primitive.name} at {found.eqn.source}{found.iteration} gave {found.what} from ({operands})"
    if found.before:
        text += f", of which operand {found.before[0]} had one already"
    return found.eqn.primitive.name, text


def _wanted() -> tuple[bool, bool]:
    return config.settings.debug_nans, config.settings.debug_infs


class _Search:
    """Runs Jaxprs operation by operation until one gives a NaN (an infinity)."""

    def __init__(self, nans: bool, infs: bool):
        self.nans, self.infs = nans, infs

    def look(self, value: Any) -> NonFinite | None:
        if not dtypes.issubdtype(aval_of(value).dtype, np.inexact):
            return None
        if type(value) is Array:
            return find_nonfinite(value, self.nans, self.infs)
        found = np.asarray(value)
        return NonFinite.of(found, self.nans, self.infs)

    def run(self, jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> tuple[_Found | None, list[Any]]:
        """(the first operation with such a result, or None; the results of `jaxpr`, if there was none)."""
        env: dict[Var, Any] = dict(zip(jaxpr.constvars, consts))
        env.update(zip(jaxpr.invars, args))
        read: Callable[[Any], Any] = lambda a: a.val if type(a) is Literal else env[a]
        for eqn in jaxpr.eqns:
            ins = [read(a) for a in eqn.invars]
            outs = self.apply(eqn, ins)
            for out in outs:
                what = self.look(out)
                if what is not None:
                    before = [i for i, x in enumerate(ins) if self.look(x) is not None]
                    inner = None if before else self.inside(eqn, ins)
                    return inner or _Found(eqn, what, before), []
            env.update(zip(eqn.outvars, outs))
        return None, [read(a) for a in jaxpr.outvars]

    def apply(self, eqn: Eqn, ins: Sequence[Any]) -> Sequence[Any]:
        if eqn.effects:
            if not eqn.outvars and all(map(is_debug, eqn.effects)):
                return []
            if not all(map(is_debug, eqn.effects)):
                raise _Stop(
                    f"everything is finite up to {eqn.primitive.name} at {eqn.source}, whose side effects keep the "
                    "rest from being run again"
                )
        with source.replayed(eqn.source):
            out = eqn.primitive.bind(*ins, **eqn.params)
        return out if eqn.primitive.multiple_results else [out]

    def inside(self, eqn: Eqn, ins: Sequence[Any]) -> _Found | None:
        """The operation inside a loop, branch or call that gave it first."""
        p = eqn.params
        if eqn.primitive is cond_p:
            index, *operands = ins
            return self.run(p["branches"][int(index)], (), operands)[0]
        if eqn.primitive is scan_p:
            return self.scan(p, ins)
        if eqn.primitive is while_p:
            return self.loop(p, ins)
        inner = p.get(body_name(p))
        if isinstance(inner, Jaxpr) and not inner.constvars and len(inner.invars) == len(ins) and _is_call(eqn):
            return self.run(inner, (), ins)[0]
        return None

    def scan(self, p: dict[str, Any], ins: Sequence[Any]) -> _Found | None:
        n, m = p["num_consts"], p["num_consts"] + p["num_carry"]
        consts, carry, xs = ins[:n], list(ins[n:m]), ins[m:]
        order = range(p["length"])
        for i in reversed(order) if p["reverse"] else order:
            found, outs = self.run(p["jaxpr"], (), [*consts, *carry, *[index_in_dim(x, i, 0, False) for x in xs]])
            if found is not None:
                return _during(found, i)
            carry = outs[: p["num_carry"]]
        return None

    def loop(self, p: dict[str, Any], ins: Sequence[Any]) -> _Found | None:
        n, m = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
        carry, i = list(ins[m:]), 0
        while True:
            found, outs = self.run(p["cond_jaxpr"], (), [*ins[:n], *carry])
            if found is not None:
                return _during(found, i)
            if not bool(outs[0]):
                return None
            found, carry = self.run(p["body_jaxpr"], (), [*ins[n:m], *carry])
            if found is not None:
                return _during(found, i)
            i += 1


def _is_call(eqn: Eqn) -> bool:
    """Whether an application computes what its Jaxpr computes: the results are those of the Jaxpr, type by type."""
    inner = eqn.params[body_name(eqn.params)]
    same: Callable[[Any, Any], bool] = lambda a, b: a.shape == b.shape and a.dtype == b.dtype
    return (
        len(inner.outvars) == len(eqn.outvars)
        and all(same(a.aval, b.aval) for a, b in zip(inner.outvars, eqn.outvars))
        and all(same(a.aval, b.aval) for a, b in zip(inner.invars, eqn.invars))
    )


def _during(found: _Found, iteration: int) -> _Found:
    return found._replace(iteration=f"{found.iteration} in iteration {iteration}")
