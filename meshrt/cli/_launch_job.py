"""What all commands that start a job ask of their user: options, script, arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from meshrt.errors import ConfigError
from meshrt.launch import placing
from meshrt.launch import settings as launch_settings
from meshrt.launch.shell import Job


def pairs(_: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """The value of an option that is given as NAME=VALUE, as often as one likes."""
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise click.BadParameter(f"{text!r}: expected NAME=VALUE", param_hint=option.opts[-1])
        found[name] = value
    return found


_OPTIONS = [
    click.option("--nproc", type=int, metavar="N", help="Number of processes, with --nodes of each host. [default: 1]"),
    click.option("--nodes", type=str, metavar="MIN[:MAX]", help="Run on so many hosts. [default: this machine alone]"),
    click.option(
        "--engine",
        type=str,
        metavar="E",
        help="What places them: local, ssh, slurm, mpi, ray, kubernetes. [default: local]",
    ),
    click.option("--devices-per-process", type=int, metavar="D", help="CPU devices of each. [default: 4]"),
    click.option("--max-restarts", type=int, metavar="K", help="Start all again after a failure, at most K times."),
    click.option(
        "--elastic",
        is_flag=True,
        help="Ranks that are left when one fails may go on (meshrt.distributed.elastic), and others join them.",
    ),
    click.option("--timeout", type=float, metavar="S", help="End the job after S seconds (exit code 124)."),
    click.option("--grace", type=float, metavar="S", help="Seconds from asking to stop to SIGKILL. [default: 5]"),
    click.option(
        "--checkpoint-timeout",
        type=float,
        metavar="S",
        help="The same for ranks that ask whether to save (checkpoint_requested). [default: 300]",
    ),
    click.option("--start-timeout", type=float, metavar="S", help="Seconds for all to connect. [default: 300]"),
    click.option(
        "--heartbeat-timeout", type=float, metavar="S", help="A rank silent for S seconds is lost. [default: 8]"
    ),
    click.option(
        "--stall-timeout", type=float, metavar="S", help="So is one that others wait for so long. [default: 300]"
    ),
    click.option("--log-dir", type=str, metavar="DIR", help="Write each rank's output, and report.json, there."),
    click.option("--bind", type=str, metavar="HOW", help="Ranks keep to cores: cores, numa (a node each) or none."),
    click.option(
        "--metrics-port", type=str, metavar="[HOST:]PORT", help="Serve figures of the job for Prometheus. [on loopback]"
    ),
    click.option("--view", is_flag=True, help="Show what ranks and hosts are at, below what they print."),
    click.option("--profile", type=str, metavar="RANKS", help="These ranks record a trace: 0, or 0,4-7, or all."),
    click.option(
        "--profile-steps", type=str, metavar="N|A:B", help="Of so many steps, or of steps A to B. [default: 5]"
    ),
    click.option("--profile-dir", type=str, metavar="DIR", help="Where traces go, on the ranks' hosts. [profiles]"),
    click.option("-v", "--verbose", is_flag=True, help="Show the runtime's own messages, not only log them."),
    click.option(
        "--env", multiple=True, metavar="NAME=VALUE", callback=pairs, help="A variable for the workers. Repeatable."
    ),
    click.option("--config", type=str, metavar="FILE", help="A TOML file, or a name in configs/launch."),
    click.option("-m", "module", is_flag=True, help="TARGET is a module, as in python -m."),
    click.argument("target"),
    click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
]

Command = Callable[..., int]


def job_options(function: Command) -> Command:
    """Adds the options and arguments of a job to a command, whose function hands them all to `job_of`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def job_of(
    ctx: click.Context, module: bool, target: str, arguments: tuple[str, ...], config: str | None,
    subcommands: Sequence[str] = (), **options: object,
) -> Job:  # fmt: skip
    """The job that the user describes. ConfigError says what is wrong with it; a target that is not there may be one of
    `subcommands`, mistyped."""
    base = launch_settings.Settings()
    if config is not None:
        base = launch_settings.read(launch_settings.find(config, launch_settings.folders()))
    given = {k: v for k, v in options.items() if ctx.get_parameter_source(k) is not ParameterSource.DEFAULT}
    settings = launch_settings.override(base, **given)
    if not module and placing.scripts_are_here(settings) and not Path(target).is_file():
        if Path(target).is_dir():
            raise ConfigError(f"{target} is a folder; name the script in it")
        raise ConfigError(f"{target}: no such script. {_instead(ctx, target, subcommands)}")
    if arguments[:1] == ("--",):  # optional, between TARGET and its arguments
        arguments = arguments[1:]
    return Job(settings, ("module" if module else "script", target), arguments)


def _instead(ctx: click.Context, target: str, subcommands: Sequence[str]) -> str:
    """What the user may have meant by a script that is not there."""
    import difflib  # start-up time: for this error only

    near = difflib.get_close_matches(target, subcommands, 1)
    if near and target == Path(target).stem:  # no path, nor the name of a file
        return f"Did you mean `{ctx.command_path} {near[0]}`?"
    return "To run a module, write -m before its name."
