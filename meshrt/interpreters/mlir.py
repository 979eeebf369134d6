"""Programs of primitives, as libraries give them. Names are ``jax.interpreters.mlir``'s.

A lowering rule is `rule(ctx, *values, **params)`. Almost every one is what `lower_fun` makes of a function of arrays;
its values are what meshrt's lowering passes around (`propagation.asm.Ref`). Every other one is given values of MLIR's
bindings and builds operations with them, in a module of its own (`meshrt.interpreters.bindings`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from jaxlib.mlir import ir

from meshrt import errors
from meshrt.core import source
from meshrt.core.jaxpr import Eqn
from meshrt.core.trace import Tracer, trace_to_jaxpr
from meshrt.core.types import ShapedArray
from meshrt.extend.core.declared import declared
from meshrt.interpreters.bindings import Scratch
from meshrt.interpreters.building import *  # noqa: F403
from meshrt.interpreters.building import __all__ as _building
from meshrt.lowering.composed import with_constants
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.callback import write_call
from propagation.asm import Ref

__all__ = [  # noqa: PLE0604
    *_building, "LoweringRuleContext", "ModuleContext", "emit_python_callback", "ir", "lower_fun", "register_lowering",
]  # fmt: skip

Rule = TypeVar("Rule", bound=Callable[..., Any])
_kept_alive: list[Any] = []


@dataclasses.dataclass(slots=True, frozen=True)
class ModuleContext:
    """What a lowering rule knows of the module: the context of its values, the platform."""

    scratch: Scratch

    @property
    def context(self) -> ir.Context:
        return self.scratch.mlir

    @property
    def platforms(self) -> tuple[str, ...]:
        return (self.scratch.context.module.platform,)

    def add_keepalive(self, value: Any) -> None:
        """Keeps `value` as long as the process: an equal program finds what was compiled for this one."""
        _kept_alive.append(value)


@dataclasses.dataclass(slots=True, frozen=True)
class LoweringRuleContext:
    """What a lowering rule knows: the primitive, types of operands and results, the platform."""

    context: LoweringContext
    eqn: Eqn
    scratch: Scratch | None
    primitive: Any
    avals_in: Sequence[ShapedArray]
    avals_out: Sequence[ShapedArray]

    @property
    def platforms(self) -> tuple[str, ...]:
        return (self.context.module.platform,)

    @property
    def module_context(self) -> ModuleContext:
        return ModuleContext(self.scratch or Scratch(self.context))

    def replace(self, **changes: Any) -> LoweringRuleContext:
        """The same with other fields (`primitive`, `avals_in`, `avals_out`)."""
        return dataclasses.replace(self, **changes)

    def is_forward_compat(self) -> bool:
        """Whether the program is for consumers that may be older than this jaxlib."""
        return self.context.module.is_export


class _OfArrays:
    """The lowering rule whose program is that of a function of arrays."""

    def __init__(self, fun: Callable[..., Any], multiple_results: bool):
        self.fun, self.multiple_results = fun, multiple_results

    def __call__(self, ctx: LoweringRuleContext, *values: Any, **params: Any) -> list[Any]:
        if ctx.scratch is None:
            return self.write(ctx, ctx.context, values, params)
        later = lambda context, refs: self.write(ctx, context, refs, params)
        return ctx.scratch.defer(values, ctx.avals_out, later)

    def write(
        self, ctx: LoweringRuleContext, context: LoweringContext, refs: Sequence[Ref], params: dict[str, Any]
    ) -> list[Ref]:
        """Traces the function and writes its program into `context`."""

        def flat(*operands: Any) -> Sequence[Any]:
            outs = self.fun(*operands, **params)
            return list(outs) if self.multiple_results else [outs]

        previous = source.set_replay(ctx.eqn.source)
        try:
            closed = trace_to_jaxpr(flat, [a.bare() for a in ctx.avals_in], ctx.primitive.name)
        finally:
            source.set_replay(previous)
        captured = [c for c in closed.consts if isinstance(c, Tracer)]
        if captured:
            raise errors.LeakedTracerError(
                f"the program of the primitive '{ctx.primitive.name}' captures a traced value of type "
                f"{captured[0].aval.short()}; pass it as an operand"
            )
        constants = [context.array(np.asarray(c)) for c in closed.consts]
        return context.jaxpr(with_constants(closed.jaxpr), [*constants, *refs])


def register_lowering(
    prim: Any, rule: Rule, platform: str | None = None, inline: bool = True, cacheable: bool = True
) -> Rule:
    """Says which program a primitive is: `rule(ctx, *values, **params)`. Returns `rule`.

    Args:
      rule: what `lower_fun` returns, or a function that builds the results with MLIR's bindings; it is called in a
        context with a place to insert operations at.
      platform: the only platform that the rule is for; None: all that have none of their own.
      inline, cacheable: accepted for JAX's sake; the program is always written in place.

    Raises UnsupportedError for a primitive of meshrt's own; in lowering TypeError for a rule that does not return
    values of programs.
    """
    own = declared(prim, "lowering")
    key = "lower" if platform is None else f"lower:{platform}"
    own.given[key] = rule

    def lower(ctx: LoweringContext, eqn: Eqn, *operands: Ref) -> Any:
        chosen = own.given.get(f"lower:{ctx.module.platform}", own.given.get("lower"))
        if chosen is None:
            raise errors.UnsupportedError(
                f"MLIR translation rule for primitive '{own.name}' not found for platform {ctx.module.platform}; it is "
                f"used at {eqn.source}, and there are rules for {', '.join(k[6:] for k in own.given if ':' in k)}"
            )
        refs = _applied(chosen, ctx, eqn, operands)
        return refs if own.multiple_results else refs[0]

    object.__setattr__(own, "lower", lower)
    return rule


def as_lowering(prim: Any, rule: Rule) -> Callable[..., Any]:
    """A rule, as `register_lowering` takes it, as what lowers the equations of `prim`."""

    def lower(ctx: LoweringContext, eqn: Eqn, *operands: Ref) -> Any:
        refs = _applied(rule, ctx, eqn, operands)
        return refs if prim.multiple_results else refs[0]

    return lower


def _applied(rule: Callable[..., Any], context: LoweringContext, eqn: Eqn, operands: Sequence[Ref]) -> list[Ref]:
    """The recorded results of an equation by a rule."""
    scratch = None if isinstance(rule, _OfArrays) else Scratch(context)
    ins, outs = [a.aval for a in eqn.invars], [v.aval for v in eqn.outvars]
    ctx = LoweringRuleContext(context, eqn, scratch, eqn.primitive, ins, outs)
    if scratch is None:
        return list(rule(ctx, *operands, **eqn.params))
    where = f"the primitive '{eqn.primitive.name}' at {eqn.source}"
    return scratch.run(lambda *values: rule(ctx, *values, **eqn.params), operands, outs, where)


def lower_fun(fun: Callable[..., Any], multiple_results: bool = True) -> Callable[..., list[Any]]:
    """The lowering rule whose program is that of `fun(*arrays, **params)`; other rules may call it.

    Args:
      multiple_results: whether `fun` returns a sequence of arrays rather than one.
    """
    return _OfArrays(fun, multiple_results)


def emit_python_callback(
    ctx: LoweringRuleContext, callback: Callable[..., Any], token: Any, operands: Sequence[ir.Value],
    operand_avals: Sequence[ShapedArray], result_avals: Sequence[ShapedArray], *, has_side_effect: bool,
    returns_token: bool = True, partitioned: bool = False, sharding: Any = None,
) -> tuple[Sequence[ir.Value], Any, Any]:  # fmt: skip
    """Builds a call of a Python function, which takes Arrays and returns a sequence of them.

    Returns the results, the token and what is to be kept alive. Only calls outside of the order of effects (`token`
    None) and on one device (`sharding` None) are built: UnsupportedError otherwise.
    """
    for name, given in (("token", token), ("sharding", sharding)):
        if given is not None:
            raise errors.UnsupportedError(
                f"emit_python_callback with a {name}, in the lowering rule of '{ctx.primitive.name}' at "
                f"{ctx.eqn.source}: calls of Python are ordered and placed by meshrt.experimental.io_callback(ordered="
                "True, sharding=...), called in a function for mlir.lower_fun"
            )
    if ctx.scratch is None:
        raise errors.InternalError("emit_python_callback outside of a lowering rule that builds with MLIR's bindings")
    name = f"a callback of the primitive '{ctx.primitive.name}' at {ctx.eqn.source}"
    write = lambda context, refs: write_call(
        context, callback, name, refs, operand_avals, result_avals, has_side_effect, partitioned
    )
    return ctx.scratch.defer(operands, result_avals, write), token, None


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise errors.MissingFunctionError(f"module {__name__!r} has no attribute {name!r}: it is not implemented")
