"""Programs of primitives, as libraries give them. Names are ``jax.interpreters.mlir``'s.

A lowering rule is `rule(ctx, *values, **params)`, and almost every one is what `lower_fun` makes of a function of
arrays. Values are what meshrt's lowering passes around (`propagation.asm.Ref`), no objects of MLIR's bindings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from meshrt import errors
from meshrt.core import source
from meshrt.core.jaxpr import Eqn
from meshrt.core.trace import Tracer, trace_to_jaxpr
from meshrt.core.types import ShapedArray
from meshrt.extend.core.declared import declared
from meshrt.lowering.context import LoweringContext
from propagation.asm import Ref

__all__ = ["LoweringRuleContext", "lower_fun", "register_lowering"]

Rule = TypeVar("Rule", bound=Callable[..., Any])


@dataclass(slots=True, frozen=True)
class LoweringRuleContext:
    """What a lowering rule knows: the primitive, types of operands and results, the platform."""

    context: LoweringContext
    eqn: Eqn

    @property
    def primitive(self) -> Any:
        return self.eqn.primitive

    @property
    def avals_in(self) -> list[ShapedArray]:
        return [a.aval for a in self.eqn.invars]

    @property
    def avals_out(self) -> list[ShapedArray]:
        return [v.aval for v in self.eqn.outvars]

    @property
    def platforms(self) -> tuple[str, ...]:
        return (self.context.module.platform,)


def register_lowering(
    prim: Any, rule: Rule, platform: str | None = None, inline: bool = True, cacheable: bool = True
) -> Rule:
    """Says which program a primitive is: `rule(ctx, *values, **params)`. Returns `rule`.

    Args:
      platform: the only platform that the rule is for; None: all that have none of their own.
      inline, cacheable: accepted for JAX's sake; the program is always written in place.

    Raises UnsupportedError for a primitive of meshrt's own, and in lowering for a rule that does not return values of
    programs, such as one that writes operations with MLIR's bindings.
    """
    own = declared(prim, "lowering")
    key = "lower" if platform is None else f"lower:{platform}"
    own.given[key] = rule

    def lower(ctx: LoweringContext, eqn: Eqn, *operands: Any) -> Any:
        chosen = own.given.get(f"lower:{ctx.module.platform}", own.given.get("lower"))
        if chosen is None:
            raise errors.UnsupportedError(
                f"MLIR translation rule for primitive '{own.name}' not found for platform {ctx.module.platform}; it is "
                f"used at {eqn.source}, and there are rules for {', '.join(k[6:] for k in own.given if ':' in k)}"
            )
        outs = chosen(LoweringRuleContext(ctx, eqn), *operands, **eqn.params)
        refs = [outs] if isinstance(outs, Ref) else list(outs)
        if not all(isinstance(ref, Ref) for ref in refs):
            raise errors.UnsupportedError(
                f"the lowering rule of the primitive '{own.name}', used at {eqn.source}, gives "
                f"{', '.join(type(r).__name__ for r in refs)}; rules are written with mlir.lower_fun of a function of "
                "arrays, as programs of meshrt are text until they are compiled"
            )
        return refs if own.multiple_results else refs[0]

    object.__setattr__(own, "lower", lower)
    return rule


def lower_fun(fun: Callable[..., Any], multiple_results: bool = True) -> Callable[..., list[Ref]]:
    """The lowering rule whose program is that of `fun(*arrays, **params)`.

    Args:
      multiple_results: whether `fun` returns a sequence of arrays rather than one.
    """

    def rule(ctx: LoweringRuleContext, *values: Any, **params: Any) -> list[Ref]:
        def flat(*operands: Any) -> Sequence[Any]:
            outs = fun(*operands, **params)
            return list(outs) if multiple_results else [outs]

        previous = source.set_replay(ctx.eqn.source)
        try:
            closed = trace_to_jaxpr(flat, [a.bare() for a in ctx.avals_in], ctx.primitive.name)
        finally:
            source.set_replay(previous)
        captured = [c for c in closed.consts if isinstance(c, Tracer)]
        if captured:
            raise errors.LeakedTracerError(
                f"the program of the primitive '{ctx.primitive.name}' captures a traced value of type "
                f"{captured[0].aval.str_short()}; pass it as an operand"
            )
        constants = [ctx.context.array(np.asarray(c)) for c in closed.consts]
        return ctx.context.jaxpr(_with_constants(closed.jaxpr), [*constants, *values])

    return rule


def _with_constants(jaxpr: Any) -> Any:
    """The same program with its captured values as leading arguments."""
    return type(jaxpr)((), (*jaxpr.constvars, *jaxpr.invars), jaxpr.outvars, jaxpr.eqns, jaxpr.name, jaxpr.effects)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise errors.MissingFunctionError(f"module {__name__!r} has no attribute {name!r}: it is not implemented")
