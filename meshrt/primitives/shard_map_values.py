"""Values in the body of a `shard_map` that is called outside of programs.

Such a call is one program, as under `jit`. A body that asks for the value of a result of its own (`if total > 0:`)
cannot become one before it runs: what it has recorded so far is run for that value, and the recording goes on with it.
The value must be the same on all devices, as its type says. A body that prints a value prints what each device holds.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.basic.shapes import reshape
from meshrt.core.basic.varying import vary
from meshrt.core.jaxpr import Eqn, Jaxpr, Var
from meshrt.core.trace import JaxprTrace, JaxprTracer, Tracer, eval_jaxpr, set_trace
from meshrt.core.types import ShapedArray
from meshrt.primitives.shard_map import shard_map_p
from meshrt.primitives.shard_map_high import outline
from meshrt.primitives.shard_map_region import Region
from meshrt.sharding._state import context as mesh_context
from meshrt.sharding.spec import PartitionSpec

# Nothing for `meshrt.lax`.
__all__: list[str] = []

_WHOLE = PartitionSpec()


class Call:
    """A call outside of programs: its arguments, and whether its body printed values, which it will do every time."""

    __slots__ = ("args", "around", "mesh", "prints")

    def __init__(self, args: Any):
        self.args, self.prints = args, False
        self.around, self.mesh = contextvars.copy_context(), mesh_context.saved()


# The call for which a program is being traced.
_call: contextvars.ContextVar[Call | None] = contextvars.ContextVar("meshrt_shard_map_call", default=None)


def traced_for(call: Call, run: Callable[..., Any]) -> Any:
    """`run(*args)` of a call; if a program is traced for it, its body may print values."""
    token = _call.set(call)
    try:
        return run(*call.args)
    finally:
        _call.reset(token)


def readable(
    name: str, region: Region, operands: Sequence[Any], in_specs: Sequence[PartitionSpec], is_array: Sequence[bool],
    decides: bool,
) -> ReadableTrace | None:  # fmt: skip
    """The trace of the body of a call outside of programs. With `decides`, `operands` are its values, and the body may
    ask for; else they are those of a program for all such calls, whose body may print those of this one."""
    if decides:
        return ReadableTrace(name, region, operands, in_specs, Call(()), True)
    call = _call.get()
    if call is None:
        return None
    leaves = outline(call.args, keeps=True).leaves
    values = [x for x, a in zip(leaves, is_array) if a]
    return ReadableTrace(name, region, values, in_specs, call, False)


class ReadableTrace(JaxprTrace):
    """Records the body of a region whose arguments are the arrays `operands`, which enter with `in_specs`.

    It is made for a `call` outside of the region: there the values are computed.
    """

    __slots__ = ("_call", "arguments", "decides", "in_specs", "operands", "region")

    def __init__(
        self, name: str, region: Region, operands: Sequence[Any], in_specs: Sequence[PartitionSpec], call: Call,
        decides: bool,
    ):  # fmt: skip
        super().__init__(name, requires_low=decides)  # what decides runs, others are a part of a program
        self.region, self.operands, self.in_specs = region, tuple(operands), tuple(in_specs)
        self.arguments: list[Var] = []
        self._call, self.decides = call, decides

    def argument(self, aval: Any, where: Any = None) -> JaxprTracer:
        made = super().argument(aval, where)
        self.arguments.append(made._var)
        return made

    def value_of(self, tracer: JaxprTracer) -> Any:
        if not self.decides:
            return None
        differs = tracer.aval.mat.vur if self.region.check_vma else frozenset(self.region.manual_axes)
        if differs:
            axes = ", ".join(repr(a) for a in self.region.manual_axes if a in differs)
            why = f"as its type {tracer.aval.short()} says" if self.region.check_vma else "as check_vma=False says"
            raise errors.ConcretizationError(
                f"a value of {self.name} that {tracer.origin() or 'was computed in it'} may differ between devices "
                f"along {axes}, {why}: there is no one value to know. Make it one (meshrt.lax.psum, pmax, pmin or "
                "all_gather(to='invarying')), or use meshrt.lax.cond or meshrt.numpy.where"
            )
        return self._run(self._program(tracer), _WHOLE)

    def shown(self, tracer: JaxprTracer) -> str | None:
        """What each device holds of a value, where all axes are Manual: bodies of eager calls print it, as JAX's do."""
        kind, axes = tracer.aval, self.region.manual_axes
        if self.closed or not isinstance(kind, ShapedArray) or kind.is_key:
            return None
        if len(axes) != len(self.region.outside.axis_names) or kind.mat.vur - kind.vma:
            return None
        if any(isinstance(value, Tracer) for value in (*self.operands, *(value for _, value in self.consts.values()))):
            return None
        program, stacked = self._program(tracer), JaxprTrace(self.name)
        if program.is_high:
            return None
        self._call.prints = True
        arguments = [stacked.argument(v.aval) for v in program.invars]
        with set_trace(stacked):
            (piece,) = eval_jaxpr(program, (), arguments)
            row = reshape(vary(piece, axes) if self.region.check_vma else piece, (1, *kind.shape))
        closed = stacked.close(arguments, [row])
        rows = self._run(closed.jaxpr, PartitionSpec(axes), closed.consts)
        if not rows.is_fully_addressable:
            return None
        places = np.ndenumerate(rows.sharding.mesh.devices)
        names = f"({', '.join(map(str, axes))},)"
        return "\n".join(
            f"On {device} at mesh coordinates {names} = {at}:\n{block}\n"
            for (at, device), block in zip(places, np.asarray(rows))
        )

    def _program(self, tracer: JaxprTracer) -> Jaxpr:
        """What has been recorded to compute a value: a function of what was captured, then of the arguments."""
        captured = [v for v, _ in self.consts.values()]
        eqns = _needed(self.eqns, tracer._var)
        return Jaxpr((), [*captured, *self.arguments], [tracer._var], eqns, name=self.name)

    def _run(self, program: Jaxpr, out_spec: PartitionSpec, consts: Sequence[Any] = ()) -> Any:
        """The result of a program of `_program`'s arguments, outside of the region; `consts` come before them."""
        captured = [*consts, *(value for _, value in self.consts.values())]
        params = {
            "jaxpr": program.replace(constvars=(), invars=[*program.constvars, *program.invars]),
            "region": self.region, "in_specs": (*[_WHOLE] * len(captured), *self.in_specs), "out_specs": (out_spec,),
        }  # fmt: skip
        (value,) = self._outside(lambda: shard_map_p.bind(*captured, *self.operands, **params))
        return value

    def _outside(self, run: Callable[[], Any]) -> Any:
        previous = mesh_context.swap(*self._call.mesh)
        try:
            return self._call.around.copy().run(run)
        finally:
            mesh_context.swap(*previous)


def _needed(eqns: Sequence[Eqn], wanted: Var) -> list[Eqn]:
    """The equations that `wanted` is computed by. Others, also those that print, run once, with the whole body."""
    needed, kept = {wanted}, []
    for eqn in reversed(eqns):
        if not needed.isdisjoint(eqn.outvars):
            kept.append(eqn)
            needed.update(a for a in eqn.invars if type(a) is Var)
    return kept[::-1]
