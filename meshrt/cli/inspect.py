"""``meshrt inspect``: what a program's arguments, results and collectives are, without running it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from meshrt.cli._arguments import argument_options, hook_of
from meshrt.errors import InspectError

if TYPE_CHECKING:
    from meshrt.inspect.annotations import Annotations
    from meshrt.inspect.changes import Comparison
    from meshrt.inspect.guard import Limits
    from meshrt.inspect.model import Report
    from meshrt.inspect.target import Hook

_STAGES = click.Choice(["lowered", "propagated", "partitioned"])
_EPILOG = """\b
Examples:
  meshrt inspect examples/train_lm.py:step --mesh data=8,model=4
  meshrt inspect examples/train_lm.py:step --mesh data=8,model=4 --explain 'tokens:0'
  meshrt inspect examples/train_lm.py:step --mesh data=8,model=4 --explain all_gather
  meshrt inspect model.py:predict --mesh data=8 --args 'params.json,f32[64@data,128]'
  meshrt inspect step.mexp --mesh data=4 --sizes b=64
  meshrt inspect program.mlir --json
  meshrt inspect program.mlir --stage partitioned > device.mlir
  meshrt inspect train.py:step --mesh data=8 --html train.html
  meshrt inspect train.py:step --mesh data=8 --serve
  meshrt inspect train.py:step --mesh data=8 --lint
  meshrt inspect train.py:step --mesh data=8 --check budget.toml
  meshrt inspect train.py:step --mesh data=8 --markdown --against main.json
"""


def _print_schema(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from meshrt.inspect.schema import report_schema  # start-up time, as below

        click.echo(json.dumps(report_schema(), indent=1))
        ctx.exit()


def _print_rules(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from meshrt.inspect.lint.rules import rules  # start-up time, as below

        for rule in rules().values():
            click.echo(f"{rule.name:16}{rule.says}")
        ctx.exit()


class _Command(click.Command):
    """A command whose `--lint` and `--serve` may stand alone: click would take the word behind them for a value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        alone = ["--lint=all" if a == "--lint" else a for a in args[:end]]
        following = [*alone[1:], ""]
        alone = ["--serve=0" if a == "--serve" and not b.isdigit() else a for a, b in zip(alone, following)]
        return super().parse_args(ctx, alone + args[end:])


@click.command(name="inspect", epilog=_EPILOG, cls=_Command)
@click.option("--mesh", metavar="AXIS=N,...",
              help="The mesh, for FILE.py:FUNCTION and for files that name none, or another one with the axes of a "
              "file's own; exported functions are partitioned again for any. No devices are needed.")  # fmt: skip
@argument_options
@click.option(
    "--sizes", "numbers", metavar="NAME=N,...", help="A number for each symbolic size of an exported function."
)
@click.option("--annotations", metavar="FILE", help="Shardings of arguments by patterns of their names, in TOML.")
@click.option("--annotate", multiple=True, metavar="PATTERN=AXES",
              help="One of them, as in 'params/*/w1=,model'; again for more.")  # fmt: skip
@click.option("--stage", type=_STAGES, help="Print the program at this stage instead of the report.")
@click.option(
    "--explain",
    metavar="WHAT",
    help="Say why: of VALUE or VALUE:DIM (an argument, a result) how it is sharded, of FILE:LINE how its values are, "
    "and what it sends; of a kind of collective, or of `collectives`, why they run.",
)
@click.option("--topology", metavar="FILE", help="Bandwidths and latencies, as in configs/topologies.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, which fits --schema.")
@click.option("--program", "with_program", is_flag=True,
              help="With --json: all operations as well, which --html --against draws.")  # fmt: skip
@click.option("--schema", is_flag=True, is_eager=True, expose_value=False, callback=_print_schema,
              help="Print the JSON schema of --json and exit.")  # fmt: skip
@click.option("--markdown", is_flag=True, help="Print the report as Markdown, with --against what changed.")
@click.option("--html", "page", metavar="FILE",
              help="Write the report as a page: graph, source, tables; with --against two reports.")  # fmt: skip
@click.option("--serve", "port", type=click.IntRange(0, 65535), metavar="[PORT]",
              help="Serve the page on this machine, and make it anew when the program's files change.")  # fmt: skip
@click.option("--against", metavar="TARGET",
              help="Show what changed since: a report that --json wrote, or a program, for the causes.")  # fmt: skip
@click.option("--against-mesh", metavar="AXIS=N,...", help="The mesh of --against, or of TARGET itself before.")
@click.option("--against-annotations", metavar="FILE", help="The --annotations of --against, or of TARGET before.")
@click.option("--lint", metavar="[=RULE,...]", help="Say what costs more than it need, with changes that were tried.")
@click.option("--lint-rules", is_flag=True, is_eager=True, expose_value=False, callback=_print_rules,
              help="Print the rules of --lint and exit.")  # fmt: skip
@click.option("--check", "budget", metavar="FILE", help="Exit with code 1 if the program is above its budget in FILE.")
@click.option("--update", is_flag=True, help="With --check: write the present figures into FILE as the budget.")
@click.option("--timeout", type=click.FloatRange(min=1), default=120.0, show_default=True, metavar="S",
              help="Give up on a foreign file after S seconds.")  # fmt: skip
@click.argument("target")
def command(
    target: str,
    mesh: str | None,
    factory: str | None,
    written: str | None,
    numbers: str | None,
    annotations: str | None,
    annotate: tuple[str, ...],
    stage: str | None,
    explain: str | None,
    topology: str | None,
    as_json: bool,
    with_program: bool,
    markdown: bool,
    page: str | None,
    port: int | None,
    against: str | None,
    against_mesh: str | None,
    against_annotations: str | None,
    lint: str | None,
    budget: str | None,
    update: bool,
    timeout: float,
) -> int:
    """Shows arguments, results and collectives of TARGET with their shardings, bytes and causes.

    TARGET is a StableHLO file (text or bytecode, from any compiler; - is standard input) whose shardings are written
    with the sdy dialect or as GSPMD does, or an exported function in a file, or FILE.py:FUNCTION (or
    FILE.py:CLASS.METHOD) with --mesh: a function, jitted by meshrt or by jax or not at all, and a function
    example_arguments(mesh) beside it, or --args. Nothing is compiled or run.
    """
    # Start-up time: `meshrt --help` shows every command, and the planner takes 50 ms to import.
    from meshrt.inspect.files import open_regular, require_writable
    from meshrt.inspect.guard import Limits
    from meshrt.inspect.model import Report

    forms = {"--html": page, "--serve": port, "--stage": stage, "--check": budget}
    _check_forms({**forms, "--json": as_json or None, "--markdown": markdown or None})
    asks = lint is not None or explain is not None
    _refuse({
        "--serve goes with files; standard input comes once": port is not None and target == "-",
        "--stage goes with none of --lint and --explain": stage is not None and asks,
        "--program goes with --json": with_program and not as_json,
        "--update goes with --check FILE": update and budget is None,
    })  # fmt: skip
    rules = None if lint is None and not _counts_lint(budget) else _rules(lint or "all")
    for option, file in (("--html", None if page == "-" else page), ("--check", budget if update else None)):
        if file is not None:
            require_writable(file, option)
    if topology is not None and os.path.exists(topology):
        open_regular(topology, "a file as in configs/topologies, or a name such as v5e:4x4").close()
    given, hook = _annotations(annotations, annotate), hook_of(factory, written)
    mesh = mesh or (given.mesh if given is not None else None)
    earlier = _earlier(target, against, against_mesh, against_annotations)
    beside = None
    if page is not None or port is not None:
        rest = {"--factory": factory, "--args": written, "--topology": topology, "--timeout": timeout}
        other = {"--mesh": None if earlier is None else earlier.mesh or mesh, "--annotations": against_annotations}
        beside = _beside(against, earlier, {**rest, **other, "--sizes": numbers})
    if port is not None:
        compared = against if earlier is None else earlier.target
        with_it = (
            None if beside is None or compared is None else (beside, compared, _there(against_annotations, topology))
        )
        return _serve(target, port, with_it, _there(annotations, topology))
    program = _Program(target, mesh, given, numbers)
    changes = None
    compares = earlier is not None or (against is not None and page is None)
    others = budget is not None or stage is not None or asks
    _refuse({"--against goes with none of --check, --lint, --stage and --explain": compares and others})
    if earlier is not None:
        changes = _compared(earlier, program, hook, topology, Limits(seconds=timeout))
    if changes is not None and page is None:
        _show(changes, as_json, markdown)
        return 0
    whole = with_program or page is not None
    reply = _reply(program, hook, written, stage, explain, topology, Limits(seconds=timeout), whole, rules)
    if "text" in reply:
        click.echo(reply["text"], nl=False)
        return 0
    report = Report.from_json(reply["report"])
    if page is not None:
        return _write_page(report, page, None if beside is None else beside(), changes)
    if budget is not None:
        return _check(report, Path(budget), update)
    if against is not None:
        _show_changes(report, Path(against), as_json, markdown)
    else:
        _show_report(report, reply["report"], as_json, markdown)
    return 0


def _refuse(combinations: Mapping[str, bool]) -> None:
    """UsageError with the first of these messages whose combination of options is there."""
    for message, is_there in combinations.items():
        if is_there:
            raise click.UsageError(message)


def _show_report(report: Report, data: Any, as_json: bool, markdown: bool) -> None:
    """Prints one report: as JSON its `data`."""
    if as_json:
        click.echo(json.dumps(data, indent=1))
    elif markdown:
        from meshrt.inspect.markdown import report_markdown  # start-up time, as above

        click.echo(report_markdown(report), nl=False)
    else:
        from meshrt.inspect.render import console, render  # start-up time: --json needs no tables

        render(report, console())


def _check_forms(given: Mapping[str, object]) -> None:
    """UsageError where several of the options stand that each say what is to come of the report."""
    first, *others = [option for option, value in given.items() if value is not None] or [""]
    if others:
        rest = [option for option in given if option != first]
        raise click.UsageError(f"{first} goes with none of {', '.join(rest[:-1])} and {rest[-1]}")


class _Program(NamedTuple):
    """A program to compare: what it is, the mesh and the annotations over it, numbers for symbolic sizes."""

    target: str
    mesh: str | None
    annotations: Annotations | None
    numbers: str | None = None


def _reply(
    program: _Program,
    hook: Hook,
    written: str | None,
    stage: str | None,
    explain: str | None,
    topology: str | None,
    limits: Limits,
    whole: bool,
    rules: list[str] | None,
) -> dict[str, Any]:
    """What is known of a program: the "text" of a stage or an explanation, or a "report" (`whole`: with its graph)."""
    from meshrt.inspect.guard import inspect_file  # start-up time, as above
    from meshrt.inspect.target import parse_mesh, parse_sizes, require_file, split_target

    target, mesh, given, numbers = program
    python = split_target(target)
    if python is not None:
        require_file(python[0])
        if numbers is not None:
            raise click.UsageError(
                "--sizes goes with files of exported functions; a function has those of its arguments"
            )
        if mesh is None:
            raise click.UsageError(f"{target} needs a mesh, such as --mesh data=4,model=2")
        from meshrt.inspect.program import inspect_function  # start-up time, as above

        return inspect_function(*python, parse_mesh(mesh), hook, stage, explain, topology, given, whole, rules)
    if target.endswith(".py"):
        raise InspectError(f"{target}: name a function of it, as in {target}:step")
    if written is not None:
        raise click.UsageError("--args goes with FILE.py:FUNCTION; a module says which arguments it has")
    over = None if mesh is None else parse_mesh(mesh)
    sizes = None if numbers is None else parse_sizes(numbers)
    return inspect_file(target, stage, explain, topology, limits, over, given, whole, rules, sizes)


def _earlier(target: str, against: str | None, mesh: str | None, annotations: str | None) -> _Program | None:
    """The program that TARGET is compared with; None if it is a report, or there is none."""
    if against is None and mesh is None and annotations is None:
        return None
    from meshrt.inspect.compared_programs import is_report  # start-up time, as above

    if against is not None and is_report(against):
        if mesh is not None or annotations is not None:
            raise click.UsageError(f"{against} is a report; --against-mesh and --against-annotations go with programs")
        return None
    given = _annotations(annotations, ())
    return _Program(against or target, mesh or (None if given is None else given.mesh), given)


def _compared(earlier: _Program, later: _Program, hook: Hook, topology: str | None, limits: Limits) -> Comparison:
    """What changed between two programs, and because of what."""
    # Start-up time, as above.
    from meshrt.inspect.compared_programs import side_apart, side_of
    from meshrt.inspect.comparing import compare_sides
    from meshrt.inspect.target import parse_sizes, split_target

    if later.numbers is not None and split_target(earlier.target) and split_target(later.target):
        raise click.UsageError("--sizes goes with files of exported functions; functions have those of their arguments")
    sizes = None if later.numbers is None else parse_sizes(later.numbers)
    before = side_apart(earlier.target, earlier.mesh or later.mesh, hook, earlier.annotations, limits, sizes)
    after = side_of(later.target, later.mesh, hook, later.annotations, limits, sizes)
    return compare_sides(before, after, topology, limits)


def _counts_lint(path: str | None) -> bool:
    """Whether a file of budgets has limits on what lint finds."""
    if path is None or not os.path.exists(path):
        return False
    from meshrt.inspect.budget import read_budgets  # start-up time, as above

    return any(limits.lint is not None for limits in read_budgets(Path(path)).values())


def _rules(text: str) -> list[str]:
    """The rules of `--lint=RULE,...`."""
    from meshrt.inspect.lint.rules import chosen, rule_names  # start-up time, as above

    names = None if text == "all" else [name.strip() for name in text.split(",")]
    chosen(names)
    return rule_names() if names is None else names


def _annotations(file: str | None, texts: tuple[str, ...]) -> Annotations | None:
    """What a file and options say of arguments; None if nothing does."""
    if file is None and not texts:
        return None
    from meshrt.inspect.annotations import Annotations, annotation_of, read_annotations  # start-up time, as above

    found = Annotations() if file is None else read_annotations(Path(file))
    for text in texts:
        found = found.and_(annotation_of(text))
    return found


def _check(report: Report, path: Path, update: bool) -> int:
    """0 if the report keeps its budget, else 1, the limits it is above being printed."""
    # Start-up time, as above.
    from meshrt.inspect import budget
    from meshrt.inspect.files import writable

    if update:
        budget.write_budget(path, report.name, budget.budget_of(report))
        click.echo(f"{path}: wrote the budget of {report.name}")
        return 0
    budgets = budget.read_budgets(path)
    name = writable(report.name)
    if name not in budgets:
        known = ", ".join(budgets) or "none"
        raise InspectError(f"{path} has no budget of {report.name} (it has {known}); --update writes it")
    excess = budget.check(report, budgets[name])
    for found in excess:
        click.echo(str(found))
    if not excess:
        click.echo(f"{report.name}: within its budget")
    return 1 if excess else 0


def _there(*files: str | None) -> list[str]:
    """Those that are files: a topology may be a name."""
    return [file for file in files if file is not None and os.path.exists(file)]


def _serve(
    target: str, port: int, beside: tuple[Callable[[], Report], str, list[str]] | None, others: list[str]
) -> int:
    """Serves the page of what this command was asked for, by running it again without `--serve`."""
    from meshrt.inspect.serving import Beside, serve  # start-up time, as above

    without = {"port", "against", "against_mesh", "against_annotations", "target"}
    compared = None if beside is None else Beside(*beside)
    return serve(target, _again(click.get_current_context(), without), port, compared, others)


def _again(ctx: click.Context, without: set[str]) -> list[str]:
    """The options of this command line, but those."""
    arguments: list[str] = []
    for option in ctx.command.params:
        name = option.name or ""
        if name in without or ctx.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE:
            continue
        values = ctx.params[name] if option.multiple else [ctx.params[name]]
        is_flag = isinstance(option, click.Option) and option.is_flag
        arguments += [option.opts[0] if is_flag else f"{option.opts[0]}={value}" for value in values]
    return arguments


def _beside(
    against: str | None, earlier: _Program | None, options: Mapping[str, object]
) -> Callable[[], Report] | None:
    """What makes the report that a page shows beside its own: that of a file, or of a program with those options."""
    if earlier is None:
        from meshrt.inspect.changes import read_report  # start-up time, as above

        return None if against is None else lambda: read_report(Path(against))
    from meshrt.inspect.rerun import report_apart  # start-up time, as above

    given = [f"{name}={value}" for name, value in options.items() if value is not None]
    return lambda: report_apart([*given, earlier.target])


def _write_page(report: Report, page: str, beside: Report | None, changes: Comparison | None) -> int:
    """Writes the report as HTML, beside another one if there is one, with the `changes` if they are known."""
    from meshrt.inspect.page.document import document  # start-up time, as above

    text = document(report, beside, changes=changes)
    if page == "-":
        click.echo(text, nl=False)
        return 0
    try:
        Path(page).write_text(text, encoding="ascii")
    except OSError as e:
        raise InspectError(f"{page}: {e.strerror or e}; give --html a file that can be written") from None
    click.echo(f"{page}: wrote the page of {report.name} ({len(text) / 1024:,.0f} KiB)")
    return 0


def _show_changes(report: Report, path: Path, as_json: bool, markdown: bool) -> None:
    """What changed since the report in a file."""
    from meshrt.inspect.changes import compare, read_report  # start-up time, as above

    _show(compare(read_report(path), report), as_json, markdown)


def _show(changes: Comparison, as_json: bool, markdown: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(changes), indent=1))
    elif markdown:
        from meshrt.inspect.markdown import comparison_markdown  # start-up time, as above

        click.echo(comparison_markdown(changes), nl=False)
    else:
        from meshrt.inspect.render import console, render_changes  # start-up time, as above

        render_changes(changes, console())
