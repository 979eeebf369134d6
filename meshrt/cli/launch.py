"""``meshrt launch``: one script as many processes."""

from __future__ import annotations

from typing import Any

import click

from meshrt.cli._launch_job import job_of, job_options, pairs
from meshrt.errors import ConfigError
from meshrt.launch import placing, shell

# A script of such a name is started as ./status.
SUBCOMMANDS = ("agent", "certificates", "coordinator", "logs", "resize", "status", "stop")

_EPILOG = """\b
Examples:
  meshrt launch --nproc 2 examples/train_lm.py --steps 20
  meshrt launch --nproc 4 --devices-per-process 2 --max-restarts 3 --log-dir logs train.py
  meshrt launch --config local-2x4 -m my.trainer

\b
Several machines, by what starts processes there:
  meshrt launch --engine ssh --hosts node1,node2 --nproc 4 train.py
  meshrt launch --engine slurm --nodes 4 -o partition=gpu --dry-run train.py

\b
Or by hand, with the same MESHRT_JOB_SECRET on all:
  meshrt launch coordinator --listen HOST:PORT --nodes 2 --nproc 4 train.py    (on one of them)
  meshrt launch agent --coordinator HOST:PORT                                  (on each of them)
"""
_OTHERS_OPTIONS = ("--nnodes", "--node-rank", "--coordinator-address")


def _of_others(_: click.Context, option: click.Parameter, value: str | None) -> None:
    """Options that other launchers are given on each host are refused with what to do instead."""
    if value is not None:
        raise click.UsageError(
            f"{option.opts[0]}: meshrt launch is run once for all hosts: `meshrt launch --engine ssh --hosts a,b "
            "SCRIPT`, or another engine; or by hand `meshrt launch coordinator --listen HOST:PORT --nodes N SCRIPT` on "
            "one of them and `meshrt launch agent --coordinator HOST:PORT` on each"
        )


def _without_others_options(command: click.Command) -> click.Command:
    for name in _OTHERS_OPTIONS:
        command.params.append(click.Option([name], hidden=True, expose_value=False, callback=_of_others))
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
@_without_others_options
@click.command(cls=_Launch, name="launch", epilog=_EPILOG, context_settings={"allow_interspersed_args": False})
@job_options
@click.option(
    "--hosts", type=str, metavar="A,B", help="The hosts of --engine ssh, mpi or slurm; A:2 has two processes."
)
@click.option("--hostfile", type=str, metavar="FILE", help="The hosts that a file lists, one in a line.")
@click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    metavar="K=V",
    callback=pairs,
    help="An option of the engine. Repeatable.",
)
@click.option("--listen", type=str, metavar="HOST:PORT", help="Where agents find this launcher. [default: found]")
@click.option("--agents/--no-agents", default=True, help="Agents start the ranks, or the engine itself does.")
@click.option("--dry-run", is_flag=True, help="Print what the engine would be given, and start nothing.")
@click.option("--detach", is_flag=True, help="Leave the job to the engine's queue (slurm, kubernetes).")
@click.pass_context
def command(ctx: click.Context, /, dry_run: bool, detach: bool, **options: Any) -> int:
    """Runs TARGET, a Python script, as N processes that form one job.

    The script calls meshrt.distributed.initialize() before anything else of meshrt. Each line a process
    prints is shown behind its rank. When one process fails, the others are stopped and the first cause is
    reported; the exit code is that of the first failure.

    With --nodes or --hosts the job runs on several hosts, N processes on each, which --engine places there. "meshrt
    launch coordinator", "agent", "status", "logs", "resize", "stop" and "certificates" are commands of such jobs, each
    with a --help of its own.
    """
    job = job_of(ctx, subcommands=SUBCOMMANDS, **options)
    if placing.is_placed(job.settings):
        from meshrt.cli import _launch_hosts  # start-up time: as above

        return _launch_hosts.run_placed(job, dry_run, detach)
    if dry_run or detach:
        raise ConfigError(
            f"{'--dry-run' if dry_run else '--detach'}: a job on this machine is not submitted "
            "anywhere, it just runs. Leave the option out, or name an engine: --engine ssh --hosts a,b"
        )
    if job.settings.nodes is not None:
        from meshrt.cli import _launch_hosts  # start-up time: as above

        return _launch_hosts.run_here(job)
    return shell.run(job)
