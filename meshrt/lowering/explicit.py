"""Shardings of results from shardings of operands, by the rules that propagation uses.

A primitive is lowered once for operands without shardings, and the sharding rule of every StableHLO operation that it
writes (`propagation.rules`) is kept. Shardings of operands are then pushed through these rules, one after the other,
strictly: propagation may choose, a type may not.

    operands that share a factor agree on its axes, or only some of them have any: the others are cut locally
    a factor that must be whole has no axes; one that is summed over leaves none behind
    axes of a dimension made of several factors belong to the major ones first
    no axis splits two dimensions of a result, and the parts of a dimension are of equal size

What a primitive refuses or knows beyond that its record says (`meshrt.core.explicit`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from meshrt import errors
from meshrt.core import source
from meshrt.core.completion import OUT_SHARDING
from meshrt.core.explicit import (
    NO_AXES,
    Application,
    Spec,
    axes_of,
    parts,
    reduced_of,
    refusal,
    shown,
    unreduced_of,
)  # fmt: skip
from meshrt.core.jaxpr import NO_EFFECTS, Eqn, Var
from meshrt.core.primitive import Primitive
from meshrt.core.source import UNKNOWN
from meshrt.core.types import ShapedArray
from meshrt.lowering.context import LoweringContext, ModuleLowering
from meshrt.lowering.size_numbers import numbered
from meshrt.lowering.types import mlir_type
from meshrt.sharding.typed import entries_of, type_sharding
from propagation.gc_pause import collector_paused
from propagation.model import FactorType, OpRule

if TYPE_CHECKING:
    from propagation.graph import Func

__all__ = ["by_rule", "operation_rules", "shardings"]

Axes = tuple[Any, ...]
Split = tuple[Axes, ...]  # the axes of every dimension of a value


class Step(NamedTuple):
    """One operation: places of its operands and results among the values, their shapes, and its rule.

    Without a rule nothing passes through: split operands are refused.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    rule: OpRule | None


class Rules(NamedTuple):
    """The operations that a primitive writes; values are numbered, its operands first."""

    steps: tuple[Step, ...]
    places: int
    results: tuple[int, ...]


class Refused(Exception):
    """Shardings with which an operation cannot be applied; says why."""


_known: dict[Any, Rules] = {}


def shardings(
    primitive: Primitive, avals: Sequence[ShapedArray], params: dict[str, Any], types: Sequence[ShapedArray]
) -> Sequence[Any]:
    """The sharding of each result's type; see `meshrt.core.completion.Completion`.

    Raises:
      ShardingTypeError: the shardings of the operands do not say how the results are split.
    """
    asked = params.get(OUT_SHARDING)
    mesh = _one_mesh(primitive, avals, asked)
    specs = [entries_of(a) for a in avals]
    app = Application(primitive, avals, params, types, specs, mesh._sizes)
    if asked is not None:
        return [_asked(app, mesh, asked, types[0])]
    unreduced, reduced = _sums(app)
    outs = primitive.explicit(app) if primitive.explicit is not None else None
    if outs is None:
        outs = _by_rules(app)
    return [_checked(app, mesh, spec, out, unreduced, reduced) for spec, out in zip(outs, types)]


def _asked(app: Application, mesh: Any, asked: Any, out: ShapedArray) -> Any:
    """The sharding that was asked for, which must fit the result and name each axis once (NamedSharding sees to it)."""
    spec = asked.spec
    unreduced, _ = _sums(app)
    fills = not any(a.ndim for a in app.avals)  # from scalars alone, which all devices have
    if spec.unreduced and app.primitive.explicit is None and spec.unreduced != unreduced and not fills:
        app.refuse(f"out_sharding of {app.primitive.name} cannot contain unreduced axes. Got {spec}.")
    if app.primitive.explicit is not None:
        app.primitive.explicit(app)
    return _checked(app, mesh, spec.partitions, out, spec.unreduced, spec.reduced)


def _one_mesh(primitive: Primitive, avals: Sequence[ShapedArray], asked: Any) -> Any:
    mesh = None if asked is None else asked.mesh
    for a in avals:
        if a.explicit is not None:
            own = a.explicit.mesh
            if mesh is not None and own is not mesh:
                raise refusal(
                    primitive.name, avals, f"Mesh for all inputs should be equal. Got one mesh: {mesh} and another "
                    f"mesh: {own}.", "move one of the values to the other's mesh with meshrt.device_put"
                )  # fmt: skip
            mesh = own
    return mesh


def _sums(app: Application) -> tuple[frozenset[Any], frozenset[Any]]:
    """The axes that the results are unreduced and reduced over."""
    if not any(unreduced_of(a) or reduced_of(a) for a in app.avals):
        return NO_AXES, NO_AXES
    if app.primitive.sums is not None:
        return app.primitive.sums(app)
    raise errors.UnsupportedError(
        f"unreduced/reduced rule for {app.primitive.name} is not implemented. Got "
        f"{', '.join(a.short() for a in app.avals)} at {source.capture()}; add the parts up before with "
        "meshrt.sharding.reshard(x, P(...)), which names no unreduced and no reduced axes"
    )


def _checked(
    app: Application, mesh: Any, spec: Spec, out: ShapedArray, unreduced: Iterable[Any] = (),
    reduced: Iterable[Any] = (),
) -> Any:  # fmt: skip
    """The sharding of a type, whose axes differ and whose dimensions divide."""
    axes = [a for e in spec for a in axes_of(e)]
    if len(set(axes)) != len(axes):
        result = ",".join(str(n) if e is None else f"{n}@{_text(e)}" for n, e in zip(out.shape, spec))
        head = out.bare().short().split("[")[0]
        operands = ", ".join(a.short() for a in app.avals)
        app.refuse(
            f"{app.primitive.name} operation with inputs: {operands} produces an illegally sharded result: "
            f"{head}[{result}]: one axis cannot split two dimensions.",
            "say how the result is to be split with `out_sharding=P(...)` where the function takes it",
        )
    for n, e in zip(out.shape, spec):
        if e is not None and n % parts(e, app.sizes):
            app.refuse(
                f"{app.primitive.name} on sharded dims where out dim ({n}) is not divisible by mesh axes "
                f"({parts(e, app.sizes)}) with spec ({_text(e)}) is not implemented."
            )
    return type_sharding(mesh, spec, unreduced, reduced)


def _text(entry: Any) -> str:
    return entry if isinstance(entry, str) else f"({','.join(map(str, axes_of(entry)))})"


# ---------------------------------------------------------------------------------------------------------------------
# The rules of a primitive


def operation_rules(
    primitive: Primitive, avals: Sequence[ShapedArray], params: dict[str, Any], types: Sequence[ShapedArray]
) -> Rules:
    """The rules of the operations that `primitive` lowers to for operands of these (bare) types; kept."""
    key = (primitive, tuple(avals), tuple(params.items()))
    try:
        found = _known.get(key)
    except TypeError:
        return _lowered_rules(primitive, avals, params, types)
    if found is None:
        found = _known[key] = _lowered_rules(primitive, avals, params, types)
    return found


def _lowered_rules(
    primitive: Primitive, avals: Sequence[ShapedArray], params: dict[str, Any], types: Sequence[ShapedArray]
) -> Rules:
    if primitive.lower is None:
        raise errors.UnsupportedError(f"the primitive '{primitive.name}' has no lowering, so no sharding rule")
    with collector_paused():
        module = ModuleLowering(primitive.name)
        function = module.writer.function("main", [mlir_type(a) for a in avals], public=True)
        ctx = LoweringContext(module, function)
        eqn = Eqn(primitive, [Var(a) for a in avals], [Var(t) for t in types], params, UNKNOWN, NO_EFFECTS)
        out = primitive.lower(ctx, eqn, *function.args)
        function.ret(out if primitive.multiple_results else [out])
        # Start-up time: programs without Explicit axes that are found on disk, or run on one device, need no rules.
        from propagation.written import program_of

        program = program_of(module.writer)
        return _Reader(program).rules(program.main)


class _Reader:
    """Reads the steps of a program's functions; calls are followed."""

    def __init__(self, program: Any):
        self.program = program
        # Start-up time: as above.
        from propagation.rules import RuleCache, RuleOptions

        self.cache = RuleCache(RuleOptions(chlo=True))
        self.steps: list[Step] = []
        self.count = 0

    def rules(self, main: Func) -> Rules:
        places = [self.fresh() for _ in main.body.args]
        results = self.function(main, places)
        return Rules(tuple(self.steps), self.count, tuple(results))

    def fresh(self) -> int:
        self.count += 1
        return self.count - 1

    def function(self, func: Func, arguments: Sequence[int]) -> list[int]:
        """Appends the steps of a function applied to values at these places; where its results are."""
        where = dict(zip(func.body.args, arguments))
        for op in func.body.ops:
            operands = [where[v] for v in op.operands]
            if op.name == "func.return":
                return operands
            if op.name == "func.call":
                callee = self.program.funcs[str(op.attr("callee")).removeprefix("@").strip('"')]
                where.update(zip(op.results, self.function(callee, operands)))
                continue
            places = [self.fresh() for _ in op.results]
            where.update(zip(op.results, places))
            shapes = tuple(v.type.shape for v in op.results)
            self.steps.append(Step(op.name, tuple(operands), tuple(places), shapes, self.cache.rule_for(op)))
        return []


# ---------------------------------------------------------------------------------------------------------------------
# Shardings through rules


def by_rule(app: Application, rule: OpRule) -> list[Spec]:
    """How results are split by a rule of the application's own."""
    step = Step(app.primitive.name, (), (), numbered(tuple(t.shape for t in app.types)), rule)
    try:
        outs = _through(step, [tuple(map(axes_of, spec)) for spec in app.specs], app.sizes)
    except Refused as e:
        app.refuse(_reason(app, str(e)))
    return [tuple(map(_entry, split)) for split in outs]


def _by_rules(app: Application) -> list[Spec]:
    # Rules say which dimensions are alike, whatever their sizes: symbolic ones are numbers for them.
    bare, params, types = numbered(([a.bare() for a in app.avals], app.params, list(app.types)))
    rules = operation_rules(app.primitive, bare, params, types)
    values: list[Split] = [()] * rules.places
    for i, (aval, spec) in enumerate(zip(bare, app.specs)):
        hidden = aval.physical().ndim - aval.ndim
        values[i] = (*map(axes_of, spec), *[()] * hidden)
    try:
        for step in rules.steps:
            outs = _through(step, [values[i] for i in step.operands], app.sizes)
            for i, split in zip(step.results, outs):
                values[i] = split
    except Refused as e:
        app.refuse(_reason(app, str(e)))
    return [
        tuple(_entry(axes) for axes in values[i][: t.ndim]) or (None,) * t.ndim
        for i, t in zip(rules.results, app.types)
    ]


def _entry(axes: Axes) -> Any:
    return None if not axes else axes[0] if len(axes) == 1 else axes


def _reason(app: Application, why: str) -> str:
    specs = ", ".join(shown(s) for a, s in zip(app.avals, app.specs) if a.ndim)
    return f"{app.primitive.name} got incompatible shardings for broadcasting: {specs}. {why}."


def _through(step: Step, operands: Sequence[Split], sizes: dict[Any, int]) -> list[Split]:
    """The splits of an operation's results."""
    if not any(axes for split in operands for axes in split):
        return [((),) * len(shape) for shape in step.shapes]
    rule = step.rule
    if rule is None:
        raise Refused(
            f"The sharding rule for {step.name.partition('.')[2]} is not implemented, so operands must be replicated"
        )
    factors: list[Axes] = [()] * rule.num_factors
    for split, mapping in zip(operands, rule.operands):
        for axes, members in zip(split, mapping):
            if axes:
                _project(rule, axes, members, factors, sizes)
    for f, axes in enumerate(factors):
        if axes and rule.types[f] is FactorType.NEED_REPLICATION:
            raise Refused(f"a dimension split over {_text(axes)} must be whole there")
    return [tuple(_joined(rule, members, factors, sizes) for members in mapping) for mapping in rule.results]


def _project(rule: OpRule, axes: Axes, members: Sequence[int], factors: list[Axes], sizes: dict[Any, int]) -> None:
    """Gives the axes of a dimension to its factors, the major ones first."""
    rest = list(axes)
    for position, f in enumerate(members):
        taken, left = [], rule.sizes[f]
        if position == len(members) - 1:
            taken, rest = rest, []
        while rest and left > 1:
            if left % sizes[rest[0]]:
                raise Refused(f"{_text(axes)} splits a dimension between the parts that it is taken apart into")
            left //= sizes[rest[0]]
            taken.append(rest.pop(0))
        got = tuple(taken)
        if got and factors[f] and factors[f] != got:
            raise Refused(f"{_text(factors[f])} and {_text(got)} split the same dimension")
        factors[f] = factors[f] or got


def _joined(rule: OpRule, members: Sequence[int], factors: Sequence[Axes], sizes: dict[Any, int]) -> Axes:
    """The axes of a dimension that factors make up."""
    axes: list[Any] = []
    full = True
    for f in members:
        if factors[f] and not full:
            raise Refused(f"{_text(factors[f])} would split a minor part of a dimension of the result")
        axes += factors[f]
        full = full and math.prod([sizes[a] for a in factors[f]]) == rule.sizes[f]
    return tuple(axes)
