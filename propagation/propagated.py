"""The result of propagation, and `run`, which makes it."""

from __future__ import annotations

import functools
import hashlib

from jaxlib.mlir import ir

from .annotations import Shardings
from .log import Log, Missing, Step
from .model import TensorSharding
from .pipeline import Options, Run, run_stage
from .program import Program, Value, read
from .write import write

__all__ = ["Propagated", "run"]


class Propagated:
    """A program in which shardings have been decided.

    program     the module as plain objects (see `propagation.program`), changed by the stage
    shardings   the sharding of each value; ask through `sharding(value)`
    log         every decision, in order
    """

    def __init__(self, run: Run, stage: str):
        self._run = run
        self.stage = stage
        self.program: Program = run.program
        self.shardings: Shardings = run.shardings
        self.options: Options = run.options
        self.log: Log = run.log

    def sharding(self, value: Value) -> TensorSharding | None:
        """The sharding of a value; None if nothing was said about it (replicated)."""
        return self.shardings.get(value)

    @property
    def arg_shardings(self) -> list[TensorSharding | None]:
        """Shardings of the entry function's arguments."""
        return [self.shardings.get(v) for v in self.program.main.args]

    @property
    def result_shardings(self) -> list[TensorSharding | None]:
        """Shardings of the entry function's results."""
        return list(self.shardings.results[self.program.main])

    def explain(self, value: Value, dim: int) -> list[list[Step]]:
        """Why dimension `dim` of `value` is sharded: per axis, the steps back to an annotation. Empty if it is not, and
        for reshards that were inserted after the decisions (their operands and users say why)."""
        sharding = self.shardings.get(value)
        if sharding is None or dim >= len(sharding.dims):
            return []
        stands_for = (value.op.data or {}).get("stands_for") if value.op is not None else None
        return self.log.explain(stands_for[value.number] if stands_for else value, dim, sharding.dims[dim].axes)

    def missing(self) -> list[Missing]:
        """The values that stayed replicated though an operand of their operation is sharded, and what stopped it: a
        conflict, an axis that does not divide, a closed dimension, an operation without a rule."""
        return self.log.missing()

    def as_text(self, debug_info: bool = False) -> str:
        """The annotated module as MLIR text, with source locations if `debug_info`."""
        return self.module.operation.get_asm(enable_debug_info=debug_info)

    @functools.cached_property
    def module(self) -> ir.Module:
        """The annotated module, written when first asked for."""
        return write(self.program, self.shardings)

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


def run(module: str | bytes | ir.Module | Program, stage: str = "closed", **options) -> Propagated:
    """Propagates the shardings of a module.

    module   StableHLO with `sdy` annotations as text, bytecode, an `ir.Module` (not changed), or a `Program` (which
             is taken over and changed)
    stage    one of `propagation.STAGES`; "closed" is what a partitioner wants
    options  the fields of `propagation.Options`

    Raises the errors of `propagation.errors`.
    """
    program = module if isinstance(module, Program) else read(module)
    return Propagated(run_stage(program, stage, Options(**options)), stage)
