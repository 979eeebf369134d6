"""``meshrt launch``: one script as many processes."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from meshrt.errors import ConfigError
from meshrt.launch import settings as launch_settings
from meshrt.launch import shell

_EPILOG = """\b
Examples:
  meshrt launch --nproc 2 examples/train_lm.py --steps 20
  meshrt launch --nproc 4 --devices-per-process 2 --max-restarts 3 --log-dir logs train.py
  meshrt launch --config local-2x4 -m my.trainer

\b
All processes run on this machine. For a job on several machines, start the script on each one with
  MESHRT_COORDINATOR_ADDRESS=HOST:PORT  (of process 0)  MESHRT_NUM_PROCESSES=N  MESHRT_PROCESS_ID=I
"""
_SEVERAL_HOSTS = ("--nnodes", "--node-rank", "--hosts", "--hostfile", "--coordinator-address")


def _one_machine(_: click.Context, option: click.Parameter, value: str | None) -> None:
    """Options that launchers of several machines have are refused with what to do instead."""
    if value is not None:
        raise click.UsageError(
            f"{option.opts[0]}: meshrt launch starts processes on this machine only. For several machines, start the "
            "script on each one with MESHRT_COORDINATOR_ADDRESS=HOST:PORT (of process 0), MESHRT_NUM_PROCESSES=N and "
            "MESHRT_PROCESS_ID=I"
        )


def _without_several_hosts(command: click.Command) -> click.Command:
    for name in _SEVERAL_HOSTS:
        command.params.append(click.Option([name], hidden=True, expose_value=False, callback=_one_machine))
    return command


# What follows TARGET belongs to the script, options included.
@_without_several_hosts
@click.command(name="launch", epilog=_EPILOG, context_settings={"allow_interspersed_args": False})
@click.option("--nproc", type=int, metavar="N", help="Number of processes. [default: 1]")
@click.option("--engine", type=str, metavar="E", help="Where the processes run. [default: local]")
@click.option("--devices-per-process", type=int, metavar="D", help="CPU devices of each. [default: 4]")
@click.option("--max-restarts", type=int, metavar="K", help="Start all again after a failure, at most K times.")
@click.option("--timeout", type=float, metavar="S", help="End the job after S seconds (exit code 124).")
@click.option("--grace", type=float, metavar="S", help="Seconds from asking to stop to SIGKILL. [default: 5]")
@click.option("--start-timeout", type=float, metavar="S", help="Seconds for all to connect. [default: 300]")
@click.option("--heartbeat-timeout", type=float, metavar="S", help="A rank silent for S seconds is lost. [default: 8]")
@click.option("--stall-timeout", type=float, metavar="S", help="So is one that others wait for so long. [default: 300]")
@click.option("--log-dir", type=str, metavar="DIR", help="Write each rank's output, and report.json, there.")
@click.option("-v", "--verbose", is_flag=True, help="Show the runtime's own messages, not only log them.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="A variable for the workers. Repeatable.")
@click.option("--config", type=str, metavar="FILE", help="A TOML file, or a name in configs/launch.")
@click.option("-m", "module", is_flag=True, help="TARGET is a module, as in python -m.")
@click.argument("target")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context, module: bool, target: str, arguments: tuple[str, ...], config: str | None,
    env: tuple[str, ...], **options: object,
) -> int:  # fmt: skip
    """Runs TARGET, a Python script, as N processes on this machine that form one job.

    The script calls meshrt.distributed.initialize() before anything else of meshrt. Each line a process
    prints is shown behind its rank. When one process fails, the others are stopped and the first cause is
    reported; the exit code is that of the first failure.
    """
    base = launch_settings.Settings()
    if config is not None:
        base = launch_settings.read(launch_settings.find(config, launch_settings.folders()))
    given = {k: v for k, v in options.items() if ctx.get_parameter_source(k) is not ParameterSource.DEFAULT}
    settings = launch_settings.override(base, env=dict(map(_variable, env)), **given)
    if not module and not Path(target).is_file():
        raise ConfigError(f"{target}: no such script. To run a module, write -m before its name.")
    if arguments[:1] == ("--",):  # optional, between TARGET and its arguments
        arguments = arguments[1:]
    return shell.run(shell.Job(settings, ("module" if module else "script", target), arguments))


def _variable(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise click.BadParameter(f"{text!r}: expected NAME=VALUE", param_hint="--env")
    return name, value
