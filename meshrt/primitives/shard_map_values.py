"""Values in the body of a `shard_map` that is called outside of programs.

Such a call is one program, as under `jit`. A body that asks for the value of a result of its own (`if total > 0:`)
cannot become one before it runs: what it has recorded so far is run for that value, and the recording goes on with it.
The value must be the same on all devices, as its type says.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors
from meshrt.core.jaxpr import Eqn, Jaxpr, Var
from meshrt.core.trace import JaxprTrace, JaxprTracer
from meshrt.primitives.shard_map import shard_map_p
from meshrt.primitives.shard_map_region import Region
from meshrt.sharding._state import context as mesh_context
from meshrt.sharding.spec import PartitionSpec

# Nothing for `meshrt.lax`.
__all__: list[str] = []

_WHOLE = PartitionSpec()


class ReadableTrace(JaxprTrace):
    """Records the body of a region whose arguments are the arrays `operands`, which enter with `in_specs`.

    It is made outside of the region: there the values are computed.
    """

    __slots__ = ("_around", "_mesh", "arguments", "in_specs", "operands", "region")

    def __init__(self, name: str, region: Region, operands: Sequence[Any], in_specs: Sequence[PartitionSpec]):
        super().__init__(name)
        self.region, self.operands, self.in_specs = region, tuple(operands), tuple(in_specs)
        self.arguments: list[Var] = []
        self._around = contextvars.copy_context()
        self._mesh = mesh_context.saved()

    def argument(self, aval: Any, where: Any = None) -> JaxprTracer:
        made = super().argument(aval, where)
        self.arguments.append(made._var)
        return made

    def value_of(self, tracer: JaxprTracer) -> Any:
        differs = tracer.aval.mat.vur if self.region.check_vma else frozenset(self.region.manual_axes)
        if differs:
            axes = ", ".join(repr(a) for a in self.region.manual_axes if a in differs)
            why = f"as its type {tracer.aval.short()} says" if self.region.check_vma else "as check_vma=False says"
            raise errors.ConcretizationError(
                f"a value of {self.name} that {tracer.origin() or 'was computed in it'} may differ between devices "
                f"along {axes}, {why}: there is no one value to know. Make it one (meshrt.lax.psum, pmax, pmin or "
                "all_gather(to='invarying')), or use meshrt.lax.cond or meshrt.numpy.where"
            )
        captured = list(self.consts.values())
        jaxpr = Jaxpr(
            (),
            [*[v for v, _ in captured], *self.arguments],
            [tracer._var],
            _needed(self.eqns, tracer._var),
            name=self.name,
        )
        params = {
            "jaxpr": jaxpr, "region": self.region, "in_specs": (*[_WHOLE] * len(captured), *self.in_specs),
            "out_specs": (_WHOLE,),
        }  # fmt: skip
        run = lambda: shard_map_p.bind(*[value for _, value in captured], *self.operands, **params)
        (value,) = self._outside(run)
        return value

    def _outside(self, run: Callable[[], Any]) -> Any:
        previous = mesh_context.swap(*self._mesh)
        try:
            return self._around.copy().run(run)
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
