"""``meshrt launch``: one script as many processes."""

from __future__ import annotations

from typing import Any

import click

from meshrt.cli._launch_job import job_of, job_options
from meshrt.launch import shell

# A script of such a name is started as ./status.
SUBCOMMANDS = ("agent", "certificates", "coordinator", "logs", "resize", "status", "stop")

_EPILOG = """\b
Examples:
  meshrt launch --nproc 2 examples/train_lm.py --steps 20
  meshrt launch --nproc 4 --devices-per-process 2 --max-restarts 3 --log-dir logs train.py
  meshrt launch --config local-2x4 -m my.trainer

\b
Several machines, with the same MESHRT_JOB_SECRET on all:
  meshrt launch coordinator --listen HOST:PORT --nodes 2 --nproc 4 train.py    (on one of them)
  meshrt launch agent --coordinator HOST:PORT                                  (on each of them)
"""
_SEVERAL_HOSTS = ("--nnodes", "--node-rank", "--hosts", "--hostfile", "--coordinator-address")


def _one_machine(_: click.Context, option: click.Parameter, value: str | None) -> None:
    """Options that launchers of several machines have are refused with what to do instead."""
    if value is not None:
        raise click.UsageError(
            f"{option.opts[0]}: meshrt launch starts processes on this machine only. For several machines, "
            "run `meshrt launch coordinator --listen HOST:PORT --nodes N SCRIPT` on one of them and `meshrt launch "
            "agent --coordinator HOST:PORT` on each"
        )


def _without_several_hosts(command: click.Command) -> click.Command:
    for name in _SEVERAL_HOSTS:
        command.params.append(click.Option([name], hidden=True, expose_value=False, callback=_one_machine))
    return command


class _Launch(click.Command):
    """``meshrt launch SCRIPT``, and behind the same word the commands of jobs on several hosts."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] in SUBCOMMANDS:
            from meshrt.cli import _launch_hosts  # start-up time: a job of one machine needs none of it

            found: click.Command = _launch_hosts.COMMANDS[args[0]]
            return found.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


# What follows TARGET belongs to the script, options included.
@_without_several_hosts
@click.command(cls=_Launch, name="launch", epilog=_EPILOG, context_settings={"allow_interspersed_args": False})
@job_options
@click.pass_context
def command(ctx: click.Context, **options: Any) -> int:
    """Runs TARGET, a Python script, as N processes that form one job.

    The script calls meshrt.distributed.initialize() before anything else of meshrt. Each line a process
    prints is shown behind its rank. When one process fails, the others are stopped and the first cause is
    reported; the exit code is that of the first failure.

    With --nodes the job runs on several hosts, N processes on each. "meshrt launch coordinator", "agent", "status",
    "logs", "resize", "stop" and "certificates" are commands of such jobs, each with a --help of its own.
    """
    job = job_of(ctx, **options)
    if job.settings.nodes is not None:
        from meshrt.cli import _launch_hosts  # start-up time: as above

        return _launch_hosts.run_here(job)
    return shell.run(job)
