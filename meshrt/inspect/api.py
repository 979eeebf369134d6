"""Reports for notebooks, and for tests that hold what a program may communicate."""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import Console

from collectives.findings import human
from collectives.kinds import kinds
from collectives.topology import load
from meshrt.errors import InspectError, did_you_mean
from meshrt.inspect.child_options import partitioning_of
from meshrt.inspect.containers import module_in
from meshrt.inspect.exported import platform_of
from meshrt.inspect.foreign import partition_foreign, propagate_foreign
from meshrt.inspect.kernels import kernel_rows
from meshrt.inspect.lint import Subject, subject_of_module, subject_of_stage
from meshrt.inspect.lint import lint as found_by_lint
from meshrt.inspect.markdown import report_markdown
from meshrt.inspect.model import CollectiveRow, Report, report_of
from meshrt.inspect.page.document import document
from meshrt.inspect.program_graph import program_row
from meshrt.inspect.program_rows import ProgramRow
from meshrt.inspect.render import clean, render
from meshrt.inspect.target import split_target
from meshrt.inspect.totals import by_kind
from meshrt.jit import jit
from meshrt.pipeline.lowered import Lowered
from meshrt.pipeline.names import argument_names, names_of, output_names
from meshrt.pipeline.partitioned import Partitioned
from meshrt.pipeline.propagated import Propagated

__all__ = ["NotebookReport", "assert_communication", "report"]


# A notebook keeps what its cells show: of a page that is larger than this only the tables are kept.
MOST_KEPT = 4 << 20
_WIDTH = 100  # of the tables where there is neither a page nor a terminal


class NotebookReport(Report):
    """A report that a notebook shows as a page, or as tables where the page would be larger than 4 MiB."""

    __slots__ = ("_program",)
    _program: Callable[[], ProgramRow]

    def with_program(self) -> Report:
        """The report with all operations of the program, which is made when first asked for."""
        if self.program is None:
            object.__setattr__(self, "program", self._program())
        return self

    def to_html(self, against: Report | None = None) -> str:
        """The report as one HTML page that asks for nothing else, as `meshrt inspect --html` writes it; beside another
        one if it is compared `against` that."""
        if isinstance(against, NotebookReport):
            against = against.with_program()
        return document(self.with_program(), against)

    def __repr__(self) -> str:
        out = io.StringIO()
        render(self, Console(file=out, width=_WIDTH, color_system=None, highlight=False))
        return out.getvalue().rstrip()

    def _repr_html_(self) -> str | None:
        page = self.to_html()
        if len(page) > MOST_KEPT:
            return None
        # A frame of its own: the page's policy, its style and its script concern nothing else in the notebook.
        return (
            f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts" title="{html.escape(clean(self.name))}" '
            'style="width: 100%; height: 720px; border: 0"></iframe>'
        )

    def _repr_markdown_(self) -> str:
        return report_markdown(self)


def report(
    program: Any, *, name: str = "program", topology: str | None = None, lint: bool | Sequence[str] = False
) -> NotebookReport:
    """What a program communicates and holds. Nothing is compiled or run.

    Args:
      program: a stage (`f.trace(...)`, `.lower()`, `.propagate()`, `.partition()`), what JAX traced or lowered, an
        exported function (ours or JAX's, serialized or not), or a StableHLO module with `sdy` shardings as text,
        bytecode or an `ir.Module`.
      name: what the report calls the program.
      topology: bandwidths and latencies: a name such as `v5e:4x4`, or a file as in configs/topologies. What is
        partitioned already has the one that it was partitioned for.
      lint: whether `.lint` of the report says what costs more than it need, or the names of the rules that are asked
        for (`meshrt inspect --lint-rules` lists them).

    Raises:
      InspectError: `program` is none of these, or was partitioned from shardings of its own; `lint` names no rule.
      collectives.errors.TopologyError: no such topology, or one that does not hold the program's mesh.
      propagation.errors.PropagationError: the module cannot be read, or its annotations do not fit. What
        `collectives.partition` raises. UnsupportedError: a program for several platforms.

    >>> import meshrt, meshrt.numpy as jnp
    >>> from meshrt.sharding import AxisType, NamedSharding, PartitionSpec as P
    >>> mesh = meshrt.sharding.AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
    >>> x = meshrt.ShapeDtypeStruct((8, 4), jnp.float32, sharding=NamedSharding(mesh, P("x")))
    >>> report(meshrt.jit(lambda x: x.sum(0)).lower(x)).collectives[0].kind
    'all_reduce'
    """
    machine = None if topology is None else load(topology)
    options = {} if machine is None else {"topology": machine}
    subject: Callable[[], Subject]
    program, platform = _opened(program, name)
    if isinstance(program, Lowered):
        program = program.propagate()
    if isinstance(program, Propagated):
        program = program.partition(**options)
    if isinstance(program, Partitioned):
        propagated = program.result.propagated
        if propagated is None:
            raise InspectError("the program was partitioned from shardings of its own; give the stage before")
        kernels, stage = kernel_rows(program.lowered, propagated), program
        subject = lambda: subject_of_stage(stage.lowered, stage.result, stage.options.get("topology"))
        names = names_of(program.lowered)
        made = report_of(name, propagated, program.result, *names, kernels=kernels)
        rows = partial(program_row, propagated, *names)
    elif isinstance(program, str | bytes) or hasattr(program, "operation"):
        propagated = propagate_foreign(program)
        how = partitioning_of({"platform": platform}, machine)
        partitioned = partition_foreign(propagated, machine, **how)
        names = argument_names(propagated), output_names(propagated)
        decided = partitioned.decided(propagated)
        made = report_of(name, decided, partitioned, *names)
        rows = partial(program_row, decided, *names, partial(_own_text, name, program), name)
        subject = lambda: subject_of_module(program, partitioned, machine, how=how)
    else:
        raise InspectError(
            "report takes a stage such as f.lower(...), an exported function, or a StableHLO module, got "
            f"{type(program).__name__}"
        )
    if lint is not False:
        made = replace(made, lint=found_by_lint(subject(), None if lint is True else lint))
    shown = NotebookReport(**{field: getattr(made, field) for field in Report.__dataclass_fields__})
    object.__setattr__(shown, "_program", rows)
    return shown


def _opened(program: Any, name: str) -> tuple[Any, str]:
    """The module in what has one: an exported function, bytes of one, what JAX lowered; else `program` itself. Of
    exported functions the platform, too."""
    if isinstance(serialized := getattr(program, "mlir_module_serialized", None), bytes):
        return serialized, platform_of(program)
    if isinstance(program, bytes | bytearray | memoryview):
        data = bytes(program)
        exported = module_in(data, name)
        return (data, "") if exported is None else (exported, platform_of(data))
    if isinstance(program, str) and split_target(program) is not None:
        raise InspectError(f"report takes a program, not where it is: `meshrt inspect {program}` reads it")
    if hasattr(program, "jaxpr") and hasattr(program, "lower"):  # what was traced, by us or by JAX
        program = program.lower()
    if not isinstance(program, Lowered) and hasattr(program, "compiler_ir"):
        return program.compiler_ir("stablehlo"), ""
    return program, ""


def _own_text(name: str, module: Any, path: str) -> str | None:
    """The source of a module is its own text; files that it names are not read."""
    return module if path == name and isinstance(module, str) else None


def assert_communication(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    max_bytes: float | None = None,
    max_memory: float | None = None,
    **counts: int,
) -> None:
    """Asserts what `function(*args, **kwargs)` communicates; for tests. Nothing is compiled or run.

    Args:
      function: what `meshrt.jit` returned, or a function, which is jitted.
      args, kwargs: its arguments: arrays, or `ShapeDtypeStruct`s, with their shardings.
      max_bytes: what the busiest device may send per run of the program.
      max_memory: bytes that a device may hold at most, as estimated before compiling.
      counts: how many collectives of a kind run: `all_gather=0, all_reduce=2`. Kinds that are not named may run.

    Raises:
      AssertionError: something is otherwise; the message names the lines that communicate.
      InspectError: a keyword is no kind of collective. What lowering the function and `report` raise.

    >>> import meshrt, meshrt.numpy as jnp
    >>> from meshrt.sharding import AxisType, NamedSharding, PartitionSpec as P
    >>> mesh = meshrt.sharding.AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
    >>> x = meshrt.ShapeDtypeStruct((8, 4), jnp.float32, sharding=NamedSharding(mesh, P("x")))
    >>> assert_communication(lambda x: x.sum(0), (x,), all_reduce=1, all_gather=0, max_bytes=1024)
    """
    for kind in counts:
        if kind not in kinds():
            known = [*kinds(), "max_bytes", "max_memory"]
            raise InspectError(f"assert_communication: {kind} is none of {', '.join(known)}{did_you_mean(kind, known)}")
    jitted = function if hasattr(function, "lower") else jit(function)
    found = report(jitted.lower(*args, **(kwargs or {})))
    run = {total.key: total.count for total in by_kind(found)}
    wrong = [
        (f"{kind} runs {run.get(kind, 0)} times, expected {count}", [c for c in found.collectives if c.kind == kind])
        for kind, count in counts.items()
        if run.get(kind, 0) != count
    ]
    if max_bytes is not None and found.bytes > max_bytes:
        largest = sorted(found.collectives, key=lambda c: -c.total)
        wrong.append((f"a device sends {human(found.bytes)}, at most {human(max_bytes)} expected", largest))
    if max_memory is not None and found.memory is not None and found.memory.peak_bytes > max_memory:
        peak = human(found.memory.peak_bytes)
        wrong.append((f"a device holds {peak} at most, no more than {human(max_memory)} expected", []))
    if wrong:
        raise AssertionError("\n".join(line for what, rows in wrong for line in [what, *map(_row, rows[:10])]))


def _row(row: CollectiveRow) -> str:
    times = "?" if row.times is None else row.times
    return f"  {row.where or '?'}: {row.kind} over {row.axes or '-'}, {times} times {human(row.bytes)} ({row.cause})"
