"""The result of propagation, and `run`, which makes it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, SupportsIndex

from jaxlib.mlir import ir

from .addresses import Address, names_in_text, resolve
from .errors import BadOptionError
from .log import Log, Missing, ProvenanceStep
from .model import DimSharding, TensorSharding
from .ops import SHARDING_ATTRIBUTE
from .pipeline import Options, Run, run_stage
from .program import Program, Value, read
from .reasons import missing_at_boundaries
from .rules import RuleCache
from .shardings import Shardings
from .write import write

__all__ = ["Propagated", "run"]


class Propagated:
    """A program in which shardings have been decided.

    program     the module as plain objects (see `propagation.program`), changed by the stage
    shardings   the sharding of each value; ask through `sharding(value)`
    log         every decision, in order
    before      the propagation of the same module that this one was made `again` of; None for the first
    annotate    what changed what the module says before any was propagated; None if nothing did

    >>> import propagation
    >>> mesh = meshrt.sharding.AbstractMesh((4,), ("data",))
    >>> x = meshrt.ShapeDtypeStruct((8,), jnp.float32, sharding=meshrt.NamedSharding(mesh, meshrt.P("data")))
    >>> decided = propagation.run(meshrt.jit(jnp.sin).lower(x).as_text())
    >>> [step.source_dim for step in decided.explain("result[0]:0")[0]], decided.missing()
    ([0, None], [])
    """

    def __init__(
        self,
        run: Run,
        stage: str,
        original: Callable[[], Program] | None = None,
        annotate: Callable[[Program, Shardings], None] | None = None,
        before: Propagated | None = None,
    ):
        self._run = run
        self.before = before
        self.annotate = annotate
        self._original = original
        self.stage = stage
        self.program: Program = run.program
        self.shardings: Shardings = run.shardings
        self.options: Options = run.options
        self.log: Log = run.log

    def sharding(self, value: Value) -> TensorSharding | None:
        """The sharding of a value; None if nothing was said about it (replicated)."""
        return self.shardings.get(value)

    @property
    def rules(self) -> RuleCache:
        """The sharding rules of operations, those known already that propagation has looked up."""
        rules = RuleCache()
        rules.learn(self._run.rules)
        return rules

    @property
    def arg_shardings(self) -> list[TensorSharding | None]:
        """Shardings of the entry function's arguments."""
        return [self.shardings.get(v) for v in self.program.main.args]

    @property
    def result_shardings(self) -> list[TensorSharding | None]:
        """Shardings of the entry function's results."""
        return list(self.shardings.results[self.program.main])

    @property
    def is_repeatable(self) -> bool:
        """Whether the module can be propagated anew (`again`): not where a `Program` was handed in, unless its owner
        said how to make it once more."""
        return self._original is not None

    def again(self, then: Callable[[Program, Shardings], None] | None = None, **changes: Any) -> Propagated | None:
        """The same module propagated anew, with some of the options changed. Arguments of the entry function begin with
        the shardings that they have here, each dimension at the user priority at which it got its axes; `then` may
        change what the module says besides. None unless it `is_repeatable`.
        """
        if self._original is None:
            return None
        given = [self._with_priorities(v) for v in self.program.main.args]

        def prefer(program: Program, shardings: Shardings) -> None:
            for arg, sharding in zip(program.main.args, given, strict=True):
                if sharding is not None:
                    shardings.set(arg, sharding)
            if then is not None:
                then(program, shardings)

        done = run_stage(self._original(), self.stage, replace(self.options, **changes), self.annotate, prefer)
        return Propagated(done, self.stage, self._original, self.annotate, self)

    def _with_priorities(self, value: Value) -> TensorSharding | None:
        """The sharding of a value as an annotation from which the same priorities follow."""
        sharding = self.shardings.get(value)
        if sharding is None or not self.log.knows(value):
            return sharding
        dims = [
            DimSharding(d.axes, d.is_open, self.log.user_priority(value, number) or None) if d.axes else d
            for number, d in enumerate(sharding.dims)
        ]
        return sharding.with_dims(dims)

    def explain(self, what: Value | str, dim: int | None = None) -> list[list[ProvenanceStep]]:
        """Why dimension `dim` of a value is sharded: per axis, the steps back to an annotation. Empty if it is not, and
        for reshards that were inserted after the decisions (their operands and users say why).

        `what` is a value of the program, or the text that addresses one, with or without a dimension: `result[1]:0`,
        `arg[0]:1`, `%3`, the name of an argument, `train.py:57:0` (see `propagation.addresses`). Without `dim` all
        dimensions are explained, one after the other. Raises `BadOptionError` for what is not there.
        """
        if isinstance(what, Value):
            dims = range(what.type.rank) if dim is None else (_dimension(dim),)
            return [chain for d in dims for chain in self._explain_value(what, d)]
        if isinstance(what, str) and dim is not None:
            what = f"{what}:{_dimension(dim)}"
        return [chain for at in resolve(self, what) for d in at.dims for chain in self.explain_address(at, d)]

    def explain_address(self, at: Address, dim: int) -> list[list[ProvenanceStep]]:
        """The same for one dimension of what was addressed."""
        sharding = None if at.result is None else self.shardings.results[at.func][at.result]
        if at.result is None or sharding is self.shardings.get(at.value):
            return self._explain_value(at.value, dim)
        if sharding is None or dim >= len(sharding.dims):
            return []
        return self.log.explain_result(at.func, at.result, dim, sharding.dims[dim].axes)

    def first_steps(self, value: Value) -> list[ProvenanceStep]:
        """The first step of the explanation of each axis of a value: the rest is that of its `source`. Linear in the
        size of the program for all values together, which the whole chains are not."""
        return [chain[0] for d in range(value.type.rank) for chain in self._explain_value(value, d, most=1)]

    def _explain_value(self, value: Value, dim: int, most: int | None = None) -> list[list[ProvenanceStep]]:
        sharding = self.shardings.get(value)
        if sharding is None or dim >= len(sharding.dims):
            return []
        stands_for = (value.op.data or {}).get("stands_for") if value.op is not None else None
        asked = stands_for[value.number] if stands_for else value
        chains = self.log.explain(asked, dim, sharding.dims[dim].axes, most)
        return chains if self.before is None else [self._from_before(self.before, chain) for chain in chains]

    def _from_before(self, before: Propagated, chain: list[ProvenanceStep]) -> list[ProvenanceStep]:
        """A chain that ends where this propagation began, from there on as the one `before` has it: what that decided
        of arguments, and what somebody set for operations, is no annotation."""
        last = chain[-1]
        value = last.value
        if value is None or last.op is not None or last.is_inserted or last.constraint is not None:
            return chain
        if value.op is None:
            main = self.program.main
            if value.argument_of is not main:
                return chain
            earlier = before._chain_over(before.program.main.args[value.number], last)
            return [*chain[:-1], *earlier] if earlier else chain
        if value.op.name in SHARDING_ATTRIBUTE or value.op.has_attr("sdy.sharding"):
            return chain
        same = before.program.values[value.index] if value.index < len(before.program.values) else None
        is_there = same is not None and same.op is not None and same.op.name == value.op.name
        earlier = before._chain_over(same, last) if same is not None and is_there and same.type == value.type else []
        is_annotated = len(earlier) == 1 and earlier[0].op is None and earlier[0].dim == last.dim
        return chain if is_annotated else [*chain[:-1], replace(last, is_chosen=True), *earlier]

    def _chain_over(self, value: Value, step: ProvenanceStep) -> list[ProvenanceStep]:
        """Why a value has the axis of a step, in that dimension or else in another; empty if it has not."""
        for dim in sorted(range(value.type.rank), key=lambda d: d != step.dim):
            for chain in self._explain_value(value, dim):
                if chain[0].axis.name == step.axis.name:
                    return chain
        return []

    def missing(self) -> list[Missing]:
        """Every dimension of a value that stayed whole though another operand or result of an operation is sharded
        along it, and what stopped the axes: operands that disagree, an axis that does not divide, a closed dimension,
        an operation without a rule; and arguments and results of functions that are whole because tiles are even there.
        """
        return list(self._missing)

    @functools.cached_property
    def _missing(self) -> list[Missing]:
        return self.log.missing() + missing_at_boundaries(self.log, self.shardings)

    def as_text(self, debug_info: bool = False) -> str:
        """The annotated module as MLIR text, with source locations if `debug_info`."""
        return str(self.module.operation.get_asm(enable_debug_info=debug_info))

    @functools.cached_property
    def module(self) -> ir.Module:
        """The annotated module, written when first asked for."""
        return write(self.program, self.shardings)

    @functools.cached_property
    def value_names(self) -> dict[Value, tuple[str, str]]:
        """(function, name in `as_text()`) of every value."""
        return names_in_text(self)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of the annotated module, without locations."""
        return hashlib.sha256(self.as_text().encode()).hexdigest()

    def __repr__(self) -> str:
        values = self.program.values
        sharded = sum(1 for v in values if (s := self.shardings.get(v)) is not None and not s.is_fully_replicated)
        return (
            f"<Propagated {self.stage}: {sharded} of {len(values)} values sharded over "
            f"{', '.join('@' + m for m in self.program.meshes) or 'no mesh'}, {len(self.log.events)} decisions>"
        )


def _dimension(dim: object) -> int:
    if isinstance(dim, bool) or not isinstance(dim, SupportsIndex) or int(dim) < 0:
        raise BadOptionError(f"a dimension is a number from 0, got {dim!r}")
    return int(dim)


def run(
    module: str | bytes | ir.Module | Program,
    stage: str = "closed",
    *,
    file: str | None = None,
    annotate: Callable[[Program, Shardings], None] | None = None,
    original: Callable[[], Program] | None = None,
    **options: Any,
) -> Propagated:
    """Propagates the shardings of a module.

    module   StableHLO with `sdy` annotations as text, bytecode, an `ir.Module` (not changed), or a `Program` (which
             is taken over and changed)
    stage    one of `propagation.STAGES`; "closed" is what a partitioner wants
    file     the file that a text was read from, for the places of operations without a location (see `read`)
    annotate what may change the shardings that the module says before any is propagated (`propagation.overrides`)
    original what makes the program once more, of a `Program` that was handed in; None: nobody can
    options  the fields of `propagation.Options`

    Raises `BadOptionError` for a stage, option or value that there is not, `ModuleParseError` for what is no module,
    `UnsupportedModuleError` for a structure that propagation does not handle, `BadRuleError` for a registered rule that
    does not fit a call, and for annotations that do not fit the error that says how (`UnknownMeshError`,
    `UnknownAxisError`, `AxisReuseError`, `OverlappingAxesError`, `SubAxisError`, `RankMismatchError`). All are
    `propagation.errors.PropagationError`s.

    >>> import propagation
    >>> mesh = meshrt.sharding.AbstractMesh((4,), ("data",))
    >>> x = meshrt.ShapeDtypeStruct((8,), jnp.float32, sharding=meshrt.NamedSharding(mesh, meshrt.P("data")))
    >>> decided = propagation.run(meshrt.jit(jnp.sin).lower(x).as_text())
    >>> decided.result_shardings[0].to_text()
    '#sdy.sharding<@mesh, [{"data"}]>'
    """
    program = module if isinstance(module, Program) else read(module, file)
    if not isinstance(module, Program):
        original = lambda: read(program.read())
    return Propagated(run_stage(program, stage, Options.of(options), annotate), stage, original, annotate)
