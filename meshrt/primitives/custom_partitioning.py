"""A user's function as one opaque operation of a program, with a sharding rule or a partition function of its own.

    custom_partitioning[call partitioning] operands  ->  results

Where a program has a mesh, lowering writes a custom call that carries the rule, for propagation, and notes the
`Partitioning` under the call's `backend_config` in the module being lowered. Once shardings are known,
`meshrt.pipeline.local_bodies` turns the call into a manual computation that each device runs on its pieces. Elsewhere
the function is written in place of the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshrt import errors
from meshrt.core.basic.shapes import bring_to_front
from meshrt.core.explicit import Application, Spec
from meshrt.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr
from meshrt.core.primitive import Primitive
from meshrt.core.trace import EvalTrace
from meshrt.core.types import ShapedArray
from meshrt.lowering.context import LoweringContext
from meshrt.lowering.explicit import by_rule
from meshrt.primitives.call import call_jaxpr
from meshrt.sharding.mesh import AbstractMesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.rules import ShardingRule, parse_rule, with_batch
from meshrt.sharding.spec import PartitionSpec
from meshrt.transforms.batching import MappedAxis, batch_jaxpr
from meshrt.transforms.tools import WeakCache
from propagation.model import OpRule
from propagation.quoting import quote

__all__: list[str] = []

TARGET = "meshrt.custom_partitioning"


class TensorInfo(NamedTuple):
    """What a function that makes a rule is told of an operand or result."""

    shape: tuple[int, ...]
    dtype: Any

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)


class Level(NamedTuple):
    """A `vmap` around the operation: the axis, and which operands have it as their leading dimension (all results
    have)."""

    axis: MappedAxis
    operands: tuple[bool, ...]


class Partitioning:
    """How an operation is partitioned. Equal only to itself: it is made once per definition and call signature.

    fun         the user's function of arrays, in the structure `in_tree`, for messages and for `partition=None`
    partition   (mesh, arg_shapes, result_shape) -> (mesh, lower_fn, result_shardings, arg_shardings), static arguments
                bound; None: each device runs `fun` on the shards that the rule gives it
    rule        a rule, a function (mesh, operand types, result types) of one, or None
    levels      the dimensions that vmap added, the first one that was added first
    """

    __slots__ = ("_mapped", "fun", "in_tree", "levels", "name", "out_tree", "partition", "rule")

    def __init__(
        self,
        name: str,
        fun: Callable[..., Any],
        partition: Callable[..., Any] | None,
        rule: Any,
        in_tree: Any,
        out_tree: Any,
        levels: tuple[Level, ...] = (),
    ):
        self.name, self.fun, self.partition, self.rule = name, fun, partition, rule
        self.in_tree, self.out_tree, self.levels = in_tree, out_tree, levels
        self._mapped: dict[Level, Partitioning] = {}

    def __repr__(self) -> str:
        return self.name

    def mapped(self, level: Level) -> Partitioning:
        """The same over one more dimension; equal requests give the same object."""
        found = self._mapped.get(level)
        if found is None:
            found = self._mapped[level] = Partitioning(
                self.name, self.fun, self.partition, self.rule, self.in_tree, self.out_tree, (*self.levels, level)
            )
        return found

    def depths(self, count: int) -> list[int]:
        """How many leading dimensions of each of `count` operands vmap added."""
        return [sum(level.operands[i] for level in self.levels) for i in range(count)]

    def mapped_along(self, operand: int | None) -> list[tuple[Any, ...]]:
        """The mesh axes of each leading dimension of an operand (None: of the results) that vmap added, as
        `vmap(spmd_axis_name=...)` named them.
        """
        return [level.axis.mesh_axes for level in reversed(self.levels) if operand is None or level.operands[operand]]

    def op_rule(self, mesh: AbstractMesh, ins: Sequence[ShapedArray], outs: Sequence[ShapedArray]) -> OpRule | None:
        """The rule over operands and results of these types; None if the user gave none."""
        if self.rule is None:
            return None
        own = [a.shape[d:] for a, d in zip(ins, self.depths(len(ins)))], [a.shape[len(self.levels) :] for a in outs]
        bound = self._rule_of(mesh, ins, outs, *own).bind(*own)
        for level in self.levels:
            bound = with_batch(bound, level.axis.size, level.operands, [True] * len(outs))
        return bound

    def _rule_of(self, mesh: AbstractMesh, ins: Any, outs: Any, in_shapes: Any, out_shapes: Any) -> ShardingRule:
        if isinstance(self.rule, ShardingRule):
            return self.rule
        infos = [[TensorInfo(s, a.dtype) for s, a in zip(*side)] for side in ((in_shapes, ins), (out_shapes, outs))]
        made, keywords = self.rule(mesh, *infos), {}
        if isinstance(made, list | tuple) and len(made) == 2:
            made, keywords = made
        if isinstance(made, str):
            return parse_rule(made, **keywords)
        if not isinstance(made, ShardingRule):
            raise errors.ShardingRuleError(
                "sharding_rule callable must produce either an SdyShardingRule object or an Einsum-like notation "
                f"string, but produced {type(made).__name__}"
            )
        return made


class Custom(NamedTuple):
    """What lowering notes of an operation: `manual` are the axes over which the region around it is manual."""

    partitioning: Partitioning
    call: ClosedJaxpr
    manual: frozenset[Any]


def written_in_place(ctx: LoweringContext, call: ClosedJaxpr, operands: Sequence[Any]) -> list[Any]:
    """The function's own operations; what it captured becomes constants."""
    consts = [ctx.array(np.asarray(c).astype(v.aval.dtype)) for v, c in zip(call.jaxpr.constvars, call.consts)]
    return ctx.jaxpr(_hoisted(call.jaxpr), [*consts, *operands])


def _infer(*avals: ShapedArray, call: ClosedJaxpr, partitioning: Partitioning) -> Any:
    return call.out_avals


def _lower(ctx: LoweringContext, eqn: Eqn, *operands: Any) -> Any:
    call, partitioning, mesh = eqn.params["call"], eqn.params["partitioning"], ctx.module.mesh
    manual = () if ctx.manual is None else ctx.manual.manual_axes
    if mesh is None or mesh.size == 1 or set(manual) == set(mesh.axis_names):
        return written_in_place(ctx, call, operands)
    try:
        rule = partitioning.op_rule(mesh, call.in_avals, call.out_avals)
    except errors.ShardingRuleError as e:
        raise errors.ShardingRuleError(f"the sharding rule of {partitioning.name}, used at {eqn.source}: {e}") from None
    key = ctx.module.note_custom(partitioning.name, Custom(partitioning, call, frozenset(manual)))
    attrs = f"call_target_name = {quote(TARGET)}, backend_config = {quote(key)}, api_version = 2 : i32"
    carried = "" if rule is None else f"sdy.sharding_rule = #sdy.op_sharding_rule<{rule.to_text()}>"
    laid = lambda x, aval, operand: _laid(ctx, eqn, mesh, x, aval, partitioning.mapped_along(operand))
    given = [laid(x, a, i) for i, (x, a) in enumerate(zip(operands, call.in_avals))]
    outs = ctx.ops("stablehlo.custom_call", given, call.out_avals, attrs, discardable=carried)
    return [laid(x, a, None) for x, a in zip(outs, call.out_avals)]


def _laid(ctx: LoweringContext, eqn: Eqn, mesh: AbstractMesh, x: Any, aval: ShapedArray, along: Sequence[Any]) -> Any:
    """A value whose first dimensions are laid along mesh axes: those of each one in `along`, () for an open one."""
    if not any(along):
        return x
    manual = () if ctx.manual is None else ctx.manual.manual_axes
    wrong = [a for axes in along for a in axes if a not in mesh.axis_names or a in manual]
    if wrong:
        raise errors.UnknownAxisError(
            f"vmap spmd_axis_name {wrong[0]!r} is no axis of {mesh} along which {eqn.params['partitioning']} at "
            f"{eqn.source} is partitioned; name one of {[a for a in mesh.axis_names if a not in manual]}"
        )
    entries = [axes or PartitionSpec.UNCONSTRAINED for axes in along]
    rest = [PartitionSpec.UNCONSTRAINED] * (aval.ndim - len(entries))
    text = ctx.module.sharding_text(NamedSharding(mesh, PartitionSpec(*entries, *rest)), aval.physical().ndim)
    return ctx.op("sdy.sharding_constraint", [x], aval, f"sharding = {text}")


def _explicit(app: Application) -> list[Spec] | None:
    """Where axes are Explicit results are split as the rule says; without one, as the function's operations say."""
    mesh = next(a.explicit.mesh for a in app.avals if a.explicit is not None)
    bare = [a.bare() for a in app.avals]
    rule = app.params["partitioning"].op_rule(mesh, bare, app.types)
    return None if rule is None else by_rule(app, rule)


def _batch(axis: MappedAxis, args: list[Any], dims: list[int | None], params: dict[str, Any]) -> tuple[Any, Any]:
    """One more leading dimension, along which the operation is independent: a factor of the rule that passes through,
    and a dimension that a partition function does not see."""
    flags = tuple(d is not None for d in dims)
    moved = [a if d is None else bring_to_front(axis.size, a, d) for a, d in zip(args, dims)]
    call = mapped_call(params["call"], axis, flags)
    outs = custom_partitioning_p.bind(*moved, call=call, partitioning=params["partitioning"].mapped(Level(axis, flags)))
    return outs, [0] * len(outs)


_mapped: WeakCache = WeakCache()


def mapped_call(call: ClosedJaxpr, axis: MappedAxis, flags: tuple[bool, ...]) -> ClosedJaxpr:
    """A function over one more leading dimension of the flagged arguments and of all results."""
    return _mapped.get(call, (axis, flags), lambda: _mapped_call(call, axis, flags))


def _mapped_call(call: ClosedJaxpr, axis: MappedAxis, flags: tuple[bool, ...]) -> ClosedJaxpr:
    captured = len(call.consts)
    closed, _ = batch_jaxpr(_hoisted(call.jaxpr), axis, ((False,) * captured + flags), True)
    inner, count = closed.jaxpr, len(closed.consts) + captured
    jaxpr = Jaxpr(inner.invars[:count], inner.invars[count:], inner.outvars, inner.eqns, name=inner.name)
    return ClosedJaxpr(jaxpr, [*closed.consts, *call.consts])


def _hoisted(jaxpr: Jaxpr) -> Jaxpr:
    """What is captured as leading arguments."""
    if not jaxpr.constvars:
        return jaxpr
    return Jaxpr((), (*jaxpr.constvars, *jaxpr.invars), jaxpr.outvars, jaxpr.eqns, name=jaxpr.name)


def _evaluate(*args: Any, **params: Any) -> Any:
    """Eagerly, what nobody has split is given to the function itself: there is nothing to partition."""
    if all(getattr(a, "is_fully_replicated", True) for a in args):
        call = params["call"]
        return call_jaxpr(call.jaxpr, "custom_partitioning", [*call.consts, *args])
    return EvalTrace.evaluate(custom_partitioning_p, args, params)


custom_partitioning_p = Primitive(
    "custom_partitioning", _infer, lower=_lower, impl=_evaluate, batch=_batch, batch_axis=True, multiple_results=True,
    cache_types=False, typed=False, explicit=_explicit, effects=lambda *avals, call, partitioning: call.effects,
    absent={
        "jvp": "a partition function says nothing about derivatives; put custom_vjp around the function",
        "transpose": "it is not linear in any operand",
    },
)  # fmt: skip
