"""``meshrt launch coordinator|agent|status|logs|resize|stop|certificates``: jobs on several hosts."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from meshrt.cli._launch_job import job_of, job_options
from meshrt.errors import ConfigError, DistributedError
from meshrt.launch import placing
from meshrt.launch.environment import AGENT_NAME, host_name
from meshrt.launch.membership.frames import new_secret
from meshrt.launch.shell import Job

__all__ = ["COMMANDS", "run_here", "run_placed"]

_TAKEN_UP_S = 10.0  # in which another coordinator may have the job
_AGAIN_S = 0.5
_GRPC_WORDS = "GRPC_VERBOSITY"
_HELP = {"help_option_names": ["-h", "--help"]}
_tls = click.option("--tls", type=str, metavar="FOLDER", help="Certificates of `meshrt launch certificates FOLDER`.")
_coordinator = click.option(
    "--coordinator", "address", required=True, metavar="HOST:PORT", help="Where the coordinator listens."
)


def _needs_hosts(function: Callable[..., int]) -> Callable[..., int]:
    """The command says what to install where gRPC is missing."""

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> int:
        try:
            importlib.import_module("google.protobuf")
            importlib.import_module("grpc")
        except ImportError as e:
            raise ConfigError(f"jobs on several hosts need gRPC: pip install 'meshrt[hosts]' ({e})") from None
        return function(*args, **options)

    return checked


def _calls_hosts(function: Callable[..., int]) -> Callable[..., int]:
    """As `_needs_hosts`, for a command that says itself why nobody answers: gRPC, which reads its variables as it is
    imported, prints nothing of its attempts. Processes that the command starts get the variables that it got."""
    needing = _needs_hosts(function)

    @functools.wraps(function)
    def quiet(*args: Any, **options: Any) -> int:
        given = os.environ.get(_GRPC_WORDS)
        if given is None:
            os.environ[_GRPC_WORDS] = "NONE"
        try:
            with contextlib.suppress(ImportError):  # `needing` says what to install
                importlib.import_module("grpc")
        finally:
            if given is None:
                del os.environ[_GRPC_WORDS]
        return needing(*args, **options)

    return quiet


def _trust(tls: str | None, role: str) -> Any:
    from meshrt.launch.hosts.security import Trust, read_secret  # optional wheel: after the check for it

    certificates = None
    if tls is not None:
        try:
            from meshrt.launch.hosts.certificates import read  # optional wheel: only for jobs with certificates
        except ImportError as e:
            raise ConfigError(f"--tls needs cryptography: pip install 'meshrt[hosts]' ({e})") from None
        certificates = read(Path(tls), role)
    return Trust(read_secret(os.environ), certificates)


@_needs_hosts
def run_here(job: Job) -> int:
    """A job of several hosts which are all this machine: its coordinator here, and as many agents as it may have."""
    from meshrt.launch.hosts import coordinator, testbed  # optional wheel: after the check for it
    from meshrt.launch.hosts.security import Trust  # optional wheel: as above

    secret = new_secret()
    assert job.settings.nodes is not None  # of a job of several hosts
    here = functools.partial(testbed.agents_here, job.settings.nodes[1], secret, dict(os.environ))
    options = coordinator.Options("127.0.0.1:0", Trust(secret))
    return coordinator.run(job, options, place=lambda address, fates: here(address, fates.agent_ended))


def run_placed(job: Job, dry_run: bool, detach: bool) -> int:
    """A job whose processes an engine places on other hosts: ranks, or agents of a coordinator here."""
    from meshrt.launch.placing import job as placed  # optional wheel: one way needs none

    again = _without(sys.argv[1:], len(job.arguments), "--detach", "--dry-run")
    if placed.has_agents(job.settings):
        return _run_agents(job, dry_run, detach, again)
    return placed.run(job, dry_run=dry_run, detach=detach)


def _without(words: Sequence[str], behind: int, *flags: str) -> tuple[str, ...]:
    """A command line without some flags; the `behind` last words are the script's own."""
    own = len(words) - behind
    return (*(word for word in words[:own] if word not in flags), *words[own:])


@_needs_hosts
def _run_agents(job: Job, dry_run: bool, detach: bool, again: tuple[str, ...]) -> int:
    from meshrt.launch.placing import job as placed  # optional wheel: after the check for it

    return placed.run_agents(job, dry_run=dry_run, detach=detach, again=again)


@click.command(
    name="coordinator", context_settings={"allow_interspersed_args": False, **_HELP},
    epilog="\b\nExample:\n  meshrt launch coordinator --listen 10.0.0.1:8476 --nodes 2:4 --nproc 4 train.py",
)  # fmt: skip
@click.option(
    "--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="Where agents find it. [default: 127.0.0.1:0]"
)
@click.option(
    "--journal", type=str, metavar="FILE", help="Go on from this file if a coordinator of the job was killed."
)
@_tls
@job_options
@click.pass_context
@_needs_hosts
def _run_coordinator(ctx: click.Context, listen: str, journal: str | None, tls: str | None, **options: Any) -> int:
    """Runs TARGET on the hosts whose agents join: --nodes of them, --nproc processes on each.

    The job starts when MAX hosts have joined, or 30 s after MIN have. When processes or hosts fail, what is left is
    stopped and, within --max-restarts, the job starts again on MIN to MAX hosts. A host that comes later makes the job
    larger: the processes get SIGTERM, save, and start again with it.
    """
    from meshrt.launch.hosts import coordinator  # optional wheel: after the check for it

    job = job_of(ctx, **options)
    if job.settings.nodes is None:
        raise click.UsageError("--nodes MIN[:MAX]: how many hosts does the job have?")
    if placing.is_placed(job.settings):
        raise ConfigError(
            f"engine = {job.settings.engine!r}: a coordinator waits for agents that somebody else starts; for those "
            f"that an engine places: meshrt launch --engine {job.settings.engine} ..."
        )
    where = None if journal is None else Path(journal)
    return coordinator.run(job, coordinator.Options(listen, _trust(tls, "coordinator"), where))


@click.command(name="agent", context_settings=_HELP)
@_coordinator
@click.option(
    "--name",
    type=str,
    metavar="NAME",
    envvar=AGENT_NAME,
    help="Of this host, one agent each. [default: the host's own]",
)
@click.option("--address", "own", type=str, metavar="HOST", help="Where other hosts reach this one. [default: found]")
@click.option("--join-timeout", type=float, default=300.0, metavar="S", help="Seconds to be let in. [default: 300]")
@click.option("--quiet", is_flag=True, help="Say nothing but why it fails.")
@_tls
@_calls_hosts
def _run_agent(
    address: str, name: str | None, own: str | None, join_timeout: float, quiet: bool, tls: str | None
) -> int:
    """Runs this host's processes of a job, as its coordinator says.

    The job's secret is in MESHRT_JOB_SECRET, or in the file that MESHRT_JOB_SECRET_FILE names. Leaves with the job's
    exit code; SIGTERM ends this host's processes and leaves the job.
    """
    from meshrt.launch.address import split_target  # optional wheel: after the check for it
    from meshrt.launch.hosts import agent  # optional wheel: as above
    from meshrt.launch.hosts.codec import check_name, is_address  # optional wheel: as above

    host, _ = split_target(address)
    trust = _trust(tls, "agent")
    trust.check_address(host)
    if own is not None and not is_address(own):
        raise click.BadParameter(f"{own!r} is no name or address of a host", param_hint="--address")
    if not join_timeout > 0:
        raise click.BadParameter(
            f"{join_timeout:g}: expected a time in seconds, more than 0", param_hint="--join-timeout"
        )
    options = agent.Options(address, trust, check_name(name or host_name(os.environ)), own, join_timeout)
    try:
        return agent.run(options, os.environ, (lambda text: None) if quiet else agent.complain)
    except DistributedError as e:
        agent.complain(str(e))
        return 1


def _calls(address: str, tls: str | None) -> Any:
    """A channel to the coordinator, for one command."""
    from meshrt.launch.address import split_target  # optional wheel: after the check for it
    from meshrt.launch.hosts.calls import Calls  # optional wheel: as above

    trust = _trust(tls, "agent")
    trust.check_address(split_target(address)[0])
    return Calls(address, trust)


def _ask(address: str, tls: str | None, act: Callable[[Any], Any]) -> Any:
    """What the coordinator answers; ConfigError with its refusal, or if nobody answers."""
    import grpc  # optional wheel: after the check for it

    from meshrt.launch.hosts.calls import unreachable  # optional wheel: as above

    calls = _calls(address, tls)
    try:
        return act(calls)
    except grpc.RpcError as e:
        raise calls.refusal(e) or unreachable(address, e) from None
    finally:
        calls.close()


@click.command(name="status", context_settings=_HELP)
@_coordinator
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@_tls
@_calls_hosts
def _show_status(address: str, as_json: bool, tls: str | None) -> int:
    """Shows the hosts and ranks of a job, and what has happened to it."""
    from google.protobuf.json_format import MessageToJson  # optional wheel: after the check for it

    from meshrt.launch.hosts import view  # optional wheel: as above
    from meshrt.launch.hosts.wire import coordinator_pb2 as pb  # optional wheel: as above

    found = _ask(address, tls, lambda calls: calls.call("Status", pb.StatusRequest()))
    if as_json:
        click.echo(MessageToJson(found, preserving_proto_field_name=True, always_print_fields_with_no_presence=True))
    else:
        click.echo(view.status(found))
    return 0


@click.command(name="logs", context_settings=_HELP)
@_coordinator
@click.option(
    "--rank", "ranks", type=click.IntRange(min=0), multiple=True, metavar="R", help="Of this rank alone. Repeatable."
)
@click.option(
    "-n", "--lines", type=click.IntRange(0, 1000), default=20, metavar="N", help="The last lines of each. [default: 20]"
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is printed from now on.")
@_tls
@_calls_hosts
def _show_logs(address: str, ranks: tuple[int, ...], lines: int, follow: bool, tls: str | None) -> int:
    """Shows what the ranks of a job have printed last."""
    from meshrt.launch.hosts import view  # optional wheel: after the check for it
    from meshrt.launch.hosts.signing import AlteredError  # optional wheel: as above
    from meshrt.launch.hosts.wire import coordinator_pb2 as pb  # optional wheel: as above

    last = 0
    until: float | None = None  # as long as a call that broke is taken up again

    def show(calls: Any) -> None:
        nonlocal last, until
        for line in calls.listen("Logs", pb.LogsRequest(ranks=ranks, lines=lines, follow=follow, after=last)):
            last, until = line.number, None
            (sys.stderr if line.stderr else sys.stdout).buffer.write(view.log_line(line))
            (sys.stderr if line.stderr else sys.stdout).flush()

    while True:
        try:
            _ask(address, tls, show)
            if not last and lines:
                whose = f"rank {', '.join(map(str, ranks))}" if ranks else "any rank"
                click.echo(f"meshrt launch: no lines of {whose} so far; `meshrt launch status` lists ranks", err=True)
            return 0
        except KeyboardInterrupt:
            return 130
        except (ConfigError, AlteredError):
            if not follow or not last or (until is not None and time.monotonic() > until):
                raise
            if until is None:
                until = time.monotonic() + _TAKEN_UP_S
                click.echo(f"meshrt launch: the connection to {address} broke; trying again", err=True)
            time.sleep(_AGAIN_S)


@click.command(name="resize", context_settings=_HELP)
@_coordinator
@click.argument("nodes", type=click.IntRange(min=1))
@_tls
@_calls_hosts
def _resize(address: str, nodes: int, tls: str | None) -> int:
    """Lets a job go on with NODES hosts, within its --nodes MIN:MAX."""
    from meshrt.launch.hosts.wire import coordinator_pb2 as pb  # optional wheel: after the check for it

    click.echo(_ask(address, tls, lambda calls: calls.call("Resize", pb.ResizeRequest(nodes=nodes))).answer)
    return 0


@click.command(name="stop", context_settings=_HELP)
@_coordinator
@_tls
@_calls_hosts
def _stop(address: str, tls: str | None) -> int:
    """Ends a job: its processes get SIGTERM, and SIGKILL after --grace."""
    from meshrt.launch.hosts.wire import coordinator_pb2 as pb  # optional wheel: after the check for it

    click.echo(_ask(address, tls, lambda calls: calls.call("Cancel", pb.CancelRequest())).answer)
    return 0


@click.command(name="certificates", context_settings=_HELP)
@click.argument("folder", type=str)
@click.option(
    "--days", type=click.FloatRange(0, 3650, min_open=True), default=30.0, metavar="D",
    help="Until they expire. [default: 30]",
)  # fmt: skip
@_needs_hosts
def _make_certificates(folder: str, days: float) -> int:
    """Makes FOLDER with the certificates of one job, for --tls FOLDER. Every host gets ca.pem, agent.pem and agent.key;
    coordinator.key stays where the coordinator runs.
    """
    try:
        from meshrt.launch.hosts import certificates  # optional wheel: only for jobs with certificates
    except ImportError as e:
        raise ConfigError(f"certificates need cryptography: pip install 'meshrt[hosts]' ({e})") from None
    if not folder:
        raise click.BadParameter("expected the name of a folder", param_hint="FOLDER")
    for path in certificates.make(Path(folder), new_secret()[:12], days):
        click.echo(path)
    return 0


_ALL = (_run_agent, _make_certificates, _run_coordinator, _show_logs, _resize, _show_status, _stop)
COMMANDS: dict[str, click.Command] = {c.name or "": c for c in _ALL}
